"""Pages are made from templates, which an installation has compiled beforehand."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jinja2 import Environment

from nvgraft_cli.html import document

TEMPLATE = '{% extends "html/base.html.j2" %}{% block head %}{{ greeting }}{% endblock %}\n'


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package directory with the templates of two pages."""
    (tmp_path / "html").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "html/base.html.j2").write_text(
        "<title>{{ title }}</title>{% block head %}{% endblock %}"
    )
    (tmp_path / "html/base.css").write_text("")
    (tmp_path / "other/page.html.j2").write_text(TEMPLATE)
    monkeypatch.setattr(document, "_DIRECTORY", tmp_path)
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the templates that are compiled from now on."""
    seen: list[str] = []
    whole: Callable[..., object] = Environment.compile

    def compile_one(self: Environment, source: str, name: str, *rest: object) -> object:
        seen.append(name)
        return whole(self, source, name, *rest)

    monkeypatch.setattr(Environment, "compile", compile_one)
    return seen


def made() -> str:
    """Return a page."""
    return document.render("other/page.html.j2", "a <b>", [], greeting="good & day")


def test_templates_of_an_installation_are_not_compiled_again(
    directory: Path, compiled: list[str]
) -> None:
    """With the byte code that the installer writes, a page is made without compiling; another
    directory in the place of the one that it was written in does not matter.
    """
    page = made()
    assert page == "<title>a &lt;b&gt;</title>good &amp; day"
    assert sorted(compiled) == ["html/base.html.j2", "other/page.html.j2"]
    compiled.clear()
    document.compile_templates()
    assert sorted(compiled) == ["html/base.html.j2", "other/page.html.j2"]
    compiled.clear()
    assert made() == page
    assert compiled == []
    os.rename(directory, moved := directory.with_name("moved"))
    document._DIRECTORY = moved
    assert made() == page
    assert compiled == []


def test_a_changed_template_is_compiled_again(directory: Path, compiled: list[str]) -> None:
    """The byte code of another source is not used, nor a damaged file."""
    document.compile_templates()
    (directory / "other/page.html.j2").write_text(TEMPLATE.replace("greeting", "greeting|upper"))
    compiled.clear()
    assert made().endswith("GOOD &amp; DAY")
    assert compiled == ["other/page.html.j2"]
    (directory / "html/compiled/html.base.html").write_bytes(b"j2")
    compiled.clear()
    made()
    assert sorted(compiled) == ["html/base.html.j2", "other/page.html.j2"]
