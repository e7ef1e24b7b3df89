"""``nvgraft prove`` against the real loader: what it says is what dlopen() does in a root file system of the same files.

A small C program opens a library in a chroot and prints where it came from, or dlerror()'s words. The libraries are built
here, so that search paths and versions are what each case needs.
"""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from nvgraft.plan import Plan
from nvgraft_cli.bundle import open_container
from nvgraft_cli.planned_tree import PlannedTree
from nvgraft_cli.prove.proof import Proof, prove

pytestmark = pytest.mark.requires("root", "gcc", "x86_64", "ldconfig")

_PROGRAM = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *handle = dlopen(argv[1], RTLD_LAZY);
    struct link_map *map;
    if (!handle) { printf("no %s\\n", dlerror()); return 1; }
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    printf("yes %s\\n", map->l_name);
    return 0;
}
"""

_PLAN = Plan("skip", "", {}, {}, {})


class Root:
    """A root file system with a C library, a program ``/bin/open`` and the libraries that a case builds into it."""

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in ("bin", "etc", "lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "opt"):
            (place / name).mkdir(parents=True)
        (place / "etc/debian_version").write_text("12\n")
        shutil.copy("/lib64/ld-linux-x86-64.so.2", place / "lib64")
        libc = next(path for path in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6") if os.path.exists(path))
        shutil.copy(libc, place / "lib/x86_64-linux-gnu")
        self.compile("bin/open", _PROGRAM)

    def compile(self, target: str, source: str, *options: str, links: tuple[str, ...] = ()) -> None:
        """Build ``target`` from C; ``links`` are libraries of this root that it needs."""
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"] if ".so" in path.name else []
        libraries = [str(self.path / name) for name in links]
        # What is needed although nothing of it is used stands behind the switch; what it needs itself is not looked at.
        linker = ["-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all", *libraries]
        command = ["gcc", "-x", "c", "-", "-o", str(path), *shared, *options, "-x", "none", *linker]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)

    def library(self, target: str, *options: str, links: tuple[str, ...] = ()) -> None:
        self.compile(target, "int value(void) { return 1; }", *options, links=links)

    def dlopen(self, name: str, **environment: str) -> str:
        """Return what the real loader says: "yes PATH" or "no WORDS"."""
        # LD_LIBRARY_PATH must not reach a program of ours before the change of root.
        done = subprocess.run(
            ["/bin/open", name], capture_output=True, text=True, env=environment, preexec_fn=partial(os.chroot, self.path)
        )
        return done.stdout.strip()

    def proof(self, name: str, **environment: str) -> Proof:
        """Return our answer for the same."""
        with open_container(str(self.path), [f"{key}={value}" for key, value in environment.items()]) as container:
            return prove(name, "/bin/open", PlannedTree(container.rootfs, _PLAN, None), _PLAN, container)

    def agree(self, name: str, **environment: str) -> Proof:
        """Ask both, compare, and return our answer."""
        real, ours = self.dlopen(name, **environment), self.proof(name, **environment)
        if ours.verdict == "yes":
            assert ours.load.root is not None
            assert real == f"yes {ours.load.root.path}"
        else:
            assert ours.verdict == "no"
            words = ours.load.failures[0].words
            assert real == f"no {words}" or real.startswith(f"no {words.partition(': No such')[0]}"), (real, words)
        return ours


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def test_a_library_in_the_loaders_own_directories(root: Root) -> None:
    """The first of them that has it; one that is nowhere is told in the loader's words."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.library("lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/lib/x86_64-linux-gnu/liba.so.1"
    assert root.agree("libnone.so.1").verdict == "no"


