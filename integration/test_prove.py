"""``nvgraft prove`` agrees with the real loader's dlopen() in a root file system of the same files.

A small C program opens a library in a chroot and prints where it came from, or dlerror()'s words.
The libraries are built here, with the search paths and versions that each case needs.
"""

import base64
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from containers import HOST, Bundle, set_ldcache
from harness import LDCONFIG
from ldcaches import listing
from nvgraft.plan.actions import Plan
from nvgraft.request.config import Config
from nvgraft.system import syscalls
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.case.processor import read_isa_level
from nvgraft_cli.prove.loading import Object
from nvgraft_cli.prove.proof import Proof, prove
from nvgraft_cli.simulate.stubs import Loading, shared_object

pytestmark = pytest.mark.requires("root", "gcc", "x86_64", "ldconfig")

_PROGRAM = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    struct link_map *map, *last;
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &last);
    while (last->l_next) last = last->l_next;
    void *handle = dlopen(argv[1], RTLD_LAZY);
    if (!handle) { printf("no %s\\n", dlerror()); return 1; }
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    printf("yes %s\\n", map->l_name);
    for (map = last->l_next; map; map = map->l_next) printf("new %s\\n", map->l_name);
    return 0;
}
"""

_PLAN = Plan("skip", "")
_ORDINARY = Loading()


class Root:
    """A root file system with a C library, a program ``/bin/open`` and the libraries that a case
    builds into it.
    """

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in (
            "bin",
            "etc",
            "proc",
            "lib64",
            "lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu",
            "opt",
        ):
            (place / name).mkdir(parents=True)
        (place / "etc/debian_version").write_text("12\n")
        shutil.copy("/lib64/ld-linux-x86-64.so.2", place / "lib64")
        libc = next(
            path
            for path in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")
            if os.path.exists(path)
        )
        shutil.copy(libc, place / "lib/x86_64-linux-gnu")
        self.compile("bin/open", _PROGRAM)

    def compile(self, target: str, source: str, *options: str, links: tuple[str, ...] = ()) -> None:
        """Build ``target`` from C; ``links`` are libraries of this root that it needs."""
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"] if ".so" in path.name else []
        libraries = [str(self.path / name) for name in links]
        # Libraries after the switch are needed although nothing uses them, and their own needs are
        # ignored.
        linker = ["-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all", *libraries]
        command = ["gcc", "-x", "c", "-", "-o", str(path), *shared, *options, "-x", "none", *linker]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)

    def library(self, target: str, *options: str, links: tuple[str, ...] = ()) -> None:
        self.compile(target, "int value(void) { return 1; }", *options, links=links)

    def stub(self, target: str, *needed: str, loading: Loading = _ORDINARY, bits: int = 64) -> None:
        """Make a library without symbols, with what linkers refuse to make, such as both RPATH and
        RUNPATH.
        """
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        machine = {64: "EM_X86_64", 32: "EM_386"}[bits]
        path.write_bytes(shared_object(bits, machine, path.name, needed, None, None, loading))

    def ldconfig(self, *directories: str) -> None:
        subprocess.run(
            [LDCONFIG, "-r", str(self.path), *directories], check=True, capture_output=True
        )

    def _enter(self) -> None:
        # The loader asks /proc for the program's place, as in a container.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", str(self.path / "proc"), "proc", 0)
        os.chroot(self.path)
        os.chdir("/")

    def dlopen(self, name: str, program: str = "/bin/open", **environment: str) -> str:
        """Return the real loader's answer: "yes PATH" with a line "new PATH" for each loaded
        object, or "no WORDS".
        """
        # LD_LIBRARY_PATH must not reach a program of ours before the change of root.
        done = subprocess.run(
            [program, name], capture_output=True, text=True, env=environment, preexec_fn=self._enter
        )
        # A program that does not start prints its reason on stderr.
        return done.stdout.strip() or f"no {done.stderr.partition('shared libraries: ')[2].strip()}"

    def proof(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Return nvgraft's answer for the same."""
        with open_container(
            str(self.path), [f"{key}={value}" for key, value in environment.items()]
        ) as container:
            return prove(
                name,
                program,
                PlannedTree(container.rootfs, _PLAN, None),
                _PLAN,
                container,
                read_isa_level(),
            )

    def agree(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Ask both, compare, and return nvgraft's answer."""
        real, ours = (
            self.dlopen(name, program, **environment),
            self.proof(name, program, **environment),
        )
        if ours.verdict == "yes":
            assert ours.load.root is not None
            assert real.splitlines() == [
                f"yes {ours.load.root.path}",
                *(f"new {path}" for path in _loaded(ours.load.root)),
            ]
        else:
            assert ours.verdict == "no"
            words = ours.load.failures[0].words
            # The loader gives no reason when it has searched no directory at all.
            assert real in {
                f"no {words}",
                f"no {words.removesuffix(': No such file or directory')}",
            }
        return ours


def _loaded(root: Object) -> list[str]:
    """Return the objects of a load in the loader's order: breadth first."""
    if root.already_loaded:
        return []
    found, queue = [], [root]
    while queue:
        thing = queue.pop(0)
        found.append(thing.path)
        queue += [child for child in thing.needs if not child.already_loaded]
    return found


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def test_a_library_in_the_loaders_own_directories(root: Root) -> None:
    """The first default directory with the library counts; a missing one is reported in the
    loader's words.
    """
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.library("lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/lib/x86_64-linux-gnu/liba.so.1"
    assert root.agree("libnone.so.1").verdict == "no"


def test_ld_library_path_comes_before_cache_and_directories(root: Root) -> None:
    """LD_LIBRARY_PATH comes first, and a missing directory in it does not matter."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    root.library("opt/x/liba.so.1")
    loaded = root.agree("liba.so.1", LD_LIBRARY_PATH="/none:/opt/x").load.root
    assert loaded is not None
    assert loaded.path == "/opt/x/liba.so.1"


def test_the_cache_leads_to_directories_that_nobody_searches(root: Root) -> None:
    """The library is found with the cache and not without it."""
    root.library("opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "no"
    root.ldconfig("/opt/x")
    ours = root.agree("liba.so.1")
    assert ours.verdict == "yes"
    assert ours.load.root is not None
    assert ours.load.root.how == "loader cache"


def test_what_a_library_needs_is_loaded_with_it(root: Root) -> None:
    """A missing library deep in the needs is the reported reason."""
    root.library("usr/lib/x86_64-linux-gnu/libc2.so.1")
    root.library(
        "usr/lib/x86_64-linux-gnu/libb.so.1", links=("usr/lib/x86_64-linux-gnu/libc2.so.1",)
    )
    root.library(
        "usr/lib/x86_64-linux-gnu/liba.so.1", links=("usr/lib/x86_64-linux-gnu/libb.so.1",)
    )
    assert root.agree("liba.so.1").verdict == "yes"
    (root.path / "usr/lib/x86_64-linux-gnu/libc2.so.1").unlink()
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].needed_by == "/usr/lib/x86_64-linux-gnu/libb.so.1"


@pytest.mark.parametrize(
    ("tags", "inherited"), [("--disable-new-dtags", True), ("--enable-new-dtags", False)]
)
def test_rpath_is_inherited_and_runpath_is_not(root: Root, tags: str, inherited: bool) -> None:
    """A needed library's needs are found by the first one's RPATH and not its RUNPATH; $ORIGIN
    counts from that one.
    """
    root.library("opt/x/libc2.so.1")
    root.library("opt/x/libb.so.1", links=("opt/x/libc2.so.1",))
    options = (f"-Wl,{tags}", "-Wl,-rpath,$ORIGIN/../../../opt/x")
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1", *options, links=("opt/x/libb.so.1",))
    assert root.agree("liba.so.1").verdict == ("yes" if inherited else "no")


def test_a_version_that_is_missing_is_told(root: Root, tmp_path: Path) -> None:
    """A library built against a newer one than the image's gets the loader's own sentence."""
    for name, versions in (
        ("new", "V1 { global: value; };\nV2 { global: other; } V1;"),
        ("old", "V1 { global: value; };"),
    ):
        script = tmp_path / f"{name}.map"
        script.write_text(versions)
        source = "int value(void) { return 1; } int other(void) { return 2; }"
        root.compile(f"{name}/libb.so.1", source, f"-Wl,--version-script={script}")
    root.compile(
        "usr/lib/x86_64-linux-gnu/liba.so.1",
        "extern int other(void); int use(void) { return other(); }",
        links=("new/libb.so.1",),
    )
    shutil.copy(root.path / "new/libb.so.1", root.path / "usr/lib/x86_64-linux-gnu/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    shutil.copy(root.path / "old/libb.so.1", root.path / "usr/lib/x86_64-linux-gnu/libb.so.1")
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].words.startswith(
        "/usr/lib/x86_64-linux-gnu/libb.so.1: version `V2' not found (required by /"
    )


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "file too short"), (b"x" * 4096, "invalid ELF header")]
)
def test_a_file_that_is_no_library_stops_the_search(root: Root, content: bytes, words: str) -> None:
    """A file that is not a library, such as a placeholder in an image, stops the loader's
    search.
    """
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(content)
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.verdict == "no"
    assert ours.load.failures[0].words.endswith(words)


def test_a_library_for_another_machine_is_passed_over(root: Root) -> None:
    """A library for another machine is skipped, and the next one is taken."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    data = bytearray((root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").read_bytes())
    data[18] = 183  # e_machine: aarch64
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(data)
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/usr/lib/x86_64-linux-gnu/liba.so.1"


