"""Compare the loader cache that nvgraft writes with the one of an image's own ldconfig.

    sudo unshare -m integration/ldcache_images.py [--record DIR] ROOT...

The image's own loader is asked, too. Each ROOT is the root file system of a glibc distribution of
this machine's architecture, as debootstrap makes one. It is not changed: everything happens on an
overlay. A line is printed for each ROOT and case; the exit code is 1 when one differs. With
``--record`` the caches before, and those that ldconfig made of them, are kept as the fixtures of
tests/test_ldcache_table.py.

This runs programs of the images in a chroot(2), as root. That is not a jail: use images that you
trust.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
sys.path[:0] = [str(CHECKOUT / name) for name in ("hook", "cli", "specs", "tests", "integration")]

from ldcaches import DRIVER, LIBS, install_driver, listing, update  # noqa: E402

LOADER = "/lib64/ld-linux-x86-64.so.2"


@contextmanager
def overlay(root: Path) -> Iterator[Path]:
    """Make a writable copy of a root file system for the context."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", work], check=True)
        try:
            for name in ("upper", "work", "merged"):
                Path(work, name).mkdir()
            options = f"lowerdir={root},upperdir={work}/upper,workdir={work}/work"
            subprocess.run(
                ["mount", "-t", "overlay", "overlay", "-o", options, f"{work}/merged"], check=True
            )
            try:
                yield Path(work, "merged")
            finally:
                subprocess.run(["umount", f"{work}/merged"], check=True)
        finally:
            subprocess.run(["umount", work], check=True)


def in_root(root: Path, *command: str) -> str:
    """Run a program of the image and return its output."""
    done = subprocess.run(
        ["chroot", root, *command],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
    )
    if done.returncode:
        raise SystemExit(f"{root}: {command}: {done.stderr}")
    return done.stdout


def cache_of(root: Path) -> Path:
    return root / "etc/ld.so.cache"


def own_ldconfig(root: Path) -> None:
    in_root(root, "/sbin/ldconfig", LIBS)


def nothing(_root: Path) -> None:
    """The image as it is: its cache is newer than its directories."""


def no_cache(root: Path) -> None:
    cache_of(root).unlink()


def old_cache(root: Path) -> None:
    """A cache older than the directories, without some of their libraries."""
    subprocess.run(
        ["ldconfig", "-N", "-X", "-r", root, "-C", "/etc/none"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    conf = root / "etc/ld.so.conf.d/x86_64-linux-gnu.conf"
    text = conf.read_text()
    conf.write_text("")
    in_root(root, "/sbin/ldconfig")
    conf.write_text(text)
    os.utime(cache_of(root), (1, 1))


CASES: dict[str, Callable[[Path], None]] = {
    "fresh": nothing,
    "no cache": no_cache,
    "old cache": old_cache,
}


def compare(root: Path, case: str, record: Path | None) -> list[str]:
    """Return what differs between both ways."""
    with overlay(root) as ours, overlay(root) as theirs:
        for place in (ours, theirs):
            CASES[case](place)
        before = cache_of(ours).read_bytes() if cache_of(ours).exists() else b""
        install_driver(theirs)
        own_ldconfig(theirs)
        update(ours)
        expected, got = listing(cache_of(theirs)), listing(cache_of(ours))
        aliases = {line: line.replace("=> /usr/lib/", "=> /lib/") for line in [*expected, *got]}
        our_lines = {aliases[line] for line in got}
        problems = [f"lost: {line}" for line in expected if aliases[line] not in our_lines]
        driver = [line for line in expected if any(name in line for name in DRIVER)]
        problems += [f"differs: {line}" for line in driver if line not in got]
        their_lines = {aliases[line] for line in expected}
        more = [line for line in got if aliases[line] not in their_lines]
        # Debian's ldconfig does not search /lib64, where its loader is; others do.
        problems += [f"more: {line}" for line in more if not line.endswith(LOADER)]
        if [aliases[line] for line in got if line not in more] != [
            aliases[line] for line in expected
        ]:
            problems.append("the order differs")
        problems += loader_problems(ours)
        if record is not None and before and not problems and case == "fresh":
            (record / f"{root.name}.cache").write_bytes(before)
            (record / f"{root.name}.txt").write_text("".join(f"{line}\n" for line in expected))
        return problems


def loader_problems(root: Path) -> list[str]:
    """Check that the image's loader finds the driver's libraries, and all that its shell needs."""
    shutil.copy(root / "bin/true", root / "true")
    problems = []
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        command = [
            "chroot",
            str(root),
            "/usr/bin/env",
            "-i",
            f"LD_PRELOAD={name}",
            "LD_DEBUG=libs",
            LOADER,
            "/true",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if f"trying file={LIBS}/{name}" not in done.stderr or done.returncode:
            problems.append(f"the loader does not find {name}: {done.stderr[-300:]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="DIR")
    parser.add_argument("roots", type=Path, nargs="+", metavar="ROOT")
    options = parser.parse_args()
    bad = 0
    for root in options.roots:
        version = in_root(root, "/sbin/ldconfig", "--version").splitlines()[0]
        for case in CASES:
            problems = compare(root.resolve(), case, options.record)
            bad += bool(problems)
            print(
                f"{root.name} ({version}), {case}: {'agrees' if not problems else ''}",
                *problems[:10],
                sep="\n  " if problems else "",
            )
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
