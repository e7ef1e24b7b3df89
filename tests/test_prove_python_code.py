"""What the code of a Python program opens first: a library that is loaded already answers for its
SONAME when the program asks for it.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from documents import read_document
from images import oci_layout, write_directory
from loaders import ELF, LOADER, X86, Captured, bundle, image, run_prove
from nvgraft_cli.prove.script.python_words import InterpreterWords, read_words
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object

HOST = "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03"
SITE = "usr/local/lib/python3.11/site-packages"
PYTHON = "usr/local/bin/python3.11"
TAG = "cpython-311-x86_64-linux-gnu.so"
PACKAGE = f"{SITE}/gpulib"
OWN = f"{PACKAGE}/lib/libcuda.so.1"
#: Opens the package's libcuda.
OPEN = "ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib', 'libcuda.so.1'))"
FUNCTION = f"import ctypes, os\ndef load():\n    return {OPEN}\n"
MAIN = "import gpulib\n"


def shared(soname: str, *needed: str, runpath: str | None = None) -> bytes:
    return shared_object(64, X86, soname, needed, None, None, Loading(None, runpath))


def container(
    place: Path,
    texts: dict[str, str],
    *env: str,
    args: list[str] | None = None,
    files: dict[str, bytes] | None = None,
) -> str:
    """Return a bundle with a Python, a package with a libcuda of its own, and these files."""
    content = {
        **image(),
        PYTHON: executable(X86, "x", ["libc.so.6"], None, LOADER),
        OWN: shared("libcuda.so.1"),
        "opt/old/libcuda.so.1": shared("libcuda.so.1"),
        "app/main.py": MAIN.encode(),
        **{name: text.encode() for name, text in texts.items()},
        **(files or {}),
    }
    path = bundle(place, content, "PATH=/usr/local/bin:/usr/bin", *env)
    (place / "rootfs" / PYTHON).with_name("python3").symlink_to("python3.11")
    config = json.loads((place / "config.json").read_text())
    config["process"] |= {"args": args or ["python3", "/app/main.py"], "cwd": "/app"}
    (place / "config.json").write_text(json.dumps(config))
    return path


def loaded(capsys: Captured, path: str) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the file of libcuda.so.1, and the whole proof."""
    code, (proof,) = run_prove(capsys, "--bundle", path)
    return code, proof["file"]["path"], proof


def in_package(init: str, **modules: str) -> dict[str, str]:
    """Return the sources of the package."""
    return {
        f"{PACKAGE}/__init__.py": init,
        **{f"{PACKAGE}/{name}.py": text for name, text in modules.items()},
    }


