"""The live host: search paths from the hook's environment, and refusals when a part of the driver
is missing.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import LiveTree
from nvgraft.host import nvml
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport
from nvgraft.host.inventory import read_inventory
from nvgraft.host.libraries import select_libraries
from nvgraft.host.live import read_live_host
from nvgraft.host.places import mps_directory, search_path
from nvgraft.host.snapshot import snapshot_host
from nvgraft.request.config import Config
from nvgraft_cli.simulate import ldcache_writer, stubs

DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize(
    ("inherited", "root", "expected"),
    [
        (None, "", DEFAULT),
        ("", "", DEFAULT),
        ("/opt/bin", "", f"/opt/bin:{DEFAULT}"),
        (
            "/bin:/opt/bin:/usr/bin",
            "/",
            "/bin:/opt/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin",
        ),
        (
            "/bin",
            "/drv",
            "/drv/bin:/drv/usr/local/sbin:/drv/usr/local/bin:/drv/usr/sbin:/drv/usr/bin:/drv/sbin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin",
        ),
        (
            "a::/b/",
            "/drv/",
            f"/drv/a:/drv/:/drv/b/:{':'.join('/drv' + part for part in DEFAULT.split(':'))}:a::/b/:{DEFAULT}",
        ),
    ],
)
def test_the_search_path_is_extended(inherited: str | None, root: str, expected: str) -> None:
    """The usual directories that are missing follow the inherited ones; with a driver root, all of
    them below it come first.
    """
    environ = {} if inherited is None else {"PATH": inherited}
    assert search_path(environ, Config(cli_root=root)) == expected


@pytest.mark.parametrize("root", ["", "/drv"])
def test_a_configured_cli_path_leaves_the_search_path_alone(root: str) -> None:
    """With a configured CLI path PATH stays as it is: the reference hook extends it only to find
    the CLI.
    """
    assert (
        search_path(
            {"PATH": "/only"}, Config(cli_path="/usr/bin/nvidia-container-cli", cli_root=root)
        )
        == "/only"
    )
    assert search_path({"PATH": ""}, Config(cli_path="/x")) == ""


def test_a_missing_search_path_is_refused() -> None:
    """With a configured CLI path and no PATH, reading the inventory is refused in the reference's
    words.
    """
    path = search_path({}, Config(cli_path="/x"))
    with pytest.raises(Refusal) as caught:
        read_inventory(snapshot_host(hosts.full_host()), path)
    assert (
        caught.value.reference_line()
        == "nvgraft: detection error: environment variable PATH not found"
    )


def test_path_of_config_toml_is_used_if_the_hook_has_none() -> None:
    """PATH of config.toml's environment is used only if the hook's own environment has none."""
    config = Config(cli_path="/x", cli_environment=("A=1", "PATH=/first=x", "PATH=/second"))
    assert search_path({}, config) == "/first=x"
    assert search_path({"PATH": "/own"}, config) == "/own"
    assert search_path({}, Config(cli_environment=("PATH=/first",))) == DEFAULT


@pytest.mark.parametrize(
    ("environ", "configured", "expected"),
    [
        ({}, (), ""),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/own"}, (), "/own"),
        ({}, ("CUDA_MPS_PIPE_DIRECTORY=/toml",), "/toml"),
        (
            {},
            (
                "X=1",
                "CUDA_MPS_PIPE_DIRECTORY_=/no",
                "CUDA_MPS_PIPE_DIRECTORY=/a=b",
                "CUDA_MPS_PIPE_DIRECTORY=/c",
            ),
            "/a=b",
        ),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/own"}, ("CUDA_MPS_PIPE_DIRECTORY=/toml",), "/own"),
        ({}, ("CUDA_MPS_PIPE_DIRECTORY",), ""),
    ],
)
def test_the_mps_directory(
    environ: dict[str, str], configured: tuple[str, ...], expected: str
) -> None:
    """The hook's own variable comes first, then the first one of config.toml, then none."""
    assert mps_directory(environ, Config(cli_environment=configured)) == expected


