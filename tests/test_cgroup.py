"""The device cgroup without a kernel: finding it in texts, v1's lines, and v2's programs in an
interpreter.
"""

import ctypes
import errno
import os
import posix
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descriptors import nothing_stays_open
from nvgraft.apply import bpf, cgroup
from nvgraft.apply.cgroup import DeviceCgroup
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import AllowDevice, Why
from nvgraft.system import syscalls
from nvgraft.system.mountinfo import Mount, parse_mountinfo

MOUNTINFO = """\
23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw shared:5 - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory
36 31 0:33 /docker/a\\040b /sys/fs/cgroup/devices rw shared:8 master:2 - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""


def mount(root: str, point: str, fstype: str) -> Mount:
    return Mount(36, root, point, "rw", False, fstype, fstype)


V1 = mount("/", "/sys/fs/cgroup/devices", "cgroup")
V2 = mount("/", "/sys/fs/cgroup/unified", "cgroup2")
WHY = Why("", "", "")
GPU = AllowDevice(195, 0, WHY)
CONTROL = AllowDevice(195, 255, WHY)


def test_mountinfo_keeps_device_hierarchies_and_undoes_escapes() -> None:
    """Only cgroup2 and a v1 mount at a place named devices are kept.

    Optional fields are skipped and octal escapes undone.
    """
    mounts = cgroup.device_mounts(parse_mountinfo(MOUNTINFO))
    assert [(each.root, each.point) for each in mounts] == [
        ("/docker/a b", "/sys/fs/cgroup/devices"),
        ("/", "/sys/fs/cgroup/unified"),
    ]


def test_mountinfo_with_a_combined_hierarchy_has_no_device_hierarchy() -> None:
    """A v1 hierarchy that is mounted under another name is not found, as in the reference."""
    text = "36 31 0:33 / /sys/fs/cgroup/cpu,devices rw - cgroup cgroup rw,cpu,devices\n"
    assert cgroup.device_mounts(parse_mountinfo(text)) == ()


def test_membership_takes_the_exact_devices_controller_and_the_unified_one() -> None:
    """A combined controller list is not the devices controller.

    A path keeps its colons and odd line separators.
    """
    text = "9:name=systemd:/s\n5:devices:/a:b\x85c\n4:cpu,devices:/x\n0::/u\n"
    assert cgroup.parse_membership(text) == ("/a:b\x85c", "/u")
    assert cgroup.parse_membership("4:cpu,devices:/x\n0::/u\n") == (None, "/u")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5:devices\n", "malformed cgroup entry: 5:devices"),
        ("4:cpu:/\n", "no devices or unified cgroup entries found"),
        ("", "no devices or unified cgroup entries found"),
    ],
)
def test_membership_errors_have_the_reference_words(text: str, message: str) -> None:
    """A malformed line and the absence of both entries are errors in the reference's words."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        cgroup.parse_membership(text)


@pytest.mark.parametrize(
    ("v1_path", "v2_path", "mounts", "version"),
    [
        ("/c", "/c", (V1, V2), 1),  # hybrid host
        ("/c", None, (V1,), 1),  # v1 host
        ("/", None, (V1,), 1),
        ("/", "/c", (V1, V2), 2),  # a runtime that uses v2 on a hybrid host
        ("/", "/", (V1, V2), 2),
        ("/", "/", (V1,), 1),  # no other hierarchy is mounted
        ("/c", "/c", (V2,), 2),  # a mount namespace that shows only v2
        ("/", "/c", (V2,), 2),
        (None, "/c", (V1, V2), 2),
        (None, "/c", (V2,), 2),
    ],
)
def test_choice_of_the_version(
    v1_path: str | None, v2_path: str | None, mounts: tuple[Mount, ...], version: int
) -> None:
    """V1 is chosen when its hierarchy is mounted here and the process is not in its root.

    Otherwise v2 is chosen, if there is one.
    """
    expected = (1, v1_path, V1) if version == 1 else (2, v2_path, V2)
    assert cgroup.choose(v1_path, v2_path, mounts) == expected


