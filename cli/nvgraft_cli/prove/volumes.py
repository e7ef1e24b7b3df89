"""Tell which files of the image a volume of config.json covers."""

from dataclasses import dataclass

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.planned_tree import PlannedTree

#: What engines mount in each container; no library is there.
_ENGINES = ("/proc", "/sys", "/dev")


@dataclass(frozen=True, slots=True)
class Volume:
    """A mount of config.json: where it is, and whether nothing is on it (a tmpfs)."""

    path: str
    empty: bool


class CoveringVolumes:
    """The volumes of one container."""

    def __init__(self, volumes: list[Volume]) -> None:
        self._volumes = sorted(volumes, key=lambda volume: len(volume.path))

    def over(self, path: str) -> Volume | None:
        """Return the volume that covers a path without links, or None."""
        found = None
        for volume in self._volumes:
            if path == volume.path or path.startswith(f"{volume.path}/"):
                found = volume
        return found


def volumes_of(container: ContainerSide, tree: PlannedTree) -> CoveringVolumes:
    """Return the volumes of a container, where the image's links lead.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
    """
    mounts = container.member("mounts")
    volumes = []
    for mount in mounts if isinstance(mounts, list) else ():
        path = mount.get("destination") if isinstance(mount, dict) else None
        if not isinstance(path, str) or f"{path}/".startswith(tuple(f"{p}/" for p in _ENGINES)):
            continue
        try:
            path = tree.resolve(path)
        except (OSError, PathError):
            path = path.rstrip("/")
        if path not in {"", "/"}:
            volumes.append(Volume(path, mount.get("type") == "tmpfs"))
    return CoveringVolumes(volumes)
