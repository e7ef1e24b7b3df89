"""``nvgraft prove`` against the real loader: both give the same answer for the same root file
system.

A small C program opens a library in a chroot and prints its path, or dlerror()'s words. The
libraries are built here, with the search paths and versions that each case needs.
"""

import base64
import json
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
from nvgraft_cli.prove.modules import prove_module
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
LIBS = "usr/lib/x86_64-linux-gnu"
_ORDINARY = Loading()


class Root:
    """A root file system with a C library, a program ``/bin/open`` and the libraries of a case.

    ``uid`` and ``gid`` are the user and group of the program.
    """

    uid = gid = 0

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in ("bin", "etc", "proc", "lib64", "lib/x86_64-linux-gnu", LIBS, "opt"):
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
        # Libraries behind --no-as-needed become needed even if unused; their own needs are ignored.
        linker = ["-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all", *libraries]
        command = ["gcc", "-x", "c", "-", "-o", str(path), *shared, *options, "-x", "none", *linker]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)

    def library(self, target: str, *options: str, links: tuple[str, ...] = ()) -> None:
        self.compile(target, "int value(void) { return 1; }", *options, links=links)

    def stub(self, target: str, *needed: str, loading: Loading = _ORDINARY, bits: int = 64) -> None:
        """Make a library without symbols, also with what linkers refuse to combine."""
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        machine = {64: "EM_X86_64", 32: "EM_386"}[bits]
        path.write_bytes(shared_object(bits, machine, path.name, needed, None, None, loading))

    def ldconfig(self, *directories: str) -> None:
        subprocess.run(
            [LDCONFIG, "-r", str(self.path), *directories], check=True, capture_output=True
        )

    def _enter(self) -> None:
        # The loader reads the program's path from /proc, which a container has too.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", str(self.path / "proc"), "proc", 0)
        os.chroot(self.path)
        os.chdir("/")
        if self.gid:
            os.setgroups([])
            os.setgid(self.gid)
        os.setuid(self.uid)

    def dlopen(self, name: str, program: str = "/bin/open", **environment: str) -> str:
        """Return the real loader's answer: "yes PATH", or "no WORDS" with dlerror()'s words.

        "yes PATH" is followed by a line "new PATH" for each object that was loaded with it.
        """
        # LD_LIBRARY_PATH must not be in effect before the change of root.
        done = subprocess.run(
            [program, name],
            capture_output=True,
            text=True,
            env=environment,
            preexec_fn=self._enter,
        )
        # If the program itself does not start, its loader says why on stderr.
        return done.stdout.strip() or f"no {done.stderr.partition('shared libraries: ')[2].strip()}"

    def proof(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Return prove()'s answer for the same."""
        entries = [f"{key}={value}" for key, value in environment.items()]
        bundle = self.path.parent / "bundle"
        bundle.mkdir(exist_ok=True)
        rights = ["CAP_DAC_OVERRIDE"] if self.uid == 0 else []
        document = {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.path)},
            "process": {
                "user": {"uid": self.uid, "gid": self.gid},
                "capabilities": {"effective": rights},
                "cwd": "/",
            },
        }
        (bundle / "config.json").write_text(json.dumps(document))
        with open_container(str(bundle), entries) as container:
            tree = PlannedTree(container.rootfs, _PLAN, None)
            return prove(name, program, tree, _PLAN, container, read_isa_level())

    def agree(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Assert that the loader and prove() agree; return prove()'s answer."""
        real = self.dlopen(name, program, **environment)
        ours = self.proof(name, program, **environment)
        if ours.verdict == "yes":
            assert ours.load.root is not None
            assert real.splitlines() == [
                f"yes {ours.load.root.path}",
                *(f"new {path}" for path in _loaded(ours.load.root)),
            ]
        else:
            assert ours.verdict == "no"
            words = ours.load.failures[0].words
            # The loader gives no reason if it has searched no directory at last.
            without_reason = words.removesuffix(": No such file or directory")
            assert real in {f"no {words}", f"no {without_reason}"}
        return ours


def _loaded(root: Object) -> list[str]:
    """Return the paths of the objects of a load in the loader's order: breadth first."""
    if root.already_loaded:
        return []
    paths, queue = [], [root]
    while queue:
        loaded = queue.pop(0)
        paths.append(loaded.path)
        queue += [child for child in loaded.needs if not child.already_loaded]
    return paths


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def test_a_library_in_the_loaders_own_directories(root: Root) -> None:
    """The first of the loader's directories with the library wins; a missing one is refused."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.library("lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/lib/x86_64-linux-gnu/liba.so.1"
    assert root.agree("libnone.so.1").verdict == "no"


def test_ld_library_path_comes_before_cache_and_directories(root: Root) -> None:
    """LD_LIBRARY_PATH comes first, and a directory of it that is missing does not matter."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    root.library("opt/x/liba.so.1")
    loaded = root.agree("liba.so.1", LD_LIBRARY_PATH="/none:/opt/x").load.root
    assert loaded is not None
    assert loaded.path == "/opt/x/liba.so.1"


def test_the_cache_leads_to_directories_outside_of_the_search_path(root: Root) -> None:
    """A library in another directory is found with the loader cache, and not without it."""
    root.library("opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "no"
    root.ldconfig("/opt/x")
    ours = root.agree("liba.so.1")
    assert ours.verdict == "yes"
    assert ours.load.root is not None
    assert ours.load.root.how == "loader cache"


@pytest.mark.parametrize("by_file", [False, True])
def test_a_preloaded_library_answers_for_its_soname(root: Root, by_file: bool) -> None:
    """A library of LD_PRELOAD or /etc/ld.so.preload is loaded first, and dlopen() of its SONAME
    returns it. Entries that do not exist are ignored.
    """
    root.library("opt/x/liba.so.1")
    root.library(f"{LIBS}/liba.so.1")
    assert path_of(root.agree("liba.so.1")) == f"/{LIBS}/liba.so.1"
    if by_file:
        (root.path / "etc/ld.so.preload").write_text("/none.so # /opt/y.so\n/opt/x/liba.so.1\n")
        ours = root.agree("liba.so.1")
    else:
        ours = root.agree("liba.so.1", LD_PRELOAD="/none.so:/opt/x/liba.so.1")
    assert path_of(ours) == "/opt/x/liba.so.1"
    assert any("/none.so, which is ignored" in note for note in ours.notes)


def test_a_preloaded_library_brings_what_it_needs(root: Root) -> None:
    """The needs of a preloaded library are loaded at the start, in its own search path."""
    root.library("opt/y/libb.so.1")
    root.library(f"{LIBS}/libb.so.1")
    root.library("opt/x/liba.so.1", "-Wl,-rpath,/opt/y", links=("opt/y/libb.so.1",))
    ours = root.agree("libb.so.1", LD_PRELOAD="/opt/x/liba.so.1")
    assert path_of(ours) == "/opt/y/libb.so.1"


@pytest.mark.parametrize("hidden", ["file", "directory"])
def test_a_library_that_the_user_may_not_read_is_passed_over(root: Root, hidden: str) -> None:
    """The loader skips a library that it may not open, without a word; root may open all."""
    root.library("opt/x/liba.so.1")
    root.library(f"{LIBS}/liba.so.1")
    os.chmod(root.path.parent, 0o755)
    os.chmod(root.path / ("opt/x/liba.so.1" if hidden == "file" else "opt/x"), 0o700)
    first = {"LD_LIBRARY_PATH": "/opt/x"}
    assert path_of(root.agree("liba.so.1", **first)) == "/opt/x/liba.so.1"
    root.uid = 12345
    assert path_of(root.agree("liba.so.1", **first)) == f"/{LIBS}/liba.so.1"


@pytest.mark.parametrize("mode", [0o755, 0o2755, 0o4755])
def test_a_program_that_gains_rights_ignores_ld_library_path(root: Root, mode: int) -> None:
    """With the set-user-ID or set-group-ID bit the loader trusts no variable; root gains nothing
    by its own bit.
    """
    root.library("opt/x/liba.so.1")
    root.library(f"{LIBS}/liba.so.1")
    os.chmod(root.path.parent, 0o755)
    os.chmod(root.path / "bin/open", mode)
    first = {"LD_LIBRARY_PATH": "/opt/x"}
    assert path_of(root.agree("liba.so.1", **first)) == "/opt/x/liba.so.1"
    root.uid = root.gid = 12345
    expected = "/opt/x" if mode == 0o755 else f"/{LIBS}"
    assert path_of(root.agree("liba.so.1", **first)) == f"{expected}/liba.so.1"


@pytest.mark.parametrize("subdirectory", ["tls", "x86_64", "tls/x86_64", "haswell-none"])
def test_older_subdirectories_for_processors(root: Root, subdirectory: str) -> None:
    """A loader before glibc 2.37 searches its older subdirectories, and later ones do not."""
    root.library(f"opt/x/{subdirectory}/liba.so.1")
    root.library(f"{LIBS}/liba.so.1")
    root.agree("liba.so.1", LD_LIBRARY_PATH="/opt/x")


def test_a_library_for_the_processor_in_a_rewritten_cache(root: Root) -> None:
    """A library in a glibc-hwcaps subdirectory comes before the others, through the cache too, if
    the processor has its level.
    """
    root.library("opt/x/liba.so.1")
    root.library("opt/x/glibc-hwcaps/x86-64-v2/liba.so.1")
    root.ldconfig("/opt/x")
    old = read_isa_level() in {None, "x86-64-v1"}
    place = "/opt/x" if old else "/opt/x/glibc-hwcaps/x86-64-v2"
    assert path_of(root.agree("liba.so.1")) == f"{place}/liba.so.1"


def test_a_statically_linked_program_that_opens_libraries(root: Root) -> None:
    """glibc's dlopen() in a static program has the loader's directories and cache built in."""
    source = """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <link.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            struct link_map *map;
            void *handle = dlopen(argv[1], RTLD_LAZY);
            if (!handle) { printf("no %s\\n", dlerror()); return 1; }
            dlinfo(handle, RTLD_DI_LINKMAP, &map);
            printf("yes %s\\n", map->l_name);
            return 0;
        }"""
    root.compile("bin/static", source, "-static")
    root.library("opt/x/liba.so.1")
    assert root.agree("liba.so.1", "/bin/static").verdict == "no"
    root.ldconfig("/opt/x")
    # The C library needs the loader, which a static program has to find like any other.
    assert root.dlopen("liba.so.1", "/bin/static").startswith("no ld-linux-x86-64.so.2: ")
    ours = root.proof("liba.so.1", "/bin/static")
    assert [failure.name for failure in ours.load.failures] == ["ld-linux-x86-64.so.2"]
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root.path / "lib/x86_64-linux-gnu")
    assert root.dlopen("liba.so.1", "/bin/static") == "yes /opt/x/liba.so.1"
    ours = root.proof("liba.so.1", "/bin/static")
    assert (ours.verdict, path_of(ours), ours.notes) == ("yes", "/opt/x/liba.so.1", ())


def test_needed_libraries_are_loaded(root: Root) -> None:
    """Needed libraries are loaded in turn; a missing one is named with its needing library."""
    root.library("usr/lib/x86_64-linux-gnu/libc2.so.1")
    root.library(f"{LIBS}/libb.so.1", links=(f"{LIBS}/libc2.so.1",))
    root.library(f"{LIBS}/liba.so.1", links=(f"{LIBS}/libb.so.1",))
    assert root.agree("liba.so.1").verdict == "yes"
    (root.path / "usr/lib/x86_64-linux-gnu/libc2.so.1").unlink()
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].needed_by == "/usr/lib/x86_64-linux-gnu/libb.so.1"