@pytest.mark.parametrize(
    ("v1_path", "v2_path", "mounts", "message"),
    [
        (
            "/c",
            None,
            (V2,),
            "no cgroup filesystem mounted for the devices subsytem in mountinfo file",
        ),
        (None, "/c", (V1,), "no cgroup2 filesystem in mountinfo file"),
        ("/c", "/c", (), "no cgroup2 filesystem in mountinfo file"),
        (
            None,
            "/c",
            (mount("/../x", "/sys/fs/cgroup", "cgroup2"),),
            r"relative path in mount prefix: /\.\./x",
        ),
        (
            "/c",
            "/c",
            (mount("/..", "/sys/fs/cgroup/devices", "cgroup"), V2),
            r"relative path in mount prefix: /\.\.",
        ),
    ],
)
def test_choice_errors_have_the_reference_words(
    v1_path: str | None, v2_path: str | None, mounts: tuple[Mount, ...], message: str
) -> None:
    """A hierarchy that is not mounted, or starts outside of the cgroup namespace, is an error."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        cgroup.choose(v1_path, v2_path, mounts)


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/", "/", "."),
        ("/", "/a/b", "a/b"),
        ("/docker/x", "/docker/x/c", "c"),
        ("/docker/x", "/docker/x", "."),
        ("/docker/x", "/docker/xy", "docker/xy"),
        ("/docker/x", "/other", "other"),
    ],
)
def test_mount_prefix_is_stripped_from_the_start(root: str, path: str, expected: str) -> None:
    """The mount's root is removed from a path below it, in whole components only."""
    assert cgroup.below(mount(root, "/m", "cgroup"), path) == expected


@pytest.mark.parametrize(
    ("device_list", "expected"),
    [
        ("", ["c 195:0 rw", "c 195:255 rw"]),
        ("a *:* rwm\n", []),
        ("c *:* m\nb *:* rwm\nc 1:3 rwm\n", ["c 195:0 rw", "c 195:255 rw"]),
        ("c 195:* rw\n", []),
        ("c *:255 rwm\n", ["c 195:0 rw"]),
        ("c 195:0 rwm\nc 195:255 r\n", ["c 195:255 w"]),
        ("c 195:* r\nc 195:* w\n", ["c 195:0 rw", "c 195:255 rw"]),
    ],
)
def test_v1_writes_only_what_is_missing(device_list: str, expected: list[str]) -> None:
    """A node that one entry of devices.list allows whole gets no line.

    For any other node the letters that its own entry lacks are added.
    """
    missing = cgroup.missing_rules(device_list, (GPU, CONTROL))
    assert [f"c {rule.major}:{rule.minor} {rule.access}" for rule in missing] == expected


class Host:
    """A directory with a procfs of texts and one cgroup hierarchy.

    The hierarchy is on a real mount, which the mount table names.
    """

    PID = 4711

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        self.cgroup = root / ("devices" if version == 1 else "unified") / "c"
        self.cgroup.mkdir(parents=True)
        (self.cgroup / "cgroup.procs").write_text(f"1\n{self.PID}\n")
        for directory in (f"proc/{self.PID}", "proc/self"):
            (root / directory).mkdir(parents=True)
        self.say("5:devices:/c\n" if version == 1 else "0::/c\n")
        fd = os.open(root, os.O_PATH)
        self.mount_id = syscalls.mount_id(fd)
        os.close(fd)
        self.mount(self.line(self.mount_id, self.cgroup.parent))

    def say(self, text: str) -> None:
        """Set the text of /proc/PID/cgroup."""
        (self.root / f"proc/{self.PID}/cgroup").write_text(text)

    def line(self, number: int, point: Path) -> str:
        fstype = "cgroup" if self.version == 1 else "cgroup2"
        return f"{number} 1 0:33 / {point} rw - {fstype} cgroup rw\n"

    def mount(self, text: str) -> None:
        """Set the text of the mount table."""
        (self.root / "proc/self/mountinfo").write_text(text)

    def find(self) -> DeviceCgroup:
        return cgroup.find_cgroup(self.PID, str(self.root / "proc"))

    def refusal(self) -> str:
        """Return stage and text of find()'s refusal.

        Its hint must name the option to set, and no descriptor may stay open.
        """
        with nothing_stays_open(), pytest.raises(Refusal) as caught:
            self.find()
        assert "no-cgroups = true" in caught.value.hint
        return f"{caught.value.stage}: {caught.value.text}"


