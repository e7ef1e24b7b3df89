"""``nvgraft prove``: whether libraries load in images of every kind, with the driver mounted."""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle, put
from images import docker_save
from loaders import (
    DEBIAN,
    ELF,
    LOADER,
    PARTS,
    X86,
    Captured,
    bundle,
    image,
    library,
    loader,
    run_prove,
    starters_bundle,
)
from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.ldcache_table import Places, Row, Table
from nvgraft.formats.tree import LiveTree
from nvgraft_cli.case.processor import read_isa_level
from nvgraft_cli.case.symbols import Symbols, read_symbols
from nvgraft_cli.prove.loader import loading
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from nvgraft_specs import gallery

FEDORA = b"/lib64/\0/usr/lib64/\0"


def test_libcuda_loads_in_an_ordinary_image(tmp_path: Path, capsys: Captured) -> None:
    """libcuda is found in the loader cache that the hook writes; facts that the snapshot does not
    record are listed.
    """
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", image()))
    assert code == 0
    assert proof["verdict"] == "unknown"
    assert (proof["program"], proof["loader"]) == ("/usr/bin/app", LOADER)
    objects = proof["objects"]
    assert (objects["path"], objects["from"], objects["how"]) == (
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "host",
        "loader cache",
    )
    assert proof["unknown"] == [
        "the search directories and versions that /usr/lib/x86_64-linux-gnu/libcuda.so.1 names"
    ]


def test_a_program_loads_with_all_its_libraries(tmp_path: Path, capsys: Captured) -> None:
    """A program loads with all its libraries, the loader included."""
    code, (proof,) = run_prove(capsys, "/usr/bin/app", "--bundle", bundle(tmp_path / "b", image()))
    assert (code, proof["verdict"]) == (0, "yes")
    (libc,) = proof["objects"]["needs"]
    assert (libc["path"], libc["from"]) == ("/lib/x86_64-linux-gnu/libc.so.6", "image")
    assert libc["needs"][0]["path"] == LOADER


@pytest.mark.parametrize("what", ["libnone.so.1", "/usr/bin/none"])
def test_a_missing_file_does_not_load(what: str, tmp_path: Path, capsys: Captured) -> None:
    """A missing file does not load (exit code 1); for a library every path that was tried is
    listed.
    """
    code, (proof,) = run_prove(capsys, what, "--bundle", bundle(tmp_path / "b", image()))
    assert (code, proof["verdict"]) == (1, "no")
    if what.startswith("lib"):
        directories = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib")
        tried = [attempt["path"] for attempt in proof["failures"][0]["tried"]]
        assert tried == [f"{directory}/libnone.so.1" for directory in directories]


def test_an_image_whose_loader_searches_other_directories(tmp_path: Path, capsys: Captured) -> None:
    """In a Nix image the driver is mounted in /usr/lib64; the loader was built for the store and
    does not read /etc/ld.so.cache.
    """
    store = "nix/store/abc-glibc-2.38"
    interp = f"/{store}/lib/ld-linux-x86-64.so.2"
    files = {
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, interp),
        interp.lstrip("/"): loader(
            f"/{store}/lib/\0/{store}/lib64/\0".encode(), f"/{store}/etc/ld.so.cache"
        ),
        **{f"{store}/lib/{name}": library(name) for name in ("libc.so.6", *PARTS)},
    }
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", files))
    assert (code, proof["verdict"]) == (1, "no")
    assert (
        proof["failures"][0]["words"]
        == "libcuda.so.1: cannot open shared object file: No such file or directory"
    )
    assert [attempt["path"] for attempt in proof["failures"][0]["tried"]] == [
        f"/{store}/{name}/libcuda.so.1" for name in ("lib", "lib64")
    ]
    code, (fixed,) = run_prove(
        capsys, "--bundle", bundle(tmp_path / "f", files, "LD_LIBRARY_PATH=/usr/lib64")
    )
    assert code == 0
    assert fixed["objects"]["how"] == "LD_LIBRARY_PATH"


def test_a_distroless_image_has_no_loader(tmp_path: Path, capsys: Captured) -> None:
    """In a distroless image nvidia-smi does not start: the kernel reports that there is no such
    file.
    """
    code, proofs = run_prove(
        capsys,
        "/usr/bin/nvidia-smi",
        "libcuda.so.1",
        "--bundle",
        bundle(tmp_path / "b", {"usr/bin/app": image()["usr/bin/app"]}),
    )
    assert code == 1
    assert [proof["verdict"] for proof in proofs] == ["no", "no"]
    assert proofs[0]["failures"][0]["words"] == "/usr/bin/nvidia-smi: No such file or directory"
    assert proofs[0]["failures"][0]["name"] == LOADER
    assert proofs[1]["failures"][0]["words"] == "libcuda.so.1: the image has no loader for glibc"


