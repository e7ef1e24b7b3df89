"""Lessons of the lab as far as they need no root; integration/test_lab_lessons.py solves them."""

import json
import os
import pwd
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nvgraft_cli.lab.lessons import library, progress, systemd
from nvgraft_cli.lab.lessons.modules import ModuleError, Modules
from nvgraft_cli.lab.lessons.scene import read_node
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.standins import failures
from nvgraft_specs import gallery
from nvgraft_specs.models.host import parse_host
from nvgraft_specs.models.lesson import Lesson

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent

#: A lesson with as little as possible.
SMALL = """
schema = "nvgraft.lesson/1"
title = "T"
node = "eks-t4"
task = "Mend it."
hints = ["No."]
solution = ["true"]
explanation = "So."
[containers.app]
program = ["cuda-check"]
[[check]]
container = "app"
why = "W"
[[wrong]]
commands = ["false"]
why = "W"
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state directory of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return tmp_path / "state"


# ---- nvgraft's own


def test_the_order_has_every_lesson() -> None:
    """Each file is in the list, once."""
    files = sorted(path.stem for path in library.DATA.glob("*.toml"))
    assert sorted(library.names()) == files
    assert len(files) >= 14


@pytest.mark.parametrize("name", library.names())
def test_a_lesson_fits_its_node(name: str) -> None:
    """The node exists and can have the failures; the title says a symptom and fits a line."""
    lesson = library.find(name)
    _, host = read_node(lesson.node)
    for failure in lesson.failures:
        failures.parse(failure, host)
    assert not lesson.title.endswith(".")
    texts = (lesson.task, lesson.explanation, *lesson.hints, *(one.why for one in lesson.wrong))
    assert all(text.strip().endswith((".", "`", "?", ".)")) for text in texts), texts


@pytest.mark.parametrize("name", library.names())
def test_the_hints_name_commands_that_exist(name: str) -> None:
    """Each command of nvgraft in a hint has options that the parser knows."""
    lesson = library.find(name)
    for words in re.findall(r"`nvgraft ([a-z-]+)", "\n".join((*lesson.hints, lesson.explanation))):
        with pytest.raises(SystemExit) as ended:
            main([words, "--help"])
        assert ended.value.code == 0


# ---- the list and the progress


def test_the_list_marks_what_is_solved(state: Path, capsys: Captured) -> None:
    """`nvgraft lab lessons` needs no root, and a damaged file counts as an empty one."""
    assert main(["lab", "lessons"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[ ] no-libcuda ")
    assert lines[-1] == f"0 of {len(library.names())} lessons solved"
    (state / "nvgraft").mkdir(parents=True)
    for text, count in (
        ('{"solved": ["error-999", "gone"]}', 1),
        ('{"solved": 7}', 0),
        ("[", 0),
        ("[" * 60000, 0),
    ):
        (state / "nvgraft/lessons.json").write_text(text)
        assert main(["lab", "lessons"]) == 0
        out = capsys.readouterr().out
        assert f"{count} of " in out
        assert ("[x] error-999" in out) == bool(count)


@pytest.mark.parametrize("home", [None, "", "/", "relative"])
def test_without_a_home_progress_is_the_passwd_entrys(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME that names no directory of a user, as containers have it, is not believed; without an
    entry the list still works, and a success says that it is not kept.
    """
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    entry = list(pwd.getpwuid(os.geteuid()))
    entry[5] = str(tmp_path / "home")
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: pwd.struct_passwd(entry))
    assert progress.add("no-tmp") == ""
    assert (tmp_path / "home/.local/state/nvgraft/lessons.json").exists()
    assert progress.solved() == {"no-tmp"}

    def no_entry(_uid: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert progress.solved() == frozenset()
    assert progress.add("no-tmp") == (
        "your progress is not kept: this user has no home directory | set HOME or XDG_STATE_HOME"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["lesson", "--plain", "eror-999"], "there is no lesson and no file 'eror-999'"),
        (["--plain", "lesson", "eror-999"], "there is no lesson and no file 'eror-999'"),
        (["lesson"], "lesson: no name | write lesson NAME"),
        (["lesson", "eror-999"], "there is no lesson and no file 'eror-999'; did you mean error-999?"),
        (["lesson", "no-tmp", "--record", "x"], "lesson takes no --record | leave it out"),
        (["lessons", "no-tmp"], "lessons takes no argument | write lesson NAME to begin one"),
        (["lesson", "/dev/null"], "/dev/null: $.schema: should be 'nvgraft.lesson/1', is None"),
        (["lesson", "no-tmp", "--script", "/nonexistent"], "--script /nonexistent: no such file"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line(
    words: list[str], error: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before anything is made."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    assert main(["lab", *words]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("runc", "runc: there is no such program in PATH | run apt-get install runc"),
        ("busybox", "run apt-get install busybox-static"),
        ("cc", "run apt-get install gcc"),
    ],
)
def test_a_lesson_needs_programs(
    missing: str, words: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is told with its package."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        shutil, "which", lambda name, **_: None if name == missing else f"/usr/bin/{name}"
    )
    assert main(["lab", "lesson", "no-tmp"]) == 2
    assert words in capsys.readouterr().err


def test_only_root_can_begin_a_lesson(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are told how."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["lab", "lesson", "no-tmp"]) == 2
    assert "only root can make containers" in capsys.readouterr().err


# ---- files of others


def lesson(text: str) -> Lesson:
    """Parse the text of a lesson."""
    return library.parse_lesson(text.encode(), "x.toml")


def test_a_small_lesson_is_one() -> None:
    """What is not given has its default."""
    assert lesson(SMALL).containers["app"].starts_with == "hook"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("schema", "shema", "x.toml: $.schema: should be 'nvgraft.lesson/1', is None"),
        ("lesson/1", "lesson/2", "version 'nvgraft.lesson/2' is not known"),
        ('title = "T"', "title = 1", "x.toml: $.title: input should be a valid string"),
        ('title = "T"', 'title = "\\u001b[31m"', "$.title: string should match pattern"),
        ('title = "T"', "title = inf", "not JSON"),
        ('node = "eks-t4"', "", "$.node: field required"),
        ("[containers.app]", "colour = 1\n[containers.app]", "$.colour: extra inputs are not"),
        ('container = "app"', 'container = "b"', "there is no container 'b' to check"),
        ('["cuda-check"]', "[]", "$.containers.app.program: list should have at least 1 item"),
        ("[[check]]", '[[changes]]\npath = "/sys/x"\ntext = "a"\n[[check]]', "'/sys/x' is a file of this machine's kernel"),
        ("[[check]]", '[[changes]]\npath = "/a/../b"\ntext = "a"\n[[check]]', "is not an absolute path"),
        ("[[check]]", '[[changes]]\npath = "/a"\n[[check]]', "give one of text, remove, replace and cdi_of"),
        ("[[check]]", '[[changes]]\npath = "/a"\ntext = "a"\nremove = true\n[[check]]', "give one of text"),
        ("[[check]]", '[[changes]]\npath = "/proc/self/x"\nremove = true\n[[check]]', "this machine's kernel"),
        ('"So."', '"' + "x" * 70_000 + '"', "x.toml: larger than 64 KiB | shorten it"),
        ('"So."', "[" * 5000, "not TOML"),
        ('"So."', '"', "not TOML: "),
        ("[containers.app]", '[containers."../x"]', "$.containers"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_lesson_is_one_line(old: str, new: str, error: str) -> None:
    """The line names the file, the place and the cause."""
    with pytest.raises(ValueError, match=re.escape(error)) as found:
        lesson(SMALL.replace(old, new, 1))
    assert "\n" not in str(found.value)


def test_a_node_that_is_unknown_is_one_line() -> None:
    """The line says which name is meant, and what a node can be."""
    with pytest.raises(InputError, match="there is no GPU profile 'abacus'"):
        read_node("9 x abacus, driver 560.35.03")


def test_the_page_about_the_format_names_every_member() -> None:
    """docs/lessons.md has all members of the model, and its example is a lesson."""
    text = (ROOT / "docs/lessons.md").read_text()
    schema = Lesson.model_json_schema(by_alias=True)
    members = {*schema["properties"]}
    for part in schema["$defs"].values():
        members |= {*part.get("properties", ())}
    assert {member for member in members if f"`{member}`" not in text} == set()
    example = text.partition("```toml\n")[2].partition("```")[0]
    assert tomllib.loads(example)
    assert lesson(example).title


# ---- the stand-ins of the node


def modules(*loaded: str) -> Modules:
    """Return the kernel modules of a host."""
    path = gallery.path("runfile-a10x2")
    return Modules(parse_host(Path(path).read_bytes(), path), loaded, loaded)


def test_modules_are_removed_in_the_order_of_their_users() -> None:
    """The words are those of kmod."""
    found = modules("nvidia_drm", "nvidia_modeset", "nvidia")
    assert found.listing()[2].split() == ["nvidia_modeset", "1355776", "1", "nvidia_drm"]
    with pytest.raises(ModuleError, match="Module nvidia is in use by: nvidia_drm nvidia_modeset"):
        found.remove("nvidia")
    with pytest.raises(ModuleError, match="Module nvidia_uvm is not currently loaded"):
        found.remove("nvidia-uvm")
    with pytest.raises(ModuleError, match="FATAL: Module nouveau not found"):
        found.load("nouveau")
    found.remove("nvidia_drm")
    found.load("nvidia-drm")
    assert found.loaded == ["nvidia_drm", "nvidia_modeset", "nvidia"]


def test_a_reload_applies_the_rules_of_config_json() -> None:
    """Rules that deny, and those of other kinds, are left out; missing numbers are any; a rule for
    all devices takes back those before it.
    """
    rules: list[dict[str, Any]] = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": True, "type": "c", "major": 510},
        {"allow": True, "type": "p", "major": 1},
    ]
    config = {"linux": {"resources": {"devices": rules}}}
    assert systemd.rules(config) == ["c 195:0 rw", "c 510:* rwm"]
    rules.append({"allow": True})
    assert systemd.rules(config) == [systemd.EVERYTHING]
    rules.append({"allow": False, "type": "a"})
    assert systemd.rules(config) == []
    assert systemd.rules(json.loads("{}")) == []
