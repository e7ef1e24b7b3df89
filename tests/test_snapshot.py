"""Recorded hosts: the tree of a document, the driver's report, and the checks of a simulated host's
own copy.
"""

import json
import os
import posix
from collections.abc import Callable
from pathlib import Path

import pytest

import hosts
from hosts import gpu, host
from nvgraft.base.errors import Refusal
from nvgraft.formats.elf import ElfFacts
from nvgraft.formats.ldcache_entries import CacheEntry
from nvgraft.formats.tree import Node
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice
from nvgraft.host.snapshot import SnapshotTree, driver_report, load_report, snapshot_host


def test_a_node_is_read_from_its_entry() -> None:
    """Type, mode, owner, link target, device number and size of a node are those of its entry."""
    tree = SnapshotTree(
        {
            "/f": {"type": "file", "mode": "4755", "uid": 1, "gid": 2, "size": 3},
            "/c": {"type": "char", "mode": "0666", "rdev": [195, 255]},
            "/l": {"type": "symlink", "target": "f"},
        }
    )
    assert tree.lstat("/f") == Node("file", 0o4755, 1, 2, size=3)
    assert tree.lstat("/c") == Node("char", 0o666, rdev=(195, 255))
    assert tree.lstat("/l") == Node("symlink", 0o777, target="f")
    assert tree.lstat("/none") is None


def test_members_that_are_null_count_as_absent() -> None:
    """Members that are null, which the schema allows, count as not recorded."""
    tree = SnapshotTree(
        {
            "/f": {
                "type": "file",
                "mode": "0644",
                "uid": None,
                "gid": None,
                "size": None,
                "content": None,
                "elf": None,
            }
        }
    )
    assert tree.lstat("/f") == Node("file", 0o644)
    with pytest.raises(OSError, match="not recorded"):
        tree.read("/f", 10)
    with pytest.raises(ValueError, match="not recorded"):
        tree.elf("/f", sections=False)


def test_parent_directories_are_implied() -> None:
    """Parents of a file exist without entries of their own, and list their names sorted and
    once.
    """
    tree = SnapshotTree(hosts.tree("/a/c/file\n/a/b\n/a/c/\n/d/"))
    assert tree.lstat("/a") == Node("dir", 0o755)
    assert (
        tree.listdir("/"),
        tree.listdir("/a"),
        tree.listdir("/a/c"),
        tree.listdir("/d"),
        tree.listdir("/x"),
    ) == (["a", "d"], ["b", "c"], ["file"], [], [])


def test_content_is_read_or_reported_as_not_recorded() -> None:
    """Reading a missing file gives ENOENT; a file without recorded content gives another error,
    never an empty text.
    """
    tree = SnapshotTree(hosts.tree("/t = a\\nb\n/bare"))
    assert tree.read("/t", 10) == b"a\nb"
    with pytest.raises(FileNotFoundError):
        tree.read("/none", 10)
    with pytest.raises(OSError, match="not recorded"):
        tree.read("/bare", 10)


def test_elf_facts_are_those_of_the_document() -> None:
    """ELF facts are the entry's, with None for absent members; a file without facts raises
    ValueError.
    """
    tree = SnapshotTree(hosts.tree("/l elf libx.so.1 tag=2.3.99\n/bare"))
    assert tree.elf("/l", sections=True) == ElfFacts(
        64, "EM_X86_64", "libx.so.1", (), (2, 3, 99), None
    )
    with pytest.raises(FileNotFoundError):
        tree.elf("/none", sections=False)
    with pytest.raises(ValueError, match="not recorded"):
        tree.elf("/bare", sections=False)


REPORT = DriverReport(
    "535.1",
    "12.2",
    (
        Gpu(
            3,
            "GPU-x",
            "00000001:af:1f.0",
            2,
            "8.0",
            "enabled",
            "Test GPU",
            (MigDevice("MIG-a", 1, 0), MigDevice("MIG-b", 2, 7)),
        ),
    ),
)
DOCUMENT = host(
    "/l/libcuda.so.535.1 elf libcuda.so.1",
    [gpu(3, "GPU-x", pci=(1, 0xAF, 0x1F), migs=["MIG-a 1/0", "MIG-b 2/7"])],
    majors={"x": 1},
)


