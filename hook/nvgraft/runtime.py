"""The OCI runtime wrapper: a drop-in for nvidia-container-runtime, which engines start in place of
runc.

On ``create`` it rewrites the bundle's config.json. Then, as for all other commands, it becomes the
low-level runtime, with unchanged arguments, environment, descriptors and working directory, because
engines pass consoles and sockets in them. ``nvgraft.wrapper.rewrite`` decides what is rewritten.

Source: reference behaviour 9.1 and 9.2.
"""

from __future__ import annotations

import os
import posixpath

from nvgraft import __version__, startup
from nvgraft.base import files
from nvgraft.base._os import signal, stat
from nvgraft.base.errors import NO_OUTPUT, Refusal, printable
from nvgraft.request.config import (
    Config,
    config_from_settings,
    config_path,
    known_settings,
    read_config_file,
)
from nvgraft.request.config_keys import ERROR, OPEN_ERROR
from nvgraft.request.oci import read_config
from nvgraft.system.trusted import open_trusted
from nvgraft.wrapper.log import Log, LogOptions
from nvgraft.wrapper.rewrite import WRITE, RefusedRewrite, in_runtime, rewrite
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvgraft.cdi.edits import CdiHook
    from nvgraft.cdi.specification import HookProgram
    from nvgraft.wrapper.host_look import HostLook

#: The version of the OCI runtime specification that the reference names.
_SPEC_VERSION = "1.3.0"

_HOOK = "nvgraft-hook"
#: Set to "each": one hook for each step of CDI edits, whatever config.toml says.
_HOOKS_VARIABLE = "NVGRAFT_CDI_HOOKS"
#: The variables that the hook reads. The reference's hook inherits the runtime's whole environment.
_HOOK_VARIABLES = (names.CONFIG_VARIABLE, names.CONFIG_HOME_VARIABLE, names.MPS_DIRECTORY)

_CREATE = "failed to create NVIDIA Container Runtime: "

#: The names under which the reference installs its runtime with a fixed mode:
#: nvidia-container-runtime.legacy.
_FIXED_MODES = ("legacy", "cdi")

#: Options of low-level runtimes before the command whose value is the next word.
_GLOBAL_VALUES = ("cgroup-manager", "criu", "log", "log-format", "log-level", "root", "rootless")

_RUN = (
    "run: config.json is not changed, as by the original, so the container gets no driver from here"
    " | use create and start, as engines do, or add the hook: nvgraft register runc --bundle DIR"
)

#: The values that Python itself gives LC_CTYPE in a C locale. The low-level runtime must not
#: inherit them.
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")


def main(argv: Sequence[str]) -> int:
    """Rewrite config.json if this is a ``create``, and become the low-level runtime. Return only
    after a failure.
    """
    log = Log()
    code = 1
    try:
        _run(argv, log)
    except Refusal as refusal:
        log.write("error", refusal.line())
        code = refusal.exit_code
    except Exception as error:  # noqa: BLE001 - a traceback helps neither an engine nor a user
        log.write(
            "error", printable(f"nvgraft-runtime: {type(error).__name__}: {error} | report this")
        )
    return code


def _run(argv: Sequence[str], log: Log) -> None:
    arguments = argv[1:]
    options = LogOptions(arguments)
    if options.version:
        _print(f"NVIDIA Container Runtime version {__version__} (nvgraft)\nspec: {_SPEC_VERSION}\n")
    creates = is_create(arguments)
    config = _load_config(os.environ, whole=creates)
    log.open(config.runtime_debug, config.runtime_log_level, options)
    own = posixpath.realpath(argv[0])
    runtime = find_runtime(config.runtime_runtimes, os.environ.get("PATH"), own)
    log.write("info", f"Using low-level runtime {runtime}")
    if creates:
        fixed = posixpath.basename(argv[0]).rpartition(".")[2]
        mode = fixed if fixed in _FIXED_MODES else config.runtime_mode
        _rewrite_bundle(bundle_directory(arguments), config, mode, own, log)
    elif subcommand(arguments) == "run":
        log.write("warning", _RUN)
    if options.version:
        _print("\n")
    _become(runtime, arguments)


def _print(text: str) -> None:
    try:
        files.print_answer(text)
    except OSError as error:
        text = f"nvgraft-runtime: {NO_OUTPUT.format(files.reason(error))}"
        raise Refusal("", text, exit_code=2) from None


def is_create(arguments: Sequence[str]) -> bool:
    """Tell whether the command line creates a container: it has the word "create" other than as the
    bundle's name.
    """
    after_flag = False
    for argument in arguments:
        if after_flag:
            after_flag = False
        elif _is_bundle_flag(argument):
            after_flag = True
        elif argument == "create":
            return True
    return False


