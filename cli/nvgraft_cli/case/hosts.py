"""The host's side of a question: a recorded host, one of the gallery, or this very machine, with its configuration.

What a container would get from it is planning's business.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.base.files import open_file
from nvgraft.host.components import Host, Inventory
from nvgraft.host.inventory import read_inventory
from nvgraft.host.kept_inventory import read_host
from nvgraft.host.live import mps_directory, search_path
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config, load_config, read_config_file
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs import gallery


def read_snapshot(name: str) -> dict[str, Any]:
    """Return the checked ``nvgraft.host/1`` document of a file, or of a gallery host.

    :raises InputError: when there is none, or it is no such document.
    """
    from nvgraft_specs.models import (  # pydantic: not for a command that reads no document
        DocumentError,
        read_bytes,
    )
    from nvgraft_specs.models.host import parse_host

    path = gallery.path(name) if name in gallery.names() else name
    try:
        raw = read_bytes(path)
        parse_host(raw, path)
    except DocumentError as error:
        raise InputError(str(error)) from error
    document: dict[str, Any] = json.loads(raw)
    return document


class HostSide:
    """A host as a plan sees it; what is expensive is read once, when it is asked for.

    :param label: how people call it: the name or path that they gave, or the host's own name.
    :param document: the ``nvgraft.host/1`` document; None for this machine.
    """

    def __init__(self, label: str, config: Config, document: dict[str, Any] | None) -> None:
        self.label = label
        self.config = config
        self.document = document
        self._refusal: Refusal | None = None

    def ask(self) -> None:
        """Look at the host now; if it refuses, that is told when the host is needed."""
        try:
            self.facts  # noqa: B018 - read once, kept
        except Refusal as refusal:
            self._refusal = refusal

    @cached_property
    def settings(self) -> Settings:
        """What the configuration adds to a plan."""
        return Settings.from_config(self.config)

    @cached_property
    def facts(self) -> Host:
        """What the host shows of itself: its files, its loader cache, and what its driver says.

        :raises nvgraft.base.errors.Refusal: when this machine has no driver that answers.
        """
        if self._refusal is not None:
            raise self._refusal
        return (
            read_host(self.config, keep=False)
            if self.document is None
            else snapshot_host(self.document)
        )

    @cached_property
    def isa_level(self) -> str | None:
        """The level of the host's x86-64 processor, such as x86-64-v3; None: it is another one, or not recorded."""
        if self.document is None:
            from nvgraft_cli.case.processor import read_isa_level

            return read_isa_level()
        level: str | None = self.document.get("isa_level")
        return level

    @cached_property
    def inventory(self) -> Inventory:
        """What the host has.

        :raises nvgraft.base.errors.Refusal: as :func:`nvgraft.host.inventory.read_inventory`.
        """
        if self.document is None:
            return read_inventory(
                self.facts,
                search_path(os.environ, self.config),
                mps_directory(os.environ, self.config),
            )
        return read_inventory(self.facts, OFFLINE_PATH)


#: config.toml's path -> this machine, or the complaint about that file: what :func:`ask_first` has found.
_this_machine: dict[str | None, HostSide | Refusal] = {}


def ask_first(args: argparse.Namespace) -> None:
    """``open_first`` of a command with the options --host and --config: without --host the driver is asked now, since its
    library, which is the host's own, needs rights that a confined command does not have (:mod:`nvgraft_cli.shell.confine`)."""
    if args.host is None:
        try:
            side = open_host(None, args.config)
        except Refusal as refusal:
            _this_machine[args.config] = refusal
            return
        side.ask()
        _this_machine[args.config] = side


def open_host(name: str | None, config_path: str | None) -> HostSide:
    """Return a host: a snapshot's path, a gallery name, or None for this machine.

    :param config_path: config.toml; None for the hook's own, and for the built-in defaults with a snapshot.
    :raises InputError: for inputs that cannot be used.
    :raises nvgraft.base.errors.Refusal: the hook's own complaint about its own config.toml.
    """
    asked = _this_machine.get(config_path) if name is None else None
    if isinstance(asked, Refusal):
        raise asked
    if asked is not None:
        return asked
    document = None if name is None else read_snapshot(name)
    return HostSide(name or os.uname().nodename, _configuration(config_path, document), document)


def read_configuration(
    path: str | None, load: Callable[[str | None, Mapping[str, str]], Config] = load_config
) -> Config:
    """Return the configuration in the file ``path``, or the hook's own.

    :param load: reads it.
    :raises InputError: when the file that was named cannot be read, or is no TOML.
    :raises nvgraft.base.errors.Refusal: the hook's own complaint about its own file, or about what a file says: that is an answer.
    """
    try:
        return load(path, os.environ)
    except Refusal as refusal:
        if path is None or _is_toml(path):
            raise
        raise InputError(f"{path}: {refusal.text} | {refusal.hint}") from refusal


def _is_toml(path: str) -> bool:
    import tomllib

    try:
        tomllib.loads((read_config_file(path, True, open_file) or b"").decode())
    except (Refusal, ValueError):
        return False
    return True


def _configuration(path: str | None, document: dict[str, Any] | None) -> Config:
    """Return the configuration for a plan. A recorded host without a named config.toml gets the defaults, and its own root.

    :raises InputError: when the file cannot be used, or names another driver root than the snapshot.
    """
    if document is None:
        return read_configuration(path)
    if path is None:
        return Config(cli_root="" if document["root"] == "/" else document["root"])
    config = read_configuration(path)
    if (config.cli_root.rstrip("/") or "/") != (document["root"].rstrip("/") or "/"):
        fix = f'set root = "{document["root"]}" in [nvidia-container-cli], or use a snapshot of that root'
        raise InputError(
            f"{path}: its driver root is {config.cli_root or '/'}, the snapshot's is {document['root']} | {fix}"
        )
    return config
