"""What the runtime wrapper changes in a bundle's config.json, decided from documents alone.

Pure: nothing of the host is looked at, nothing is written. Only what has to change changes (see ``nvgraft.jsonedit``).

Source: reference behaviour 9.2 to 9.5. Not served, and said so: the modes in which CDI edits are made, and in mode legacy
the graphics devices and files, the devices of gated components and the hook for CUDA compatibility libraries.
"""

import posixpath

from nvgraft.errors import Refusal
from nvgraft.jsonedit import Document, Place
from nvgraft.jsontext import JsonError, dumps
from nvgraft.oci import as_array, as_object, as_string, parse_config
from nvgraft.request import LEGACY, Skip, read_variable, requested_devices, resolve_mode
from nvgraft.values import Value
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.config import Config
    from nvgraft.oci import ContainerConfig

_MODIFY = "could not apply required modification to OCI specification: "
LOAD = _MODIFY + "error loading OCI specification for modification: "
EDIT = _MODIFY + "error modifying OCI spec: "
WRITE = _MODIFY + "error writing modified OCI specification: "

#: The phrases of ``nvgraft.oci`` are the hook's; the runtime has its own for the same faults.
_HOOK_PHRASES = (
    ("could not open OCI spec: ", LOAD + "error opening OCI specification file: "),
    ("could not decode OCI spec: ", LOAD + "error loading OCI specification from file: error reading OCI specification: "),
    ("", EDIT),
)

#: The members of process.user that the reference always writes; 0 where there is none.
_IDS = ("uid", "gid")
_GRAPHICS = ("graphics", "display", names.ALL)


class Rewrite(Value):
    """The new text of config.json, and what there is to say: pairs of (log level, line)."""

    __slots__ = ("data", "log")

    def __init__(self, data: bytes, log: tuple[tuple[str, str], ...]) -> None:
        self.data = data
        self.log = log


def rewrite(data: bytes, config: "Config", configured: str, hook: dict[str, object]) -> Rewrite:
    """Return ``data``, a config.json, as the low-level runtime shall find it.

    :param configured: the mode of config.toml, or the one that the program's name fixes.
    :param hook: the OCI hook that is inserted in mode legacy.
    :raises Refusal: it cannot be read, or it asks for devices in a mode that is not served.
    """
    try:
        container = parse_config(data, complete=False)
        document = Document(data)
        root = document.root()
        annotations = _annotations(document, root, config) if configured in ("auto", "cdi") else []
        inject, gated, log = _decide(container, annotations, config, configured)
        if root.value is None:
            raise JsonError("unexpected null", "it has no members")
        process = document.member(root, "process")
        if process is not None and process.value is not None:
            _complete_user(document, process)
            if gated:
                _append_to(document, process, "env", dumps(f"{names.VISIBLE_DEVICES}={names.VOID}"))
        _edit_hooks(document, root, dumps(hook) if inject else "")
        return Rewrite(document.changed(), log)
    except JsonError as error:
        raise in_runtime(Refusal("", f"could not decode OCI spec: {error.text}", f"config.json: {error.hint}")) from None
    except Refusal as refusal:
        raise in_runtime(refusal) from None


def in_runtime(refusal: Refusal) -> Refusal:
    """Return a refusal of config.json with the phrases of the reference's runtime instead of its hook's."""
    phrase, words = next(pair for pair in _HOOK_PHRASES if refusal.text.startswith(pair[0]))
    return Refusal("", words + refusal.text[len(phrase) :], refusal.hint)


def _decide(
    container: "ContainerConfig", annotated: list[str], config: "Config", configured: str
) -> tuple[bool, bool, tuple[tuple[str, str], ...]]:
    """Return whether the hook is inserted, whether gated components are asked for, and what there is to say (reference behaviour 9.3)."""
    if configured not in names.MODES:
        fix = f"nvidia-container-runtime.mode in config.toml is one of {', '.join(names.MODES)}"
        raise Refusal("", f'invalid mode "{configured}"', fix)
    asked = requested_devices(container, config)
    devices, source = ([], asked.reason) if isinstance(asked, Skip) else asked
    mode, line = resolve_mode(configured, annotated or devices)
    log = [("info", line)]
    if isinstance(asked, Skip) and asked.warning:
        log.append(("warning", asked.warning))
    if mode == "cdi" and annotated:
        devices, source = annotated, "CDI annotations"
    if mode != LEGACY and devices:
        raise Refusal(
            "",
            f"mode {mode} is not served by nvgraft-runtime",
            f"this container asks for {', '.join(name or names.NONE for name in devices)} ({source}); set nvidia-container-runtime.mode "
            "to legacy in config.toml and ask for GPUs by index or UUID, or have the engine do CDI by itself",
        )
    # Without a request the reference's default mode is one that inserts nothing; in mode legacy the hook is asked.
    inject = mode == LEGACY and (configured == LEGACY or bool(devices))
    log.append(("info", f"the prestart hook is {'inserted' if inject else 'left out'}: {source}"))
    if devices:
        log += [("warning", line) for line in _left_out(container.env, config)]
    return inject, bool(devices and _gates(container.env)), tuple(log)


