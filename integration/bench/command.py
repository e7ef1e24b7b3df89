"""The command line of ``./dev bench``, and the output of its figures."""

import argparse
import os
import random
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = CHECKOUT / ".cache" / "bench-image"


def main() -> int:
    """Measure, print, and with ``--write`` replace the page of the documentation."""
    parser = argparse.ArgumentParser(
        prog="./dev bench", description="what a start of the hook costs, as ratios; needs root"
    )
    parser.add_argument("--prefix", required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--runs", type=int, default=30, help="rounds of each case, at least 2 (default: 30)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="all tables from two rounds, to see that the bench works",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="PREFIX",
        help="also measure the hook of this installation in the same rounds; show ratios new/old",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1 << 16),
        help="for the order of programs in each round (default: different in each run)",
    )
    parser.add_argument(
        "--image",
        type=Path,
        default=IMAGE,
        help="a root file system with many libraries (default: made once, in .cache)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the figures into docs/performance.md, beside the charts",
    )
    options = parser.parse_args()
    if options.runs < 2:
        parser.error("--runs: at least 2")
    beside = str(options.beside.resolve()) if options.beside else ""
    if beside and not os.access(f"{beside}/bin/nvgraft-hook", os.X_OK):
        parser.error(
            f"--beside: {beside} has no bin/nvgraft-hook: make it with ./dev install "
            f"PREFIX={beside}"
        )
    # The installed program is measured.
    sys.path[1:1] = [f"{options.prefix}/lib/nvgraft/{part}" for part in ("hook", "cli")]
    from bench import show
    from bench.measure import Bench

    rounds = 2 if options.quick else options.runs
    bench = Bench(
        options.prefix,
        rounds,
        options.image,
        quick=options.quick,
        beside=beside,
        seed=options.seed,
    )
    figures = bench.measure()
    print(show.as_text(figures))
    if options.write:
        words = [
            "./dev bench --write",
            *(["--quick"] if options.quick else []),
            *([f"--runs {rounds}"] if rounds not in {2, 30} else []),
            *(["--beside PREFIX"] if beside else []),
        ]
        show.write_page(CHECKOUT / "docs", figures, " ".join(words))
    exceeded = [figure.name for figure in figures.plugin if figure.exceeded]
    if exceeded and not options.quick:
        print(f"bench: over the limit: {'; '.join(exceeded)}", file=sys.stderr)
        return 1
    return 0
