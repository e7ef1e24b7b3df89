"""Run a command line of nvidia-container-cli; an error is one line.

Exit code 1 for every failure, bad usage included (reference behaviour 4.2); 3 only when an undo
failed.
"""

import os
import sys
from collections.abc import Callable

from nvgraft.base.errors import Refusal, printable, printable_lines
from nvgraft.base.files import reason
from nvgraft.report.debug_log import DebugLog
from nvgraft.system import launch
from nvgraft.system.syscalls import SyscallError
from nvgraft_cli.container_cli import configure, options
from nvgraft_cli.container_cli.arguments import UsageFault
from nvgraft_cli.container_cli.detection import detect, engine_config
from nvgraft_cli.container_cli.listing import info_text, list_paths


def main(program: str, words: list[str]) -> int:
    """Run the command line ``words`` of ``program`` and return the exit code."""
    log = DebugLog()
    try:
        return _run(program, words, log)
    except options.Answered as answer:
        print(answer, end="")
        return 0
    except UsageFault as fault:
        print(printable_lines(str(fault)), file=sys.stderr)
        return 1
    except Refusal as refusal:
        log.give_up(refusal.text)
        print(refusal.line(program), file=sys.stderr)
        return refusal.exit_code
    except SyscallError as error:
        log.give_up(str(error))
        print(
            printable(
                f"{program}: initialization error: {error} | {error.fix}; list and info"
                " work without"
            ),
            file=sys.stderr,
        )
        return 1
    except launch.Interrupted as interrupted:
        print(interrupted.line(program), file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        log.give_up(str(error))
        print(
            printable(
                f"{program}: {type(error).__name__}: {error} | run with --debug=/dev/stderr"
                " and report this"
            ),
            file=sys.stderr,
        )
        return 1
    finally:
        log.close()


def _run(program: str, words: list[str], log: DebugLog) -> int:
    settings, command, rest = options.parse_global(words, program)

    def say(text: str) -> None:
        print(printable(f"{program}: warning: {text}"), file=sys.stderr, flush=True)

    if command == "info":
        csv = options.parse_info(rest, program)
        _open_log(settings, log, say)
        config = engine_config(settings)
        print(info_text(detect(config, (), log), csv=csv), end="")
    elif command == "list":
        wanted = options.parse_list(rest, program)
        _open_log(settings, log, say)
        config = engine_config(settings)
        for path in list_paths(detect(config, wanted.omit, log), wanted):
            print(path)
    else:
        asked = options.parse_configure(rest, program)
        configure.prepare_process(asked)
        _open_log(settings, log, say)
        configure.configure(engine_config(settings, asked.ldconfig), asked, log, say)
    return 0


def _open_log(settings: options.GlobalOptions, log: DebugLog, say: Callable[[str], None]) -> None:
    path = settings.debug or os.environ.get("NVC_DEBUG_FILE", "")
    try:
        log.open(path)
    except OSError as error:
        say(f"no debug log: open {path}: {reason(error)} | point --debug at a writable file")
