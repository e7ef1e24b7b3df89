"""``nvgraft register`` and ``nvgraft unregister``: the command lines."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from nvgraft_cli.register import bundle, change, containerd, docker, hooksd, installation
from nvgraft_cli.register.change import ConfigFile
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_format
from nvgraft_cli.shell.installed import default_prefix
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.register/1"

ENGINES = ("runc", "podman", "crio", "containerd", "docker")

#: Engine -> what makes a registration effective.
_NEXT = {
    "runc": "",
    "podman": "containers that start from now on run the hook",
    "crio": "containers that start from now on run the hook;"
    " a new hooks directory needs: systemctl restart crio",
    "containerd": "next: systemctl restart containerd;"
    " pods select it by a RuntimeClass with the handler nvgraft",
    "docker": "next: systemctl reload docker;"
    " then: docker run --runtime nvgraft -e NVIDIA_VISIBLE_DEVICES=all ...",
}

_REGISTER = """\
Register this installation with a container engine: the hook in an OCI bundle (runc) or in a hooks
directory (podman, crio), or nvgraft-runtime under the name nvgraft in the engine's configuration
(containerd, docker). The change is shown as a diff. The rest of the file stays as it is, and the
old file is kept as FILE.nvgraft-backup."""

_UNREGISTER = """\
Remove a registration that `nvgraft register` has made, for any installation. The rest of the file
stays as it is, and the backup is removed."""

_EXAMPLES = """\
examples:
  nvgraft {command} podman --dry-run
  sudo nvgraft {command} docker
  sudo nvgraft {command} containerd --file /etc/containerd/config.toml
  nvgraft {command} runc --bundle ./bundle

exit code: 0 done or nothing to do, 1 refused (nothing was changed), 2 bad usage"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``register``."""
    parser.description = _REGISTER
    _add_place(parser)
    prefix = default_prefix()
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        default=prefix,
        help=f"register the programs in DIR/bin (default: {prefix})",
    )
    parser.add_argument(
        "--set-default", action="store_true", help="docker: also make it the default runtime"
    )


def add_unregister_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``unregister``."""
    parser.description = _UNREGISTER
    _add_place(parser)
    parser.set_defaults(set_default=False)


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that ``register`` and ``unregister`` share."""
    parser.epilog = _EXAMPLES.format(command=_command(parser))
    parser.add_argument("engine", metavar="ENGINE", choices=ENGINES, help=", ".join(ENGINES))
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--bundle",
        "--container",
        metavar="DIR",
        help="runc: the OCI bundle (default: this directory)",
    )
    place.add_argument(
        "--file",
        metavar="FILE",
        help="other engines: the file to change (default: the engine's own)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show the change")
    add_format(parser)
    parser.set_defaults(run=lambda args: run(args, parser))


def _command(parser: argparse.ArgumentParser) -> str:
    return parser.prog.rpartition(" ")[2]


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command and return the exit code. The diff goes to stdout, messages go to stderr."""
    if (args.file if args.engine == "runc" else args.bundle) is not None:
        parser.error("runc takes --bundle DIR, the other engines --file FILE")
    if args.set_default and args.engine != "docker":
        parser.error("--set-default: docker only")
    file = change.read(_file(args))
    done = (_register if _command(parser) == "register" else _unregister)(file, args)
    text = "".join((f"{file.path}: {done.text}", done.before and f" (before: {done.before})"))
    then = _NEXT[args.engine] if done.state == "registered" else ""
    facts = {"engine": args.engine, "file": file.path, "state": done.state}
    if args.format == "json":
        print_document(
            {"schema": _SCHEMA, **facts, "diff": done.diff, "before": done.before, "next": then}
        )
    logs.get().info(f"{text}; {then}" if then else text, facts=facts)
    return 0


class Done(NamedTuple):
    """What was done with a file. ``before`` is the backup that was made, or ""."""

    state: str
    text: str
    diff: str = ""
    before: str = ""


def _file(args: argparse.Namespace) -> str:
    engine: str = args.engine
    if engine == "runc":
        return f"{args.bundle or '.'}/config.json"
    if args.file is not None:
        return str(args.file)
    return {"containerd": containerd.DEFAULT_FILE, "docker": docker.DEFAULT_FILE}.get(
        engine
    ) or hooksd.default_file(engine)


def _register(file: ConfigFile, args: argparse.Namespace) -> Done:
    programs = installation.programs(args.prefix)
    # nvgraft-runtime adds the hook beside it to containers.
    by_hook = args.engine in ("runc", "podman", "crio")
    installation.check(
        args.prefix, (installation.HOOK,) if by_hook else (installation.RUNTIME, installation.HOOK)
    )
    after = _added(file, programs, args)
    if after == file.text:
        return Done("unchanged", "nothing to do: it is registered")
    diff = _show(file, after, args)
    if args.dry_run:
        return Done("dry-run", "not changed: --dry-run", diff)
    # A file that has a registration already keeps its first backup, or stays without one.
    back_up = file.text is not None and _REMOVE[args.engine](file) == file.text
    change.write(file, after, back_up=back_up)
    before = f"{file.place}{change.BACKUP_SUFFIX}" if back_up else ""
    return Done("registered", "registered", diff, before)


def _show(file: ConfigFile, after: str | None, args: argparse.Namespace) -> str:
    """Return the change as a diff, and print it now: nothing is changed if that fails."""
    diff = change.diff(file, after)
    if args.format == "text":
        print(diff, end="", flush=True)
    return diff


def _added(file: ConfigFile, programs: installation.Programs, args: argparse.Namespace) -> str:
    match args.engine:
        case "runc":
            return bundle.add(file, programs)
        case "containerd":
            return containerd.add(file, programs)
        case "docker":
            return docker.add(file, programs, set_default=args.set_default)
        case engine:
            return hooksd.add(file, programs, engine)


_REMOVE: dict[str, Callable[[ConfigFile], str | None]] = {
    "runc": bundle.remove,
    "podman": hooksd.remove,
    "crio": hooksd.remove,
    "containerd": containerd.remove,
    "docker": docker.remove,
}


def _unregister(file: ConfigFile, args: argparse.Namespace) -> Done:
    after = _REMOVE[args.engine](file)
    if after == file.text:
        return Done("unchanged", "nothing to do: it is not registered")
    diff = _show(file, after, args)
    if args.dry_run:
        return Done("dry-run", "not changed: --dry-run", diff)
    change.take_back(file, after)
    return Done("removed", "removed" if after is None else "the registration is removed", diff)