@pytest.mark.parametrize(
    "sources",
    [
        in_package(f"import ctypes, os\n{OPEN}\n"),
        in_package(
            "from ctypes import cdll\nfrom pathlib import Path\n"
            "cdll.LoadLibrary(str(Path(__file__).resolve().parent / 'lib' / 'libcuda.so.1'))\n"
        ),
        in_package(f"{FUNCTION}load()\n"),
        in_package("from ._loader import load as start\nstart()\n", _loader=FUNCTION),
        in_package("from ._loader import *\nload()\n", _loader=FUNCTION),
        in_package(FUNCTION) | {"app/main.py": "import gpulib\ngpulib.load()\n"},
        in_package(f"import ctypes, os, sys\nif sys.version_info >= (3, 8):\n  {OPEN}\n"),
        in_package(f"import ctypes, os\nif os.environ.get('BUNDLED') == '1':\n  {OPEN}\n")
        | {"app/main.py": "import os\nos.environ['BUNDLED'] = '1'\nimport gpulib\n"},
        in_package(f"import ctypes, os\nif 'BUNDLED' not in os.environ:\n  {OPEN}\n"),
        in_package(
            "import ctypes, os\nos.chdir(os.path.dirname(__file__))\n"
            "ctypes.CDLL('./lib/libcuda.so.1')\n"
        ),
        in_package(
            "import ctypes, os\ntry:\n  place = os.environ['GPULIB']\nexcept KeyError:\n"
            "  place = os.path.dirname(__file__)\nctypes.CDLL(place + '/lib/libcuda.so.1')\n"
        ),
        in_package(f"import ctypes, os\ntry:\n  raise ValueError\nexcept ValueError:\n  {OPEN}"),
        in_package(
            f"import ctypes, os\nasync def f():\n  {OPEN}\nimport asyncio\nasyncio.run(f())"
        ),
        in_package(FUNCTION)
        | {"app/main.py": "def main():\n  from gpulib import load\n  load()\nmain()\n"},
        in_package(
            "import ctypes, glob, os\n"
            "for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), 'lib/*.so*'))):\n"
            "    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)\n"
        ),
        in_package(f"import ctypes, os\ntry:\n  ctypes.CDLL('none.so')\nexcept OSError:\n  {OPEN}"),
        in_package(
            "import ctypes, os, platform, sys\n"
            f"if sys.platform != 'win32' and platform.machine() == 'x86_64':\n  {OPEN}\n"
        ),
        in_package(f"import ctypes, os\nclass Driver:\n  handle = {OPEN}\n"),
        in_package("import importlib\nimportlib.import_module('.own', __name__)\n", own=FUNCTION)
        | {"app/main.py": "from gpulib.own import load\nload()\n"},
    ],
)
def test_a_package_that_opens_a_libcuda_of_its_own(
    sources: dict[str, str], tmp_path: Path, capsys: Captured
) -> None:
    """What an imported package opens is what the program then gets: exit code 4."""
    code, file, proof = loaded(capsys, container(tmp_path / "b", sources))
    assert (code, file, proof["verdict"]) == (4, f"/{OWN}", "yes")
    assert proof["file"]["how"].startswith(f"by its path: /{PACKAGE}/")
    assert proof["file"]["how"].endswith("opens it first")


@pytest.mark.parametrize(
    "sources",
    [
        in_package(FUNCTION),
        in_package(f"import ctypes, os, sys\nif sys.platform == 'win32':\n  {OPEN}\n"),
        in_package(f"import ctypes, os\nif os.environ.get('BUNDLED') == '1':\n  {OPEN}\n"),
        in_package(
            f"import ctypes, os\ntry:\n  ctypes.CDLL('libcuda.so.1')\nexcept OSError:\n  {OPEN}\n"
        ),
        in_package(f"import ctypes, os\n{OPEN}\n")
        | {"app/main.py": "import ctypes\nctypes.CDLL('libcuda.so.1')\nimport gpulib\n"},
        in_package(f"import ctypes, os\n{OPEN}\n") | {"app/main.py": "import json, os\n"},
        in_package(f"import ctypes, os\n{OPEN}\n") | {"app/main.py": "def f():\n  import gpulib\n"},
        in_package(f"import ctypes, os\n{OPEN}\n") | {"app/main.py": "import sys\nsys.exit()\n"},
        in_package(
            "import ctypes, os\ndone = False\ndef setup():\n  global done\n  done = True\nsetup()\n"
            f"if not done:\n  {OPEN}\n"
        ),
    ],
)
def test_code_that_does_not_open_it(
    sources: dict[str, str], tmp_path: Path, capsys: Captured
) -> None:
    """What is not run opens nothing, and the first library of a name stays."""
    code, file, proof = loaded(capsys, container(tmp_path / "b", sources))
    assert (code, file) == (0, HOST)
    assert not any("first" in fact for fact in proof["unknown"])


