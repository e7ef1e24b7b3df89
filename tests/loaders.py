"""Images with a program, its loader and a C library, and what ``nvgraft prove`` says of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bundles import EVERYTHING, make_bundle, put
from documents import read_document
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import executable, shared_object

Captured = pytest.CaptureFixture[str]

X86 = "EM_X86_64"
LOADER = "/lib64/ld-linux-x86-64.so.2"
#: The directories built into glibc's loader, as its file holds them.
DEBIAN = b"/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0"


def loader(directories: bytes, cache: str = "/etc/ld.so.cache") -> bytes:
    return (
        shared_object(64, X86, "ld-linux-x86-64.so.2", [], None)
        + b"\0"
        + directories
        + cache.encode()
        + b"\0"
    )


def library(soname: str, *needed: str) -> bytes:
    return shared_object(64, X86, soname, needed, None)


#: The other libraries of glibc that libcuda needs.
PARTS = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")


def image(
    *extra: tuple[str, bytes], libs: str = "lib/x86_64-linux-gnu", directories: bytes = DEBIAN
) -> dict[str, bytes]:
    """Return an image with a program, a C library and its loader."""
    return {
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, LOADER),
        LOADER.lstrip("/"): loader(directories),
        f"{libs}/libc.so.6": library("libc.so.6", "ld-linux-x86-64.so.2"),
        **{f"{libs}/{name}": library(name) for name in PARTS},
        **({"etc/debian_version": b"12\n"} if "gnu" in libs else {}),
        **dict(extra),
    }


def bundle(place: Path, files: dict[str, bytes], *env: str) -> str:
    made = make_bundle(place, *EVERYTHING, *env, files=())
    for name, data in files.items():
        put(made / "rootfs" / name, data)
    config = json.loads((made / "config.json").read_text())
    config["process"]["args"] = ["app"]
    config["process"]["env"] = ["PATH=/usr/bin", *config["process"]["env"][1:]]
    (made / "config.json").write_text(json.dumps(config))
    return str(made)


#: A program that needs the C library alone.
ELF = executable(X86, "x", ["libc.so.6"], None, LOADER)
#: Programs that start others, and a libcuda of the image, of ``starters_bundle``.
_STARTERS = ("bash", "busybox", "env", "tini", "sh", "timeout", "gosu", "nice")
_OTHER = {"opt/x/libcuda.so.1": library("libcuda.so.1")}
_ENTRYPOINT = b'#!/bin/sh\nset -e\nif [ "$1" = x ]; then\n  exit 1\nfi\nexec "$@"\n'


def starters_bundle(place: Path, *env: str, **process: Any) -> str:
    """Return a bundle with programs that start others, and with these members of ``process``."""
    files = image(*_OTHER.items(), *((f"usr/bin/{name}", ELF) for name in _STARTERS))
    files |= {"entry.sh": _ENTRYPOINT, "start.sh": b"#!/usr/bin/sh\nrun() { app; }\nrun\n"}
    files |= {"run.py": b"#!/usr/bin/env -S nice -n 1 app\n", "opt/app/bin/own": ELF}
    path = bundle(place, files, *env)
    config = json.loads(Path(path, "config.json").read_text())
    config["process"] |= process
    Path(path, "config.json").write_text(json.dumps(config))
    return path


def run_prove(
    capsys: Captured, *arguments: str, host: str = "runfile-a10x2"
) -> tuple[int, list[dict[str, Any]]]:
    code = main(["prove", *arguments, "--host", host, "--format", "json"])
    return code, read_document(capsys.readouterr().out)["proofs"]
