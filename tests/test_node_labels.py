"""Labels of a node, and the host document as a source of the device plugin."""

import json
import os
import signal
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvgraft_device_plugin import cdi_files, main, prepare
from nvgraft_device_plugin.configuration import Configuration, load
from nvgraft_device_plugin.devices import MigDevice, MigProfile, Node, NodeGpu
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.files import write_whole
from nvgraft_device_plugin.labels import node_labels
from nvgraft_device_plugin.source import RecordedSource
from nvgraft_specs import gallery

SLICE = MigProfile(1, 1, 4864, 14, "", (1, 0, 0, 0, 0))
MEDIA = MigProfile(1, 1, 4864, 14, "+me", (1, 1, 0, 1, 1))


def gpu(index: int, *profiles: MigProfile, **facts: Any) -> NodeGpu:
    """Make a GPU; one with MIG devices has MIG enabled."""
    migs = tuple(
        MigDevice(f"MIG-{index}-{number}", number, 0, profile)
        for number, profile in enumerate(profiles)
    )
    known: dict[str, Any] = {
        "index": index,
        "minor": index,
        "uuid": f"GPU-{index}",
        "bus_id": f"00000000:{index:02X}:00.0",
        "model": "NVIDIA A100-SXM4-40GB",
        "brand": 14,
        "arch": "8.0",
        "memory": 40960,
        "numa_node": None,
        "mig_enabled": True if profiles else None,
        "mig_devices": migs,
    }
    return NodeGpu(**known | facts)


def labels(*gpus: NodeGpu, words: tuple[str, ...] = (), file: str = "", **facts: Any) -> Any:
    """Return the labels of a node with these GPUs, without the vendor's prefix."""
    names = [f"gpu{g.minor}/gi{n}/{part}access" for g in gpus for n in range(8) for part in ("", "ci0/")]  # fmt: skip
    known = {"platform": "nvml", "driver": "550.54.15", "cuda": "12.4", "gpus": gpus}
    read = Node(**{**known, "mig_minors": dict.fromkeys(names, 1), **facts})
    found = node_labels(read, configured(*words, file=file), "PowerEdge (R760)")
    assert list(found) == sorted(found)
    return {name.removeprefix("nvidia.com/"): value for name, value in found.items()}


def configured(*words: str, file: str = "") -> Configuration:
    """Return a configuration with a config file."""
    words = (*words, "--config-file=given") if file else words
    return load(words, {}, lambda _: file.encode())


def of(found: dict[str, str], start: str) -> dict[str, str]:
    """Return the labels that begin so, without this beginning."""
    return {k.removeprefix(start): v for k, v in found.items() if k.startswith(start)}


def test_a_node_has_labels_of_driver_and_gpus() -> None:
    """Driver, CUDA, and what the GPUs are, with old and new names of the versions."""
    found = labels(gpu(0), gpu(1))
    assert of(found, "cuda.driver.") == {"major": "550", "minor": "54", "rev": "15"}
    assert of(found, "cuda.driver-version.") == {
        "major": "550", "minor": "54", "revision": "15", "full": "550.54.15",
    }  # fmt: skip
    assert of(found, "cuda.runtime.") == {"major": "12", "minor": "4"}
    assert of(found, "cuda.runtime-version.") == {"major": "12", "minor": "4", "full": "12.4"}
    assert of(found, "gpu.") == {
        "product": "NVIDIA-A100-SXM4-40GB",
        "count": "2",
        "memory": "40960",
        "replicas": "1",
        "sharing-strategy": "none",
        "family": "ampere",
        "compute.major": "8",
        "compute.minor": "0",
        "machine": "PowerEdge-R760",
        "mode": "unknown",
    }
    assert {name: found[name] for name in ("mig.capable", "mps.capable", "vgpu.present")} == {
        "mig.capable": "false",
        "mps.capable": "false",
        "vgpu.present": "false",
    }
    assert "mig.strategy" not in found


def test_a_node_without_gpus_says_little() -> None:
    """Nothing but that there is no vGPU."""
    assert labels() == {"vgpu.present": "false"}


