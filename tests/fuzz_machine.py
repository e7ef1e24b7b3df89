"""Fuzz targets for what the machine, its kernel and the hook's own children and files say.

Part of ``fuzzing.TARGETS``.
"""

from fuzz_checks import check_text
from nvgraft.apply import bpf, cgroup, journal, left_journal
from nvgraft.base import jsontext
from nvgraft.base.errors import Refusal, printable_lines
from nvgraft.host import kept_inventory, nvml
from nvgraft.plan.actions import AllowDevice, Why
from nvgraft.request import requirements
from nvgraft.request.config import Config
from nvgraft.system import kept
from nvgraft.system.mountinfo import MountTable, mounts_of_type, parse_mountinfo
from nvgraft_cli.container_cli import options
from nvgraft_cli.container_cli.arguments import UsageFault


def nvml_answer(data: bytes) -> None:
    """Parse the answer of the NVML child. Paths, device numbers and documents are made of it."""
    try:
        report = nvml.parse_answer(data)
    except ValueError:
        return
    except Refusal as refusal:
        check_text(refusal.line())
        return
    for gpu in report.gpus:
        assert set(gpu.bus_id) <= set("0123456789abcdef:."), "a host path is made of the bus id"
        assert all(0 <= number < 1 << 20 for number in (gpu.minor, gpu.brand))
        assert all(
            0 <= number < 1 << 20
            for mig in gpu.mig_devices
            for number in (mig.gpu_instance, mig.compute_instance)
        )
    repr(report).encode()


_KEY = ["a key"]
#: /dev/null is not a directory, so that no file of this machine is read.
_CONFIG = Config(cli_root="/dev/null")


def inventory_document(data: bytes) -> None:
    """Read a document of the kept inventory: as a kept file, and by its members."""
    value = kept.parse(data, _KEY)
    assert value is None or data.startswith(b"nvgraft-cache/2 ")
    try:
        document = jsontext.loads(data, 1 << 24)
    except jsontext.JsonError:
        return
    signs = document.get("signs") if isinstance(document, dict) else None
    # The command that prints this text escapes it.
    assert isinstance(
        kept_inventory._difference(document, signs if isinstance(signs, dict) else {}, _CONFIG), str
    )
    if isinstance(document, dict):
        try:
            inventory = kept_inventory._kept(document)
        except kept_inventory._DAMAGE:
            return
        assert isinstance(inventory.report.gpus, tuple)


def kept_journal(data: bytes) -> None:
    """Parse the data as a journal, and as records (the texts between empty lines) in frames."""
    for written in (data, b"".join(journal.frame(record) for record in data.split(b"\n\n"))):
        try:
            left = left_journal.parse("name", written, 7)
        except ValueError:
            continue
        if left.heading is None:
            continue
        records = [(journal.heading_record(left.heading), b""), *journal.records(left.entries)]
        again = b"".join(journal.frame(fields, content) + content for fields, content in records)
        # Written again, the entries with data come first.
        assert sorted(left_journal.parse("name", again, 7).entries, key=repr) == sorted(
            left.entries, key=repr
        )


_RULES = [AllowDevice(195, minor, Why("", "", "")) for minor in (0, 255)]


def device_cgroup(data: bytes) -> None:
    """Parse /proc/PID/cgroup, mountinfo and devices.list, separated by NULs."""
    membership, mounts, device_list = (
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
        missing = list(cgroup.missing_rules(device_list, _RULES))
    except ValueError:
        return
    # Once the missing rules are granted, none of them is missing again.
    granted = device_list + "".join(f"\nc {rule.major}:{rule.minor} rw" for rule in missing)
    assert not list(cgroup.missing_rules(granted, _RULES)) or any(
        rule.access != "rw" for rule in missing
    )


def device_program(data: bytes) -> None:
    """Check the instructions of a device program that an engine has attached."""
    try:
        bpf.check_code(data)
    except bpf.ProgramError as error:
        check_text(str(error))
        return
    assert len(data) % 8 == 0
    # An instruction that calls is refused at any place; the first one is checked here.
    assert data[:1] != b"\x85"


def command_line(data: bytes) -> None:
    """Parse a command line of nvidia-container-cli, one word a line.

    Other hooks put what a container asks for into it.
    """
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
            configure = options.parse_configure(rest, "nvgraft")
            requirements.check(configure.requirements, "535.104.05", "12.2", [("8.0", "Tesla")])
    except (options.Answered, UsageFault) as answer:
        check_text(printable_lines(str(answer)), one_line=False)
    except Refusal as refusal:
        check_text(refusal.line())


def mount_table(data: bytes) -> None:
    """Look up the lines of mountinfo one by one instead of reading them in order."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        mounts = parse_mountinfo(text)
    except ValueError:
        return
    table = MountTable(text)
    for mount in mounts[:8]:
        row = table.get(mount.id)
        assert row is None or row.id == mount.id
