"""Manual pages, made by argparse-manpage: one for nvgraft, and one for each of its commands."""

import argparse
import re

from argparse_manpage.manpage import Manpage

from nvgraft import __version__
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.parser import CommandParser, commands_of, program, whole_program

_PLACE = "share/man/man1/{name}.1"
_SUMMARY = "graft a host's NVIDIA driver onto a container, or predict what that will do"


def texts() -> dict[str, str]:
    """Return each page by the path of its file below a prefix."""
    summaries = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}
    pages = {"nvgraft": _overview()}
    for name, parser in commands_of(whole_program()).items():
        pages[f"nvgraft-{name}"] = _page(parser, f"nvgraft-{name}", summaries[name])
    return {_PLACE.format(name=name): text for name, text in pages.items()}


def _overview() -> str:
    """Return the page of the program: its own options, and the commands with their pages."""
    parser = program()
    commands = ["\\&"]
    for title, group in GROUPS.items():
        commands.append(f".SS {_escaped(title)}")
        for name, (module, summary) in group.items():
            page = f"\\fBnvgraft-{name}\\fR(1)" if module else f"\\fBnvgraft {name}\\fR"
            commands += [".TP", page.replace("-", r"\-"), _escaped(summary)]
    for section in parser._action_groups:
        section._group_actions[:] = [
            action
            for action in section._group_actions
            if not isinstance(action, argparse._SubParsersAction)
        ]
    return _page(parser, "nvgraft", _SUMMARY, commands)


def _page(parser: CommandParser, name: str, summary: str, commands: list[str] | None = None) -> str:
    epilog, parser.epilog = parser.epilog or "", None
    page = Manpage(parser)
    page.prog, page.description = name, summary
    # Equal sources make equal pages: a version, and no date.
    page.date, page.source, page.manual = f"version {__version__}", "nvgraft", "nvgraft"
    if commands:
        page.add_section("commands", "=", "\n".join(commands))
    for block in epilog.split("\n\n"):
        title, text = _section(block)
        page.add_section(title, ">", text)
    if name != "nvgraft":
        page.add_section("see also", "=", r".BR nvgraft (1)")
    return str(page)


def _section(block: str) -> tuple[str, str]:
    """Return the title and the text of a paragraph of an epilog."""
    title, _, text = block.partition(":")
    if title in ("examples", "example"):
        return "examples", f".nf\n{_escaped(text.strip(chr(10)))}\n.fi"
    if title == "exit code":
        return "exit status", _escaped(re.sub(r"\s+", " ", text).strip())
    return "notes", _escaped(re.sub(r"\s+", " ", block)) + "\n"


def _escaped(text: str) -> str:
    """Escape what groff would interpret."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)
