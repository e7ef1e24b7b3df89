"""Plans as text for people: assertions are on the lines that a reader looks for."""

import pytest

import hosts
from hosts import full_host, mig_host, plan
from nvgraft.base.finding import Finding
from nvgraft.plan.actions import Injection, Plan
from nvgraft.request.request import Request
from nvgraft_cli.shell.text import render, size

ALL = "compat32,compute,display,graphics,ngx,utility,video"


def lines(found: Plan) -> list[str]:
    return render(found, colour=False).split("\n")


def section(found: Plan, title: str) -> list[str]:
    """The indented lines below the line that starts with ``title``."""
    text = lines(found)
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
    """A short number and a binary unit."""
    assert size(count) == text


def test_the_head_says_what_is_decided_for_whom() -> None:
    """Decision and reason first, then host, request and rootfs."""
    found = plan(full_host(root="/drv"), devices="1,0", requirements=("cuda>=12",))
    assert lines(found)[:6] == [
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
    """There is nothing else to say."""
    assert lines(Plan(decision, "because")) == [f"{decision}: because"]


def test_files_are_grouped_by_what_asked_for_them() -> None:
    """With their number and size; each with its size and where it comes from and goes to."""
    found = plan(full_host())
    assert "compute  2 files, 1.0 KiB" in lines(found)
    assert section(found, "utility  2 files") == [
        "nvidia-smi                   0 B  /usr/bin",
        "libnvidia-ml.so.535.1    1.0 KiB  /usr/lib -> /usr/lib/x86_64-linux-gnu",
    ]
    assert section(found, "always  1 file,") == [
        "gsp_tu10x.bin        0 B  /lib/firmware/nvidia/535.1"
    ]


def test_every_mount_is_shown_once() -> None:
    """No target of a plan is missing in its text, and no file is listed under two groups."""
    for found in (
        plan(full_host(), capabilities=ALL),
        plan(mig_host(), mig_config="all"),
        plan(mig_host(), devices="0:0"),
    ):
        text = render(found, colour=False)
        for action in hosts.binds(found).values():
            name = (
                action.target
                if action.kind != "file" or action.origin == "proc"
                else action.source.rpartition("/")[2]
            )
            assert name in text
        for title in ("sockets and directories", "devices", "the driver's own files"):
            assert text.count(f"\n{title}\n") <= 1


def test_a_driver_root_below_dev_changes_nothing_but_paths() -> None:
    """What is a file, a device or a view of the kernel's is told by the plan, not by how a path begins."""
    hosts_by_root = {root: mig_host(root=root) for root in ("/srv/shm/x", "/dev/shm/x")}
    elsewhere, below_dev = (
        render(plan(host, capabilities=ALL, mig_config="all"), colour=False)
        for host in hosts_by_root.values()
    )
    assert below_dev == elsewhere.replace("/srv/shm/x", "/dev/shm/x")


def test_sockets_and_directories_have_their_own_section() -> None:
    """Device directories and /proc entries are not among them."""
    assert section(plan(full_host()), "sockets and directories") == [
        "/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
    ]
    assert (
        section(plan(full_host(), "/tmp -> /t"), "sockets and directories")[1]
        == "/tmp/nvidia-mps -> /t/nvidia-mps"
    )


def test_devices_show_their_number_and_whether_they_are_allowed() -> None:
    """A device that is mounted but not allowed will not open: the text says so and why."""
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
    """The administration of MIG allows many numbers whose nodes are in one mounted directory."""
    found = section(plan(mig_host(), mig_config="all"), "devices")
    assert any(line.split()[:2] == ["/dev/nvidia-caps", "directory"] for line in found)
    assert found[-1] == "and 3 more device number(s) allowed: 236:1 to 236:13"


def test_the_drivers_own_files() -> None:
    """The tmpfs over the driver's directory, and what is bound into it."""
    found = section(plan(full_host(), devices="0"), "the driver's own files")
    assert found == ["/proc/driver/nvidia  tmpfs", "/proc/driver/nvidia/gpus/0000:01:00.0  bind"]


def test_links_name_their_maker() -> None:
    """Those of the plan, and those that the loader cache step will make."""
    found = section(plan(full_host(), capabilities="compute"), "links")
    assert [line.split() for line in found] == [
        ["libcuda.so", "->", "libcuda.so.1", "nvgraft"],
        ["libcuda.so.1", "->", "libcuda.so.535.1", "loader", "cache", "step"],
    ]


def test_the_loader_cache_names_its_directories() -> None:
    """In their order."""
    assert "loader cache  rebuilt with /usr/lib/x86_64-linux-gnu, /usr/lib/i386-linux-gnu" in lines(
        plan(full_host())
    )


def test_findings_come_with_their_hint() -> None:
    """Level, id and message on one line, what to do below."""
    found = plan(full_host(gpus=[]))
    assert section(found, "findings")[:2] == [
        "warning no-gpu: NVML reports no GPU: the container gets driver files and control devices only",
        "run nvidia-smi -L on the host",
    ]


def test_colour_is_only_added() -> None:
    """Without its escape sequences the coloured text is the plain one."""
    found = plan(full_host(gpus=[]))
    coloured = render(found, colour=True)
    assert "\x1b[1m" in coloured
    assert "\x1b[33mwarning\x1b[0m" in coloured
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"):
        coloured = coloured.replace(code, "")
    assert coloured == render(found, colour=False)


def test_names_cannot_steer_the_terminal() -> None:
    """Control characters of an image's or a foreign host's names are shown, not sent; a name is never a second line."""
    evil = "\x1b]0;owned\x07\x9b31m\nforged: line\udcff"
    document = full_host(f"/opt/{'x'}.535.1")
    document["name"] = evil
    found = plan(document, hosts.target(label=f"/b/{evil}"))
    found = Injection(
        evil,
        found.host,
        Request((evil,), found.request.capabilities),
        found.target,
        found.actions,
        ((f"/{evil}", evil),),
        (Finding("id", "info", evil, evil),),
    )
    text = render(found, colour=False)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "\nforged" not in text
    assert text.count("\\x1b]0;owned\\x07") == 8
    assert text.encode()
