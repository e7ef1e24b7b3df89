"""Where every start looks on this host: the driver root, /proc/devices, and the directories that
the search path and CUDA_MPS_PIPE_DIRECTORY name.

:mod:`nvgraft.host.live` reads the rest of a host, unless that is kept.
"""

from __future__ import annotations

from nvgraft.base.files import read_text
from nvgraft.formats.tree import LiveTree, open_tree_at
from nvgraft.host.inventory import parse_majors
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvgraft.request.config import Config


def open_driver_root(config: Config) -> LiveTree:
    """Open the driver root as a tree.

    :raises OSError: the driver root is missing or is not a directory.
    """
    root = config.cli_root or "/"
    return open_tree_at(root, "" if root == "/" else root.rstrip("/"))


def read_majors() -> dict[str, int]:
    """Return driver name -> major number of this kernel's character devices.

    :raises OSError: there is no /proc.
    """
    return parse_majors(read_text("/proc/devices"))


def search_path(environ: Mapping[str, str], config: Config) -> str | None:
    """Return the search path for binaries, as the reference hook sets it for the CLI (reference
    behaviour 3.3).

    It is None if config.toml names the CLI and there is no PATH.
    """
    if config.cli_path:
        return _variable("PATH", environ, config)
    inherited = environ.get("PATH")
    # "".split(":") has one empty entry; Go has none if PATH is unset or empty.
    entries = inherited.split(":") if inherited else []
    entries += [entry for entry in names.DEFAULT_PATH if entry not in entries]
    root = config.cli_root
    if root and root != "/":
        entries = [root.rstrip("/") + "/" + entry.lstrip("/") for entry in entries] + entries
    return ":".join(entries)


def mps_directory(environ: Mapping[str, str], config: Config) -> str:
    """Return CUDA_MPS_PIPE_DIRECTORY from the environment, then from config.toml as the reference
    CLI, or "".
    """
    return _variable(names.MPS_DIRECTORY, environ, config) or ""


def _variable(name: str, environ: Mapping[str, str], config: Config) -> str | None:
    """Return a variable of the reference CLI's environment: config.toml's entries are appended, the
    first one counts.
    """
    if name in environ:
        return environ[name]
    for entry in config.cli_environment:
        key, _, value = entry.partition("=")
        if key == name:
            return value
    return None
