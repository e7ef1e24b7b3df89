"""How the demo and the simulated host run other programs: runc and the C compiler."""

import pytest
from pytest_subprocess import FakeProcess

from nvgraft_cli.simulate import demo
from nvgraft_cli.simulate.standins import build


def test_the_error_of_a_failed_program(fp: FakeProcess) -> None:
    """The error of a failed program has the command line, the exit status and both outputs."""
    fp.register(["runc", "spec", "--bundle", "/b"], returncode=3, stdout="out\n", stderr="err\n")
    with pytest.raises(demo.DemoFailed, match=r"^runc spec --bundle /b: exit status 3\nout\nerr$"):
        demo.run("runc", "spec", "--bundle", "/b")


def test_the_output_of_the_container_is_read_by_sections(fp: FakeProcess) -> None:
    """The container's output is read by sections, and the container is deleted afterwards."""
    stdout = "== devices\n/dev/nvidia0\n== links\n== end\n"
    fp.register(
        ["runc", "--root", "/w/demo.x/runc", "run", "--bundle", "/b", "demo.x"], stdout=stdout
    )
    fp.register(["runc", "--root", "/w/demo.x/runc", "delete", "--force", "demo.x"])
    assert demo.start("/w/demo.x", "/b") == {"devices": ["/dev/nvidia0"], "links": [], "end": []}
    assert [list(call)[3] for call in fp.calls] == ["run", "delete"]


def test_a_container_that_ends_early_is_a_failure(fp: FakeProcess) -> None:
    """A container whose last section is missing is an error with its output."""
    fp.register(["runc", fp.any()], stdout="== devices\n", occurrences=2)
    with pytest.raises(demo.DemoFailed, match=r"the container ended early; it printed\n== devices"):
        demo.start("/w/demo.x", "/b")


def test_a_container_that_fails_is_deleted_too(fp: FakeProcess) -> None:
    """A container that fails is deleted, so that the demo leaves none behind."""
    fp.register(
        ["runc", "--root", "/w/demo.x/runc", "run", "--bundle", "/b", "demo.x"],
        returncode=1,
        stderr="no\n",
    )
    fp.register(["runc", "--root", "/w/demo.x/runc", "delete", "--force", "demo.x"], returncode=1)
    with pytest.raises(demo.DemoFailed, match=r"exit status 1\nno$"):
        demo.start("/w/demo.x", "/b")
    assert fp.call_count(["runc", "--root", "/w/demo.x/runc", "delete", "--force", "demo.x"]) == 1


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [("<stdin>:1: error: x\nmore\n", "<stdin>:1: error: x"), ("", "exit code 1")],
)
def test_a_compiler_that_fails_is_one_line(
    fp: FakeProcess, monkeypatch: pytest.MonkeyPatch, stderr: str, reason: str
) -> None:
    """The error of a compiler that fails is one line with the first line of its output."""
    monkeypatch.setattr("shutil.which", lambda name, path: "/usr/bin/cc")
    fp.register(["/usr/bin/cc", fp.any()], returncode=1, stderr=stderr)
    compiler = build.Compiler("", lambda _soname: b"")
    with pytest.raises(build.CannotCompile) as error:
        compiler.library(build.SOURCES / "nvml.c", "libnvidia-ml.so.1")
    assert str(error.value) == (
        f"the stand-in nvml.c did not compile ({reason}): the GPUs are served from the snapshot"
    )


def test_without_a_compiler_nothing_is_started(
    fp: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler no program is started, and the error says so."""
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(build.CannotCompile, match=r"^there is no C compiler: "):
        build.Compiler("", lambda _soname: b"")
    assert len(fp.calls) == 0
