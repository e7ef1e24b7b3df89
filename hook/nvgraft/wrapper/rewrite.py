"""Decide the runtime wrapper's changes of a bundle's config.json, from documents alone.

Nothing is written. The caller's ``look`` reads the host, if the container requests devices in a
mode with CDI edits, graphics or a gated component. All other text of config.json stays byte for
byte (see ``nvgraft.base.jsonedit``).

Source: reference behaviour 9.2 to 9.7. In mode legacy, the hook for CUDA compatibility libraries is
left out with a warning.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.jsonedit import Document, Place
from nvgraft.base.jsontext import JsonError, dumps
from nvgraft.base.values import Value
from nvgraft.request.oci import as_array, as_object, as_string, parse_config
from nvgraft.request.request import (
    LEGACY,
    DeviceRequest,
    Skip,
    is_cdi_name,
    read_variable,
    requested_channels,
    requested_devices,
    requirements_of,
)
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.base.jsonedit import Addition
    from nvgraft.cdi.edits import CdiEdits, CdiHook
    from nvgraft.cdi.generation import CdiRequest
    from nvgraft.request.config import Config
    from nvgraft.request.oci import ContainerConfig
    from nvgraft.wrapper.additions import Additions
    from nvgraft.wrapper.host_look import HostLook

    #: Links, each TARGET::LINK -> the OCI hooks that make them.
    LinkHooks = Callable[[Sequence[str]], list[CdiHook]]

AUTO, CDI, CSV, JIT_CDI = "auto", "cdi", "csv", "jit-cdi"

#: The kind of the devices that are generated for a container, in memory.
AUTOMATIC_KIND = "runtime.nvidia.com/gpu"
_AUTOMATIC_ERROR = "failed to create the automatic CDI modifier: "

_MODIFY = "could not apply required modification to OCI specification: "
LOAD = _MODIFY + "error loading OCI specification for modification: "
EDIT = _MODIFY + "error modifying OCI spec: "
WRITE = _MODIFY + "error writing modified OCI specification: "
_CONSTRUCT = "failed to create NVIDIA Container Runtime: failed to construct OCI spec modifier: "

#: Phrases of the reference's hook, as in ``nvgraft.request.oci`` -> those of its runtime for the
#: same faults.
_HOOK_PHRASES = (
    ("could not open OCI spec: ", LOAD + "error opening OCI specification file: "),
    (
        "could not decode OCI spec: ",
        LOAD + "error loading OCI specification from file: error reading OCI specification: ",
    ),
    (_CONSTRUCT, _CONSTRUCT),
    ("", EDIT),
)

#: The members of process.user that the reference always writes, by default as 0.
_IDS = ("uid", "gid")
_GRAPHICS = ("graphics", "display", names.ALL)


class RewriteLog:
    """What is decided about a container, and the lines for the log that tell it.

    :ivar lines: as (level, line).
    :ivar mode: the mode in which the runtime acts; "" before that is decided.
    :ivar hook_line: the line about the prestart hook; "" before that is decided.
    :ivar hook_reason: why the prestart hook is inserted or left out.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.mode = self.hook_line = self.hook_reason = ""

    def add(self, level: str, line: str) -> None:
        """Add a line."""
        self.lines.append((level, line))

    def decide_mode(self, mode: str, line: str) -> None:
        """Set the mode, and add the line that tells it."""
        self.mode = mode
        self.add("info", line)

    def decide_hook(self, *, inserted: bool, reason: str) -> None:
        """Set the reason for the prestart hook, and add the line that tells it."""
        what = "inserted" if inserted else "left out"
        self.hook_line, self.hook_reason = f"the prestart hook is {what}: {reason}", reason
        self.add("info", self.hook_line)


class Rewrite(Value):
    """The new text of config.json, and what was decided."""

    def __init__(self, data: bytes, log: RewriteLog) -> None:
        self.data = data
        self.log = log


class RefusedRewrite(Refusal):
    """A config.json that is not rewritten; ``log`` is what was decided before the refusal."""

    def __init__(self, refusal: Refusal, log: RewriteLog) -> None:
        told = in_runtime(refusal)
        super().__init__("", told.text, told.hint, first_line=told.first_line, kind=told.kind)
        self.log = log