def test_nothing_of_the_driver_loads_with_musl(tmp_path: Path, capsys: Captured) -> None:
    """musl's loader finds the libraries but lacks glibc's symbols; programs lack their loader."""
    interp = "/lib/ld-musl-x86_64.so.1"
    files = {
        "usr/bin/app": executable(X86, "x", ["libc.musl-x86_64.so.1"], None, interp),
        interp.lstrip("/"): shared_object(64, X86, "libc.musl-x86_64.so.1", [], None),
        "etc/ld-musl-x86_64.path": b"/lib:/usr/lib64\n",
    }
    code, proofs = run_prove(
        capsys,
        "libnvidia-ml.so.1",
        "/usr/bin/nvidia-smi",
        "--bundle",
        bundle(tmp_path / "b", files),
    )
    assert code == 1
    assert proofs[0]["objects"]["path"] == "/usr/lib64/libnvidia-ml.so.1"
    assert "need symbols that musl lacks" in proofs[0]["notes"][-1]
    assert proofs[1]["failures"][0]["words"] == "/usr/bin/nvidia-smi: No such file or directory"
    assert any("/lib/ld-musl-x86_64.so.1" in note for note in proofs[1]["notes"])


def test_a_placeholder_left_in_the_image_stops_the_loader(tmp_path: Path, capsys: Captured) -> None:
    """An empty file of the driver's name stops the loader if it is in a directory that is searched
    first.
    """
    files = image(("opt/lib/libcuda.so.1", b""))
    code, (proof,) = run_prove(
        capsys, "--bundle", bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    )
    assert (code, proof["verdict"]) == (1, "no")
    assert proof["failures"][0]["words"] == "/opt/lib/libcuda.so.1: file too short"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (2, "cannot dynamically load executable"),
        (3, "cannot dynamically load position-independent executable"),
    ],
)
def test_a_program_in_the_place_of_a_library(
    kind: int, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """glibc's loader stops at a program, also a position-independent one (DF_1_PIE)."""
    pie = shared_object(64, X86, "libcuda.so.1", [], None, None, Loading(flags_1=0x08000000))
    usual = library("libcuda.so.1")
    content = pie if kind == 3 else usual[:16] + bytes([kind, 0]) + usual[18:]  # e_type
    files = image(("opt/lib/libcuda.so.1", content))
    code, (proof,) = run_prove(
        capsys, "--bundle", bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    )
    assert code == 1
    assert proof["failures"][0]["words"] == f"/opt/lib/libcuda.so.1: {words}"


def test_a_library_of_another_capability_does_not_load(tmp_path: Path, capsys: Captured) -> None:
    """A library of a capability that was not requested, here libnvidia-encode of video, does not
    load.
    """
    arguments = ("libnvidia-encode.so.1", "--bundle", bundle(tmp_path / "b", image()))
    compute = "NVIDIA_DRIVER_CAPABILITIES=compute"
    assert run_prove(capsys, *arguments)[0] == 0
    assert run_prove(capsys, *arguments, "--env", compute)[0] == 1


def test_a_container_without_gpus_gets_a_note(tmp_path: Path, capsys: Captured) -> None:
    """In a container without GPUs nothing is mounted, so the library does not load, and a note says
    why.
    """
    path = bundle(tmp_path / "b", image())
    assert (
        main(
            ["prove", "--bundle", path, "--env", "NVIDIA_VISIBLE_DEVICES=void", "--host", "eks-t4"]
        )
        == 1
    )
    out, err = capsys.readouterr()
    assert err.startswith("nvgraft prove: note: the container gets nothing: ")
    assert out.startswith(
        "libcuda.so.1 does not load: cannot open shared object file: No such file or directory\n"
    )


def test_an_image_archive_is_proved(tmp_path: Path, capsys: Captured) -> None:
    """The files of an image archive are read from its layers."""
    config = {"Env": ["PATH=/usr/bin", *EVERYTHING], "Cmd": ["app"]}
    path = docker_save(tmp_path / "i.tar", list(image().items()), config=config)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["program"], proof["objects"]["from"]) == (0, "/usr/bin/app", "host")


def test_a_scripts_interpreter_opens_the_library(tmp_path: Path, capsys: Captured) -> None:
    """The interpreter of a script opens the library, also if the script names it through env."""
    files = image()
    files["usr/bin/real"] = files["usr/bin/env"] = files["usr/bin/app"]
    files["usr/bin/app"] = b"#!/usr/bin/env real\nprint()\n"
    _, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", files))
    assert proof["program"] == "/usr/bin/real"


def test_a_program_linked_statically_with_musl_loads_nothing(
    tmp_path: Path, capsys: Captured
) -> None:
    """Its dlopen() always fails; of another static program, a dynamic one is assumed."""
    files = image()
    files["usr/bin/app"] = executable(X86, "x")
    assert run_prove(capsys, "--bundle", bundle(tmp_path / "a", files))[0] == 0
    files["usr/bin/app"] += b"\0Dynamic loading not supported\0"
    path = bundle(tmp_path / "b", files)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["verdict"], proof["program"]) == (1, "no", "/usr/bin/app")
    assert proof["failures"][0]["words"] == "Dynamic loading not supported"
    named = ["prove", "--program", "/usr/bin/app", "--python", "x", "--bundle", path]
    assert main([*named, "--host", "eks-t4"]) == 2
    assert "/usr/bin/app: Dynamic loading not supported | link it" in capsys.readouterr().err