def test_the_driver_report_equals_nvmls() -> None:
    """The report has versions, GPUs in order with PCI addresses as NVML prints them, and MIG
    devices.
    """
    assert driver_report(DOCUMENT) == REPORT


def test_a_host_is_read_from_its_document() -> None:
    """A host has the name, root, majors, machine and loader cache entries of its document; rows of
    unknown libcs are dropped.
    """
    document = {
        **DOCUMENT,
        "ld_so_cache": [
            ["b.so", "libc6,x86-64", "/b"],
            ["z.so", "unknown", "/z"],
            ["a.so", "libc6", "/a"],
        ],
        "root": "/drv",
    }
    loaded = snapshot_host(document)
    assert (loaded.name, loaded.root, loaded.machine, loaded.majors, loaded.report) == (
        "test-host",
        "/drv",
        "x86_64",
        {"x": 1},
        REPORT,
    )
    assert list(loaded.entries) == [CacheEntry("b.so", 0x300, "/b"), CacheEntry("a.so", 0, "/a")]


@pytest.mark.parametrize(
    ("lines", "machine"),
    [
        ("/a elf a.so machine=EM_AARCH64", "aarch64"),
        ("/a elf - machine=EM_PPC64", "ppc64le"),
        ("/a elf a.so bits=32\n/b elf b.so", "x86_64"),
        ("/a elf - bits=32 machine=EM_ARM", "x86_64"),
        ("/a", "x86_64"),
    ],
)
def test_the_machine_is_that_of_the_libraries(lines: str, machine: str) -> None:
    """Without a machine in the document it follows from the 64-bit libraries; x86_64 without
    any.
    """
    document = {**DOCUMENT, "files": hosts.tree(lines), "machine": None}
    assert snapshot_host(document).machine == machine


@pytest.fixture
def owned_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes every open file appear as this user's; tests run as root and as
    others.
    """

    def patch(uid: int) -> None:
        real = os.fstat
        monkeypatch.setattr(
            posix, "fstat", lambda fd: os.stat_result([*real(fd)[:4], uid, *real(fd)[5:10]])
        )

    return patch


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(DOCUMENT))
    path.chmod(0o644)
    return path


def test_a_simulated_hosts_report_is_its_documents(
    recorded: Path, owned_by: Callable[[int], None]
) -> None:
    """A simulated host's report comes from its document, which belongs to root."""
    owned_by(0)
    assert load_report(str(recorded)) == REPORT


@pytest.mark.parametrize(("uid", "mode"), [(1000, 0o644), (0, 0o664), (0, 0o646)])
def test_a_document_that_others_can_change_is_refused(
    recorded: Path, owned_by: Callable[[int], None], uid: int, mode: int
) -> None:
    """A document that another user owns, or that group or others may write to, is refused."""
    recorded.chmod(mode)
    owned_by(uid)
    with pytest.raises(Refusal) as caught:
        load_report(str(recorded))
    assert caught.value.text == f"host snapshot {recorded} can be written by others than root"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "unexpected EOF"),
        ("[]", ""),
        ("{}", "KeyError: 'nvml'"),
        ('{"nvml": {"driver_version": "1", "cuda_version": "1", "gpus": [{}]}}', "KeyError: 'pci'"),
        ('{"nvml": 3}', "TypeError"),
        (
            json.dumps(
                {
                    "nvml": {
                        **DOCUMENT["nvml"],
                        "gpus": [{**DOCUMENT["nvml"]["gpus"][0], "minor": 10**30}],
                    }
                }
            ),
            "no minor number",
        ),
    ],
)
def test_a_malformed_document_is_refused(
    recorded: Path, owned_by: Callable[[int], None], text: str, cause: str
) -> None:
    """A malformed document is refused in one line with its path and the cause."""
    owned_by(0)
    recorded.write_text(text)
    with pytest.raises(Refusal) as caught:
        load_report(str(recorded))
    assert caught.value.stage == "initialization"
    assert caught.value.text.startswith(f"host snapshot {recorded}: ")
    assert cause in caught.value.text
    assert "\n" not in caught.value.line()


def test_a_missing_document_is_refused(tmp_path: Path) -> None:
    """A missing document is refused with the kernel's reason."""
    with pytest.raises(Refusal, match=r"no such file or directory$"):
        load_report(str(tmp_path / "none.json"))