class _WrapperDecision(Value):
    """What a container gets.

    :param inject: whether the hook is inserted; otherwise it is removed.
    :param gates: in mode legacy, the variables of gated components.
    :param graphics_devices: in mode legacy, the ids of the devices for graphics, or None.
    :param generated: the devices that are generated, or None.
    :param registered: qualified names of devices of specifications.
    """

    def __init__(
        self,
        *,
        inject: bool = False,
        gates: Sequence[str] = (),
        graphics_devices: tuple[str, ...] | None = None,
        generated: CdiRequest | None = None,
        registered: Sequence[str] = (),
    ) -> None:
        self.inject = inject
        self.gates = tuple(gates)
        self.graphics_devices = graphics_devices
        self.generated = generated
        self.registered = tuple(registered)


def rewrite(
    data: bytes,
    config: Config,
    configured: str,
    hook: dict[str, object],
    look: Callable[[], HostLook],
    link_hooks: LinkHooks,
) -> Rewrite:
    """Return the config.json ``data`` with all changes for the low-level runtime.

    :param configured: the mode of config.toml, or the one that the program's name fixes.
    :param hook: the OCI hook that is inserted in mode legacy.
    :param look: returns the host; called once, if the container needs it.
    :param link_hooks: returns the OCI hooks for links that are made in mode legacy.
    :raises Refusal: it cannot be read, a device that it requests is not there, or ``look`` refuses.
    """
    log = RewriteLog()
    opened: list[HostLook] = []

    def host() -> HostLook:
        if not opened:
            opened.append(look())
        return opened[0]

    try:
        container = parse_config(data, complete=False)
        document = Document(data)
        root = document.root()
        annotations = _annotations(document, root, config) if configured in (AUTO, CDI) else []
        decision = _decide(container, annotations, config, configured, host, log)
        if root.value is None:
            raise JsonError("unexpected null", "it has no members")
        parts, lines = _edits(decision, config, host, link_hooks)
        edits = [_process_edits(document, root)]
        if parts:
            from nvgraft.wrapper.edits import config_edits

            edits.append(config_edits(document, parts))
        if decision.inject:
            edits.append(_inserted_hook(document, root, hook))
        document.merge(root, _united(edits))
        if not decision.inject:
            _remove_hooks(document, root)
        log.lines += lines
        return Rewrite(document.changed(), log)
    except JsonError as error:
        refusal = Refusal(
            "", f"could not decode OCI spec: {error.text}", f"config.json: {error.hint}"
        )
        raise RefusedRewrite(refusal, log) from None
    except Refusal as refusal:
        raise RefusedRewrite(refusal, log) from None


def _edits(
    decision: _WrapperDecision,
    config: Config,
    look: Callable[[], HostLook],
    link_hooks: LinkHooks,
) -> tuple[list[CdiEdits], tuple[tuple[str, str], ...]]:
    """Return the edits besides the hook, in the order in which they are applied, and lines for the
    log.
    """
    if decision.registered:
        found = look().registered(decision.registered)
        return list(found.edits), found.log
    if decision.generated is not None:
        try:
            found = look().generated(decision.generated)
        except Refusal as refusal:
            automatic = "" if decision.generated.csv else _AUTOMATIC_ERROR
            raise refusal.in_words(automatic + refusal.text) from None
        return list(found.edits), found.log
    if not decision.gates and decision.graphics_devices is None:
        return [], ()
    from nvgraft.cdi.edits import CdiEdits
    from nvgraft.wrapper.edits import additions_edits

    additions = look().additions(decision.gates, decision.graphics_devices)
    links = link_hooks(additions.links) if additions.links else []
    groups = not config.features_no_additional_gids_for_device_nodes
    void = f"{names.VISIBLE_DEVICES}={names.VOID}"
    parts = [
        CdiEdits(env=[void] * len(decision.gates)),
        additions_edits(additions, links, groups=groups),
    ]
    return parts, _added(additions)


def _united(edits: list[dict[str, Addition]]) -> dict[str, Addition]:
    """Unite several additions to the same document."""
    whole: dict[str, Addition] = {}
    for edit in edits:
        for name, added in edit.items():
            before = whole.get(name)
            whole[name] = (
                _united([before, added])
                if isinstance(before, dict) and isinstance(added, dict)
                else added
            )
    return whole


def _added(additions: Additions) -> tuple[tuple[str, str], ...]:
    """Return a log line for each mount, node and link that is added."""
    lines = [f"Mounting {mount.path} at {mount.target}" for mount in additions.mounts]
    lines += [f"Injecting {node.path}" for node in additions.nodes]
    lines += [f"Linking {link}" for link in additions.links]
    return tuple(("info", line) for line in lines)