def test_what_code_opens_by_its_name_is_what_any_search_finds(
    tmp_path: Path, capsys: Captured
) -> None:
    """A program that opens libcuda.so.1 by its name gets the same answer, with all that is not
    known of the search, as one of which no code is followed.
    """
    opens = {"app/main.py": "import ctypes\nctypes.CDLL('libcuda.so.1')\n"}
    hwcaps = {"opt/old/glibc-hwcaps/x86-64-v4/libcuda.so.1": shared("libcuda.so.1")}
    found = [
        loaded(capsys, container(tmp_path / name, texts, "LD_LIBRARY_PATH=/opt/old", files=hwcaps))
        for name, texts in (("a", opens), ("b", {"app/main.py": ""}))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("sources", "fact"),
    [
        (
            in_package(f"import ctypes, os, random\nif random.random() > 1:\n  {OPEN}\n"),
            f"whether /{PACKAGE}/__init__.py, line 3, opens /{OWN} first",
        ),
        (
            in_package(f"import ctypes, os\ntry:\n  import none\nexcept ImportError:\n  {OPEN}\n"),
            f"whether /{PACKAGE}/__init__.py, line 5, opens /{OWN} first",
        ),
        (
            in_package(
                "import ctypes, os, random\nfor name in ['lib/libcuda.so.1']:\n"
                "  if random.random() > 1:\n    continue\n"
                "  ctypes.CDLL(os.path.join(os.path.dirname(__file__), name))\n"
            ),
            f"whether /{PACKAGE}/__init__.py, line 5, opens /{OWN} first",
        ),
        (
            in_package("class Driver:\n  def __init__(self):\n    pass\n")
            | {"app/main.py": "import gpulib\ngpulib.Driver()\n"},
            f"whether code of gpulib opens /{OWN} first",
        ),
        (
            in_package(f"import ctypes, os\n{OPEN}\n")
            | {
                "app/main.py": "import ctypes, threading\ndef work():\n  import gpulib\n"
                "threading.Thread(target=work).start()\nctypes.CDLL('libcuda.so.1')\n"
            },
            f"whether /{PACKAGE}/__init__.py, line 2, opens /{OWN} first",
        ),
        (
            in_package(f"import ctypes, os\n{OPEN}\n")
            | {"app/main.py": "class App:\n  def run(self):\n    import gpulib\nApp().run()\n"},
            f"whether /{PACKAGE}/__init__.py, line 2, opens /{OWN} first",
        ),
        (
            in_package("from . import boot\n") | {f"{PACKAGE}/boot.pyc": "compiled"},
            f"whether code of gpulib opens /{OWN} first",
        ),
        (
            {"app/main.py": "import ctypes, random\nctypes.CDLL(random.choice(['libcuda.so']))\n"},
            "which library /app/main.py, line 2, opens",
        ),
    ],
)
def test_code_of_which_it_is_not_known_what_it_opens(
    sources: dict[str, str], fact: str, tmp_path: Path, capsys: Captured
) -> None:
    """Where the code cannot be followed, the host's file is named with what is not known; doctor
    has a warning, and no error.
    """
    path = container(tmp_path / "b", sources)
    code, file, proof = loaded(capsys, path)
    assert (code, file, proof["verdict"]) == (0, HOST, "unknown")
    assert fact in proof["unknown"]
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"])
    results = read_document(capsys.readouterr().out)["results"]
    (found,) = [result for result in results if result["id"] == "library-shadowed"]
    assert [finding["level"] for finding in found["findings"]] == ["warning"]
    assert fact in found["findings"][0]["message"]


def test_what_is_known_of_a_program_that_others_give_its_work(
    tmp_path: Path, capsys: Captured
) -> None:
    """A server imports a module that it gets as an argument, and a script computes a variable:
    both perhaps open the package's library. A module that sys.path lacks is perhaps elsewhere.
    """
    server = "import sys\nclass Loader:\n  pass\nLoader().load(sys.argv[1])\n"
    condition = f"import ctypes, os\nif os.environ.get('A') == '1':\n  {OPEN}\n"
    programs = {"usr/bin/sh": ELF, "usr/bin/date": ELF}
    found = [
        container(
            tmp_path / "a",
            in_package(f"import ctypes, os\n{OPEN}\n") | {"app/serve.py": server},
            args=["python3", "serve.py", "main:app"],
        ),
        container(
            tmp_path / "b",
            in_package(condition),
            args=["sh", "-c", "export A=$(date +%s); exec python3 /app/main.py"],
            files=programs,
        ),
        container(tmp_path / "c", {"app/main.py": "import elsewhere\n"}),
    ]
    facts = [
        f"whether /{PACKAGE}/__init__.py, line 2, opens /{OWN} first",
        f"whether /{PACKAGE}/__init__.py, line 3, opens /{OWN} first",
        "what /app/main.py, line 1, imports as elsewhere, which is not in sys.path",
    ]
    for path, fact in zip(found, facts, strict=True):
        code, file, proof = loaded(capsys, path)
        assert (code, file, proof["verdict"]) == (0, HOST, "unknown")
        assert fact in proof["unknown"]


