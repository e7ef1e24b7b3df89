"""Decide the runtime wrapper's changes of a bundle's config.json, from documents alone.

Nothing is written. The caller's ``look`` reads the host, if the container requests graphics or a
gated component. All other text of config.json stays byte for byte (see ``nvgraft.base.jsonedit``).

Source: reference behaviour 9.2 to 9.5. The modes with CDI edits are refused. In mode legacy, the
hook for CUDA compatibility libraries is left out with a warning.
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
    read_variable,
    requested_devices,
    resolve_mode,
)
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.base.jsonedit import Addition
    from nvgraft.request.config import Config
    from nvgraft.request.oci import ContainerConfig
    from nvgraft.wrapper.additions import Additions

    #: Variables of gated components, device ids for graphics (None: not requested) -> this host's
    #: additions.
    Look = Callable[[Sequence[str], Sequence[str] | None], Additions]
    #: Links, each TARGET::LINK -> the OCI hook that makes them.
    LinkHook = Callable[[Sequence[str]], dict[str, object]]

_MODIFY = "could not apply required modification to OCI specification: "
LOAD = _MODIFY + "error loading OCI specification for modification: "
EDIT = _MODIFY + "error modifying OCI spec: "
WRITE = _MODIFY + "error writing modified OCI specification: "

#: Phrases of the reference's hook, as in ``nvgraft.request.oci`` -> those of its runtime for the
#: same faults.
_HOOK_PHRASES = (
    ("could not open OCI spec: ", LOAD + "error opening OCI specification file: "),
    (
        "could not decode OCI spec: ",
        LOAD + "error loading OCI specification from file: error reading OCI specification: ",
    ),
    ("", EDIT),
)

#: The members of process.user that the reference always writes, by default as 0.
_IDS = ("uid", "gid")
_GRAPHICS = ("graphics", "display", names.ALL)


class Rewrite(Value):
    """The new text of config.json, and lines for the log as (level, line)."""

    def __init__(self, data: bytes, log: tuple[tuple[str, str], ...]) -> None:
        self.data = data
        self.log = log


class _WrapperDecision(Value):
    """Whether the hook is inserted, and the arguments ``gates`` and ``graphics_devices`` of
    ``Look``.
    """

    def __init__(
        self,
        inject: bool,
        gates: list[str],
        graphics_devices: tuple[str, ...] | None,
        log: tuple[tuple[str, str], ...],
    ) -> None:
        self.inject = inject
        self.gates = gates
        self.graphics_devices = graphics_devices
        self.log = log


def rewrite(
    data: bytes,
    config: Config,
    configured: str,
    hook: dict[str, object],
    look: Look,
    link_hook: LinkHook,
) -> Rewrite:
    """Return the config.json ``data`` with all changes for the low-level runtime.

    :param configured: the mode of config.toml, or the one that the program's name fixes.
    :param hook: the OCI hook that is inserted in mode legacy.
    :param look: called only if the container requests graphics or a gated component.
    :raises Refusal: it cannot be read, it requests devices in a mode that is not supported, or
        ``look`` refuses.
    """
    try:
        container = parse_config(data, complete=False)
        document = Document(data)
        root = document.root()
        annotations = _annotations(document, root, config) if configured in ("auto", "cdi") else []
        decision = _decide(container, annotations, config, configured)
        additions = None
        if decision.gates or decision.graphics_devices is not None:
            additions = look(decision.gates, decision.graphics_devices)
        if root.value is None:
            raise JsonError("unexpected null", "it has no members")
        edits = [
            _process_edits(document, root, decision.gates),
            _hook_edits(document, root, hook if decision.inject else None),
        ]
        if additions is not None:
            from nvgraft.wrapper.edits import config_edits

            edits.append(
                config_edits(
                    document,
                    additions,
                    link_hook(additions.links) if additions.links else None,
                    groups=not config.features_no_additional_gids_for_device_nodes,
                )
            )
        document.merge(root, _united(edits))
        added = () if additions is None else _added(additions)
        return Rewrite(document.changed(), decision.log + added)
    except JsonError as error:
        raise in_runtime(
            Refusal("", f"could not decode OCI spec: {error.text}", f"config.json: {error.hint}")
        ) from None
    except Refusal as refusal:
        raise in_runtime(refusal) from None


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
    return Refusal("", words + refusal.text[len(phrase) :], refusal.hint)


def _decide(
    container: ContainerConfig, annotated: list[str], config: Config, configured: str
) -> _WrapperDecision:
    """Decide what the container gets (reference behaviour 9.3)."""
    if configured not in names.MODES:
        fix = f"set nvidia-container-runtime.mode in config.toml to one of {', '.join(names.MODES)}"
        raise Refusal("", f'invalid mode "{configured}"', fix)
    devices = requested_devices(container, config)
    ids = () if isinstance(devices, Skip) else devices.ids
    mode, line = resolve_mode(configured, annotated or ids)
    log = [("info", line)]
    if isinstance(devices, Skip) and devices.warning:
        log.append(("warning", devices.warning))
    if mode == "cdi" and annotated:
        devices = DeviceRequest(tuple(annotated), "CDI annotations")
    if mode != LEGACY and isinstance(devices, DeviceRequest):
        raise Refusal(
            "",
            f"mode {mode} is not served by nvgraft-runtime",
            f"this container asks for {', '.join(devices.ids) or names.NONE}"
            f" ({devices.source}); set nvidia-container-runtime.mode "
            "to legacy in config.toml and request GPUs by index or UUID, or use the CDI"
            " support of the engine",
        )
    # Without a request the reference's default mode inserts nothing. In mode legacy it inserts the
    # hook, which decides.
    inject = mode == LEGACY and (configured == LEGACY or isinstance(devices, DeviceRequest))
    reason = devices.reason if isinstance(devices, Skip) else devices.source
    log.append(("info", f"the prestart hook is {'inserted' if inject else 'left out'}: {reason}"))
    if isinstance(devices, Skip):
        return _WrapperDecision(inject, [], None, tuple(log))
    gates = [name for name in names.GATED_DEVICES if container.env.get(name) == names.GATE_OPEN]
    log += [("warning", line) for line in _remarks(gates, config)]
    capabilities = (read_variable(container.env, names.DRIVER_CAPABILITIES) or "").split(",")
    graphics = any(name in _GRAPHICS for name in capabilities)
    return _WrapperDecision(inject, gates, devices.ids if graphics else None, tuple(log))


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


def _process_edits(document: Document, root: Place, gates: Sequence[str]) -> dict[str, Addition]:
    """Return the additions to ``process``: uid and gid with their defaults, as the reference, and a
    void variable for each gate.
    """
    process = document.member(root, "process")
    if process is None or process.value is None:
        return {}
    user = document.member(process, "user")
    as_object(user and user.value, "struct field Process.process.user of type specs.User")
    void = dumps(f"{names.VISIBLE_DEVICES}={names.VOID}")
    return {"process": {"env": [void] * len(gates), "user": dict.fromkeys(_IDS, "0")}}


def _hook_edits(
    document: Document, root: Place, hook: dict[str, object] | None
) -> dict[str, Addition]:
    """Return ``hook`` as an addition unless config.json has a hook of one of its names; if it is
    None, remove those.

    Source: reference behaviour 9.4.
    """
    hooks = document.member(root, "hooks")
    prestart = None
    ours: list[Place] = []
    if hooks is not None:
        as_object(hooks.value, "struct field Spec.hooks of type specs.Hooks")
        prestart = document.member(hooks, "prestart")
    if prestart is not None:
        as_array(prestart.value, "struct field Hooks.hooks.prestart of type []specs.Hook")
        ours = [item for item in document.items(prestart) if _is_hook(document, item)]
    if hook is not None:
        return {"hooks": {"prestart": [] if ours else [dumps(hook)]}}
    if ours and hooks is not None and prestart is not None:
        others = [item for item in document.items(prestart) if item not in ours]
        if others:
            document.replace(prestart, document.keep(prestart, others))
        else:
            members = [place for _, place in document.members(hooks) if place != prestart]
            document.replace(hooks, document.keep(hooks, members))
    return {}


def _is_hook(document: Document, item: Place) -> bool:
    as_object(item.value, "struct field Hooks.hooks.prestart of type specs.Hook")
    path = document.member(item, "path")
    text = as_string(path and path.value, "struct field Hook.hooks.prestart.path of type string")
    return paths.basename(text) in names.HOOK_NAMES