def in_runtime(refusal: Refusal) -> Refusal:
    """Replace the phrases of the reference's hook in a refusal of config.json by those of its
    runtime.
    """
    if refusal.first_line:
        return Refusal("", refusal.text, refusal.hint, first_line=EDIT + refusal.first_line)
    phrase, words = next(pair for pair in _HOOK_PHRASES if refusal.text.startswith(pair[0]))
    return refusal.in_words(words + refusal.text[len(phrase) :])


def _decide(
    container: ContainerConfig,
    annotated: list[str],
    config: Config,
    configured: str,
    look: Callable[[], HostLook],
    log: RewriteLog,
) -> _WrapperDecision:
    """Decide what the container gets (reference behaviour 9.3).

    :param log: gets what is decided.
    """
    _check_mode(configured)
    devices = requested_devices(container, config)
    mode, line = _resolve(configured, devices, annotated, look)
    log.decide_mode(mode, line)
    if isinstance(devices, Skip) and devices.warning:
        log.add("warning", devices.warning)
    if mode == CDI and annotated:
        devices = DeviceRequest(tuple(dict.fromkeys(annotated)), "CDI annotations")
    # In mode legacy the reference inserts the hook without a request too, and the hook decides.
    inject = mode == LEGACY
    requested = devices.reason if isinstance(devices, Skip) else devices.source
    because = "" if inject or isinstance(devices, Skip) else f"mode {mode} adds the devices: "
    log.decide_hook(inserted=inject, reason=because + requested)
    if isinstance(devices, Skip):
        return _WrapperDecision(inject=inject)
    gates = [name for name in names.GATED_DEVICES if container.env.get(name) == names.GATE_OPEN]
    if mode == LEGACY:
        log.lines += [("warning", line) for line in _remarks(gates, config)]
        capabilities = (read_variable(container.env, names.DRIVER_CAPABILITIES) or "").split(",")
        graphics = any(name in _GRAPHICS for name in capabilities)
        return _WrapperDecision(
            inject=True, gates=gates, graphics_devices=devices.ids if graphics else None
        )
    every_csv_file = container.env.get(names.REQUIRE_JETPACK_PREFIX) == names.EVERY_CSV_FILE
    if mode == CSV:
        look().get_ready()
        from nvgraft.cdi.generation import CdiRequest

        request = CdiRequest(
            devices.ids,
            gates=gates,
            csv=True,
            every_csv_file=every_csv_file,
            requirements=requirements_of(container.env),
        )
        return _WrapperDecision(generated=request)
    kind = AUTOMATIC_KIND if mode == JIT_CDI else config.runtime_cdi_default_kind
    qualified = _qualified(devices.ids, kind)
    automatic = _automatic(qualified)
    if not automatic:
        return _WrapperDecision(registered=qualified)
    look().get_ready()
    from nvgraft.cdi.generation import CdiRequest

    channels, warnings = requested_channels(container, config)
    log.lines += [("warning", line) for line in warnings]
    request = CdiRequest(automatic, gates=gates, channels=channels, every_csv_file=every_csv_file)
    return _WrapperDecision(generated=request)


def _automatic(qualified: Sequence[str]) -> list[str]:
    """Return the ids of the devices that are generated, which must be all or none.

    :raises Refusal: they are some.
    """
    prefix = f"{AUTOMATIC_KIND}="
    automatic = [name for name in qualified if name.startswith(prefix)]
    if automatic and len(automatic) < len(qualified):
        other = next(name for name in qualified if name not in automatic)
        raise Refusal(
            "",
            "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when"
            " requesting other CDI devices",
            f"{automatic[0]} is made for this container, {other} is in a specification: request"
            " only one of the two kinds",
        )
    return [name.removeprefix(prefix) for name in automatic]


def _check_mode(configured: str) -> None:
    if configured in names.MODES:
        return
    fault = f'invalid mode "{configured}"' if configured else "a mode must be specified"
    fix = f"set nvidia-container-runtime.mode in config.toml to one of {', '.join(names.MODES)}"
    raise Refusal("", _CONSTRUCT + fault, fix)


