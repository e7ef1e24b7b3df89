"""Real libraries and programs of this machine, and what readelf says of them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path


def described(flags: str, *, every: int) -> Iterator[tuple[Path, str]]:
    """Yield ELF files of this machine, with what ``readelf`` prints.

    :param every: how many files to pass over for each that is taken.
    """
    places = [Path("/usr/bin"), *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
    files = [
        file
        for place in places
        for file in sorted(place.glob("*"))
        if file.is_file() and not file.is_symlink()
    ]
    for file in files[::every]:
        if file.read_bytes()[:4] == b"\x7fELF":
            yield (
                file,
                subprocess.run(
                    ["readelf", flags, str(file)], capture_output=True, text=True
                ).stdout,
            )