@pytest.mark.parametrize(
    ("tags", "inherited"), [("--disable-new-dtags", True), ("--enable-new-dtags", False)]
)
def test_rpath_is_inherited_and_runpath_is_not(root: Root, tags: str, inherited: bool) -> None:
    """Needs of a needed library are searched in the first one's RPATH, not in its RUNPATH.

    $ORIGIN in that RPATH is the first library's directory.
    """
    root.library("opt/x/libc2.so.1")
    root.library("opt/x/libb.so.1", links=("opt/x/libc2.so.1",))
    options = (f"-Wl,{tags}", "-Wl,-rpath,$ORIGIN/../../../opt/x")
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1", *options, links=("opt/x/libb.so.1",))
    assert root.agree("liba.so.1").verdict == ("yes" if inherited else "no")


def test_a_missing_version_is_named(root: Root, tmp_path: Path) -> None:
    """A need of a newer library than the image has is refused in the loader's words."""
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
def test_a_file_that_is_not_a_library_stops_the_search(
    root: Root, content: bytes, words: str
) -> None:
    """The loader stops at an empty or foreign file, such as a placeholder in an image."""
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(content)
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    ours = root.agree("liba.so.1")
    assert ours.verdict == "no"
    assert ours.load.failures[0].words.endswith(words)