NO_VERSION = "container: failed to get device cgroup version"
NO_MOUNT_PATH = "container: failed to get device cgroup mount path"
NO_ROOT_PATH = "container: failed to get device cgroup root path"


@pytest.fixture(params=[1, 2])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Make a host with cgroup v1, and one with v2."""
    return Host(tmp_path, request.param)


def test_find_opens_the_cgroup_of_the_process(host: Host) -> None:
    """The cgroup below the hierarchy's mount is opened, with its version and path."""
    device_cgroup = host.find()
    assert (device_cgroup.version, device_cgroup.path, device_cgroup.is_root) == (
        host.version,
        str(host.cgroup),
        False,
    )
    device_cgroup.close()


def test_find_knows_the_root(host: Host) -> None:
    """The root of a hierarchy is device_cgroup and marked as such."""
    host.say("5:devices:/\n" if host.version == 1 else "0::/\n")
    (host.cgroup.parent / "cgroup.procs").write_text(f"{Host.PID}\n")
    device_cgroup = host.find()
    assert (device_cgroup.path, device_cgroup.is_root) == (str(host.cgroup.parent), True)
    device_cgroup.close()


def test_find_skips_mounts_that_cannot_be_reached(host: Host) -> None:
    """A mount whose mount point now shows another mount, or nothing, is skipped."""
    name = host.cgroup.parent.name
    hidden, gone = host.root / "hidden" / name, host.root / "gone" / name
    hidden.mkdir(parents=True)
    reachable = host.line(host.mount_id, host.cgroup.parent)
    host.mount(host.line(host.mount_id + 1, hidden) + host.line(host.mount_id, gone) + reachable)
    device_cgroup = host.find()
    assert device_cgroup.path == str(host.cgroup)
    device_cgroup.close()
    host.mount(host.line(host.mount_id + 1, hidden))
    filesystem = "cgroup2 filesystem"
    if host.version == 1:
        filesystem = "cgroup filesystem mounted for the devices subsytem"
    assert host.refusal() == f"{NO_MOUNT_PATH}: no {filesystem} in mountinfo file"


def test_find_refuses_a_process_that_is_not_a_member(host: Host) -> None:
    """A cgroup that does not list the process is not its cgroup.

    A number in it that only starts with the pid does not count.
    """
    (host.cgroup / "cgroup.procs").write_text(f"{Host.PID}0\n")
    assert host.refusal() == f"{NO_ROOT_PATH}: process 4711 is not a member of {host.cgroup}"
    (host.cgroup / "cgroup.procs").unlink()
    assert host.refusal() == f"{NO_ROOT_PATH}: no such file or directory"


def test_find_follows_no_symlink_and_no_way_up(host: Host) -> None:
    """A link below the hierarchy or a path out of it is refused with the directory's name."""
    controllers = "5:devices" if host.version == 1 else "0:"
    parent = host.cgroup.parent
    (parent / "link").symlink_to("c")
    expected = "mount: failed to add device rules: unable to open the cgroup path: open"
    host.say(f"{controllers}:/link\n")
    assert host.refusal() == f"{expected} {parent}/link: too many levels of symbolic links"
    host.say(f"{controllers}:/../proc\n")
    assert host.refusal() == f"{expected} {host.root}/proc: invalid cross-device link"
    host.say(f"{controllers}:/c (deleted)\n")
    assert host.refusal() == f"{expected} {parent}/c (deleted): no such file or directory"


def test_find_names_the_step_that_failed(host: Host) -> None:
    """A text that cannot be read or parsed is refused with the reference's phrase of that step."""
    host.mount("nonsense - cgroup2 none rw\n")
    assert host.refusal().startswith(f"{NO_MOUNT_PATH}: ")
    (host.root / "proc/self/mountinfo").unlink()
    assert host.refusal() == f"{NO_MOUNT_PATH}: no such file or directory"
    host.say("5:devices\n")
    assert host.refusal() == f"{NO_VERSION}: malformed cgroup entry: 5:devices"
    (host.root / "proc/4711/cgroup").unlink()
    assert host.refusal() == f"{NO_VERSION}: no such file or directory"