def _left_out(env: dict[str, str], config: "Config") -> list[str]:
    """Return a line for everything that the reference would add for this container, and that is not added here."""
    lines = []
    if any(name in _GRAPHICS for name in (read_variable(env, names.DRIVER_CAPABILITIES) or "").split(",")):
        lines.append(
            "graphics: no /dev/dri nodes and no Vulkan, EGL and X configuration files are added, the libraries are | "
            "mount those files from the host where the program needs them"
        )
    gates = _gates(env)
    if gates:
        lines.append(
            f"{', '.join(gates)}: no devices of these components are added, and as with the original the hook adds no GPU then, "
            f"because {names.VISIBLE_DEVICES}={names.VOID} is appended to the environment | unset them and pass the nodes with --device"
        )
    if config.runtime_cuda_compat_mode == "hook" and not config.features_disable_cuda_compat_lib_hook:
        lines.append("cuda-compat-mode hook: the image's CUDA compatibility libraries are not used | set it to ldconfig in config.toml")
    return lines


def _gates(env: dict[str, str]) -> list[str]:
    return [f"{name}={names.GATE_OPEN}" for name in names.GATED_DEVICES if env.get(name) == names.GATE_OPEN]


def _annotations(document: Document, root: Place, config: "Config") -> list[str]:
    """Return the devices that annotations request where CDI names decide about the mode (reference behaviour 1.2, 9.3)."""
    place = document.member(root, "annotations")
    if place is None:
        return []
    target = "struct field Spec.annotations of type "
    pairs = sorted(as_object(place.value, target + "map[string]string").items())
    values = [as_string(value, target + "string") for key, value in pairs if key.startswith(config.runtime_cdi_annotation_prefixes)]
    return [name for value in values for name in value.split(",")]


def _complete_user(document: Document, process: Place) -> None:
    """Write the ids that a process runs with by default, as the reference does."""
    user = document.member(process, "user")
    if user is None:
        document.append(process, dumps({"user": dict.fromkeys(_IDS, 0)})[1:-1])
        return
    as_object(user.value, "struct field Process.process.user of type specs.User")
    missing = {name: 0 for name in _IDS if document.member(user, name) is None}
    if user.value is None:
        document.replace(user, dumps(missing))
    elif missing:
        document.append(user, dumps(missing)[1:-1])


def _edit_hooks(document: Document, root: Place, hook: str) -> None:
    """Append ``hook`` to the prestart hooks unless one of its names is there; without a hook remove those (reference behaviour 9.4)."""
    hooks = document.member(root, "hooks")
    prestart = None
    ours: list[Place] = []
    if hooks is not None:
        as_object(hooks.value, "struct field Spec.hooks of type specs.Hooks")
        prestart = document.member(hooks, "prestart")
    if prestart is not None:
        as_array(prestart.value, "struct field Hooks.hooks.prestart of type []specs.Hook")
        ours = [item for item in document.items(prestart) if _is_hook(document, item)]
    if hook:
        if not ours:
            _append_to(document, root, "hooks", hook, inside="prestart")
    elif ours and hooks is not None and prestart is not None:
        others = [item for item in document.items(prestart) if item not in ours]
        if others:
            document.replace(prestart, document.keep(prestart, others))
        else:
            document.replace(hooks, document.keep(hooks, [place for _, place in document.members(hooks) if place != prestart]))


def _is_hook(document: Document, item: Place) -> bool:
    as_object(item.value, "struct field Hooks.hooks.prestart of type specs.Hook")
    path = document.member(item, "path")
    text = as_string(path and path.value, "struct field Hook.hooks.prestart.path of type string")
    return posixpath.basename(text) in names.HOOK_NAMES


def _append_to(document: Document, parent: Place, name: str, item: str, inside: str = "") -> None:
    """Append an item to the array ``name`` of an object, or to the array ``inside`` of its object ``name``; make what is missing."""
    place = document.member(parent, name)
    if place is not None and place.value is not None:
        if inside:
            _append_to(document, place, inside, item)
        else:
            document.append(place, item)
        return
    made = f'{{"{inside}":[{item}]}}' if inside else f"[{item}]"
    if place is None:
        document.append(parent, f'"{name}":{made}')
    else:
        document.replace(place, made)
