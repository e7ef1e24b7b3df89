"""The host that this program runs on, as a source of CDI devices.

The driver's report comes from the inventory that is kept between starts, if that is still valid.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import live_facts
from nvgraft.cdi.generation import CdiSource
from nvgraft.formats.tree import open_tree_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.cdi.discovery import CdiFacts
    from nvgraft.host.components import Host
    from nvgraft.request.config import Config


class LiveSource(CdiSource):
    """This machine.

    :raises OSError: the driver root is missing.
    """

    def __init__(self, config: Config, search_path: str) -> None:
        from nvgraft.host.live import file_finder

        # The descriptors are closed by the exec that follows, or at the end of this process.
        finder = file_finder(config)
        root = config.cli_root or "/"
        tree = finder.tree if root == "/" else open_tree_at("/")
        super().__init__(finder, root, tree, search_path)
        self._config = config
        self._host: Host | None = None
        self._refusal: Refusal | None = None

    def host(self) -> Host:
        if self._refusal is not None:
            raise self._refusal
        if self._host is None:
            from nvgraft.host.kept_inventory import read_host

            try:
                self._host = read_host(self._config, in_root=False)
            except Refusal as refusal:
                self._refusal = refusal
                raise
            self._keep(self._host)
        return self._host

    def _keep(self, host: Host) -> None:
        """Keep the driver's report for the next start, with the libraries that belong to it."""
        if host.keep is None:
            return
        from nvgraft.host.libraries import select_libraries

        try:
            host.keep(select_libraries(host))
        except Refusal:
            return  # a start in mode legacy says what is wrong

    def facts(self) -> CdiFacts:
        return live_facts(self.host())
