"""``nvgraft prove`` answers from a snapshot as from the recorded files, and lists missing facts."""

import json
from pathlib import Path
from typing import Any

import pytest

from bundles import EVERYTHING, make_bundle, put
from loaders import X86, image, library
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.request.config import Config
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.case.planning import Case
from nvgraft_cli.prove.proof import prove
from nvgraft_cli.simulate.stubs import Loading, shared_object
from nvgraft_cli.snapshot.package import open_package
from nvgraft_cli.snapshot.recording import record

LIBS = "usr/lib/x86_64-linux-gnu"
VERSION = "560.35.03"

#: A driver: file -> SONAME, NEEDED, and search directories and versions.
Driver = dict[str, tuple[str, list[str], Loading]]


def driver(
    cuda: Loading = Loading(),  # noqa: B008
    needed: str = "libc.so.6",
    **others: Loading,
) -> Driver:
    """Return a driver of three libraries.

    :param cuda: search directories and versions of libcuda; ``others`` those of ml and ptxjit.
    """
    return {
        f"libcuda.so.{VERSION}": ("libcuda.so.1", [needed], cuda),
        f"libnvidia-ml.so.{VERSION}": (
            "libnvidia-ml.so.1",
            ["libc.so.6"],
            others.get("ml", Loading()),
        ),
        f"libnvidia-ptxjitcompiler.so.{VERSION}": (
            "libnvidia-ptxjitcompiler.so.1",
            ["libc.so.6"],
            others.get("ptxjit", Loading()),
        ),
    }