def _resolve(
    configured: str,
    devices: DeviceRequest | Skip,
    annotated: Sequence[str],
    look: Callable[[], HostLook],
) -> tuple[str, str]:
    """Return the mode, and the reference's log line for it."""
    if configured != AUTO:
        return configured, f"Using requested mode '{configured}'"
    ids = () if isinstance(devices, Skip) else devices.ids
    requested = annotated or ids
    if requested and all(map(is_cdi_name, requested)):
        mode = CDI
    elif isinstance(devices, Skip):
        mode = JIT_CDI  # the host is not looked at
    else:
        look().get_ready()
        mode = CSV if look().platform() == "tegra" else JIT_CDI
    return mode, f"Auto-detected mode as '{mode}'"


def _qualified(devices: Sequence[str], kind: str) -> list[str]:
    """Return ids as qualified names; an empty list, and an empty id, stand for the device
    ``none``.
    """
    return list(
        dict.fromkeys(
            device if is_cdi_name(device) else f"{kind}={device or names.NONE}"
            for device in devices or (names.NONE,)
        )
    )


def _remarks(gates: list[str], config: Config) -> list[str]:
    """Return warnings about the gates, and about the hook that the reference would add and nvgraft
    does not.
    """
    lines = []
    if gates:
        opened = ", ".join(f"{name}={names.GATE_OPEN}" for name in gates)
        lines.append(
            f"{opened}: as with the original, the hook then adds no GPU, because"
            f" {names.VISIBLE_DEVICES}={names.VOID} is appended to the "
            "environment | unset these variables, and pass the nodes with --device"
        )
    if (
        config.runtime_cuda_compat_mode == "hook"
        and not config.features_disable_cuda_compat_lib_hook
    ):
        lines.append(
            "cuda-compat-mode hook: the image's CUDA compatibility libraries are not used |"
            " set it to ldconfig in config.toml"
        )
    return lines


def _annotations(document: Document, root: Place, config: Config) -> list[str]:
    """Return the devices that annotations request by CDI names, which decide the mode (reference
    behaviour 1.2, 9.3).
    """
    place = document.member(root, "annotations")
    if place is None:
        return []
    target = "struct field Spec.annotations of type "
    pairs = sorted(as_object(place.value, target + "map[string]string").items())
    values = [
        as_string(value, target + "string")
        for key, value in pairs
        if key.startswith(config.runtime_cdi_annotation_prefixes)
    ]
    return [name for value in values for name in value.split(",")]


def _process_edits(document: Document, root: Place) -> dict[str, Addition]:
    """Return the additions to ``process`` that every container gets: uid and gid with their
    defaults, as the reference.
    """
    process = document.member(root, "process")
    if process is None or process.value is None:
        return {}
    user = document.member(process, "user")
    as_object(user and user.value, "struct field Process.process.user of type specs.User")
    return {"process": {"user": dict.fromkeys(_IDS, "0")}}


def _inserted_hook(document: Document, root: Place, hook: dict[str, object]) -> dict[str, Addition]:
    """Return ``hook`` as an addition, unless config.json has a hook of one of its names (reference
    behaviour 9.4).
    """
    _, _, ours = _prestart_hooks(document, root)
    return {"hooks": {"prestart": [] if ours else [dumps(hook)]}}


def _remove_hooks(document: Document, root: Place) -> None:
    """Remove the hooks of one of our names: another program adds the devices (reference behaviour
    9.4).
    """
    hooks, prestart, ours = _prestart_hooks(document, root)
    if not ours or hooks is None or prestart is None:
        return
    if len(ours) == len(document.items(prestart)) and not document.is_appended(prestart):
        document.remove(hooks, prestart)
    else:
        for item in ours:
            document.remove(prestart, item)


def _prestart_hooks(
    document: Document, root: Place
) -> tuple[Place | None, Place | None, list[Place]]:
    """Return the members ``hooks`` and ``hooks.prestart``, and the items in the latter that have
    one of our names.
    """
    hooks = document.member(root, "hooks")
    if hooks is None:
        return None, None, []
    as_object(hooks.value, "struct field Spec.hooks of type specs.Hooks")
    prestart = document.member(hooks, "prestart")
    if prestart is None:
        return hooks, None, []
    as_array(prestart.value, "struct field Hooks.hooks.prestart of type []specs.Hook")
    return (
        hooks,
        prestart,
        [item for item in document.items(prestart) if _is_hook(document, item)],
    )


def _is_hook(document: Document, item: Place) -> bool:
    as_object(item.value, "struct field Hooks.hooks.prestart of type specs.Hook")
    path = document.member(item, "path")
    text = as_string(path and path.value, "struct field Hook.hooks.prestart.path of type string")
    return paths.basename(text) in names.HOOK_NAMES