@pytest.mark.parametrize(
    ("runpath", "expected"), [("$ORIGIN/lib", f"/{OWN}"), (None, HOST), ("/opt/old", "/opt/old")]
)
def test_an_extension_module_brings_what_it_needs(
    runpath: str | None, expected: str, tmp_path: Path, capsys: Captured
) -> None:
    """An extension module that needs libcuda.so.1 gets it by its own RUNPATH, and all after it."""
    module = {f"{PACKAGE}/_C.{TAG}": shared("_C.so", "libcuda.so.1", runpath=runpath)}
    path = container(tmp_path / "b", in_package("from . import _C\n"), files=module)
    code, file, proof = loaded(capsys, path)
    assert file.startswith(expected)
    assert code == (0 if runpath is None else 4)
    if runpath is not None:
        assert proof["file"]["how"] == (
            f"RUNPATH of /{PACKAGE}/_C.{TAG}: /{PACKAGE}/__init__.py, line 1, imports "
            f"/{PACKAGE}/_C.{TAG} first"
        )


def test_a_module_for_another_python_is_not_imported(tmp_path: Path, capsys: Captured) -> None:
    """An extension module with the tag of another Python counts for nothing."""
    other = {f"{PACKAGE}/_C.cpython-312-x86_64-linux-gnu.so": shared("x", "libcuda.so.1")}
    path = container(tmp_path / "b", in_package("from . import _C\n"), files=other)
    assert loaded(capsys, path)[:2] == (0, HOST)


@pytest.mark.parametrize(
    ("soname", "name"), [("libgpulib.so.1", "libcuda.so.1"), ("libcuda.so.1", "libgpulib.so")]
)
def test_the_soname_of_a_library_counts(
    soname: str, name: str, tmp_path: Path, capsys: Captured
) -> None:
    """A library answers for its SONAME, whatever its file is called."""
    init = f"import ctypes, os\nctypes.CDLL(os.path.dirname(__file__) + '/lib/{name}')\n"
    own = {f"{PACKAGE}/lib/{name}": shared(soname)}
    _, file, _ = loaded(capsys, container(tmp_path / "b", in_package(init), files=own))
    assert file == (HOST if soname == "libgpulib.so.1" else f"/{PACKAGE}/lib/{name}")


PRELOAD = "import ctypes; ctypes.CDLL('/opt/old/libcuda.so.1')\n"
STARTS = {
    "pth": {f"{SITE}/boot.pth": f"# a comment\n{PRELOAD}", "app/main.py": ""},
    "pth that imports": {f"{SITE}/boot.pth": "import boot\n", f"{SITE}/boot.py": PRELOAD},
    "sitecustomize": {f"{SITE}/sitecustomize.py": PRELOAD},
    "usercustomize": {"opt/hooks/usercustomize.py": PRELOAD},
}


@pytest.mark.parametrize("how", STARTS)
def test_the_start_of_python_opens_libraries(how: str, tmp_path: Path, capsys: Captured) -> None:
    """Lines of .pth files that import something are run, then sitecustomize and usercustomize."""
    path = container(tmp_path / "b", STARTS[how], "PYTHONPATH=/opt/hooks")
    code, file, _ = loaded(capsys, path)
    assert (code, file) == (4, "/opt/old/libcuda.so.1")


def test_where_the_start_of_python_looks(tmp_path: Path, capsys: Captured) -> None:
    """-S reads no .pth file, -I no PYTHONPATH and no directory of the script. A sitecustomize of
    the standard library comes first, and Debian's Python reads dist-packages alone.
    """
    pth = {f"{SITE}/boot.pth": PRELOAD}
    args = ["python3", "-S", "/app/main.py"]
    assert loaded(capsys, container(tmp_path / "s", pth, args=args))[0] == 0
    hook = {"app/sitecustomize.py": PRELOAD, "app/helper.py": PRELOAD, "app/main.py": ""}
    isolated = container(
        tmp_path / "i",
        hook | {"app/main.py": "import helper\n"},
        "PYTHONPATH=/app",
        args=["python3", "-I", "main.py"],
    )
    assert loaded(capsys, isolated)[0] == 0
    own = {f"{SITE}/sitecustomize.py": PRELOAD, "usr/local/lib/python3.11/sitecustomize.py": ""}
    assert loaded(capsys, container(tmp_path / "c", own))[0] == 0
    debian = pth | {"usr/local/lib/python3.11/site.py": "'dist-packages'"}
    assert loaded(capsys, container(tmp_path / "d", debian))[0] == 0
    dist = SITE.replace("site-packages", "dist-packages")
    there = {f"{dist}/boot.pth": PRELOAD} | debian
    assert loaded(capsys, container(tmp_path / "e", there))[0] == 4


