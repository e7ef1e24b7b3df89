"""Reading a host: which of several files is chosen, what is missing, and what is fatal."""

from collections.abc import Mapping

import pytest

import hosts
from hosts import gpu, host, inventory
from nvgraft.base.errors import Refusal
from nvgraft.formats.ldcache_entries import CacheEntry
from nvgraft.formats.tree import Node
from nvgraft.host.components import (
    Component,
    DeviceNode,
    Firmware,
    Inventory,
    ProcEntry,
    device_file_minor,
)
from nvgraft.host.inventory import parse_majors, read_inventory
from nvgraft.host.libraries import find_loaded_library
from nvgraft.host.snapshot import SnapshotTree, snapshot_host


def paths(components: tuple[Component | Firmware, ...]) -> list[str]:
    return [component.path for component in components]


def refused(document: hosts.Document, path: str = "/usr/bin") -> Refusal:
    with pytest.raises(Refusal) as caught:
        inventory(document, path)
    return caught.value


# ---- libraries


def test_links_of_a_library_are_followed() -> None:
    """The component is the resolved file, and its ``found`` text names every step."""
    host_inventory = inventory(
        host(
            "/usr/lib/libcuda.so.1 -> /etc/alternatives/cuda\n/etc/alternatives/cuda ->"
            " /opt/nv/libcuda.so.535.1\n"
            "/opt/nv/libcuda.so.535.1 elf libcuda.so.1 mode=0755",
            cache="libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1",
        )
    )
    assert host_inventory.files.libraries == (
        Component(
            hosts.row("libcuda.so"),
            "/opt/nv/libcuda.so.535.1",
            "loader cache: libcuda.so.1 => /usr/lib/libcuda.so.1 -> /opt/nv/libcuda.so.535.1",
            0o755,
            1000,
            "libcuda.so.1",
        ),
    )
    assert host_inventory.files.libraries[0].name == "libcuda.so.535.1"


def test_a_library_without_links_has_no_further_step() -> None:
    """The ``found`` text of a library without links has no arrow behind the path."""
    host_inventory = inventory(host("/usr/lib/libcuda.so.535.1 elf libcuda.so.1"))
    assert (
        host_inventory.files.libraries[0].found
        == "loader cache: libcuda.so.1 => /usr/lib/libcuda.so.535.1"
    )


def test_the_last_accepted_candidate_wins() -> None:
    """Of several entries for one row the last accepted one in cache order is chosen."""
    text = (
        "/a/libcuda.so.535.1 elf libcuda.so.1\n/b/libcuda.so.535.1 elf"
        " libcuda.so.1\n/c/libcuda.so.470.1 elf libcuda.so.1"
    )
    assert paths(inventory(host(text)).files.libraries) == ["/b/libcuda.so.535.1"]


def test_libraries_come_in_catalogue_order() -> None:
    """Libraries come in catalogue order, not in that of the loader cache."""
    text = "\n".join(
        f"/l/{name}.so.535.1 elf {name}.so.1"
        for name in ("libcuda", "libnvidia-cfg", "libnvidia-ml")
    )
    assert [component.row.name for component in inventory(host(text)).files.libraries] == [
        "libnvidia-ml.so",
        "libnvidia-cfg.so",
        "libcuda.so",
    ]


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("libcuda.so.535.1", True),
        # ends with the version, which is all that the reference compares
        ("libcuda.so.1535.1", True),
        ("libcuda.so.535.10", False),
        ("libcuda.so.535", False),
        ("libcuda.so", False),
    ],
)
def test_only_files_of_the_running_driver_are_taken(name: str, accepted: bool) -> None:
    """A library is accepted only if its file name ends with the version that NVML reports."""
    assert len(inventory(host(f"/l/{name} elf libcuda.so.1")).files.libraries) == accepted


def test_the_version_must_be_in_the_file_name() -> None:
    """A version in the directory's name does not make a file a driver library."""
    assert inventory(host("/opt/535.1/libcuda.so elf libcuda.so.1")).files.libraries == ()