def test_ld_library_path_comes_before_cache_and_directories(root: Root) -> None:
    """And a directory of it that is missing does not matter."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    root.library("opt/x/liba.so.1")
    assert root.agree("liba.so.1", LD_LIBRARY_PATH="/none:/opt/x").load.root.path == "/opt/x/liba.so.1"  # type: ignore[union-attr]


def test_the_cache_leads_to_directories_that_nobody_searches(root: Root) -> None:
    """Without it the library is not found; with it, it is."""
    root.library("opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "no"
    subprocess.run(["ldconfig", "-r", str(root.path), "/opt/x"], check=True, capture_output=True)
    ours = root.agree("liba.so.1")
    assert ours.verdict == "yes"
    assert ours.load.root is not None
    assert ours.load.root.how == "loader cache"


def test_what_a_library_needs_is_loaded_with_it(root: Root) -> None:
    """And what is missing far below is the reason that is told."""
    root.library("usr/lib/x86_64-linux-gnu/libc2.so.1")
    root.library("usr/lib/x86_64-linux-gnu/libb.so.1", links=("usr/lib/x86_64-linux-gnu/libc2.so.1",))
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1", links=("usr/lib/x86_64-linux-gnu/libb.so.1",))
    assert root.agree("liba.so.1").verdict == "yes"
    (root.path / "usr/lib/x86_64-linux-gnu/libc2.so.1").unlink()
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].asked_by == "/usr/lib/x86_64-linux-gnu/libb.so.1"


@pytest.mark.parametrize(("tags", "inherited"), [("--disable-new-dtags", True), ("--enable-new-dtags", False)])
def test_rpath_is_inherited_and_runpath_is_not(root: Root, tags: str, inherited: bool) -> None:
    """What a needed library needs itself is found by the first one's RPATH, not by its RUNPATH; $ORIGIN counts from that one."""
    root.library("opt/x/libc2.so.1")
    root.library("opt/x/libb.so.1", links=("opt/x/libc2.so.1",))
    options = (f"-Wl,{tags}", "-Wl,-rpath,$ORIGIN/../../../opt/x")
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1", *options, links=("opt/x/libb.so.1",))
    assert root.agree("liba.so.1").verdict == ("yes" if inherited else "no")


def test_a_version_that_is_missing_is_told(root: Root, tmp_path: Path) -> None:
    """A library was built against a newer one than the image has: the loader's own sentence."""
    for name, versions in (("new", "V1 { global: value; };\nV2 { global: other; } V1;"), ("old", "V1 { global: value; };")):
        script = tmp_path / f"{name}.map"
        script.write_text(versions)
        source = "int value(void) { return 1; } int other(void) { return 2; }"
        root.compile(f"{name}/libb.so.1", source, f"-Wl,--version-script={script}")
    root.compile(
        "usr/lib/x86_64-linux-gnu/liba.so.1", "extern int other(void); int use(void) { return other(); }", links=("new/libb.so.1",)
    )
    shutil.copy(root.path / "new/libb.so.1", root.path / "usr/lib/x86_64-linux-gnu/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    shutil.copy(root.path / "old/libb.so.1", root.path / "usr/lib/x86_64-linux-gnu/libb.so.1")
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].words.startswith("/usr/lib/x86_64-linux-gnu/libb.so.1: version `V2' not found (required by /")


@pytest.mark.parametrize(("content", "words"), [(b"", "file too short"), (b"x" * 4096, "invalid ELF header")])
def test_a_file_that_is_no_library_stops_the_search(root: Root, content: bytes, words: str) -> None:
    """The loader does not look further; placeholders in an image do that."""
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(content)
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.verdict == "no"
    assert ours.load.failures[0].words.endswith(words)


def test_a_library_for_another_machine_is_passed_over(root: Root) -> None:
    """The next one is taken."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    data = bytearray((root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").read_bytes())
    data[18] = 183  # e_machine: aarch64
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(data)
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/usr/lib/x86_64-linux-gnu/liba.so.1"


def test_links_are_followed_inside_the_root(root: Root) -> None:
    """Absolute ones too."""
    root.library("opt/x/liba.so.1")
    (root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").symlink_to("/opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"


def test_a_program_without_its_loader_does_not_start(root: Root) -> None:
    """What the kernel says as "no such file or directory" although the program is there."""
    (root.path / "lib64/ld-linux-x86-64.so.2").unlink()
    with pytest.raises(FileNotFoundError):
        subprocess.run(["/bin/open"], preexec_fn=partial(os.chroot, root.path), check=False)
    ours = root.proof("/bin/open")
    assert ours.verdict == "no"
    assert ours.load.failures[0].name == "/lib64/ld-linux-x86-64.so.2"