@pytest.mark.parametrize(
    "args",
    [
        ["python3", "-c", "import gpulib"],
        ["python3", "-uc", "import gpulib"],
        ["python3", "-um", "gpulib"],
        ["python3", "-m", "gpulib.run"],
        ["python3", "-X", "dev", "-W", "ignore", "main.py"],
        ["python3", "/app"],
        ["/app/main"],
    ],
)
def test_how_a_program_is_given(args: list[str], tmp_path: Path, capsys: Captured) -> None:
    """A text, a module, a script and a directory are followed, also behind a first line."""
    sources = in_package(f"import ctypes, os\n{OPEN}\n", __main__="", run="")
    sources |= {"app/__main__.py": MAIN, "app/main": f"#!/usr/local/bin/python3 -u\n{MAIN}"}
    assert loaded(capsys, container(tmp_path / "b", sources, args=args))[:2] == (4, f"/{OWN}")


def test_a_program_with_a_path_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    """Modules are found beside the script, in PYTHONPATH, in what code and .pth files add."""
    boot = {"srv/boot.py": PRELOAD, "app/main.py": "import boot\n"}
    found = [
        container(tmp_path / "a", boot, "PYTHONPATH=/none:/srv"),
        container(tmp_path / "b", boot | {f"{SITE}/x.pth": "/srv\n"}),
        container(tmp_path / "c", {"app/boot.py": PRELOAD, "app/main.py": "import boot\n"}),
        container(
            tmp_path / "d",
            boot | {"app/main.py": "import sys\nsys.path.insert(0, '/srv')\nimport boot\n"},
        ),
        container(
            tmp_path / "f",
            boot
            | {
                "app/main.py": "import sys\ntry:\n  import boot\nexcept ImportError:\n"
                "  sys.path.append('/srv')\nsys.path.append('/srv')\nimport boot\n"
            },
        ),
    ]
    assert [loaded(capsys, path)[0] for path in found] == [4] * 5
    assert loaded(capsys, container(tmp_path / "e", boot))[0] == 0


def test_a_package_that_the_user_may_not_read(tmp_path: Path, capsys: Captured) -> None:
    """A source that the container's user may not read is not run."""
    path = container(tmp_path / "b", in_package(f"import ctypes, os\n{OPEN}\n"))
    (tmp_path / "b/rootfs" / PACKAGE / "__init__.py").chmod(0o600)
    config = json.loads((tmp_path / "b/config.json").read_text())
    config["process"] |= {"user": {"uid": 4242, "gid": 4242}, "capabilities": {}}
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    assert loaded(capsys, path)[1] == HOST


def test_doctor_names_the_code_and_a_way_out(tmp_path: Path, capsys: Captured) -> None:
    """Doctor reports the file with the code that opens it, and what to change there."""
    path = container(tmp_path / "b", in_package(f"import ctypes, os\n{OPEN}\n"))
    assert main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"]) == 1
    results = read_document(capsys.readouterr().out)["results"]
    (found,) = [result for result in results if result["id"] == "library-shadowed"]
    finding = found["findings"][0]
    assert finding["level"] == "error"
    assert f"/{PACKAGE}/__init__.py, line 2, opens it first" in finding["message"]
    assert finding["fix"] == f"let this code open libcuda.so.1 by its name alone, without /{OWN}"


