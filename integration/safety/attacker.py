"""Run the attacker of attacker.c in a context. The caller decides what it attacks."""

import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Move(NamedTuple):
    """One change that is made and taken back repeatedly. attacker.c lists the kinds."""

    kind: str
    first: str
    second: str = "-"


@cache
def program() -> int:
    """Compile the attacker into a memory file, so that it needs no place in a file system."""
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / "attacker"
        source = Path(__file__).with_name("attacker.c")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", built, source], check=True)
        image = os.memfd_create("attacker")
        os.write(image, built.read_bytes())
        return image


class Attack:
    """A running attack."""

    def __init__(
        self, counters: list[mmap.mmap], processes: "list[subprocess.Popen[bytes]]"
    ) -> None:
        self._counters = counters
        self._processes = processes

    @property
    def changes(self) -> int:
        """How many changes of the tree have succeeded until now."""
        return sum(int.from_bytes(counter[:8], "little") for counter in self._counters)

    def check(self) -> None:
        """Check that every attacker is still at work: without an attacker, a victim proves
        nothing.
        """
        for process in self._processes:
            assert process.poll() is None, f"an attacker ended with status {process.returncode}"


@contextmanager
def attack(moves: Iterable[Move], seed: int, attackers: int = 1) -> Iterator[Attack]:
    """Attack with ``moves`` from ``attackers`` processes in this mount namespace while the context
    lasts.
    """
    arguments = [text for move in moves for text in move]
    counters: list[mmap.mmap] = []
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(attackers):
            shared = os.memfd_create("counter")
            os.truncate(shared, mmap.PAGESIZE)
            counters.append(mmap.mmap(shared, mmap.PAGESIZE))
            command = ["attacker", f"/proc/self/fd/{shared}", str(seed + number), *arguments]
            processes.append(
                subprocess.Popen(
                    command, executable=f"/proc/self/fd/{program()}", pass_fds=(shared, program())
                )
            )
            os.close(shared)
        yield Attack(counters, processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        for counter in counters:
            counter.close()
