"""A cached host and one that is read afresh are the same, whatever happens to the host in between."""

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
from nvgraft.host import kept_inventory, live
from nvgraft.request.config import Config
from nvgraft.system import kept
from nvgraft_cli.simulate import stubs
from nvgraft_specs import names


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    with found.running():
        found.check()
        yield found


def swap_bytes(machine: Machine) -> None:
    """Other contents of the same size, in the same inode."""
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


#: Name -> what happens to the host, in a way that an inventory shows.
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

#: What may happen as well, and is seen or not, but changes nothing.
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
def test_every_change_of_the_host_is_seen(machine: Machine, name: str) -> None:
    """By the first hook after it, which sees what there is without any cache, and by those after that."""
    before = machine.look(live.read_live_host)
    CHANGES[name](machine)
    machine.tick()
    assert machine.look(live.read_live_host) != before, "this change is none"
    machine.check()


@pytest.mark.parametrize("name", QUIET)
def test_what_changes_nothing_is_survived(machine: Machine, name: str) -> None:
    """Whether it is taken for a change or not."""
    before = machine.look(live.read_live_host)
    QUIET[name](machine)
    assert machine.look(live.read_live_host) == before
    machine.check()


class Hosts(RuleBasedStateMachine):
    """Any number of changes, one after the other, with the cache of all that were before."""

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
        """Nothing can be made in /proc: a library that is rewritten in place must not be written through the link to this machine."""
        self.machine.link(path, leads_to)

    @rule(version=st.sampled_from(VERSIONS))
    def upgrade(self, version: str) -> None:
        self.machine.driver(version)
        for soname in SONAMES:
            self.machine.link(f"usr/lib/{soname}", f"{soname.removesuffix('.1')}.{version}")

    @rule()
    def repair(self) -> None:
        """Back to a host that works, so that not all that follows is refused."""
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


def test_a_failure_is_not_kept(machine: Machine) -> None:
    """Each hook looks for itself until the host is well again; then what was cached before is right again, or made anew."""
    machine.remove(f"{PROC}/version")
    for _ in range(2):
        asked = machine.asked
        assert (
            machine.look(kept_inventory.read_host)
            == "nvgraft: initialization error: nvml error: driver not loaded"
        )
        assert machine.asked == asked + 1
    machine.driver(VERSIONS[0])
    machine.check()


def test_a_gpu_that_was_never_used_has_no_uuid_yet(machine: Machine) -> None:
    """The driver shows question marks until it is used for the first time: that is no other GPU."""
    machine.gpu("0000:01:00.0", 0, "GPU-a", known=False)
    machine.tick()
    assert machine.origin() == "from the cache"
    machine.mig(3, 0)  # cached anew, with the UUID unknown
    machine.check()
    machine.gpu("0000:01:00.0", 0, "GPU-a")
    assert machine.origin() == "from the cache"


def test_use_of_a_gpu_changes_nothing(machine: Machine) -> None:
    """Its interrupt number is shown while it is in use only."""
    machine.made += 1
    machine.gpu("0000:01:00.0", 0, "GPU-a")
    assert machine.origin() == "from the cache"


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
        ("config.toml names another user", "nothing is cached"),
    ],
)
def test_the_first_difference_is_named(machine: Machine, name: str, reason: str) -> None:
    """For whoever asks why the cache was not used."""
    {**CHANGES, **QUIET}[name](machine)
    assert kept_inventory.state(Config(**machine.settings))[1] == reason.format(root=machine.root)


def test_what_appears_is_named(machine: Machine) -> None:
    """A library where there was none is seen as well: here it comes before the one that was found."""
    machine.settings["cli_environment"] = ("LD_LIBRARY_PATH=/opt",)
    machine.check()
    machine.library("opt/libnvidia-ml.so.535.1", "libnvidia-ml.so.1")
    machine.link("opt/libnvidia-ml.so.1", "libnvidia-ml.so.535.1")
    assert machine.origin() == f"read now: appeared: {machine.root}/opt"


def test_a_file_that_has_just_changed_is_not_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change could have the same time stamp, and would not be seen."""
    monkeypatch.setattr(kept_inventory, "SETTLED", 10**12)
    machine.library("usr/lib/libcuda.so.535.1", "libcuda.so.1")
    for _ in range(2):
        machine.look(kept_inventory.read_host)
        assert machine.origin().startswith("read now")
    monkeypatch.setattr(kept_inventory, "SETTLED", 0)
    machine.check()


def test_who_only_looks_keeps_nothing(machine: Machine) -> None:
    """A plan leaves nothing behind."""
    kept.drop()
    machine.look(lambda config: kept_inventory.read_host(config, keep=False))
    assert machine.origin() == "read now: nothing is cached"


@pytest.mark.parametrize("document", [None, [], {}, {"signs": {}}, {"signs": 1, "files": 1}])
def test_a_document_of_another_shape_is_not_used(machine: Machine, document: object) -> None:
    """Doubt never refuses a container."""
    config = Config(**machine.settings)
    kept.write(kept_inventory.KIND, kept_inventory._key(config), document)
    machine.check()


@pytest.mark.parametrize(
    "member", ["signs", "files", "driver", "gpus", "wide", "narrow", "missing"]
)
@pytest.mark.parametrize("value", [None, 1, "x", [1], [[1]], {"a": 1}])
def test_members_of_another_shape_are_not_used(
    machine: Machine, member: str, value: object
) -> None:
    """Nor half of them."""
    config = Config(**machine.settings)
    key = kept_inventory._key(config)
    document = kept.read(kept_inventory.KIND, key)
    assert isinstance(document, dict)
    assert member in document
    kept.write(kept_inventory.KIND, key, {**document, member: value})
    machine.check()


def test_an_upgrade_is_seen_in_files_that_exist() -> None:
    """Each of the modules whose state is a part of the key is in the package: of a missing one no change would be seen."""
    package = Path(nvgraft.__file__).parent
    assert [path for path in kept_inventory.SOURCES if not (package / path).is_file()] == []


def test_a_simulated_hosts_documents_count(machine: Machine) -> None:
    """Its GPUs come from a file, or from what the stand-in for NVML answers from: both are looked at."""
    machine.snapshot.write_text("12.3")
    machine.settings |= {"simulated_host": True, "host_snapshot": str(machine.snapshot)}
    machine.check()
    machine.snapshot.write_text("12.4")
    machine.check()
    del machine.settings["host_snapshot"]
    machine.check()
    machine.write(names.STANDIN_NVML.lstrip("/"), b"")
    machine.uuids["gpu0"] = "GPU-of-the-stand-in"
    machine.check()


def test_without_a_directory_everything_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rootless, or with a /run that cannot be written."""
    fresh = machine.look(live.read_live_host)
    monkeypatch.setattr(kept, "DIRECTORY", "/proc/none/cache")
    for _ in range(2):
        assert machine.look(kept_inventory.read_host) == fresh
        assert machine.origin() == "read now: nothing is cached"
