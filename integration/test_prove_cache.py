"""``nvgraft prove`` against the loader cache that the hook writes in containers of a runtime."""

import base64
import os
import shutil
import subprocess

import pytest

from containers import HOST, Bundle, set_ldcache
from harness import LDCONFIG
from ldcaches import listing
from loader_roots import LEVELS
from nvgraft.request.config import Config
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.case.planning import Case
from nvgraft_cli.simulate.stubs import shared_object

pytestmark = pytest.mark.requires("root", "gcc", "x86_64", "ldconfig")

CACHE = "=== cache"


@pytest.mark.requires("runc", "busybox", "overlayfs")
@pytest.mark.parametrize("mode", ["native", "ldconfig"])
@pytest.mark.parametrize("image", ["bare", "fresh", "stale", "gone", "levels", "narrow"])
def test_prove_foretells_the_loader_cache_that_the_hook_writes(
    bundle: Bundle, image: str, mode: str
) -> None:
    """prove()'s loader cache and SONAME links are those that a container gets."""
    rootfs = bundle.path / "rootfs"
    (rootfs / "opt/lib").mkdir(parents=True)
    (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n")
    place = rootfs / "opt/lib"
    (place / "libown.so.1.2").write_bytes(shared_object(64, "EM_X86_64", "libown.so.1", [], None))
    (place / "libcuda.so.1").write_bytes(shared_object(64, "EM_X86_64", "libcuda.so.1", [], None))
    if image == "levels":
        for level in LEVELS:
            (place / "glibc-hwcaps" / level).mkdir(parents=True)
            shutil.copy(place / "libown.so.1.2", place / "glibc-hwcaps" / level)
    elif image == "narrow":
        (place / "libnarrow.so.1").write_bytes(
            shared_object(32, "EM_386", "libnarrow.so.1", ["libc.so.6"], None)
        )
    if image != "bare":
        subprocess.run([LDCONFIG, "-r", str(rootfs)], check=True)
    if image == "stale":
        (place / "libnew.so.3.4").write_bytes(
            shared_object(64, "EM_X86_64", "libnew.so.3", [], None)
        )
    elif image == "gone":
        (place / "libown.so.1.2").unlink()
    if image in {"stale", "gone"}:
        os.utime(rootfs / "etc/ld.so.cache", (1, 1))
    with open_container(str(bundle.path)) as container:
        case = Case(HostSide(HOST, Config(ldcache_mode=mode), read_snapshot(HOST)), container)
        assert case.outcome[1] is None
        ours = case.planned_tree.loader_cache
        nodes = {
            name: case.planned_tree.lstat(f"/opt/lib/{name}")
            for name in case.planned_tree.listdir("/opt/lib")
        }
    assert ours is not None
    read_links = "while read link; do echo $link $(readlink $link); done"
    look = f"find /opt/lib -maxdepth 1 -type l | {read_links}"
    done = bundle.run(f"{look}; echo '{CACHE}'; base64 /etc/ld.so.cache", prepare=set_ldcache(mode))
    assert done.returncode == 0, done.stderr
    links, _, encoded = done.stdout.partition(CACHE)
    assert sorted(links.split("\n")[:-1]) == sorted(
        f"/opt/lib/{name} {node.target}" for name, node in nodes.items() if node and node.target
    )
    written = base64.b64decode(encoded)
    (bundle.path / "theirs").write_bytes(written)
    (bundle.path / "ours").write_bytes(ours.data())
    rows = listing(bundle.path / "ours")
    if mode == "ldconfig":
        # Debian's ldconfig does not search /lib64.
        rows = [row for row in rows if "=> /lib64/" not in row]
    else:
        assert ours.data() == written
    assert rows == listing(bundle.path / "theirs")
