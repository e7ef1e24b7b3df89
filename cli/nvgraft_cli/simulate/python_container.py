"""Containers of real programs on a simulated node: Python, packages beside it, and the stand-in for
the CUDA runtime preloaded.

It judges from outside, as the demonstration does: it uses only the standard library and runc.
"""

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence

from nvgraft_cli.simulate.demo import PATH, libraries_of, run
from nvgraft_specs import names

#: Where Python of Debian looks for packages, and where the preloaded library is.
PACKAGES = f"/usr/local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/dist-packages"
RUNTIME = f"/opt/nvgraft/{names.STANDIN_RUNTIME}"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
#: What packages of Python take from a distribution, besides what Python itself needs.
_MORE_LIBRARIES = (
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
)
_LEFT_OUT = ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "dist-packages", "__pycache__")


def make_rootfs(rootfs: str) -> None:
    """Make an image with the Python of this machine, laid out like Debian.

    :raises nvgraft_cli.simulate.demo.DemoFailed: ldd failed.
    """
    stdlib, python = sysconfig.get_path("stdlib"), os.path.realpath("/usr/bin/python3")
    for directory in ("dev", "etc", "lib64", "proc", "sys", "tmp", "usr/bin", LIBRARIES[1:]):
        os.makedirs(f"{rootfs}/{directory}", exist_ok=True)
    for directory in ("bin", "lib"):
        os.symlink(f"usr/{directory}", f"{rootfs}/{directory}")
    shutil.copy(python, f"{rootfs}/usr/bin/python3")
    shutil.copytree(stdlib, rootfs + stdlib, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    shutil.copy(LOADER, rootfs + LOADER)
    for path in sorted(_libraries(python, stdlib)):
        shutil.copy(path, f"{rootfs}{LIBRARIES}/{os.path.basename(path)}")
    for name, text in (("debian_version", "12.0\n"), ("ld.so.conf", f"{LIBRARIES}\n")):
        with open(f"{rootfs}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _libraries(python: str, stdlib: str) -> set[str]:
    """Return the paths of the libraries that Python, its modules and packages need."""
    modules = [
        entry.path for entry in os.scandir(f"{stdlib}/lib-dynload") if entry.name.endswith(".so")
    ]
    return libraries_of(python, *modules) | {f"{LIBRARIES}/{name}" for name in _MORE_LIBRARIES}


def make_bundle(
    bundle: str,
    rootfs: str,
    hook: str,
    program: Sequence[str],
    *,
    mounts: Mapping[str, str] | None = None,
    variables: Iterable[str] = (),
) -> None:
    """Make an OCI bundle with a program and ``hook`` as its prestart hook.

    The stand-in for the CUDA runtime is preloaded where the image has it.

    :param mounts: paths of this machine, and where they are mounted, read-only.
    :param variables: of the container, in place of those of the same name.
    """
    os.makedirs(bundle)
    run("runc", "spec", "--bundle", bundle)
    with open(f"{bundle}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config["mounts"] += [
        {"source": source, "destination": place, "type": "bind", "options": ["bind", "ro"]}
        for source, place in (mounts or {}).items()
    ]
    environment = {
        "PATH": PATH.partition("=")[2],
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    if os.path.exists(rootfs + RUNTIME):
        environment["LD_PRELOAD"] = RUNTIME
    environment |= dict(entry.split("=", 1) for entry in variables)
    config["process"] |= {
        "terminal": False,
        "args": list(program),
        "env": [f"{name}={value}" for name, value in environment.items()],
    }
    config["root"] = {"path": rootfs, "readonly": False}
    # Without an explicit environment the hook would inherit the runtime's.
    step = {"path": hook, "args": ["nvgraft-hook", "prestart"], "env": [PATH], "timeout": 120}
    config["hooks"] = {"prestart": [step]}
    with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
