"""Plans as text for people."""

import pytest

import hosts
from hosts import full_host, mig_host, plan
from nvgraft.base.finding import Finding
from nvgraft.plan.actions import Injection, Plan
from nvgraft.request.request import Request
from nvgraft_cli.shell.text import render, size

ALL = "compat32,compute,display,graphics,ngx,utility,video"


def lines(decided: Plan) -> list[str]:
    return render(decided, colour=False).split("\n")


def section(decided: Plan, title: str) -> list[str]:
    """Return the indented lines below the line that starts with ``title``."""
    text = lines(decided)
    start = next(number for number, line in enumerate(text) if line.startswith(title))
    end = next(
        (number for number in range(start + 1, len(text)) if not text[number].startswith("  ")),
        len(text),
    )
    return [line.strip() for line in text[start + 1 : end]]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (30 << 20, "30.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    """A size is a short number with a binary unit."""
    assert size(count) == text


def test_the_head_has_decision_host_request_and_rootfs() -> None:
    """Decision and reason come first, then host, request and rootfs."""
    injection = plan(full_host(root="/drv"), devices="1,0", requirements=("cuda>=12",))
    assert lines(injection)[:6] == [
        "inject: the container asks for 1, 0",
        "  host      test-host at /drv: driver 535.1, CUDA 12.2",
        "  devices   1,0  ()",
        "  driver    compute, utility  ()",
        "  requires  cuda>=12",
        "  rootfs    /b/rootfs: libraries go to /usr/lib/x86_64-linux-gnu",
    ]
    assert lines(plan(full_host()))[1] == "  host      test-host: driver 535.1, CUDA 12.2"
    assert lines(plan(full_host(), capabilities="", devices=""))[2:4] == [
        "  devices   none  ()",
        "  driver    no capability  ()",
    ]


@pytest.mark.parametrize("decision", ["skip", "refuse"])
def test_other_decisions_are_one_line(decision: str) -> None:
    """A plan without actions is one line."""
    assert lines(Plan(decision, "because")) == [f"{decision}: because"]


def test_files_are_grouped_by_capability() -> None:
    """Files are grouped by capability, with number and total size, each with its size, source and
    target.
    """
    injection = plan(full_host())
    assert "compute  2 files, 1.0 KiB" in lines(injection)
    assert section(injection, "utility  2 files") == [
        "nvidia-smi                   0 B  /usr/bin",
        "libnvidia-ml.so.535.1    1.0 KiB  /usr/lib -> /usr/lib/x86_64-linux-gnu",
    ]
    assert section(injection, "always  1 file,") == [
        "gsp_tu10x.bin        0 B  /lib/firmware/nvidia/535.1"
    ]


def test_every_mount_is_shown_once() -> None:
    """Every mount of a plan is in its text, and no section occurs twice."""
    for injection in (
        plan(full_host(), capabilities=ALL),
        plan(mig_host(), mig_config="all"),
        plan(mig_host(), devices="0:0"),
    ):
        text = render(injection, colour=False)
        for action in hosts.binds(injection).values():
            name = (
                action.target
                if action.kind != "file" or action.origin == "proc"
                else action.source.rpartition("/")[2]
            )
            assert name in text
        for title in ("sockets and directories", "devices", "the driver's own files"):
            assert text.count(f"\n{title}\n") <= 1


def test_a_driver_root_below_dev_changes_nothing_but_paths() -> None:
    """A driver root below /dev changes only paths: the plan says what each mount is."""
    hosts_by_root = {root: mig_host(root=root) for root in ("/srv/shm/x", "/dev/shm/x")}
    elsewhere, below_dev = (
        render(plan(host, capabilities=ALL, mig_config="all"), colour=False)
        for host in hosts_by_root.values()
    )
    assert below_dev == elsewhere.replace("/srv/shm/x", "/dev/shm/x")


def test_sockets_and_directories_have_their_own_section() -> None:
    """Sockets and directories have their own section, without device directories and /proc
    entries.
    """
    assert section(plan(full_host()), "sockets and directories") == [
        "/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
    ]
    assert (
        section(plan(full_host(), "/tmp -> /t"), "sockets and directories")[1]
        == "/tmp/nvidia-mps -> /t/nvidia-mps"
    )


def test_devices_show_their_number_and_whether_they_are_allowed() -> None:
    """A device has its number and whether it is allowed; a mounted device that is not allowed has
    the reason.
    """
    assert [line.split() for line in section(plan(full_host(), devices="0"), "devices")] == [
        ["/dev/nvidiactl", "195:255", "allowed", "nvidiactl"],
        ["/dev/nvidia-uvm", "510:0", "allowed", "nvidia-uvm"],
        ["/dev/nvidia-uvm-tools", "510:1", "allowed", "nvidia-uvm-tools"],
        ["/dev/nvidia0", "195:0", "allowed", "GPU", "0"],
    ]
    assert all(
        "not allowed: no-cgroups = true" in line
        for line in section(plan(full_host(), cgroups=False), "devices")
    )


def test_devices_that_are_only_allowed_are_counted() -> None:
    """Numbers that MIG administration allows are counted: their nodes are in one mounted
    directory.
    """
    rows = section(plan(mig_host(), mig_config="all"), "devices")
    assert any(line.split()[:2] == ["/dev/nvidia-caps", "directory"] for line in rows)
    assert rows[-1] == "and 3 more device number(s) allowed: 236:1 to 236:13"


def test_the_drivers_own_files_have_a_section() -> None:
    """The driver's own files are the tmpfs over its directory and the binds in it."""
    rows = section(plan(full_host(), devices="0"), "the driver's own files")
    assert rows == [
        "/proc/driver/nvidia  tmpfs",
        "/proc/driver/nvidia/gpus/0000:01:00.0  bind",
    ]


def test_links_name_their_maker() -> None:
    """A link is marked as the plan's own or as one of the loader cache step."""
    rows = section(plan(full_host(), capabilities="compute"), "links")
    assert [line.split() for line in rows] == [
        ["libcuda.so", "->", "libcuda.so.1", "nvgraft"],
        ["libcuda.so.1", "->", "libcuda.so.535.1", "loader", "cache", "step"],
    ]


def test_the_loader_cache_names_its_directories() -> None:
    """The loader cache line has the directories in order."""
    assert "loader cache  rebuilt with /usr/lib/x86_64-linux-gnu, /usr/lib/i386-linux-gnu" in lines(
        plan(full_host())
    )


def test_findings_come_with_their_hint() -> None:
    """A finding has level, id and message on one line, and its hint below."""
    injection = plan(full_host(gpus=[]))
    assert section(injection, "findings")[:2] == [
        (
            "warning no-gpu: NVML reports no GPU: the container gets driver files and control"
            " devices only"
        ),
        "run nvidia-smi -L on the host",
    ]


def test_colour_is_only_added() -> None:
    """The coloured text without escape sequences is the plain text."""
    injection = plan(full_host(gpus=[]))
    coloured = render(injection, colour=True)
    assert "\x1b[1m" in coloured
    assert "\x1b[33mwarning\x1b[0m" in coloured
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"):
        coloured = coloured.replace(code, "")
    assert coloured == render(injection, colour=False)


def test_names_cannot_control_the_terminal() -> None:
    """Control characters in names of an image or a foreign host are escaped, and a name stays on
    one line.
    """
    evil = "\x1b]0;owned\x07\x9b31m\nforged: line\udcff"
    document = full_host(f"/opt/{'x'}.535.1")
    document["name"] = evil
    injection = plan(document, hosts.target(label=f"/b/{evil}"))
    injection = Injection(
        evil,
        injection.host,
        Request((evil,), injection.request.capabilities),
        injection.target,
        injection.actions,
        ((f"/{evil}", evil),),
        (Finding("id", "info", evil, evil),),
    )
    text = render(injection, colour=False)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "\nforged" not in text
    assert text.count("\\x1b]0;owned\\x07") == 8
    assert text.encode()
