"""What the runtime wrapper changes in a bundle's config.json, decided from documents alone.

Nothing is written, and of the host only what the caller's ``look`` returns for a container that asks for graphics or for a
gated component. Only what has to change changes (see ``nvgraft.base.jsonedit``).

Source: reference behaviour 9.2 to 9.5. Not served, and said so: the modes in which CDI edits are made, and in mode legacy
the hook for CUDA compatibility libraries.
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

    #: Variables of gated components, ids of devices for graphics (None: not asked for) -> what this host has for them.
    Look = Callable[[Sequence[str], Sequence[str] | None], Additions]
    #: Links, each TARGET::LINK -> the OCI hook that makes them.
    LinkHook = Callable[[Sequence[str]], dict[str, object]]

_MODIFY = "could not apply required modification to OCI specification: "
LOAD = _MODIFY + "error loading OCI specification for modification: "
EDIT = _MODIFY + "error modifying OCI spec: "
WRITE = _MODIFY + "error writing modified OCI specification: "

#: The phrases of ``nvgraft.request.oci`` are the hook's; the runtime has its own for the same faults.
_HOOK_PHRASES = (
    ("could not open OCI spec: ", LOAD + "error opening OCI specification file: "),
    (
        "could not decode OCI spec: ",
        LOAD + "error loading OCI specification from file: error reading OCI specification: ",
    ),
    ("", EDIT),
)

#: The members of process.user that the reference always writes; 0 where there is none.
_IDS = ("uid", "gid")
_GRAPHICS = ("graphics", "display", names.ALL)


class Rewrite(Value):
    """The new text of config.json, and what there is to say: pairs of (log level, line)."""

    def __init__(self, data: bytes, log: tuple[tuple[str, str], ...]) -> None:
        self.data = data
        self.log = log


class _Decision(Value):
    """What a container gets: whether the hook is inserted, and its ``gates`` and ``graphics_devices`` as ``Look`` takes them."""

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
    """Return ``data``, a config.json, as the low-level runtime shall find it.

    :param configured: the mode of config.toml, or the one that the program's name fixes.
    :param hook: the OCI hook that is inserted in mode legacy.
    :param look: is called only where the container asks for more than the hook.
    :raises Refusal: it cannot be read, it asks for devices in a mode that is not served, or ``look`` refuses.
    """
    try:
        container = parse_config(data, complete=False)
        document = Document(data)
        root = document.root()
        annotations = _annotations(document, root, config) if configured in ("auto", "cdi") else []
        decision = _decide(container, annotations, config, configured)
        additions = (
            look(decision.gates, decision.graphics_devices)
            if decision.gates or decision.graphics_devices is not None
            else None
        )
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
    """Return what several places want to be merged into the document, as one."""
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
    """Return a line for everything that is added besides the hook."""
    lines = [f"Mounting {mount.path} at {mount.target}" for mount in additions.mounts]
    lines += [f"Injecting {node.path}" for node in additions.nodes]
    lines += [f"Linking {link}" for link in additions.links]
    return tuple(("info", line) for line in lines)


def in_runtime(refusal: Refusal) -> Refusal:
    """Return a refusal of config.json with the phrases of the reference's runtime instead of its hook's."""
    if refusal.first_line:
        return Refusal("", refusal.text, refusal.hint, first_line=EDIT + refusal.first_line)
    phrase, words = next(pair for pair in _HOOK_PHRASES if refusal.text.startswith(pair[0]))
    return Refusal("", words + refusal.text[len(phrase) :], refusal.hint)


def _decide(
    container: ContainerConfig, annotated: list[str], config: Config, configured: str
) -> _Decision:
    """Return what the container gets, and the lines to log about it (reference behaviour 9.3)."""
    if configured not in names.MODES:
        fix = f"nvidia-container-runtime.mode in config.toml is one of {', '.join(names.MODES)}"
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
            f"this container asks for {', '.join(devices.ids) or names.NONE} ({devices.source}); set nvidia-container-runtime.mode "
            "to legacy in config.toml and ask for GPUs by index or UUID, or have the engine do CDI by itself",
        )
    # Without a request the reference's default mode is one that inserts nothing; in mode legacy the hook is asked.
    inject = mode == LEGACY and (configured == LEGACY or isinstance(devices, DeviceRequest))
    reason = devices.reason if isinstance(devices, Skip) else devices.source
    log.append(("info", f"the prestart hook is {'inserted' if inject else 'left out'}: {reason}"))
    if isinstance(devices, Skip):
        return _Decision(inject, [], None, tuple(log))
    gates = [name for name in names.GATED_DEVICES if container.env.get(name) == names.GATE_OPEN]
    log += [("warning", line) for line in _remarks(gates, config)]
    capabilities = (read_variable(container.env, names.DRIVER_CAPABILITIES) or "").split(",")
    graphics = any(name in _GRAPHICS for name in capabilities)
    return _Decision(inject, gates, devices.ids if graphics else None, tuple(log))


def _remarks(gates: list[str], config: Config) -> list[str]:
    """Return what a person should know of the gates, and of what the reference would add and nvgraft does not."""
    lines = []
    if gates:
        opened = ", ".join(f"{name}={names.GATE_OPEN}" for name in gates)
        lines.append(
            f"{opened}: as with the original the hook adds no GPU then, because {names.VISIBLE_DEVICES}={names.VOID} is appended to the "
            "environment | unset them and pass the nodes with --device"
        )
    if (
        config.runtime_cuda_compat_mode == "hook"
        and not config.features_disable_cuda_compat_lib_hook
    ):
        lines.append(
            "cuda-compat-mode hook: the image's CUDA compatibility libraries are not used | set it to ldconfig in config.toml"
        )
    return lines


def _annotations(document: Document, root: Place, config: Config) -> list[str]:
    """Return the devices that annotations request where CDI names decide about the mode (reference behaviour 1.2, 9.3)."""
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
    """Return the ids that a process runs with by default, which the reference writes out, and a void for each gate."""
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
    """Return the hook for the prestart hooks unless one of its names is there; without a hook remove those (reference behaviour 9.4)."""
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
            document.replace(
                hooks,
                document.keep(
                    hooks, [place for _, place in document.members(hooks) if place != prestart]
                ),
            )
    return {}


def _is_hook(document: Document, item: Place) -> bool:
    as_object(item.value, "struct field Hooks.hooks.prestart of type specs.Hook")
    path = document.member(item, "path")
    text = as_string(path and path.value, "struct field Hook.hooks.prestart.path of type string")
    return paths.basename(text) in names.HOOK_NAMES
