"""The planner: which fault is refused first, what is left out on volumes, and which findings
a plan has.
"""

from pathlib import PurePosixPath

import pytest

import hosts
from hosts import ROOTFS, binds, finding_ids, full_host, mount_targets, plan
from injections import LIBS, devices, refused
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import MakeDirectory, UpdateLoaderCache
from nvgraft.plan.document import action_document
from nvgraft.request.request import ImexChannels, Request, check_request

# ---- refusals and their order


def test_requirements_come_before_the_container() -> None:
    """An unknown device is named before an unmet requirement, and that before a fault of the
    image.
    """
    broken = "/usr/bin -> ../../.."
    assert refused(full_host(), broken, requirements=("cuda>=99",)).stage == "requirement"
    assert refused(full_host(), broken, devices="9", requirements=("cuda>=99",)).stage == "device"
    assert refused(full_host(), broken).stage == "mount"


def test_requirements_see_the_chosen_devices() -> None:
    """brand and arch of requirements are compared with the chosen GPUs."""
    plan(full_host(), requirements=("brand=tesla,arch>=8.0,driver>=535,cuda>=12.2",))
    assert refused(full_host(), requirements=("brand=geforce",)).stage == "requirement"
    plan(full_host(), devices="", requirements=("brand=geforce",))


def test_a_request_is_checked_before_the_host() -> None:
    """IMEX channels and the number of requirements are checked without a host."""
    check_request(
        Request(("all",), (), requirements=("",) * 32, imex_channels=ImexChannels(("1",)))
    )
    with pytest.raises(Refusal, match=r"^too many requirements$"):
        check_request(Request(("all",), (), requirements=("",) * 33))
    with pytest.raises(Refusal, match=r"^unsupported IMEX channel value: x$"):
        check_request(Request(("all",), (), imex_channels=ImexChannels(("x",))))


@pytest.mark.parametrize(
    ("rootfs", "text"),
    [
        (
            "/usr/bin/nvidia-smi -> /x",
            f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: file exists",
        ),
        (
            "/usr/bin/nvidia-smi/",
            f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: is a directory",
        ),
        (
            "/usr/lib64/libcuda.so.535.1/",
            f"file creation failed: {ROOTFS}/usr/lib64/libcuda.so.535.1: is a directory",
        ),
        ("/usr/lib64", f"file creation failed: {ROOTFS}/usr/lib64: not a directory"),
        ("/usr/bin -> /../..", f"path error: /usr/bin resolves outside of {ROOTFS}"),
        (
            "/run -> /proc/sys/kernel",
            (
                "path error: /run/nvidia-persistenced/socket resolves to"
                " /proc/sys/kernel/nvidia-persistenced/socket"
            ),
        ),
    ],
)
def test_an_image_that_blocks_a_target_is_refused(rootfs: str, text: str) -> None:
    """A file, link or directory of the image in a target's place is refused in the reference's
    words.
    """
    assert refused(full_host(), rootfs).reference_line() == f"nvgraft: mount error: {text}"


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            "/lib/firmware",
            (
                "mount operation failed: /usr/bin/nvidia-smi/nvidia/535.1/gsp_tu10x.bin: hidden"
                " by the mount on /usr/bin/nvidia-smi"
            ),
        ),
        ("/tmp", f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: not a directory"),
    ],
)
def test_a_target_inside_an_earlier_mount_is_refused(link: str, text: str) -> None:
    """A link of the image that leads a target into an earlier mount is refused."""
    assert refused(full_host(), f"{link} -> /usr/bin/nvidia-smi").text == text


@pytest.mark.parametrize("place", ["/etc", "/usr/lib/x86_64-linux-gnu"])
def test_the_loader_cache_is_not_written_into_a_mount(place: str) -> None:
    """A link of the image that leads the host's MPS directory to where the loader cache is written
    is refused.
    """
    document = hosts.host("/tmp/nvidia-mps/\n/dev/nvidiactl char 195:255")
    text = f"mount operation failed: {place}: hidden by the mount on {place}"
    assert (
        refused(document, f"{hosts.DEBIAN}\n{place}/\n/tmp/nvidia-mps -> {place}", "compute").text
        == text
    )


def test_existing_files_are_mounted_over() -> None:
    """Existing files, such as placeholders of an earlier start, are mounted over, and nothing is
    created for them.
    """
    rootfs = f"""
        {hosts.DEBIAN}
        /usr/bin/nvidia-smi
        /usr/bin/nvidia-cuda-mps-control
        {LIBS}/libnvidia-ml.so.535.1
        {LIBS}/libcuda.so.535.1 mode=0600
    """
    injection = plan(full_host(), rootfs)
    assert not [
        action
        for action in injection.actions
        if isinstance(action, MakeDirectory) and action.path.startswith("/usr")
    ]
    assert mount_targets(injection) == mount_targets(plan(full_host()))


# ---- volumes


