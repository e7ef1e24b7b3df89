"""Follow a loader that gets the program as its argument."""

import re

from nvgraft_cli.prove.start.program_start import ProgramStart

#: Names of loaders.
LOADER = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d+|ld-musl-\w+\.so\.1")
#: Options of a loader that take a value.
_LOADER_VALUES = {
    *("--library-path", "--preload", "--audit", "--argv0", "--inhibit-rpath"),
    *("--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"),
}


def started_by_loader(words: list[str], start: ProgramStart, path: str) -> ProgramStart | None:
    """Return the program that a loader gets as its argument."""
    environment = dict(start.environment)
    words = list(words)
    while words and words[0].startswith("--"):
        option, equals, value = words.pop(0).partition("=")
        if option in _LOADER_VALUES and not equals and words:
            value = words.pop(0)
        if option == "--library-path":
            environment["LD_LIBRARY_PATH"] = value
        elif option == "--glibc-hwcaps-prepend":
            start.note_unknown(f"which libraries the directories {value} of glibc-hwcaps have")
        elif option == "--preload":
            environment["LD_PRELOAD"] = f"{environment.get('LD_PRELOAD', '')} {value}".strip()
    if not words:
        return None
    following = ProgramStart(words, environment, start)
    following.loader = path
    return following
