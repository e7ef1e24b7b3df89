"""The gallery's hosts are consistent: each part of a document that another part names exists."""

import binascii
import json
import posixpath
from pathlib import Path

import pytest

from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.simulate import recipe
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Device, Host, RegularFile, Symlink, load_host

#: Hosts that one line describes.
MADE = ["b200-580", "gb200-580", "h100-550", "h100-580", "l40s-580"]
#: Libraries of the driver's packages that have versions of their own.
OWN_VERSIONS = ("libnvidia-egl-wayland.so.", "libnvidia-nvvm.so.4.0.")


@pytest.fixture(params=gallery.with_hook())
def host(request: pytest.FixtureRequest) -> Host:
    """Load each host of the gallery."""
    return load_host(gallery.path(request.param))


def resolve(host: Host, path: str) -> str:
    """Return the file to which ``path`` leads in the driver root, symbolic links followed.

    :raises KeyError: when it is not recorded.
    """
    done, todo, links = "/", path.strip("/").split("/"), 0
    while todo:
        part = todo.pop(0)
        done = posixpath.normpath(posixpath.join(done, part))
        entry = host.files[done]
        if isinstance(entry, Symlink):
            links += 1
            assert links <= 20, f"{path}: too many links"
            todo = entry.target.strip("/").split("/") + todo
            done = "/" if entry.target.startswith("/") else posixpath.dirname(done)
    return done


def test_the_gallery_has_every_kind_of_host() -> None:
    """It has at least the six kinds of nodes that this project promises."""
    promised = {
        "debian-a100x8",
        "eks-t4",
        "runfile-a10x2",
        "operator-driver-root",
        "mig-h100",
        "debian-compat32",
    }
    assert promised <= set(gallery.names())


def test_the_checksums_are_those_of_the_documents() -> None:
    """Every document has its checksum in the table, so that it is not checked at every start."""
    assert set(gallery.CHECKSUMS) == set(gallery.names())
    for name in gallery.names():
        raw = Path(gallery.path(name)).read_bytes()
        assert gallery.is_shipped(name, raw), f"{name}: {binascii.crc32(raw):#x}"


