"""``nvgraft snapshot``: a document that gives the same plans, of a host or of a driver that is not
installed.
"""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import hosts
from bundles import EVERYTHING, make_bundle
from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import recorded_facts
from nvgraft.formats.ldcache_entries import CacheEntry
from nvgraft.formats.tree import Bounds, LiveTree
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.document import plan_document
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.case.processor import read_isa_level
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import shared_object
from nvgraft_cli.snapshot.package import open_package, unsupported
from nvgraft_cli.snapshot.recording import record
from nvgraft_specs import gallery
from nvgraft_specs.models.host import parse_host
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
EXAMPLE = Path(__file__).parent.parent / "docs/examples/one-gpu"


@pytest.mark.parametrize("name", gallery.with_hook())
def test_a_recorded_host_has_the_same_inventory(name: str) -> None:
    """The inventory read from a recorded document equals the inventory of the host."""
    document = record(snapshot_host(read_snapshot(name)), OFFLINE_PATH, "")
    assert read_inventory(snapshot_host(document), OFFLINE_PATH) == read_inventory(
        snapshot_host(read_snapshot(name)), OFFLINE_PATH
    )


@pytest.mark.parametrize("name", gallery.names())
def test_a_recorded_host_has_the_same_specification(
    name: str, tmp_path: Path, capsys: Captured
) -> None:
    """Containers with CDI edits get the same from a recorded document as from the host, also on
    WSL2 and Tegra boards: the runtime finds the same mode, files, nodes and links.
    """
    host = read_snapshot(name)
    facts = recorded_facts(host)
    recorded = tmp_path / "host.json"
    recorded.write_text(json.dumps(record(snapshot_host(host), OFFLINE_PATH, "", facts)))
    plans = []
    for side in (name, str(recorded)):
        words = ["--host", side, "--mode", "runtime", "--env", "NVIDIA_VISIBLE_DEVICES=all"]
        main(["plan", "--container", str(EXAMPLE), *words, "--format", "json"])
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[0] == plans[1]
    assert plans[0]["decision"] == "inject"


@pytest.mark.parametrize("name", gallery.with_hook())
def test_a_recording_is_deterministic_and_stable(name: str, tmp_path: Path) -> None:
    """One host gives the same bytes twice, and recording a recording gives the same document."""
    first, second = (
        json.dumps(record(snapshot_host(read_snapshot(name)), OFFLINE_PATH, "")) for _ in range(2)
    )
    assert first == second
    path = tmp_path / "h.json"
    path.write_text(first)
    assert json.dumps(record(snapshot_host(read_snapshot(str(path))), OFFLINE_PATH, "")) == first


def test_only_files_that_answers_need_are_recorded() -> None:
    """Files beside the driver's, users' files, and contents outside of /proc are not recorded."""
    others = (
        "/usr/lib/x86_64-linux-gnu/libssl.so.3\n/home/u/.ssh/id = secret\n/etc/shadow ="
        " secret\n/etc/debian_version = 12.5\n"
    )
    document = hosts.full_host(others)
    files = record(snapshot_host(document), OFFLINE_PATH, "")["files"]
    assert "/etc/debian_version" in files
    assert not {
        "/usr/lib/x86_64-linux-gnu/libssl.so.3",
        "/home/u/.ssh/id",
        "/etc/shadow",
        "/home",
    } & set(files)
    assert [
        path
        for path, entry in files.items()
        if "content" in entry and not path.startswith("/proc/")
    ] == []


def live(monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]) -> None:
    """Make a recorded host the live host."""
    monkeypatch.setattr(
        "nvgraft.host.live.read_live_host", lambda *_, **__: snapshot_host(document)
    )


def test_this_host_is_written_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The document is written to a file with the given name, replacing an old one without leaving
    others beside it.
    """
    live(monkeypatch, read_snapshot("mig-h100"))
    path = tmp_path / "out.json"
    path.write_text("old")
    assert main(["snapshot", "-o", str(path), "--name", "node17"]) == 0
    assert capsys.readouterr() == ("", "")
    assert os.listdir(tmp_path) == ["out.json"]
    document = read_snapshot(str(path))
    assert (document["schema"], document["name"]) == ("nvgraft.host/1", "node17")
    assert document.get("isa_level") == read_isa_level()
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert (
        plan_bundle(bundle, str(path), None)[0].actions
        == plan_bundle(bundle, "mig-h100", None)[0].actions
    )


@pytest.mark.parametrize(
    ("model", "said", "recorded"),
    [
        ("NVIDIA H100 80GB HBM3", ["3g.40gb", "1g.10gb+me"], ["3g.40gb", "1g.10gb+me"]),
        ("NVIDIA H100 80GB HBM3", ["1c.3g.40gb", ""], ["1c.3g.40gb", None]),
        ("NVIDIA H100 80GB HBM3", ["9g.1gb", "1g.10gb"], [None, "1g.10gb"]),
        ("NVIDIA H100 80GB HBM3", ["of two words", "7g.80gb"], [None, "7g.80gb"]),
        ("NVIDIA Of Tomorrow", ["3g.40gb", "1g.10gb"], [None, None]),
    ],
)
def test_profiles_of_mig_devices_are_recorded_where_the_product_is_known(
    model: str, said: list[str], recorded: list[str | None]
) -> None:
    """A document has each profile that its product has; another one is left out, and the document
    can be read.
    """
    host = snapshot_host(read_snapshot("mig-h100"))
    migs = tuple(MigDevice(f"MIG-{at}", at, 0, name) for at, name in enumerate(said))
    gpu = Gpu(0, "GPU-0", "00000000:1b:00.0", 14, "9.0", "enabled", model, migs)
    host.report = DriverReport("570.172.08", "12.8", (gpu,))
    document = record(host, OFFLINE_PATH, "")
    (written,) = document["nvml"]["gpus"]
    assert [device.get("profile") for device in written["mig_devices"]] == recorded
    parse_host(json.dumps(document).encode(), "the snapshot")


def test_a_snapshot_asks_for_the_profiles_of_mig_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The GPUs of a document are what NVML answers with the profiles of MIG devices."""
    asked: list[dict[str, object]] = []

    def read(_: object, **how: object) -> Host:
        asked.append(how)
        return snapshot_host(read_snapshot("mig-h100"))

    monkeypatch.setattr("nvgraft.host.live.read_live_host", read)
    assert main(["snapshot"]) == 0
    assert asked == [{"mig_profiles": True}]
    assert json.loads(capsys.readouterr().out)["nvml"] == read_snapshot("mig-h100")["nvml"]


