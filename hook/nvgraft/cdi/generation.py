"""Generate the edits of a container from its request and its host, as modes jit-cdi and csv do.

Nothing is written. The reference generates one specification for each kind of device (GPUs, each
gated component, IMEX channels) and applies it: first the edits of its devices, then those that they
share.

Source: the rules of modes jit-cdi and csv; reference behaviour 9.7, 10.3, 10.4, 13.
"""

from __future__ import annotations

from nvgraft.base.errors import NO_SUCH_DEVICE, Refusal
from nvgraft.base.values import Value
from nvgraft.cdi import platform
from nvgraft.cdi.classes import gated_devices
from nvgraft.cdi.discovery import Contents, Discovery
from nvgraft.cdi.edits import CdiEdits, Generated
from nvgraft.cdi.specification import edits
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nvgraft.cdi.discovery import CdiFacts, FoundDevice
    from nvgraft.cdi.specification import HookProgram
    from nvgraft.formats.tree import Tree
    from nvgraft.host.components import Host
    from nvgraft.host.graphics_files import FileFinder

#: nvcdi-feature-flags of config.toml that switches the groups of device nodes off.
NO_GROUPS = "no-additional-gids-for-device-nodes"

_CUDA_LIBRARY = "libcuda.so.1"
_GENERATORS = "failed to construct device spec generators: "
_VOID = f"{names.VISIBLE_DEVICES}={names.VOID}"