@pytest.mark.parametrize("same", [True, False])
def test_a_program_linked_statically_with_another_glibc(
    same: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Its dlopen() needs the C library of its own release: with another one it crashes."""
    settings = b"\0glibc.malloc.check\0glibc.rtld.nns\0"
    own = settings if same else settings + b"glibc.cpu.hwcap_mask\0"
    beside = ("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", loader(DEBIAN) + settings)
    files = image(beside)
    files["usr/bin/app"] = executable(X86, "x") + loader(DEBIAN) + own
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", files))
    assert code == (0 if same else 1)
    assert (proof["program"], proof["loader"]) == ("/usr/bin/app", "/usr/bin/app")
    words = (
        f"/usr/bin/app is linked statically with another release of glibc than /{beside[0]}, which"
        " libcuda.so.1 needs: the program crashes"
    )
    assert [failure["words"] for failure in proof["failures"]] == ([] if same else [words])


#: An object that imports dlopen(): the name is among its strings, as that of a version is.
OPENING = {"libc.so.6": ["dlopen"]}


@pytest.mark.parametrize("itself", [False, True], ids=["library", "program"])
def test_the_object_that_calls_dlopen_opens_the_library(
    itself: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Of a program without dlopen(), the library that has it opens others: its RUNPATH counts, and
    not that of the program.
    """
    program = Loading(runpath="/opt/program", versions_needed=OPENING if itself else {})
    opener = Loading(runpath="$ORIGIN/own", versions_needed=OPENING)
    other = shared_object(64, X86, "libother.so", [], None)
    files = image(
        (
            "opt/program/libopener.so",
            shared_object(64, X86, "libopener.so", [], None, None, opener),
        ),
        ("opt/program/libother.so", other),
        ("opt/program/libcuda.so.1", library("libcuda.so.1")),
        ("opt/program/own/libcuda.so.1", library("libcuda.so.1")),
    )
    needed = ["libother.so", "libopener.so", "libc.so.6"]
    files["usr/bin/app"] = executable(X86, "x", needed, None, LOADER, program)
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", files))
    assert code == 4
    if itself:
        assert proof["file"]["path"] == "/opt/program/libcuda.so.1"
        assert proof["program"] == "/usr/bin/app"
    else:
        assert proof["file"]["path"] == "/opt/program/own/libcuda.so.1"
        assert proof["file"]["how"] == "RUNPATH of /opt/program/libopener.so"
        assert proof["program"] == "/opt/program/libopener.so"


def test_cudas_runtime_opens_libcuda(tmp_path: Path, capsys: Captured) -> None:
    """Where CUDA's runtime is loaded with the program, it opens libcuda.so.1, and only that."""
    program = Loading(runpath="/opt/program", versions_needed=OPENING)
    own = Loading(runpath="$ORIGIN/own")
    files = image(
        ("opt/program/libcudart.so.12", shared_object(64, X86, None, [], None, None, own)),
        *((f"opt/program/{name}", library(name)) for name in ("libcuda.so.1", "libnvidia-ml.so.1")),
    )
    files["usr/bin/app"] = executable(X86, "x", ["libcudart.so.12"], None, LOADER, program)
    path = bundle(tmp_path / "b", files)
    cuda, nvml = run_prove(capsys, "libcuda.so.1", "libnvidia-ml.so.1", "--bundle", path)[1]
    assert (cuda["program"], cuda["file"]["from"]) == ("/opt/program/libcudart.so.12", "host")
    assert (nvml["program"], nvml["file"]["from"]) == ("/usr/bin/app", "image")


def test_a_program_can_be_named(tmp_path: Path, capsys: Captured) -> None:
    """--program names the program; one that does not exist is an input error."""
    path = bundle(tmp_path / "b", image())
    assert (
        run_prove(capsys, "--program", "/usr/bin/app", "--bundle", path)[1][0]["program"]
        == "/usr/bin/app"
    )
    assert main(["prove", "--program", "/usr/bin/none", "--bundle", path, "--host", "eks-t4"]) == 2
    assert "/usr/bin/none: no such file or directory | pass --program" in capsys.readouterr().err


def test_text_shows_the_tree_and_the_first_failure(tmp_path: Path, capsys: Captured) -> None:
    """Text output shows the tree, with names of the image without control characters."""
    files = image(
        ("usr/bin/bad", executable(X86, "x", ["libx\x1b[31m.so.1", "libc.so.6"], None, LOADER))
    )
    assert (
        main(
            ["prove", "/usr/bin/bad", "--bundle", bundle(tmp_path / "b", files), "--host", "eks-t4"]
        )
        == 1
    )
    out = capsys.readouterr().out
    assert "└─ libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6  (image, loader cache)" in out
    assert "first failure: libx\\x1b[31m.so.1: cannot open shared object file: No such file" in out
    assert "\x1b" not in out


def test_a_config_json_alone_is_an_input_error(tmp_path: Path, capsys: Captured) -> None:
    """A config.json alone is refused, because it does not show the files to load."""
    made = make_bundle(tmp_path / "b", *EVERYTHING)
    alone = tmp_path / "web.json"
    alone.write_bytes((made / "config.json").read_bytes())
    assert main(["prove", "--bundle", str(alone), "--host", "eks-t4"]) == 2
    assert "a config.json alone does not show the files to load" in capsys.readouterr().err


def test_a_refusal_is_the_hooks_own_line(tmp_path: Path, capsys: Captured) -> None:
    """A refusal prints the hook's own line, with exit code 3: the container does not start, so
    nothing loads.
    """
    path = bundle(tmp_path / "b", image(), "NVIDIA_REQUIRE_CUDA=cuda>=99")
    assert main(["prove", "--bundle", path, "--host", "eks-t4"]) == 3
    assert capsys.readouterr().err.startswith(
        "nvgraft: requirement error: unsatisfied condition: cuda>=99"
    )


def host_of_level(level: str | None, place: Path) -> str:
    """Write the document of a host whose processor has a level, or none that is recorded."""
    host = json.loads(Path(gallery.path("runfile-a10x2")).read_text())
    if level is not None:
        host["isa_level"] = level
    place.write_text(json.dumps(host))
    return str(place)


HWCAPS = b"\0x86-64-v4:x86-64-v3:x86-64-v2\0"


@pytest.mark.parametrize(
    ("level", "place"),
    [
        ("x86-64-v4", "opt/lib/glibc-hwcaps/x86-64-v4"),
        ("x86-64-v3", "opt/lib/glibc-hwcaps/x86-64-v3"),
        ("x86-64-v2", "opt/lib"),
        (None, "opt/lib/glibc-hwcaps/x86-64-v3"),
    ],
)
def test_the_hosts_processor_decides_the_subdirectories(
    level: str | None, place: str, tmp_path: Path, capsys: Captured
) -> None:
    """Subdirectories for a processor's level are searched if it is known; an unrecorded level is
    that of servers, and listed as unknown if it matters.
    """
    files = image(
        ("opt/lib/libx.so.1", library("libx.so.1")),
        ("opt/lib/glibc-hwcaps/x86-64-v3/libx.so.1", library("libx.so.1")),
        ("opt/lib/glibc-hwcaps/x86-64-v4/libx.so.1", library("libx.so.1")),
    )
    files[LOADER.lstrip("/")] += HWCAPS
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    host = host_of_level(level, tmp_path / "h.json")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path, host=host)
    assert proof["objects"]["path"] == f"/{place}/libx.so.1"
    place = "/opt/lib/glibc-hwcaps"
    facts = [
        (
            "whether the host's processor has level x86-64-v4; if it has, "
            f"{place}/x86-64-v4/libx.so.1 is loaded"
        ),
        (
            "whether the host's processor has level x86-64-v3, as servers have; if not, "
            f"{place}/x86-64-v3/libx.so.1 is not loaded"
        ),
    ]
    assert (proof["verdict"], proof["unknown"]) == (("yes", []) if level else ("unknown", facts))