OWN = {"opt/own/libown.so.1": library("libown.so.1")}
NEW = Loading(versions_needed={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34"]})
NVML_1 = Loading(versions_defined=["libnvidia-ml.so.1", "NVML_1"])


def libc(*versions: str) -> dict[str, bytes]:
    """Return a C library that defines ``versions``."""
    loading = Loading(versions_defined=["libc.so.6", *versions])
    return {f"{LIBS}/libc.so.6": shared_object(64, X86, "libc.so.6", [], None, None, loading)}


def needs_nvml(version: str) -> Driver:
    """Return a driver whose libcuda needs a version of its libnvidia-ml."""
    return driver(
        Loading(versions_needed={"libnvidia-ml.so.1": [version]}), "libnvidia-ml.so.1", ml=NVML_1
    )


#: Case -> the driver, files of the image, and the verdict.
SETUPS: dict[str, tuple[Driver, dict[str, bytes], str]] = {
    "nothing special": (driver(), {}, "yes"),
    "RUNPATH leads to what it needs": (
        driver(Loading(runpath="/opt/own"), "libown.so.1"),
        OWN,
        "yes",
    ),
    "RPATH leads to what it needs": (
        driver(Loading(rpath="$ORIGIN/../../../opt/own"), "libown.so.1"),
        OWN,
        "yes",
    ),
    "RUNPATH hides RPATH": (
        driver(Loading(rpath="/opt/own", runpath="/opt/other"), "libown.so.1"),
        OWN,
        "no",
    ),
    "neither leads there": (driver(Loading(), "libown.so.1"), OWN, "no"),
    "no default directories": (
        driver(Loading(flags_1=0x800), "libown.so.1"),
        {"usr/lib/libown.so.1": library("libown.so.1")},
        "no",
    ),
    "a version of glibc that the image has": (
        driver(NEW),
        libc("GLIBC_2.2.5", "GLIBC_2.34"),
        "yes",
    ),
    "a version of glibc that it lacks": (driver(NEW), libc("GLIBC_2.2.5"), "no"),
    "a version that a library of the driver defines": (needs_nvml("NVML_1"), {}, "yes"),
    "a version that it does not define": (needs_nvml("NVML_2"), {}, "no"),
}


def unpacked(place: Path, files: Driver) -> str:
    """Write the files of a driver package; return its directory."""
    (place / LIBS).mkdir(parents=True)
    for name, (soname, needed, loading) in files.items():
        (place / LIBS / name).write_bytes(
            shared_object(64, X86, soname, needed, None, None, loading)
        )
    return str(place)


def bundle(place: Path, files: dict[str, bytes]) -> str:
    """Make a bundle with a C library, unless ``files`` has one."""
    made = make_bundle(place, *EVERYTHING, files=())
    ordinary = image()
    if f"{LIBS}/libc.so.6" in files:
        del ordinary["lib/x86_64-linux-gnu/libc.so.6"]
    for name, data in {**ordinary, **files}.items():
        put(made / "rootfs" / name, data)
    return str(made)


def answer(host: HostSide, container: str) -> dict[str, Any]:
    with open_container(container) as side:
        case = Case(host, side)
        plan, refusal = case.outcome
        assert refusal is None
        return prove(
            "libcuda.so.1", "/usr/bin/app", case.planned_tree, plan, side, host.isa_level
        ).document()


def recorded_side(document: dict[str, Any], place: Path) -> HostSide:
    """Write a document and read it again as a host."""
    path = place / "host.json"
    path.write_text(json.dumps(document))
    return HostSide("recorded", Config(), read_snapshot(str(path)))


@pytest.mark.parametrize("name", SETUPS)
def test_a_snapshot_answers_as_the_files_do(name: str, tmp_path: Path) -> None:
    """A snapshot gives the same answer as the files, without unknown facts, and recording it again
    gives the same document.
    """
    files, extra, verdict = SETUPS[name]
    package = open_package(
        unpacked(tmp_path / "driver", files), "/", snapshot_host(read_snapshot("runfile-a10x2"))
    )
    live = HostSide("live", Config(), None)
    live.facts = package
    container = bundle(tmp_path / "b", extra)
    expected = answer(live, container)
    assert (expected["verdict"], expected["unknown"]) == (verdict, [])
    level = live.isa_level
    document = record(package, OFFLINE_PATH, "", None, level)
    assert answer(recorded_side(document, tmp_path), container) == expected
    again = record(snapshot_host(document), OFFLINE_PATH, "", None, level)
    assert again == document


def test_missing_facts_make_the_answer_unknown(tmp_path: Path) -> None:
    """For an older snapshot without search directories and versions the answer is unknown, not
    yes.
    """
    files, extra, _ = SETUPS["nothing special"]
    package = open_package(
        unpacked(tmp_path / "driver", files), "/", snapshot_host(read_snapshot("runfile-a10x2"))
    )
    document = record(package, OFFLINE_PATH, "")
    for entry in document["files"].values():
        for key in ("rpath", "runpath", "flags_1", "versions_needed", "versions_defined"):
            entry.get("elf", {}).pop(key, None)
    document = answer(recorded_side(document, tmp_path), bundle(tmp_path / "b", extra))
    assert document["verdict"] == "unknown"
    assert document["unknown"] == [
        f"the search directories and versions that /{LIBS}/libcuda.so.1 names"
    ]


def test_unrecorded_versions_of_a_provider_make_the_answer_unknown(tmp_path: Path) -> None:
    """A library is not assumed to define the versions that another one needs."""
    package = open_package(
        unpacked(tmp_path / "driver", needs_nvml("NVML_1")),
        "/",
        snapshot_host(read_snapshot("runfile-a10x2")),
    )
    document = record(package, OFFLINE_PATH, "")
    for entry in document["files"].values():
        entry.get("elf", {}).pop("versions_defined", None)
    document = answer(recorded_side(document, tmp_path), bundle(tmp_path / "b", {}))
    assert document["verdict"] == "unknown"
    assert document["unknown"] == [f"the versions that /{LIBS}/libnvidia-ml.so.1 defines"]


def test_a_document_stays_small(tmp_path: Path) -> None:
    """A library with a hundred versions adds less than 4 KiB to the document, and is read back."""
    versions = [f"LONG_VERSION_NAME_{number}" for number in range(100)]
    files = driver(Loading(versions_defined=["libcuda.so.1", *versions]))
    package = open_package(unpacked(tmp_path / "driver", files), "/", None)
    document = record(package, OFFLINE_PATH, "")
    entry = document["files"][f"/{LIBS}/libcuda.so.{VERSION}"]
    assert len(json.dumps(entry)) < 4096
    assert recorded_side(document, tmp_path).document == document
