"""Read the host of a case, with its config.toml: a snapshot, a gallery host, or this machine."""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.base.files import open_file
from nvgraft.cdi import platform
from nvgraft.host.components import Devices, Host, Inventory
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.inventory import read_inventory
from nvgraft.host.places import mps_directory, search_path
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config, config_path, load_config, read_config_file
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import SIMULATED_DOCUMENT, is_simulated_host
from nvgraft_specs import gallery
from nvgraft_specs.documents import DocumentError, read_bytes


def read_snapshot(name: str) -> dict[str, Any]:
    """Return the validated ``nvgraft.host/1`` document of a file or of a gallery host.

    :raises InputError: there is no such file, or it is not such a document.
    """
    path = gallery.path(name) if name in gallery.names() else name
    try:
        raw = read_bytes(path)
        if not gallery.is_shipped(name, raw):
            # Imported here: pydantic takes longer to load than a plan, and the gallery is checked.
            from nvgraft_specs.models.host import parse_host

            parse_host(raw, path)
    except DocumentError as error:
        if not os.path.lexists(path) and "/" not in name:
            raise no_such_host(name, "the path of a host document") from error
        raise InputError(str(error)) from error
    logs.debug("read", host=path, bytes=len(raw))
    document: dict[str, Any] = json.loads(raw)
    return document


def no_such_host(name: str, path: str) -> InputError:
    """Return the error for a name that is none of a host or a file.

    :param path: what can be named in its place.
    """
    from nvgraft_cli.shell.parser import nearest

    return InputError(
        f"there is no simulated host and no file {name!r}{nearest(name, gallery.names())}"
        f" | name a host of `nvgraft simulate --list`, or {path}"
    )


class HostSide:
    """A host that is to be planned for. Each part is read once, when it is first asked for.

    :param label: the name or path that the user gave, or the host's own name.
    :param document: the ``nvgraft.host/1`` document; None for this machine.
    :param config_file: the file that ``config`` is read from; "" if there is none.
    """

    def __init__(
        self,
        label: str,
        config: Config,
        document: dict[str, Any] | None,
        config_file: str = "",
    ) -> None:
        self.label = label
        self.config = config
        self.document = document
        self.config_file = config_file
        self._refusal: Refusal | None = None

    def ask(self) -> None:
        """Read the host now. A refusal is kept, and raised when the host is used."""
        try:
            self.facts  # noqa: B018 - read once, kept
        except Refusal as refusal:
            self._refusal = refusal

    @property
    def starts_here(self) -> bool:
        """Whether containers of this host start on this machine: it is this machine, or a host of
        the gallery, which can be simulated here alone. Of other documents that is not known.
        """
        return (
            self.document is None
            or self.label in gallery.names()
            or _is_simulated_here(self.document)
        )

    @property
    def configured_mode(self) -> str:
        """The runtime's mode by config.toml, and where that is written, for people."""
        mode = f'mode = "{self.config.runtime_mode}"'
        if self.config_file:
            return f"{mode} ({self.config_file})"
        if self.document is None:
            return f"{mode} (the default: this machine has no config.toml)"
        return f"{mode} (the default: a recorded host has no config.toml; --config names one)"

    @cached_property
    def settings(self) -> Settings:
        """The settings of config.toml for the planner."""
        return Settings.from_config(self.config)

    @cached_property
    def facts(self) -> Host:
        """The host: its files, its loader cache, and the answers of its driver.

        :raises nvgraft.base.errors.Refusal: this machine has no working driver.
        """
        if self._refusal is not None:
            raise self._refusal
        if self.document is not None:
            return snapshot_host(self.document)
        from nvgraft.host.kept_inventory import read_host

        host = read_host(self.config, keep=False)
        logs.debug("read", host="this machine", inventory=host.origin)
        return host

    @cached_property
    def finder(self) -> FileFinder:
        """Finds files of a recorded host by their names, and remembers them."""
        return FileFinder(self.facts.tree, self.facts.machine, lambda: self.facts.entries)

    @property
    def gpus_known(self) -> bool:
        """Tell whether the host's GPUs are known; not if only a driver's files were recorded."""
        return self.document is None or not self.document.get("without_gpus", False)

    def require_gpus(self) -> None:
        """Check that the host's GPUs are known, for an answer that consists of them.

        :raises InputError: only a driver's files were recorded.
        """
        if not self.gpus_known:
            raise InputError(
                f"{self.label}: this document has no GPUs | record it with the GPUs of a host:"
                " nvgraft snapshot --root DIR --gpus HOST"
            )

    @cached_property
    def platform(self) -> str:
        """The kind of the host, see :mod:`nvgraft.cdi.platform`.

        :raises OSError: the driver root is missing.
        """
        if self.document is not None:
            return self._platform(self.finder)
        from nvgraft.host.live import file_finder

        finder = file_finder(self.config)
        try:
            return self._platform(finder)
        finally:
            finder.tree.close()

    def _platform(self, finder: FileFinder) -> str:
        return platform.platform(finder, lambda: [gpu.model for gpu in self.facts.report.gpus])

    @cached_property
    def isa_level(self) -> str | None:
        """The level of the host's x86-64 processor, such as x86-64-v3; None if other or not
        recorded.
        """
        if self.document is None:
            from nvgraft_cli.case.processor import read_isa_level

            return read_isa_level()
        level: str | None = self.document.get("isa_level")
        return level

    @cached_property
    def inventory(self) -> Inventory:
        """The inventory of the host.

        :raises nvgraft.base.errors.Refusal: as :func:`nvgraft.host.inventory.read_inventory`.
        """
        if self.document is None:
            inventory = read_inventory(
                self.facts,
                search_path(os.environ, self.config),
                mps_directory(os.environ, self.config),
            )
        else:
            inventory = read_inventory(self.facts, OFFLINE_PATH)
            if not self.gpus_known:
                inventory.devices = Devices(control=(), gpus=(), imex_channels=())
        for row in inventory.files.missing:
            logs.debug("skipped", name=row.name, reason="not on this host")
        return inventory