def test_links_are_followed_inside_the_root(root: Root) -> None:
    """Links, also absolute ones, are followed inside the root."""
    root.library("opt/x/liba.so.1")
    (root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").symlink_to("/opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"


def test_a_program_without_its_loader_does_not_start(root: Root) -> None:
    """The kernel reports "no such file or directory" although the program is there."""
    (root.path / "lib64/ld-linux-x86-64.so.2").unlink()
    with pytest.raises(FileNotFoundError):
        subprocess.run(["/bin/open"], preexec_fn=partial(os.chroot, root.path), check=False)
    ours = root.proof("/bin/open")
    assert ours.verdict == "no"
    assert ours.load.failures[0].name == "/lib64/ld-linux-x86-64.so.2"


def at(ours: Proof) -> str | None:
    """Return where the library was found."""
    return None if ours.load.root is None else ours.load.root.path


LIBS = "usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("loading", "found"),
    [
        (Loading(rpath="/opt/x"), "/opt/x"),
        (Loading(runpath="/opt/x"), "/opt/x"),
        (Loading(rpath="/opt/x", runpath="/opt/y"), "/opt/y"),
        (Loading(rpath="/opt/x", runpath=""), None),
        (Loading(rpath=""), None),
        (Loading(rpath="/none:/opt/y:/opt/x"), "/opt/y"),
        (Loading(rpath="/opt/y//:/opt/x"), "/opt/y"),
        (Loading(runpath="$ORIGIN/../../../opt/y"), "/usr/lib/x86_64-linux-gnu/../../../opt/y"),
        (Loading(runpath="${ORIGIN}/own"), "/usr/lib/x86_64-linux-gnu/own"),
        (Loading(runpath="$ORIGINAL/own:/opt/x"), "/opt/x"),
        (
            Loading(runpath="$ORIGIN/../../../../../../../opt/x"),
            "/usr/lib/x86_64-linux-gnu/../../../../../../../opt/x",
        ),
        (Loading(runpath="/opt/$LIB"), "/opt/lib/x86_64-linux-gnu"),
        (Loading(runpath="opt/x"), "opt/x"),
        (Loading(runpath=":/opt/x"), "/opt/x"),
    ],
)
def test_search_paths_of_a_library(root: Root, loading: Loading, found: str | None) -> None:
    """A RUNPATH, even an empty one, disables RPATH; tokens are replaced; the root has no parent."""
    for place in ("opt/x", "opt/y", f"{LIBS}/own", "opt/lib/x86_64-linux-gnu"):
        root.stub(f"{place}/libb.so.1")
    root.stub(f"{LIBS}/liba.so.1", "libb.so.1", loading=loading)
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert [needed.path for needed in ours.load.root.needs] == (
        [f"{found}/libb.so.1"] if found else []
    )