def test_the_document_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Without -o the document is printed."""
    live(monkeypatch, read_snapshot("eks-t4"))
    assert main(["snapshot"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["nvml"]["driver_version"]
        == read_snapshot("eks-t4")["nvml"]["driver_version"]
    )


NODE = os.uname().nodename


@pytest.mark.parametrize("kept", [False, True])
def test_names_and_serial_numbers_are_kept_only_if_asked_for(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Without --identities a document has neither the host's name nor a serial number; UUIDs of
    GPUs stay, because containers ask for them.
    """
    document = read_snapshot("eks-t4") | {"name": NODE}
    information = next(path for path in document["files"] if path.endswith("/information"))
    version = document["files"]["/proc/driver/nvidia/version"]
    version["content"] = version["content"].replace("\n", f"  (root@{NODE})\n", 1)
    document["files"][information]["content"] += "Serial Number: \t 1560219012345\n"
    live(monkeypatch, document)
    assert main(["snapshot", *(["--identities"] if kept else [])]) == 0
    out = capsys.readouterr().out
    written = json.loads(out)
    assert written["name"] == (NODE if kept else "host")
    assert ("1560219012345" in out) == kept
    assert (f"(root@{NODE})" in out) == kept
    assert ("(root@host)" in out) != kept
    assert written["nvml"] == read_snapshot("eks-t4")["nvml"]
    assert document["nvml"]["gpus"][0]["uuid"] in written["files"][information]["content"]


