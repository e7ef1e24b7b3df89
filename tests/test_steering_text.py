"""Names that a container or a foreign document chose cannot steer the output of any command."""

import json
from pathlib import Path

import pytest

from bundles import make_bundle
from nvgraft.report.debug_log import DebugLog
from nvgraft.wrapper.log import Log, LogOptions
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery

Captured = pytest.CaptureFixture[str]

#: A right-to-left override, a line separator, an isolate, a zero-width space and a tag character.
#: The hook accepts them in variables and paths (docs/decisions/0016 refuses control characters).
EVIL = "x\u202ey\u2028z\u2066\u200b\U000e0041"

WANTS = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


def check(text: str, *, found: bool = True) -> None:
    """Check that a text has printable lines, and (``found``) names the hostile input."""
    assert all(char.isprintable() for char in text.replace("\n", "")), ascii(text)
    assert not found or "\\u202e" in text, text


@pytest.fixture
def host(tmp_path: Path) -> str:
    """A host whose name, GPU model and driver version were chosen by a stranger."""
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["name"] = EVIL
    document["nvml"]["gpus"][0]["model"] = EVIL
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    """A container in a directory, with a library directory and a volume, of such names."""
    place = make_bundle(tmp_path / EVIL, *WANTS, mounts=(f"/data/{EVIL}",))
    lib = place / "rootfs/usr/lib"
    (lib / EVIL).mkdir(parents=True)
    (lib / "x86_64-linux-gnu").symlink_to(EVIL)
    return str(place)


@pytest.fixture
def refused(tmp_path: Path) -> str:
    """A container that asks for a GPU and for a driver of such names."""
    device = f"NVIDIA_VISIBLE_DEVICES={EVIL}"
    return str(make_bundle(tmp_path / "refused", device, f"NVIDIA_REQUIRE_{EVIL}=cuda>{EVIL}"))


@pytest.mark.parametrize(
    "command",
    [
        ["plan"],
        ["plan", "--format", "json"],
        ["why", EVIL, "libcuda.so.1"],
        ["why", EVIL, "--format", "json"],
        ["doctor", "--verbose"],
        ["doctor", "--format", "json"],
        ["explain"],
        ["explain", "--format", "json"],
        ["prove", EVIL],
        ["prove", EVIL, "--format", "json"],
    ],
    ids=" ".join,
)
def test_answers_about_a_container_are_printable(
    command: list[str], host: str, bundle: str, refused: str, capsys: Captured
) -> None:
    """Text and JSON of every command that is given a hostile container and host are printable,
    also when the container is refused.
    """
    main([*command, "--bundle", bundle, "--host", host])
    check("".join(capsys.readouterr()), found=command[0] != "doctor")
    main([*command, "--bundle", refused, "--host", host])
    check("".join(capsys.readouterr()))


@pytest.mark.parametrize("form", ["text", "csv", "json"])
def test_a_matrix_is_printable(
    form: str, host: str, bundle: str, refused: str, capsys: Captured
) -> None:
    """Names of hosts and containers, and reasons, are printable in every form of a matrix."""
    main(["matrix", host, "--bundles", bundle, refused, "--format", form])
    check(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_a_difference_is_printable(
    form: str, host: str, bundle: str, tmp_path: Path, capsys: Captured
) -> None:
    """A plan of a stranger has printable differences, also in the versions of its driver."""
    main(["plan", "--bundle", bundle, "--host", host, "--format", "json"])
    plan = json.loads(capsys.readouterr().out)
    plan["host"]["driver_version"] = EVIL
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(plan))
    main(["diff", str(other), host, "--bundle", bundle, "--format", form])
    check(capsys.readouterr().out)


def test_a_page_is_printable(host: str, bundle: str, tmp_path: Path, capsys: Captured) -> None:
    """All text of the page that explain writes is printable."""
    page = tmp_path / "page.html"
    main(["explain", "--bundle", bundle, "--host", host, "--html", str(page)])
    check(page.read_text())
    check("".join(capsys.readouterr()), found=False)


def test_documents_with_such_names_are_refused_in_printable_words(
    bundle: str, tmp_path: Path, capsys: Captured
) -> None:
    """The name and the content of a document that is refused are printable in the message."""
    path = tmp_path / f"{EVIL}.json"
    for text in ("{", f'{{"schema": "{EVIL}"}}', f'{{"name": "{EVIL}", "{EVIL}": 1}}'):
        path.write_text(text)
        assert main(["plan", "--bundle", bundle, "--host", str(path)]) == 2
        check(capsys.readouterr().err)
        assert main(["diff", str(path), str(path)]) == 2
        check(capsys.readouterr().err)


def test_a_pasted_error_is_printable(tmp_path: Path, capsys: Captured) -> None:
    """explain-error repeats parts of a pasted text, which are printable."""
    path = tmp_path / "pasted"
    path.write_text(f"nvidia-container-cli: device error: {EVIL}: unknown device\n")
    for form in ("text", "json"):
        main(["explain-error", str(path), "--format", form])
        check("".join(capsys.readouterr()), found=False)


def test_the_debug_log_is_printable(tmp_path: Path) -> None:
    """A line of the debug log stays one line."""
    log = DebugLog()
    log.open(str(tmp_path / "log"))
    log.note(f"setting rootfs to {EVIL}")
    log.close()
    check((tmp_path / "log").read_text())


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_wrappers_log_is_printable(form: str, tmp_path: Path) -> None:
    """Both formats of the runtime's log are printable, and a reader of JSON gets the text back."""
    log = Log()
    path = tmp_path / "log"
    log.open(str(path), "info", LogOptions(["--log-format", form]))
    log.write("warning", f"a\n\x9b{EVIL}")
    text = path.read_text()
    check(text)
    assert text.count("\n") == 1
    if form == "json":
        assert json.loads(text)["msg"] == f"a\n\x9b{EVIL}"