def test_sonames_outside_the_catalogue_are_skipped() -> None:
    """A SONAME outside the catalogue is skipped, even if its file is gone or its version
    matches.
    """
    host_inventory = inventory(
        host(
            "/l/libcudart.so.535.1 elf libcudart.so.12", cache="libfoo.so.1 (libc6,x86-64) => /gone"
        )
    )
    assert host_inventory.files.libraries == ()


def test_two_names_of_one_file_give_one_component() -> None:
    """libcuda.so and libcuda.so.1 of one file give one component, found by the first name."""
    host_inventory = inventory(
        host(
            "/l/libcuda.so.535.1 elf libcuda.so.1\n/l/libcuda.so -> libcuda.so.535.1",
            cache="libcuda.so.1 (libc6,x86-64) => /l/libcuda.so.535.1\nlibcuda.so (libc6,x86-64)"
            " => /l/libcuda.so",
        )
    )
    assert [component.found for component in host_inventory.files.libraries] == [
        "loader cache: libcuda.so.1 => /l/libcuda.so.535.1"
    ]


@pytest.mark.parametrize("target", ["/gone", "libcuda.so.535.1"])
def test_a_stale_entry_is_fatal(target: str) -> None:
    """A cache entry whose file is gone is fatal, in the reference's words, with the driver root
    before the path.
    """
    refusal = refused(
        host(
            f"/l/libcuda.so.1 -> {target}",
            cache="libcuda.so.1 (libc6,x86-64) => /l/libcuda.so.1",
            root="/run/nvidia/driver",
        )
    )
    resolved = "/gone" if target == "/gone" else "/l/libcuda.so.535.1"
    assert (
        refusal.reference_line()
        == f"nvgraft: detection error: open failed: /run/nvidia/driver{resolved}: no such file"
        " or directory"
    )
    assert "run ldconfig" in refusal.hint


def test_a_stale_entry_of_the_other_architecture_is_fatal_as_well() -> None:
    """A stale 32-bit entry is fatal whether compat32 was requested or not."""
    refusal = refused(host("", cache="libcuda.so.1 (libc6) => /l/gone"))
    assert refusal.text == "open failed: /l/gone: no such file or directory"


@pytest.mark.parametrize(
    "text",
    ["/l/libcuda.so.535.1", "/l/libcuda.so.535.1/x"],
    ids=["nothing is recorded of it", "a directory"],
)
def test_a_file_that_libelf_cannot_open_is_fatal(text: str) -> None:
    """A cache entry that libelf cannot open is fatal: a directory, an empty file, or a snapshot
    without ELF facts.
    """
    refusal = refused(host(text, cache="libcuda.so.1 (libc6,x86-64) => /l/libcuda.so.535.1"))
    assert (
        refusal.reference_line()
        == "nvgraft: detection error: elf file read error: /l/libcuda.so.535.1"
    )


def damaged(name: str) -> hosts.Document:
    """Return a host whose loader cache names a text file."""
    document = host(f"/l/{name}", cache=f"{name} (libc6,x86-64) => /l/{name}")
    document["files"][f"/l/{name}"]["elf_fault"] = "it is not an ELF file"
    return document


def test_a_library_is_chosen_by_its_name() -> None:
    """A file that is not ELF is a driver library by its name, as in the reference, and has no
    SONAME.
    """
    assert [
        (library.path, library.soname)
        for library in inventory(damaged("libcuda.so.535.1")).files.libraries
    ] == [("/l/libcuda.so.535.1", "")]
    assert inventory(damaged("libcuda.so.1")).files.libraries == ()


def test_the_tls_library_is_chosen_by_its_content() -> None:
    """The TLS library is chosen by its ABI tag, so a file that is not ELF is fatal there."""
    refusal = refused(damaged("libnvidia-tls.so.535.1"))
    assert (
        refusal.reference_line()
        == "nvgraft: detection error: elf file read error: /l/libnvidia-tls.so.535.1"
    )