def test_a_host_without_a_driver_is_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A host without a driver gives the hook's own line, exit code 1 and no file."""

    def none(*_: object, **__: object) -> Host:
        raise Refusal("initialization", "load library failed: libnvidia-ml.so.1", "no driver")

    monkeypatch.setattr("nvgraft.host.live.read_live_host", none)
    assert main(["snapshot", "-o", str(tmp_path / "out.json")]) == 1
    assert (
        capsys.readouterr().err
        == "nvgraft: initialization error: load library failed: libnvidia-ml.so.1 | no driver\n"
    )
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A place that cannot be written to is refused in one line with path, cause and fix."""
    live(monkeypatch, read_snapshot("eks-t4"))
    assert main(["snapshot", "-o", str(tmp_path / "none/out.json")]) == 2
    assert (
        "none/out.json: cannot be written: no such file or directory: " in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "eks-t4"], "--root DIR"),
        (["--installed-at", "/x"], "--root DIR"),
        (["--root", "/none", "--installed-at", "x"], "not an absolute path"),
    ],
)
def test_arguments_that_do_not_fit_are_input_errors(
    arguments: list[str], words: str, capsys: Captured
) -> None:
    """Options that do not fit together exit with 2 and one line."""
    assert main(["snapshot", *arguments]) == 2
    assert words in capsys.readouterr().err


# ---- a driver that is not installed


def unpack(place: Path, source: str) -> Path:
    """Create the libraries and binaries of a gallery host below ``place`` as in unpacked packages,
    without cache and links.
    """
    for path, entry in read_snapshot(source)["files"].items():
        if entry["type"] != "file" or path.startswith(("/dev", "/proc", "/etc")):
            continue
        target = place / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        facts = entry.get("elf")
        tag = tuple(facts["abi_tag"]) if facts and facts["abi_tag"] else None
        content = (
            shared_object(facts["bits"], facts["machine"], facts["soname"], facts["needed"], tag)
            if facts
            else b"#!/bin/sh\n"
        )
        target.write_bytes(content)
        target.chmod(int(entry["mode"], 8))
    return place


@pytest.mark.parametrize("name", ["runfile-a10x2", "debian-a100x8", "debian-compat32"])
def test_an_unpacked_driver_has_the_libraries_of_the_installed_one(
    name: str, tmp_path: Path
) -> None:
    """The libraries of an unpacked driver, 32-bit ones too, are found in any directory without a
    loader cache, with versions from the files.
    """
    installed = snapshot_host(read_snapshot(name))
    package = open_package(str(unpack(tmp_path, name)), "/", installed)
    assert package.report == installed.report
    unpacked, expected = (
        read_inventory(package, OFFLINE_PATH),
        read_inventory(installed, OFFLINE_PATH),
    )
    for part in ("libraries", "libraries32"):
        ours, theirs = (
            [(library.name, library.row) for library in getattr(inventory.files, part)]
            for inventory in (unpacked, expected)
        )
        assert ours == theirs, part
    assert unpacked.devices.control == expected.devices.control
    assert [gpu.node for gpu in unpacked.devices.gpus] == [
        gpu.node for gpu in expected.devices.gpus
    ]


def test_an_upgrade_is_planned_before_it_is_installed(tmp_path: Path, capsys: Captured) -> None:
    """A snapshot with the new driver's files and another host's GPUs can be planned before the
    upgrade.
    """
    new = tmp_path / "new.json"
    arguments = [
        "--root",
        str(unpack(tmp_path / "driver", "debian-a100x8")),
        "--gpus",
        "runfile-a10x2",
        "-o",
        str(new),
    ]
    assert main(["snapshot", *arguments]) == 0
    assert capsys.readouterr() == ("", "")
    document = read_snapshot(str(new))
    version = read_snapshot("debian-a100x8")["nvml"]["driver_version"]
    assert document["root"] == "/"
    assert document["name"] == f"driver-{version}"
    assert document["nvml"]["gpus"] == read_snapshot("runfile-a10x2")["nvml"]["gpus"]
    plan, refusal = plan_bundle(str(make_bundle(tmp_path / "b", *EVERYTHING)), str(new), None)
    assert refusal is None
    assert f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}" in hosts.mount_targets(plan)
    assert "/dev/nvidia1" in hosts.mount_targets(plan)


def test_a_package_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with any number of directories is no driver, and is not walked to its end."""
    for number in range(20):
        (tmp_path / "usr/lib" / str(number)).mkdir(parents=True)
    monkeypatch.setattr("nvgraft_cli.snapshot.package.Bounds", lambda: Bounds(libraries=10))
    with pytest.raises(InputError, match="11 libraries, more than image-libraries = 10 allows"):
        open_package(str(tmp_path), "/", None)


def test_an_upgrade_has_no_text_of_the_old_driver(tmp_path: Path, capsys: Captured) -> None:
    """The texts under /proc have the new version, so doctor finds no mismatch of driver and
    library; the build date of the old module is left out.
    """
    root, new = str(unpack(tmp_path / "driver", "debian-a100x8")), str(tmp_path / "new.json")
    assert main(["snapshot", "--root", root, "--gpus", "runfile-a10x2", "-o", new]) == 0
    document = read_snapshot(new)
    old, version = "560.35.03", document["nvml"]["driver_version"]
    text = document["files"]["/proc/driver/nvidia/version"]["content"]
    assert text.split("\n")[0].endswith(f"Kernel Module  {version}")
    assert old not in json.dumps(document)
    main(["doctor", "--host", new])
    assert "driver-library-mismatch" not in capsys.readouterr().out


def test_an_upgrade_leaves_the_sockets_of_services(tmp_path: Path) -> None:
    """Services of the host that has the GPUs run after the upgrade too: packages have no socket."""
    root, new = str(unpack(tmp_path / "driver", "debian-a100x8")), str(tmp_path / "new.json")
    assert main(["snapshot", "--root", root, "--gpus", "runfile-a10x2", "-o", new]) == 0
    sockets = [
        read_inventory(snapshot_host(read_snapshot(host)), OFFLINE_PATH).files.sockets
        for host in ("runfile-a10x2", new)
    ]
    assert [socket.path for socket in sockets[0]] == [socket.path for socket in sockets[1]] != []


def debian(place: Path) -> Path:
    """Create a driver as Debian's packages have it: programs and firmware in the driver's own
    directories, links to them made by the installation, no /lib.
    """
    unpack(place, "runfile-a10x2")
    programs = place / "usr/lib/nvidia/current"
    programs.mkdir(parents=True)
    (place / "usr/bin/nvidia-smi").rename(programs / "nvidia-smi")
    assert (place / "usr/lib/firmware/nvidia/560.35.03").is_dir()
    assert not (place / "lib").exists()
    return place