def test_a_changed_document_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document of the gallery that somebody has changed is refused like any other wrong one."""
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["nvml"]["gpus"][0]["minor"] = "first"
    (tmp_path / "eks-t4.json").write_text(json.dumps(document))
    monkeypatch.setattr(gallery, "_DIRECTORY", str(tmp_path))
    with pytest.raises(
        InputError, match=r"\$\.nvml\.gpus\[0\]\.minor: input should be a valid integer"
    ):
        read_snapshot("eks-t4")


@pytest.mark.parametrize("name", MADE)
def test_a_host_that_is_made_from_a_line_is_what_the_line_makes(name: str) -> None:
    """A document with `made_from` is the one that `nvgraft simulate --make` makes of that line."""
    document = json.loads(Path(gallery.path(name)).read_text())
    line, description = document["made_from"], document["description"]
    assert recipe.make_document(line, name, description) == document


def test_an_upgrade_changes_the_driver_and_nothing_else() -> None:
    """The hosts h100-550 and h100-580 have the same GPUs and nodes, and another driver."""
    before, after = (load_host(gallery.path(name)) for name in ("h100-550", "h100-580"))
    assert before.nvml.gpus == after.nvml.gpus
    assert before.topology == after.topology
    nodes = [
        {path: entry for path, entry in host.files.items() if path.startswith("/dev")}
        for host in (before, after)
    ]
    assert nodes[0] == nodes[1]
    assert (before.nvml.cuda_version, after.nvml.cuda_version) == ("12.4", "13.0")


def test_the_error_of_an_unknown_host() -> None:
    """The error for an unknown host lists the names of the gallery."""
    with pytest.raises(KeyError, match="eks-t4"):
        gallery.path("eks-t5")


def test_names_and_descriptions(host: Host) -> None:
    """A host has its schema, its own name, and a description of one line for --list."""
    document = json.loads(Path(gallery.path(host.name)).read_text())
    assert document["schema"] == "nvgraft.host/1"
    assert host.description
    assert "\n" not in host.description


def test_every_link_resolves(host: Host) -> None:
    """No recorded symbolic link dangles."""
    for path, entry in host.files.items():
        if isinstance(entry, Symlink):
            assert resolve(host, path) in host.files


def test_every_entry_has_its_directory(host: Host) -> None:
    """The parent of a recorded file is recorded as a directory."""
    for path in host.files:
        parent = posixpath.dirname(path)
        assert parent == "/" or host.files[parent].type == "dir", path


def test_loader_cache_names_recorded_libraries(host: Host) -> None:
    """An entry leads to an ELF file of its class and SONAME, or through a development link."""
    for soname, flags, path in host.ld_so_cache:
        entry = host.files[resolve(host, path)]
        assert isinstance(entry, RegularFile), path
        assert entry.elf, path
        assert entry.elf.bits == {"libc6,x86-64": 64, "libc6,AArch64": 64, "libc6": 32}[flags]
        assert entry.elf.soname == soname or (entry.elf.soname or "").startswith(soname + "."), path


def test_every_library_has_a_soname_link(host: Host) -> None:
    """The directory of each library has a link of its SONAME that leads to it."""
    for path, entry in host.files.items():
        if isinstance(entry, RegularFile) and entry.elf and entry.elf.soname:
            assert resolve(host, posixpath.join(posixpath.dirname(path), entry.elf.soname)) == path


def test_libraries_are_of_the_driver_version(host: Host) -> None:
    """Libraries, firmware and kernel module have the version that NVML reports."""
    version = host.nvml.driver_version
    report = host.files["/proc/driver/nvidia/version"]
    assert isinstance(report, RegularFile)
    assert f" {version} " in (report.content or "")
    for path, entry in host.files.items():
        name = posixpath.basename(path)
        if isinstance(entry, RegularFile) and ".so." in name and not name.startswith(OWN_VERSIONS):
            assert name.endswith(f".so.{version}")
        if "/firmware/nvidia/" in path:
            assert path.split("/firmware/nvidia/")[1].split("/")[0] == version
    assert any(path.endswith(f"/libnvidia-ml.so.{version}") for path in host.files)


def test_every_gpu_has_its_node_and_proc_entry(host: Host) -> None:
    """A GPU has a device node, and a directory of /proc/driver/nvidia/gpus with its UUID."""
    assert host.nvml.gpus
    for gpu in host.nvml.gpus:
        node = host.files[f"/dev/nvidia{gpu.minor}"]
        assert isinstance(node, Device)
        assert node.rdev == (195, gpu.minor)
        address = f"{gpu.pci.domain:04x}:{gpu.pci.bus:02x}:{gpu.pci.device:02x}.0"
        information = host.files[f"/proc/driver/nvidia/gpus/{address}/information"]
        assert isinstance(information, RegularFile)
        assert gpu.uuid in (information.content or "")
        assert gpu.model in (information.content or "")
    nodes = [path for path in host.files if path.removeprefix("/dev/nvidia").isdecimal()]
    assert len(nodes) == len(host.nvml.gpus)
    assert len({gpu.uuid for gpu in host.nvml.gpus}) == len(host.nvml.gpus)


def test_device_majors_are_registered(host: Host) -> None:
    """The major number of each device node is in /proc/devices."""
    for path, entry in host.files.items():
        if isinstance(entry, Device):
            assert entry.rdev[0] in host.char_majors.values(), path


def test_mig_devices_have_capabilities(host: Host) -> None:
    """A MIG device belongs to a GPU in MIG mode, and its two access files to nvidia-caps nodes."""
    for gpu in host.nvml.gpus:
        assert bool(gpu.mig_devices) == (gpu.mig == "enabled")
        for mig in gpu.mig_devices:
            instance = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{mig.gpu_instance}"
            for access in (f"{instance}/access", f"{instance}/ci{mig.compute_instance}/access"):
                entry = host.files[access]
                assert isinstance(entry, RegularFile)
                minor = int((entry.content or "").splitlines()[0].removeprefix("DeviceFileMinor: "))
                node = host.files[f"/dev/nvidia-caps/nvidia-cap{minor}"]
                assert isinstance(node, Device)
                assert node.rdev == (host.char_majors["nvidia-caps"], minor)


def test_file_content_has_its_size(host: Host) -> None:
    """The recorded size of a recorded text is its length."""
    for path, entry in host.files.items():
        if isinstance(entry, RegularFile) and entry.content is not None:
            assert entry.size == len(entry.content.encode()), path


def test_nvidia_tls_has_the_abi_tag_that_selects_it(host: Host) -> None:
    """libnvidia-tls is mounted only with the ABI tag 2.3.99 (reference behaviour 5.3)."""
    for path, entry in host.files.items():
        if posixpath.basename(path).startswith("libnvidia-tls.so.") and isinstance(
            entry, RegularFile
        ):
            assert entry.elf
            assert entry.elf.abi_tag == (2, 3, 99)