def test_a_loop_of_links_is_fatal() -> None:
    """A cache entry in a loop of links is fatal, and the error names its path."""
    refusal = refused(
        host(
            "/l/libcuda.so.1 -> libcuda.so.1",
            cache="libcuda.so.1 (libc6,x86-64) => /l/libcuda.so.1",
        )
    )
    assert (
        refusal.reference_line()
        == "nvgraft: detection error: path error: ///l/libcuda.so.1: too many levels of"
        " symbolic links"
    )


@pytest.mark.parametrize(
    ("tag", "taken"), [("tag=2.3.99", True), ("tag=2.2.5", False), ("tag=2.3.98", False)]
)
def test_the_tls_library_is_chosen_by_its_abi_tag(tag: str, taken: bool) -> None:
    """Of the two TLS libraries of older drivers only the one for kernels from 2.3.99 is
    accepted.
    """
    host_inventory = inventory(host(f"/l/libnvidia-tls.so.535.1 elf libnvidia-tls.so.535.1 {tag}"))
    assert len(host_inventory.files.libraries) == taken


def test_a_rejected_tls_library_replaces_none() -> None:
    """The accepted TLS library in a tls directory is chosen, whether it comes first or last."""
    right, wrong = (
        "/l/tls/libnvidia-tls.so.535.1 elf libnvidia-tls.so.535.1 tag=2.3.99",
        "/l/libnvidia-tls.so.535.1 elf libnvidia-tls.so.535.1 tag=2.2.5",
    )
    for text in (f"{right}\n{wrong}", f"{wrong}\n{right}"):
        assert paths(inventory(host(text)).files.libraries) == ["/l/tls/libnvidia-tls.so.535.1"]


def test_a_tls_library_without_a_tag_is_fatal() -> None:
    """A TLS library without an ABI tag is fatal, in the reference's words; other libraries need no
    tag.
    """
    assert (
        refused(host("/l/libnvidia-tls.so.535.1 elf libnvidia-tls.so.535.1")).text
        == "elf section 0x7 missing: /l/libnvidia-tls.so.535.1"
    )
    assert inventory(host("/l/libcuda.so.535.1 elf libcuda.so.1 tag=2.2.5")).files.libraries


def test_32_bit_libraries_are_kept_apart() -> None:
    """32-bit and 64-bit libraries are told apart by the flags of their entries, each with its own
    choice.
    """
    host_inventory = inventory(
        host("/l/libcuda.so.535.1 elf libcuda.so.1\n/l32/libcuda.so.535.1 elf libcuda.so.1 bits=32")
    )
    assert (paths(host_inventory.files.libraries), paths(host_inventory.files.libraries32)) == (
        ["/l/libcuda.so.535.1"],
        ["/l32/libcuda.so.535.1"],
    )


@pytest.mark.parametrize(
    ("machine", "wide", "narrow"),
    [
        ("x86_64", ["/l/libcuda.so.535.1"], ["/l32/libcuda.so.535.1"]),
        ("aarch64", ["/arm/libcuda.so.535.1"], ["/hf/libcuda.so.535.1"]),
        ("ppc64le", ["/ppc/libcuda.so.535.1"], []),
    ],
)
def test_each_machine_takes_its_own_entries(
    machine: str, wide: list[str], narrow: list[str]
) -> None:
    """x86_64, aarch64 (32 bit: hard-float) and ppc64le (no 32 bit) take different entries of one
    cache.
    """
    places = {
        "/l": "libc6,x86-64",
        "/l32": "libc6",
        "/arm": "libc6,AArch64",
        "/hf": "libc6,hard-float",
        "/ppc": "libc6,64bit",
        "/x": "libc6,x32",
    }
    text = "\n".join(f"{place}/libcuda.so.535.1 elf libcuda.so.1" for place in places)
    cache = "\n".join(
        f"libcuda.so.1 ({flags}) => {place}/libcuda.so.535.1" for place, flags in places.items()
    )
    host_inventory = inventory(host(text, cache=cache, machine=machine))
    assert (paths(host_inventory.files.libraries), paths(host_inventory.files.libraries32)) == (
        wide,
        narrow,
    )