class CdiRequest(Value):
    """What a container requests of a generator.

    :param devices: ids; empty for none of the host's GPUs (gated components alone).
    :param gates: the variables of gated components.
    :param channels: IMEX channels; None if none are asked for.
    :param csv: whether the CSV files of a board name what the devices need.
    :param every_csv_file: whether all CSV files count, or the base files alone.
    :param requirements: the expressions of :mod:`nvgraft.request.requirements` that must hold; with
        ``csv`` alone.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        gates: Sequence[str] = (),
        channels: Sequence[str] | None = None,
        csv: bool = False,
        every_csv_file: bool = False,
        requirements: Sequence[str] = (),
    ) -> None:
        self.devices = tuple(devices)
        self.gates = tuple(gates)
        self.channels = None if channels is None else tuple(channels)
        self.csv = csv
        self.every_csv_file = every_csv_file
        self.requirements = tuple(requirements)


class CdiSettings(Value):
    """The settings of config.toml that a generator heeds, and the program of its hooks."""

    def __init__(
        self,
        program: HookProgram,
        *,
        csv_directory: str,
        compat_root: str = "",
        features: Sequence[str] = (),
        disabled_hooks: Sequence[str] = (),
        groups: bool = True,
    ) -> None:
        self.program = program
        self.csv_directory = csv_directory
        self.compat_root = compat_root
        self.features = tuple(features)
        self.disabled_hooks = tuple(disabled_hooks)
        self.groups = groups and NO_GROUPS not in features


class CdiSource:
    """A host, live or recorded, of which only what is needed is read.

    A subclass for a live host overrides the methods that read.

    :param root: the driver root.
    :param host_tree: the host's own root.
    """

    def __init__(self, finder: FileFinder, root: str, host_tree: Tree, search_path: str) -> None:
        self.finder = finder
        self.root = root
        self.host_tree = host_tree
        self.search_path = search_path

    def host(self) -> Host:
        """Return the host with the driver's report.

        :raises Refusal: stage ``initialization``: there is no NVML, or it reports an error.
        """
        raise NotImplementedError

    def facts(self) -> CdiFacts | None:
        """Return the facts that are no files of the driver root, or None if they are unknown."""
        raise NotImplementedError

    def platform(self) -> str:
        """Return the kind of this host, see :mod:`nvgraft.cdi.platform`."""
        return platform.platform(
            self.finder, lambda: [gpu.model for gpu in self.host().report.gpus]
        )


def generate(source: CdiSource, request: CdiRequest, settings: CdiSettings) -> Generated:
    """Return the edits for a container.

    :raises Refusal: an id names nothing, or the host lacks what is needed; in the reference's
        words.
    """
    generator = _Generator(source, settings)
    parts: list[Contents] = []
    if request.csv:
        generator.check_requirements(request.requirements)
        parts += _in_mode("csv", lambda: generator.csv(request))
    elif request.devices:
        parts += _in_mode("auto", lambda: generator.automatic(request))
    for gate in request.gates:
        parts += generator.gated(gate)
    if request.channels is not None:
        channels = request.channels
        parts += _in_mode("imex", lambda: generator.imex(channels))
    return Generated(_applied(parts, settings), generator.log)


def _in_mode(mode: str, work: Callable[[], list[Contents]]) -> list[Contents]:
    """Do a part of the work; name its mode in a refusal, as the reference does."""
    try:
        return work()
    except Refusal as refusal:
        text = f'failed to generate CDI spec for mode "{mode}": {refusal.text}'
        raise refusal.in_words(text) from None


def _applied(parts: Iterable[Contents], settings: CdiSettings) -> list[CdiEdits]:
    """Return the contents as edits; with hooks that one process takes, all of them at the end."""
    kept = [part.without_steps(settings.disabled_hooks) for part in parts]
    program = settings.program
    if not program.together:
        return [edits(part, program, groups=settings.groups) for part in kept]
    steps = [step for part in kept for step in part.steps]
    stepless = [Contents(env=part.env, nodes=part.nodes, mounts=part.mounts) for part in kept]
    return [
        *(edits(part, program, groups=settings.groups) for part in stepless),
        CdiEdits(hooks=program.hooks(steps)),
    ]


class _Generator:
    def __init__(self, source: CdiSource, settings: CdiSettings) -> None:
        self._source = source
        self._settings = settings
        self.log: list[tuple[str, str]] = []

    def automatic(self, request: CdiRequest) -> list[Contents]:
        """Return what devices need, in the manner of this host's platform."""
        kind = self._source.platform()
        self.log.append(("info", f"Auto-detected mode as '{_MODES[kind]}'"))
        if kind == platform.TEGRA:
            return self.csv(request)
        if kind == platform.WSL:
            from nvgraft.cdi.selection import EMPTY_DEVICE
            from nvgraft.cdi.wsl import discover_wsl

            found = discover_wsl(self._source.finder, self._source.root)
            if names.NONE in request.devices:
                return [Contents(env=[EMPTY_DEVICE]), found.common]
            return [*(device.contents for device in found.devices), found.common]
        return self._nvml(request.devices)

    def _nvml(self, ids: Sequence[str]) -> list[Contents]:
        from nvgraft.cdi.selection import select

        try:
            host = self._source.host()
        except Refusal as refusal:
            raise _no_nvml(refusal) from None
        discovery = self._discovery(host)
        try:
            devices = select(discovery, host.report.gpus, ids)
        except Refusal as refusal:
            raise refusal.in_words(f"{_GENERATORS}{refusal.text}") from None
        for device in devices:
            _check_capabilities(device)
            for path in device.absent:
                hint = "the container starts without it: run nvidia-smi on the host to make it"
                self.log.append(("warning", f"Could not locate {path} of {device.uuid} | {hint}"))
        self.log.append(("info", f"Using driver version {host.report.driver_version}"))
        return [*(device.contents for device in devices), discovery.common()]

    def _discovery(self, host: Host) -> Discovery:
        source = self._source
        return Discovery(
            host,
            source.search_path,
            source.facts(),
            source.finder,
            self._settings.features,
            source.host_tree,
        )

    def check_requirements(self, requirements: Sequence[str]) -> None:
        """Check an image's requirements, as mode csv alone does.

        The reference asks libcuda for its version, by loading it. Here NVML's answer counts; where
        there is none the requirements are not checked, unless there is no libcuda either.

        :raises Refusal: one does not hold.
        """
        expressions = [text for text in requirements if text.strip()]
        if not expressions:
            return
        host = self._host_or_none()
        if host is None:
            if self._source.finder.libraries(_CUDA_LIBRARY):
                line = "requirements are not checked: without NVML the CUDA version is unknown"
                self.log.append(("warning", f"{line} | set NVIDIA_DISABLE_REQUIRE=1"))
                return
            text = "requirements not met: invalid value for cuda: invalid semantic version"
            hint = "this host has no libcuda: install the driver, or set NVIDIA_DISABLE_REQUIRE=1"
            raise Refusal("", text, hint)
        from nvgraft.request.requirements import check

        report = host.report
        try:
            check(expressions, "", report.cuda_version, [(gpu.arch, "") for gpu in report.gpus[:1]])
        except Refusal as refusal:
            raise refusal.in_words(f"requirements not met: {refusal.text}") from None

    def csv(self, request: CdiRequest) -> list[Contents]:
        """Return what the devices of a Tegra board need."""
        from nvgraft.cdi.tegra import ONE_DEVICE, TegraDiscovery, read_csv_files

        source, settings = self._source, self._settings
        host = self._host_or_none()
        report = host.report if host is not None else None
        board = TegraDiscovery(
            read_csv_files(source.host_tree, settings.csv_directory, every=request.every_csv_file),
            source.finder,
            source.root,
            source.host_tree,
            report,
            settings.compat_root,
        )
        ids = request.devices
        if host is not None and len(host.report.gpus) > 1 and ONE_DEVICE not in settings.features:
            mixed = board.mixed(ids or [names.ALL], self._discovery(host))
            if mixed is not None:
                return [*(device.contents for device in mixed), board.common()]
            self.log.append(("warning", "falling back to pure CSV implementation"))
        for device in ids:
            if device not in ("0", names.ALL):
                text = (
                    f"failed to construct device spec generators: unsupported device id: {device}"
                )
                hint = "a Tegra board has one device: request 0 or all"
                if device == "tegra":
                    hint += " (--device-id-strategy=index of the device plugin)"
                raise Refusal("", text, hint, kind=NO_SUCH_DEVICE)
        found = board.discover()
        return [*(device.contents for device in found.devices), found.common]

    def _host_or_none(self) -> Host | None:
        """Return the host, or None where there is no NVML or it fails: a board works without."""
        if not self._source.finder.libraries(platform.NVML_LIBRARY):
            return None
        try:
            return self._source.host()
        except Refusal as refusal:
            self.log.append(("warning", f"NVML is not used: {refusal.text}"))
            return None

    def gated(self, gate: str) -> list[Contents]:
        """Return what a gated component needs."""
        found = gated_devices(self._source.finder, self._source.root, gate)
        return [*found.devices.values(), found.common]

    def imex(self, channels: Sequence[str]) -> list[Contents]:
        """Return what IMEX channels need."""
        from nvgraft.cdi.channels import channel_contents

        return [*channel_contents(self._source.finder, channels), Contents(env=[_VOID])]


def _check_capabilities(device: FoundDevice) -> None:
    """Check that the driver has named the capabilities of a MIG device.

    :raises Refusal: it has not, so nobody knows their nodes.
    """
    for absent in device.absent:
        if not absent.startswith("/"):
            raise Refusal(
                "",
                "failed to get CDI device edits: failed to create device discoverer: error getting"
                " MIG capability device paths: <nil>",
                f"{device.uuid}: /proc/driver/nvidia-caps/mig-minors has no row"
                f" {absent.removeprefix('for ')}: reload the"
                " nvidia kernel module",
            )


_MODES = {platform.NVML: "nvml", platform.TEGRA: "csv", platform.WSL: "wsl"}


def _no_nvml(refusal: Refusal) -> Refusal:
    """Return the refusal for a host whose driver does not answer, in the generator's words."""
    if refusal.stage != "initialization":
        return refusal
    text = refusal.text.removeprefix("nvml error: ")
    text = text[:1].upper() + text[1:]
    if refusal.text.startswith("load library failed"):
        text = "ERROR_LIBRARY_NOT_FOUND"
    return refusal.in_words(f"{_GENERATORS}failed to initialize NVML: {text}")
