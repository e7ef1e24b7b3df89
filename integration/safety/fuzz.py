"""Fuzzing: atheris mutates the parsers' inputs towards new code (SECURITY R9, R16, T65).

``./dev fuzz [TARGET...] [--seconds N | --inputs N]`` runs it by hand. ``tests/fuzzing.py`` has the
targets, their seeds and the rule for findings. Every target runs in a process of its own, which
libFuzzer ends at the first finding; the input is kept, and goes to ``tests/fixtures/fuzz/TARGET``
once the parser is mended. A great number of inputs takes several processes in turn. Each begins
with the inputs by which the former ones reached something new.

Limits for every input: 100 ms of processor time (the best of three tries, because the machine may
be busy) and 64 MiB, measured by tracemalloc over the inputs that reached something new. The process
has a limit as a whole, too.
"""

import argparse
import gc
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import fuzzing
from safety.figures import Figure
from safety.fuzz_child import SECONDS_LIMIT
from safety.shapes import SHAPES

#: Bytes that an input may take.
MEMORY_LIMIT = 64 << 20
#: tracemalloc counts the memory of this whole process.
_MEASURING = threading.Lock()
#: Inputs for one process before the next one takes over, because its memory grows.
_ROUND = 250_000


class Result(NamedTuple):
    """The outcome for one target. ``finding`` is the end of its output with the input's path, or
    "".
    """

    target: str
    inputs: int
    slowest: float
    largest: int
    finding: str
    seconds: float


class Amount(NamedTuple):
    """How much to fuzz a target: a number of seconds or of inputs."""

    seconds: int = 0
    inputs: int = 0


#: Size of a report -> amount for each target (SECURITY 7: a million inputs or more).
_AMOUNTS = {"small": Amount(seconds=1), "full": Amount(inputs=1_000_000)}


def figures(size: str, seed: int) -> list[Figure]:
    """Fuzz every target, and measure how its time grows with its input."""
    amount = _AMOUNTS[size]
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The quick ones first: a full run takes hours, and shows early results early.
        results = list(
            pool.map(
                lambda target: _told(fuzz(target, amount, seed)), sorted(fuzzing.TARGETS, key=_cost)
            )
        )
    seconds = time.monotonic() - start
    fewest = min(results, key=lambda result: result.inputs)
    findings = [result for result in results if result.finding]
    slowest = max(results, key=lambda result: result.slowest)
    largest = max(results, key=lambda result: result.largest)
    rows = [
        Figure(
            "fuzz: inputs",
            f"{sum(result.inputs for result in results):,} in {len(results)} parsers, "
            f"{fewest.inputs:,} or more in each; {seconds:,.0f} s",
            f"{amount.inputs:,} for every parser" if amount.inputs else "every parser",
            fewest.inputs >= max(amount.inputs, 1),
        ),
        Figure(
            "fuzz: findings",
            ", ".join(result.target for result in findings) or "0",
            "0",
            not findings,
        ),
        Figure(
            "fuzz: slowest input",
            f"{slowest.slowest * 1e3:.1f} ms ({slowest.target})",
            "< 100 ms",
            slowest.slowest < SECONDS_LIMIT,
        ),
        Figure(
            "fuzz: most memory for an input",
            f"{largest.largest / (1 << 20):.1f} MiB ({largest.target})",
            "< 64 MiB",
            largest.largest < MEMORY_LIMIT,
        ),
    ]
    worst, shape = max(
        (growth(target, name), f"{target}: {name}")
        for target, shapes in SHAPES.items()
        for name in shapes
    )
    # Twice the input gives 2 when linear and 4 when quadratic. Values between are noise of a busy
    # machine.
    rows.append(
        Figure("fuzz: time for twice the input", f"{worst:.1f}x ({shape})", "< 3x", worst < 3)
    )
    return rows


def _cost(target: str) -> float:
    """Return the seconds of processor time that a seed of the target takes."""
    seeds = fuzzing.TARGETS[target].seeds(target, findings=False)
    times = [min(_timed(target, seed) for _ in range(3)) for seed in seeds]
    return sum(times) / len(times)


def _told(result: Result) -> Result:
    """Print the result of a target, since the next ones may take long."""
    verdict = f"FINDING\n{result.finding}" if result.finding else "ok"
    print(
        f"{result.target:14} {result.inputs:>10,} inputs  {result.slowest * 1e3:6.1f} ms  "
        f"{result.largest >> 10:>6} KiB  "
        f"{result.seconds:>6,.0f} s  {verdict}",
        file=sys.stderr,
        flush=True,
    )
    return result