def test_rows_without_a_file_are_listed_as_missing() -> None:
    """Every library or binary row without a file is listed as missing, with its class."""
    files = inventory(host("/l/libcuda.so.535.1 elf libcuda.so.1\n/usr/bin/nvidia-smi")).files
    missing = {(row.component_class, row.name) for row in files.missing}
    assert ("compute", "libcuda.so") not in missing
    assert {
        ("compute", "libcudadebugger.so"),
        ("glvnd", "libGLX_nvidia.so"),
        ("utility", "nvidia-persistenced"),
    } <= missing
    assert ("utility", "nvidia-smi") not in missing


# ---- binaries


def test_the_first_directory_of_the_search_path_wins() -> None:
    """The first directory with a binary is used; the result has catalogue order."""
    text = "/a/nvidia-cuda-mps-server\n/b/nvidia-smi\n/c/nvidia-smi\n/c/nvidia-debugdump"
    assert paths(inventory(host(text), "/a:/c:/b").files.binaries) == [
        "/c/nvidia-smi",
        "/c/nvidia-debugdump",
        "/a/nvidia-cuda-mps-server",
    ]


def test_an_empty_element_is_the_current_directory() -> None:
    """An empty element of PATH is the current directory, which is / inside a driver root."""
    assert paths(inventory(host("/nvidia-smi\n/b/nvidia-smi"), ":/b").files.binaries) == [
        "/nvidia-smi"
    ]


def test_binaries_are_followed_but_need_not_be_executable() -> None:
    """Links of binaries are followed, and a file without execute permission is accepted. The
    component has the resolved name.
    """
    binary = inventory(
        host("/usr/bin/nvidia-smi -> /opt/nvidia-smi.real\n/opt/nvidia-smi.real mode=0600"),
        "/usr/bin",
    ).files.binaries[0]
    assert (binary.name, binary.mode, binary.row.name) == ("nvidia-smi.real", 0o600, "nvidia-smi")
    assert binary.found == "PATH: /usr/bin/nvidia-smi -> /opt/nvidia-smi.real"


def test_a_dangling_link_to_a_binary_is_skipped() -> None:
    """After a dangling link the search for a binary goes on in the next directory."""
    assert paths(
        inventory(host("/a/nvidia-smi -> /gone\n/b/nvidia-smi"), "/a:/b").files.binaries
    ) == ["/b/nvidia-smi"]


def test_a_bad_element_of_the_search_path_is_passed_over() -> None:
    """A file, a loop of links or a way out of the root in PATH is skipped, as in the reference."""
    text = "/file\n/loop -> loop\n/out -> ../..\n/b/nvidia-smi"
    assert paths(inventory(host(text), "/file:/loop:/out:/../..:/b").files.binaries) == [
        "/b/nvidia-smi"
    ]


# ---- firmware, sockets


def test_firmware_of_the_running_driver_is_globbed() -> None:
    """gsp*.bin of the driver's version is found, sorted. The target is the unresolved path."""
    text = """
        /lib -> usr/lib
        /usr/lib/firmware/nvidia/535.1/gsp_tu10x.bin
        /usr/lib/firmware/nvidia/535.1/gsp_ga10x.bin
        /usr/lib/firmware/nvidia/535.1/gsp.bin -> gsp_tu10x.bin
        /usr/lib/firmware/nvidia/535.1/gsp_log.txt
        /usr/lib/firmware/nvidia/535.1/booter.bin
        /usr/lib/firmware/nvidia/470.1/gsp.bin
    """
    firmware = inventory(host(text)).files.firmware
    assert [image.target for image in firmware] == [
        f"/lib/firmware/nvidia/535.1/gsp{part}.bin" for part in ("", "_ga10x", "_tu10x")
    ]
    assert paths(firmware) == [
        f"/usr/lib/firmware/nvidia/535.1/gsp_{part}.bin" for part in ("tu10x", "ga10x", "tu10x")
    ]