@pytest.mark.parametrize(
    ("arch", "family"),
    [
        *[("3.7", "kepler"), ("7.0", "volta"), ("7.5", "turing"), ("8.6", "ampere")],
        *[("8.9", "ada-lovelace"), ("9.0", "hopper"), ("10.3", "blackwell")],
        *[("12.0", "blackwell"), ("4.0", "undefined")],
    ],
)
def test_families(arch: str, family: str) -> None:
    """The family follows from the compute capability."""
    assert labels(gpu(0, arch=arch))["gpu.family"] == family


@pytest.mark.parametrize(
    ("classes", "mode"),
    [([0x300], "graphics"), ([0x302, 0x302], "compute"), ([0x300, 0x302], "unknown")],
)
def test_the_mode_is_that_of_all_gpus(classes: list[int], mode: str) -> None:
    """GPUs of both kinds have no common mode."""
    gpus = [gpu(number, pci_class=kind) for number, kind in enumerate(classes)]
    assert labels(*gpus)["gpu.mode"] == mode


def test_a_clique_is_named_once() -> None:
    """GPUs of two cliques have no label of it."""
    assert labels(gpu(0, clique="c.1"), gpu(1, clique="c.1"))["gpu.clique"] == "c.1"
    assert "gpu.clique" not in labels(gpu(0, clique="c.1"), gpu(1, clique="c.2"))


def test_a_driver_version_without_a_revision() -> None:
    """Its revision is empty; a version of another form is an error."""
    assert labels(gpu(0), driver="560.94")["cuda.driver-version.revision"] == ""
    with pytest.raises(NodeError, match='Version "560" does not match'):
        labels(gpu(0), driver="560")


def test_what_is_not_known_has_no_label() -> None:
    """A GPU whose memory NVML does not tell."""
    assert "gpu.memory" not in labels(gpu(0, memory=0))


