"""Fuzzed: what the machine, its kernel and the hook's own children and files say. Part of ``fuzzing.TARGETS``."""

from fuzz_checks import check_text
from nvgraft.apply import bpf, cgroup, journal
from nvgraft.base import jsontext
from nvgraft.base.errors import Refusal
from nvgraft.host import kept_inventory, nvml
from nvgraft.plan.actions import AllowDevice, Why
from nvgraft.request import requirements
from nvgraft.request.config import Config
from nvgraft.system import kept
from nvgraft.system.mountinfo import MountTable, mounts_of_type, parse_mountinfo
from nvgraft_cli.container_cli import options
from nvgraft_cli.container_cli.arguments import UsageFault
from nvgraft_cli.container_cli.command import printable_lines


def nvml_answer(data: bytes) -> None:
    """What the child in which NVML runs has written: paths, numbers of devices and documents are made of it."""
    try:
        report = nvml.parse_answer(data)
    except ValueError:
        return
    except Refusal as refusal:
        check_text(refusal.line())
        return
    for gpu in report.gpus:
        assert set(gpu.bus_id) <= set("0123456789abcdef:."), "a path of the host is made of it"
        assert all(0 <= number < 1 << 20 for number in (gpu.minor, gpu.brand))
        assert all(
            0 <= number < 1 << 20
            for mig in gpu.mig_devices
            for number in (mig.gpu_instance, mig.compute_instance)
        )
    repr(report).encode()


_KEY = ["a key"]
#: Below no directory: nothing of this machine is looked at.
_CONFIG = Config(cli_root="/dev/null")


def inventory_document(data: bytes) -> None:
    """A document of the inventory cache: as a file, and what is in it."""
    value = kept.parse(data, _KEY)
    assert value is None or data.startswith(b"nvgraft-cache/2 ")
    try:
        document = jsontext.loads(data, 1 << 24)
    except jsontext.JsonError:
        return
    signs = document.get("signs") if isinstance(document, dict) else None
    # (Escaped by who shows it.)
    assert isinstance(
        kept_inventory._difference(document, signs if isinstance(signs, dict) else {}, _CONFIG), str
    )
    if isinstance(document, dict):
        try:
            found = kept_inventory._kept(document)
        except kept_inventory._DAMAGE:
            return
        assert isinstance(found.report.gpus, tuple)


def kept_journal(data: bytes) -> None:
    """A journal as it is, and one whose records, the texts between empty lines, are whole."""
    for written in (data, b"".join(journal._frame(record) for record in data.split(b"\n\n"))):
        try:
            left = journal.parse("name", written, 7)
        except ValueError:
            continue
        if left.heading is None:
            continue
        records = [(journal._heading_record(left.heading), b""), *journal._records(left.entries)]
        again = b"".join(journal._frame(fields, content) + content for fields, content in records)
        # Entries with data come first when they are written again.
        assert sorted(journal.parse("name", again, 7).entries, key=repr) == sorted(
            left.entries, key=repr
        )


_RULES = [AllowDevice(195, minor, Why("", "", "")) for minor in (0, 255)]


def device_cgroup(data: bytes) -> None:
    """/proc/PID/cgroup, mountinfo and devices.list, with NULs between them."""
    membership, mounts, listed = (
        part.decode("utf-8", "surrogateescape") for part in [*data.split(b"\0", 2), b"", b""][:3]
    )
    try:
        paths = cgroup.parse_membership(membership)
        version, path, mount = cgroup.choose(
            *paths, cgroup.device_mounts(mounts_of_type(mounts, "cgroup", "cgroup2"))
        )
        assert version in (1, 2)
        assert not cgroup.below(mount, path).startswith("/")
    except ValueError as error:
        assert str(error)
    try:
        missing = list(cgroup.missing_rules(listed, _RULES))
    except ValueError:
        return
    # What is granted then: nothing is asked for a second time.
    granted = listed + "".join(f"\nc {rule.major}:{rule.minor} rw" for rule in missing)
    assert not list(cgroup.missing_rules(granted, _RULES)) or any(
        rule.access != "rw" for rule in missing
    )


def device_program(data: bytes) -> None:
    """The instructions of a device program that an engine has attached."""
    try:
        bpf.check_code(data)
    except bpf.ProgramError as error:
        check_text(str(error))
        return
    assert len(data) % 8 == 0
    # A call in the first half of an instruction is turned down, wherever it stands.
    assert data[:1] != b"\x85"


def command_line(data: bytes) -> None:
    """A command line of nvidia-container-cli, one word a line: other hooks put into it what a container asks for."""
    words = [
        word.decode("utf-8", "surrogateescape") for word in data.split(b"\n") if b"\0" not in word
    ]
    try:
        _, command, rest = options.parse_global(words, "nvgraft")
        if command == "info":
            options.parse_info(rest, "nvgraft")
        elif command == "list":
            options.parse_list(rest, "nvgraft")
        else:
            asked = options.parse_configure(rest, "nvgraft")
            requirements.check(asked.requirements, "535.104.05", "12.2", [("8.0", "Tesla")])
    except (options.Answered, UsageFault) as answer:
        check_text(printable_lines(str(answer)), one_line=False)
    except Refusal as refusal:
        check_text(refusal.line())


def mount_table(data: bytes) -> None:
    """Lines of mountinfo, looked up one by one instead of read in order."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        mounts = parse_mountinfo(text)
    except ValueError:
        return
    table = MountTable(text)
    for mount in mounts[:8]:
        found = table.get(mount.id)
        assert found is None or found.id == mount.id