@pytest.mark.parametrize(
    ("gpus", "directory"),
    [("debian-a100x8", "/usr/lib/x86_64-linux-gnu"), ("eks-t4", "/usr/lib64")],
)
def test_an_extracted_run_archive_is_installed_where_the_host_has_libraries(
    gpus: str, directory: str, tmp_path: Path
) -> None:
    """The flat files of an extracted .run archive are found where its installer puts them."""
    source, archive = unpack(tmp_path / "source", "runfile-a10x2"), tmp_path / "archive"
    (archive / "firmware").mkdir(parents=True)
    for file in (source / "usr/lib").rglob("*"):
        if file.is_file():
            file.rename(archive / ("firmware" if file.suffix == ".bin" else "") / file.name)
    (source / "usr/bin/nvidia-smi").rename(archive / "nvidia-smi")
    package = open_package(str(archive), "/", snapshot_host(read_snapshot(gpus)))
    document = record(package, OFFLINE_PATH, "")
    files = read_inventory(snapshot_host(document), OFFLINE_PATH).files
    installed = read_inventory(snapshot_host(read_snapshot("runfile-a10x2")), OFFLINE_PATH).files
    assert [library.name for library in files.libraries] == [
        library.name for library in installed.libraries
    ]
    assert {os.path.dirname(library.path) for library in files.libraries} == {directory}
    assert [program.path for program in files.binaries] == ["/usr/bin/nvidia-smi"]
    assert [image.target for image in files.firmware] == [
        image.target for image in installed.firmware
    ]


@pytest.mark.parametrize("lib", [False, True])
def test_files_behind_links_of_the_installation_are_found(lib: bool, tmp_path: Path) -> None:
    """Programs behind Debian's alternatives are found, and firmware below /usr/lib, whether the
    packages have a directory /lib or none.
    """
    root = debian(tmp_path)
    if lib:
        (root / "lib/systemd").mkdir(parents=True)
    package = open_package(str(root), "/", snapshot_host(read_snapshot("eks-t4")))
    document = record(package, OFFLINE_PATH, "")
    files = read_inventory(snapshot_host(document), OFFLINE_PATH).files
    assert "/usr/lib/nvidia/current/nvidia-smi" in {program.path for program in files.binaries}
    assert document["files"]["/usr/bin/nvidia-smi"]["target"] == (
        "/etc/alternatives/nvidia--nvidia-smi"
    )
    firmware = "firmware/nvidia/560.35.03/gsp_ga10x.bin"
    assert (f"/usr/lib/{firmware}", f"/lib/{firmware}") in {
        (image.path, image.target) for image in files.firmware
    }


