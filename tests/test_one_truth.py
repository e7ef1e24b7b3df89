"""``why`` and ``explain`` say what ``prove`` says about the file that a program loads."""

import json
from pathlib import Path
from typing import Any

import pytest

import loaders
from bundles import make_bundle
from documents import read_document
from loaders import image, library
from nvgraft_cli.shell.main import main
from nvgraft_specs import names

Captured = pytest.CaptureFixture[str]

HOST = "runfile-a10x2"
LIBS = "/usr/lib/x86_64-linux-gnu"
STUB = "/usr/local/cuda/lib64/stubs/libcuda.so.1"
CUDA, CODEC = "libcuda.so.1", "libnvidia-encode.so.1"
MOUNTED = f"{LIBS}/libcuda.so.560.35.03"
OWN = f"{LIBS}/libnvidia-encode.so.1"
OWN_CUDA = f"{LIBS}/libcuda.so.1"
NO_VIDEO = f"{names.DRIVER_CAPABILITIES}=compute,utility"

#: Case -> further files of the image, variables, the file of libcuda.so.1, and the trouble.
CASES: dict[str, tuple[dict[str, bytes], list[str], str, str]] = {
    "the host's": ({}, [], MOUNTED, ""),
    "a stub on LD_LIBRARY_PATH": (
        {STUB[1:]: library("libcuda.so.1")},
        ["LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"],
        STUB,
        f"the container's program loads {STUB} of the image",
    ),
    "a preloaded driver": (
        {"opt/libcuda.so.1": library("libcuda.so.1")},
        ["LD_PRELOAD=/opt/libcuda.so.1"],
        "/opt/libcuda.so.1",
        "the container's program loads /opt/libcuda.so.1 of the image",
    ),
    "not a library": (
        {"opt/libcuda.so.1": b"not a library, but long enough to be read as one. ........"},
        ["LD_LIBRARY_PATH=/opt"],
        "",
        "libcuda.so.1 does not load",
    ),
}


def answer(capsys: Captured, command: str, *words: str) -> Any:
    main([command, *words, "--host", HOST, "--format", "json"])
    return read_document(capsys.readouterr().out)


def text(capsys: Captured, command: str, *words: str) -> list[str]:
    main([command, *words, "--host", HOST])
    return capsys.readouterr().out.splitlines()


def made(place: Path, files: dict[str, bytes], *env: str) -> str:
    return loaders.bundle(place, {**image(), **files}, *env)


@pytest.mark.parametrize("name", CASES)
def test_all_commands_name_the_same_file(name: str, tmp_path: Path, capsys: Captured) -> None:
    """Each names the file of ``prove`` and its consequence. Their first lines say what is wrong."""
    files, env, file, trouble = CASES[name]
    bundle = made(tmp_path / "b", files, *env)
    (proof,) = answer(capsys, "prove", CUDA, "--bundle", bundle)["proofs"]
    (why,) = answer(capsys, "why", CUDA, "--bundle", bundle)["answers"]
    story = answer(capsys, "explain", "--bundle", bundle)
    loading = why["loading"]
    assert {key: loading[key] for key in ("what", "verdict", "file", "program")} == {
        key: proof[key] for key in ("what", "verdict", "file", "program")
    }
    (step,) = [step for step in story["steps"] if step["id"] == "loader"]
    (fact,) = [fact for fact in step["facts"] if fact["name"] == CUDA]
    assert (fact["value"], fact["why"]) == (file or "does not load", loading["words"])
    if file:
        assert proof["file"]["path"] == file
        assert proof["file"]["how"] in loading["words"]
        assert proof["file"]["consequence"] in loading["words"]
    assert story["headline"].endswith(f"; but {trouble}" if trouble else "SONAME links")
    head, *_ = text(capsys, "why", CUDA, "--bundle", bundle)
    assert head == f"{CUDA} is in the container" + (f", but {trouble}" if trouble else "")


