"""``nvgraft prove`` against the real loader: both give the same answer for the same root file
system.

The libraries are built here, with the search paths and versions that each case needs.
"""

import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from containers import HOST
from loader_roots import LEVELS, LIBS, PROGRAM, Root, loaded_paths
from nvgraft.request.config import Config
from nvgraft_cli.case import symbols
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.case.planning import Case
from nvgraft_cli.case.processor import read_isa_level
from nvgraft_cli.prove.modules import prove_module
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.simulate.stubs import Loading

pytestmark = pytest.mark.requires("root", "gcc", "x86_64", "ldconfig")


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


@pytest.mark.parametrize("kind", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_library_that_opens_others_for_the_program(root: Root, kind: str) -> None:
    """The RUNPATH of the library that calls dlopen() counts, and of the program its RPATH alone."""
    opener = PROGRAM.replace("int main(", "int opener(")
    root.compile("opt/p/libopener.so", opener, f"-Wl,{kind},-rpath,$ORIGIN/own")
    main = "int opener(int, char **); int main(int c, char **v) { return opener(c, v); }"
    links = ("opt/p/libopener.so",)
    root.compile("bin/behind", main, f"-Wl,{kind},-rpath,/opt/p", links=links)
    root.library("opt/p/liba.so.1")
    root.library(f"{LIBS}/liba.so.1")
    expected = "/opt/p" if kind == "--disable-new-dtags" else f"/{LIBS}"
    assert path_of(root.agree("liba.so.1", "/bin/behind")) == f"{expected}/liba.so.1"
    root.library("opt/p/own/liba.so.1")
    assert path_of(root.agree("liba.so.1", "/bin/behind")) == "/opt/p/own/liba.so.1"


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
    # It preloads nothing.
    root.library("opt/y/liba.so.1")
    preload = {"LD_PRELOAD": "/opt/y/liba.so.1"}
    assert root.dlopen("liba.so.1", "/bin/static", **preload) == "yes /opt/x/liba.so.1"
    assert path_of(root.proof("liba.so.1", "/bin/static", **preload)) == "/opt/x/liba.so.1"


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


NEEDS = "int nowhere(void); int use(void) { return nowhere(); }"


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_a_missing_symbol_is_named(root: Root, style: str) -> None:
    """What is opened binds all its symbols: one that no loaded library defines is missing."""
    table = f"-Wl,--hash-style={style}"
    root.compile(f"{LIBS}/libb.so.1", "int elsewhere(void) { return 1; }", table)
    root.compile(f"{LIBS}/liba.so.1", NEEDS, table, links=(f"{LIBS}/libb.so.1",))
    ours = root.agree("liba.so.1")
    assert ours.load.failures[0].words == f"/{LIBS}/liba.so.1: undefined symbol: nowhere"
    root.compile(f"{LIBS}/libb.so.1", "int nowhere(void) { return 1; }", table)
    assert root.agree("liba.so.1").verdict == "yes"


def test_what_was_found_for_one_library_holds_for_another_where_it_is_the_same(root: Root) -> None:
    """A program is asked for many libraries: each gets the answer that it gets alone, also where
    another one brings a symbol or a search path that it lacks.
    """
    root.compile("opt/x/libdefines.so", "int nowhere(void) { return 1; }")
    root.compile("opt/x/libneeds.so", NEEDS)
    both = ("opt/x/libdefines.so", "opt/x/libneeds.so")
    rpath = "-Wl,--disable-new-dtags,-rpath,/opt/x"
    root.library(f"{LIBS}/libboth.so", rpath, links=both)
    root.library(f"{LIBS}/libone.so", rpath, links=both[1:])
    root.library("opt/x/libmiddle.so", links=both)
    root.library(f"{LIBS}/libinherits.so", rpath, links=("opt/x/libmiddle.so",))
    root.library(f"{LIBS}/libalone.so", "-Wl,-rpath,/opt/x", links=("opt/x/libmiddle.so",))
    names = ["libboth.so", "libone.so", "libinherits.so", "libalone.so"]
    for order in (names, names[::-1]):
        found = {proof.what: proof.verdict for proof in root.proofs(*order)}
        assert found == {name: root.dlopen(name).partition(" ")[0] for name in names}
    assert list(found.values()) == ["no", "yes", "no", "yes"]


@pytest.mark.parametrize(
    "source",
    [
        "int nowhere(void) __attribute__((weak)); int use(void) { return nowhere(); }",
        'char *getenv(const char *); int use(void) { return !getenv("A"); }',
        "int value(void) { return 1; } int use(void) { return value(); }",
    ],
)
def test_symbols_that_are_not_missing(root: Root, source: str) -> None:
    """A weak symbol may be missing, and the program's C library and the library itself count."""
    root.compile(f"{LIBS}/liba.so.1", source, "-nostdlib")
    assert root.agree("liba.so.1").verdict == "yes"


def test_symbols_of_hostile_files_are_not_read(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of names without end, or more symbols than an image has, nothing is claimed."""
    root.compile(f"{LIBS}/liba.so.1", NEEDS.replace("nowhere", "n" * 5000))
    assert root.proof("liba.so.1").verdict == "yes"
    root.compile(f"{LIBS}/liba.so.1", NEEDS)
    assert root.proof("liba.so.1").verdict == "no"
    monkeypatch.setattr(symbols, "_KnownSymbols", partial(symbols._KnownSymbols, left=0))
    assert root.proof("liba.so.1").verdict == "yes"


@pytest.mark.parametrize(
    ("source", "option", "environment", "verdict"),
    [
        (NEEDS, "-z,lazy", {}, "yes"),
        (NEEDS, "-z,now", {}, "no"),
        (NEEDS, "-z,lazy", {"LD_BIND_NOW": "1"}, "no"),
        ("extern int nowhere; int *there = &nowhere;", "-z,lazy", {}, "no"),
    ],
)
def test_what_is_preloaded_binds_functions_late(
    root: Root, source: str, option: str, environment: dict[str, str], verdict: str
) -> None:
    """A preloaded library whose symbols are bound at the start does not let the program start."""
    root.compile("opt/libp.so", source, f"-Wl,{option}")
    root.library(f"{LIBS}/liba.so.1")
    environment = {"LD_PRELOAD": "/opt/libp.so", **environment}
    ours = root.proof("liba.so.1", **environment)
    real = root.dlopen("liba.so.1", **environment)
    assert (ours.verdict, real.startswith("yes")) == (verdict, verdict == "yes")
    if verdict == "no":
        words = "/bin/open: symbol lookup error: /opt/libp.so: undefined symbol: nowhere"
        assert ours.load.failures[0].words == words


@pytest.mark.parametrize(
    ("size", "model", "verdict"),
    [(64, "initial-exec", "yes"), (4096, "initial-exec", "no"), (4096, "global-dynamic", "yes")],
)
def test_static_thread_local_storage_has_little_room(
    root: Root, size: int, model: str, verdict: str
) -> None:
    """A library that is opened has to fit into what the loader reserves beside the program's."""
    source = f"static __thread char all[{size}]; int use(int i) {{ return all[i]++; }}"
    root.compile(f"{LIBS}/liba.so.1", source, f"-ftls-model={model}")
    assert root.agree("liba.so.1").verdict == verdict
    if size == 64:
        source = source.replace("64", "1700")
        root.compile(f"{LIBS}/liba.so.1", source, f"-ftls-model={model}")
        assert root.proof("liba.so.1").verdict == "unknown"


@pytest.mark.parametrize(
    ("at", "content", "words"),
    [(7, b"\x09", "ELF file OS ABI invalid"), (64, bytes(4096), "no loadable segments")],
)
def test_a_library_with_a_header_of_another_kind(
    root: Root, at: int, content: bytes, words: str
) -> None:
    """The loader stops at a library of another system, and at one with a header alone."""
    root.library(f"{LIBS}/liba.so.1")
    path = root.path / LIBS / "liba.so.1"
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)
    ours, real = root.proof("liba.so.1"), root.dlopen("liba.so.1")
    assert (ours.verdict, real.endswith(words)) == ("no", True)
    assert ours.load.failures[0].words.endswith(words)


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
    root.compile("opt/app/open", PROGRAM, f"-Wl,{tags}", f"-Wl,-rpath,{paths}")
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
        root.compile(f"bin/{tags}", PROGRAM, f"-Wl,{tags}", "-Wl,-rpath,/opt/x")
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
    root.compile("opt/app", PROGRAM, *options, links=("opt/own/libown.so.1",))
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
    root.compile("opt/app", PROGRAM, links=("opt/own/libown.so.1",))
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


#: A program that opens libraries before the one in question: those in FIRST, as far as they load.
OPENS_FIRST = PROGRAM.replace(
    "#include <stdio.h>", "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>"
).replace(
    "    dlinfo(dlopen(NULL",
    """    char *first = getenv("FIRST") ? strdup(getenv("FIRST")) : NULL;
    for (first = first ? strtok(first, ":") : NULL; first; first = strtok(NULL, ":"))
        dlopen(first, RTLD_NOW);
    dlinfo(dlopen(NULL""",
)
#: The same in Python.
SITECUSTOMIZE = """\
import ctypes, os
for path in os.environ.get("FIRST", "").split(":"):
    try:
        ctypes.CDLL(path)
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("", f"/{LIBS}/liba.so.1"),
        ("/opt/own/liba.so.1", "/opt/own/liba.so.1"),
        ("/opt/none.so:/opt/own/../own/liba.so.1", "/opt/own/liba.so.1"),
        ("liba.so.1:/opt/own/liba.so.1", f"/{LIBS}/liba.so.1"),
        ("/opt/own/liba.so.1:liba.so.1", "/opt/own/liba.so.1"),
        ("/opt/helper/libneeds.so", "/opt/own/liba.so.1"),
        ("/opt/plain/libneeds.so", f"/{LIBS}/liba.so.1"),
        ("/opt/other/liba.so.1", f"/{LIBS}/liba.so.1"),
        ("/opt/same/libb.so", "/opt/same/libb.so"),
        ("/opt/broken/liba.so.1", f"/{LIBS}/liba.so.1"),
        ("/opt/lacking/liba.so.1", f"/{LIBS}/liba.so.1"),
        ("/opt/link/liba.so.1", f"/{LIBS}/liba.so.1"),
    ],
)
def test_a_library_that_code_has_opened_answers_for_its_soname(
    root: Root, first: str, expected: str
) -> None:
    """What is loaded already, and has the SONAME, is what dlopen() returns: by its own path, or
    with a library that needs it. What does not load, and what has another SONAME, does not count.
    """
    python = "usr/local/bin/python3.11"
    root.compile(python, OPENS_FIRST)
    site = root.path / "usr/local/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
    root.library(f"{LIBS}/liba.so.1")
    root.library("opt/own/liba.so.1")
    own = ("opt/own/liba.so.1",)
    root.library("opt/helper/libneeds.so", "-Wl,-rpath,$ORIGIN/../own", links=own)
    root.library("opt/plain/libneeds.so", links=own)
    root.library("opt/other/liba.so.1", "-Wl,-soname,libother.so.1")
    root.library("opt/same/libb.so", "-Wl,-soname,liba.so.1")
    root.stub("opt/lacking/liba.so.1", "libnowhere.so.1")
    for name in ("broken", "link"):
        (root.path / "opt" / name).mkdir()
    (root.path / "opt/broken/liba.so.1").write_bytes(b"x" * 100)
    (root.path / "opt/link/liba.so.1").symlink_to(f"/{LIBS}/liba.so.1")
    environment = {"FIRST": first} if first else {}
    real = root.dlopen("liba.so.1", f"/{python}", **environment)
    ours = root.proof("liba.so.1", f"/{python}", **environment)
    assert real.splitlines()[0] == f"yes {path_of(ours)}"
    assert ours.load.root is not None
    assert (ours.verdict, ours.load.root.file) == ("yes", expected)


@pytest.mark.parametrize("found", [True, False])
def test_an_extension_module_with_the_wheels_beside_it(root: Root, found: bool) -> None:
    """The extension module of a package of PyTorch's form gets the libraries that prove names."""
    site, python = "usr/local/lib/python3.11/site-packages", "usr/local/bin/python3.11"
    root.compile(python, PROGRAM)
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
            *(f"new {path}" for path in loaded_paths(ours.load.root)),
        ]
        runtime = f"/{site}/nvidia/cuda_runtime/lib/libcudart.so.12"
        assert answer.cuda["libcudart.so.12"].file == runtime
    else:
        assert real == [f"no {ours.load.failures[0].words}"]
        assert any(note.startswith("libcudart.so.12 is in") for note in answer.notes)
