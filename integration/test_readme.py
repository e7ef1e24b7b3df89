"""The commands in the section "Use it" of the README work as they are pasted."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import CHECKOUT, Installed

pytestmark = pytest.mark.requires("root", "overlayfs", "x86_64", "ldconfig")


def commands() -> Iterator[tuple[str, int]]:
    """Yield each command with the exit code in the comment above it, 0 if there is none."""
    section = (CHECKOUT / "README.md").read_text().partition("\n## Use it\n")[2]
    code = 0
    for block in re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], re.DOTALL):
        for line in block.splitlines():
            if line.startswith("#"):
                documented = re.search(r"\(exit code (\d)", line)
                code = int(documented[1]) if documented else 0
            else:
                yield line, code
                code = 0


def test_every_command_can_be_pasted(installed: Installed, tmp_path: Path) -> None:
    """Each command has its documented exit code, in a directory with the examples only."""
    shutil.copytree(CHECKOUT / "docs/examples", tmp_path / "docs/examples")
    for command, code in commands():
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            env={"PATH": f"{installed.cli.parent}:{os.environ['PATH']}"},
        )
        assert done.returncode == code, f"{command}\n{done.stderr}"
    assert (tmp_path / "one-gpu.html").stat().st_size
    assert (tmp_path / "node.json").stat().st_size