def subcommand(arguments: Sequence[str]) -> str:
    """Return the low-level runtime's command of a command line, or "" if it has none."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            return word
        if word.lstrip("-") in _GLOBAL_VALUES and rest:
            rest.pop(0)
    return ""


def bundle_directory(arguments: Sequence[str]) -> str:
    """Return the bundle of a command line. The last one wins; without one it is "", the working
    directory.

    :raises Refusal: the last option has no value.
    """
    bundle = ""
    rest = list(arguments)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if not _is_bundle_flag(word):
            continue
        if not equals and not rest:
            fix = "put the directory with config.json behind --bundle"
            raise Refusal(
                "",
                f"{_CREATE}error constructing OCI specification: error getting bundle dir"
                " from args: bundle option requires an argument",
                fix,
            )
        bundle = value if equals else rest.pop(0)
    return bundle


def _is_bundle_flag(word: str) -> bool:
    return word[:1] == "-" and word.lstrip("-") in ("b", "bundle")


def find_runtime(candidates: Sequence[str], path: str | None, own: str) -> str:
    """Return the first candidate that is an executable file: an absolute path, or a name that is
    searched in PATH.

    :param own: the path of this program, which is skipped: it would start itself forever.
    :raises Refusal: there is none.
    """
    for candidate in candidates:
        for program in _look_up(candidate, path):
            if posixpath.realpath(program) != own:
                return program
    listed = " ".join(candidates)
    fix = (
        "install runc or crun, or name the runtime in nvidia-container-runtime.runtimes of"
        " config.toml"
    )
    raise Refusal(
        "",
        f"{_CREATE}error constructing low-level runtime: error locating runtime: no runtime"
        f" binary found from candidate list: [{listed}]",
        fix,
    )


def _look_up(name: str, path: str | None) -> list[str]:
    """Return the executable files of a name, those in PATH before those in the default
    directories.
    """
    directories = [""] if "/" in name else search_path(path)
    programs = [posixpath.join(directory, name) for directory in directories]
    return [program for program in programs if _is_executable(program)]


def search_path(path: str | None) -> list[str]:
    """Return the directories of PATH, and the default ones after them."""
    entries = [entry for entry in (path or "").split(":") if entry]
    return entries + [entry for entry in names.DEFAULT_PATH if entry not in entries]


def _is_executable(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and os.access(path, os.X_OK)


def _load_config(environ: Mapping[str, str], *, whole: bool) -> Config:
    """Return the configuration. A missing file counts as empty, even if a variable names it
    (reference behaviour 2.1).

    :param whole: also make the checks against this host. Without them a container can be stopped
        and deleted while config.toml is invalid.
    """
    path, _ = config_path(None, environ)
    try:
        # Unlike the hook, this program is started by the engine itself, in the engine's
        # environment: root has put a file of root's below /tmp there itself.
        data = read_config_file(
            posixpath.abspath(path), False, lambda path: open_trusted(path, sticky=True)
        )
        settings = known_settings(data, path) if data else {}
        return config_from_settings(settings) if whole else Config(**settings)
    except Refusal as refusal:
        text = "\n".join(part for part in (refusal.first_line, refusal.text) if part)
        text = text.removeprefix(ERROR).removeprefix(OPEN_ERROR)
        raise Refusal("", f"error loading config: {text}", refusal.hint) from None


def _rewrite_bundle(bundle: str, config: Config, mode: str, own: str, log: Log) -> None:
    """Rewrite the bundle's config.json.

    :raises Refusal: config.json is unchanged.
    """
    try:
        data = read_config(bundle)
    except Refusal as refusal:
        raise in_runtime(refusal) from None

    directories = search_path(os.environ.get("PATH"))
    try:
        done = rewrite(
            data,
            config,
            mode,
            hook_entry(config, os.environ, own),
            lambda: _look(config, own, directories),
            lambda links: link_hooks(config, os.environ, own, links),
        )
    except RefusedRewrite as refused:
        _tell(log, refused.log.lines)
        raise
    _tell(log, done.log.lines)
    if done.data != data:
        path = posixpath.realpath(posixpath.join(bundle, "config.json"))
        try:
            _replace_file(path, done.data)
        except OSError as error:
            hint = (
                "the file was not changed: make the bundle a directory that this program may"
                " write to"
            )
            raise Refusal(
                "",
                f"{WRITE}error opening OCI specification file: open {path}: {files.reason(error)}",
                hint,
            ) from None


def _tell(log: Log, lines: Sequence[tuple[str, str]]) -> None:
    for level, line in lines:
        log.write(level, printable(line))


def _look(config: Config, own: str, directories: Sequence[str]) -> HostLook:
    from nvgraft.wrapper.host_look import LiveLook

    return LiveLook(
        config,
        lambda: hook_program(config, os.environ, own),
        directories,
        startup.load,
    )


def hook_entry(config: Config, environ: Mapping[str, str], own: str) -> dict[str, object]:
    """Return the prestart hook for config.json. It has an environment of its own: otherwise it
    would get the runtime's.

    :param own: the path of this program. The hook is in the same directory, unless config.toml
        names one.
    """
    path = config.hook_path
    if path in ("", Config().hook_path):
        path = _sibling(own, _HOOK)
    elif "/" not in path:
        path = next(iter(_look_up(path, environ.get("PATH"))), f"/usr/bin/{path}")
    return _entry(path, ["prestart"], environ)


def link_hooks(
    config: Config, environ: Mapping[str, str], own: str, links: Sequence[str]
) -> list[CdiHook]:
    """Return the hooks that make the links of mode legacy, each ``TARGET::LINK``: one of our own at
    the stage createRuntime, or the reference's list.
    """
    from nvgraft.cdi.edits import CdiHook, links_step

    steps = links_step(links)
    program = hook_program(config, environ, own)
    if not program.together:
        return program.hooks(steps)
    arguments = (_HOOK, *(word for step in steps for word in step))
    variables = _hook_environment(environ)
    return [
        CdiHook("createRuntime", _sibling(own, _HOOK), arguments, variables, names.HOOK_TIMEOUT)
    ]


def hook_program(config: Config, environ: Mapping[str, str], own: str) -> HookProgram:
    """Return the program of the hooks of CDI edits: our own, unless config.toml names another that
    is there.

    Another program takes one step for each hook: only ours knows the form for all of them.
    """
    from nvgraft.cdi.specification import HookProgram
    from nvgraft_specs import cdi_hooks

    path = config.ctk_path
    if "/" not in path and path not in ("", Config().ctk_path):
        path = next(iter(_look_up(path, environ.get("PATH"))), "")
    if "/" in path:
        return HookProgram(path)
    read, _ = config_path(None, environ)
    return HookProgram(
        _sibling(own, cdi_hooks.PROGRAM),
        together="each" not in (config.cdi_hooks, environ.get(_HOOKS_VARIABLE)),
        config="" if read == config_path(None, {})[0] else posixpath.abspath(read),
        timeout=names.HOOK_TIMEOUT,
    )


def _sibling(own: str, program: str) -> str:
    """Return the path of a program that is installed beside this one."""
    return posixpath.join(posixpath.dirname(own), program)


def _entry(path: str, arguments: list[str], environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "path": path,
        "args": [posixpath.basename(path), *arguments],
        "env": list(_hook_environment(environ)),
        "timeout": names.HOOK_TIMEOUT,
    }


def _hook_environment(environ: Mapping[str, str]) -> tuple[str, ...]:
    variables = {"PATH": ":".join(search_path(environ.get("PATH")))}
    variables.update({name: environ[name] for name in _HOOK_VARIABLES if environ.get(name)})
    if names.CONFIG_VARIABLE in variables:
        # A hook has another working directory.
        variables[names.CONFIG_VARIABLE] = posixpath.abspath(variables[names.CONFIG_VARIABLE])
    return tuple([f"{name}={value}" for name, value in variables.items()])


def _replace_file(path: str, data: bytes) -> None:
    """Replace a file by ``data``, with the same mode and owner, in one step: it is never half
    written.

    :raises OSError: the file is unchanged.
    """
    old = os.stat(path)
    draft = f"{path}.nvgraft-{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, old.st_uid, old.st_gid)
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.rename(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _become(runtime: str, arguments: Sequence[str]) -> None:
    """Become the low-level runtime.

    :raises Refusal: the kernel does not execute it.
    """
    # Undo Python's changes of this process: ignored signals, and the variable of a C locale.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _restore_locale()
    try:
        os.execv(runtime, [runtime, *arguments])  # noqa: S606 - the engine wants this program
    except OSError as error:
        raise Refusal(
            "",
            f"could not exec '{runtime}': {files.reason(error)}",
            "name a program for this machine in nvidia-container-runtime.runtimes of config.toml",
        ) from None


def _restore_locale() -> None:
    if os.environ.get("LC_CTYPE") not in _COERCED:
        return
    try:
        fd = os.open("/proc/self/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        environment = files.read_fd(fd, 8 << 20)
    finally:
        os.close(fd)
    entries = environment.split(b"\0")
    value = next((entry for entry in entries if entry.startswith(b"LC_CTYPE=")), None)
    if value is None:
        os.unsetenv("LC_CTYPE")
    else:
        os.putenv(b"LC_CTYPE", value.partition(b"=")[2])