REPORT = DriverReport("535.1", "12.2", ())


class RecordedQueries:
    """A replacement for the NVML child that records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, tuple[str, ...]]] = []

    def __call__(
        self,
        library: str,
        root: str,
        user: str,
        environment: tuple[str, ...],
        meanwhile: Callable[[], None] = lambda: None,
        *,
        mig_profiles: bool,
    ) -> DriverReport:
        meanwhile()
        assert not mig_profiles  # which only a snapshot asks for
        self.calls.append((library, root, user, environment))
        return REPORT


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> RecordedQueries:
    queries = RecordedQueries()
    monkeypatch.setattr(nvml, "query", queries)
    return queries


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    """A driver root with NVML in a default directory and an empty loader cache."""
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libnvidia-ml.so.1").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + bytes(28))
    return tmp_path


def read(root: Path, **settings: object) -> Host:
    host = read_live_host(Config(cli_root=str(root), **settings))
    assert isinstance(host.tree, LiveTree)
    host.tree.close()
    return host


def test_a_live_host_is_read_below_its_root(driver_root: Path, queries: RecordedQueries) -> None:
    """A live host is read below its driver root: NVML gets config.toml's user and environment;
    majors are the kernel's.
    """
    live_host = read(driver_root, cli_user="root:video", cli_environment=("A=b",))
    assert queries.calls == [
        ("/usr/lib/libnvidia-ml.so.1", str(driver_root), "root:video", ("A=b",))
    ]
    assert (live_host.root, live_host.report, list(live_host.entries), live_host.machine) == (
        str(driver_root),
        REPORT,
        [],
        os.uname().machine,
    )
    assert live_host.majors["mem"] == 1


def test_ld_library_path_of_config_toml_comes_first(
    driver_root: Path, queries: RecordedQueries
) -> None:
    """LD_LIBRARY_PATH of config.toml comes first, as for the reference's NVML child."""
    (driver_root / "opt").mkdir()
    (driver_root / "opt/libnvidia-ml.so.1").touch()
    read(driver_root, cli_environment=("LD_LIBRARY_PATH=/none:/opt",))
    assert queries.calls[0][0] == "/opt/libnvidia-ml.so.1"


def test_nvml_is_found_as_the_dynamic_loader_finds_it(
    driver_root: Path, queries: RecordedQueries
) -> None:
    """NVML is looked up in the driver root's own cache, even if config.toml names another one for
    driver files.
    """
    machine = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64", "ppc64le": "libc6,64bit"}.get(
        os.uname().machine, "libc6,x86-64"
    )
    (driver_root / "usr/lib/libnvidia-ml.so.1").rename(driver_root / "usr/nvml")
    (driver_root / "other.cache").write_bytes((driver_root / "etc/ld.so.cache").read_bytes())
    (driver_root / "etc/ld.so.cache").write_bytes(
        ldcache_writer.cache([("libnvidia-ml.so.1", machine, "/usr/nvml")])
    )
    live_host = read(driver_root, cli_ldcache="/other.cache")
    assert queries.calls[0][0] == "/usr/nvml"
    assert list(live_host.entries) == []


def refused(root: Path, **settings: object) -> Refusal:
    """Return the refusal of reading the host and its inventory."""
    with pytest.raises(Refusal) as caught:
        read_inventory(read(root, **settings), "/usr/bin")
    return caught.value


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    """A missing driver root is refused by the name in config.toml."""
    assert (
        refused(tmp_path / "none").reference_line()
        == f"nvgraft: initialization error: open failed: {tmp_path}/none: no such file or directory"
    )