@pytest.mark.parametrize(
    ("tags", "paths", "found"),
    [
        ("--disable-new-dtags", "/opt/x", "/opt/x"),
        ("--enable-new-dtags", "/opt/x", "/opt/y"),
        ("--disable-new-dtags", "$ORIGIN/lib", "/opt/app/lib"),
        ("--enable-new-dtags", "$ORIGIN/lib", "/opt/y"),
    ],
)
@pytest.mark.parametrize("link", [False, True])
def test_search_paths_of_the_program(
    root: Root, tags: str, paths: str, found: str, link: bool
) -> None:
    """RPATH comes before LD_LIBRARY_PATH, RUNPATH after it; $ORIGIN is the program's directory, not
    that of a link.
    """
    for place in ("opt/x", "opt/y", "opt/app/lib", "bin/lib"):
        root.stub(f"{place}/liba.so.1")
    root.compile("opt/app/open", _PROGRAM, f"-Wl,{tags}", f"-Wl,-rpath,{paths}")
    (root.path / "bin/linked").symlink_to("../opt/app/open")
    program = "/bin/linked" if link else "/opt/app/open"
    assert at(root.agree("liba.so.1", program, LD_LIBRARY_PATH="/opt/y")) == f"{found}/liba.so.1"
    # Without LD_LIBRARY_PATH the RUNPATH of the program that calls dlopen() counts as well.
    first = "/opt/app/lib" if "ORIGIN" in paths else paths
    assert at(root.agree("liba.so.1", program)) == f"{first}/liba.so.1"


