"""``nvgraft prove`` against musl's loader: both give the same answer for the same root file system."""

import shutil
import subprocess
from pathlib import Path

import pytest

from loader_roots import PROGRAM, Root
from nvgraft_cli.simulate.stubs import Loading

pytestmark = pytest.mark.requires("root", "gcc", "x86_64", "ldconfig")


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
            input=PROGRAM,
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
def test_musl_does_not_know_libraries_by_their_sonames(musl: MuslRoot) -> None:
    """A library that is preloaded by its path does not answer for its SONAME, unless a search
    leads to the same file.
    """
    musl.stub("opt/x/liba.so.1")
    assert musl.agree("liba.so.1", LD_PRELOAD="/opt/x/liba.so.1").verdict == "no"
    (musl.path / "usr/lib/liba.so.1").symlink_to("/opt/x/liba.so.1")
    preload = {"LD_PRELOAD": "/opt/x/liba.so.1"}
    assert musl.dlopen("liba.so.1", **preload).startswith("yes ")
    assert musl.proof("liba.so.1", **preload).verdict == "yes"


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