def test_forward_compatibility_by_the_hook_is_no_trouble(tmp_path: Path, capsys: Captured) -> None:
    """A compat library that the hook itself puts first is named, and nothing is wrong with it;
    one that LD_LIBRARY_PATH puts first is in the first lines.
    """
    place = "usr/local/cuda/compat"
    files = {f"{place}/libcuda.so.1": library(CUDA), f"{place}/libcuda.so.575.51.03": library(CUDA)}
    for where, env, trouble in (
        ("rule", (), False),
        ("path", (f"LD_LIBRARY_PATH=/{place}",), True),
    ):
        bundle = made(tmp_path / where, files, *env)
        (why,) = answer(capsys, "why", CUDA, "--bundle", bundle)["answers"]
        assert why["loading"]["file"]["path"].startswith(f"/{place}/libcuda.so.")
        head, *_ = text(capsys, "why", CUDA, "--bundle", bundle)
        assert ("but" in head) is trouble
        story = answer(capsys, "explain", "--bundle", bundle)
        assert ("; but" in story["headline"]) is trouble


def test_the_page_names_the_file(tmp_path: Path, capsys: Captured) -> None:
    """The page of ``explain`` begins with doctor's verdict, and names the file with the reason."""
    files, env, _, trouble = CASES["a stub on LD_LIBRARY_PATH"]
    bundle, page = made(tmp_path / "b", files, *env), tmp_path / "page.html"
    text(capsys, "explain", "--html", str(page), "--bundle", bundle)
    html = page.read_text().replace("&#39;", "'")
    assert f"; but {trouble}</p>" in html
    *_, verdict = text(capsys, "doctor", "--bundle", bundle)
    assert f">{verdict}</h1>" in html
    assert '<strong class="verdict bad">Another libcuda</strong>' in html
    assert (
        f"<dt>{CUDA}</dt><dd><code>{STUB}</code> "
        '<span class="why">of the image, not the host\'s: LD_LIBRARY_PATH;' in html
    )
    assert "CUDA calls fail with error 34" in html


@pytest.mark.parametrize("what", ["libcuda.so", "libcuda", MOUNTED, "libcuda.so.560.35.03"])
def test_each_name_of_a_library_leads_to_its_soname(
    what: str, tmp_path: Path, capsys: Captured
) -> None:
    """Whatever names the library: the answer is about the name by which programs open it."""
    bundle = made(tmp_path / "b", {})
    (why,) = answer(capsys, "why", what, "--bundle", bundle)["answers"]
    assert (why["loading"]["what"], why["loading"]["file"]["path"]) == (CUDA, MOUNTED)


def test_explain_names_what_is_requested(tmp_path: Path, capsys: Captured) -> None:
    """``explain`` names the libraries of the requested capabilities only."""

    def named(place: str, *env: str) -> set[str]:
        bundle = made(tmp_path / place, {OWN[1:]: library(CODEC)}, *env)
        story = answer(capsys, "explain", "--bundle", bundle)
        (step,) = [step for step in story["steps"] if step["id"] == "loader"]
        return {fact["name"] for fact in step["facts"]} - {"loader cache"}

    assert named("few", NO_VIDEO) == {CUDA, "libnvidia-ml.so.1"}
    assert named("all") == {
        CUDA,
        "libnvidia-ml.so.1",
        CODEC,
        "libnvcuvid.so.1",
        "libEGL_nvidia.so.0",
        "libGLX_nvidia.so.0",
    }


def test_a_library_of_the_image_in_place_of_one_that_is_not_requested(
    tmp_path: Path, capsys: Captured
) -> None:
    """A library that is not in the container has an answer only where the image has one."""
    for place, files, loading in (
        ("without", {}, False),
        ("with", {OWN[1:]: library(CODEC)}, True),
    ):
        bundle = made(tmp_path / place, files, NO_VIDEO)
        (why,) = answer(capsys, "why", CODEC, "--bundle", bundle)["answers"]
        assert (why["in_plan"], why["loading"] is not None) == (False, loading)
    assert why["loading"]["file"]["path"] == OWN
    head, *lines = text(capsys, "why", CODEC, "--bundle", bundle)
    assert head == (
        f"{CODEC} is not in the container, but the container's program loads {OWN} of the image"
    )
    assert any(line.startswith(f"  opened  {CODEC} => {OWN} (of the image") for line in lines)