def growth(target: str, shape: str, length: int = 1 << 15) -> float:
    """Return the factor by which the target's time grows when input of this shape doubles (mean of
    two).

    The garbage collector is off, because its share depends on all other objects.
    """
    make = SHAPES[target][shape]
    gc.disable()
    try:
        times = [
            min(_timed(target, data) for _ in range(5)) for data in (make(length), make(length * 4))
        ]
    finally:
        gc.enable()
    return float((times[1] / max(times[0], 1e-4)) ** 0.5)


def _timed(target: str, data: bytes) -> float:
    start = time.process_time()
    fuzzing.TARGETS[target].run(data)
    return time.process_time() - start


def fuzz(target: str, amount: Amount, seed: int, keep: str | None = None) -> Result:
    """Fuzz one target in processes of its own.

    :param keep: directory for the inputs that are findings; without one they are deleted.
    """
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit(
            "atheris is not installed: pip has it for x86-64 and the Pythons up to 3.14"
        )
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nvgraft-fuzz.") as place:
        work = Path(place)
        for name in ("corpus", "findings"):
            (work / name).mkdir()
        for number, data in enumerate(fuzzing.TARGETS[target].seeds(target, findings=False)):
            (work / "corpus" / str(number)).write_bytes(data)
        (work / "words").write_text(
            "".join(
                f'"{_escaped(word)}"\n' for word in fuzzing.TARGETS[target].words if len(word) <= 64
            )
        )
        inputs, slowest, finding = 0, 0.0, ""
        while not finding and (inputs < amount.inputs if amount.inputs else not inputs):
            command = [
                sys.executable,
                "-m",
                "safety.fuzz_child",
                target,
                str(work / "slowest"),
                str(work / "corpus"),
            ]
            if amount.inputs:
                command.append(f"-runs={min(_ROUND, amount.inputs - inputs)}")
            else:
                command.append(f"-max_total_time={amount.seconds}")
            # Each process has another seed: with the same one it would try the same inputs.
            command += [
                f"-seed={(seed or 1) + inputs}",
                f"-max_len={fuzzing.LENGTH}",
                f"-dict={work / 'words'}",
                "-timeout=20",
            ]
            command += [
                f"-artifact_prefix={keep or place + '/findings'}/{target}-",
                "-print_final_stats=1",
                "-verbosity=1",
                "-close_fd_mask=0",
            ]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                env=_environment(),
                cwd=place,
            )
            ran = re.search(r"number_of_executed_units: (\d+)", done.stderr)
            if done.returncode != 0 or ran is None or not int(ran[1]):
                finding = _ending(done.stdout + done.stderr) or f"exit code {done.returncode}"
            inputs += int(ran[1]) if ran else 0
            slowest = max(slowest, float((work / "slowest").read_text() or 0))
        with _MEASURING:
            largest = max(
                _memory(target, path.read_bytes()) for path in (work / "corpus").iterdir()
            )
    return Result(target, inputs, slowest, largest, finding, time.monotonic() - start)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _escaped(word: bytes) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word
    )


def _ending(output: str) -> str:
    """Return the exception and the input's path from the output of a process that ended with a
    finding.
    """
    start = output.find("Uncaught Python exception")
    return "\n".join(
        line
        for line in output[max(start, 0) :].splitlines()
        if not line.startswith(("#", "INFO", "stat::"))
    )[-4000:]


def _memory(target: str, data: bytes) -> int:
    """Return how many additional bytes a target holds at the peak for an input."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fuzzing.TARGETS[target].run(data)
        return tracemalloc.get_traced_memory()[1] - before
    except Exception:  # noqa: BLE001 - the fuzzing process reports the finding
        return 0
    finally:
        tracemalloc.stop()


def main() -> int:
    """Fuzz what the command line names; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(
        prog="./dev fuzz",
        description="Fuzz the parsers; findings are kept in .cache/fuzz.",
        epilog="example: ./dev fuzz toml image --seconds 10",
    )
    parser.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        default=[],
        help=f"{', '.join(fuzzing.TARGETS)} (default: all)",
    )
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--seconds", type=int, default=60, metavar="N", help="for each target (default: 60)"
    )
    many.add_argument(
        "--inputs",
        type=int,
        default=0,
        metavar="N",
        help="for each target, however long that takes",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args()
    unknown = [name for name in args.targets if name not in fuzzing.TARGETS]
    if unknown:
        parser.error(f"no target is called {unknown[0]!r}: there are {', '.join(fuzzing.TARGETS)}")
    keep = Path(".cache/fuzz").resolve()
    keep.mkdir(parents=True, exist_ok=True)
    amount = Amount(inputs=args.inputs) if args.inputs else Amount(seconds=args.seconds)
    results = [
        _told(fuzz(target, amount, args.seed, str(keep)))
        for target in args.targets or fuzzing.TARGETS
    ]
    return 1 if any(result.finding for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
