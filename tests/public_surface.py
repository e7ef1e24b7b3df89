"""Every name that users rely on, one line each, as the programs and documents themselves say it.

tests/fixtures/public_surface.txt holds the lines. After a deliberate change write it anew, and tell
users in the changelog:

    .venv/bin/python tests/public_surface.py > tests/fixtures/public_surface.txt

What an installation consists of is held by integration/test_dev_install.py, which makes one.
"""

import argparse
import ast
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvgraft import cdi_hook, hook, runtime
from nvgraft.base import errors
from nvgraft.base.usage import UsageError
from nvgraft.request.config_keys import KEYS
from nvgraft.wrapper.log import LogOptions
from nvgraft_cli.container_cli import COMMANDS, ORIGINAL_NAME
from nvgraft_cli.container_cli import command as container_cli
from nvgraft_cli.shell import parser
from nvgraft_cli.shell.arguments import EVERYWHERE
from nvgraft_specs import checks, names
from sources import nodes

CHECKOUT = Path(__file__).parent.parent
#: What makes a finding; the first argument is its id.
_FINDINGS = ("Finding", "_warn")
SCHEMAS = CHECKOUT / "specs/nvgraft_specs/schemas"


def surface() -> list[str]:
    """Return all lines, sorted."""
    programs = (commands(), hook_options(), cdi_hook_options(), runtime_options(), targets())
    data = (documents(), findings(), failures(), settings(), variables())
    return sorted({line for lines in (*programs, *data) for line in lines})


def commands() -> Iterator[str]:
    """``nvgraft``: commands, options with their choices, exit codes."""
    yield from _parser_lines("nvgraft", parser.whole_program())
    original = ORIGINAL_NAME
    for words in ([], *([name] for name in COMMANDS)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            container_cli.main(original, [*words, "--help"])
        for line in said.getvalue().splitlines():
            options, _, _ = line.lstrip().partition("  ")
            if options.startswith("-"):
                for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", options):
                    yield " ".join((original, *words, option))


def _parser_lines(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield name
    codes = f"{parser.description}\n{parser.epilog}".partition("exit code")[2]
    for code in re.findall(r"\b\d\b", codes):
        yield f"{name}: exit code {code}"
    everywhere = {
        action
        for group in parser._action_groups
        if group.title == EVERYWHERE
        for action in group._group_actions
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from _parser_lines(f"{name} {word}", sub)
            continue
        values = "|".join(map(str, action.choices or ()))
        where = name if name == "nvgraft" or action not in everywhere else "nvgraft *"
        for option in action.option_strings or [str(action.metavar or action.dest)]:
            yield f"{where} {option} {values}".rstrip()


def hook_options() -> Iterator[str]:
    """``nvgraft-hook``: commands, options, exit codes."""
    for line in hook._USAGE.splitlines():
        match = re.match(r"  (-?[a-z-]+)", line)
        if match and match[1] != "nvgraft-hook":
            yield f"nvgraft-hook {match[1]}"
    refusals = (errors.Refusal("", ""), UsageError("", ""))
    for code in (0, *(refusal.exit_code for refusal in refusals), errors.UNDO_FAILED):
        yield f"nvgraft-hook: exit code {code}"


def cdi_hook_options() -> Iterator[str]:
    """``nvgraft-cdi-hook``: commands with their options, and its own options."""
    command = ""
    for line in cdi_hook._USAGE.partition("example:")[0].splitlines()[1:]:
        if match := re.match(r"  ([a-z-]+)", line):
            command = "" if match[1].startswith("-") else f" {match[1]}"
            yield f"nvgraft-cdi-hook {match[1]}"
        for option in re.findall(r"(?<= )\[?(--[a-z-]+)", line):
            yield f"nvgraft-cdi-hook{command} {option}"


def runtime_options() -> Iterator[str]:
    """``nvgraft-runtime``: what it understands itself of a low-level runtime's command line."""
    for word in ("-b", "--bundle"):
        if runtime.bundle_directory([word, "x"]) == "x":
            yield f"nvgraft-runtime {word}"
    before = vars(LogOptions([]))
    for word in ("--log", "--log-format", "--debug", "--version"):
        if vars(LogOptions([word, "x"])) != before:
            yield f"nvgraft-runtime {word}"


def targets() -> Iterator[str]:
    """``./dev``: targets and their options."""
    usage = (CHECKOUT / "dev").read_text().partition("usage: ./dev")[2].partition("TEXT\n")[0]
    target = ""
    for line in usage.splitlines():
        if match := re.match(r"  ([a-z]+)\b", line):
            target = match[1]
            yield f"./dev {target}"
        if line.startswith("  "):
            for option in re.findall(r"--[a-z]+|\b[A-Z]+=", line[:37]):
                yield f"./dev {target} {option}"


def documents() -> Iterator[str]:
    """Every key of every document, with the words that it may have."""
    for file in sorted(SCHEMAS.iterdir()):
        schema = json.loads(file.read_text())
        for line in _schema_lines(schema, schema, "", ()):
            yield f"document {file.stem}{line}"


def _schema_lines(
    schema: dict[str, Any], root: dict[str, Any], path: str, inside: tuple[str, ...]
) -> Iterator[str]:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if name not in inside:
            yield from _schema_lines(root["$defs"][name], root, path, (*inside, name))
        return
    words = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    for word in words:
        yield f"{path} = {json.dumps(word)}"
    for name, part in schema.get("properties", {}).items():
        optional = "" if name in schema.get("required", ()) else " (optional)"
        yield f"{path} .{name}{optional}"
        yield from _schema_lines(part, root, f"{path} .{name}", inside)
    for name, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(name), dict):
            yield from _schema_lines(schema[name], root, path + mark, inside)
    for part in (
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *schema.get("prefixItems", ()),
    ):
        yield from _schema_lines(part, root, path, inside)


def findings() -> Iterator[str]:
    """The ids of a plan's findings, as the source has them; * is a kind of mount."""
    for path in (*(CHECKOUT / "hook").rglob("*.py"), *(CHECKOUT / "cli").rglob("*.py")):
        for node in nodes(path.read_text()):
            if (
                isinstance(node, ast.Call)
                and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in _FINDINGS
                and (name := _constant(node.args[0]))
            ):
                yield f"finding {name}"


def _constant(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant(part) or "*" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def failures() -> Iterator[str]:
    """The failures that doctor checks for and docs/failures.md explains."""
    for failure in checks.FAILURES:
        yield f"failure {failure.id}"


def settings() -> Iterator[str]:
    """Keys of config.toml, with the type and default of each."""
    for table, key, _, default in KEYS:
        yield f"config.toml {'.'.join((*table, key))} = {json.dumps(default)}"


def variables() -> Iterator[str]:
    """Environment variables, of the container and of the programs."""
    for value in vars(names).values():
        if isinstance(value, str) and re.fullmatch(r"(?!CAP_)[A-Z][A-Z_]+", value):
            yield f"variable {value}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in surface())
