"""``nvgraft prove --python``: whether modules of the image's Python load, and what CUDA gets."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from documents import read_document
from images import docker_save
from loaders import LOADER, X86, Captured, bundle, image
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object

HOST = "runfile-a10x2"
SITE = "usr/local/lib/python3.11/site-packages"
PYTHON = "usr/local/bin/python3.11"
TAG = "cpython-311-x86_64-linux-gnu.so"
WHEEL = "$ORIGIN/../../nvidia/cuda_runtime/lib"


def shared(
    soname: str, *needed: str, rpath: str | None = None, runpath: str | None = None
) -> bytes:
    return shared_object(64, X86, soname, needed, None, None, Loading(rpath, runpath))


def files(extension_rpath: str | None = "$ORIGIN/lib", **more: bytes) -> dict[str, bytes]:
    """Return an image with a Python, a module of the form of PyTorch and a wheel of NVIDIA."""
    return {
        **image(),
        PYTHON: executable(X86, "x", ["libc.so.6"], None, LOADER),
        f"{SITE}/deep/__init__.py": b"",
        f"{SITE}/deep/_C.{TAG}": shared("_C.so", "libdeep.so", rpath=extension_rpath),
        f"{SITE}/deep/_C.cpython-312-x86_64-linux-gnu.so": shared("_C.so", "libnone.so"),
        f"{SITE}/deep/lib/libdeep.so": shared("libdeep.so", "libcudart.so.12", rpath=WHEEL),
        f"{SITE}/deep-2.5.1.dist-info/RECORD": b"deep/__init__.py,,\n",
        f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12": shared("libcudart.so.12"),
        **more,
    }


def container(place: Path, content: dict[str, bytes], *env: str) -> str:
    """Return a bundle whose Python has its usual links."""
    path = bundle(place, content, "PATH=/usr/local/bin:/usr/bin", *env)
    if PYTHON in content:
        (place / "rootfs" / PYTHON).with_name("python3").symlink_to("python3.11")
    return path


def run(capsys: Captured, module: str, path: str, *words: str) -> tuple[int, dict[str, Any]]:
    command = ["prove", "--python", module, "--bundle", path, "--host", HOST, *words]
    code = main([*command, "--format", "json"])
    (answer,) = read_document(capsys.readouterr().out)["modules"]
    return code, answer


def text(capsys: Captured, module: str, path: str, *words: str) -> tuple[int, list[str]]:
    code = main(["prove", "--python", module, "--bundle", path, "--host", HOST, *words])
    return code, capsys.readouterr().out.splitlines()


def test_a_module_with_the_wheels_beside_it(tmp_path: Path, capsys: Captured) -> None:
    """The extension module is loaded with libraries of its package and of NVIDIA's wheels, and
    CUDA's runtime gets the host's libcuda. Modules for another Python are left out.
    """
    path = container(tmp_path / "b", files())
    code, answer = run(capsys, "deep", path)
    assert (code, answer["verdict"], answer["version"]) == (0, "yes", "2.5.1")
    assert (answer["program"], answer["path"]) == ("/usr/local/bin/python3", f"/{SITE}/deep")
    (extension,) = answer["extensions"]
    assert extension["what"] == f"/{SITE}/deep/_C.{TAG}"
    (library,) = answer["cuda"]
    runtime = f"/{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"
    assert (library["name"], library["path"], library["from"]) == (
        "libcudart.so.12",
        runtime,
        "image",
    )
    assert library["how"] == f"RPATH of /{SITE}/deep/lib/libdeep.so"
    assert [(proof["what"], proof["file"]["from"]) for proof in answer["driver"]] == [
        ("libcuda.so.1", "host"),
        ("libnvidia-ml.so.1", "host"),
    ]
    assert {proof["program"] for proof in answer["driver"]} == {runtime}
    assert answer["notes"] == ["1 extension modules are for other versions of Python"]
    code, lines = text(capsys, "deep", path)
    assert (code, lines[0]) == (0, "deep 2.5.1 loads: 1 extension module")
    assert any(
        line.startswith("libcuda.so.1 ") and "/libcuda.so.560.35.03  (of the host" in line
        for line in lines
    )
    assert f"libcudart.so.12    {runtime}  (of the image: RPATH of libdeep.so)" in lines


def test_a_wheel_that_the_loader_does_not_find(tmp_path: Path, capsys: Captured) -> None:
    """Where no search path leads to NVIDIA's wheel, the module does not load by the loader alone,
    and it is said that its own code may open the library first.
    """
    content = files() | {f"{SITE}/deep/lib/libdeep.so": shared("libdeep.so", "libcudart.so.12")}
    code, answer = run(capsys, "deep", container(tmp_path / "b", content))
    assert (code, answer["verdict"]) == (1, "no")
    assert answer["extensions"][0]["failures"][0]["name"] == "libcudart.so.12"
    note = answer["notes"][-1]
    assert note.startswith(f"libcudart.so.12 is in /{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12")
    assert note.endswith("module's own Python code opens it first is not known")
    _, lines = text(capsys, "deep", str(tmp_path / "b"))
    assert lines[0] == (
        f"deep 2.5.1 does not load: _C.{TAG}: libcudart.so.12: cannot open shared object file: "
        "No such file or directory"
    )


def test_cuda_gets_a_library_of_the_image(tmp_path: Path, capsys: Captured) -> None:
    """A libcuda in the search path of CUDA's runtime comes before the host's: exit code 4."""
    wheel = f"{SITE}/nvidia/cuda_runtime/lib"
    stub = {
        f"{wheel}/libcudart.so.12": shared("libcudart.so.12", runpath="$ORIGIN/stubs"),
        f"{wheel}/stubs/libcuda.so.1": shared("libcuda.so.1"),
    }
    path = container(tmp_path / "b", files() | stub)
    code, answer = run(capsys, "deep", path)
    assert (code, answer["driver"][0]["file"]["path"]) == (4, f"/{wheel}/stubs/libcuda.so.1")
    _, lines = text(capsys, "deep", path)
    assert lines[0].startswith(
        f"deep 2.5.1 loads, but libcuda.so.1 from the image: /{wheel}/stubs/libcuda.so.1 (RUNPATH"
    )


def test_a_library_that_is_opened_on_demand(tmp_path: Path, capsys: Captured) -> None:
    """A library that no extension module needs is judged too, and does not decide."""
    extra = {f"{SITE}/deep/libprovider.so": shared("libprovider.so", "libcublas.so.13")}
    code, lines = text(capsys, "deep", container(tmp_path / "b", files() | extra))
    assert code == 0
    assert lines[0] == (
        "deep 2.5.1 loads: 1 extension module; 1 library that it may open does not load"
    )
    assert f"does not load: /{SITE}/deep/libprovider.so" in lines


def test_a_wheel_of_libraries_alone(tmp_path: Path, capsys: Captured) -> None:
    """Of a distribution without extension modules the libraries decide. Its name may be given."""
    record = f"{SITE}/nvidia_fft_cu12-11.0.dist-info/RECORD"
    fft = f"{SITE}/nvidia/fft/lib/libcufft.so.11"
    content = files() | {
        record: b"nvidia/fft/lib/libcufft.so.11,sha256=x,1\n../../../bin/tool,,\n",
        fft: shared("libcufft.so.11"),
    }
    path = container(tmp_path / "b", content)
    code, answer = run(capsys, "nvidia-fft-cu12", path)
    assert (code, answer["version"], answer["extensions"]) == (0, "11.0", [])
    assert [proof["what"] for proof in answer["libraries"]] == [f"/{fft}"]
    (tmp_path / "b/rootfs" / fft).write_bytes(shared("libcufft.so.11", "libnone.so"))
    assert run(capsys, "nvidia.fft", path)[0] == 1


def test_an_extension_module_with_the_name_of_a_library(tmp_path: Path, capsys: Captured) -> None:
    """A library with the function for Python is imported, as triton's is; others of the package
    are opened on demand.
    """
    fast = {
        f"{SITE}/fast/__init__.py": b"",
        f"{SITE}/fast/_C/libfast.so": shared("PyInit_libfast"),  # a name among its strings
        f"{SITE}/fast/plugins/libplugin.so": shared("libplugin.so", "libfast.so"),
    }
    path = container(tmp_path / "b", files() | fast)
    code, lines = text(capsys, "fast", path)
    assert (code, lines[0]) == (
        0,
        "fast loads: 1 extension module; 1 library that it may open does not load",
    )
    (tmp_path / "b/rootfs" / SITE / "fast/_C/libfast.so").write_bytes(shared("PyInit_other"))
    assert run(capsys, "fast", path)[0] == 1


def test_a_library_that_another_one_brought_decides_nothing(
    tmp_path: Path, capsys: Captured
) -> None:
    """auditwheel copies what libraries need into a wheel: no code opens such a copy by itself."""
    grafted = {
        f"{SITE}/fast/__init__.py": b"",
        f"{SITE}/fast/libfast.so": shared("libfast.so"),
        f"{SITE}/fast/libgfortran-91cc3cb1.so.3.0.0": shared("libg.so", "libquadmath.so.0"),
    }
    path = container(tmp_path / "b", files() | grafted)
    code, lines = text(capsys, "fast", path)
    assert (code, lines[0]) == (
        0,
        "fast loads: 1 shared library; 1 library that no code opens does not load",
    )
    (tmp_path / "b/rootfs" / SITE / "fast/libfast.so").write_bytes(shared("x", "libnone.so"))
    assert run(capsys, "fast", path)[0] == 1


def test_wheels_of_nvidia_belong_to_modules_with_cuda(tmp_path: Path, capsys: Captured) -> None:
    """A broken library of NVIDIA's wheels is told for a module that loads CUDA, and not for one
    that loads libcurl.
    """
    more = {
        f"{SITE}/nvidia/cufile/lib/libcufile_rdma.so.1": shared("x", "libmlx5.so.1"),
        f"{SITE}/plain/libplain.so": shared("libplain.so", "libcurl.so.4"),
        f"{SITE}/plain/libcurl.so.4": shared("libcurl.so.4"),
    }
    path = container(tmp_path / "b", files() | more, f"LD_LIBRARY_PATH=/{SITE}/plain")
    code, lines = text(capsys, "plain", path)
    assert (code, lines[0]) == (0, "plain loads: 2 shared libraries")
    code, lines = text(capsys, "deep", path)
    assert (code, lines[0]) == (
        0,
        "deep 2.5.1 loads: 1 extension module; 1 library of NVIDIA's wheels does not load",
    )
    assert f"does not load: /{SITE}/nvidia/cufile/lib/libcufile_rdma.so.1" in lines


def test_many_modules_that_need_the_same_libraries(tmp_path: Path, capsys: Captured) -> None:
    """What many extension modules need is looked for once, and counts once towards the bounds."""
    own = [f"libpart{number}.so" for number in range(20)]
    content = {f"{SITE}/many/__init__.py": b""}
    content |= {f"{SITE}/many/{name}": shared(name, *own, runpath="$ORIGIN") for name in own}
    content |= {
        f"{SITE}/many/_m{number}.{TAG}": shared("_m.so", *own, runpath="$ORIGIN")
        for number in range(20)
    }
    path = container(tmp_path / "b", files() | content)
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nimage-libraries = 100\n")
    code, answer = run(capsys, "many", path, "--config", str(config))
    assert (code, len(answer["extensions"])) == (0, 20)


SOURCES = {
    "__init__": "from . import core as c\nfrom .deep import *\n",
    "deep": """\
        import os, lender
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from deep import typed
        if os.name == "posix":
            import deep.branch
        try:
            from deep import raised
        except ImportError as error:
            raise RuntimeError from error
        try:
            import deep.caught
        except (OSError, ImportError):
            caught = None
        try:
            from deep import uncaught
        except OSError:
            pass
        with suppress(ImportError):
            import deep.suppressed
        @decorated(
            1
        )
        def function():
            from deep import called
        class Class:
            text = '''
        def name(): "a line of a text"
        '''
        from .sub.more import something
        """,
    "sub/more": "from .. import above\nfrom ....deep import beyond\n",
    "unread": "from deep import unread_too\n",
}


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("core", True),
        ("branch", True),
        ("raised", True),
        ("uncaught", True),
        ("above", True),
        ("typed", False),
        ("caught", False),
        ("suppressed", False),
        ("called", False),
        ("unread_too", False),
    ],
)
def test_an_extension_module_that_is_not_imported_does_not_decide(
    name: str, imported: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Of the extension modules that do not load, those decide that the statements of the package
    import: not in functions, and not where the error is caught.
    """
    sources = {
        f"{SITE}/deep/{path}.py": textwrap.dedent(text).encode() for path, text in SOURCES.items()
    }
    broken = {f"{SITE}/deep/{name}.{TAG}": shared("x.so", "libnone.so")}
    path = container(tmp_path / "b", files() | sources | broken)
    code, lines = text(capsys, "deep", path)
    assert code == (1 if imported else 0)
    assert lines[0] == (
        f"deep 2.5.1 does not load: {name}.{TAG}: libnone.so: cannot open shared object file: "
        "No such file or directory"
        if imported
        else "deep 2.5.1 loads: 1 extension module; 1 that it does not import itself does not load"
    )
    assert f"does not load: /{SITE}/deep/{name}.{TAG}" in lines