def test_a_host_without_firmware_has_none() -> None:
    """A driver without GSP images has no firmware; that is not an error."""
    assert inventory(host("/l/x")).files.firmware == ()


def test_sockets_are_found_through_var_run() -> None:
    """A socket is found through the link /var/run, and its class follows from the resolved path's
    suffix.
    """
    host_inventory = inventory(
        host(
            "/var/run -> /run\n/run/nvidia-persistenced/socket"
            " socket\n/run/nvidia-fabricmanager/socket socket"
        )
    )
    assert [
        (socket.path, socket.component_class, socket.kind)
        for socket in host_inventory.files.sockets
    ] == [
        ("/run/nvidia-persistenced/socket", "utility", "socket"),
        ("/run/nvidia-fabricmanager/socket", "utility", "socket"),
    ]


def test_a_socket_with_another_path_belongs_to_compute() -> None:
    """A socket behind another link belongs to compute: the reference classifies it by its resolved
    path's suffix.
    """
    host_inventory = inventory(
        host("/var/run/nvidia-persistenced -> /opt/nvp\n/opt/nvp/socket socket")
    )
    assert [(socket.path, socket.component_class) for socket in host_inventory.files.sockets] == [
        ("/opt/nvp/socket", "compute")
    ]


@pytest.mark.parametrize(
    ("pipe_directory", "path"), [("", "/tmp/nvidia-mps"), ("/mps", "/real/mps"), ("/none", None)]
)
def test_the_mps_directory(pipe_directory: str, path: str | None) -> None:
    """The MPS directory is the default, that of CUDA_MPS_PIPE_DIRECTORY with links followed, or
    none.
    """
    mps = inventory(
        host("/tmp/nvidia-mps/ mode=0777\n/mps -> /real/mps\n/real/mps/"),
        mps_directory=pipe_directory,
    ).files.mps
    assert (mps.path if mps else None) == path
    assert mps is None or mps.kind == "dir"


class Forbidden(SnapshotTree):
    """A host whose /var/run/nvidia-persistenced and /secret only root may enter."""

    def lstat(self, path: str) -> Node | None:
        if path.startswith(("/var/run/nvidia-persistenced/", "/secret/")):
            raise PermissionError(13, "Permission denied", path)
        return super().lstat(path)


def test_unreadable_places_are_left_out() -> None:
    """A socket, MPS directory or element of PATH that only root may enter is left out."""
    document = host(
        "/var/run/nvidia-persistenced/socket"
        " socket\n/secret/nvidia-smi\n/b/nvidia-smi\n/secret/mps/"
    )
    live = snapshot_host(document)
    live.tree = Forbidden(document["files"])
    host_inventory = read_inventory(live, "/secret:/b", "/secret/mps")
    assert (
        host_inventory.files.sockets,
        host_inventory.files.mps,
        paths(host_inventory.files.binaries),
    ) == (
        (),
        None,
        ["/b/nvidia-smi"],
    )


def test_a_socket_behind_a_loop_is_fatal() -> None:
    """Path errors other than missing permission are fatal for sockets, as in the reference."""
    assert refused(host("/var -> var")).stage == "detection"


# ---- devices


def test_control_devices() -> None:
    """nvidiactl is always listed, the other nodes if they exist. Numbers come from the node, except
    for modeset's fixed one.
    """
    host_inventory = inventory(
        host(
            "/dev/nvidia-modeset char 195:254\n/dev/nvidia-uvm-tools char"
            " 510:1\n/dev/nvidia-uvm char 510:0"
        )
    )
    assert [
        (node.path, node.rdev, node.node is None) for node in host_inventory.devices.control
    ] == [
        ("/dev/nvidiactl", (195, 255), True),
        ("/dev/nvidia-uvm", (510, 0), False),
        ("/dev/nvidia-uvm-tools", (510, 1), False),
        ("/dev/nvidia-modeset", (195, 254), False),
    ]
    assert [
        node.path for node in inventory(host("/dev/nvidiactl char 195:255")).devices.control
    ] == ["/dev/nvidiactl"]