def test_doctor_warns_of_a_level_that_is_not_recorded(tmp_path: Path, capsys: Captured) -> None:
    """A file that is loaded if the processor has a level is a warning, and part of the verdict."""
    place = "opt/lib/glibc-hwcaps/x86-64-v4/libcuda.so.1"
    files = image((place, library("libcuda.so.1")))
    files[LOADER.lstrip("/")] += HWCAPS
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    fact = f"whether the host's processor has level x86-64-v4; if it has, /{place} is loaded"
    found = {result["id"]: result["findings"] for result in document["results"]}
    (finding,) = found["library-shadowed"]
    assert finding["level"] == "warning"
    assert fact in finding["message"]
    assert fact in document["verdict"]


def test_a_level_does_not_matter_if_it_leads_to_the_same_file(
    tmp_path: Path, capsys: Captured
) -> None:
    """A file for processors of an unrecorded level that is a link to the other one is known."""
    files = image(("opt/lib/libx.so.1", library("libx.so.1")))
    files[LOADER.lstrip("/")] += HWCAPS
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    place = tmp_path / "b/rootfs/opt/lib/glibc-hwcaps/x86-64-v4/libx.so.1"
    put(place, library("libx.so.1"))
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert proof["verdict"] == "unknown"
    place.unlink()
    place.symlink_to("../../libx.so.1")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert (proof["verdict"], proof["file"]["path"]) == ("yes", "/opt/lib/libx.so.1")


@pytest.mark.parametrize("features", ["-AVX512F", ""])
def test_tunables_that_take_features_make_levels_unknown(
    features: str, tmp_path: Path, capsys: Captured
) -> None:
    """Without features a processor has a lower level; which one is not computed."""
    place = "opt/lib/glibc-hwcaps/x86-64-v3/libcuda.so.1"
    files = image((place, library("libcuda.so.1")))
    files[LOADER.lstrip("/")] += HWCAPS
    tunables = f"GLIBC_TUNABLES=glibc.cpu.hwcaps={features}" if features else "A=B"
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib", tunables)
    assert run_prove(capsys, "--bundle", path)[0] == (0 if features else 4)


def test_an_unrecorded_processor_has_the_level_of_all_servers(
    tmp_path: Path, capsys: Captured
) -> None:
    """A processor whose level is not recorded counts as x86-64-v2, which servers have."""
    files = image(
        ("opt/lib/libx.so.1", library("libx.so.1")),
        ("opt/lib/glibc-hwcaps/x86-64-v2/libx.so.1", library("libx.so.1")),
    )
    files[LOADER.lstrip("/")] += HWCAPS
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert (proof["verdict"], proof["objects"]["path"]) == (
        "yes",
        "/opt/lib/glibc-hwcaps/x86-64-v2/libx.so.1",
    )


