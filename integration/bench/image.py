"""A real root file system to measure with: Debian packages with more than a thousand libraries.

The packages are unpacked once on a machine. The machine's own apt fetches and verifies them;
nothing of them is executed or installed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Together these need more than a thousand libraries, like an image for video, vision and numerics.
PACKAGES = (
    "base-files",
    "libc-bin",
    "coreutils",
    "ffmpeg",
    "libgtk-4-1",
    "libopencv-contrib406",
    "libwebkit2gtk-4.1-0",
    "kdenlive",
    "libvtk9.1",
    "octave",
)
WANTED = 1000


def libraries(image: Path) -> int:
    """Return how many entries the loader cache of ``image`` has."""
    done = subprocess.run(
        ["/sbin/ldconfig", "-r", image, "-p"], capture_output=True, text=True, check=False
    )
    first = done.stdout.partition(" ")[0]
    return int(first) if first.isdecimal() else 0


def prepare(image: Path) -> str:
    """Make ``image`` unless it exists. Return why it could not be made, or an empty string."""
    if libraries(image) >= WANTED:
        return ""
    if image.exists():
        return (
            f"{image} has {libraries(image)} libraries in its loader cache, fewer than {WANTED}: "
            "remove it, or name another one"
        )
    for program in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(program) is None:
            return f"this machine has no {program}: name a root file system with --image DIR"
    print(f"bench: making {image}, once for this machine (1 to 2 GB)", file=sys.stderr)
    image.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-image.", dir=image.parent) as work:
        try:
            _unpack(Path(work), Path(work) / "rootfs")
        except subprocess.CalledProcessError as error:
            return (
                f"{' '.join(map(str, error.cmd[:2]))} failed: "
                f"{error.stderr.decode(errors='replace').strip()[-300:]}"
            )
        os.rename(Path(work) / "rootfs", image)
    entries = libraries(image)
    return (
        ""
        if entries >= WANTED
        else f"the packages have only {entries} libraries in the loader cache"
    )


def _unpack(work: Path, rootfs: Path) -> None:
    archives = work / "archives"
    (archives / "partial").mkdir(parents=True)
    state = work / "status"  # nothing counts as installed, so every needed package is fetched
    state.touch()
    options = [
        f"Dir::State::status={state}",
        f"Dir::Cache::archives={archives}",
        "Debug::NoLocking=1",
        "APT::Sandbox::User=root",
    ]
    command = ["apt-get", *(word for option in options for word in ("-o", option))]
    subprocess.run(
        [*command, "install", "-y", "-q", "--no-install-recommends", "--download-only", *PACKAGES],
        check=True,
        capture_output=True,
    )
    # A maintainer's script would merge directories of an image without links in place of /lib and
    # /bin.
    for name in ("bin", "sbin", "lib", "lib64"):
        (rootfs / "usr" / name).mkdir(parents=True)
        (rootfs / name).symlink_to(f"usr/{name}")
    for package in sorted(archives.glob("*.deb")):
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
        ) as unpacked:
            subprocess.run(
                ["tar", "-x", "--keep-directory-symlink", "-C", rootfs],
                stdin=unpacked.stdout,
                check=True,
                capture_output=True,
            )
    for name in ("dev", "proc", "sys"):
        (rootfs / name).mkdir(exist_ok=True)
    # libc-bin's own script writes this file.
    (rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    subprocess.run(["/sbin/ldconfig", "-r", rootfs], check=True, capture_output=True)
