"""`nvidia-container-cli configure --pid` as gVisor's runsc runs it: for a process that the same
program has started, and a directory that is no mount point and has no procfs yet.

docs/decisions/0055 has the reasons. The real runsc runs in test_gvisor.py.
"""

import json
import re
from pathlib import Path

import pytest

from harness import Installed
from test_configure import REPORT, Report, check_compute_and_utility, check_nothing_left, standalone

pytestmark = pytest.mark.requires("root", "gcc", "overlayfs", "x86_64")

START = "unshare --mount --propagation unchanged sleep 300 > /dev/null 2>&1 &"
#: For a moment the process is still in the mount namespace of its parent.
WAIT = "while [ /proc/$P/ns/mnt -ef /proc/self/ns/mnt ]; do kill -0 $P || exit 9; done"

#: Makes the rootfs $R and starts the process $P, which a gofer stands for.
PREPARE = f"""
set -e
mkdir -p $R/usr/bin $R/usr/lib/x86_64-linux-gnu $R/etc $R/proc/driver/nvidia $R/dev
echo 12 > $R/etc/debian_version
{START}
P=$!
{WAIT}
trap 'kill $P' EXIT
set +e
state() {{ find $R -xdev -printf '%p %y %l\\n' | sort; grep " $R/" /proc/$P/mountinfo; }}
"""


@pytest.fixture
def cli(installed: Installed) -> Path:
    """The installed program under the original's name."""
    return installed.cli.with_name("nvidia-container-cli")


def configure(cli: Path, change: str = "", before: str = "") -> Report:
    """Configure /c/rootfs for the process.

    :param change: shell commands of the program that has started the process.
    :param before: shell commands before that program starts.
    """
    return standalone(
        cli,
        "unshare --mount --propagation unchanged",
        "configure --no-cgroups --device=all --compute --utility --pid=$P",
        before=f"chown 0:0 /c/rootfs\n{before}",
        prepare=f"{PREPARE}\n{change}\n",
    )


@pytest.mark.parametrize("propagation", ["private", "shared"])
def test_a_plain_directory_gets_the_driver(cli: Path, propagation: str) -> None:
    """The process sees the mounts of a container, and its parent's namespace has none of them."""
    others = "trap 'kill $P; grep -c \" $R/\" /proc/self/mountinfo >&2' EXIT"
    report = configure(cli, others, f"mount --make-r{propagation} /")
    check_compute_and_utility(report)
    assert report.stderr == "0\n"


def test_a_tmpfs_may_stand_for_proc(cli: Path) -> None:
    """The driver's proc files may be mounted in a tmpfs of the process, too."""
    tmpfs = "mount -t tmpfs tmpfs /c/rootfs/proc && mkdir -p /c/rootfs/proc/driver/nvidia"
    report = configure(cli, f"nsenter --mount --target $P sh -c '{tmpfs}'")
    check_compute_and_utility(report)


def test_a_wrapper_may_stand_between(cli: Path) -> None:
    """The caller may have started the program through others."""
    wrapper = f"printf '#!/bin/sh\\n{cli} \"$@\"\\nexit $?\\n' > /c/wrapper; chmod +x /c/wrapper"
    check_compute_and_utility(configure(Path("/c/wrapper"), "", wrapper))