def test_remarks_of_python_about_sources_are_not_shown(
    tmp_path: Path, capsys: Captured, recwarn: pytest.WarningsRecorder
) -> None:
    """Python warns of escape sequences that it does not know; they are the image's business."""
    more = {
        f"{SITE}/deep/__init__.py": b"import deep._C\npattern = '\\d'\n",
        f"{SITE}/deep/lazy.{TAG}": shared("x.so", "libnone.so"),
    }
    assert run(capsys, "deep", container(tmp_path / "b", files() | more))[0] == 0
    assert list(recwarn) == []


def test_where_the_sources_do_not_tell_each_extension_module_decides(
    tmp_path: Path, capsys: Captured
) -> None:
    """A source that cannot be read, or is compiled and not there, may import everything, and so
    may compiled code that has the name of an extension module among its texts.
    """
    broken = {f"{SITE}/deep/lazy.{TAG}": shared("x.so", "libnone.so")}
    source = f"{SITE}/deep/__init__.py"
    path = container(tmp_path / "b", files() | broken | {source: b"import deep._C\n"})
    place = tmp_path / "b/rootfs"
    assert run(capsys, "deep", path)[0] == 0
    (place / source).write_bytes(b"import deep._C\nthis is no Python\n")
    assert run(capsys, "deep", path)[0] == 1
    (place / source).write_bytes(b"import deep._C\n" + b"#" * (1 << 20))
    assert run(capsys, "deep", path)[0] == 1
    (place / source).with_suffix(".pyc").write_bytes(b"")
    (place / source).unlink()
    assert run(capsys, "deep", path)[0] == 1
    (place / source).write_bytes(b"import deep._C\n")
    with (place / f"{SITE}/deep/_C.{TAG}").open("ab") as file:
        file.write(b"deep.lazy\0")
    assert run(capsys, "deep", path)[0] == 1


