"""The volume of nvidia-docker 1.0: a directory with links to everything of one driver (reference
behaviour 12.1).

It lies on the node and does not follow the driver: after an upgrade there is a second one.
"""

import errno
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nvgraft.base.errors import Refusal
from nvgraft.formats.elf import ElfFacts
from nvgraft.formats.ldcache import SIZE_LIMIT
from nvgraft.formats.ldcache_entries import parse
from nvgraft.formats.tree import LiveTree, PathError, open_tree_at
from nvgraft_cli.docker_v1.answers import VOLUME
from nvgraft_cli.docker_v1.errors import DockerTrouble

_PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)

#: Use -> libraries, by the beginning of their names. Everything that begins so is taken.
_LIBRARIES = {
    "compute": (
        "libnvidia-ml.so",
        "libcuda.so",
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-fatbinaryloader.so",
        "libnvidia-opencl.so",
        "libnvidia-compiler.so",
    ),
    "video": (
        "libvdpau_nvidia.so",
        "libnvidia-encode.so",
        "libnvcuvid.so",
        "libnvidia-fbc.so",
        "libnvidia-ifr.so",
    ),
    "graphics": (
        "libGL.so",
        "libGLX.so",
        "libOpenGL.so",
        "libGLESv1_CM.so",
        "libGLESv2.so",
        "libEGL.so",
        "libGLdispatch.so",
        "libGLX_nvidia.so",
        "libEGL_nvidia.so",
        "libGLESv2_nvidia.so",
        "libGLESv1_CM_nvidia.so",
        "libnvidia-eglcore.so",
        "libnvidia-egl-wayland.so",
        "libnvidia-glcore.so",
        "libnvidia-tls.so",
        "libnvidia-glsi.so",
    ),
}
_PREFIXES = tuple(name.encode() for names in _LIBRARIES.values() for name in names)

#: Libraries of any vendor, taken only if they are the driver's: then they need one of these.
_OF_ANY_VENDOR = ("libEGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGL.so")
_OF_THE_DRIVER = ("libnvidia-glcore.so", "libnvidia-eglcore.so", "libGLdispatch.so")
#: libnvidia-tls is taken for kernels x.3.99 alone: others are for older threads.
_TLS = "libnvidia-tls.so"
_TLS_KERNEL = (3, 99)

#: Directory of the volume -> the architecture bits of its libraries in a loader cache.
_DIRECTORIES = {"lib": (0x0000, 0x0800), "lib64": (0x0300, 0x0500)}

#: The original also takes versions of dots alone: ".." would name the directory above.
_NAME = re.compile(r"([a-zA-Z0-9_.-]+)_([0-9][0-9.]*)", re.ASCII)


def split_name(name: str) -> str:
    """Return the version of a volume's name.

    :raises DockerTrouble: it is not NAME_VERSION, or another volume's.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise DockerTrouble(f"bad volume format: {name}")
    if found[1] != VOLUME:
        raise DockerTrouble(f"unsupported volume: {name}")
    return found[2]


class Volumes:
    """The volumes below a directory: PREFIX/nvidia_driver/VERSION."""

    def __init__(self, prefix: str) -> None:
        self._place = Path(prefix, VOLUME)

    def path(self, version: str) -> Path:
        """Return where the volume of a version is, or would be."""
        return self._place / version

    def exists(self, version: str) -> bool:
        """Tell whether there is a volume of this version."""
        return self.path(version).is_dir()

    def versions(self) -> list[str]:
        """Return the versions of the volumes that exist."""
        try:
            names = sorted(os.listdir(self._place))
        except FileNotFoundError:
            return []
        return [name for name in names if _NAME.fullmatch(f"{VOLUME}_{name}")]

    def remove(self, version: str) -> None:
        """Remove the volume of a version, if there is one."""
        shutil.rmtree(self.path(version), ignore_errors=True)

    def create(self, version: str) -> None:
        """Make the volume of this node's driver, unless there is one; all of it, or nothing.

        :raises DockerTrouble: a file of the driver cannot be used or linked.
        """
        if self.exists(version):
            return
        os.makedirs(self._place, 0o755, exist_ok=True)
        work = tempfile.mkdtemp(prefix=".new-", dir=self._place)
        try:
            _fill(Path(work))
            os.chmod(work, 0o755)  # noqa: S103 - every container reads it
            os.rename(work, self.path(version))
        except OSError as error:
            shutil.rmtree(work, ignore_errors=True)
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                return  # another call has made it meanwhile
            raise DockerTrouble(f"{error.filename or work}: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def _fill(work: Path) -> None:
    tree = open_tree_at("/")
    try:
        (work / "bin").mkdir(0o755)
        for name in _PROGRAMS:
            found = shutil.which(name)
            if found is not None:
                path = os.path.realpath(found)
                _facts(tree, path, sections=False)
                _link(path, work / "bin" / name)
        for directory, architectures in _DIRECTORIES.items():
            (work / directory).mkdir(0o755)
            for path, facts in _libraries(tree, architectures):
                _add_library(work / directory, path, facts)
    finally:
        tree.close()


def _libraries(tree: LiveTree, architectures: tuple[int, ...]) -> Iterator[tuple[str, ElfFacts]]:
    """Yield each library of the driver once. There is no check of versions, as in the original."""
    try:
        entries = parse(tree.read("/etc/ld.so.cache", SIZE_LIMIT), _PREFIXES)
    except (OSError, ValueError, struct.error) as error:
        raise DockerTrouble(f"/etc/ld.so.cache: {error} | run ldconfig") from error
    done: set[str] = set()
    for entry in entries:
        if entry.architecture not in architectures:
            continue
        try:
            path = tree.resolve(entry.path)
        except (PathError, Refusal) as error:
            raise DockerTrouble(f"{entry.path}: {error} | run ldconfig") from error
        if path in done:
            continue
        done.add(path)
        facts = _facts(tree, path, sections=entry.soname.startswith(_TLS))
        if _is_the_drivers(entry.soname, facts):
            yield path, facts


def _facts(tree: LiveTree, path: str, *, sections: bool) -> ElfFacts:
    try:
        return tree.elf(path, sections=sections)
    except (OSError, ValueError) as error:
        raise DockerTrouble(
            f"{path}: {error} | reinstall the driver: this is not a program or library"
        ) from error


def _is_the_drivers(soname: str, facts: ElfFacts) -> bool:
    if soname.startswith(_OF_ANY_VENDOR):
        return any(name.startswith(_OF_THE_DRIVER) for name in facts.needed)
    if soname.startswith(_TLS):
        return facts.abi_tag is not None and facts.abi_tag[1:] == _TLS_KERNEL
    return True


def _add_library(directory: Path, path: str, facts: ElfFacts) -> None:
    name = os.path.basename(path)
    _link(path, directory / name)
    soname = facts.soname or name
    if "/" in soname:
        return
    links = [soname]
    # Programs load libcuda.so by this name; libGLX_indirect is another name of the vendor's GLX.
    if soname.startswith("libcuda"):
        links.append("libcuda.so")
    if soname.startswith("libGLX_nvidia"):
        links.append(soname.replace("GLX_nvidia", "GLX_indirect"))
    for link in links:
        if link != name and not os.path.lexists(directory / link):
            (directory / link).symlink_to(name)


def _link(path: str, target: Path) -> None:
    """Make a hard link, or a copy on another file system (the original refuses there)."""
    try:
        os.link(path, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK}:
            raise
        shutil.copy2(path, target)