#: Path of config.toml -> this machine, or the refusal of that file; filled by :func:`ask_first`.
_this_machine: dict[str | None, HostSide | Refusal] = {}


def ask_first(args: argparse.Namespace) -> None:
    """Ask this machine's driver, unless --host is given, before the command is confined.

    This is the ``open_first`` of commands with --host and --config: the driver's library needs
    rights that a confined command does not have (:mod:`nvgraft_cli.shell.confine`).
    """
    if args.host is None:
        try:
            side = open_host(None, args.config)
        except Refusal as refusal:
            _this_machine[args.config] = refusal
            return
        side.ask()
        _this_machine[args.config] = side


def open_host(name: str | None, path: str | None) -> HostSide:
    """Return the host of a snapshot's path or a gallery name; this machine for None.

    :param path: config.toml; None stands for the hook's own, or with a snapshot for the defaults,
        unless this machine simulates that very host.
    :raises InputError: the snapshot or config.toml cannot be used.
    :raises nvgraft.base.errors.Refusal: the hook would refuse its own config.toml.
    """
    asked = _this_machine.get(path) if name is None else None
    if isinstance(asked, Refusal):
        raise asked
    if asked is not None:
        return asked
    document = None if name is None else read_snapshot(name)
    if path is None and document is not None and _is_simulated_here(document):
        logs.debug("read", config="this machine's, which simulates the host")
        return HostSide(str(name), read_configuration(None), document, _own_config_file())
    config = _configuration(path, document)
    file = path or ("" if document is not None else _own_config_file())
    return HostSide(name or os.uname().nodename, config, document, file)


def _is_simulated_here(document: dict[str, Any]) -> bool:
    """Tell whether this machine is the simulated host of a document."""
    if not is_simulated_host():
        return False
    try:
        return bool(json.loads(read_bytes(SIMULATED_DOCUMENT)) == document)
    except (DocumentError, ValueError):
        return False


def _own_config_file() -> str:
    """Return the path of the hook's own config.toml, or "" if there is none."""
    path, _ = config_path(None, os.environ)
    return path if os.path.exists(path) else ""


def read_configuration(
    path: str | None, load: Callable[[str | None, Mapping[str, str]], Config] = load_config
) -> Config:
    """Return the configuration in the file ``path``, or the hook's own for None.

    :param load: reads the file.
    :raises InputError: the named file cannot be read, or is not TOML.
    :raises nvgraft.base.errors.Refusal: the hook would refuse the file.
    """
    try:
        config = load(path, os.environ)
        logs.debug("read", config=path or "the hook's own config.toml, or the defaults")
        return config
    except Refusal as refusal:
        if path is None or _is_toml(path):
            raise
        raise InputError(f"{path}: {refusal.text} | {refusal.hint}") from refusal


def _is_toml(path: str) -> bool:
    from nvgraft.base import tomltext

    try:
        tomltext.loads((read_config_file(path, True, open_file) or b"").decode())
    except (Refusal, ValueError):
        return False
    return True


def _configuration(path: str | None, document: dict[str, Any] | None) -> Config:
    """Return the configuration for a plan; for a snapshot without config.toml the defaults with its
    root.

    :raises InputError: the file cannot be used, or names another driver root than the snapshot.
    """
    if document is None:
        return read_configuration(path)
    if path is None:
        logs.debug("skipped", name="config.toml", reason="the defaults count for a recorded host")
        return Config(cli_root="" if document["root"] == "/" else document["root"])
    config = read_configuration(path)
    if (config.cli_root.rstrip("/") or "/") != (document["root"].rstrip("/") or "/"):
        fix = (
            f'set root = "{document["root"]}" in [nvidia-container-cli],'
            " or use a snapshot of that root"
        )
        raise InputError(
            f"{path}: its driver root is {config.cli_root or '/'}, the snapshot's is"
            f" {document['root']} | {fix}"
        )
    return config