def test_a_library_of_the_image_in_place_of_the_hosts_is_exit_code_4(
    tmp_path: Path, capsys: Captured
) -> None:
    """A driver library of the image that is loaded for the host's is the first thing said."""
    files = image(("opt/old/libcuda.so.470.82.01", library("libcuda.so.1")))
    path = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/old")
    (tmp_path / "b/rootfs/opt/old/libcuda.so.1").symlink_to("libcuda.so.470.82.01")
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["verdict"]) == (4, "yes")
    assert proof["file"] == {
        "path": "/opt/old/libcuda.so.470.82.01",
        "from": "image",
        "how": "LD_LIBRARY_PATH",
        "instead_of_host": True,
        "consequence": "it has version 470.82.01, and the host's driver is 560.35.03: CUDA fails "
        "with error 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)",
    }
    assert main(["prove", "--bundle", path, "--host", "runfile-a10x2"]) == 4
    assert capsys.readouterr().out.startswith(
        "libcuda.so.1 loads, but from the image: /opt/old/libcuda.so.470.82.01 (LD_LIBRARY_PATH); "
        "it has version 470.82.01, and the host's driver is 560.35.03: CUDA fails with error 803"
    )


LIBS = "usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("files", "links", "env", "file", "how"),
    [
        (
            [f"{LIBS}/libcuda.so.999.10.00"],
            {f"{LIBS}/libcuda.so.1": "libcuda.so.999.10.00"},
            "",
            f"/{LIBS}/libcuda.so.999.10.00",
            (
                "loader cache: the link libcuda.so.1 leads to the greater version, "
                "libcuda.so.999.10.00, not to libcuda.so.560.35.03"
            ),
        ),
        (
            [f"{LIBS}/libcuda.so.999.10.00"],
            {f"{LIBS}/libcuda.so.1": "libcuda.so.999.10.00"},
            f"LD_LIBRARY_PATH=/{LIBS}",
            f"/{LIBS}/libcuda.so.999.10.00",
            (
                "LD_LIBRARY_PATH: the link libcuda.so.1 leads to the greater version, "
                "libcuda.so.999.10.00, not to libcuda.so.560.35.03"
            ),
        ),
        (
            [f"{LIBS}/libcuda.so.1"],
            {},
            "",
            f"/{LIBS}/libcuda.so.1",
            "loader cache: it is in the place of the link to the host's libcuda.so.560.35.03",
        ),
        (
            [f"{LIBS}/glibc-hwcaps/x86-64-v2/libcuda.so.1"],
            {},
            "",
            f"/{LIBS}/glibc-hwcaps/x86-64-v2/libcuda.so.1",
            "loader cache, for processors of level x86-64-v2",
        ),
        (
            ["usr/local/cuda/compat/libcuda.so.575.51.03"],
            {"usr/local/cuda/compat/libcuda.so.1": "libcuda.so.575.51.03"},
            "",
            "/usr/local/cuda/compat/libcuda.so.575.51.03",
            "loader cache: the hook puts CUDA's compatibility libraries first",
        ),
        (
            ["opt/lib/libcuda.so.1"],
            {},
            "NVIDIA_DRIVER_CAPABILITIES=utility",
            "/opt/lib/libcuda.so.1",
            "loader cache: the container gets no libcuda.so.1 of the host",
        ),
    ],
    ids=["greater", "greater-on-path", "regular", "hwcaps", "compat", "not-mounted"],
)
def test_it_is_said_why_a_library_of_the_image_comes_first(
    files: list[str],
    links: dict[str, str],
    env: str,
    file: str,
    how: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """The rule of the loader alone does not tell why the host's library is not the one found."""
    content = image(
        *((name, library("libcuda.so.1")) for name in files), ("etc/ld.so.conf", b"/opt/lib\n")
    )
    content[LOADER.lstrip("/")] += HWCAPS
    path = bundle(tmp_path / "b", content, *filter(None, [env]))
    for link, target in links.items():
        (tmp_path / "b/rootfs" / link).symlink_to(target)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["file"]["path"], proof["file"]["how"]) == (4, file, how)


def test_a_loader_of_musl_is_found_behind_a_link(tmp_path: Path, capsys: Captured) -> None:
    """An image without glibc's loader has musl's named, also where /lib is a link to /usr/lib."""
    path = bundle(tmp_path / "b", {"usr/bin/app": b"static", "usr/lib/ld-musl-x86_64.so.1": b"x"})
    (tmp_path / "b/rootfs/lib").symlink_to("usr/lib")
    _, (proof,) = run_prove(capsys, "/usr/bin/nvidia-smi", "--bundle", path)
    assert any("musl's loader /lib/ld-musl-x86_64.so.1" in note for note in proof["notes"])


@pytest.mark.parametrize(
    ("place", "words"),
    [("usr/local/cuda/lib64/stubs", "error 34"), ("usr/local/cuda/compat", "error 804")],
)
def test_the_consequence_names_cudas_error(
    place: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """A stub and a forward compatibility library each have their own consequence."""
    files = image((f"{place}/libcuda.so.1", library("libcuda.so.1")))
    path = bundle(tmp_path / "b", files, f"LD_LIBRARY_PATH=/{place}")
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == 4
    assert words in proof["file"]["consequence"]


def test_a_loader_without_a_known_cache_is_not_assumed_to_read_one(
    tmp_path: Path, capsys: Captured
) -> None:
    """If a loader names no cache, it is not known whether it reads the hook's: nothing is
    assumed.
    """
    files = image()
    files[LOADER.lstrip("/")] = shared_object(64, X86, "ld-linux-x86-64.so.2", [], None) + (
        b"\0/opt/none/\0/lib/x86_64-linux-gnu/\0"
    )
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "b", files))
    assert (code, proof["verdict"], proof["file"]) == (0, "unknown", None)
    assert proof["unknown"][-1] == (
        f"which cache {LOADER} reads; if it is /etc/ld.so.cache, "
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1 is loaded"
    )