def test_a_modeset_node_keeps_expected_and_real_number() -> None:
    """A modeset node with a wrong number has the expected number in ``rdev`` and the real one in
    ``node``.
    """
    modeset = inventory(host("/dev/nvidia-modeset char 1:3")).devices.control[-1]
    assert modeset.rdev == (195, 254)
    assert modeset.node is not None
    assert modeset.node.rdev == (1, 3)


def test_gpu_nodes_follow_the_minor_not_the_index() -> None:
    """The number of a GPU's node is its minor, which may differ from its index in NVML."""
    host_inventory = inventory(host("/dev/nvidia0 char 195:0", [gpu(1), gpu(0)]))
    assert [device.node for device in host_inventory.devices.gpus] == [
        DeviceNode("/dev/nvidia1", (195, 1), None),
        DeviceNode("/dev/nvidia0", (195, 0), Node("char", 0o666, rdev=(195, 0))),
    ]


@pytest.mark.parametrize(
    ("directory", "pci", "path"),
    [
        ("0000:01:00.0", (0, 1, 0), "/proc/driver/nvidia/gpus/0000:01:00.0"),
        ("00000000:01:00.0", (0, 1, 0), "/proc/driver/nvidia/gpus/00000000:01:00.0"),
        ("00010000:af:1f.0", (0x10000, 0xAF, 0x1F), "/proc/driver/nvidia/gpus/00010000:af:1f.0"),
        ("0001:af:1f.0", (1, 0xAF, 0x1F), "/proc/driver/nvidia/gpus/0001:af:1f.0"),
        ("0000:02:00.0", (0, 1, 0), None),
    ],
)
def test_the_proc_directory_has_a_domain_of_eight_or_four_digits(
    directory: str, pci: tuple[int, int, int], path: str | None
) -> None:
    """A GPU's /proc directory is found with either length of the domain. A GPU that the kernel
    module does not list has none.
    """
    host_inventory = inventory(host(f"/proc/driver/nvidia/gpus/{directory}/", [gpu(0, pci=pci)]))
    entry = host_inventory.devices.gpus[0].proc_directory
    assert (entry.path if entry else None) == path


def test_the_proc_directory_with_eight_digits_is_preferred() -> None:
    """If both spellings exist, the one of eight digits is used, as in the reference."""
    text = "/proc/driver/nvidia/gpus/0000:01:00.0/\n/proc/driver/nvidia/gpus/00000000:01:00.0/"
    assert inventory(host(text, [gpu(0)])).devices.gpus[0].proc_directory == ProcEntry(
        "/proc/driver/nvidia/gpus/00000000:01:00.0", 0o755
    )


def test_proc_files_are_copied_in_a_fixed_order() -> None:
    """params, version and registry are copied in this order, with content and mode. Missing and
    other files are skipped.
    """
    text = (
        "/proc/driver/nvidia/registry = r\n/proc/driver/nvidia/params ="
        " p\\nq\n/proc/driver/nvidia/suspend = s"
    )
    assert inventory(host(text)).proc_files == (
        ProcEntry("/proc/driver/nvidia/params", 0o644, "p\nq"),
        ProcEntry("/proc/driver/nvidia/registry", 0o644, "r"),
    )


def test_a_proc_file_without_recorded_content_is_refused() -> None:
    """A snapshot without the text of a /proc file is refused, not planned with an empty one."""
    assert (
        refused(host("/proc/driver/nvidia/params"))
        .reference_line()
        .startswith("nvgraft: mount error: file read error: /proc/driver/nvidia/params")
    )


def test_more_than_sixty_four_gpus_are_refused() -> None:
    """64 GPUs are accepted, as many as the reference's device mask has bits; 65 are refused in its
    words.
    """
    assert len(inventory(host("", [gpu(minor) for minor in range(64)])).devices.gpus) == 64
    assert (
        refused(host("", [gpu(minor) for minor in range(65)])).reference_line()
        == "nvgraft: device error: too many devices"
    )


