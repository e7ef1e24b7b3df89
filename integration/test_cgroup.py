"""Device rules on real cgroups: what a process in the cgroup can open before, with and after
them.
"""

import ctypes
import errno
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cgroups import (
    ALLOW_ALL,
    ALLOW_MULTI,
    DENY_ALL,
    FILTER,
    ZERO,
    attach,
    attach_link,
    attributes,
    device,
    hierarchy,
)
from nvgraft.apply import bpf
from nvgraft.apply.cgroup import DeviceCgroup, find_cgroup
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import AllowDevice
from nvgraft.system import syscalls

pytestmark = pytest.mark.requires("root", "cgroup-v1", "cgroup-v2")

#: A major number for local use (Linux devices.txt, 240 to 254). No driver has it, so opening a node
#: gives ENXIO.
UNUSED = 241
NODE, OTHER = device(UNUSED, 7), device(UNUSED, 8)
DENIED, ALLOWED = errno.EPERM, errno.ENXIO
#: The process in the cgroup: per line either "open PATH FLAGS" or "mknod PATH DEVICE", answered
#: with the errno.
PROBE = """
import os, sys
for line in sys.stdin:
    call, path, number = line.split()
    try:
        if call == "open":
            os.close(os.open(path, int(number)))
        else:
            os.mknod(path, 0o020600, int(number))
    except OSError as error:
        print(error.errno, flush=True)
    else:
        print(0, flush=True)
"""