def test_a_root_without_nvml_is_refused(driver_root: Path, queries: RecordedQueries) -> None:
    """A driver root without NVML is refused in dlopen's words before its loader cache is read; the
    hint names the places.
    """
    (driver_root / "usr/lib/libnvidia-ml.so.1").unlink()
    (driver_root / "etc/ld.so.cache").unlink()
    refusal = refused(driver_root)
    assert refusal.reference_line() == (
        "nvgraft: initialization error: load library failed: libnvidia-ml.so.1: cannot open"
        " shared object file: no such file or directory"
    )
    assert f"under {driver_root}" in refusal.hint
    assert queries.calls == []


def test_a_missing_loader_cache_is_refused(driver_root: Path, queries: RecordedQueries) -> None:
    """A missing loader cache is refused by read_inventory(), after NVML was queried, because the
    reference reads the container in between. A configured path is inside the driver root.
    """
    (driver_root / "etc/ld.so.cache").unlink()
    read(driver_root)
    assert len(queries.calls) == 1
    refusal = refused(driver_root)
    assert (
        refusal.reference_line()
        == f"nvgraft: detection error: open failed: {driver_root}/etc/ld.so.cache: no such"
        " file or directory"
    )
    assert (
        refused(driver_root, cli_ldcache="/x.cache").text
        == f"open failed: {driver_root}/x.cache: no such file or directory"
    )


@pytest.mark.usefixtures("queries")
def test_a_damaged_loader_cache_is_refused(driver_root: Path) -> None:
    """A damaged loader cache is refused in the reference's words."""
    (driver_root / "etc/ld.so.cache").write_bytes(b"#!/bin/sh")
    assert refused(driver_root).text == f"unsupported file format: {driver_root}/etc/ld.so.cache"


@pytest.mark.usefixtures("queries")
def test_a_loader_cache_that_leads_out_of_the_root_is_refused(driver_root: Path) -> None:
    """Links of the loader cache are followed inside the driver root only."""
    (driver_root / "etc/ld.so.cache").unlink()
    (driver_root / "etc/ld.so.cache").symlink_to("../../../../../../etc/ld.so.cache")
    assert "resolves outside of" in refused(driver_root).text


def test_nvml_of_a_simulated_host_is_not_queried(
    driver_root: Path, queries: RecordedQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPUs of a simulated host come from the document that config.toml names; the rest is read
    live.
    """
    (driver_root / "usr/lib/libnvidia-ml.so.1").unlink()
    monkeypatch.setattr(
        "nvgraft.host.snapshot.load_report", lambda path: DriverReport(path, "1.0", ())
    )
    live_host = read(driver_root, simulated_host=True, host_snapshot="/host.json")
    assert live_host.report.driver_version == "/host.json"
    assert queries.calls == []


def test_other_work_is_done_while_nvml_answers(
    driver_root: Path, queries: RecordedQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While NVML is queried, the caller's work is done and all candidates' headers are read; they
    are not read again.
    """
    for name, content in (
        ("good", stubs.shared_object(64, "EM_X86_64", "libcuda.so.1", [], None, None)),
        ("bad", b"text"),
    ):
        (driver_root / f"usr/lib/{name}.so.535.1").write_bytes(content)
    rows = [
        ("libcuda.so.1", "libc6,x86-64", "/usr/lib/good.so.535.1"),
        ("libnvidia-ml.so.1", "libc6,x86-64", "/usr/lib/bad.so.535.1"),
    ]
    (driver_root / "etc/ld.so.cache").write_bytes(ldcache_writer.cache(rows))
    done: list[int] = []
    live_host = read_live_host(
        Config(cli_root=str(driver_root)), lambda: done.append(len(queries.calls))
    )
    assert done == [0]
    live_host.entries = [entry for entry in live_host.entries if "good" in entry.path]
    monkeypatch.setattr("nvgraft.formats.elf.read_facts", None)
    assert [library.path for library in select_libraries(live_host).wide] == [
        "/usr/lib/good.so.535.1"
    ]
    assert isinstance(live_host.tree, LiveTree)
    live_host.tree.close()