def test_platform_in_a_search_path(tmp_path: Path, capsys: Captured) -> None:
    """$PLATFORM is the architecture. A directory for some of Intel's processors is unknown."""
    path = bundle(
        tmp_path / "b",
        image(("opt/lib/libx.so.1", library("libx.so.1"))),
        "LD_LIBRARY_PATH=/opt/$PLATFORM:/opt/lib",
    )
    place = tmp_path / "b/rootfs/opt"
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert (proof["verdict"], proof["file"]["path"]) == ("yes", "/opt/lib/libx.so.1")
    put(place / "x86_64/libother.so.1", library("libother.so.1"))
    (place / "haswell").mkdir()
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert (proof["verdict"], proof["unknown"]) == ("yes", [])
    put(place / "x86_64/libx.so.1", library("libx.so.1"))
    put(place / "haswell/libx.so.1", library("libx.so.1"))
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", path)
    assert (proof["file"]["path"], proof["unknown"]) == (
        "/opt/x86_64/libx.so.1",
        ["the value of $PLATFORM in /opt/$PLATFORM: with some processors of Intel haswell"],
    )


def test_relative_paths_are_relative_to_the_working_directory(
    tmp_path: Path, capsys: Captured
) -> None:
    """Relative paths are relative to process.cwd of config.json, in which the program starts."""
    path = bundle(
        tmp_path / "b", image(("work/libx.so.1", library("libx.so.1"))), "LD_LIBRARY_PATH=:/none"
    )
    config = json.loads(Path(path, "config.json").read_text())
    config["process"]["cwd"] = "/work"
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "libx.so.1", "--bundle", path)[1][0]["objects"]["path"] == "libx.so.1"
    config["process"]["cwd"] = "/"
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "libx.so.1", "--bundle", path)[0] == 1