def test_nothing_is_said_where_files_are_not_known(tmp_path: Path, capsys: Captured) -> None:
    """A config.json without files, a container that gets nothing, and other things have none."""
    alone = Path(made(tmp_path / "alone", {}), "config.json").rename(tmp_path / "config.json")
    config, bundle = str(alone), made(tmp_path / "b", {})
    nothing = str(make_bundle(tmp_path / "none", "NVIDIA_VISIBLE_DEVICES=void"))
    for container, what in ((config, CUDA), (nothing, CUDA), (bundle, "nvidia-smi")):
        (why,) = answer(capsys, "why", what, "--container", container)["answers"]
        assert why["loading"] is None
    story = answer(capsys, "explain", "--container", config)
    assert story["headline"].endswith("SONAME links")


def test_an_image_beyond_a_bound_is_not_known(tmp_path: Path, capsys: Captured) -> None:
    """Where the loader's search goes beyond a bound, ``why`` answers the rest and says so."""
    bundle = made(tmp_path / "b", {}, "LD_LIBRARY_PATH=" + ":".join(["/x"] * 200_000))
    (why,) = answer(capsys, "why", CUDA, "--bundle", bundle)["answers"]
    assert (why["in_plan"], why["loading"]["verdict"], why["loading"]["file"]) == (
        True,
        "unknown",
        None,
    )
    assert "more than" in why["loading"]["words"]
    lines = text(capsys, "why", CUDA, "--bundle", bundle)
    assert any(f"{CUDA} not known: " in line for line in lines)


def headline(capsys: Captured, bundle: str, *words: str) -> str:
    return str(answer(capsys, "explain", "--bundle", bundle, *words)["headline"])


def test_the_headline_says_that_the_program_does_not_start(
    tmp_path: Path, capsys: Captured
) -> None:
    """``explain`` promises no container that doctor knows not to start, with or without a GPU."""
    for number, (path, words) in enumerate(
        {
            "usr/bin/app": 'exec: "app": executable file not found in $PATH',
            loaders.LOADER[1:]: "exec /usr/bin/app: no such file or directory",
        }.items()
    ):
        files = {name: data for name, data in image().items() if name != path}
        for place, env in (("all", ()), ("none", (f"{names.VISIBLE_DEVICES}=void",))):
            bundle = loaders.bundle(tmp_path / f"{number}{place}", files, *env)
            if not (place == "none" and number):
                assert "; but its program does not start: " + words in headline(capsys, bundle)
                *_, verdict = text(capsys, "doctor", "--bundle", bundle)
                assert verdict.startswith(f"This container does not start: {words}")


def test_the_headline_of_edits_without_files_says_so(tmp_path: Path, capsys: Captured) -> None:
    """Edits that give nothing are not told as those that bring the driver."""
    bundle = made(tmp_path / "b", {})
    assert headline(capsys, bundle, "--mode", "csv").startswith(
        "The CDI edits (the edits that the runtime generates at the start) give the container no "
        "file and no device node; but libcuda.so.1 does not load"
    )


@pytest.mark.parametrize("mode", ["legacy", "cdi", "jit-cdi"])
def test_a_directory_of_the_image_is_not_called_a_compat_directory(
    mode: str, tmp_path: Path, capsys: Captured
) -> None:
    """A directory that the image's configuration puts first is the image's fault in every mode."""
    files = {
        "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/00-driver.conf": b"/opt/driver/lib\n",
        "opt/driver/lib/libcuda.so.1": library(CUDA),
    }
    bundle = made(tmp_path / "b", files)
    (proof,) = answer(capsys, "prove", CUDA, "--bundle", bundle, "--mode", mode)["proofs"]
    assert proof["file"]["path"] == "/opt/driver/lib/libcuda.so.1"
    assert "its directory comes before" in proof["file"]["how"]
    trouble = "but the container's program loads /opt/driver/lib/libcuda.so.1 of the image"
    head, *_ = text(capsys, "why", CUDA, "--bundle", bundle, "--mode", mode)
    assert head.endswith(trouble)
    assert headline(capsys, bundle, "--mode", mode).endswith(trouble)