# ---- MIG and IMEX


def test_mig_access_files_and_their_nodes() -> None:
    """The access files are config, monitor and those of each MIG device; the minors of the nodes
    come from them.
    """
    host_inventory = inventory(hosts.mig_host())
    base = "/proc/driver/nvidia/capabilities"
    assert [entry.path for entry in host_inventory.mig.access_files] == [
        f"{base}/mig/config",
        f"{base}/mig/monitor",
        f"{base}/gpu0/mig/gi1/access",
        f"{base}/gpu0/mig/gi1/ci0/access",
    ]
    assert [(node.path, node.rdev) for node in host_inventory.mig.nodes] == [
        (f"/dev/nvidia-caps/nvidia-cap{minor}", (236, minor)) for minor in (1, 2, 12, 13)
    ]
    assert host_inventory.mig.proc_directory == ProcEntry(base, 0o755)
    assert host_inventory.mig.minors == (
        ("config", 1),
        ("monitor", 2),
        ("gpu0/gi1/access", 12),
        ("gpu0/gi1/ci0/access", 13),
        ("gpu1/gi1/access", 147),
        ("gpu10/gi1/access", 200),
    )


def test_access_paths_use_the_minor_of_the_gpu() -> None:
    """The gpuN in an access path is the GPU's minor, not its index."""
    text = "/proc/driver/nvidia/capabilities/gpu5/mig/gi1/access = DeviceFileMinor: 9"
    host_inventory = inventory(host(text, [gpu(0), gpu(5, migs=["MIG-x 1/0"])]))
    assert [entry.path for entry in host_inventory.mig.access_files] == [
        "/proc/driver/nvidia/capabilities/gpu5/mig/gi1/access"
    ]


def test_a_driver_without_nvidia_caps_has_no_capability_nodes() -> None:
    """Without nvidia-caps in /proc/devices there are no capability nodes, only access files."""
    host_inventory = inventory(hosts.mig_host(majors={}))
    assert (host_inventory.mig.major, host_inventory.mig.nodes) == (None, ())
    assert len(host_inventory.mig.access_files) == 4


def test_mig_files_are_read_only_where_a_gpu_can_do_mig() -> None:
    """mig-minors, which has thousands of rows, is read only if a GPU supports MIG."""
    host_inventory = inventory(hosts.mig_host(gpus=[gpu(0)]))
    assert (
        host_inventory.mig.access_files,
        host_inventory.mig.minors,
        host_inventory.mig.nodes,
    ) == ((), (), ())
    assert inventory(hosts.mig_host(gpus=[gpu(0, mig="disabled")])).mig.minors


@pytest.mark.parametrize(
    ("content", "minor"),
    [
        ("DeviceFileMinor: 12\nDeviceFileMode: 292\n", 12),
        ("DeviceFileMode: 292\nDeviceFileMinor:\t7", 7),
        ("DeviceFileMinor: x\n", None),
        ("DeviceFileMinors: 12\n", None),
        ("", None),
    ],
)
def test_the_minor_of_an_access_file(content: str, minor: int | None) -> None:
    """The minor is the number in the DeviceFileMinor line, in any position."""
    assert device_file_minor(ProcEntry("/p", 0o444, content)) == minor


def test_imex_channels_are_the_channel_n_nodes() -> None:
    """With the driver's major every channelN node is listed; other names are skipped."""
    text = "\n".join(
        f"/dev/nvidia-caps-imex-channels/{entry}"
        for entry in ("channel0 char 234:0", "channel12 char 234:12", "channel", "x1")
    )
    host_inventory = inventory(host(text, majors={"nvidia-caps-imex-channels": 234}))
    assert [(node.path, node.rdev) for node in host_inventory.devices.imex_channels] == [
        ("/dev/nvidia-caps-imex-channels/channel0", (234, 0)),
        ("/dev/nvidia-caps-imex-channels/channel12", (234, 12)),
    ]
    assert inventory(host(text)).devices.imex_channels == ()


