"""The command line of nvgraft-cdi-hook: which steps it asks for, with their options.

Options are read as the reference's parser reads them: ``--name value`` or ``--name=value``, with
one or two dashes; a list may be repeated, or its items separated by commas; further words are
ignored. ``nvgraft_specs.cdi_hooks`` has the names.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.request.oci import path_problem
from nvgraft_specs import cdi_hooks as names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_LDCONFIG = "/sbin/ldconfig"
DEFAULT_COMPAT = "/usr/local/cuda/compat"

#: The reference's option for tests, which names another file than standard input.
_STATE = "container-spec"

#: The bits of a mode that the reference sets: Go's chmod ignores set-user-ID and sticky here.
_PERMISSIONS = 0o777
#: The largest mode that its parser accepts.
_MODE_LIMIT = 1 << 32


class HookStep(Value):
    """One step; ``name`` is its sub-command."""

    name = ""


class CreateSymlinks(HookStep):
    """Make ``links``, each (target, path)."""

    name = names.CREATE_SYMLINKS

    def __init__(self, links: tuple[tuple[str, str], ...]) -> None:
        self.links = links


class EnableCudaCompat(HookStep):
    """Have the loader search ``directory`` first, if its libcuda is newer than the driver."""

    name = names.ENABLE_CUDA_COMPAT

    def __init__(self, driver_version: str, cuda_version: str, directory: str) -> None:
        self.driver_version = driver_version
        self.cuda_version = cuda_version
        self.directory = directory


class UpdateLdcache(HookStep):
    """Have the loader search ``folders``, and write its cache. ``ldconfig`` is the host's."""

    name = names.UPDATE_LDCACHE

    def __init__(self, folders: tuple[str, ...], ldconfig: str) -> None:
        self.folders = folders
        self.ldconfig = ldconfig


class DisableDeviceNodeModification(HookStep):
    """Keep the driver's programs in the container from making device nodes."""

    name = names.DISABLE_DEVICE_NODE_MODIFICATION


class UpdateApplicationProfile(HookStep):
    """Write the application profile that shows EGL the container's GPUs alone."""

    name = names.UPDATE_APPLICATION_PROFILE


class Chmod(HookStep):
    """Set the permissions ``mode`` of ``paths``."""

    name = names.CHMOD

    def __init__(self, mode: int, paths: tuple[str, ...]) -> None:
        self.mode = mode
        self.paths = paths


class UnknownStep(HookStep):
    """A sub-command of a newer or older version: a warning, as in the reference."""

    def __init__(self, name: str) -> None:
        self.name = name


class StepOptions:
    """The options of one step."""

    def __init__(self, name: str, words: Sequence[str], known: Sequence[str]) -> None:
        self._values: dict[str, list[str]] = {}
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                continue
            option, equals, value = word.lstrip("-").partition("=")
            if option not in known and option != _STATE:
                raise Refusal(
                    "",
                    f"flag provided but not defined: -{option}",
                    f"{name} takes {', '.join(f'--{name}' for name in known) or 'no options'}",
                )
            if not equals and not rest:
                raise Refusal("", f"flag needs an argument: --{option}", f"give {name} its value")
            self._values.setdefault(option, []).append(value if equals else rest.pop(0))

    def text(self, option: str, default: str = "") -> str:
        """Return the last value of ``option``."""
        return self._values.get(option, [default])[-1]

    def items(self, option: str) -> list[str]:
        """Return the items of a list, each once."""
        values = self._values.get(option, [])
        return list(dict.fromkeys(item for value in values for item in value.split(",")))


def _create_symlinks(options: StepOptions) -> HookStep:
    links = []
    for item in options.items("link"):
        parts = item.split("::")
        if len(parts) != 2:
            raise Refusal(
                "", f"invalid symlink specification {item}", "write a link as TARGET::LINK"
            )
        for part in parts:
            if problem := path_problem(part) or ("" if part else "it is empty"):
                raise Refusal("", f"invalid symlink specification {item}", problem)
        links.append((parts[0], parts[1]))
    return CreateSymlinks(tuple(links))


def _enable_cuda_compat(options: StepOptions) -> HookStep:
    directory = options.text("cuda-compat-container-root", DEFAULT_COMPAT)
    _check_path(directory)
    return EnableCudaCompat(
        options.text("host-driver-version"), options.text("host-cuda-version"), directory
    )


def _update_ldcache(options: StepOptions) -> HookStep:
    ldconfig = options.text("ldconfig-path", DEFAULT_LDCONFIG)
    if not ldconfig:
        raise Refusal("", "ldconfig-path must be specified", "name the host's ldconfig")
    folders = [folder for folder in options.items("folder") if folder]
    for folder in folders:
        _check_path(folder)
    return UpdateLdcache(tuple(folders), ldconfig)


def _chmod(options: StepOptions) -> HookStep:
    text = options.text("mode")
    if not text.strip():
        raise Refusal("", "a non-empty mode must be specified", "write it in octal, as in 755")
    if text.strip("01234567") or int(text, 8) >= _MODE_LIMIT:
        raise Refusal("", f'failed to parse mode as octal: "{text}"', "write it as in 755")
    found = options.items("path")
    for path in found:
        if not path.strip():
            raise Refusal("", "paths must not be empty", "name a path of the container")
        _check_path(path)
    return Chmod(int(text, 8) & _PERMISSIONS, tuple(found))


def _check_path(path: str) -> None:
    if problem := path_problem(path):
        raise Refusal("", f"invalid path {path}", problem)


#: Sub-command -> its options, and what makes a step of their values. ``noop`` is the reference's.
_STEPS: dict[str, tuple[tuple[str, ...], Callable[[StepOptions], HookStep | None]]] = {
    names.CREATE_SYMLINKS: (("link",), _create_symlinks),
    names.ENABLE_CUDA_COMPAT: (
        ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
        _enable_cuda_compat,
    ),
    names.UPDATE_LDCACHE: (("folder", "ldconfig-path"), _update_ldcache),
    names.DISABLE_DEVICE_NODE_MODIFICATION: ((), lambda _options: DisableDeviceNodeModification()),
    names.UPDATE_APPLICATION_PROFILE: ((), lambda _options: UpdateApplicationProfile()),
    names.CHMOD: (("mode", "path"), _chmod),
    "noop": ((), lambda _options: None),
}


def parse_steps(words: Sequence[str]) -> list[HookStep]:
    """Return the steps of a command line, without the program's own options.

    :raises Refusal: an unknown option of a known sub-command, or a value that it does not take.
    """
    if words[0] != names.STEPS:
        return _parse_step(words)
    steps = []
    rest = list(words[1:])
    while rest:
        end = rest.index(names.NEXT) if names.NEXT in rest else len(rest)
        if not end:
            raise Refusal("", "a step without a name", f"write one before each {names.NEXT}")
        steps += _parse_step(rest[:end])
        rest = rest[end + 1 :]
    return steps


def _parse_step(words: Sequence[str]) -> list[HookStep]:
    if words[0] not in _STEPS:
        return [UnknownStep(words[0])]
    known, make = _STEPS[words[0]]
    options = StepOptions(words[0], words[1:], known)
    if options.text(_STATE) not in {"", "-"}:
        raise Refusal("", f"--{_STATE} {options.text(_STATE)}", "give the state on standard input")
    step = make(options)
    return [] if step is None else [step]