def test_a_link_that_the_image_has_leads_to_the_mounted_library(
    tmp_path: Path, capsys: Captured
) -> None:
    """An image that was committed under the hook has the SONAME link already: the library is in
    the container, and ``why`` says so as ``prove`` does.
    """
    bundle = Path(made(tmp_path / "b", {MOUNTED[1:]: b""}))
    (bundle / "rootfs" / LIBS[1:] / CUDA).symlink_to("libcuda.so.560.35.03")
    (proof,) = answer(capsys, "prove", CUDA, "--bundle", str(bundle))["proofs"]
    (why,) = answer(capsys, "why", CUDA, "--bundle", str(bundle))["answers"]
    assert why["in_plan"]
    assert why["loading"]["file"] == proof["file"]
    assert proof["file"]["from"] == "host"


@pytest.mark.parametrize(
    ("version", "consequence", "verdict"),
    [
        (
            "515.105.01",
            "CUDA fails with error 803",
            "and CUDA fails with error 803 because the image's forward compatibility library",
        ),
        (
            "575.51.03",
            "it works on data center GPUs",
            (
                "and CUDA finds 2 GPUs (driver 560.35.03, with the image's forward compatibility "
                "library libcuda.so.575.51.03)"
            ),
        ),
    ],
)
def test_the_verdict_about_forward_compatibility(
    version: str, consequence: str, verdict: str, tmp_path: Path, capsys: Captured
) -> None:
    """An older compatibility library fails on every GPU, and a newer one works on this host's;
    no command leaves open which of both it is.
    """
    place = "usr/local/cuda/compat"
    files = {f"{place}/libcuda.so.{version}": library(CUDA)}
    bundle = Path(made(tmp_path / "b", files, f"LD_LIBRARY_PATH=/{place}"))
    (bundle / "rootfs" / place / CUDA).symlink_to(f"libcuda.so.{version}")
    (proof,) = answer(capsys, "prove", CUDA, "--bundle", str(bundle))["proofs"]
    assert consequence in proof["file"]["consequence"]
    *_, last = text(capsys, "doctor", "--bundle", str(bundle))
    assert verdict in last


@pytest.mark.parametrize("host", [HOST, "wsl2-rtx3090", "debian-compat32"])
def test_edits_that_give_nothing_are_one_finding(
    host: str, tmp_path: Path, capsys: Captured
) -> None:
    """Mode csv on a host that is not a Tegra board gives nothing: that is an error, told once."""
    bundle = made(tmp_path / "b", {})
    words = ["doctor", "--bundle", bundle, "--host", host, "--mode", "csv"]
    assert main([*words, "--format", "json"]) == 1
    document = read_document(capsys.readouterr().out)
    found = [(result["id"], one) for result in document["results"] for one in result["findings"]]
    (finding,) = [one for name, one in found if name == "cdi-incomplete"]
    assert finding["level"] == "error"
    assert "give the container no file and no device node" in finding["message"]
    assert 'set mode = "auto"' in finding["fix"]


def test_a_program_of_the_driver_that_edits_lack_is_on_the_host(
    tmp_path: Path, capsys: Captured
) -> None:
    """No one is told to install on the host what the host has."""
    bundle = Path(made(tmp_path / "b", {}))
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["args"] = ["nvidia-smi"]
    (bundle / "config.json").write_text(json.dumps(config))
    main(["doctor", "--bundle", str(bundle), "--host", HOST, "--mode", "csv", "--format", "json"])
    document = read_document(capsys.readouterr().out)
    found = {result["id"]: result["findings"] for result in document["results"]}
    (finding,) = found["program-missing"]
    assert finding["cause"].endswith("nvidia-smi is not mounted, and the host has it")
    assert "install" not in finding["fix"]