def test_a_module_that_is_asked_for(tmp_path: Path, capsys: Captured) -> None:
    """``--python`` follows the module's own code: the driver's library that CUDA gets behind it is
    named, also for a module without CUDA.
    """
    path = container(tmp_path / "b", in_package(f"import ctypes, os\n{OPEN}\n"))
    words = ["prove", "--python", "gpulib", "--bundle", path, "--host", "runfile-a10x2"]
    assert main(words) == 4
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith(
        f"gpulib loads, but libcuda.so.1 from the image: /{OWN} (by its path: "
        f"/{PACKAGE}/__init__.py, line 2, opens it first); it has a version that its name does not"
    )
    assert head.endswith("CUDA fails with error 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)")
    (tmp_path / "b/rootfs" / PACKAGE / "__init__.py").write_text(FUNCTION)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[0] == "gpulib loads: 1 shared library"


def test_much_code_has_bounds(tmp_path: Path, capsys: Captured) -> None:
    """Of a package with many modules the first ones are followed; the rest is not known."""
    sources = in_package(
        "".join(f"from . import m{number}\n" for number in range(200)),
        **{f"m{number}": "import os\n" for number in range(199)},
        m199=f"import ctypes, os\n{OPEN}\n",
    )
    code, file, proof = loaded(capsys, container(tmp_path / "b", sources))
    assert (code, file) == (0, HOST)
    assert f"whether code of gpulib opens /{OWN} first" in proof["unknown"]
    large = container(tmp_path / "e", {"app/main.py": f"import gpulib\n{' ' * 200_000}\n"})
    fact = "which libraries the code of /app/main.py opens, which is not read"
    assert fact in loaded(capsys, large)[2]["unknown"]
    circle = in_package("from .a import x\n", a="from .b import x\n", b="from .a import x\nx(x)\n")
    assert loaded(capsys, container(tmp_path / "c", circle))[1] == HOST
    endless = {"app/main.py": "def f(x):\n  return f(x + 'x')\nf('')\nimport gpulib\n"}
    sources = in_package(f"import ctypes, os\n{OPEN}\n") | endless
    assert loaded(capsys, container(tmp_path / "d", sources))[1] == f"/{OWN}"


def test_a_compressed_archive_is_not_read_once_more_for_each_source(
    tmp_path: Path, capsys: Captured
) -> None:
    """Of an archive with compressed layers, libraries are not read for the sake of code."""
    module = {f"{PACKAGE}/_C.{TAG}": shared("_C.so", "libcuda.so.1", runpath="$ORIGIN/lib")}
    big = {name: data + bytes(70_000) for name, data in module.items()}
    files = {
        **image(),
        "usr/local/bin/python3.11": executable(X86, "x", ["libc.so.6"], None, LOADER),
        f"{PACKAGE}/__init__.py": b"from . import _C\n",
        OWN: shared("libcuda.so.1") + bytes(70_000),
        **big,
    }
    env = ["PATH=/usr/local/bin", "NVIDIA_VISIBLE_DEVICES=all"]
    config = {"Env": env, "Cmd": ["python3.11", "-c", "import gpulib"]}
    for compress, code in ((gzip.compress, 0), (bytes, 4)):
        layout = oci_layout(list(files.items()), config=config, compress=compress)
        path = write_directory(tmp_path / f"image{code}", layout)
        found, (proof,) = run_prove(capsys, "--container", path)
        assert found == code
        if code == 0:
            assert "which library code of gpulib opens" in proof["unknown"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-um", "server", "-x"], InterpreterWords("m", "server", ("-x",), frozenset("u"))),
        (["-Bc", "pass", "a"], InterpreterWords("c", "pass", ("a",), frozenset("B"))),
        (["-cpass"], InterpreterWords("c", "pass", (), frozenset())),
        (
            ["-Wignore", "-X", "dev", "x.py", "-S"],
            InterpreterWords("", "x.py", ("-S",), frozenset()),
        ),
        (
            ["--check-hash-based-pycs", "never", "-I", "x"],
            InterpreterWords("", "x", (), frozenset("I")),
        ),
        (["-", "a"], InterpreterWords("", "", ("a",), frozenset())),
        (["-i"], InterpreterWords("", "", (), frozenset("i"))),
        (["-W"], InterpreterWords("", "", (), frozenset())),
    ],
)
def test_the_command_line_of_python(words: list[str], expected: InterpreterWords) -> None:
    """Letters stand together; -c and -m end the options."""
    assert read_words(words) == expected
