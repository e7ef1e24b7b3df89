"""What the rewrite of a config.json asks the host, which is live or recorded.

Nothing is read, and no module that reads is loaded, before something is asked.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.cdi.edits import Generated
    from nvgraft.cdi.generation import CdiRequest, CdiSource
    from nvgraft.cdi.specification import HookProgram
    from nvgraft.request.config import Config
    from nvgraft.wrapper.additions import Additions


class HostLook:
    """A host. Each method reads what it needs."""

    def get_ready(self) -> None:
        """Load what generated devices need, in one piece. It is called before their modules are
        loaded, and only makes a start faster.
        """

    def platform(self) -> str:
        """Return the kind of the host, see :mod:`nvgraft.cdi.platform`."""
        raise NotImplementedError

    def additions(self, gates: Sequence[str], devices: Sequence[str] | None) -> Additions:
        """Return what a container gets besides the hook in mode legacy.

        :param gates: variables of gated components.
        :param devices: device ids for graphics; None if it is not requested.
        """
        raise NotImplementedError

    def generated(self, request: CdiRequest) -> Generated:
        """Return the edits for devices that no specification names."""
        raise NotImplementedError

    def registered(self, devices: Sequence[str]) -> Generated:
        """Return the edits of devices by their qualified names in the directories of
        specifications.
        """
        raise NotImplementedError


class SourceLook(HostLook):
    """A host whose CDI devices come from a :class:`nvgraft.cdi.generation.CdiSource`.

    :param program: returns the program of the hooks.
    """

    def __init__(self, config: Config, program: Callable[[], HookProgram]) -> None:
        self._config = config
        self._program = program
        self._opened: CdiSource | None = None

    def open_source(self) -> CdiSource:
        """Open the host.

        :raises OSError: the driver root is missing.
        """
        raise NotImplementedError

    def _source(self) -> CdiSource:
        if self._opened is None:
            from nvgraft.base.errors import Refusal
            from nvgraft.base.files import reason

            root = self._config.cli_root or "/"
            try:
                self._opened = self.open_source()
            except OSError as error:
                text = f"failed to open the driver root {root}: {reason(error)}"
                raise Refusal("", text, "set root in config.toml to the driver root") from None
        return self._opened

    def platform(self) -> str:
        return self._source().platform()

    def generated(self, request: CdiRequest) -> Generated:
        from nvgraft.cdi.generation import CdiSettings, generate

        config = self._config
        settings = CdiSettings(
            self._program(),
            csv_directory=config.runtime_csv_mount_spec_path,
            compat_root=config.runtime_csv_compat_container_root,
            features=config.runtime_jit_cdi_nvcdi_feature_flags,
            disabled_hooks=config.runtime_jit_cdi_nvcdi_disable_hooks,
            groups=not config.features_no_additional_gids_for_device_nodes,
        )
        return generate(self._source(), request, settings)


class LiveLook(SourceLook):
    """This machine.

    :param search_path: the directories of binaries.
    :param load_modules: loads a group of modules in one piece, see :mod:`nvgraft.startup`.
    """

    def __init__(
        self,
        config: Config,
        program: Callable[[], HookProgram],
        search_path: Sequence[str],
        load_modules: Callable[[str], None],
    ) -> None:
        super().__init__(config, program)
        self._search_path = search_path
        self._load_modules = load_modules

    def get_ready(self) -> None:
        self._load_modules("devices")

    def open_source(self) -> CdiSource:
        from nvgraft.cdi.live_source import LiveSource

        return LiveSource(self._config, ":".join(self._search_path))

    def additions(self, gates: Sequence[str], devices: Sequence[str] | None) -> Additions:
        from nvgraft.wrapper.additions import look_at_host

        return look_at_host(self._config, self._search_path, gates, devices)

    def registered(self, devices: Sequence[str]) -> Generated:
        self._load_modules("specifications")
        from nvgraft.cdi.injection import inject

        return inject(self._config.runtime_cdi_spec_dirs, devices)
