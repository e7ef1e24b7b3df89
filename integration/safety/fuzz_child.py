"""The process that fuzzes one target: ``python -m safety.fuzz_child TARGET SLOWEST [LIBFUZZER-ARGUMENT...]``.

It is a program of its own, because what is to be watched has to be instrumented while it is imported. Started by
:mod:`safety.fuzz`; libFuzzer ends it.
"""

import os
import resource
import sys
import time
from pathlib import Path

#: Seconds of processor time that an input may take.
SECONDS_LIMIT = 0.1
#: Bytes that this process may have more than it starts with: for an input that takes too much, and libFuzzer's own corpus.
_MEMORY = 1 << 30


#: Our own packages, and what parses for them and is written in Python.
_WATCHED = ["nvgraft", "nvgraft_cli", "nvgraft_specs", "tomllib", "tarfile"]


class TooSlow(Exception):
    """An input takes more processor time than any may."""


def main(target: str, slowest_file: str, arguments: list[str]) -> None:
    """Fuzz ``target``, and keep the time of the slowest input, in seconds, in a file."""
    import atheris

    with atheris.instrument_imports(include=_WATCHED):
        import fuzzing

        run = fuzzing.TARGETS[target].run
        for seed in fuzzing.TARGETS[target].seeds(target):
            run(
                seed
            )  # what is only loaded or computed once is watched as well, and its time and memory are not counted

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
