"""An inventory from the cache equals one read afresh, whatever changes on the host in between."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import nvgraft
from machines import CAPABILITIES, PROC, SONAMES, VERSIONS, Machine
from nvgraft.host import keep_inventory, kept_inventory, live
from nvgraft.request.config import Config
from nvgraft.system import keep, kept
from nvgraft_cli.simulate import stubs


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.running():
        machine.check()
        yield machine


def swap_bytes(machine: Machine) -> None:
    """Write other contents of the same size into the same inode."""
    place = machine.place("etc/ld.so.cache")
    with open(place, "r+b") as file:
        file.seek(place.read_bytes().index(b"/usr/lib/libcuda"))
        file.write(b"/usr/lib/libcudb")


def another_row(machine: Machine) -> None:
    machine.library("usr/lib/libnvidia-cfg.so.535.1", "libnvidia-cfg.so.1")
    machine.loader_cache(("libnvidia-cfg.so.1", "/usr/lib/libnvidia-cfg.so.535.1"))


def move_directory(machine: Machine) -> None:
    os.rename(machine.place("usr/lib"), machine.place("usr/moved"))
    machine.place("usr/lib").symlink_to("moved")


def listen(machine: Machine) -> None:
    os.mknod(machine.place("run/nvidia-persistenced/socket"), stat.S_IFSOCK | 0o666)
    machine.link("var/run", "/run")


def upgrade(machine: Machine) -> None:
    machine.driver(VERSIONS[1])
    machine.link("usr/lib/libnvidia-ml.so.1", "libnvidia-ml.so.560.2")


def make_again(machine: Machine) -> None:
    machine.no_mig(1)
    machine.mig(1, 0)


#: Name -> a change of the host that changes the inventory.
CHANGES: dict[str, Callable[[Machine], object]] = {
    "a library is replaced": lambda m: m.write("usr/lib/libcuda.so.535.1", b"no ELF file"),
    "a library is rewritten in place": lambda m: m.place("usr/lib/libcuda.so.535.1").write_bytes(
        stubs.shared_object(64, "EM_X86_64", "libcudb.so.1", (), None)
    ),
    "a library is removed": lambda m: m.remove("usr/lib/libcuda.so.535.1"),
    "a library has another mode": lambda m: m.place("usr/lib/libcuda.so.535.1").chmod(0o600),
    "a link leads elsewhere": lambda m: m.link("usr/lib/libcuda.so.1", "libcuda.so.560.2"),
    "a link becomes a file": lambda m: m.library("usr/lib/libcuda.so.1", "libcuda.so.1"),
    "the directory is moved behind a link": move_directory,
    "the loader cache has another row": another_row,
    "the loader cache has the same size": swap_bytes,
    "the loader cache is gone": lambda m: m.remove("etc/ld.so.cache"),
    "the loader cache is damaged": lambda m: m.write("etc/ld.so.cache", b"x"),
    "NVML's library is the other one": lambda m: m.link(
        "usr/lib/libnvidia-ml.so.1", "libnvidia-ml.so.560.2"
    ),
    "the driver is upgraded": upgrade,
    "the module is of another version": lambda m: m.driver(VERSIONS[1]),
    "the module is unloaded": lambda m: m.remove(f"{PROC}/version"),
    "a program appears": lambda m: m.write("usr/local/bin/nvidia-debugdump", b""),
    "a program is gone": lambda m: m.remove("usr/bin/nvidia-smi"),
    "a program has another mode": lambda m: m.place("usr/bin/nvidia-smi").chmod(0o700),
    "a service listens": listen,
    "MPS starts": lambda m: m.place("tmp/nvidia-mps/log").touch(),
    "PATH changes": lambda m: setattr(m, "path", "/usr/local/bin"),
    "CUDA_MPS_PIPE_DIRECTORY changes": lambda m: setattr(m, "mps", "/usr/lib"),
    "firmware is gone": lambda m: m.remove("lib/firmware/nvidia/535.1/gsp_tu10x.bin"),
    "a node is gone": lambda m: m.remove("dev/nvidia0"),
    "a node has another mode": lambda m: m.place("dev/nvidiactl").chmod(0o600),
    "a node appears": lambda m: m.write("dev/nvidia-modeset", b""),
    "a GPU appears": lambda m: m.gpu("0000:02:00.0", 1, "GPU-b"),
    "a GPU is another one": lambda m: m.gpu("0000:01:00.0", 0, "GPU-c"),
    "a MIG device appears": lambda m: m.mig(2, 0),
    "a MIG device is gone": lambda m: m.no_mig(1),
    "a MIG device is made again": make_again,
    "a compute instance appears": lambda m: m.mig(1, 1),
    "an access file changes": lambda m: m.place(f"{CAPABILITIES}/gi1/ci0/access").write_text(
        "DeviceFileMinor: 13\n"
    ),
    "MIG minors change": lambda m: m.write(
        "proc/driver/nvidia-caps/mig-minors", b"gpu0/gi1/access 99\n"
    ),
    "a major changes": lambda m: m.majors("195 nvidia", "237 nvidia-caps"),
    "a parameter of the module changes": lambda m: m.write(
        f"{PROC}/params", b"ModifyDeviceFiles: 0\n"
    ),
    "the account is gone": lambda m: m.passwd.write_text("nobody!"),
    "config.toml names another loader cache": lambda m: m.settings.update(cli_ldcache="/none"),
    "config.toml names another driver root": lambda m: m.settings.update(cli_root="/none"),
}

#: Name -> a change of the host that does not change the inventory, noticed or not.
QUIET: dict[str, Callable[[Machine], object]] = {
    "nothing": lambda m: None,
    "another boot": lambda m: m.boot.write_text(m.boot.read_text() + "1"),
    "a library is installed again": lambda m: m.library("usr/lib/libcuda.so.535.1", "libcuda.so.1"),
    "the loader cache is written again": lambda m: m.loader_cache(),
    "another file in the directory": lambda m: m.write("usr/lib/other", b""),
    "LD_LIBRARY_PATH of config.toml": lambda m: m.settings.update(
        cli_environment=("LD_LIBRARY_PATH=/opt",)
    ),
    "config.toml names another user": lambda m: m.settings.update(cli_user=""),
    "NVML elsewhere": lambda m: m.library("opt/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_the_host_is_noticed(machine: Machine, name: str) -> None:
    """After a change of the host, the first hook and all later ones get what a fresh read gives."""
    before = machine.look(live.read_live_host)
    CHANGES[name](machine)
    machine.tick()
    assert machine.look(live.read_live_host) != before, "the change does not change the inventory"
    machine.check()


@pytest.mark.parametrize("name", QUIET)
def test_harmless_changes_leave_the_inventory_as_it_is(machine: Machine, name: str) -> None:
    """After a harmless change, whether it invalidates the cache or not, hooks get the same
    inventory.
    """
    before = machine.look(live.read_live_host)
    QUIET[name](machine)
    assert machine.look(live.read_live_host) == before
    machine.check()


class Hosts(RuleBasedStateMachine):
    """Any sequence of changes, with the caches of all states before."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.machine = Machine(Path(self.directory.name))

    @initialize()
    def start(self) -> None:
        with self.machine.running():
            self.machine.check()

    @rule(names=st.lists(st.sampled_from(sorted([*CHANGES, *QUIET])), min_size=1, max_size=3))
    def change(self, names: list[str]) -> None:
        for name in names:
            try:
                ({**CHANGES, **QUIET})[name](self.machine)
            except (FileExistsError, FileNotFoundError, OSError, ValueError):
                continue  # an earlier change has left nothing to change

    @rule(
        path=st.sampled_from(["usr/lib/libcuda.so.535.1", "usr/lib/libnvidia-ml.so.535.1"]),
        leads_to=st.sampled_from(
            ["libcuda.so.1", "libcuda.so.535.1", "../lib/libcuda.so.560.2", "/proc/none", "a"]
        ),
    )
    def link(self, path: str, leads_to: str) -> None:
        """Link ``path``. Targets such as /proc/none cannot be created, so that no rewrite in place
        follows a link out to this machine.
        """
        self.machine.link(path, leads_to)

    @rule(version=st.sampled_from(VERSIONS))
    def upgrade(self, version: str) -> None:
        self.machine.driver(version)
        for soname in SONAMES:
            self.machine.link(f"usr/lib/{soname}", f"{soname.removesuffix('.1')}.{version}")

    @rule()
    def repair(self) -> None:
        """Return to a working host, so that not all later states are refusals."""
        machine = self.machine
        machine.settings = {"cli_root": str(machine.root), "cli_user": "someone"}
        machine.passwd.write_text("someone")
        machine.place("dev/nvidiactl").chmod(0o666)
        for version in VERSIONS:
            for soname in SONAMES:
                machine.library(f"usr/lib/{soname.removesuffix('.1')}.{version}", soname)
        machine.loader_cache()
        self.upgrade(VERSIONS[0])

    @invariant()
    def cached_is_fresh(self) -> None:
        with self.machine.running():
            self.machine.check()

    def teardown(self) -> None:
        self.directory.cleanup()