@pytest.mark.parametrize(
    ("volume", "id", "target", "message"),
    [
        (
            "/lib/firmware",
            "firmware-skipped",
            "/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
            "/lib/firmware/nvidia",
        ),
        ("/run", "socket-skipped", "/run/nvidia-persistenced/socket", "/run/nvidia-persistenced"),
        ("/tmp", "mps-skipped", "/tmp/nvidia-mps", "/tmp/nvidia-mps"),
    ],
)
def test_optional_parts_on_a_volume_are_left_out(
    volume: str, id: str, target: str, message: str
) -> None:
    """Firmware, sockets and MPS that need a new file on a volume are skipped with a finding;
    everything else stays.
    """
    place = hosts.target(f"{hosts.DEBIAN}\n{volume}/", volumes=(volume,))
    injection, whole = plan(full_host(), place), plan(full_host())
    assert mount_targets(injection) == [path for path in mount_targets(whole) if path != target]
    assert not any(
        path.startswith(volume)
        for action in injection.actions
        for path in [action_document(action).get("path", "")]
    )
    (finding,) = [finding for finding in injection.findings if finding.id == id]
    assert finding.level == "warning"
    assert finding.message.endswith(
        f"file creation failed: {ROOTFS}{message}: it would be made on the volume {volume}"
    )


@pytest.mark.parametrize("volume", ["/lib/firmware/nvidia", "/run/nvidia-persistenced", "/tmp"])
def test_nothing_is_created_for_a_part_that_is_left_out(volume: str) -> None:
    """For a part that is left out neither a directory on the volume nor its parents are created."""
    injection = plan(full_host(), hosts.target(volumes=(volume,)))
    assert [name for name in finding_ids(injection.findings) if name.endswith("-skipped")] != []
    made = {action.path for action in injection.actions if isinstance(action, MakeDirectory)}
    needed = {
        str(place)
        for target in mount_targets(injection)
        for place in (target, *PurePosixPath(target).parents)
    }
    assert made <= needed


def test_every_optional_part_is_tried() -> None:
    """A skipped part does not affect the others."""
    place = hosts.target(
        f"{hosts.DEBIAN}\n/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
        volumes=("/lib/firmware", "/run"),
    )
    injection = plan(full_host("/lib/firmware/nvidia/535.1/gsp_ad10x.bin"), place)
    assert "/lib/firmware/nvidia/535.1/gsp_tu10x.bin" in mount_targets(injection)
    assert [name for name in finding_ids(injection.findings) if name.endswith("-skipped")] == [
        "firmware-skipped",
        "socket-skipped",
    ]


@pytest.mark.parametrize("volume", ["/usr/bin", LIBS, "/usr"])
def test_required_parts_on_a_volume_are_refused(volume: str) -> None:
    """A required file that would have to be created on a volume is refused, and the volume is
    named.
    """
    refusal = refused(
        full_host(), hosts.target(f"{hosts.DEBIAN}\n/usr/bin/\n{LIBS}/", volumes=(volume,))
    )
    assert refusal.text.endswith(f": it would be made on the volume {volume}")


# ---- findings


def test_a_library_that_is_not_elf_is_mounted_with_a_warning() -> None:
    """A library that no loader accepts is mounted, as by the reference, with a warning; it gets no
    loader cache row and no link.
    """
    document = full_host()
    path = next(
        path
        for path in document["files"]
        if "libcuda.so." in path and "elf" in document["files"][path]
    )
    del document["files"][path]["elf"]
    document["files"][path]["elf_fault"] = "it is cut short"
    injection = plan(document)
    target = next(target for target, action in binds(injection).items() if action.source == path)
    (update,) = [action for action in injection.actions if isinstance(action, UpdateLoaderCache)]
    assert target not in [library.path for library in update.libraries]
    (finding,) = [finding for finding in injection.findings if finding.id == "library-damaged"]
    assert (finding.level, finding.message) == (
        "warning",
        f"{path} is not a library that a loader accepts",
    )


def test_a_complete_host_has_one_finding() -> None:
    """A host with all required files has one finding, of level info, with the parts that its driver
    lacks.
    """
    assert finding_ids(plan(full_host()).findings) == ["not-on-host"]
    assert plan(full_host()).findings[0].level == "info"


def test_findings_are_about_requested_capabilities() -> None:
    """Missing parts of capabilities that were not requested are not mentioned."""
    (finding,) = plan(full_host(), capabilities="utility").findings
    assert (
        finding.message
        == "not on this host: libnvidia-cfg.so, libnvidia-nscq.so, nvidia-debugdump,"
        " nvidia-persistenced, nv-fabricmanager"
    )
    assert plan(full_host(), capabilities="ngx").findings == ()


def test_a_host_without_gpus_gives_a_warning() -> None:
    """A host without GPUs is a warning and not a refusal, whatever devices were requested."""
    injection = plan(full_host(gpus=[]), devices="0,nonsense")
    assert "no-gpu" in finding_ids(injection.findings)
    assert devices(injection)[-1] == "/dev/nvidia-uvm-tools"


def test_libraries_of_another_driver_version_give_a_warning() -> None:
    """If all libraries have another version than the driver, the container starts, as with the
    reference, with a finding.
    """
    injection = plan(full_host(version="550.1"))
    assert finding_ids(injection.findings) == ["no-libraries"]
    assert "550.1" in injection.findings[0].message


def test_libraries_that_the_image_hides_give_a_finding() -> None:
    """The plan has the findings of the SONAME link prediction."""
    assert "library-shadowed" in finding_ids(
        plan(full_host(), f"{hosts.DEBIAN}\n{LIBS}/libcuda.so.1").findings
    )