def test_an_imported_package_brings_libraries(tmp_path: Path, capsys: Captured) -> None:
    """torchvision's extension modules need libraries that torch, which it imports first, has
    loaded. Where torch does not load, they do not.
    """
    more = {
        f"{SITE}/vision/__init__.py": b"import deep\nfrom vision import _C\n",
        f"{SITE}/vision/_C.so": shared("_C.so", "libdeep.so"),
    }
    path = container(tmp_path / "b", files() | more)
    code, answer = run(capsys, "vision", path)
    assert (code, answer["notes"]) == (0, ["deep, which it imports, has loaded libdeep.so"])
    place = tmp_path / "b/rootfs" / SITE
    (place / "nvidia/cuda_runtime/lib/libcudart.so.12").unlink()
    code, answer = run(capsys, "vision", path)
    missing = "libcudart.so.12: cannot open shared object file: No such file or directory"
    assert (code, answer["notes"][0]) == (1, f"deep, which it imports, does not load: {missing}")
    (place / "vision/__init__.py").write_text("from vision import _C\n")
    assert run(capsys, "vision", path)[1]["notes"] == []


def test_a_module_of_python_only(tmp_path: Path, capsys: Captured) -> None:
    """A module without shared objects loads."""
    content = files() | {f"{SITE}/plain.py": b"", f"{SITE}/pure/__init__.py": b""}
    path = container(tmp_path / "b", content)
    for module in ("plain", "pure"):
        code, lines = text(capsys, module, path)
        assert (code, lines[0]) == (0, f"{module} has no shared objects: it is Python only")


