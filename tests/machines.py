"""A machine with a driver on the disk that tests can change.

Its NVML knows more of the GPUs than /proc shows.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import LiveTree
from nvgraft.host import keep_inventory, kept_inventory, live, nvml, places
from nvgraft.host.components import Host, Inventory
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice
from nvgraft.host.inventory import parse_majors, read_inventory
from nvgraft.request.config import Config
from nvgraft.system import kept
from nvgraft_cli.simulate import ldcache_writer, stubs

VERSIONS = ("535.1", "560.2")
SONAMES = ("libnvidia-ml.so.1", "libcuda.so.1")
PROC = "proc/driver/nvidia"
CAPABILITIES = f"{PROC}/capabilities/gpu0/mig"


@contextmanager
def closed(host: Host) -> Iterator[Host]:
    """Yield a host and close its descriptors afterwards."""
    assert isinstance(host.tree, LiveTree)
    try:
        yield host
    finally:
        host.tree.close()


class Machine:
    """A driver root on the disk, its kernel's state, and an NVML.

    NVML knows more of the GPUs than /proc shows.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.boot = directory / "boot_id"
        self.passwd = directory / "passwd"
        self.clock = directory / "clock"
        self.snapshot = directory / "host.json"
        self.queries = 0
        self.made = 0
        self.uuids: dict[str, str] = {}
        self.boot.write_text("boot-1")
        self.passwd.write_text("someone")
        self.settings: dict[str, Any] = {"cli_root": str(self.root), "cli_user": "someone"}
        self.path = "/usr/bin:/usr/local/bin"
        self.mps = ""
        for version in VERSIONS:
            for soname in SONAMES:
                self.library(f"usr/lib/{soname.removesuffix('.1')}.{version}", soname)
            self.write(f"lib/firmware/nvidia/{version}/gsp_tu10x.bin", b"")
        for soname in SONAMES:
            self.link(f"usr/lib/{soname}", f"{soname.removesuffix('.1')}.{VERSIONS[0]}")
        self.loader_cache()
        self.write("usr/bin/nvidia-smi", b"", 0o755)
        self.write(f"{PROC}/params", b"ModifyDeviceFiles: 1\n")
        self.driver(VERSIONS[0])
        self.majors("195 nvidia", "236 nvidia-caps")
        for node in ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
            self.write(f"dev/{node}", b"")  # devices need root
        self.gpu("0000:01:00.0", 0, "GPU-a")
        self.write("proc/driver/nvidia-caps/mig-minors", b"gpu0/gi1/access 12\n")
        self.mig(1, 0)

    def place(self, path: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Put a new file in place of the old one, as a package manager does."""
        draft = self.place(f"{path}.new")
        draft.write_bytes(data)
        draft.chmod(mode)
        draft.rename(self.place(path))

    def remove(self, path: str) -> None:
        self.place(path).unlink(missing_ok=True)

    def link(self, path: str, target: str) -> None:
        self.remove(path)
        self.place(path).symlink_to(target)

    def library(self, path: str, soname: str) -> None:
        self.write(path, stubs.shared_object(64, "EM_X86_64", soname, (), None))

    def loader_cache(self, *rows: tuple[str, str]) -> None:
        own = [(soname, "libc6,x86-64", f"/usr/lib/{soname}") for soname in SONAMES]
        data = ldcache_writer.cache(
            [*own, *((soname, "libc6,x86-64", path) for soname, path in rows)]
        )
        self.write("etc/ld.so.cache", data)

    def driver(self, version: str) -> None:
        self.write(f"{PROC}/version", f"NVRM version: {version}\n".encode())

    def majors(self, *lines: str) -> None:
        self.write("proc/devices", "\n".join(["Character devices:", *lines, ""]).encode())

    def gpu(self, address: str, minor: int, uuid: str, known: bool = True) -> None:
        self.uuids[f"gpu{minor}"] = uuid
        proc_uuid = uuid if known else "GPU-????????"
        text = (
            f"Model: \t\t Test GPU\nIRQ: \t\t {self.made}\n"
            f"GPU UUID: \t {proc_uuid}\nDevice Minor: \t {minor}\n"
        )
        self.place(f"{PROC}/gpus/{address}/information").write_text(text)

    def mig(self, gpu_instance: int, compute_instance: int) -> None:
        self.made += 1
        path = f"gi{gpu_instance}/ci{compute_instance}"
        shutil.rmtree(self.place(f"{CAPABILITIES}/{path}"), ignore_errors=True)
        # An earlier device with the same ids had another UUID.
        self.uuids[path] = f"MIG-{self.made}"
        self.place(f"{CAPABILITIES}/{path}/access").write_text("DeviceFileMinor: 12\n")

    def no_mig(self, gpu_instance: int) -> None:
        shutil.rmtree(self.place(f"{CAPABILITIES}/gi{gpu_instance}"), ignore_errors=True)

    def query(
        self,
        library: str,
        root: str,
        user: str,
        environment: object,
        meanwhile: Callable[[], None],
        *,
        mig_profiles: bool,
    ) -> DriverReport:
        """Answer as NVML does on this machine."""
        meanwhile()
        self.queries += 1
        if user and self.passwd.read_text() != user:
            raise Refusal("input", "parse user/group failed")
        version = self.place(f"{PROC}/version")
        if not version.exists():
            raise Refusal("initialization", "nvml error: driver not loaded")
        release = version.read_text().split()[-1]
        if not self.place(library.lstrip("/")).resolve().name.endswith(release):
            raise Refusal("initialization", "nvml error: driver/library version mismatch")
        if (
            not os.access(self.place("dev/nvidiactl"), os.F_OK)
            or not self.place("dev/nvidiactl").stat().st_mode & 0o4
        ):
            raise Refusal("initialization", "nvml error: insufficient permissions")
        gpus = []
        for directory in sorted(self.place(f"{PROC}/gpus").iterdir()):
            lines = dict(
                line.split(":", 1) for line in (directory / "information").read_text().splitlines()
            )
            minor = int(lines["Device Minor"])
            migs = sorted(self.place(CAPABILITIES).glob("gi*/ci*")) if minor == 0 else []
            devices = [
                MigDevice(
                    self.uuids[f"{path.parent.name}/{path.name}"],
                    int(path.parent.name[2:]),
                    int(path.name[2:]),
                )
                for path in migs
            ]
            address = f"0000{directory.name}"
            gpus.append(
                Gpu(
                    minor,
                    self.uuids[f"gpu{minor}"],
                    address,
                    2,
                    "8.0",
                    "enabled",
                    lines["Model"].strip(),
                    tuple(devices),
                )
            )
        return DriverReport(release, "12.2", tuple(gpus))

    def tick(self) -> None:
        """Wait until a change of a file gets another time than the last change.

        The time stamps of older kernels have steps of some milliseconds.
        """
        self.clock.write_text("")
        before = self.clock.stat().st_mtime_ns
        while self.clock.stat().st_mtime_ns == before:
            self.clock.write_text("")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replace every source of facts outside of the driver root by this machine's."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kept, "DIRECTORY", str(self.root.parent / "run/nvgraft/cache"))
            (self.root.parent / "run").mkdir(exist_ok=True)
            patch.setattr(kept_inventory, "_BOOT_ID", str(self.boot))
            patch.setattr(kept_inventory, "_ACCOUNTS", (str(self.passwd),))
            patch.setattr(keep_inventory, "SETTLED", 0)
            patch.setattr(
                places, "read_majors", lambda: parse_majors(self.place("proc/devices").read_text())
            )
            patch.setattr(nvml, "query", self.query)
            patch.setattr("nvgraft.host.snapshot.load_report", self.report)
            yield

    def report(self, path: str) -> DriverReport:
        """Answer as the snapshot of a simulated host does."""
        return DriverReport(VERSIONS[0], Path(path).read_text(), ())

    def look(self, read: Callable[[Config], Host]) -> Inventory | str:
        """Return the inventory, or the reference's line of the refusal."""
        try:
            host = read(Config(**self.settings))
        except Refusal as refusal:
            return refusal.reference_line()
        with closed(host):
            try:
                return read_inventory(host, self.path, self.mps)
            except Refusal as refusal:
                return refusal.reference_line()

    def origin(self) -> str:
        """Return where the host that a hook would see now comes from."""
        with closed(kept_inventory.read_host(Config(**self.settings))) as host:
            return host.origin

    def check(self) -> None:
        """A hook sees the live host's inventory, before and after it has been kept."""
        self.tick()
        fresh = self.look(live.read_live_host)
        assert self.look(kept_inventory.read_host) == fresh
        queries = self.queries
        assert self.look(kept_inventory.read_host) == fresh
        if isinstance(fresh, Inventory):
            assert self.queries == queries, "the inventory was not kept"