def test_the_rpath_of_the_program_counts_for_every_library(root: Root) -> None:
    """The program's RPATH counts for every library without RUNPATH; its RUNPATH does not."""
    root.stub("opt/x/libc2.so.1")
    for name, loading in (("libplain.so.1", Loading()), ("librun.so.1", Loading(runpath="/none"))):
        root.stub(f"{LIBS}/{name}", "libc2.so.1", loading=loading)
    for tags in ("--disable-new-dtags", "--enable-new-dtags"):
        root.compile(f"bin/{tags}", _PROGRAM, f"-Wl,{tags}", "-Wl,-rpath,/opt/x")
    assert root.agree("libplain.so.1", "/bin/--disable-new-dtags").verdict == "yes"
    assert root.agree("librun.so.1", "/bin/--disable-new-dtags").verdict == "no"
    assert root.agree("libplain.so.1", "/bin/--enable-new-dtags").verdict == "no"


def test_origin_of_a_library_is_where_it_was_found(root: Root) -> None:
    """$ORIGIN is the path by which the library was found, whatever links are in it."""
    root.stub("opt/real/liba.so.1", "libb.so.1", loading=Loading(runpath="$ORIGIN"))
    root.stub("opt/real/libb.so.1")
    (root.path / LIBS / "liba.so.1").symlink_to("/opt/real/liba.so.1")
    assert root.agree("liba.so.1").verdict == "no"
    (root.path / "opt/linked").symlink_to("real")
    ours = root.agree("liba.so.1", LD_LIBRARY_PATH="/opt/linked")
    assert ours.load.root is not None
    assert ours.load.root.needs[0].path == "/opt/linked/libb.so.1"