LEVEL_2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("fpu sse2", "x86-64-v1"),
        (LEVEL_2, "x86-64-v2"),
        (f"{LEVEL_2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave", "x86-64-v3"),
        ("abm avx avx2 bmi1 bmi2 f16c fma movbe xsave", "x86-64-v1"),
    ],
)
def test_the_level_of_a_processor(flags: str, level: str, tmp_path: Path) -> None:
    """A processor's level includes the lower ones; other machines, or a missing /proc, have
    none.
    """
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n")
    assert read_isa_level(str(tmp_path / "cpuinfo")) == level
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert read_isa_level(str(tmp_path / "cpuinfo")) is None
    assert read_isa_level(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("files", "variable", "bound", "words"),
    [
        (
            [(f"lib/c{number}.so", library("", f"c{number + 1}.so")) for number in range(150)],
            "",
            "",
            "/lib/c99.so: it is loaded with more than 5000 libraries, or is the last of",
        ),
        (
            [("lib/c0.so", library("c0.so", *(f"n{number}.so" for number in range(40))))],
            "",
            "image-names = 70",
            "/usr/lib/x86_64-linux-gnu/n6.so: 71 names with 938 bytes, more than image-names = 70 allows",
        ),
        (
            [("lib/c0.so", library("c0.so"))],
            ":".join(f"/{number}" for number in range(50)),
            "image-names = 70",
            "/18/libc.so.6: 71 names with 443 bytes, more than image-names = 70 allows",
        ),
        (
            [("lib/c0.so", library("c0.so"))],
            ":" * 80,
            "image-names = 70",
            "LD_LIBRARY_PATH: 82 names with 88 bytes, more than image-names = 70 allows",
        ),
    ],
    ids=["chain", "needed", "tried", "variable"],
)
def test_a_search_has_bounds(
    files: list[tuple[str, bytes]],
    variable: str,
    bound: str,
    words: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """A hostile image may name any number of libraries and directories: the bound is named."""
    place = bundle(tmp_path / "b", image(*files), f"LD_LIBRARY_PATH={variable}")
    config = tmp_path / "config.toml"
    config.write_text(f"[nvgraft]\n{bound}\n")
    words_given = ["prove", "c0.so", "--bundle", place, "--host", "runfile-a10x2"]
    assert main([*words_given, "--config", str(config)]) == 3
    assert f"nvgraft: container error: {words}" in capsys.readouterr().err


def test_a_device_in_the_place_of_a_library(tmp_path: Path, capsys: Captured) -> None:
    """A link to /dev/null is a file without bytes, at which the loader stops."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    place = tmp_path / "b/rootfs/opt/x/libcuda.so.1"
    place.unlink()
    os.mkfifo(place)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == 1
    assert proof["failures"][0]["words"] == "/opt/x/libcuda.so.1: file too short"


@pytest.mark.parametrize("gcompat", [True, False])
def test_musl_in_the_place_of_glibcs_loader(
    gcompat: bool, tmp_path: Path, capsys: Captured
) -> None:
    """In Alpine glibc's loader is a program of gcompat that starts musl's, or a link to that one:
    programs then have musl's directories, and its libc for glibc's. Whether the driver's libraries
    load is not known with gcompat, and without it they do not.
    """
    musl, stand_in = "lib/ld-musl-x86_64.so.1", "opt/libgcompat.so.0"
    files = {
        "usr/bin/app": ELF,
        musl: shared_object(64, X86, "libc.musl-x86_64.so.1", [], None),
        "usr/lib/libx.so.1": library("libx.so.1"),
    }
    if gcompat:
        program = executable(X86, "x") + f"\0/{musl}\0--preload\0/{stand_in}\0".encode()
        files |= {LOADER.lstrip("/"): program, stand_in: library("libgcompat.so.0")}
    made = bundle(tmp_path / "b", files)
    if not gcompat:
        (tmp_path / "b/rootfs/lib64").mkdir()
        (tmp_path / "b/rootfs" / LOADER.lstrip("/")).symlink_to(f"../{musl}")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", made)
    assert (proof["verdict"], proof["loader"]) == ("yes", LOADER if gcompat else f"/{musl}")
    assert proof["file"]["path"] == "/usr/lib/libx.so.1"
    assert run_prove(capsys, "libcuda.so.1", "--bundle", made)[0] == 1
    put(tmp_path / "b/rootfs/etc/ld-musl-x86_64.path", "/lib\n/usr/lib64\n")
    code, (proof,) = run_prove(capsys, "libcuda.so.1", "--bundle", made)
    assert (code, proof["verdict"]) == ((0, "unknown") if gcompat else (1, "no"))
    if gcompat:
        assert "whether gcompat has all symbols of glibc that the driver needs" in proof["unknown"]
        _, (proof,) = run_prove(capsys, f"/{stand_in}", "--bundle", made)
        assert proof["file"]["how"] == "gcompat"


@pytest.mark.parametrize(
    ("directory", "level", "from_image", "known"),
    [
        ("tls", None, True, True),
        ("x86_64", None, True, True),
        ("haswell", None, True, False),
        ("tls/haswell/x86_64", "x86-64-v4", True, False),
        ("haswell", "x86-64-v2", False, True),
    ],
)
def test_older_subdirectories_of_a_loader(
    directory: str,
    level: str | None,
    from_image: bool,
    known: bool,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """A loader before 2.37 searches tls and x86_64 below each directory, its file shows. On Intel's
    processors, which are assumed, it searches haswell too.
    """
    host = host_of_level(level, tmp_path / "h.json")
    file = f"opt/x/{directory}/libcuda.so.1"
    files = image((file, library("libcuda.so.1")))
    variable = "LD_LIBRARY_PATH=/opt/x"
    newer = bundle(tmp_path / "new", files, variable)
    assert run_prove(capsys, "--bundle", newer, host=host)[0] == 0
    files[LOADER.lstrip("/")] += b"\0tls\0"
    older = bundle(tmp_path / "old", files, variable)
    code, (proof,) = run_prove(capsys, "--bundle", older, host=host)
    assert code == (4 if from_image else 0)
    how = proof["file"]["how"]
    assert ("in a subdirectory for processors" in how) is from_image
    fact = f"whether the host's processor is Intel's; if not, /{file} is not loaded"
    assert (fact in proof["unknown"]) is not known
    (tmp_path / "old/rootfs" / file).chmod(0)
    code, (proof,) = run_prove(capsys, "--bundle", older, host=host)
    assert (code, fact in proof["unknown"]) == (0, False)


@pytest.mark.parametrize(("older", "from_image"), [(True, True), (False, False)])
def test_older_rows_of_the_cache(
    older: bool, from_image: bool, tmp_path: Path, capsys: Captured
) -> None:
    """What the image's ldconfig has entered of older subdirectories counts for an older loader."""
    other = "usr/lib/x86_64-linux-gnu/haswell/libx.so.1"
    files = image((other, library("libx.so.1")), ("usr/lib/libx.so.1", library("libx.so.1")))
    if older:
        files[LOADER.lstrip("/")] += b"\0tls\0"
    flags = loader_flags("x86_64")[0]
    rows = [
        Row(b"libx.so.1", flags, f"/{place}".encode()) for place in (other, "usr/lib/libx.so.1")
    ]
    data = bytearray(Table().with_rows(rows, Places({})).data())
    struct.pack_into("<Q", data, 48 + 16, 1 << 50)
    files["etc/ld.so.cache"] = bytes(data)
    made = bundle(tmp_path / "b", files)
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", made)
    place = f"/{other}" if from_image else "/usr/lib/libx.so.1"
    assert proof["file"]["path"] == place
    told = [text for text in proof["unknown"] if "is Intel's" in text]
    assert bool(told) is from_image


def test_older_subdirectories_for_32_bit_programs(tmp_path: Path, capsys: Captured) -> None:
    """A 32-bit loader before 2.37 searches i686 and sse2 below each directory."""
    loader, places = "/lib/ld-linux.so.2", ("usr/lib", "usr/lib/i686/sse2")
    files = {
        "usr/bin/app": shared_object(32, "EM_386", "app", [], None, loader),
        loader.lstrip("/"): shared_object(32, "EM_386", "ld-linux.so.2", [], None) + b"\0tls\0",
    }
    for place in places:
        files[f"{place}/libx.so.1"] = shared_object(32, "EM_386", "libx.so.1", [], None)
    made = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/usr/lib")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", made)
    assert proof["file"]["path"] == "/usr/lib/i686/sse2/libx.so.1"