@pytest.fixture
def no_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when the v2 path calls bpf()."""

    def touched(command: int, attributes: object) -> int:
        raise AssertionError("bpf() called")

    monkeypatch.setattr(syscalls, "bpf", touched)


def v1_directory(tmp_path: Path, device_list: str, *, is_root: bool = False) -> DeviceCgroup:
    """Return a directory that looks like a v1 devices cgroup."""
    for name, text in (("devices.list", device_list), ("devices.allow", ""), ("devices.deny", "")):
        (tmp_path / name).write_text(text)
    return DeviceCgroup(
        1, "/sys/fs/cgroup/devices/c", os.open(tmp_path, os.O_RDONLY), is_root=is_root
    )


def test_v1_undo_denies_the_lines_that_were_allowed(tmp_path: Path, no_bpf: None) -> None:
    """Each missing line is written to devices.allow; undo writes the same to devices.deny.

    The newest line is denied first.
    """
    device_cgroup = v1_directory(tmp_path, "c 195:0 r\n")
    undo = UndoLog()
    device_cgroup.allow((GPU, CONTROL), undo)
    assert (tmp_path / "devices.allow").read_text() == "c 195:0 wc 195:255 rw"
    assert (tmp_path / "devices.deny").read_text() == ""
    assert undo.run() == []
    assert (tmp_path / "devices.deny").read_text() == "c 195:255 rwc 195:0 w"
    device_cgroup.close()


@pytest.mark.parametrize("device_list", ["a *:* rwm\n", "c 195:* rw\n"])
def test_v1_with_nothing_missing_writes_nothing(
    tmp_path: Path, no_bpf: None, device_list: str
) -> None:
    """Where all is allowed already, even in the root cgroup, nothing is written or undone."""
    device_cgroup = v1_directory(tmp_path, device_list, is_root=True)
    undo = UndoLog()
    device_cgroup.allow((GPU, CONTROL), undo)
    assert (tmp_path / "devices.allow").read_text() == ""
    assert len(undo) == 0
    device_cgroup.close()


def test_v1_root_is_never_changed(tmp_path: Path, no_bpf: None) -> None:
    """A root cgroup that lacks a rule is refused, and the hint names the option to set."""
    device_cgroup = v1_directory(tmp_path, "", is_root=True)
    with pytest.raises(Refusal, match="root cgroup") as caught:
        device_cgroup.allow((GPU,), UndoLog())
    assert (caught.value.stage, "no-cgroups = true" in caught.value.hint) == ("mount", True)
    assert (tmp_path / "devices.allow").read_text() == ""
    device_cgroup.close()


@pytest.mark.parametrize(
    ("device_list", "left"),
    [
        ("", []),
        (
            "c 195:0 rw\n",
            ["device rule c 195:0 rw of /sys/fs/cgroup/devices/c (Operation not permitted)"],
        ),
    ],
)
def test_v1_refused_line_is_named_and_undo_tells_what_stays(
    tmp_path: Path, no_bpf: None, monkeypatch: pytest.MonkeyPatch, device_list: str, left: list[str]
) -> None:
    """The refusal names the line that the kernel refuses.

    When denying is refused as well, undo reports the lines that are still in devices.list.
    """
    device_cgroup = v1_directory(tmp_path, "")
    written = []

    def write(fd: int, data: bytes) -> int:
        written.append(data)
        if len(written) > 1:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return len(data)

    undo = UndoLog()
    with monkeypatch.context() as patch:
        patch.setattr(posix, "write", write)
        with pytest.raises(Refusal) as caught:
            device_cgroup.allow((GPU, CONTROL), undo)
        (tmp_path / "devices.list").write_bytes(device_list.encode())
        assert undo.run() == left
    assert written == [b"c 195:0 rw", b"c 195:255 rw", b"c 195:255 rw", b"c 195:0 rw"]
    assert caught.value.text == (
        "failed to add device rules: /sys/fs/cgroup/devices/c/devices.allow: c 195:255 rw:"
        " operation not permitted"
    )
    device_cgroup.close()


def test_without_rules_the_cgroup_is_not_looked_at(no_bpf: None) -> None:
    """A plan without device rules does not look at the cgroup."""
    for version in (1, 2):
        DeviceCgroup(version, "/c", -1, is_root=True).allow((), UndoLog())


# Instructions

MNEMONICS = {0x61: "ldxw", 0xBF: "mov", 0xB7: "movi", 0x57: "and", 0x55: "jne", 0x95: "exit"}
ORIGINAL = 7
#: `r0 = 7; exit`: the program that was attached before.
ORIGINAL_CODE = struct.pack("<BBhiBBhi", 0xB7, 0, 0, ORIGINAL, 0x95, 0, 0, 0)
READ, WRITE, MKNOD = 2, 4, 1


def execute(code: bytes, kind: int, access: int, major: int, minor: int) -> int:
    """Run a device program on one access request like the kernel's interpreter; return its r0."""
    context = struct.pack("<III", access << 16 | kind, major, minor)
    registers = [0] * 11
    instructions = list(struct.iter_unpack("<BBhi", code))
    position = 0
    while True:
        operation, pair, offset, immediate = instructions[position]
        destination, source = pair & 15, pair >> 4
        position += 1
        match MNEMONICS[operation]:
            case "ldxw":
                assert source == 1
                registers[destination] = struct.unpack_from("<I", context, offset)[0]
            case "mov":
                registers[destination] = registers[source]
            case "movi":
                registers[destination] = immediate & (1 << 64) - 1
            case "and":
                registers[destination] &= immediate & (1 << 64) - 1
            case "jne":
                if registers[destination] != immediate & (1 << 64) - 1:
                    assert offset > 0
                    position += offset
            case "exit":
                return registers[0]