NOT_MOUNTED = "input error: invalid rootfs directory | /c/rootfs is not a mount point in the mount"
NO_DRIVER = "mount error: mount operation failed: /c/rootfs/proc/driver/nvidia: "
ELSEWHERE = "mkdir -p /c/elsewhere/driver/nvidia /c/elsewhere/nvidia"
UNSAFE = {
    "another user's": ("chown 1000 $R", f"{NOT_MOUNTED} .*/c/rootfs: it belongs to user 1000"),
    "replaceable by others": ("chmod 777 /c", f"{NOT_MOUNTED} .*/c: group or others may write it"),
    "the process of another": (
        f"kill $P; ({START} echo $! > /c/pid); P=$(cat /c/pid); {WAIT}",
        f"{NOT_MOUNTED} namespace of process [0-9]+: bind it on itself first, as runtimes do$",
    ),
    "without the driver's directory": (
        "rmdir $R/proc/driver/nvidia",
        f"{NO_DRIVER}no such file or directory .* make /c/rootfs/proc/driver/nvidia on",
    ),
    "a file at /proc": (
        "rm -r $R/proc; touch $R/proc",
        f"{NO_DRIVER}not a directory",
    ),
    "a link at /proc": (
        f"{ELSEWHERE}; rm -r $R/proc; ln -s /c/elsewhere $R/proc",
        f"{NO_DRIVER}not a directory",
    ),
    "a link below /proc": (
        f"{ELSEWHERE}; rm -r $R/proc/driver; ln -s /c/elsewhere $R/proc/driver",
        f"{NO_DRIVER}no such file or directory",
    ),
    "a link to the driver's directory": (
        f"{ELSEWHERE}; rm -r $R/proc/driver/nvidia; ln -s /c/elsewhere $R/proc/driver/nvidia",
        f"{NO_DRIVER}not a directory",
    ),
    "a volume at /proc": (
        f"{ELSEWHERE}; nsenter --mount --target $P mount --bind /c/elsewhere $R/proc",
        f"{NO_DRIVER}no such file or directory .* on a tmpfs there, as runsc does",
    ),
}


@pytest.mark.parametrize(("change", "error"), UNSAFE.values(), ids=UNSAFE.keys())
def test_an_unsafe_directory_is_left_as_it_was(cli: Path, change: str, error: str) -> None:
    """The directory must be the caller's and the process its child; nothing in it may lead
    elsewhere.
    """
    compare = "state > /c/before; trap 'state | diff /c/before - >&2; kill $P' EXIT"
    report = configure(cli, f"{change}\n{compare}")
    assert report.code == 1
    [line] = report.stderr.splitlines()
    assert re.match(f"nvidia-container-cli: {error}", line), line


def test_the_hook_takes_no_such_directory(cli: Path, installed: Installed) -> None:
    """For the hook a rootfs must be a mount point, whoever has started the process."""
    documents = {
        "config.json": {
            "ociVersion": "1.0.2",
            "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]},
            "root": {"path": "/c/rootfs"},
        },
        "state": {"id": "test", "bundle": "/c", "pid": 987654321},
    }
    write = "; ".join(f"echo '{json.dumps(text)}' > /c/{name}" for name, text in documents.items())
    hook = f"sed s/987654321/$P/ /c/state | {installed.hook} prestart"
    report = configure(cli, f"{write}; {hook}{REPORT}exit 0")
    check_nothing_left(report)
    assert f"nvgraft: {NOT_MOUNTED}" in report.stderr


LIBRARY_PATH = "export LD_LIBRARY_PATH=/opt/containerd/lib:"


@pytest.mark.parametrize(
    ("change", "before", "refused"),
    [
        pytest.param("", LIBRARY_PATH, "", id="the caller's own"),
        pytest.param(LIBRARY_PATH, "", "LD_LIBRARY_PATH", id="set for this program"),
        pytest.param(f"{LIBRARY_PATH}more", LIBRARY_PATH, "LD_LIBRARY_PATH", id="changed"),
        pytest.param("", "export LD_PRELOAD=", "LD_PRELOAD", id="another variable"),
    ],
)
def test_a_library_path(cli: Path, change: str, before: str, refused: str) -> None:
    """An LD_LIBRARY_PATH with which the caller itself was started is accepted: containerd sets one
    for all its shims. What the caller adds may be a container's.
    """
    report = configure(cli, change, before)
    if refused:
        check_nothing_left(report)
        text = f"initialization error: environment variable {refused} is set for the hook"
        assert report.stderr.startswith(f"nvidia-container-cli: {text}")
    else:
        check_compute_and_utility(report)
