"""Make a page from templates: one file that needs no network, with all text escaped.

The page's policy forbids every connection, and all style and script but its own two, by their
hashes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from nvgraft import __version__
from nvgraft.base.errors import printable
from nvgraft_cli.shell.text import size

#: The directory in which templates, styles and scripts are named: ``explain/page.css``.
_DIRECTORY = Path(__file__).parent.parent
#: The directory below it for templates that were compiled when nvgraft was installed.
_COMPILED = "html/compiled"


@dataclass(frozen=True, slots=True)
class PageSection:
    """One section of a page, in the list of contents by its title.

    :ivar id: the anchor.
    :ivar template: what shows it. It sees the section as ``section``, and all values of the page.
    :ivar values: what the template shows.
    """

    id: str
    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict)


def render(
    template: str,
    title: str,
    sections: Sequence[PageSection],
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    **values: Any,
) -> str:
    """Return a page.

    :param template: extends ``html/base.html.j2``.
    :param styles: added to the style that pages share.
    :param data: for the scripts, which find it as JSON in the element ``data``.
    :param values: what the template shows beside the sections.
    """
    style = "".join(map(_text, ("html/base.css", *styles)))
    script = "".join(map(_text, scripts))
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
    if script:
        policy += f"script-src '{_hash(script)}'; "
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            sections=sections,
            policy=Markup(f"{policy}base-uri 'none'; form-action 'none'"),  # noqa: S704 - hashes
            style=Markup(style),  # noqa: S704 - files of this package, as they are hashed
            script=Markup(script),  # noqa: S704
            data=None if data is None else _json(data),
            version=__version__,
            **values,
        )
    )


class _CompiledTemplates(BytecodeCache):
    """The byte code of templates. It is used for the source and the Python that it was made for."""

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        # Without the file: it is another one in another installation.
        return name.replace("/", ".").removesuffix(".j2")

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(FileNotFoundError), open(_DIRECTORY / _COMPILED / bucket.key, "rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write nothing when a page is made: the installation is root's."""


class _TemplateCompiler(_CompiledTemplates):
    def load_bytecode(self, bucket: Bucket) -> None:
        """Compile each template again."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with open(_DIRECTORY / _COMPILED / bucket.key, "wb") as file:
            bucket.write_bytecode(file)


def compile_templates() -> None:
    """Write the byte code of all templates beside them, as the installer does for modules."""
    (_DIRECTORY / _COMPILED).mkdir(exist_ok=True)
    environment = _environment(_TemplateCompiler())
    for name in environment.list_templates(extensions=("j2",)):
        environment.get_template(name)


def _environment(compiled: BytecodeCache | None = None) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_DIRECTORY),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=compiled or _CompiledTemplates(),
    )
    environment.filters["size"] = size
    return environment


def _text(name: str) -> str:
    return (_DIRECTORY / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(value: object) -> object:
    """Escape in a text what would change how a page shows the text around it."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _json(data: Mapping[str, Any]) -> Markup:
    """Return JSON without HTML's special characters, so that no name can end its element."""
    text = json.dumps(data, separators=(",", ":"))
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(text)  # noqa: S704 - it has no special character