RULES = st.lists(
    st.builds(
        AllowDevice,
        st.integers(0, 3),
        st.integers(0, 3),
        st.just(WHY),
        st.sampled_from(["r", "w", "rw"]),
    ),
    max_size=8,
)


@given(RULES, st.sampled_from([1, 2]), st.integers(0, 7), st.integers(0, 3), st.integers(0, 3))
def test_program_allows_exactly_the_rules(
    rules: list[AllowDevice], kind: int, access: int, major: int, minor: int
) -> None:
    """A request gets 1 when a rule names the node and all its letters, without mknod.

    Otherwise the original program decides.
    """
    granted = any(
        kind == 2
        and (rule.major, rule.minor) == (major, minor)
        and not access & ~sum({"r": READ, "w": WRITE}[x] for x in rule.access)
        for rule in rules
    )
    assert execute(bpf.allow_code(rules) + ORIGINAL_CODE, kind, access, major, minor) == (
        1 if granted else ORIGINAL
    )


def test_program_never_allows_mknod_or_block_devices() -> None:
    """The original program decides on every mknod, and on the block device of the same number."""
    code = bpf.allow_code([GPU]) + ORIGINAL_CODE
    assert {access: execute(code, 2, access, 195, 0) for access in range(8)} == {
        access: ORIGINAL if access & MKNOD else 1 for access in range(8)
    }
    assert {execute(code, 1, access, 195, 0) for access in range(8)} == {ORIGINAL}


def test_program_with_more_nodes_than_a_jump_can_reach() -> None:
    """Rules for twenty thousand nodes of one major number all work, and so does the code after
    them.
    """
    code = bpf.allow_code([AllowDevice(195, minor, WHY) for minor in range(20_000)]) + ORIGINAL_CODE
    assert [execute(code, 2, READ, 195, minor) for minor in (0, 8191, 8192, 19_999, 20_000)] == [
        1,
        1,
        1,
        1,
        ORIGINAL,
    ]
    assert execute(code, 2, READ, 196, 0) == ORIGINAL


# A kernel of device programs