def test_shared_gpus_say_so() -> None:
    """In the product, unless the resource's name says so."""
    file = "sharing: {timeSlicing: {%s resources: [{name: gpu, replicas: 4}]}}"
    found = labels(gpu(0), gpu(1), file=file % "")
    assert of(found, "gpu.")["product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert found["gpu.count"] == "2"
    assert (found["gpu.replicas"], found["gpu.sharing-strategy"]) == ("4", "time-slicing")
    renamed = labels(gpu(0), file=file % "renameByDefault: true,")
    assert renamed["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert renamed["gpu.replicas"] == "4"


def test_mps() -> None:
    """MPS is a way of sharing, which MIG devices cannot have."""
    file = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
    found = labels(gpu(0), file=file)
    assert (found["mps.capable"], found["gpu.sharing-strategy"]) == ("true", "mps")
    with pytest.raises(NodeError, match="MPS sharing is not supported for mig devices"):
        labels(gpu(0, SLICE), file=file)


def test_mig_devices_under_mixed() -> None:
    """Each profile has labels of its own; GPUs are counted with and without MIG."""
    found = labels(gpu(0), gpu(1, SLICE, SLICE, MEDIA), words=("--mig-strategy=mixed",))
    assert found["mig.strategy"] == "mixed"
    assert (found["gpu.count"], found["gpu.replicas"]) == ("2", "1")
    assert of(found, "mig-1g.5gb.")["count"] == "2"
    assert of(found, "mig-1g.5gb.me.") == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me",
        "count": "1",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "4864",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "1",
        "engines.decoder": "1",
        "engines.encoder": "0",
        "engines.jpeg": "1",
        "engines.ofa": "1",
    }


def test_mig_devices_under_single() -> None:
    """They take the place of the GPU's labels, and may be shared like a GPU."""
    file = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"
    found = labels(gpu(0, SLICE, SLICE), gpu(1, SLICE), words=("--mig-strategy=single",), file=file)
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"
    assert (found["gpu.count"], found["gpu.memory"]) == ("3", "4864")
    assert found["gpu.slices.gi"] == "1"
    assert found["gpu.family"] == "ampere"


@pytest.mark.parametrize(
    "gpus", [[gpu(0, SLICE), gpu(1)], [gpu(0, SLICE, MEDIA)], [gpu(0, mig_enabled=True)]]
)
def test_mig_devices_that_do_not_fit(gpus: list[NodeGpu]) -> None:
    """A node that advertises nothing under single says that its devices are invalid."""
    found = labels(*gpus, words=("--mig-strategy=single",))
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert (found["gpu.count"], found["gpu.memory"]) == ("0", "0")
    assert (found["gpu.replicas"], found["gpu.sharing-strategy"]) == ("0", "")


def test_whole_gpus_of_a_mig_node_without_a_strategy() -> None:
    """GPUs with MIG count, and have no replicas."""
    found = labels(gpu(0, SLICE))
    assert (found["gpu.count"], found["gpu.replicas"]) == ("1", "0")


# ---- the command


def lines_of(capsys: Any) -> dict[str, str]:
    """Return the printed labels."""
    return dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", gallery.names())
def test_labels_of_every_host_of_the_gallery(name: str, capsys: Any) -> None:
    """They are printed without a GPU, each as Kubernetes accepts it."""
    assert main.main(["labels", "--host", name, "--no-timestamp"]) == 0
    found = lines_of(capsys)
    count = len(json.loads(Path(gallery.path(name)).read_text())["nvml"]["gpus"])
    assert found.get("nvidia.com/gpu.count", "0") == str(count)
    for value in found.values():
        assert len(value) < 64
        assert value == "" or (value[0] + value[-1]).isalnum()


def test_labels_are_kept_in_a_file_until_the_end(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole at every moment, written again, and removed at the end."""
    path = tmp_path / "features.d" / "gfd"
    seen: list[tuple[float, list[str], int]] = []
    answers = iter([None, SimpleNamespace(si_signo=signal.SIGHUP), SimpleNamespace(si_signo=signal.SIGTERM)])  # fmt: skip

    def wait(_signals: object, timeout: float) -> object:
        seen.append((timeout, os.listdir(path.parent), path.stat().st_ino))
        return next(answers)

    monkeypatch.setattr(signal, "sigtimedwait", wait)
    words = ["labels", "--host=eks-t4", f"--output-file={path}", "--sleep-interval=1m30s"]
    assert main.main(words) == 0
    assert [(timeout, names) for timeout, names, _ in seen] == [(90.0, ["gfd"])] * 3
    assert len({inode for _, _, inode in seen}) > 1
    assert os.listdir(path.parent) == []
    assert capsys.readouterr().err.startswith(f"labels: wrote 26 labels to {path}\n")


def test_labels_written_once_stay(tmp_path: Path, capsys: Any) -> None:
    """With --oneshot the file is not removed; others may read it."""
    path = tmp_path / "gfd"
    assert main.main(["labels", "--host=eks-t4", "-o", str(path), "--oneshot"]) == 0
    assert "nvidia.com/gpu.product=Tesla-T4\n" in path.read_text()
    assert "nvidia.com/gfd.timestamp=" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--host=nosuch"], "--host nosuch: nosuch: cannot be read: no such file or directory"),
        (["--host=eks-t4", "--sleep-interval=soon"], "invalid value 'soon' for --sleep-interval"),
        (["--host=eks-t4", "--output-file=/proc/x/y"], "/proc/x: No such file or directory"),
    ],
)
def test_what_cannot_be_labelled(words: list[str], text: str, capsys: Any) -> None:
    """One line with cause and fix, and exit code 1."""
    assert main.main(["labels", *words]) == 1
    assert text in capsys.readouterr().err


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    """A directory of that name stays, and the new file goes."""
    (tmp_path / "gfd").mkdir()
    with pytest.raises(OSError):
        write_whole(str(tmp_path / "gfd"), "x")
    assert os.listdir(tmp_path) == ["gfd"]


# ---- a host document as a source


def test_a_recorded_host_is_a_source() -> None:
    """Its device nodes, its platform and its GPUs are those of the document."""
    source = RecordedSource("mig-h100")
    assert source.loads
    assert source.platform("auto") == "nvml"
    assert source.platform("tegra") == "tegra"
    assert [gpu.minor for gpu in source.read().gpus] == [0, 1]
    assert source.exists("/dev/nvidiactl")
    assert not source.exists("/dev/nvidia7")
    assert "nvidia0" in source.names("/dev")
    for name, kind in (("jetson-orin", "tegra"), ("wsl2-rtx3090", "wsl")):
        assert RecordedSource(name).platform("auto") == kind
    assert not RecordedSource("jetson-orin").loads


def test_cdi_specifications_of_a_recorded_host() -> None:
    """They have its GPUs, and its nodes of optional parts."""
    source = RecordedSource("debian-a100x8")
    config = load(["--gds-enabled"], {})
    read = source.read()
    specs = dict(
        cdi_files.specifications(
            [SimpleNamespace(devices=read.gpus)],  # type: ignore[list-item]
            config,
            lambda: source.gpu_specification(read, config),
            lambda directory: [*source.names(directory), "nvidia-fs0"],
        )
    )
    assert len(specs["gpu"].devices) == 8
    (gds,) = specs["gds"].devices
    assert [node.path for node in gds.edits.nodes] == ["/dev/nvidia-fs0"]


def test_a_replaced_document_is_noticed(tmp_path: Path) -> None:
    """The plugin reads it again when its sign changes."""
    path = tmp_path / "host.json"
    path.write_bytes(Path(gallery.path("eks-t4")).read_bytes())
    source = RecordedSource(str(path))
    before = source.signs()
    assert before == source.signs()
    write_whole(str(path), Path(gallery.path("h100-580")).read_text())
    assert source.signs() != before
    path.unlink()
    assert source.signs() == ()


def test_a_document_that_is_none(tmp_path: Path) -> None:
    """The error names the place in the document."""
    (tmp_path / "host.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"--host .*host.json: \$"):
        RecordedSource(str(tmp_path / "host.json"))


# ---- prepare


def test_a_user_is_added_to_an_access_control_list() -> None:
    """The mode stays for the others; a user that is there gets all rights."""
    once = prepare.with_user(prepare.of_mode(0o750), 65534)
    entries = [struct.unpack("<HHI", once[at : at + 8]) for at in range(4, len(once), 8)]
    none = 0xFFFFFFFF
    assert entries == [(1, 7, none), (2, 7, 65534), (4, 5, none), (0x10, 7, none), (0x20, 0, none)]
    assert prepare.with_user(once, 65534) == once


def test_prepare_opens_a_directory_and_what_is_made_there(tmp_path: Path) -> None:
    """The lists of the directory, of its sockets, and of new files have the user."""
    place = tmp_path / "kubelet"
    place.mkdir(0o750)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "kubelet.sock"))
        assert main.main(["prepare", "--user=4711", str(place)]) == 0
    (place / "new").write_text("")
    user = struct.pack("<HHI", 2, 7, 4711)
    for path in (place, place / "kubelet.sock", place / "new"):
        assert user in os.getxattr(path, "system.posix_acl_access")


def test_prepare_opens_sockets_that_are_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --keep, also one that the umask of its maker has closed; a socket of somebody else and
    one that goes are left alone.
    """
    path = tmp_path / "kubelet.sock"
    lists: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)

    def wait(_signals: object, _seconds: float) -> object:
        if not path.exists():
            umask = os.umask(0o022)
            listener.bind(str(path))
            os.umask(umask)
        lists.append(os.getxattr(path, "system.posix_acl_access"))
        return None if len(lists) < 3 else SimpleNamespace(si_signo=signal.SIGTERM)

    monkeypatch.setattr(signal, "sigtimedwait", wait)
    with listener:
        assert main.main(["prepare", "--keep", str(tmp_path)]) == 0
    mask = struct.pack("<HHI", 0x10, 7, 0xFFFFFFFF)
    assert [mask in acl for acl in lists] == [False, True, True]
    assert struct.pack("<HHI", 2, 7, 65534) in lists[1]
    os.removexattr(path, "system.posix_acl_access")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    prepare.open_sockets(str(tmp_path), 65534)
    with pytest.raises(OSError):
        os.getxattr(path, "system.posix_acl_access")
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", lambda _: ["gone"])
    prepare.open_sockets(str(tmp_path), 65534)


def test_prepare_says_what_it_cannot_open(tmp_path: Path, capsys: Any) -> None:
    """One line with cause and fix, and exit code 1."""
    with pytest.raises(SystemExit, match="1"):
        main.main(["prepare", str(tmp_path / "nothing")])
    assert "nothing: No such file or directory | run this as root" in capsys.readouterr().err