TestHosts = Hosts.TestCase
TestHosts.settings = settings(max_examples=40, stateful_step_count=8)


def test_failures_are_not_kept(machine: Machine) -> None:
    """A failed read is not kept: each hook reads again until the host works."""
    machine.remove(f"{PROC}/version")
    for _ in range(2):
        queries = machine.queries
        assert (
            machine.look(kept_inventory.read_host)
            == "nvgraft: initialization error: nvml error: driver not loaded"
        )
        assert machine.queries == queries + 1
    machine.driver(VERSIONS[0])
    machine.check()


def test_an_unused_gpu_without_uuid_is_recognised(machine: Machine) -> None:
    """A GPU whose UUID the driver shows as question marks until its first use is the same GPU
    afterwards.
    """
    machine.gpu("0000:01:00.0", 0, "GPU-a", known=False)
    machine.tick()
    assert machine.origin() == "from the kept inventory"
    machine.mig(3, 0)  # cached again, with the UUID unknown
    machine.check()
    machine.gpu("0000:01:00.0", 0, "GPU-a")
    assert machine.origin() == "from the kept inventory"


def test_use_of_a_gpu_does_not_invalidate_the_cache(machine: Machine) -> None:
    """The interrupt number, shown only while a GPU is in use, does not invalidate the cache."""
    machine.made += 1
    machine.gpu("0000:01:00.0", 0, "GPU-a")
    assert machine.origin() == "from the kept inventory"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("another boot", "changed: boot"),
        ("the module is of another version", "changed: driver version"),
        ("a GPU appears", "changed: GPUs, 0000:02:00.0"),
        ("a MIG device appears", "changed: MIG devices, /proc/driver/nvidia/capabilities/gpu0/mig"),
        ("a node appears", "changed: device nodes, /dev/nvidia-modeset"),
        ("a major changes", "changed: device majors, nvidia-caps"),
        ("a library is replaced", "changed: {root}/usr/lib/libcuda.so.535.1"),
        ("a library is removed", "removed: {root}/usr/lib/libcuda.so.535.1"),
        ("config.toml names another user", "no inventory is kept"),
    ],
)
def test_the_first_difference_is_named(machine: Machine, name: str, reason: str) -> None:
    """state() names the first difference that makes the cache unusable."""
    {**CHANGES, **QUIET}[name](machine)
    assert kept_inventory.state(Config(**machine.settings))[1] == reason.format(root=machine.root)


