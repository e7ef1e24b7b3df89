"""``nvgraft inventory``: show, refresh or drop the kept inventory."""

import argparse
import time
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft.base.files import reason
from nvgraft.host import kept_inventory
from nvgraft.system import keep, kept
from nvgraft_cli.inventory.refresh import (
    NotKept,
    become_like_the_hook,
    facts,
    named_config,
    refresh,
    require_root,
)
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_config, add_node
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft.base.values import Value
    from nvgraft.host.kept_inventory import Kept

_SCHEMA = "nvgraft.inventory/1"
_REFRESH_SCHEMA, _DROP_SCHEMA = "nvgraft.refresh/1", "nvgraft.drop/1"

_EXAMPLES = """\
examples:
  sudo nvgraft inventory show                  # what is kept, and whether the next hook uses it
  sudo nvgraft inventory show --format json
  sudo nvgraft inventory refresh               # after a change that the hook cannot see
  sudo nvgraft inventory drop                  # let the next hook read the host

exit code: 0 done, or the next hook uses what is shown; 1 it does not, or the host cannot be read;
2 bad usage or no permission"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``inventory``."""
    parser.description = (
        "The hook keeps what it has found on this host (the driver's libraries, the"
        " answers of NVML) for the next container, and notices when it has changed."
    )
    parser.epilog = _EXAMPLES
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, text, function in (
        ("show", "show what is kept, and whether the next hook uses it", _show),
        ("refresh", "read this host now, and keep the result", _refresh),
        ("drop", "remove all that is kept", _drop),
    ):
        action = actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=_EXAMPLES,
        )
        if function is not _drop:
            add_config(action, "the one that the hook uses")
        add_node(action)
        add_answer(action)
        action.set_defaults(run=run, action=function)


def run(args: argparse.Namespace) -> int:
    """Run the action and return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: --config names a file that cannot be used.
    """
    require_root()
    become_like_the_hook()
    code: int = args.action(args)
    return code


def _show(args: argparse.Namespace) -> int:
    config = named_config(args.config)
    inventory, difference = kept_inventory.state(config)
    path = f"{kept.DIRECTORY}/{kept_inventory.name_of(config)}"
    if args.format == "json":
        cached = None if inventory is None else _json(inventory)
        print_document(
            {
                "schema": _SCHEMA,
                "file": path,
                "used": not difference,
                "reason": difference or None,
                "cached": cached,
            }
        )
    else:
        used = (
            "the next hook uses it"
            if not difference
            else f"the next hook reads the host anew: {difference}"
        )
        rows = [
            ("state", used),
            ("file", path),
            *(_rows(inventory, config.cli_root or "/") if inventory else ()),
        ]
        terminal.show("\n".join(f"{name:<10} {printable(value)}" for name, value in rows))
    return 1 if difference else 0


def _made(kept: "Kept") -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(kept.made))


def _json(kept: "Kept") -> dict[str, object]:
    def fields(value: "Value") -> dict[str, object]:
        # No kept inventory has profiles of MIG devices.
        return {name: held for name, held in sorted(vars(value).items()) if name != "profile"}

    return {
        "made": _made(kept),
        "driver_version": kept.report.driver_version,
        "cuda_version": kept.report.cuda_version,
        "gpus": [
            {**fields(gpu), "mig_devices": [fields(device) for device in gpu.mig_devices]}
            for gpu in kept.report.gpus
        ],
        "libraries": [component.path for component in kept.libraries.wide],
        "libraries32": [component.path for component in kept.libraries.narrow],
        "checked": kept.paths,
    }


def _rows(kept: "Kept", root: str) -> list[tuple[str, str]]:
    age = max(0, int(time.time()) - kept.made)
    ago = (
        f"{age // 86400} d"
        if age >= 86400
        else f"{age // 3600} h"
        if age >= 3600
        else f"{age // 60} min"
        if age >= 60
        else f"{age} s"
    )
    rows = [
        ("made", f"{_made(kept)}, {ago} ago"),
        ("driver", f"{kept.report.driver_version}, CUDA {kept.report.cuda_version}, in {root}"),
        (
            "libraries",
            f"{len(kept.libraries.wide)}, and {len(kept.libraries.narrow)} for 32-bit programs",
        ),
        (
            "checked",
            f"{len(kept.paths)} paths, and the driver's entries in /proc and /dev, before each use",
        ),
    ]
    for gpu in kept.report.gpus:
        rows.append(
            (
                "GPU",
                f"{gpu.uuid} at {gpu.bus_id}, {gpu.model}"
                + (f", MIG {gpu.mig}" if gpu.mig != "unsupported" else ""),
            )
        )
        rows += [
            (
                "",
                (
                    f"{device.uuid}, GPU instance {device.gpu_instance}, compute instance"
                    f" {device.compute_instance}"
                ),
            )
            for device in gpu.mig_devices
        ]
    return rows


def _refresh(args: argparse.Namespace) -> int:
    try:
        host = refresh(named_config(args.config))
    except NotKept as problem:
        text = f"this host was read, but not kept: {problem} | run nvgraft inventory show"
        raise InputError(text, exit_code=1) from problem
    if args.format == "json":
        print_document({"schema": _REFRESH_SCHEMA, **facts(host)})
    else:
        read = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts(host).items())
        terminal.show(read)
    return 0


def _drop(args: argparse.Namespace) -> int:
    try:
        count = keep.drop()
    except OSError as error:
        path = f"{kept.DIRECTORY}/{error.filename or ''}"
        text = f"{path}: {reason(error)} | remove it: no hook writes such a file"
        raise InputError(text, exit_code=1) from error
    if args.format == "json":
        print_document({"schema": _DROP_SCHEMA, "directory": kept.DIRECTORY, "dropped": count})
        return 0
    print(
        f"dropped {count} file{'' if count == 1 else 's'} of {kept.DIRECTORY}"
        if count
        else "nothing was kept"
    )
    return 0
