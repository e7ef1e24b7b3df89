"""``nvgraft explain`` of a container that gets its GPUs by CDI edits: the story of that mode."""

import json
from pathlib import Path

import pytest

from bundles import make_bundle
from documents import read_document
from nvgraft_cli.shell.main import main
from test_cdi_answers import Node
from test_docs import anchors
from test_explain import Captured, Document, Page, facts, step, step_ids

DOCS = Path(__file__).parents[1] / "docs"
HOST = "runfile-a10x2"
ONE = "NVIDIA_VISIBLE_DEVICES=0"
STEPS = ["asked", "host", "edits", "files", "kernel", "hooks", "loader", "original", "findings"]

#: What only the hook does.
OF_THE_HOOK = (
    "nvidia-container-cli --load",
    " configure ",
    "row in the catalogue",
    "The hook opens",
    "creates a link for each SONAME and adds",
    "The layout of the image decides",
)


def story(capsys: Captured, bundle: Path, mode: str, code: int = 0) -> Document:
    """Return the story of a container in a mode."""
    words = ["explain", "--bundle", str(bundle), "--host", HOST, "--mode", mode]
    assert main([*words, "--format", "json"]) == code
    document: Document = read_document(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("mode", "asked"), [("jit-cdi", ONE), ("cdi", ONE), ("csv", ONE)])
def test_a_mode_has_its_own_story(mode: str, asked: str, tmp_path: Path, capsys: Captured) -> None:
    """It tells how the runtime reads the request, where the edits come from, who mounts them and
    which hooks run, and nothing of what only the prestart hook does.
    """
    bundle = make_bundle(tmp_path / "b", asked, "NVIDIA_DRIVER_CAPABILITIES=compute")
    document = story(capsys, bundle, mode)
    assert step_ids(document) == STEPS
    assert "CDI edits (" in document["headline"]
    assert not [words for words in OF_THE_HOOK if words in json.dumps(document)]
    assert facts(document, "asked")["mode"][0] == mode
    assert facts(document, "asked")["capabilities"][0] == "compute: not looked at"
    assert "No prestart hook is called." in step(document, "kernel")["text"]
    hooks = [fact["value"] for fact in step(document, "hooks")["facts"]]
    commands = [fact["value"] for fact in step(document, "original")["facts"]]
    if mode != "csv":  # this host has no CSV files
        assert "/usr/bin/nvgraft-cdi-hook: update-ldcache --folder" in "".join(hooks)
        assert any(value.startswith("nvidia-cdi-hook create-symlinks ") for value in commands)
        links = {entry["what"] for entry in step(document, "loader")["entries"]}
        assert any(path.endswith("/libcuda.so.1") for path in links)
    if mode == "cdi":
        assert facts(document, "edits")["device"][0] == "nvidia.com/gpu=0"
    if mode == "jit-cdi":
        assert "Files in /etc/cdi and /var/run/cdi are not read." in step(document, "edits")["text"]


def test_mode_legacy_keeps_the_story_of_the_hook(tmp_path: Path, capsys: Captured) -> None:
    """nvgraft-runtime in mode legacy inserts the hook, whose story is told."""
    document = story(capsys, make_bundle(tmp_path / "b", ONE), "legacy")
    assert "edits" not in step_ids(document)
    assert facts(document, "original")["command"][0].startswith("nvidia-container-cli ")


@pytest.mark.parametrize(
    ("env", "mode", "headline", "title", "fix"),
    [
        (
            "NVIDIA_VISIBLE_DEVICES=7",
            "cdi",
            "nvgraft-runtime refuses",
            "nvgraft-runtime refuses",
            "did",
        ),
        (
            "PATH=/bin",
            "jit-cdi",
            "nvgraft-runtime adds nothing",
            "nvgraft-runtime adds nothing",
            "",
        ),
    ],
)
def test_the_story_ends_with_the_runtime(
    env: str, mode: str, headline: str, title: str, fix: str, tmp_path: Path, capsys: Captured
) -> None:
    """Who refuses or adds nothing is the runtime, and the fix is that of CDI devices."""
    document = story(capsys, make_bundle(tmp_path / "b", env), mode, code=int(bool(fix)))
    assert document["headline"].startswith(headline)
    assert step_ids(document) == ["asked", "end"]
    assert step(document, "end")["title"] == title
    if fix:
        assert fix in facts(document, "end")["fix"][0]


def test_the_story_of_a_rewritten_config(tmp_path: Path, capsys: Captured) -> None:
    """Edits that config.json has already are the story, and nothing is looked up."""
    node = Node(tmp_path, capsys)
    node.rewrite("1")
    _, document = node.ask("explain")
    assert step_ids(document)[:3] == ["asked", "host", "edits"]
    assert "(config.json)" in document["headline"]
    assert facts(document, "asked")["devices"] == (
        "/dev/nvidia1",
        "the device nodes in config.json",
    )
    assert "Nothing is generated or looked up." in step(document, "edits")["text"]


@pytest.mark.parametrize("mode", ["jit-cdi", "cdi"])
def test_the_page_tells_the_story_of_the_mode(mode: str, tmp_path: Path, capsys: Captured) -> None:
    """The page has a section for each step, whose link leads to a section of the documentation."""
    file = tmp_path / "page.html"
    bundle = str(make_bundle(tmp_path / "b", ONE))
    words = ["explain", "--bundle", bundle, "--host", HOST, "--mode", mode]
    assert main([*words, "--html", str(file)]) == 0
    text = file.read_text()
    assert "Where the edits come from" in text
    assert not [words for words in OF_THE_HOOK if words in text]
    sections = [tag.get("id") for tag in Page(text).named("section")]
    assert [name for name in sections if name in STEPS] == STEPS
    for part in story(capsys, Path(bundle), mode)["steps"]:
        page, _, anchor = part["doc"].partition("#")
        assert anchor in anchors(DOCS / page), part["doc"]