@pytest.mark.parametrize(
    ("path", "at_once", "verdict"),
    [
        ("/usr/bin/app", True, "no"),
        ("/usr/bin/app", False, "yes"),
        ("/opt/lib/libx.so.1", True, "no"),
        ("/opt/lib/libx.so.1", False, "no"),
    ],
)
def test_a_symbol_that_no_library_has(
    path: str,
    at_once: bool,
    verdict: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program without a symbol that is bound at its start does not start. Whether a library loads
    that lacks a function depends on how a program opens it.
    """
    lacks = Symbols(frozenset(), (b"nowhere",), (b"nowhere",) if at_once else (), 0)
    has = Symbols(frozenset(), (), (), 0)

    def read(_tree: object, file: str) -> Symbols:
        return lacks if file == path else has

    monkeypatch.setattr(loading, "read_symbols", read)
    files = image(("opt/lib/libx.so.1", library("libx.so.1")))
    made = bundle(tmp_path / "b", files, "LD_LIBRARY_PATH=/opt/lib")
    _, (proof,) = run_prove(capsys, "libx.so.1", "--bundle", made)
    assert proof["verdict"] == verdict
    by_program = f"{path}: symbol lookup error: " if path == "/usr/bin/app" else ""
    words = [failure["words"] for failure in proof["failures"]]
    missing = f"{by_program}{path}: undefined symbol: nowhere"
    assert words == ([missing] if verdict == "no" else [])
    lazy = [text for text in proof["unknown"] if "RTLD_LAZY" in text]
    assert bool(lazy) is ("lib" in path and not at_once)


@pytest.mark.parametrize(("defined", "verdict"), [(True, "unknown"), (False, "no")])
def test_a_part_of_another_glibc(
    defined: bool,
    verdict: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part of glibc needs symbols of the same release: of the driver's library they are not
    expected, whose symbols a document of a host does not have.
    """
    part, name = "/lib/x86_64-linux-gnu/libpthread.so.0", b"__libc_siglongjmp"
    needs = Symbols(frozenset(), (name,), (), 0, frozenset({name}))
    has = Symbols(frozenset({name} if defined else ()), (), (), 0)

    def read(_tree: object, file: str) -> Symbols | None:
        return None if "libcuda" in file else needs if file == part else has

    monkeypatch.setattr(loading, "read_symbols", read)
    made = bundle(tmp_path / "b", image())
    _, (proof,) = run_prove(capsys, "libcuda.so.1", "--bundle", made)
    assert proof["verdict"] == verdict
    words = f"{part}: undefined symbol: __libc_siglongjmp, version GLIBC_PRIVATE"
    assert [failure["words"] for failure in proof["failures"]] == ([] if defined else [words])


@pytest.mark.requires("gcc", "x86_64")
def test_symbols_that_are_private_to_glibc(tmp_path: Path) -> None:
    """Of the symbols that a library needs by a version, only the private ones of glibc are told."""
    (tmp_path / "of.map").write_text("GLIBC_2.34 { open_one; }; GLIBC_PRIVATE { own_one; };")
    (tmp_path / "of.c").write_text(
        "int open_one(void) { return 1; } int own_one(void) { return 2; }"
    )
    (tmp_path / "part.c").write_text(
        "int open_one(void), own_one(void), none(void);"
        " int part(void) { return open_one() + own_one() + none(); }"
    )
    gcc = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o"]
    for words in (
        ["of.so", "of.c", "-Wl,--version-script,of.map", "-Wl,-soname,of.so"],
        ["part.so", "part.c", "of.so"],
    ):
        subprocess.run([*gcc, *words], check=True, cwd=tmp_path)
    tree = LiveTree(os.open(tmp_path, os.O_PATH))
    symbols = read_symbols(tree, "/part.so")
    tree.close()
    assert symbols is not None
    assert set(symbols.needed) == {b"own_one", b"none"}
    assert symbols.private == frozenset({b"own_one"})


def test_a_program_is_found_in_path(tmp_path: Path, capsys: Captured) -> None:
    """A name that is no library's is that of a program in the container's PATH."""
    made = bundle(tmp_path / "b", image(), "PATH=/usr/local/bin:/usr/bin")
    code, (proof, path) = run_prove(capsys, "app", "/usr/bin/app", "--bundle", made)
    assert code == 0
    assert proof == path | {"what": "app"}
    assert proof["file"]["path"] == "/usr/bin/app"


def test_a_program_that_is_not_in_path(tmp_path: Path, capsys: Captured) -> None:
    """A program that PATH does not lead to does not start; the answer says how a library and a
    module of Python are asked about.
    """
    made = bundle(tmp_path / "b", image(), "PATH=/usr/local/bin:/opt/bin")
    code, (proof,) = run_prove(capsys, "app", "--bundle", made)
    assert (code, proof["verdict"]) == (1, "no")
    (failure,) = proof["failures"]
    assert failure["words"] == 'exec: "app": executable file not found in $PATH'
    assert [attempt["path"] for attempt in failure["tried"]] == [
        "/usr/local/bin/app",
        "/opt/bin/app",
    ]
    assert "--python" in proof["notes"][0]