@pytest.mark.parametrize(
    ("content", "env", "links"),
    [
        ({"usr/local/lib/python3.11/lib-dynload/_x.abi3.so": b""}, [], {}),
        ({f"{SITE}/_x.so": b""}, [], {}),
        ({"work/_x.so": b""}, ["PYTHONPATH=/none:work"], {}),
        ({"root/.local/lib/python3.11/site-packages/_x.so": b""}, [], {}),
        ({f"{SITE}/added.pth": b"import os\n# x\n/opt/added\n", "opt/added/_x.so": b""}, [], {}),
        (
            {
                "venv/pyvenv.cfg": b"home = /usr/local/bin\ninclude-system-site-packages = false\n",
                "venv/lib/python3.11/site-packages/_x.so": b"",
            },
            ["PATH=/venv/bin:/usr/bin"],
            {"venv/bin/python3": "/usr/local/bin/python3.11"},
        ),
        (
            {
                "venv/pyvenv.cfg": b"home=/usr/local/bin\ninclude-system-site-packages=TRUE\n",
                f"{SITE}/_x.so": b"",
            },
            ["PATH=/venv/bin:/usr/bin"],
            {"venv/bin/python3": "/usr/local/bin/python3.11"},
        ),
    ],
    ids=["dynload", "site", "variable", "user", "pth", "venv", "venv-system"],
)
def test_where_python_looks_for_modules(
    content: dict[str, bytes],
    env: list[str],
    links: dict[str, str],
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """PYTHONPATH, the standard library, virtual environments, the user's directory and .pth files
    are searched as Python does.
    """
    filled = {name: data or shared("_x.so") for name, data in content.items()}
    path = container(tmp_path / "b", files() | filled, *env)
    for link, target in links.items():
        (tmp_path / "b/rootfs" / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b/rootfs" / link).symlink_to(target)
    code, answer = run(capsys, "_x", path)
    (place,) = [f"/{name}" for name in content if name.endswith(".so")]
    assert (code, answer["path"]) == (0, place)


def test_a_virtual_environment_may_leave_the_system_out(tmp_path: Path, capsys: Captured) -> None:
    """A module of the base Python is not seen in a virtual environment without it."""
    path = container(
        tmp_path / "b", files() | {"venv/pyvenv.cfg": b"home = /usr/local/bin\n"}, "PATH=/venv/bin"
    )
    link = tmp_path / "b/rootfs/venv/bin/python3"
    link.parent.mkdir()
    link.symlink_to("/usr/local/bin/python3.11")
    assert main(["prove", "--python", "deep", "--bundle", path, "--host", HOST]) == 2
    assert "deep: /venv/bin/python3 of the image has no such module | " in capsys.readouterr().err


def test_a_regular_package_comes_before_a_directory(tmp_path: Path, capsys: Captured) -> None:
    """A directory of stubs (.pyi) is not the module beside it, and a package without __init__
    comes after one with it in a later directory.
    """
    content = files() | {
        f"{SITE}/deep/_C/__init__.pyi": b"",
        "early/deep/x.txt": b"",
    }
    path = container(tmp_path / "b", content, "PYTHONPATH=/early")
    assert run(capsys, "deep._C", path)[1]["path"] == f"/{SITE}/deep/_C.{TAG}"
    assert run(capsys, "deep", path)[1]["path"] == f"/{SITE}/deep"


def test_the_python_can_be_named(tmp_path: Path, capsys: Captured) -> None:
    """--program names the Python; without one in the image the command says so."""
    content = files() | {"opt/py/bin/python3.12": files()[PYTHON]}
    content["opt/py/lib/python3.12/site-packages/_y.so"] = shared("_y.so")
    path = container(tmp_path / "b", content)
    named = ("--program", "/opt/py/bin/python3.12")
    assert run(capsys, "_y", path, *named)[1]["program"] == "/opt/py/bin/python3.12"
    none = container(tmp_path / "n", image())
    assert main(["prove", "--python", "deep", "--bundle", none, "--host", HOST]) == 2
    assert "the image has no Python in PATH or in the usual dir" in capsys.readouterr().err
    refused = container(tmp_path / "r", files(), "NVIDIA_REQUIRE_CUDA=cuda>=99")
    assert main(["prove", "--python", "deep", "--bundle", refused, "--host", HOST]) == 3
    capsys.readouterr()


def test_a_module_of_an_image_archive(tmp_path: Path, capsys: Captured) -> None:
    """The files of a module are read from the layers of an archive; libraries may be asked too."""
    config = {"Env": ["PATH=/usr/local/bin", "NVIDIA_VISIBLE_DEVICES=all"], "Cmd": ["python3.11"]}
    path = docker_save(tmp_path / "i.tar", list(files().items()), config=config)
    words = ["prove", "--python", "deep", "libcuda.so.1", "--container", path, "--host", HOST]
    assert main([*words, "--format", "json"]) == 0
    document = read_document(capsys.readouterr().out)
    assert [proof["what"] for proof in document["proofs"]] == ["libcuda.so.1"]
    assert [module["verdict"] for module in document["modules"]] == ["yes"]