def test_what_a_made_specification_lacks_is_one_finding_with_a_way_out(
    tmp_path: Path, capsys: Captured
) -> None:
    """Where the specification that is made of the host has no library of the driver, making it
    again does not help, and the fix does not say so.
    """
    bundle = made(tmp_path / "b", {})
    words = ["doctor", "--bundle", bundle, "--host", "debian-a10g-index", "--mode", "cdi"]
    main([*words, "--format", "json"])
    document = read_document(capsys.readouterr().out)
    found = {result["id"]: result["findings"] for result in document["results"]}
    (finding,) = found["cdi-incomplete"]
    assert "libcuda.so and libnvidia-ml.so are not mounted" in finding["message"]
    assert "changed by hand" not in finding["cause"]
    assert 'set mode = "legacy"' in finding["fix"]


def test_the_images_driver_is_named_where_no_capability_brings_one(
    tmp_path: Path, capsys: Captured
) -> None:
    """Without compute a program finds the driver that the image has: doctor does not say none."""
    bundle = made(
        tmp_path / "b", {OWN_CUDA[1:]: library(CUDA)}, f"{names.DRIVER_CAPABILITIES}=utility"
    )
    (proof,) = answer(capsys, "prove", CUDA, "--bundle", bundle)["proofs"]
    assert proof["file"]["path"] == OWN_CUDA
    *_, last = text(capsys, "doctor", "--bundle", bundle)
    assert last.endswith(
        f"its programs load {OWN_CUDA} of the image: {names.DRIVER_CAPABILITIES} lacks compute."
    )


def test_the_name_without_a_version_is_answered_where_it_leads_elsewhere(
    tmp_path: Path, capsys: Captured
) -> None:
    """A program that opens libcuda.so gets CUDA's stub, and libcuda.so.1 the host's file."""
    stub = "/usr/local/cuda/lib64/stubs"
    files = {f"{stub[1:]}/libcuda.so": library(CUDA)}
    bundle = made(tmp_path / "b", files, f"LD_LIBRARY_PATH={stub}")
    (proof,) = answer(capsys, "prove", "libcuda.so", "--bundle", bundle)["proofs"]
    (why,) = answer(capsys, "why", "libcuda.so", "--bundle", bundle)["answers"]
    assert why["loading"]["file"] == proof["file"]
    assert proof["file"]["path"] == f"{stub}/libcuda.so"
    head, *_ = text(capsys, "why", CUDA, "--bundle", bundle)
    assert head == f"{CUDA} is in the container"


def test_the_answer_does_not_change_however_often_it_is_asked(
    tmp_path: Path, capsys: Captured
) -> None:
    """The bounds of an image count what one question reads, not all questions of a page together:
    the page says what doctor says of a script that runs ldconfig.
    """
    program = image()["usr/bin/app"]
    script = b'#!/bin/sh\ncp /opt/x.conf /etc/ld.so.conf.d/00-x.conf && ldconfig\nexec "$@"\n'
    files = {
        "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/x86.conf": f"{LIBS}\n".encode(),
        "opt/x.conf": b"/opt/old\n",
        "opt/old/libcuda.so.1": library(CUDA),
        "entry.sh": script,
        **dict.fromkeys(("bin/sh", "usr/bin/ldconfig", "usr/bin/cp"), program),
    }
    bundle, page = Path(made(tmp_path / "b", files)), tmp_path / "page.html"
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["args"] = ["/entry.sh", "app"]
    (bundle / "config.json").write_text(json.dumps(config))
    words = ["--bundle", str(bundle), "--host", "h100-550"]
    main(["doctor", *words])
    *_, verdict = capsys.readouterr().out.splitlines()
    assert "its programs load /opt/old/libcuda.so.1" in verdict
    main(["explain", "--html", str(page), *words])
    assert f">{verdict}</h1>" in page.read_text().replace("&#39;", "'")
