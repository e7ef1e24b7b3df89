"""The kept inventory on a simulated node: containers with and without it, and the watcher."""

import json
import subprocess

import pytest

import break_nvml
from containers import Bundle
from harness import Installed

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "gcc")

LOG = "/run/hook.log"
LOGGED = (
    f"sed -i 's,^.nvidia-container-cli.$,&\\ndebug = \"{LOG}\",'"
    " /etc/nvidia-container-runtime/config.toml"
)
#: Prints a container's mounts, device nodes and libraries, without what differs from run to run.
VIEW = (
    "cut -d' ' -f4-6 /proc/self/mountinfo | sed 's/nvgraft-test[^ ]*//' | sort; "
    "ls -l /dev/nvidia*; ls -l /usr/lib/x86_64-linux-gnu"
)
FILE = "/run/nvgraft/cache/inventory-*"


@pytest.fixture
def viewing(bundle: Bundle) -> Bundle:
    bundle.set_program(VIEW)
    return bundle


def started(bundle: Bundle) -> str:
    """Return a command that prints a container's inventory's origin and its view's sum."""
    start = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name} > /run/seen"
    return f": > {LOG}; {start} && echo \"$(grep -o 'inventory: .*' {LOG}); $(md5sum < /run/seen)\""


def origins(rows: list[str]) -> list[str]:
    """Return where the hooks have got their inventories from."""
    return [row.partition(";")[0].removeprefix("inventory: ") for row in rows]


def views(rows: list[str]) -> set[str]:
    """Return the different views of the containers."""
    return {row.partition(";")[2] for row in rows}


def test_a_start_with_a_kept_inventory_gives_the_same_container(viewing: Bundle) -> None:
    """The kept inventory is used until it is dropped, and the container is the same each time."""
    cli = viewing.installed.cli
    run = started(viewing)
    runs = f"{run} && {run} && {cli} inventory drop && {run} && {run}"
    done = viewing.on_host(f"{LOGGED}; {cli} inventory refresh && {runs} && wc -l < /run/seen")
    assert done.returncode == 0, done.stderr
    _refreshed, first, second, _dropped, third, fourth, lines = done.stdout.splitlines()
    rows = [first, second, third, fourth]
    assert origins(rows) == [
        "from the kept inventory",
        "from the kept inventory",
        "read now: no inventory is kept",
        "from the kept inventory",
    ]
    assert len(views(rows)) == 1
    assert int(lines) > 50


#: The kind of damage -> a shell command that damages the file of the kept inventory.
DAMAGE = {
    "truncated": f"f=$(echo {FILE}); head -c 3000 $f > $f.new; chmod 600 $f.new; mv $f.new $f",
    "emptied": f"f=$(echo {FILE}); : > $f",
    "one byte changed": (
        f"f=$(echo {FILE}); printf '#' | dd of=$f bs=1 seek=2000 conv=notrunc status=none"
    ),
    "readable by others": f"chmod 644 {FILE}",
    "another owner": f"chown 1000 {FILE}",
    "a link to a copy": f"f=$(echo {FILE}); mv $f /run/copy; ln -s /run/copy $f",
    "a second name": f"ln {FILE} /run/second",
    "a FIFO": f"f=$(echo {FILE}); rm $f; mkfifo -m 600 $f",
    "a directory of others": "chmod 755 /run/nvgraft/cache",
}


def test_a_damaged_kept_inventory_is_not_used(viewing: Bundle) -> None:
    """A damaged file is neither used nor waited for, and the container gets the same driver."""
    cli = viewing.installed.cli
    run = started(viewing)
    renew = f"rm -rf /run/nvgraft/cache /run/second; {cli} inventory refresh > /run/said"
    steps = [f"({damage}); {run} || exit 9; {renew}" for damage in DAMAGE.values()]
    first = f"{LOGGED}; {cli} inventory refresh && {run} || exit 9"
    done = viewing.on_host("; ".join([first, *steps]))
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[1:]
    assert origins(rows) == [
        "from the kept inventory",
        *["read now: no inventory is kept"] * len(DAMAGE),
    ]
    assert len(views(rows)) == 1


@pytest.mark.parametrize(
    "host", ["runfile-a10x2", "mig-h100", "debian-compat32", "operator-driver-root"]
)
def test_list_and_info_are_the_same_with_a_kept_inventory(installed: Installed, host: str) -> None:
    """list and info print the same with a kept inventory, also when several write it."""
    cli = installed.cli
    root = " --root=/run/nvidia/driver" if host == "operator-driver-root" else ""
    ask = f"{cli}{root} list --device=all --compat32 && {cli}{root} info"
    together = f"for i in $(seq 6); do ({ask}) > /run/out.$i 2>&1 & done; wait"
    compare = "for i in $(seq 6); do cmp /run/fresh /run/out.$i || exit 3; done"
    look = "ls /run/nvgraft/cache | grep -c inventory"
    script = (
        f"sleep 0.1; ({ask}) > /run/fresh && {look} && ({ask}) | cmp /run/fresh - && "
        f"{cli} inventory drop && {together}; {compare}; cat /run/fresh"
    )
    command = [str(cli), "simulate", host, "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1\ndropped ")
    assert "/dev/nvidia0" in done.stdout


#: Sends an event to the kernel, which passes it on to the listeners of this network namespace.
EVENT = r"""
import socket, struct
text = b"add@/module/nvidia\0ACTION=add\0DEVPATH=/module/nvidia\0SUBSYSTEM=module\0"
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as kernel:
    kernel.sendto(struct.pack("IHHII", 16 + len(text), 16, 1, 0, 0) + text, (0, 0))
"""

WATCHED = """
await() {{ for i in $(seq 100); do grep -q "$1" /run/log && return; sleep 0.1; done; echo "no $1"; cat /run/log; exit 9; }}
: > /run/log  # before the first look at it
{cli} --debug watch --check 0.2 --format json 2> /run/log & watcher=$!
await '"reason": "start"'
echo change > /sys/class/mem/null/uevent
await 'change /devices/virtual/mem/null'
python3 -c '{event}'
await '"reason": "uevent add /module/nvidia"'
mkdir -p /proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0
await '"reason": "changed: MIG devices'
mv /proc/driver/nvidia/version /proc/driver/nvidia/away
await 'cannot be read, nothing is kept\\|"reason": "changed: driver version'
mv /proc/driver/nvidia/away /proc/driver/nvidia/version
{broken}
await 'nvml error: driver not loaded'
{cli} inventory show > /run/said && exit 8
kill -TERM $watcher; wait $watcher || exit 7
cat /run/log
"""


def test_the_watcher_follows_events_and_changes(installed: Installed) -> None:
    """The watcher reads the host after events of the driver and silent changes; SIGTERM ends it."""
    script = WATCHED.format(
        cli=installed.cli, event=EVENT, broken=break_nvml.command("nvml-init=9")
    )
    # In a network namespace of its own, so that no other listener gets the false event.
    simulate = [str(installed.cli), "simulate", "runfile-a10x2"]
    command = ["unshare", "--net", *simulate, "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    uevent = next(line for line in lines if line["event"] == "uevent")
    assert uevent["subsystem"] == "mem"
    assert uevent["event_of"] == "change /devices/virtual/mem/null"
    assert next(line["gpus"] for line in lines if line["event"] == "read") == 2
    assert lines[-1]["event"] == "ended"
