"""OCI bundles on disk for tests of the command line."""

import json
from pathlib import Path
from typing import Any


def make_bundle(
    place: Path,
    *env: str,
    root: str = "rootfs",
    mounts: tuple[str, ...] = (),
    files: tuple[str, ...] = ("etc/debian_version",),
    **changes: Any,
) -> Path:
    """Make a bundle at ``place`` with these variables and these empty files in its rootfs.

    :param root: root.path of config.json.
    :param mounts: destinations of volumes.
    """
    rootfs = place / "rootfs"
    rootfs.mkdir(parents=True, exist_ok=True)
    for name in files:
        (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / name).touch()
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {"env": ["PATH=/bin", *env]},
        "root": {"path": root},
        "mounts": [{"destination": path, "source": "/srv"} for path in mounts],
    }
    (place / "config.json").write_text(json.dumps(config | changes))
    return place


def put(path: Path, data: bytes | str) -> Path:
    """Write a file that everybody may execute, as programs and libraries of images are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(0o755)
    return path


#: The variables of a container that asks for all GPUs and every driver capability.
EVERYTHING = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