@pytest.mark.parametrize(
    ("library_path", "found"),
    [
        ("/opt/x:/opt/y", "/opt/x"),
        ("/none;/opt/y", "/opt/y"),
        ("/opt/x/", "/opt/x"),
        (":/opt/y", "/opt/y"),
        ("opt/y", "opt/y"),
        ("$ORIGIN/../opt/y", "/bin/../opt/y"),
        ("/opt/$LIB:/opt/x", "/opt/x"),
        ("", f"/{LIBS}"),
    ],
)
def test_ld_library_path(root: Root, library_path: str, found: str) -> None:
    """Colons and semicolons separate; an empty entry is the working directory; $ORIGIN is the
    program's.
    """
    for place in ("opt/x", "opt/y", LIBS):
        root.stub(f"{place}/liba.so.1")
    assert at(root.agree("liba.so.1", LD_LIBRARY_PATH=library_path)) == f"{found}/liba.so.1"


def test_the_working_directory_is_searched_for_an_empty_entry(root: Root) -> None:
    """A library found in the working directory has its bare name."""
    root.stub("liba.so.1")
    assert at(root.agree("liba.so.1", LD_LIBRARY_PATH=":/none")) == "liba.so.1"
    assert root.agree("liba.so.1").verdict == "no"


LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


@pytest.mark.parametrize("place", [LIBS, "opt/x"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("levels", [LEVELS, LEVELS[:1], ["x86-64-v9", "haswell"], []])
def test_subdirectories_for_better_processors(
    root: Root, place: str, cached: bool, levels: list[str]
) -> None:
    """The best level of this machine's processor counts, with and without a cache, in every kind of
    directory.
    """
    root.stub(f"{place}/liba.so.1")
    for level in levels:
        root.stub(f"{place}/glibc-hwcaps/{level}/liba.so.1")
    if cached:
        root.ldconfig("/opt/x")
    environment = {"LD_LIBRARY_PATH": "/opt/x"} if place == "opt/x" and not cached else {}
    root.agree("liba.so.1", **environment)
    root.stub(f"{LIBS}/libother.so.1", "liba.so.1", loading=Loading(rpath="/opt/x"))
    assert root.agree("libother.so.1").verdict == "yes"


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_cached_library_that_needs_more_than_its_directory_says(root: Root, level: str) -> None:
    """The cache has the ISA level of the library's note, and the loader skips what this processor
    cannot run.
    """
    root.library("opt/x/liba.so.1")
    for directory in LEVELS:
        root.library(f"opt/x/glibc-hwcaps/{directory}/liba.so.1", f"-Wl,-z,{level}")
    root.ldconfig("/opt/x")
    assert root.agree("liba.so.1").verdict == "yes"


def test_the_cache_has_one_answer(root: Root) -> None:
    """When the cached file is gone, the loader goes on with its directories, not with a second row
    of the cache.
    """
    for place in ("opt/x", "opt/y"):
        root.stub(f"{place}/liba.so.1")
    root.ldconfig("/opt/x", "/opt/y")
    first = at(root.agree("liba.so.1"))
    assert first is not None
    (root.path / first[1:]).unlink()
    assert root.agree("liba.so.1").verdict == "no"
    root.stub(f"{LIBS}/liba.so.1")
    assert at(root.agree("liba.so.1")) == f"/{LIBS}/liba.so.1"


def test_names_of_the_cache_are_compared_as_ldconfig_sorts_them(root: Root) -> None:
    """Numbers are compared by value, so another spelling of the name leads to the same row."""
    root.stub("opt/x/liba.so.1")
    root.ldconfig("/opt/x")
    assert root.agree("liba.so.01").verdict == "yes"
    assert root.agree("liba.so.2").verdict == "no"


@pytest.mark.parametrize("cached", [False, True])
def test_no_default_directories(root: Root, cached: bool) -> None:
    """Such a library's needs are not found in default directories, nor by a cache that leads
    there.
    """
    no_defaults = Loading(flags_1=0x800)
    root.stub("opt/x/liba.so.1", "libb.so.1", loading=no_defaults)
    root.stub("opt/x/libd.so.1", "libe.so.1", loading=no_defaults)
    root.stub(f"{LIBS}/libb.so.1")
    root.stub("opt/x/libe.so.1")
    if cached:
        root.ldconfig("/opt/x")
    environment = {} if cached else {"LD_LIBRARY_PATH": "/opt/x"}
    assert root.agree("liba.so.1", **environment).verdict == "no"
    assert root.agree("libd.so.1", **environment).verdict == "yes"


def test_what_the_program_has_loaded_is_not_searched(root: Root) -> None:
    """A loaded library is found by its SONAME or requested name, even from an otherwise unknown
    directory.
    """
    root.library("opt/own/libown.so.1")
    options = ("-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/own")
    root.compile("opt/app", _PROGRAM, *options, links=("opt/own/libown.so.1",))
    root.stub(f"{LIBS}/liba.so.1", "libown.so.1", loading=Loading(runpath="/none"))
    assert root.agree("liba.so.1").verdict == "no"
    assert root.agree("liba.so.1", "/opt/app").verdict == "yes"
    assert at(root.agree("libown.so.1", "/opt/app")) == "/opt/own/libown.so.1"


def test_two_names_of_one_file_are_one_library(root: Root) -> None:
    """A file with two names is loaded once, under the first name."""
    root.stub(f"{LIBS}/liba.so.1")
    (root.path / LIBS / "libalias.so.1").symlink_to("liba.so.1")
    root.stub(f"{LIBS}/libtop.so.1", "libalias.so.1", "liba.so.1")
    assert root.agree("libtop.so.1").verdict == "yes"


def test_a_program_that_does_not_start_opens_nothing(root: Root) -> None:
    """The program's own first failure is reported."""
    root.library("opt/own/libown.so.1")
    root.compile("opt/app", _PROGRAM, links=("opt/own/libown.so.1",))
    root.stub(f"{LIBS}/liba.so.1")
    ours = root.agree("liba.so.1", "/opt/app")
    assert ours.load.failures[0].needed_by == "/opt/app"


@pytest.mark.parametrize("cached", [False, True])
def test_32_bit_libraries_are_passed_over(root: Root, cached: bool) -> None:
    """The next library is taken; without another one, the loader names the class that it found."""
    root.stub("lib/x86_64-linux-gnu/liba.so.1", bits=32)
    root.stub("opt/x/liba.so.1", bits=32)
    if cached:
        root.ldconfig("/opt/x")
    assert (
        root.agree("liba.so.1").load.failures[0].words == "liba.so.1: wrong ELF class: ELFCLASS32"
    )
    assert root.agree("/opt/x/liba.so.1").verdict == "no"
    root.stub(f"{LIBS}/liba.so.1")
    assert at(root.agree("liba.so.1", LD_LIBRARY_PATH="/opt/x")) == f"/{LIBS}/liba.so.1"


def test_a_directory_of_that_name_stops_the_search(root: Root) -> None:
    """The loader opens the directory and cannot read it."""
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").mkdir()
    root.stub(f"{LIBS}/liba.so.1")
    root.agree("liba.so.1")


@pytest.mark.parametrize(
    "path", ["/opt/x/liba.so.1", "opt/x/liba.so.1", "/opt/linked/liba.so.1", "/none/liba.so.1"]
)
def test_a_library_can_be_opened_by_its_path(root: Root, path: str) -> None:
    """The path may be relative to the working directory; the library's needs are found as usual."""
    root.stub("opt/x/libb.so.1")
    root.stub("opt/x/liba.so.1", "libb.so.1", loading=Loading(runpath="$ORIGIN"))
    (root.path / "opt/linked").symlink_to("x")
    root.agree(path)


def test_a_library_needs_another_one_by_its_path(root: Root) -> None:
    """A linker writes such a path for a library without a SONAME."""
    root.stub("opt/x/libb.so.1")
    root.stub(f"{LIBS}/liba.so.1", "/opt/x/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.stub(f"{LIBS}/liba.so.1", "$ORIGIN/../../../opt/x/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.stub(f"{LIBS}/liba.so.1", "/opt/y/libb.so.1")
    assert root.agree("liba.so.1").verdict == "no"


def test_weak_versions_and_libraries_without_versions_are_let_through(
    root: Root, tmp_path: Path
) -> None:
    """Only a strong need of a library that has versions must be met."""
    root.stub(f"{LIBS}/libb.so.1")
    root.stub(
        f"{LIBS}/liba.so.1", "libb.so.1", loading=Loading(versions_needed={"libb.so.1": ["B_2"]})
    )
    assert root.agree("liba.so.1").verdict == "yes"
    root.stub(f"{LIBS}/libb.so.1", loading=Loading(versions_defined=["libb.so.1", "B_1"]))
    assert root.agree("liba.so.1").verdict == "no"
    root.stub(f"{LIBS}/libb.so.1", loading=Loading(versions_defined=["libb.so.1", "B_1", "B_2"]))
    assert root.agree("liba.so.1").verdict == "yes"
    path = root.path / LIBS / "liba.so.1"
    root.stub(f"{LIBS}/libb.so.1", loading=Loading(versions_defined=["libb.so.1", "B_1"]))
    data = bytearray(path.read_bytes())
    # Version 1, one name, the library, the offset of the name.
    row = re.search(rb"\x01\x00\x01\x00....\x10\x00{7}", data, re.DOTALL)
    assert row is not None
    data[row.end() + 4] = 2  # vna_flags: weak
    path.write_bytes(data)
    assert root.agree("liba.so.1").verdict == "yes"


@pytest.mark.parametrize("version", ["GLIBC_2.2.5", "GLIBC_2.3", "GLIBC_9.99"])
def test_versions_of_the_c_library(root: Root, version: str) -> None:
    """A driver built for a newer glibc fails with these words."""
    root.stub(
        f"{LIBS}/liba.so.1", "libc.so.6", loading=Loading(versions_needed={"libc.so.6": [version]})
    )
    assert root.agree("liba.so.1").verdict == ("no" if "9.99" in version else "yes")


# ---- musl's loader


class MuslRoot(Root):
    """A root file system with musl's loader, which is also its C library, and a program
    ``/bin/open``.
    """

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in ("bin", "etc", "proc", "lib", "usr/lib", "opt"):
            (place / name).mkdir(parents=True)
        shutil.copy("/lib/ld-musl-x86_64.so.1", place / "lib")
        self.program("bin/open")

    def program(self, target: str, *options: str) -> None:
        """Build the program again, with other options."""
        (self.path / target).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["musl-gcc", "-x", "c", "-", "-o", str(self.path / target), *options],
            input=_PROGRAM,
            text=True,
            check=True,
        )


@pytest.fixture
def musl(tmp_path: Path) -> MuslRoot:
    return MuslRoot(tmp_path / "root")


@pytest.mark.requires("musl-gcc")
@pytest.mark.parametrize(
    ("loading", "verdict"),
    [
        (Loading(rpath="/opt/x"), "yes"),
        (Loading(runpath="/none:/opt/x/"), "yes"),
        (Loading(rpath="/opt/x", runpath=""), "no"),
        (Loading(rpath="/opt/x", runpath="/opt/y"), "yes"),
        (Loading(runpath="${ORIGIN}/own:$ORIGIN/../../opt/x"), "yes"),
        (Loading(runpath="/opt/$LIB:/opt/x"), "no"),
        (Loading(runpath="/opt/$OTHER:/opt/x"), "no"),
        (Loading(runpath=":opt/x"), "yes"),
        (Loading(), "no"),
        (Loading(rpath="/opt/x", versions_needed={"libb.so.1": ["B_2"]}), "yes"),
    ],
)
def test_musl_search_paths(musl: MuslRoot, loading: Loading, verdict: str) -> None:
    """RUNPATH comes before RPATH; only $ORIGIN is replaced; versions do not matter."""
    for place in ("opt/x", "opt/y", "opt/lib"):
        musl.stub(f"{place}/libb.so.1", loading=Loading(versions_defined=["libb.so.1", "B_1"]))
    musl.stub("usr/lib/liba.so.1", "libb.so.1", loading=loading)
    assert musl.agree("liba.so.1").verdict == verdict


@pytest.mark.requires("musl-gcc")
@pytest.mark.parametrize(
    "library_path",
    ["/opt/x:/opt/y", "/none:/opt/y", "/opt/x/", ":/opt/y", "opt/y", "$ORIGIN/../opt/y", ""],
)
def test_musl_ld_library_path(musl: MuslRoot, library_path: str) -> None:
    """LD_LIBRARY_PATH is used as it is: no token is replaced, and an empty entry is ignored."""
    for place in ("opt/x", "opt/y", "usr/lib"):
        musl.stub(f"{place}/liba.so.1")
    assert musl.agree("liba.so.1", LD_LIBRARY_PATH=library_path).verdict == "yes"


@pytest.mark.requires("musl-gcc")
def test_musl_search_paths_are_inherited(musl: MuslRoot) -> None:
    """Search paths, RUNPATH too, are inherited from all that led there, the program included."""
    musl.stub("opt/x/liba.so.1", "libb.so.1", loading=Loading(runpath="/none"))
    musl.stub("opt/x/libb.so.1")
    musl.program("opt/app/open", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../x")
    (musl.path / "bin/linked").symlink_to("/opt/app/open")
    for program in ("/opt/app/open", "/bin/linked"):
        assert musl.agree("liba.so.1", program).verdict == "yes"
    assert musl.agree("liba.so.1").verdict == "no"


@pytest.mark.requires("musl-gcc")
def test_musl_directories_of_its_own(musl: MuslRoot) -> None:
    """/etc/ld-musl-ARCH.path replaces musl's default directories."""
    musl.stub("opt/x/liba.so.1")
    assert musl.agree("liba.so.1").verdict == "no"
    (musl.path / "etc/ld-musl-x86_64.path").write_text("/lib\n/opt/x:/none\n")
    assert musl.agree("liba.so.1").verdict == "yes"
    musl.stub("usr/lib/libb.so.1")
    assert musl.agree("libb.so.1").verdict == "no"


@pytest.mark.requires("musl-gcc")
@pytest.mark.parametrize("kind", ["text", "empty", "directory", "narrow"])
def test_musl_takes_the_first_file(musl: MuslRoot, kind: str) -> None:
    """The search ends at the first file of any kind."""
    musl.stub("usr/lib/liba.so.1")
    place = musl.path / "lib/liba.so.1"
    if kind == "directory":
        place.mkdir()
    elif kind == "narrow":
        musl.stub("lib/liba.so.1", bits=32)
    else:
        place.write_bytes(b"x" * 4096 if kind == "text" else b"")
    assert musl.agree("liba.so.1").verdict == "no"


@pytest.mark.requires("musl-gcc")
@pytest.mark.parametrize(
    "needed", ["libc.so.6", "libpthread.so.0", "libm.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"]
)
def test_musl_takes_itself_for_the_c_library(musl: MuslRoot, needed: str) -> None:
    """Names of glibc's libraries mean musl itself, except the name of glibc's loader."""
    musl.stub("usr/lib/liba.so.1", needed)
    assert musl.agree("liba.so.1").verdict == ("no" if needed.startswith("ld") else "yes")


# ---- with a driver, in containers of a runtime


CACHE = "=== cache"


@pytest.mark.requires("runc", "busybox", "overlayfs")
@pytest.mark.parametrize("mode", ["native", "ldconfig"])
@pytest.mark.parametrize("image", ["bare", "fresh", "stale", "gone", "levels", "narrow"])
def test_prove_uses_what_the_hook_writes(bundle: Bundle, image: str, mode: str) -> None:
    """The proof finds the file that a container finds, byte for byte, with the links in the image's
    directory.
    """
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
    look = (
        "find /opt/lib -maxdepth 1 -type l | while read link; do echo $link $(readlink $link); done"
    )
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
        rows = [
            row for row in rows if "=> /lib64/" not in row
        ]  # Debian's ldconfig does not search there
    else:
        assert ours.data() == written
    assert rows == listing(bundle.path / "theirs")