def test_a_library_for_another_machine_is_passed_over(root: Root) -> None:
    """A library of another architecture is skipped, and the next one is taken."""
    root.library("usr/lib/x86_64-linux-gnu/liba.so.1")
    data = bytearray((root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").read_bytes())
    data[18] = 183  # e_machine: aarch64
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").write_bytes(data)
    ours = root.agree("liba.so.1")
    assert ours.load.root is not None
    assert ours.load.root.path == "/usr/lib/x86_64-linux-gnu/liba.so.1"


def test_links_are_followed_inside_the_root(root: Root) -> None:
    """An absolute symbolic link leads to a path inside of the root file system."""
    root.library("opt/x/liba.so.1")
    (root.path / "usr/lib/x86_64-linux-gnu/liba.so.1").symlink_to("/opt/x/liba.so.1")
    assert root.agree("liba.so.1").verdict == "yes"


def test_a_program_without_its_loader_does_not_start(root: Root) -> None:
    """Without its loader a program fails with ENOENT, and prove() names the missing loader."""
    (root.path / "lib64/ld-linux-x86-64.so.2").unlink()
    with pytest.raises(FileNotFoundError):
        subprocess.run(["/bin/open"], preexec_fn=partial(os.chroot, root.path), check=False)
    ours = root.proof("/bin/open")
    assert ours.verdict == "no"
    assert ours.load.failures[0].name == "/lib64/ld-linux-x86-64.so.2"


def path_of(ours: Proof) -> str | None:
    """Return the path of the library that was opened."""
    return None if ours.load.root is None else ours.load.root.path


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
    """A RUNPATH, even an empty one, disables RPATH; tokens are replaced; `..` ends at the root."""
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
    """RPATH precedes LD_LIBRARY_PATH, RUNPATH follows it; $ORIGIN resolves links."""
    for place in ("opt/x", "opt/y", "opt/app/lib", "bin/lib"):
        root.stub(f"{place}/liba.so.1")
    root.compile("opt/app/open", _PROGRAM, f"-Wl,{tags}", f"-Wl,-rpath,{paths}")
    (root.path / "bin/linked").symlink_to("../opt/app/open")
    program = "/bin/linked" if link else "/opt/app/open"
    assert (
        path_of(root.agree("liba.so.1", program, LD_LIBRARY_PATH="/opt/y")) == f"{found}/liba.so.1"
    )
    # Without LD_LIBRARY_PATH, the RUNPATH of the program that calls dlopen() is searched too.
    first = "/opt/app/lib" if "ORIGIN" in paths else paths
    assert path_of(root.agree("liba.so.1", program)) == f"{first}/liba.so.1"


def test_the_rpath_of_the_program_counts_for_every_library(root: Root) -> None:
    """The program's RPATH, not its RUNPATH, is searched for libraries without a RUNPATH."""
    root.stub("opt/x/libc2.so.1")
    for name, loading in (("libplain.so.1", Loading()), ("librun.so.1", Loading(runpath="/none"))):
        root.stub(f"{LIBS}/{name}", "libc2.so.1", loading=loading)
    for tags in ("--disable-new-dtags", "--enable-new-dtags"):
        root.compile(f"bin/{tags}", _PROGRAM, f"-Wl,{tags}", "-Wl,-rpath,/opt/x")
    assert root.agree("libplain.so.1", "/bin/--disable-new-dtags").verdict == "yes"
    assert root.agree("librun.so.1", "/bin/--disable-new-dtags").verdict == "no"
    assert root.agree("libplain.so.1", "/bin/--enable-new-dtags").verdict == "no"


def test_origin_of_a_library_is_where_it_was_found(root: Root) -> None:
    """$ORIGIN of a library is the directory by which it was found: links are not resolved."""
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
    """Colons and semicolons separate entries; $ORIGIN is the directory of the program."""
    for place in ("opt/x", "opt/y", LIBS):
        root.stub(f"{place}/liba.so.1")
    assert path_of(root.agree("liba.so.1", LD_LIBRARY_PATH=library_path)) == f"{found}/liba.so.1"


def test_the_working_directory_is_searched_for_an_empty_entry(root: Root) -> None:
    """An empty entry is the working directory, whose libraries have paths without a directory."""
    root.stub("liba.so.1")
    assert path_of(root.agree("liba.so.1", LD_LIBRARY_PATH=":/none")) == "liba.so.1"
    assert root.agree("liba.so.1").verdict == "no"


LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


@pytest.mark.parametrize("place", [LIBS, "opt/x"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("levels", [LEVELS, LEVELS[:1], ["x86-64-v9", "haswell"], []])
def test_subdirectories_for_better_processors(
    root: Root, place: str, cached: bool, levels: list[str]
) -> None:
    """The subdirectory for the best level of this processor wins, in every kind of directory."""
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
    """The loader skips a cached library whose ISA level the processor does not have."""
    root.library("opt/x/liba.so.1")
    for directory in LEVELS:
        root.library(f"opt/x/glibc-hwcaps/{directory}/liba.so.1", f"-Wl,-z,{level}")
    root.ldconfig("/opt/x")
    assert root.agree("liba.so.1").verdict == "yes"


def test_a_missing_file_of_the_cache_has_no_second_row(root: Root) -> None:
    """When a cached file is gone, the loader searches directories, and no second row."""
    for place in ("opt/x", "opt/y"):
        root.stub(f"{place}/liba.so.1")
    root.ldconfig("/opt/x", "/opt/y")
    first = path_of(root.agree("liba.so.1"))
    assert first is not None
    (root.path / first[1:]).unlink()
    assert root.agree("liba.so.1").verdict == "no"
    root.stub(f"{LIBS}/liba.so.1")
    assert path_of(root.agree("liba.so.1")) == f"/{LIBS}/liba.so.1"


def test_names_of_the_cache_are_compared_as_ldconfig_sorts_them(root: Root) -> None:
    """Numbers in names are compared by value: libx.so.01 leads to the row of libx.so.1."""
    root.stub("opt/x/liba.so.1")
    root.ldconfig("/opt/x")
    assert root.agree("liba.so.01").verdict == "yes"
    assert root.agree("liba.so.2").verdict == "no"


@pytest.mark.parametrize("cached", [False, True])
def test_a_library_that_refuses_default_directories(root: Root, cached: bool) -> None:
    """DF_1_NODEFLIB excludes the default directories, also by the cache; other rows are used."""
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


def test_libraries_that_the_program_has_loaded_are_not_searched(root: Root) -> None:
    """A loaded library is found by its SONAME, even from a directory outside of the search."""
    root.library("opt/own/libown.so.1")
    options = ("-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/own")
    root.compile("opt/app", _PROGRAM, *options, links=("opt/own/libown.so.1",))
    root.stub(f"{LIBS}/liba.so.1", "libown.so.1", loading=Loading(runpath="/none"))
    assert root.agree("liba.so.1").verdict == "no"
    assert root.agree("liba.so.1", "/opt/app").verdict == "yes"
    assert path_of(root.agree("libown.so.1", "/opt/app")) == "/opt/own/libown.so.1"


def test_two_names_of_one_file_are_one_library(root: Root) -> None:
    """A file with two names is loaded once, under the first name."""
    root.stub(f"{LIBS}/liba.so.1")
    (root.path / LIBS / "libalias.so.1").symlink_to("liba.so.1")
    root.stub(f"{LIBS}/libtop.so.1", "libalias.so.1", "liba.so.1")
    assert root.agree("libtop.so.1").verdict == "yes"


def test_a_program_that_does_not_start_opens_nothing(root: Root) -> None:
    """The answer is the first failure of the program itself."""
    root.library("opt/own/libown.so.1")
    root.compile("opt/app", _PROGRAM, links=("opt/own/libown.so.1",))
    root.stub(f"{LIBS}/liba.so.1")
    ours = root.agree("liba.so.1", "/opt/app")
    assert ours.load.failures[0].needed_by == "/opt/app"


@pytest.mark.parametrize("cached", [False, True])
def test_32_bit_libraries_are_passed_over(root: Root, cached: bool) -> None:
    """A 32-bit library is skipped; if there is no other one, the failure names its ELF class."""
    root.stub("lib/x86_64-linux-gnu/liba.so.1", bits=32)
    root.stub("opt/x/liba.so.1", bits=32)
    if cached:
        root.ldconfig("/opt/x")
    words = root.agree("liba.so.1").load.failures[0].words
    assert words == "liba.so.1: wrong ELF class: ELFCLASS32"
    assert root.agree("/opt/x/liba.so.1").verdict == "no"
    root.stub(f"{LIBS}/liba.so.1")
    assert path_of(root.agree("liba.so.1", LD_LIBRARY_PATH="/opt/x")) == f"/{LIBS}/liba.so.1"


def test_a_directory_of_that_name_stops_the_search(root: Root) -> None:
    """The loader opens a directory of the library's name, cannot read it, and stops."""
    (root.path / "lib/x86_64-linux-gnu/liba.so.1").mkdir()
    root.stub(f"{LIBS}/liba.so.1")
    root.agree("liba.so.1")


@pytest.mark.parametrize(
    "path", ["/opt/x/liba.so.1", "opt/x/liba.so.1", "/opt/linked/liba.so.1", "/none/liba.so.1"]
)
def test_a_library_can_be_opened_by_its_path(root: Root, path: str) -> None:
    """A path is taken relative to the working directory, and needs are found as usual."""
    root.stub("opt/x/libb.so.1")
    root.stub("opt/x/liba.so.1", "libb.so.1", loading=Loading(runpath="$ORIGIN"))
    (root.path / "opt/linked").symlink_to("x")
    root.agree(path)


def test_a_library_needs_another_one_by_its_path(root: Root) -> None:
    """A need with a slash, which linkers write for a library without a SONAME, is a path."""
    root.stub("opt/x/libb.so.1")
    root.stub(f"{LIBS}/liba.so.1", "/opt/x/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.stub(f"{LIBS}/liba.so.1", "$ORIGIN/../../../opt/x/libb.so.1")
    assert root.agree("liba.so.1").verdict == "yes"
    root.stub(f"{LIBS}/liba.so.1", "/opt/y/libb.so.1")
    assert root.agree("liba.so.1").verdict == "no"


def test_weak_versions_and_libraries_without_versions_are_accepted(
    root: Root, tmp_path: Path
) -> None:
    """A missing version is an error only if it is not weak and the library defines versions."""
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
    # Verneed: version 1, one name, the library's name, the offset of the first Vernaux.
    row = re.search(rb"\x01\x00\x01\x00....\x10\x00{7}", data, re.DOTALL)
    assert row is not None
    data[row.end() + 4] = 2  # vna_flags: weak
    path.write_bytes(data)
    assert root.agree("liba.so.1").verdict == "yes"


@pytest.mark.parametrize("version", ["GLIBC_2.2.5", "GLIBC_2.3", "GLIBC_9.99"])
def test_versions_of_the_c_library(root: Root, version: str) -> None:
    """A library that needs a newer glibc than the image has is refused."""
    root.stub(
        f"{LIBS}/liba.so.1", "libc.so.6", loading=Loading(versions_needed={"libc.so.6": [version]})
    )
    assert root.agree("liba.so.1").verdict == ("no" if "9.99" in version else "yes")


@pytest.mark.parametrize("found", [True, False])
def test_an_extension_module_with_the_wheels_beside_it(root: Root, found: bool) -> None:
    """The extension module of a package of PyTorch's form gets the libraries that prove names."""
    site, python = "usr/local/lib/python3.11/site-packages", "usr/local/bin/python3.11"
    root.compile(python, _PROGRAM)
    wheel = "$ORIGIN/../../nvidia/cuda_runtime/lib" if found else None
    root.stub(f"{site}/nvidia/cuda_runtime/lib/libcudart.so.12", "libcudadep.so.1")
    root.stub(f"{site}/nvidia/other/lib/libcudadep.so.1")
    root.stub(
        f"{site}/deep/lib/libdeep.so",
        "libcudart.so.12",
        loading=Loading(rpath=f"{wheel}:$ORIGIN/../../nvidia/other/lib" if wheel else None),
    )
    extension = f"{site}/deep/_C.cpython-311-x86_64-linux-gnu.so"
    root.stub(extension, "libdeep.so", loading=Loading(rpath="$ORIGIN/lib"))
    bundle = root.path.parent / "bundle"
    bundle.mkdir()
    document = {"ociVersion": "1.0.2", "root": {"path": str(root.path)}, "process": {"cwd": "/"}}
    (bundle / "config.json").write_text(json.dumps(document))
    with open_container(str(bundle)) as container:
        case = Case(HostSide(HOST, Config(), read_snapshot(HOST)), container)
        answer = prove_module("deep", case, f"/{python}")
    (ours,) = answer.extensions
    real = root.dlopen(f"/{extension}", f"/{python}").splitlines()
    if found:
        assert ours.load.root is not None
        assert real == [
            f"yes /{extension}",
            *(f"new {path}" for path in _loaded(ours.load.root)),
        ]
        runtime = f"/{site}/nvidia/cuda_runtime/lib/libcudart.so.12"
        assert answer.cuda["libcudart.so.12"].file == runtime
    else:
        assert real == [f"no {ours.load.failures[0].words}"]
        assert any(note.startswith("libcudart.so.12 is in") for note in answer.notes)


# ---- musl's loader


class MuslRoot(Root):
    """A root file system with musl's loader, which is also its C library, and ``/bin/open``."""

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in ("bin", "etc", "proc", "lib", "usr/lib", "opt"):
            (place / name).mkdir(parents=True)
        shutil.copy("/lib/ld-musl-x86_64.so.1", place / "lib")
        self.program("bin/open")

    def program(self, target: str, *options: str) -> None:
        """Build the program with these options."""
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
    """RUNPATH replaces RPATH, $ORIGIN is the only token, and versions do not matter."""
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
    """musl replaces no token in LD_LIBRARY_PATH, and ignores an empty entry."""
    for place in ("opt/x", "opt/y", "usr/lib"):
        musl.stub(f"{place}/liba.so.1")
    assert musl.agree("liba.so.1", LD_LIBRARY_PATH=library_path).verdict == "yes"


@pytest.mark.requires("musl-gcc")
def test_musl_search_paths_are_inherited(musl: MuslRoot) -> None:
    """RUNPATH is inherited from every loading object and the program; $ORIGIN resolves links."""
    musl.stub("opt/x/liba.so.1", "libb.so.1", loading=Loading(runpath="/none"))
    musl.stub("opt/x/libb.so.1")
    musl.program("opt/app/open", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../x")
    (musl.path / "bin/linked").symlink_to("/opt/app/open")
    for program in ("/opt/app/open", "/bin/linked"):
        assert musl.agree("liba.so.1", program).verdict == "yes"
    assert musl.agree("liba.so.1").verdict == "no"


@pytest.mark.requires("musl-gcc")
def test_musl_reads_its_directories_from_its_path_file(musl: MuslRoot) -> None:
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
    """musl takes the first file of the name, even if it is not a library."""
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
    """musl takes itself for glibc's libraries too, except for glibc's loader."""
    musl.stub("usr/lib/liba.so.1", needed)
    assert musl.agree("liba.so.1").verdict == ("no" if needed.startswith("ld") else "yes")


# ---- with a driver, in containers of a runtime


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