def test_a_library_that_appears_is_named(machine: Machine) -> None:
    """A library that appears in an earlier directory is noticed and named."""
    machine.settings["cli_environment"] = ("LD_LIBRARY_PATH=/opt",)
    machine.check()
    machine.library("opt/libnvidia-ml.so.535.1", "libnvidia-ml.so.1")
    machine.link("opt/libnvidia-ml.so.1", "libnvidia-ml.so.535.1")
    assert machine.origin() == f"read now: appeared: {machine.root}/opt"


def test_a_file_that_has_just_changed_is_not_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file changed just now is not cached: its next change could have the same time stamp."""
    monkeypatch.setattr(keep_inventory, "SETTLED", 10**12)
    machine.library("usr/lib/libcuda.so.535.1", "libcuda.so.1")
    for _ in range(2):
        machine.look(kept_inventory.read_host)
        assert machine.origin().startswith("read now")
    monkeypatch.setattr(keep_inventory, "SETTLED", 0)
    machine.check()


def test_reading_without_keep_writes_nothing(machine: Machine) -> None:
    """read_host() with keep=False, as in a plan, writes nothing."""
    keep.drop()
    machine.look(lambda config: kept_inventory.read_host(config, keep=False))
    assert machine.origin() == "read now: no inventory is kept"


@pytest.mark.parametrize("document", [None, [], {}, {"signs": {}}, {"signs": 1, "files": 1}])
def test_a_document_of_another_shape_is_not_used(machine: Machine, document: object) -> None:
    """A cached document of another shape is ignored, never a reason to refuse a container."""
    config = Config(**machine.settings)
    keep.write(kept_inventory.KIND, kept_inventory._key(config), document)
    machine.check()


@pytest.mark.parametrize(
    "member", ["signs", "files", "driver", "gpus", "wide", "narrow", "missing"]
)
@pytest.mark.parametrize("value", [None, 1, "x", [1], [[1]], {"a": 1}])
def test_a_document_with_a_malformed_member_is_not_used(
    machine: Machine, member: str, value: object
) -> None:
    """A cached document with one malformed member is ignored as a whole."""
    config = Config(**machine.settings)
    key = kept_inventory._key(config)
    document = kept.read(kept_inventory.KIND, key)
    assert isinstance(document, dict)
    assert member in document
    keep.write(kept_inventory.KIND, key, {**document, member: value})
    machine.check()


def test_every_source_of_the_key_exists() -> None:
    """Every module whose state is part of the key exists; changes of a missing one would go
    unnoticed.
    """
    package = Path(nvgraft.__file__).parent
    assert [path for path in kept_inventory.SOURCES if not (package / path).is_file()] == []


def test_changes_of_a_simulated_host_are_noticed(machine: Machine) -> None:
    """The GPUs of a simulated host without NVML come from a document, whose changes are noticed."""
    machine.snapshot.write_text("12.3")
    machine.settings |= {"simulated_host": True, "host_snapshot": str(machine.snapshot)}
    machine.check()
    machine.snapshot.write_text("12.4")
    machine.check()
    del machine.settings["host_snapshot"]
    machine.check()


def test_without_a_cache_directory_the_host_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a writable cache directory, as in a rootless start, every hook reads the host."""
    fresh = machine.look(live.read_live_host)
    monkeypatch.setattr(kept, "DIRECTORY", "/proc/none/cache")
    for _ in range(2):
        assert machine.look(kept_inventory.read_host) == fresh
        assert machine.origin() == "read now: no inventory is kept"
