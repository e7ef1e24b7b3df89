"""The process that fuzzes one target: ``python -m safety.fuzz_child TARGET SLOWEST [ARGUMENT...]``.

It is a program of its own, because watched modules have to be instrumented while they are imported.
:mod:`safety.fuzz` starts it, with arguments for libFuzzer, and libFuzzer ends it.
"""

import os
import resource
import sys
import time
from pathlib import Path

#: Seconds of processor time that an input may take.
SECONDS_LIMIT = 0.1
#: Bytes that this process may take beyond its start: room for one large input and libFuzzer's
#: corpus.
_MEMORY = 1 << 30


#: Our own packages, and Python modules that parse for them.
_WATCHED = ["nvgraft", "nvgraft_cli", "nvgraft_specs", "tomllib", "tarfile"]


class TooSlow(Exception):
    """An input takes more processor time than the limit."""


def main(target: str, slowest_file: str, arguments: list[str]) -> None:
    """Fuzz ``target``, and write the time of the slowest input, in seconds, to a file."""
    import atheris

    with atheris.instrument_imports(include=_WATCHED):
        import fuzzing

        run = fuzzing.TARGETS[target].run
        for seed in fuzzing.TARGETS[target].seeds(target):
            # Load and compute everything that happens once, so that it is watched, but its time and
            # memory are not counted.
            run(seed)

    slowest = 0.0
    record = os.open(slowest_file, os.O_WRONLY | os.O_CREAT, 0o600)

    def timed(data: bytes) -> float:
        start = time.process_time()
        run(data)
        return time.process_time() - start

    def one_input(data: bytes) -> None:
        nonlocal slowest
        took = timed(data)
        if took > SECONDS_LIMIT:  # the best of three: other processes cost time as well
            took = min(took, timed(data), timed(data))
            if took > SECONDS_LIMIT:
                raise TooSlow(f"{took:.3f} s")
        if took > slowest:
            slowest = took
            os.pwrite(record, f"{took:.6f}".encode(), 0)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    atheris.Setup([sys.argv[0], *arguments], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
