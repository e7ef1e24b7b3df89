"""The programs and libraries in the images of docs/examples.

They are stubs with the names of the real ones, and with the facts that a loader reads.
``python tests/examples.py`` (with PYTHONPATH as for the tests) writes them.
"""

from pathlib import Path

import console
from nvgraft_cli.simulate.stubs import executable, shared_object

_MACHINE = "EM_X86_64"
_STORE = "nix/store/7vjq5q1w-glibc-2.38"


def _loader(directories: str, cache: str) -> bytes:
    """Return a glibc loader whose file holds its built-in directories."""
    built_in = "\0".join(["", *directories.split(":"), cache, ""])
    return shared_object(64, _MACHINE, "ld-linux-x86-64.so.2", [], None) + built_in.encode()


def _program(message: str, loader: str) -> bytes:
    return executable(_MACHINE, message, ["libc.so.6"], None, loader)


def _library(soname: str, *needed: str) -> bytes:
    return shared_object(64, _MACHINE, soname, needed, None)


#: The other libraries of glibc that the driver's libraries need.
_PARTS = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")

#: image -> file -> content
FILES = {
    "training": {
        "lib64/ld-linux-x86-64.so.2": _loader(
            "/lib/x86_64-linux-gnu/:/usr/lib/x86_64-linux-gnu/:/lib/:/usr/lib/", "/etc/ld.so.cache"
        ),
        "lib/x86_64-linux-gnu/libc.so.6": _library("libc.so.6", "ld-linux-x86-64.so.2"),
        **{f"lib/x86_64-linux-gnu/{name}": _library(name, "libc.so.6") for name in _PARTS},
        "usr/bin/python3": _program(
            "not a real Python: an example of nvgraft's guide", "/lib64/ld-linux-x86-64.so.2"
        ),
        "usr/lib/x86_64-linux-gnu/libcudart.so.12": _library("libcudart.so.12", "libc.so.6"),
        "usr/lib/python3/dist-packages/torch/lib/libtorch_cuda.so": _library(
            "libtorch_cuda.so", "libcudart.so.12", "libc.so.6"
        ),
    },
    "nix": {
        f"{_STORE}/lib/ld-linux-x86-64.so.2": _loader(
            f"/{_STORE}/lib/:/{_STORE}/lib64/", f"/{_STORE}/etc/ld.so.cache"
        ),
        f"{_STORE}/lib/libc.so.6": _library("libc.so.6", "ld-linux-x86-64.so.2"),
        **{f"{_STORE}/lib/{name}": _library(name, "libc.so.6") for name in _PARTS},
        "bin/app": _program(
            "not a real program: an example of nvgraft's guide",
            f"/{_STORE}/lib/ld-linux-x86-64.so.2",
        ),
    },
}


def write() -> None:
    """Write all files into docs/examples."""
    for image, files in FILES.items():
        for name, content in files.items():
            path = Path(console.EXAMPLES, image, "rootfs", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755)


if __name__ == "__main__":
    write()
