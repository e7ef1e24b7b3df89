"""Add to a wheel what is made when it is built: manual pages, completions, and two pages of docs.

pip puts the pages into the share directory of the environment. ``nvgraft help`` reads the glossary
and the failures from the package.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_DOCS = ("glossary.md", "failures.md")


class PagesHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls before and after it builds the wheel."""

    _directory = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the pages. An editable installation has none: its sources change."""
        if version == "editable":
            return
        sys.path[:0] = [f"{self.root}/{part}" for part in ("hook", "cli", "specs")]
        from nvgraft_cli.pages.__main__ import write

        self._directory = tempfile.mkdtemp()
        write(Path(self._directory))
        build_data["shared_data"][f"{self._directory}/share"] = "share"
        for name in _DOCS:
            build_data["force_include"][f"{self.root}/docs/{name}"] = f"nvgraft_cli/docs/{name}"

    def finalize(self, _version: str, _build_data: dict[str, Any], _path: str) -> None:
        """Remove the pages, which are in the wheel now."""
        if self._directory:
            shutil.rmtree(self._directory)