def test_a_merged_usr_is_one_place(tmp_path: Path, capsys: Captured) -> None:
    """Debian's packages had firmware in /lib until 12, and have it in /usr/lib since: on a host with
    a merged /usr that is one place, for a comparison of hosts and of containers.
    """
    documents = []
    for name in ("old", "new"):
        root = debian(tmp_path / name)
        if name == "old":
            (root / "lib").mkdir()
            (root / "usr/lib/firmware").rename(root / "lib/firmware")
        documents.append(str(tmp_path / f"{name}.json"))
        words = ["snapshot", "--root", str(root), "--gpus", "eks-t4", "-o", documents[-1]]
        assert main(words) == 0
    assert '"/lib/firmware/nvidia/' in Path(documents[0]).read_text()
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    for case in ([], ["--bundle", bundle]):
        capsys.readouterr()
        assert main(["diff", *documents, *case]) == 0
        assert "moved" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["cdi", "generate", "--host"],
        ["dra", "slices", "--host"],
        ["export", "nodes"],
    ],
    ids=" ".join,
)
def test_an_answer_about_gpus_needs_some(
    words: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """What consists of GPUs is refused for a driver that was recorded without any: it was empty, or
    the error sent people to nvidia-smi.
    """
    root, new = str(unpack(tmp_path / "driver", "runfile-a10x2")), str(tmp_path / "new.json")
    assert main(["snapshot", "--root", root, "-o", new]) == 0
    capsys.readouterr()
    assert main([*words, new]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"nvgraft {words[0]}: {new}: this document has no GPUs | record it with")
    assert err.count("\n") == 1


def test_a_driver_without_gpus_answers_what_needs_none(tmp_path: Path, capsys: Captured) -> None:
    """Without --gpus the document answers plans, proofs, requirements and comparisons of the
    driver's files, and the snapshot and each plan say what is not answered.
    """
    new = str(tmp_path / "new.json")
    root = str(unpack(tmp_path / "driver", "runfile-a10x2"))
    assert main(["snapshot", "--root", root, "-o", new]) == 0
    assert capsys.readouterr().err.startswith("nvgraft snapshot: this document has no GPUs: ")
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=12.0"))
    plan, refusal = plan_bundle(bundle, new, None)
    assert refusal is None
    assert plan.findings[0].id == "gpus-not-recorded"
    assert not [target for target in hosts.mount_targets(plan) if target.startswith("/dev")]
    full, _ = plan_bundle(bundle, "runfile-a10x2", None)
    libraries = [target for target in hosts.mount_targets(full) if ".so." in target]
    assert [target for target in hosts.mount_targets(plan) if ".so." in target] == libraries
    assert plan_document(plan)["request"] == plan_document(full)["request"]
    assert plan.reason == full.reason
    refused = str(make_bundle(tmp_path / "c", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=99.0"))
    assert plan_bundle(refused, new, None)[0].decision == "refuse"
    main(["doctor", "--host", new, "--bundle", bundle])
    out = capsys.readouterr().out
    assert "driver-not-loaded" not in out
    assert "gpus-not-recorded" in out
    main(["explain", "--host", new, "--bundle", bundle])
    out = capsys.readouterr().out
    assert "device nodes that are not known" in out.splitlines()[0]
    assert "through NVML" not in out
    assert "recorded from the files of a driver that does not run. Its libraries are" in out
    assert re.search(r"GPUs +not known", out)
    main(["why", "/dev/nvidia0", "--host", new, "--bundle", bundle])
    assert capsys.readouterr().out.startswith("/dev/nvidia0 may be in the container\n")
    assert main(["diff", "runfile-a10x2", new]) == 1
    out = capsys.readouterr().out
    assert "\nGPUs              2 x NVIDIA A10 (A; not known of B)\n" in out
    assert "device nodes, files, GPUs: a driver recorded without GPUs does not contain" in out
    assert "gone" not in out
    assert main(["diff", "runfile-a10x2", new, "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert "device nodes, device rules, files: a driver recorded without GPUs does not" in out
    assert "\nnot compared: sockets, MPS directories and entries of /proc, device nodes" in out
    assert not {"gone", "new", "moved"} & set(out.splitlines())
    assert "fact reason" not in out


def test_gpus_are_taken_from_a_host_that_has_them(tmp_path: Path, capsys: Captured) -> None:
    """A document without GPUs cannot give them to another one."""
    root, new = str(unpack(tmp_path / "driver", "runfile-a10x2")), str(tmp_path / "new.json")
    assert main(["snapshot", "--root", root, "-o", new]) == 0
    assert main(["snapshot", "--root", root, "--gpus", new]) == 2
    assert f"--gpus {new}: this document has no GPUs itself | name" in capsys.readouterr().err


def test_gpus_are_taken_from_a_host_of_the_same_architecture(
    tmp_path: Path, capsys: Captured
) -> None:
    """No host has GPUs of one architecture and libraries of another one."""
    root, new = str(unpack(tmp_path / "driver", "runfile-a10x2")), tmp_path / "new.json"
    assert main(["snapshot", "--root", root, "--gpus", "gb200-580", "-o", str(new)]) == 2
    assert (
        "--gpus gb200-580: this host is aarch64, and the driver in"
        f" {root} is for x86_64 | unpack the packages for aarch64, or name a host of"
    ) in capsys.readouterr().err
    assert not new.exists()


def test_a_driver_package_keeps_its_driver_root(tmp_path: Path) -> None:
    """A package for another driver root than / is recorded for that root."""
    package = open_package(str(unpack(tmp_path, "runfile-a10x2")), "/run/nvidia/driver", None)
    document = record(package, OFFLINE_PATH, "")
    assert document["root"] == "/run/nvidia/driver"
    assert document["nvml"]["gpus"] == []
    assert not any(path.startswith(("/dev", "/proc")) for path in document["files"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_document_that_windows_has_written_again_is_named(
    encoding: str, tmp_path: Path, capsys: Captured
) -> None:
    """A document with a byte order mark is whole: the error says what to do with it."""
    path = tmp_path / "host.json"
    path.write_text(Path(gallery.path("eks-t4")).read_text(), encoding=encoding)
    assert main(["doctor", "--host", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"nvgraft doctor: {path}: not JSON: it begins with a byte order mark"
        " | save it as UTF-8 without one, which Windows PowerShell's > does not do\n"
    )


def library(place: Path, name: str, machine: str = "EM_X86_64") -> None:
    """Create one library of the driver, with the SONAME of its file name."""
    place.mkdir(parents=True, exist_ok=True)
    bits = 32 if machine in {"EM_386", "EM_ARM"} else 64
    soname = f"{name.partition('.so.')[0]}.so.1"
    (place / name).write_bytes(shared_object(bits, machine, soname, [], None))


def driver(root: Path, machine: str = "EM_X86_64", version: str = "550.163.01") -> Path:
    """Create a driver of two libraries, and return their directory."""
    triplet = {"EM_386": "i386", "EM_AARCH64": "aarch64"}.get(machine, "x86_64")
    place = root / f"usr/lib/{triplet}-linux-gnu/nvidia/current"
    for name in ("libcuda", "libnvidia-ml"):
        library(place, f"{name}.so.{version}", machine)
    return place


def refused(root: Path) -> str:
    """Return the error about a directory, and check that it is one line."""
    with pytest.raises(InputError) as raised:
        open_package(str(root), "/", None)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_no_driver_or_two_are_input_errors(tmp_path: Path) -> None:
    """A directory without a driver, or with two versions, is refused with what it has, and where."""
    assert "has no driver: " in refused(tmp_path)
    assert "none: no such file or directory: --root must name" in refused(tmp_path / "none")
    driver(tmp_path)
    library(tmp_path / "usr/lib64", "libcuda.so.999.1")
    library(tmp_path / "usr/lib", "libnvidia-tls.so.550.163.01")
    assert (
        "has the driver versions 550.163.01 (in /usr/lib/x86_64-linux-gnu/nvidia/current),"
        " 999.1 (in /usr/lib64): name a directory with the files of exactly one driver version"
    ) in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("libcuda1_550.163.01-2_amd64.deb", "dpkg-deb -x"),
        ("nvidia-driver-cuda-libs-550.163.01-1.x86_64.rpm", "rpm2cpio"),
        ("NVIDIA-Linux-x86_64-550.163.01.run", "--extract-only"),
    ],
)
def test_a_package_that_is_not_unpacked_is_named(name: str, command: str, tmp_path: Path) -> None:
    """A package in place of a directory, or in it, is named with the command that unpacks it."""
    (tmp_path / name).touch()
    assert f"{name}: not a directory: unpack it (" in refused(tmp_path / name)
    for error in (refused(tmp_path / name), refused(tmp_path)):
        assert name in error
        assert command in error


def test_packages_in_directories_of_their_own_are_named(tmp_path: Path) -> None:
    """Packages that were unpacked into a directory each have no driver together."""
    driver(tmp_path / "libcuda1")
    assert (
        "has no driver: its directory libcuda1 has driver 550.163.01"
        f" | name {tmp_path}/libcuda1, or unpack all packages into one directory"
    ) in refused(tmp_path)


def test_files_of_a_driver_without_its_main_libraries_are_no_driver(tmp_path: Path) -> None:
    """Programs, firmware and modules do not say which driver it is: the error names what does."""
    (tmp_path / "usr/lib/nvidia/current").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia/current/nvidia-smi").touch()
    library(tmp_path / "usr/lib/x86_64-linux-gnu", "libnvcuvid.so.550.163.01")
    assert (
        "has no driver: neither libcuda.so.VERSION nor libnvidia-ml.so.VERSION is in its library"
        " directories | unpack the packages with the driver's libraries into it too"
    ) in refused(tmp_path)


@pytest.mark.parametrize("manifest", [False, True])
def test_a_directory_of_libraries_looks_like_an_archive(manifest: bool, tmp_path: Path) -> None:
    """The libraries in the driver's own directory are not the whole driver: a line says that they
    were taken for an extracted .run archive, which has a list of its files.
    """
    place = driver(tmp_path)
    if manifest:
        (place / ".manifest").touch()
    lines: list[str] = []
    open_package(str(place), "/", None, lines.append)
    words = f"{place}: taken for an extracted .run archive, although it has no .manifest | if it is"
    assert [line.startswith(words) for line in lines] == ([] if manifest else [True])


def test_a_driver_has_one_architecture(tmp_path: Path) -> None:
    """Packages of two architectures are two drivers, although their version is one."""
    driver(tmp_path)
    driver(tmp_path, "EM_AARCH64")
    assert (
        "has libraries for aarch64 and x86_64: name a directory with the packages of one"
        " architecture"
    ) in refused(tmp_path)


@pytest.mark.parametrize("machine", ["EM_386", "EM_ARM"])
def test_libraries_for_32_bit_programs_alone_are_no_driver(machine: str, tmp_path: Path) -> None:
    """A document of them had no library that a program can load, and no word about it."""
    driver(tmp_path, machine)
    assert "driver 550.163.01: has only 32-bit libraries | unpack the packages with the" in refused(
        tmp_path
    )


def test_a_driver_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Files with the names of libraries, none of which is one, are no driver."""
    place = driver(tmp_path)
    (place / "libcuda.so.550.163.01").write_bytes(b"")
    (place / "libnvidia-ml.so.550.163.01").write_bytes(b"version https://git-lfs.github.com/spec")
    assert "driver 550.163.01: none of its libraries can be read (" in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "libnvidia-ml.so",
            "the live host starts no GPU container without it, which plans leave out",
        ),
        ("libcuda.so", "no container can use CUDA on a host without it"),
    ],
)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_driver_without_a_main_library_is_written_with_a_warning(
    name: str, words: str, damaged: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Only some of the driver's packages, or a damaged library, are recorded as they are: a line
    on stderr says what is missing and what follows.
    """
    place = driver(tmp_path / "driver")
    if damaged:
        file = place / f"{name}.550.163.01"
        file.write_bytes(file.read_bytes()[:100])
    else:
        (place / f"{name}.550.163.01").unlink()
    words_of_command = ["--root", str(tmp_path / "driver"), "--gpus", "debian-a100x8"]
    assert main(["snapshot", *words_of_command, "-o", str(tmp_path / "new.json")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nvgraft snapshot: {tmp_path}/driver: ")
    assert words in line
    missing = f"{name}.550.163.01 is left out: it is cut short; " if damaged else f"{name}.1 is not"
    assert missing in line


def test_each_library_that_cannot_be_read_is_named(tmp_path: Path, capsys: Captured) -> None:
    """What ldconfig would leave out is not left out in silence."""
    place = driver(tmp_path / "driver")
    (place / "libnvidia-encode.so.550.163.01").symlink_to("/nix/store/libnvidia-encode.so")
    os.mkfifo(place / "libnvidia-ngx.so.550.163.01")
    library(place, "libnvcuvid.so.550.163.01", "EM_RISCV")
    words = ["--root", str(tmp_path / "driver"), "--gpus", "debian-a100x8"]
    assert main(["snapshot", *words, "-o", str(tmp_path / "new.json")]) == 0
    start = f"nvgraft snapshot: {tmp_path}/driver: /usr/lib/x86_64-linux-gnu/nvidia/current"
    assert capsys.readouterr().err.splitlines() == [
        f"{start}/{name}.so.550.163.01 is left out: {fault} | unpack its package again"
        for name, fault in (
            ("libnvcuvid", "it is for another machine (EM_243)"),
            ("libnvidia-encode", "no such file or directory"),
            ("libnvidia-ngx", "not a regular file"),
        )
    ]


@pytest.mark.parametrize("other", ["", "libnvidia-ml.so.1"])
def test_doctor_tells_a_driver_without_nvml_from_no_driver(
    other: str, tmp_path: Path, capsys: Captured
) -> None:
    """Where libcuda.so.1 is installed there is a driver: the package of libnvidia-ml.so.1 is
    missing, also beside one for 32-bit programs.
    """
    new = tmp_path / "new.json"
    (driver(tmp_path / "driver") / "libnvidia-ml.so.550.163.01").unlink()
    if other:
        library(tmp_path / "driver/usr/lib/i386-linux-gnu", "libnvidia-ml.so.550.163.01", "EM_386")
    assert main(["snapshot", "--root", str(tmp_path / "driver"), "-o", str(new)]) == 0
    capsys.readouterr()
    assert main(["doctor", "--host", str(new)]) == 1
    out = capsys.readouterr().out
    assert "error: nvml-library-missing: " in out
    assert "the driver is installed without its management library" in out
    assert "Debian: libnvidia-ml1" in out


def test_libraries_that_are_links_are_found(tmp_path: Path) -> None:
    """ldconfig follows links to the files of libraries, and so does a snapshot, inside of the
    directory; a link out of it leads to no library.
    """
    store = driver(tmp_path / "store").rename(tmp_path / "store/files")
    place = tmp_path / "usr/lib64"
    place.mkdir(parents=True)
    (place / "libcuda.so.550.163.01").symlink_to("/store/files/libcuda.so.550.163.01")
    outside = tmp_path.with_name("outside")
    library(outside, "libnvidia-encode.so.550.163.01")
    (place / "libnvidia-encode.so.550.163.01").symlink_to(
        f"../../../{outside.name}/libnvidia-encode.so.550.163.01"
    )
    (place / "libnvidia-ml.so.550.163.01").symlink_to(
        "../../store/files/libnvidia-ml.so.550.163.01"
    )
    files = read_inventory(open_package(str(tmp_path), "/", None), OFFLINE_PATH).files
    assert [item.path for item in files.libraries] == [
        "/" + str((store / name).relative_to(tmp_path))
        for name in ("libnvidia-ml.so.550.163.01", "libcuda.so.550.163.01")
    ]


@pytest.mark.parametrize("current", [False, True])
def test_a_loader_cache_that_leads_to_another_driver_is_not_used(
    current: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root file system has the cache of its last ldconfig: after an upgrade it has the SONAMEs
    of the driver, and paths where it is no longer.
    """
    place = driver(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").touch()
    (tmp_path / "usr/lib64").mkdir()
    for name in ("libcuda", "libnvidia-ml"):
        old, new = f"{name}.so.535.1", f"{place}/{name}.so.550.163.01"
        (tmp_path / f"usr/lib64/{name}.so.1").symlink_to(
            new.removeprefix(str(tmp_path)) if current else f"tesla/{old}"
        )
    cached = [
        CacheEntry(f"{name}.so.1", 0x0300, f"/usr/lib64/{name}.so.1")
        for name in ("libnvidia-ml", "libcuda")
    ]
    monkeypatch.setattr("nvgraft_cli.snapshot.package.parse", lambda *_: cached)
    host = open_package(str(tmp_path), "/", None)
    assert (host.entries == cached) == current
    assert len(read_inventory(host, OFFLINE_PATH).files.libraries) == 2


def test_a_directory_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The error has the path of the directory, not that of a descriptor; a directory beside that
    the user did not name is passed over.
    """
    driver(tmp_path / "driver")
    forbidden = "/usr/lib/x86_64-linux-gnu/nvidia"
    listdir = LiveTree.listdir

    def refuse(tree: LiveTree, path: str) -> list[str]:
        if path == forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", "/proc/self/fd/7")
        return listdir(tree, path)

    monkeypatch.setattr(LiveTree, "listdir", refuse)
    assert main(["snapshot", "--root", str(tmp_path)]) == 2
    assert "has no driver: neither " in capsys.readouterr().err
    assert main(["snapshot", "--root", str(tmp_path / "driver")]) == 2
    start = f"nvgraft snapshot: {tmp_path}/driver{forbidden}: permission denied | run as a user who"
    assert capsys.readouterr().err.startswith(start)


def test_a_link_of_the_alternatives_may_lead_nowhere(tmp_path: Path) -> None:
    """A copy of /usr has Debian's links, and not the links in /etc that they lead to."""
    root = debian(tmp_path)
    (root / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia--nvidia-smi")
    files = read_inventory(open_package(str(root), "/", None), OFFLINE_PATH).files
    assert "/usr/lib/nvidia/current/nvidia-smi" in {program.path for program in files.binaries}


@pytest.mark.parametrize("beside", ["", "nvidia", "nvidia/550.163.01"])
def test_firmware_of_two_places_is_one(beside: str, tmp_path: Path) -> None:
    """Packages of one release have firmware in /lib and in /usr/lib: after the installation on a
    merged /usr the driver's is in both.
    """
    root = debian(tmp_path)
    (root / "lib/firmware" / beside).mkdir(parents=True)
    files = read_inventory(open_package(str(root), "/", None), OFFLINE_PATH).files
    assert "/lib/firmware/nvidia/560.35.03/gsp_ga10x.bin" in {
        image.target for image in files.firmware
    }


def test_a_name_that_no_document_can_have_is_an_input_error(
    tmp_path: Path, capsys: Captured
) -> None:
    """JSON has no names that are not UTF-8: one line says which file it is."""
    place = driver(tmp_path / "driver")
    os.rename(place, os.fsencode(tmp_path / "driver/usr/lib") + b"/\xff")
    out = tmp_path / "new.json"
    assert main(["snapshot", "--root", str(tmp_path / "driver"), "-o", str(out)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("nvgraft snapshot: '/usr/lib/\\udcff")
    assert "is not UTF-8" in last
    assert not out.exists()


@pytest.mark.parametrize(
    ("version", "gpus", "words"),
    [
        ("418.226.00", "debian-a100x8", "compute capability 8.0), which needs branch 450 or newer"),
        ("550.163.01", "gb200-580", "compute capability 10.0), which needs branch 570 or newer"),
        ("450.248.02", "debian-a100x8", ""),
        ("615.71.09", "debian-a100x8", ""),
    ],
)
def test_a_driver_is_not_given_gpus_that_it_does_not_support(
    version: str, gpus: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """A document with GPUs that its driver does not drive would say that containers get them."""
    machine = "EM_AARCH64" if gpus == "gb200-580" else "EM_X86_64"
    driver(tmp_path / "driver", machine, version)
    out = tmp_path / "new.json"
    arguments = ["--root", str(tmp_path / "driver"), "--gpus", gpus, "-o", str(out)]
    assert main(["snapshot", *arguments]) == (2 if words else 0)
    assert words in capsys.readouterr().err
    assert out.exists() == (not words)


@pytest.mark.parametrize(
    ("gpus", "machine", "owner"),
    [("wsl2-rtx3090", "EM_X86_64", "Windows (WSL2)"), ("jetson-orin", "EM_AARCH64", "JetPack")],
)
def test_a_host_whose_driver_no_package_replaces_is_refused(
    gpus: str, machine: str, owner: str, tmp_path: Path, capsys: Captured
) -> None:
    """WSL2 has Windows' driver, and Tegra boards JetPack's: packages for Linux do not replace it."""
    driver(tmp_path / "driver", machine)
    out = tmp_path / "new.json"
    words = ["snapshot", "--root", str(tmp_path / "driver"), "--gpus", gpus, "-o", str(out)]
    assert main(words) == 2
    start = f"nvgraft snapshot: --gpus {gpus}: the driver of this host is that of {owner}, and"
    assert capsys.readouterr().err.startswith(start)
    assert not out.exists()


@pytest.mark.parametrize(
    ("version", "capability", "fits"),
    [
        ("580.95.05", "7.0", True),
        ("590.44.01", "7.0", False),
        ("590.44.01", "7.5", True),
        ("470.256.02", "3.5", True),
        ("535.309.01", "3.7", False),
        ("390.157", "2.1", True),
        ("418.226.00", "2.1", False),
        ("340.108", "unknown", True),
    ],
)
def test_the_last_branch_of_old_gpus_is_known(version: str, capability: str, fits: bool) -> None:
    """Newer branches do not drive GPUs of generations that NVIDIA has given up."""
    gpu = Gpu(0, "GPU-0", "00000000:1b:00.0", 14, capability, "unsupported", "NVIDIA Old")
    fault = unsupported(DriverReport(version, "", (gpu,)))
    assert (fault == "") == fits


@pytest.mark.parametrize(("branch", "fix"), [(999, "upgrade nvgraft"), (304, "name another")])
def test_a_branch_that_is_not_known_is_an_input_error(
    branch: int, fix: str, tmp_path: Path
) -> None:
    """A driver of an unknown branch is refused, because its CUDA version does not follow from the
    files. Nobody upgrades nvgraft for a branch that is too old.
    """
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / f"usr/lib/libcuda.so.{branch}.1").touch()
    words = rf"driver {branch}\.1: the CUDA version of branch {branch} is not known: {fix}"
    with pytest.raises(InputError, match=words):
        open_package(str(tmp_path), "/", None)


@pytest.mark.parametrize(("version", "cuda"), [("340.108", "6.5"), ("615.71.09", "13.4")])
def test_the_oldest_and_the_newest_branch_are_known(
    version: str, cuda: str, tmp_path: Path
) -> None:
    """Debian still has the driver for GPUs of the Fermi and Tesla generations, with CUDA 6.5."""
    (tmp_path / "usr/lib").mkdir(parents=True)
    library = shared_object(64, "EM_X86_64", "libcuda.so.1", [], None)
    (tmp_path / f"usr/lib/libcuda.so.{version}").write_bytes(library)
    assert open_package(str(tmp_path), "/", None).report.cuda_version == cuda
