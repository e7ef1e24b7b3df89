"""Image archives for tests, written entry by entry, as ``docker save`` archives and OCI layouts."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: A layer's entry: its name, and bytes (a file), None (a directory), or a ready TarInfo.
Entry = tuple[str, bytes | tarfile.TarInfo | None]


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    """Return a link entry that leads to ``target``."""
    info = tarfile.TarInfo()
    info.type = kind
    info.linkname = target
    return info


def layer(entries: Iterable[Entry]) -> bytes:
    """Return a layer as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in entries:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo()
            info.name = name
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
            if isinstance(content, bytes):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def tar_header(kind: bytes, size: int) -> bytes:
    """Return the header of an entry of that size, followed by as many NULs."""
    info = tarfile.TarInfo("x")
    info.type = kind
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(-(-size // 512) * 512)


def _write(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def docker_save(
    path: Path, *layers: Iterable[Entry], config: dict[str, Any] | None = None, tags: int = 1
) -> str:
    """Write an archive as ``docker save`` does, with the manifest as its last member."""
    files = {f"{number:064x}/layer.tar": layer(entries) for number, entries in enumerate(layers)}
    names = list(files)
    files["config.json"] = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": config or {}}
    ).encode()
    manifest = [
        {"Config": "config.json", "RepoTags": [f"web:{tag}"], "Layers": names}
        for tag in range(tags)
    ]
    files["manifest.json"] = json.dumps(manifest).encode()
    return _write(path, files)


def oci_layout(
    *layers: Iterable[Entry], config: dict[str, Any] | None = None, compress: Any = gzip.compress
) -> dict[str, bytes]:
    """Return the files of an OCI layout with compressed layers."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    document = json.dumps({"architecture": "amd64", "os": "linux", "config": config or {}}).encode()
    manifest = {
        "schemaVersion": 2,
        "config": blob(document),
        "layers": [blob(compress(layer(entries))) for entries in layers],
    }
    image = blob(json.dumps(manifest).encode()) | {
        "platform": {"architecture": "amd64", "os": "linux"}
    }
    other = {"digest": "sha256:00", "size": 0, "platform": {"architecture": "s390x", "os": "linux"}}
    attestation = {
        "digest": "sha256:01",
        "size": 0,
        "platform": {"architecture": "unknown", "os": "unknown"},
    }
    index = {"schemaVersion": 2, "manifests": [other, attestation, image]}
    files["index.json"] = json.dumps(
        {"schemaVersion": 2, "manifests": [blob(json.dumps(index).encode())]}
    ).encode()
    return files


def write_archive(path: Path, files: dict[str, bytes]) -> str:
    """Write ``files`` as one tar archive."""
    return _write(path, files)


def write_directory(path: Path, files: dict[str, bytes]) -> str:
    """Write ``files`` below a directory."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return str(path)