class FakeKernel:
    """The five bpf() commands in use, over dictionaries.

    Descriptors are real ones; a program's id is its descriptor + 1000.
    """

    def __init__(self) -> None:
        self.flags = 2
        self.originals: list[int] = []
        self.attached: list[int] = []
        self.code: dict[int, bytes] = {}
        self.maps: dict[int, int] = {}
        self.linked: set[int] = set()
        self.calls: list[int] = []
        self.fail: Callable[[int], int] = lambda command: 0
        self.rewrite: Callable[[bytes], bytes] = lambda code: code

    def add(self, code: bytes) -> int:
        fd = os.open("/dev/null", os.O_RDONLY)
        self.code[fd] = code
        self.originals.append(fd)
        self.attached.append(fd)
        return fd

    def bpf(self, command: int, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        self.calls.append(command)
        number = self.fail(command)
        if number:
            raise syscalls.SyscallError(number, f"bpf(command {command})")
        return {16: self.query, 13: self.open, 15: self.info, 5: self.load, 8: self.attach}[
            command
        ](attributes)

    def query(self, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        _, kind, _, _, address, room = struct.unpack_from("=IIIIQI", attributes)
        assert kind == 6
        struct.pack_into("=I", attributes, 12, self.flags)
        struct.pack_into("=I", attributes, 24, len(self.attached))
        if room < len(self.attached):
            raise syscalls.SyscallError(errno.ENOSPC, "bpf(command 16)")
        ctypes.memmove(
            address,
            b"".join(struct.pack("=I", fd + 1000) for fd in self.attached),
            4 * len(self.attached),
        )
        return 0

    def open(self, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        original = struct.unpack_from("=I", attributes)[0] - 1000
        fd = os.dup(original)
        self.code[fd] = self.code[original]
        self.maps[fd] = self.maps.get(original, 0)
        self.attached[self.attached.index(original)] = fd  # the same program by another descriptor
        if original in self.linked:
            self.linked.add(fd)
        return fd

    def info(self, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        fd, _, address = struct.unpack_from("=IIQ", attributes)
        info = (ctypes.c_char * 64).from_address(address)
        room, code = struct.unpack_from("=I", info, 20)[0], self.code[fd]
        ctypes.memmove(struct.unpack_from("=Q", info, 32)[0], code, min(room, len(code)))
        struct.pack_into("=I", info, 4, fd + 1000)
        struct.pack_into("=I", info, 20, len(code))
        struct.pack_into("=I", info, 52, self.maps.get(fd, 0))
        return 0

    def load(self, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        kind, count, code, licence = struct.unpack_from("=IIQQ", attributes)
        assert (kind, ctypes.string_at(licence)) == (15, b"Apache")
        fd = os.open("/dev/null", os.O_RDONLY)
        self.code[fd] = self.rewrite(ctypes.string_at(code, count * 8))
        return fd

    def attach(self, attributes: "ctypes.Array[ctypes.c_char]") -> int:
        _, new, kind, how, old = struct.unpack_from("=IIIII", attributes)
        assert kind == 6
        if how == 6:
            if old not in self.attached or old in self.linked:
                raise syscalls.SyscallError(errno.ENOENT, "bpf(command 8)")
            self.attached[self.attached.index(old)] = new
        else:
            assert how == self.flags
            self.attached[0] = new
        return 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    """Put a fake kernel in place of bpf(), and fail the test when the v1 path is used."""
    fake = FakeKernel()
    monkeypatch.setattr(syscalls, "bpf", fake.bpf)

    def touched(device_list: str, rules: object) -> list[str]:
        raise AssertionError("v1 touched")

    monkeypatch.setattr(cgroup, "missing_rules", touched)
    yield fake
    for fd in fake.originals:
        os.close(fd)


@pytest.fixture
def v2() -> Iterator[DeviceCgroup]:
    """Make a v2 cgroup whose descriptor only the fake kernel looks at."""
    device_cgroup = DeviceCgroup(2, "/sys/fs/cgroup/c", os.open("/", os.O_RDONLY), is_root=False)
    yield device_cgroup
    device_cgroup.close()


OTHER = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)


def test_v2_extends_every_program_and_undo_puts_all_back(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """Each attached program is replaced by the rules followed by its own instructions.

    Undo restores every program.
    """
    kernel.add(ORIGINAL_CODE)
    kernel.add(OTHER)
    undo = UndoLog()
    v2.allow((GPU, CONTROL), undo)
    prefix = bpf.allow_code((GPU, CONTROL))
    assert [kernel.code[fd] for fd in kernel.attached] == [prefix + ORIGINAL_CODE, prefix + OTHER]
    assert undo.run() == []
    assert [kernel.code[fd] for fd in kernel.attached] == [ORIGINAL_CODE, OTHER]


@pytest.mark.parametrize("flags", [0, 1])
def test_v2_exclusive_program_is_exchanged_with_its_own_flags(
    kernel: FakeKernel, v2: DeviceCgroup, flags: int
) -> None:
    """A program attached without ALLOW_MULTI is replaced by attaching with the same flags.

    Undo restores it in the same way.
    """
    kernel.flags = flags
    kernel.add(ORIGINAL_CODE)
    undo = UndoLog()
    v2.allow((GPU,), undo)
    assert kernel.code[kernel.attached[0]] == bpf.allow_code((GPU,)) + ORIGINAL_CODE
    assert undo.run() == []
    assert kernel.code[kernel.attached[0]] == ORIGINAL_CODE


def test_v2_without_programs_allows_everything_already(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """A cgroup without programs needs no change, the root cgroup included."""
    undo = UndoLog()
    v2.is_root = True
    v2.allow((GPU,), undo)
    assert (kernel.calls, len(undo)) == ([16], 0)


def test_v2_root_is_never_changed(kernel: FakeKernel, v2: DeviceCgroup) -> None:
    """A root cgroup with a program is refused, and the hint names the option to set."""
    kernel.add(ORIGINAL_CODE)
    v2.is_root = True
    with pytest.raises(Refusal, match="root cgroup") as caught:
        v2.allow((GPU,), UndoLog())
    assert (caught.value.stage, "no-cgroups = true" in caught.value.hint, kernel.calls) == (
        "mount",
        True,
        [16],
    )


def test_v2_hundred_programs_are_queried_again_with_more_room(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """More programs than the first query has room for are all extended."""
    for _ in range(100):
        kernel.add(ORIGINAL_CODE)
    v2.allow((GPU,), UndoLog())
    assert {kernel.code[fd] for fd in kernel.attached} == {bpf.allow_code((GPU,)) + ORIGINAL_CODE}
    assert kernel.calls.count(16) == 2


def test_v2_number_of_programs_that_never_settles_ends(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """The programs are queried ten times at most."""
    kernel.fail = lambda command: errno.ENOSPC if command == 16 else 0
    with pytest.raises(Refusal, match="does not stop growing"):
        v2.allow((GPU,), UndoLog())
    assert kernel.calls == [16] * 10


def test_v2_linked_program_is_refused_and_the_others_come_back(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """A program that a BPF link holds cannot be replaced, and the refusal says so.

    Undo restores the programs before it.
    """
    kernel.add(ORIGINAL_CODE)
    kernel.linked.add(kernel.add(OTHER))
    undo = UndoLog()
    with pytest.raises(Refusal, match=r"^failed to add device rules: .* attached by a BPF link$"):
        v2.allow((GPU,), undo)
    assert undo.run() == []
    assert [kernel.code[fd] for fd in kernel.attached] == [ORIGINAL_CODE, OTHER]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (struct.pack("<BBhi", 0x85, 0, 0, 7) + ORIGINAL_CODE, "calls functions"),
        (struct.pack("<BBhi", 0x85, 1 << 4, 0, 1) + ORIGINAL_CODE, "calls functions"),
        (
            struct.pack("<BBhiBBhi", 0x18, 2 | 1 << 4, 0, 3, 0, 0, 0, 0) + ORIGINAL_CODE,
            "calls functions",
        ),
        (struct.pack("<BBhi", 0xB7, 11, 0, 3) + ORIGINAL_CODE, "net.core.bpf_jit_harden"),
        (b"", "operation not permitted"),
    ],
)
def test_v2_program_that_would_not_mean_the_same_is_refused_unloaded(
    kernel: FakeKernel, v2: DeviceCgroup, code: bytes, message: str
) -> None:
    """Programs whose code the kernel shows rewritten are refused before anything changes.

    These are programs with calls, addresses or blinded constants.
    """
    kernel.add(ORIGINAL_CODE)
    kernel.add(code)
    undo = UndoLog()
    with pytest.raises(Refusal, match=message):
        v2.allow((GPU,), undo)
    assert 8 not in kernel.calls
    assert len(undo) == 0


def test_v2_plain_constant_of_64_bits_is_kept(kernel: FakeKernel, v2: DeviceCgroup) -> None:
    """A 64-bit constant is kept, even when its second half looks like a call."""
    constant = struct.pack("<BBhiBBhi", 0x18, 2, 0, 3, 0, 0, 0, 0x85)
    kernel.add(constant + ORIGINAL_CODE)
    v2.allow((GPU,), UndoLog())
    assert kernel.code[kernel.attached[0]].endswith(constant + ORIGINAL_CODE)


def test_v2_program_with_maps_is_refused(kernel: FakeKernel, v2: DeviceCgroup) -> None:
    """A program with maps is refused before anything changes."""
    kernel.maps[kernel.add(ORIGINAL_CODE)] = 1
    with pytest.raises(Refusal, match="uses maps"):
        v2.allow((GPU,), UndoLog())
    assert 5 not in kernel.calls


def test_v2_program_that_the_kernel_changes_while_loading_is_refused(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """A loaded program that differs from the one that was meant is refused."""
    kernel.add(ORIGINAL_CODE)
    kernel.rewrite = lambda code: code[:-8] + struct.pack("<BBhi", 0x05, 0, 0, 0) + code[-8:]
    with pytest.raises(Refusal, match="the kernel changes it while loading"):
        v2.allow((GPU,), UndoLog())
    assert 8 not in kernel.calls


def test_v2_load_that_a_signal_interrupts_is_repeated(kernel: FakeKernel, v2: DeviceCgroup) -> None:
    """Loading is repeated after four interruptions; a fifth one is a refusal."""
    kernel.add(ORIGINAL_CODE)
    kernel.fail = lambda command: errno.EAGAIN if command == 5 and kernel.calls.count(5) < 5 else 0
    v2.allow((GPU,), UndoLog())
    assert kernel.calls.count(5) == 5
    kernel.fail = lambda command: errno.EAGAIN if command == 5 else 0
    with pytest.raises(
        Refusal, match="unable to load the extended device filter: resource temporarily unavailable"
    ):
        v2.allow((GPU,), UndoLog())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            16,
            (
                "unable to find any existing device filters attached to the cgroup: "
                "bpf_prog_query(BPF_CGROUP_DEVICE) failed: "
            ),
        ),
        (13, "unable to open device filter "),
        (15, "unable to read a device filter: "),
        (5, "unable to load the extended device filter: "),
        (
            8,
            (
                "unable to attach new device filters program: "
                "bpf_prog_attach(BPF_CGROUP_DEVICE) failed: "
            ),
        ),
    ],
)
def test_v2_each_call_that_fails_is_named_and_leaves_the_programs(
    kernel: FakeKernel, v2: DeviceCgroup, command: int, message: str
) -> None:
    """Each of the five bpf() calls that fails is a refusal that names it and the option to set.

    The old programs stay.
    """
    kernel.add(ORIGINAL_CODE)
    kernel.fail = lambda called: errno.EPERM if called == command else 0
    undo = UndoLog()
    with pytest.raises(Refusal) as caught:
        v2.allow((GPU,), undo)
    assert caught.value.text.startswith(f"failed to add device rules: {message}")
    assert caught.value.text.endswith("operation not permitted")
    assert (caught.value.stage, "no-cgroups = true" in caught.value.hint) == ("mount", True)
    kernel.fail = lambda called: 0
    assert undo.run() == []
    assert [kernel.code[fd] for fd in kernel.attached] == [ORIGINAL_CODE]


@pytest.mark.parametrize(
    ("number", "left"),
    [
        (errno.EPERM, ["device rules of /sys/fs/cgroup/c (Operation not permitted)"]),
        (errno.ENOENT, []),
    ],
)
def test_v2_undo_that_fails_names_the_cgroup(
    kernel: FakeKernel, v2: DeviceCgroup, number: int, left: list[str]
) -> None:
    """Undo names the cgroup when our program has to stay.

    If the program or the cgroup is gone, nothing is left.
    """
    kernel.add(ORIGINAL_CODE)
    undo = UndoLog()
    v2.allow((GPU,), undo)
    kernel.fail = lambda called: number if called == 8 else 0
    assert undo.run() == left


def test_v2_undo_of_an_exchange_that_was_refused_leaves_nothing(
    kernel: FakeKernel, v2: DeviceCgroup
) -> None:
    """An exchange that the kernel refused leaves nothing to report, even if undo is refused as
    well.
    """
    kernel.add(ORIGINAL_CODE)
    kernel.fail = lambda called: errno.E2BIG if called == 8 else 0
    undo = UndoLog()
    with pytest.raises(Refusal, match="as many as the kernel takes"):
        v2.allow((GPU,), undo)
    assert undo.run() == []