class Box:
    """A cgroup of our own with one process in it that opens nodes."""

    def __init__(self, version: int, nodes: Path, parent: Path | None = None) -> None:
        self.version = version
        self.path = (parent or hierarchy(version)) / f"nvgraft-test-{os.getpid()}"
        self.path.mkdir()
        self.fd = os.open(self.path, os.O_RDONLY)
        self.nodes = nodes
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", PROBE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        (self.path / "cgroup.procs").write_text(str(self.process.pid))

    def close(self) -> None:
        self.process.communicate()
        os.close(self.fd)
        self.path.rmdir()

    def confine(self) -> None:
        """Allow only /dev/zero, like the runtime before the hook runs."""
        if self.version == 1:
            (self.path / "devices.deny").write_text("a")
            (self.path / "devices.allow").write_text("c 1:5 rwm")
        else:
            self.attach(FILTER)

    def attach(self, code: bytes, flags: int = ALLOW_MULTI) -> None:
        attach(self.fd, code, flags)

    def attach_link(self, code: bytes) -> int:
        return attach_link(self.fd, code)

    def ask(self, call: str, path: Path, number: int) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{call} {path} {number}\n")
        return int(self.process.stdout.readline())

    def open(self, rule: AllowDevice, flags: int = os.O_RDWR) -> int:
        """Return the errno of opening the node of ``rule`` from inside, 0 for success."""
        path = self.nodes / f"{rule.major}-{rule.minor}"
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(rule.major, rule.minor))
        return self.ask("open", path, flags)

    def mknod(self, rule: AllowDevice) -> int:
        return self.ask("mknod", self.nodes / "made", os.makedev(rule.major, rule.minor))

    def rules(self) -> object:
        """Return what decides in this cgroup: the entries, or the flags and ids of the programs."""
        return (self.path / "devices.list").read_text() if self.version == 1 else bpf.query(self.fd)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A directory for device nodes."""
    major = {
        line.split()[0]
        for line in Path("/proc/devices").read_text().split("Block")[0].splitlines()
        if line
    }
    assert str(UNUSED) not in major
    return tmp_path


@pytest.fixture(params=[1, 2])
def box(request: pytest.FixtureRequest, nodes: Path) -> Iterator[Box]:
    """A cgroup v1 and a cgroup v2, neither of which confines anything yet."""
    made = Box(request.param, nodes)
    yield made
    made.close()


@pytest.fixture
def box_v2(nodes: Path) -> Iterator[Box]:
    """A cgroup v2 without programs."""
    made = Box(2, nodes)
    yield made
    made.close()


def allow(box: Box, *rules: AllowDevice) -> tuple[DeviceCgroup, UndoLog]:
    cgroup, undo = find_cgroup(box.process.pid), UndoLog()
    assert (cgroup.version, cgroup.path, cgroup.is_root) == (box.version, str(box.path), False)
    cgroup.allow(rules, undo)
    return cgroup, undo


def test_exactly_the_nodes_asked_for_open(box: Box) -> None:
    """A node opens with its rule only, others stay as they were, and mknod stays denied; the undo
    restores all.
    """
    box.confine()
    before = box.rules()

    def outcome() -> tuple[int, ...]:
        return (
            box.open(NODE),
            box.open(NODE, os.O_RDONLY),
            box.open(NODE, os.O_WRONLY),
            box.open(OTHER),
            box.open(ZERO),
            box.mknod(NODE),
        )

    assert outcome() == (DENIED, DENIED, DENIED, DENIED, 0, DENIED)
    cgroup, undo = allow(box, NODE)
    assert outcome() == (ALLOWED, ALLOWED, ALLOWED, DENIED, 0, DENIED)
    assert undo.run() == []
    assert outcome() == (DENIED, DENIED, DENIED, DENIED, 0, DENIED)
    assert box.rules() == before
    cgroup.close()


def test_real_device_works(box: Box) -> None:
    """/dev/null opens for reading and writing once it is allowed."""
    box.confine()
    null = device(1, 3)
    assert box.open(null) == DENIED
    cgroup, _ = allow(box, null)
    assert box.open(null) == 0
    cgroup.close()


def test_read_only_rule(box: Box) -> None:
    """A rule without w lets a node be opened for reading, not for writing."""
    box.confine()
    cgroup, undo = allow(box, device(UNUSED, 7, "r"))
    assert (box.open(NODE, os.O_RDONLY), box.open(NODE, os.O_WRONLY), box.open(NODE)) == (
        ALLOWED,
        DENIED,
        DENIED,
    )
    assert undo.run() == []
    assert box.open(NODE, os.O_RDONLY) == DENIED
    cgroup.close()


def test_all_nodes_of_a_large_mig_host(box: Box) -> None:
    """Six hundred nodes of two drivers are allowed together, and no others."""
    box.confine()
    many = [device(major, minor) for major in (UNUSED, UNUSED + 1) for minor in range(300)]
    cgroup, undo = allow(box, *many)
    probed = [
        many[0],
        many[299],
        many[300],
        many[599],
        device(UNUSED, 300),
        device(UNUSED + 2, 0),
    ]
    assert [box.open(rule) for rule in probed] == [ALLOWED] * 4 + [DENIED] * 2
    assert undo.run() == []
    assert box.open(many[0]) == DENIED
    cgroup.close()


def test_second_set_of_rules_adds_to_the_first(box: Box) -> None:
    """Rules can be given twice; each undo takes back its own."""
    box.confine()
    first, first_undo = allow(box, NODE)
    second, second_undo = allow(box, NODE, OTHER)
    assert (box.open(NODE), box.open(OTHER)) == (ALLOWED, ALLOWED)
    assert second_undo.run() == []
    assert (box.open(NODE), box.open(OTHER)) == (ALLOWED, DENIED)
    assert first_undo.run() == []
    assert (box.open(NODE), box.open(OTHER)) == (DENIED, DENIED)
    first.close()
    second.close()


def test_unconfined_cgroup_is_left_alone(box: Box) -> None:
    """Where every device is allowed, there is nothing to do and nothing to undo."""
    before = box.rules()
    cgroup, undo = allow(box, NODE)
    assert (box.rules(), len(undo), box.open(NODE)) == (before, 0, ALLOWED)
    cgroup.close()


def test_rules_are_added_from_another_mount_namespace(
    box: Box, in_mount_namespace: Callable[[Callable[[], None]], None]
) -> None:
    """An opened cgroup can be changed from a namespace without any cgroup file system."""
    box.confine()
    cgroup = find_cgroup(box.process.pid)

    def elsewhere() -> None:
        syscalls.umount2("/sys", syscalls.MNT_DETACH)
        assert not Path("/sys/fs").exists()
        cgroup.allow((NODE,), UndoLog())

    in_mount_namespace(elsewhere)
    assert box.open(NODE) == ALLOWED
    cgroup.close()


def test_cgroup_that_is_gone_leaves_nothing_to_undo(box: Box) -> None:
    """When the runtime has removed the cgroup before the undo, nothing of ours is left."""
    box.confine()
    cgroup, undo = allow(box, NODE)
    root = hierarchy(box.version)
    (root / "cgroup.procs").write_text(str(box.process.pid))
    box.path.rmdir()
    assert undo.run() == []
    box.path.mkdir()
    cgroup.close()


def test_process_of_another_cgroup_is_refused(box: Box, tmp_path: Path) -> None:
    """A procfs that names a cgroup without the process cannot make the hook change that cgroup."""
    box.confine()
    before = box.rules()
    controllers = "5:devices" if box.version == 1 else "0:"
    for name, text in (
        (f"{os.getpid()}/cgroup", f"{controllers}:/{box.path.name}\n"),
        ("self/mountinfo", None),
    ):
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True)
        path.write_text(text or Path("/proc/self/mountinfo").read_text())
    with pytest.raises(
        Refusal, match=f"root path: process {os.getpid()} is not a member of {box.path}"
    ):
        find_cgroup(os.getpid(), str(tmp_path / "proc"))
    assert box.rules() == before


def test_v1_undo_keeps_the_letters_that_were_there(nodes: Path) -> None:
    """A node that could be read before can be read after the undo, and nothing more."""
    box = Box(1, nodes)
    try:
        (box.path / "devices.deny").write_text("a")
        (box.path / "devices.allow").write_text(f"c {UNUSED}:7 r")
        cgroup, undo = allow(box, NODE)
        assert box.open(NODE) == ALLOWED
        assert undo.run() == []
        assert (box.open(NODE), box.open(NODE, os.O_RDONLY)) == (DENIED, ALLOWED)
        cgroup.close()
    finally:
        box.close()


def test_v1_parent_that_allows_less_is_the_reason(nodes: Path) -> None:
    """A cgroup cannot allow what its parent denies, and the refusal says so."""
    box = Box(1, nodes)
    child = box.path / "child"
    try:
        (box.path / "devices.deny").write_text("a")
        child.mkdir()
        (child / "cgroup.procs").write_text(str(box.process.pid))
        cgroup, undo = find_cgroup(box.process.pid), UndoLog()
        with pytest.raises(
            Refusal, match=f"devices.allow: c {UNUSED}:7 rw: operation not permitted"
        ) as caught:
            cgroup.allow((NODE,), undo)
        assert "the parent cgroup allows less" in caught.value.hint
        assert undo.run() == []
        assert (child / "devices.list").read_text() == ""
        cgroup.close()
    finally:
        (box.path / "cgroup.procs").write_text(str(box.process.pid))
        child.rmdir()
        box.close()


@pytest.mark.parametrize("count", [2, 63])
def test_v2_every_attached_program_is_extended(box_v2: Box, count: int) -> None:
    """All programs must allow an access, so each of them is extended; the undo restores the same
    programs.
    """
    for number in range(count):
        box_v2.attach(bpf.allow_code((ZERO, device(9, number))) + DENY_ALL)
    before = box_v2.rules()
    cgroup, undo = allow(box_v2, NODE)
    assert (box_v2.open(NODE), box_v2.open(OTHER), box_v2.open(ZERO)) == (ALLOWED, DENIED, 0)
    assert undo.run() == []
    assert (box_v2.rules(), box_v2.open(NODE)) == (before, DENIED)
    cgroup.close()


def test_v2_full_cgroup_is_refused(box_v2: Box) -> None:
    """With 64 programs the kernel replaces none unless another is detached, which would allow too
    much: refused.
    """
    for number in range(64):
        box_v2.attach(bpf.allow_code((ZERO, device(9, number))) + DENY_ALL)
    before = box_v2.rules()
    cgroup, undo = find_cgroup(box_v2.process.pid), UndoLog()
    with pytest.raises(Refusal, match="as many as the kernel takes"):
        cgroup.allow((NODE,), undo)
    assert undo.run() == []
    assert (box_v2.rules(), box_v2.open(NODE), box_v2.open(ZERO)) == (before, DENIED, 0)
    cgroup.close()


@pytest.mark.parametrize("flags", [0, 1])
def test_v2_program_attached_without_multi_is_replaced(box_v2: Box, flags: int) -> None:
    """A program attached exclusively, or as overridable, is exchanged and put back with the same
    flags.
    """
    box_v2.attach(FILTER, flags)
    before = box_v2.rules()
    cgroup, undo = allow(box_v2, NODE)
    assert (box_v2.open(NODE), box_v2.open(OTHER), bpf.query(box_v2.fd)[0]) == (
        ALLOWED,
        DENIED,
        flags,
    )
    assert undo.run() == []
    assert (box_v2.rules(), box_v2.open(NODE)) == (before, DENIED)
    cgroup.close()


def test_v2_linked_program_is_refused_and_the_others_come_back(box_v2: Box) -> None:
    """A program held by a BPF link is not ours to replace; those exchanged before it are put
    back.
    """
    box_v2.attach(FILTER)
    link = box_v2.attach_link(bpf.allow_code((ZERO, OTHER)) + DENY_ALL)
    before = box_v2.rules()
    cgroup, undo = find_cgroup(box_v2.process.pid), UndoLog()
    with pytest.raises(Refusal, match="attached by a BPF link"):
        cgroup.allow((NODE,), undo)
    assert len(undo) == 2
    assert undo.run() == []
    assert (box_v2.rules(), box_v2.open(NODE), box_v2.open(ZERO)) == (before, DENIED, 0)
    os.close(link)
    cgroup.close()


def test_v2_program_with_a_map_is_refused(box_v2: Box) -> None:
    """A program that refers to a map is refused, and stays."""
    array = syscalls.bpf(0, attributes("=IIII", 2, 4, 4, 1))
    use_map = struct.pack("<BBhiBBhi", 0x18, 2 | 1 << 4, 0, array, 0, 0, 0, 0)
    refused_and_kept(box_v2, use_map + DENY_ALL, "uses maps")
    os.close(array)


def test_v2_program_with_a_call_is_refused(box_v2: Box) -> None:
    """A program that calls a helper function is refused, and stays."""
    get_random = struct.pack("<BBhi", 0x85, 0, 0, 7)
    refused_and_kept(box_v2, get_random + DENY_ALL, "calls functions")


def test_v2_program_with_a_subprogram_is_refused(box_v2: Box) -> None:
    """A program that calls a function of its own is refused, and stays."""
    call_next = struct.pack("<BBhi", 0x85, 1 << 4, 0, 2)
    refused_and_kept(box_v2, call_next + DENY_ALL + DENY_ALL, "calls functions")


def test_v2_program_that_the_kernel_rewrites_is_refused(box_v2: Box) -> None:
    """A program with a division by a register gets new instructions at every load, and is
    refused.
    """
    divide = struct.pack(
        "<BBhiBBhiBBhi", 0xB7, 0, 0, 8, 0x61, 2 | 1 << 4, 4, 0, 0x3F, 0 | 2 << 4, 0, 0
    )
    refused_and_kept(box_v2, divide + DENY_ALL, "the kernel changes it while loading")


def refused_and_kept(box: Box, code: bytes, message: str) -> None:
    """Attach ``code``, loaded without our own comparison, behind a harmless program, and check that
    nothing changes.
    """
    box.attach(ALLOW_ALL)
    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    load = attributes(
        "=IIQQ", 15, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence)
    )
    program = syscalls.bpf(5, load)
    syscalls.bpf(8, attributes("=IIII", box.fd, program, 6, 2))
    os.close(program)
    before = box.rules()
    cgroup, undo = find_cgroup(box.process.pid), UndoLog()
    with pytest.raises(Refusal, match=message) as caught:
        cgroup.allow((NODE,), undo)
    assert "no-cgroups = true" in caught.value.hint
    assert (box.rules(), len(undo)) == (before, 0)
    cgroup.close()


def test_v2_root_is_refused_only_where_it_has_programs() -> None:
    """A process in the root cgroup needs nothing without programs; with one, the refusal names the
    switch.
    """
    process = subprocess.Popen(["sleep", "60"])
    try:
        for version in (1, 2):
            (hierarchy(version) / "cgroup.procs").write_text(str(process.pid))
        cgroup, undo = find_cgroup(process.pid), UndoLog()
        assert (cgroup.version, cgroup.is_root) == (2, True)
        root = os.open(hierarchy(2), os.O_RDONLY)
        assert bpf.query(root)[1] == (), "this machine's root cgroup has device programs"
        cgroup.allow((NODE,), undo)
        program = bpf.load(ALLOW_ALL)
        syscalls.bpf(8, attributes("=IIII", root, program, 6, 2))
        try:
            before = bpf.query(root)
            with pytest.raises(Refusal, match="is the root cgroup") as caught:
                cgroup.allow((NODE,), undo)
            assert "no-cgroups = true" in caught.value.hint
            assert (bpf.query(root), len(undo)) == (before, 0)
        finally:
            syscalls.bpf(9, attributes("=III", root, program, 6))
            os.close(program)
            os.close(root)
        cgroup.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("hide", ["unmounted", "covered"])
def test_namespace_that_shows_only_v2(
    box_v2: Box,
    hide: str,
    in_mount_namespace: Callable[[Callable[[], tuple[int, str]]], tuple[int, str]],
) -> None:
    """Where only cgroup2 can be reached it decides, although the process is in a v1 cgroup, too."""
    v1 = hierarchy(1) / box_v2.path.name
    v1.mkdir()
    try:
        (v1 / "cgroup.procs").write_text(str(box_v2.process.pid))

        def look() -> tuple[int, str]:
            if hide == "unmounted":
                syscalls.umount2("/sys/fs/cgroup", syscalls.MNT_DETACH)
            syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0)
            cgroup = find_cgroup(box_v2.process.pid)
            return cgroup.version, cgroup.path

        assert in_mount_namespace(look) == (2, f"/sys/fs/cgroup/{box_v2.path.name}")
        here = find_cgroup(box_v2.process.pid)
        assert (here.version, here.path) == (1, str(v1))
        here.close()
    finally:
        (hierarchy(1) / "cgroup.procs").write_text(str(box_v2.process.pid))
        v1.rmdir()


@pytest.mark.requires("runc", "busybox")
@pytest.mark.parametrize("version", [1, 2])
def test_runc_own_rules_are_extended(version: int, nodes: Path, tmp_path: Path) -> None:
    """In a container of runc, with v1 or in a namespace that shows only v2, the node opens and no
    other does.
    """
    bundle, name = tmp_path / "bundle", f"nvgraft-runc-{os.getpid()}"
    (bundle / "rootfs/bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, bundle / "rootfs/bin/sh")
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"].update(terminal=False, args=["/bin/sh"])
    config["linux"].update(
        cgroupsPath=f"/{name}", resources={"devices": [{"allow": False, "access": "rwm"}]}
    )
    config["linux"]["namespaces"] = [
        entry for entry in config["linux"]["namespaces"] if entry["type"] != "cgroup"
    ]
    (bundle / "config.json").write_text(json.dumps(config))
    shell = (
        "umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && "
        if version == 2
        else ""
    )
    runc = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        shell + 'exec runc --root "$@"',
        "sh",
        str(tmp_path / "state"),
    ]
    probe: Box | None = None
    subprocess.run(
        [*runc, "create", "--bundle", bundle, name],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        state = json.loads(
            subprocess.run([*runc, "state", name], check=True, capture_output=True).stdout
        )
        cgroup, undo = find_cgroup(state["pid"]), UndoLog()
        assert (cgroup.version, cgroup.path) == (version, str(hierarchy(version) / name))
        probe = Box(version, nodes)
        (Path(cgroup.path) / "cgroup.procs").write_text(str(probe.process.pid))
        null = device(1, 3)
        assert (probe.open(NODE), probe.open(OTHER), probe.open(null)) == (DENIED, DENIED, 0)
        cgroup.allow((NODE,), undo)
        assert (probe.open(NODE), probe.open(OTHER), probe.open(null)) == (ALLOWED, DENIED, 0)
        assert undo.run() == []
        assert (probe.open(NODE), probe.open(OTHER), probe.open(null)) == (DENIED, DENIED, 0)
        cgroup.close()
    finally:
        if probe is not None:
            probe.close()
        subprocess.run([*runc, "delete", "--force", name], check=True)


def test_a_cgroup_above_that_denies_a_node_is_named(nodes: Path) -> None:
    """With a program above that denies a node the rules change nothing; a warning says so. With one
    that allows it there is none.
    """
    parent = hierarchy(2) / f"nvgraft-test-parent-{os.getpid()}"
    parent.mkdir()
    parent_fd = os.open(parent, os.O_RDONLY)
    try:
        attach(parent_fd, bpf.allow_code((ZERO, OTHER)) + DENY_ALL)
        box = Box(2, nodes, parent)
        try:
            box.confine()
            cgroup = find_cgroup(box.process.pid)
            assert cgroup.look_above([OTHER]) == []
            (finding,) = cgroup.look_above([OTHER, NODE])
            assert finding.id == "cgroup-denies"
            assert f"denies the device {UNUSED}:{NODE.minor}: " in finding.message
            undo = UndoLog()
            cgroup.allow([OTHER, NODE], undo)
            assert (box.open(OTHER), box.open(NODE)) == (ALLOWED, DENIED)
            assert undo.run() == []
            cgroup.close()
        finally:
            box.close()
    finally:
        os.close(parent_fd)
        parent.rmdir()


def test_a_parent_of_v1_refuses_the_rule(nodes: Path) -> None:
    """In cgroup v1 the kernel accepts no rule that the parent lacks, and the refusal says so."""
    parent = hierarchy(1) / f"nvgraft-test-parent-{os.getpid()}"
    parent.mkdir()
    (parent / "devices.deny").write_text("a")
    (parent / "devices.allow").write_text("c 1:5 rwm")
    try:
        box = Box(1, nodes, parent)
        try:
            with pytest.raises(Refusal, match="operation not permitted") as refusal:
                find_cgroup(box.process.pid).allow([NODE], UndoLog())
            assert "the parent cgroup allows less than this" in refusal.value.hint
        finally:
            box.close()
    finally:
        parent.rmdir()