def test_only_requested_imex_channels_are_looked_up() -> None:
    """Only requested IMEX channels are examined, and their directory is not listed: a node may have
    thousands.
    """
    examined: list[str] = []

    class Watched(SnapshotTree):
        def lstat(self, path: str) -> Node | None:
            examined.append(path)
            return super().lstat(path)

        def listdir(self, path: str) -> list[str]:
            examined.append(path)
            return super().listdir(path)

    text = "\n".join(
        f"/dev/nvidia-caps-imex-channels/channel{number} char 234:{number}" for number in range(20)
    )
    recorded_host = snapshot_host(host(text, majors={"nvidia-caps-imex-channels": 234}))
    assert isinstance(recorded_host.tree, SnapshotTree)
    recorded_host.tree = Watched(recorded_host.tree._files)
    assert [
        node.rdev
        for node in read_inventory(
            recorded_host, "/usr/bin", channels=(7, 19, 7, 20)
        ).devices.imex_channels
    ] == [(234, 7), (234, 19)]
    assert read_inventory(recorded_host, "/usr/bin", channels=()).devices.imex_channels == ()
    assert {path.rpartition("/")[2] for path in examined if "imex" in path} == {
        "channel7",
        "channel19",
        "channel20",
    }


# ---- the rest


def test_equal_documents_give_equal_inventories() -> None:
    """The same document gives an equal inventory, and one more file a different one."""
    assert inventory(hosts.full_host()) == inventory(hosts.full_host())
    assert inventory(hosts.full_host()) != inventory(hosts.full_host("/usr/bin/nvidia-debugdump"))
    assert isinstance(inventory(host("")), Inventory)


def test_proc_devices_are_read() -> None:
    """Character majors are read by driver name, the first of each name; block devices and blank
    lines are skipped.
    """
    text = (
        "Character devices:\n  1 mem\n195 nvidia-frontend\n195 nvidia\n510 nvidia-uvm\n511"
        " nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    )
    assert parse_majors(text) == {
        "mem": 1,
        "nvidia-frontend": 195,
        "nvidia": 195,
        "nvidia-uvm": 510,
    }


SONAME = "libnvidia-ml.so.1"
ENTRIES = (
    CacheEntry(SONAME, 0x0000, "/l32/ml"),
    CacheEntry(SONAME, 0x0300, "/gone"),
    CacheEntry(SONAME, 0x0300, "/l/ml"),
)


@pytest.mark.parametrize(
    ("files", "library_path", "path"),
    [
        ("/l32/ml\n/l/ml\n/ld/libnvidia-ml.so.1", ["", "/ld"], "/ld/libnvidia-ml.so.1"),
        ("/l32/ml\n/l/ml\n/usr/lib/libnvidia-ml.so.1", ["/ld"], "/l/ml"),
        (
            "/l32/ml\n/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\n/usr/lib/libnvidia-ml.so.1",
            [],
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        ),
        ("/gone -> gone\n/lib64/libnvidia-ml.so.1", [], "/lib64/libnvidia-ml.so.1"),
        ("/l32/ml", [], None),
    ],
)
def test_nvml_is_found_as_the_loader_would(
    files: str, library_path: list[str], path: str | None
) -> None:
    """NVML is looked up in LD_LIBRARY_PATH, existing cache entries of the architecture, and the
    default directories.
    """
    assert (
        find_loaded_library(
            SnapshotTree(hosts.tree(files)), ENTRIES, SONAME, "x86_64", library_path
        )
        == path
    )


def test_the_machine_decides_the_multiarch_directory() -> None:
    """An aarch64 host uses its own multiarch directory."""
    files: Mapping[str, str] = {"aarch64": "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"}
    for machine, path in files.items():
        assert find_loaded_library(SnapshotTree(hosts.tree(path)), (), SONAME, machine, ()) == path
    assert (
        find_loaded_library(SnapshotTree(hosts.tree(files["aarch64"])), (), SONAME, "x86_64", ())
        is None
    )
