"""The lab's own container: a small image that asks for all GPUs of the node."""

import os
import shutil
from typing import Any

from nvgraft_cli.lab.ground.bundles import bundle_config
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.simulate import demo

_PROGRAM = ["nvidia-smi", "-L"]


def check() -> None:
    """Check that this machine has what the image is made of.

    :raises InputError: it has not.
    """
    if os.uname().machine != "x86_64":
        raise InputError("the lab's own container is for x86_64 | name a bundle: lab HOST BUNDLE")
    for path in (shutil.which("busybox") or "/bin/busybox", demo.LOADER):
        if not os.path.exists(path):
            raise InputError(
                f"{path}: there is no such file, and the lab's own container is made of it"
                " | run apt-get install busybox-static, or name a bundle: lab HOST BUNDLE"
            )


def make(directory: str) -> dict[str, Any]:
    """Make the image and its bundle, and return config.json.

    :raises nvgraft_cli.simulate.demo.DemoFailed: runc makes no config.json.
    """
    demo.make_bundle(directory, hook=None)
    config = bundle_config(directory)
    config["process"]["args"] = _PROGRAM
    return config
