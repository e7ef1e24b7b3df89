"""Check an ldconfig that only config.toml or a CDI edit names, and that is not run.

The reference refuses a missing program, which is a mistake in config.toml. A program of another
name does something else than the loader cache step of nvgraft.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.errors import HOST_NOT_OPENED, Refusal
from nvgraft.base.files import open_file, reason
from nvgraft.base.finding import Finding
from nvgraft.formats.elf import read_facts

#: Programs that may be missing on the host: the default of the reference. On Ubuntu the second one
#: is the program itself.
USUAL_PROGRAMS = ("/sbin/ldconfig", "/sbin/ldconfig.real")

_HINT = 'set ldconfig under [nvidia-container-cli] in config.toml to "@/sbin/ldconfig"'


def check_static(program: str) -> None:
    """Check that an ldconfig that a CDI edit names is a program which the reference could run.

    :raises Refusal: in the reference's words: it is missing, or needs a loader of the container.
    """
    text = f"error mounting host ldconfig: error reading host ldconfig: stat {program}"
    hint = "name the host's static ldconfig with --ldconfig-path, or remove the option"
    try:
        fd = open_file(program)
        try:
            facts = read_facts(fd, sections=False)
        finally:
            os.close(fd)
    except OSError as error:
        raise Refusal("", f"{text}: {reason(error)}", hint) from error
    except ValueError as error:
        raise Refusal("", f"{text}: exec format error", f"{error}: {hint}") from error
    if facts.interp is not None or facts.needed:
        raise Refusal("", f"{text}: it is not a static program", hint)


def check_program(program: str) -> list[Finding]:
    """Check ``program``, a path of the host, and return a warning if it is not called ldconfig.

    :raises Refusal: stage "ldcache", in the reference's words: it is missing, or not a program.
    """
    if program in USUAL_PROGRAMS:
        return []
    try:
        mode = os.stat(program).st_mode
    except OSError as error:
        text = f"open failed: {program}: {reason(error)}"
        raise Refusal("ldcache", text, _HINT, kind=HOST_NOT_OPENED) from None
    if not stat.S_ISREG(mode) or not mode & 0o111:
        raise Refusal("ldcache", f"process {program} failed with error code: 1", _HINT)
    if paths.basename(program) in map(paths.basename, USUAL_PROGRAMS):
        return []
    message = f"{program} is not run: the hook writes the loader cache itself"
    hint = f'set ldcache = "ldconfig" under [nvgraft] in config.toml to run it, or {_HINT}'
    return [Finding("ldconfig-not-run", "warning", message, hint)]
