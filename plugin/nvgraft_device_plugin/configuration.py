"""What the plugin is asked to do: flags, variables and the config file, in this order of
precedence, then defaults (rules of the reference, version 0.20).
"""

import contextlib
import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pydantic

from nvgraft_device_plugin.errors import ConfigurationError
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.yaml_text import load_yaml

VENDOR_PREFIX = "nvidia.com/"
GPU_RESOURCE = "nvidia.com/gpu"

STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
CDI_STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})

#: The most bytes of a config file, and characters of a resource's name behind the prefix.
_FILE_LIMIT = 1 << 20
_NAME_LIMIT = 63

#: The most seconds that a flag takes: a day.
_LONGEST = 86400.0


class Flag(NamedTuple):
    """One flag: its names, variables, its place in the config file, and its kind."""

    names: tuple[str, ...]
    variables: tuple[str, ...]
    key: str
    kind: str
    default: Any
    summary: str


#: Kind "list" takes commas and may be repeated; "seconds" is a number from 0. A key with
#: ``plugin.`` is in that part of the file.
FLAGS = (
    Flag(
        ("mig-strategy",),
        ("MIG_STRATEGY",),
        "migStrategy",
        "text",
        "none",
        "none, single, mixed",
    ),
    Flag(
        ("fail-on-init-error",),
        ("FAIL_ON_INIT_ERROR",),
        "failOnInitError",
        "switch",
        True,
        "end if NVML does not work; otherwise wait",
    ),
    Flag(
        (
            "driver-root",
            "nvidia-driver-root",
        ),
        ("NVIDIA_DRIVER_ROOT",),
        "nvidiaDriverRoot",
        "text",
        "/",
        "the driver root on the host",
    ),
    Flag(
        (
            "dev-root",
            "nvidia-dev-root",
        ),
        ("NVIDIA_DEV_ROOT",),
        "nvidiaDevRoot",
        "text",
        "",
        "the root of device nodes on the host (default: the driver root)",
    ),
    Flag(
        ("pass-device-specs",),
        ("PASS_DEVICE_SPECS",),
        "plugin.passDeviceSpecs",
        "switch",
        False,
        "name device nodes to the kubelet (for the CPU manager)",
    ),
    Flag(
        ("device-list-strategy",),
        ("DEVICE_LIST_STRATEGY",),
        "plugin.deviceListStrategy",
        "list",
        ("envvar",),
        "how devices are handed on: envvar, volume-mounts, cdi-annotations, cdi-cri",
    ),
    Flag(
        ("device-id-strategy",),
        ("DEVICE_ID_STRATEGY",),
        "plugin.deviceIDStrategy",
        "text",
        "uuid",
        "uuid, index",
    ),
    Flag(
        ("gdrcopy-enabled",),
        ("GDRCOPY_ENABLED",),
        "gdrcopyEnabled",
        "switch",
        False,
        "give containers GDRCopy",
    ),
    Flag(
        ("gds-enabled",),
        ("GDS_ENABLED",),
        "gdsEnabled",
        "switch",
        False,
        "give containers GPUDirect Storage",
    ),
    Flag(
        ("mofed-enabled",),
        ("MOFED_ENABLED",),
        "mofedEnabled",
        "switch",
        False,
        "give containers MOFED",
    ),
    Flag(
        ("cdi-annotation-prefix",),
        ("CDI_ANNOTATION_PREFIX",),
        "plugin.cdiAnnotationPrefix",
        "text",
        "cdi.k8s.io/",
        "what CDI annotations begin with",
    ),
    Flag(
        (
            "nvidia-cdi-hook-path",
            "nvidia-ctk-path",
        ),
        (
            "NVIDIA_CDI_HOOK_PATH",
            "NVIDIA_CTK_PATH",
        ),
        "plugin.nvidiaCTKPath",
        "text",
        "/usr/bin/nvidia-ctk",
        "the hook program in CDI specifications, on the host",
    ),
    Flag(
        (
            "driver-root-ctr-path",
            "container-driver-root",
        ),
        (
            "DRIVER_ROOT_CTR_PATH",
            "CONTAINER_DRIVER_ROOT",
        ),
        "plugin.containerDriverRoot",
        "text",
        "/driver-root",
        "where this process sees the driver root",
    ),
    Flag(
        ("mps-root",),
        ("MPS_ROOT",),
        "mpsRoot",
        "text",
        "",
        "the directory of MPS on the host",
    ),
    Flag(
        ("shared-devices-allocation-policy",),
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        "plugin.sharedDevicesAllocationPolicy",
        "text",
        "distributed",
        "distributed, packed",
    ),
    Flag(
        ("device-discovery-strategy",),
        ("DEVICE_DISCOVERY_STRATEGY",),
        "deviceDiscoveryStrategy",
        "text",
        "auto",
        "auto, nvml, tegra",
    ),
    Flag(
        ("imex-channel-ids",),
        ("IMEX_CHANNEL_IDS",),
        "imex.channelIDs",
        "list",
        (),
        "none, or 0",
    ),
    Flag(
        ("imex-required",),
        ("IMEX_REQUIRED",),
        "imex.required",
        "switch",
        False,
        "end if the IMEX channel is missing",
    ),
    Flag(
        ("host",),
        ("NVGRAFT_HOST",),
        "",
        "text",
        "",
        "serve a recorded host: a name of `nvgraft simulate --list`, or a host document",
    ),
    Flag(
        ("kubelet-socket",),
        ("KUBELET_SOCKET",),
        "",
        "text",
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "the kubelet's socket; empty: do not register",
    ),
    Flag(
        ("metrics-address",),
        ("METRICS_ADDRESS",),
        "plugin.metricsAddress",
        "text",
        "127.0.0.1:9402",
        "HOST:PORT of /metrics and /healthz; off",
    ),
    Flag(
        ("probe-after",),
        ("PROBE_AFTER",),
        "plugin.probeAfter",
        "seconds",
        60.0,
        "seconds after which an unhealthy GPU is asked, and is healthy if it answers; 0: never",
    ),
    Flag(
        ("config-file",),
        ("CONFIG_FILE",),
        "",
        "text",
        "",
        "a config file, YAML or JSON, version v1",
    ),
    Flag(
        ("cdi-feature-flags",),
        ("CDI_FEATURE_FLAGS",),
        "",
        "list",
        (),
        "features of CDI specifications",
    ),
    Flag(
        ("cdi-disable-hooks",),
        ("CDI_DISABLE_HOOKS",),
        "",
        "list",
        (),
        "hooks that CDI specifications lack; all",
    ),
)

#: The flags of ``labels``.
LABEL_FLAGS = (
    *FLAGS,
    Flag(
        ("output-file", "output", "o"),
        ("GFD_OUTPUT_FILE",),
        "gfd.outputFile",
        "text",
        "",
        "write the labels to this file for node feature discovery, again and again, and remove it"
        " at the end; default: print them",
    ),
    Flag(
        ("oneshot",),
        ("GFD_ONESHOT",),
        "gfd.oneshot",
        "switch",
        False,
        "write the file once",
    ),
    Flag(
        ("sleep-interval",),
        ("GFD_SLEEP_INTERVAL",),
        "gfd.sleepInterval",
        "text",
        "60s",
        "the time between two times",
    ),
    Flag(
        ("no-timestamp",),
        ("GFD_NO_TIMESTAMP",),
        "gfd.noTimestamp",
        "switch",
        False,
        "leave out nvidia.com/gfd.timestamp",
    ),
    Flag(
        ("machine-type-file",),
        ("GFD_MACHINE_TYPE_FILE",),
        "gfd.machineTypeFile",
        "text",
        "/sys/class/dmi/id/product_name",
        "a file with the machine's type; a recorded host has none",
    ),
)

_EXPECTED = {
    "text": "a text, in quotes",
    "list": "a text or a list of texts",
    "switch": "true or false",
    "seconds": "a number of seconds",
}
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class _Loose(pydantic.BaseModel):
    """A part of the config file. Like the reference, unknown keys are ignored."""

    model_config = pydantic.ConfigDict(extra="ignore", strict=True)


class _ResourcePattern(_Loose):
    pattern: str = ""
    name: str = ""


class _Resources(_Loose):
    gpus: list[_ResourcePattern] = []
    mig: list[_ResourcePattern] = []


class SharedResource(_Loose):
    """How the devices of one resource are shared: each becomes ``replicas`` devices."""

    name: str = ""
    replicas: int | None = None
    rename: str = ""
    devices: Any = "all"


class Sharing(_Loose):
    """``timeSlicing`` or ``mps`` of a config file."""

    renameByDefault: bool = False
    failRequestsGreaterThanOne: bool | None = None
    resources: list[SharedResource] | None = None


class _SharingPart(_Loose):
    timeSlicing: Sharing | None = None
    mps: Sharing | None = None


class _Imex(_Loose):
    channelIDs: list[int] = []
    required: bool = False


class _File(_Loose):
    version: str = "v1"
    flags: dict[str, Any] | None = None
    resources: _Resources | None = None
    sharing: _SharingPart | None = None
    imex: _Imex | None = None


class Configuration(NamedTuple):
    """Everything that the plugin is asked to do.

    :ivar values: first name of a flag -> its value.
    :ivar sharing: which resources are shared; None if none is.
    :ivar mps: whether sharing is MPS's.
    :ivar warnings: what is ignored.
    """

    values: Mapping[str, Any]
    sharing: Sharing | None
    mps: bool
    warnings: tuple[str, ...]

    def text(self, name: str) -> str:
        """Return the value of a flag that takes a text."""
        return str(self.values[name])

    def switch(self, name: str) -> bool:
        """Return the value of a flag that is on or off."""
        return bool(self.values[name])

    def words(self, name: str) -> tuple[str, ...]:
        """Return the value of a flag that takes a list."""
        return tuple(str(word) for word in self.values[name])

    @property
    def strategies(self) -> frozenset[str]:
        """How devices are handed on."""
        return frozenset(self.words("device-list-strategy"))

    @property
    def uses_cdi(self) -> bool:
        """Tell whether devices are handed on by CDI names."""
        return bool(self.strategies & CDI_STRATEGIES)

    @property
    def dev_root(self) -> str:
        """The root of device nodes on the host."""
        return self.text("dev-root") or self.text("driver-root")

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host (empty: all addresses) and port of the metrics; None if they are off.

        :raises ValueError: the flag has neither.
        """
        given = self.text("metrics-address")
        if given in {"", "off"}:
            return None
        host, colon, port = given.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not (port.isascii() and port.isdecimal()) or int(port) >= 1 << 16:
            raise ValueError(given)
        if host and host != "localhost":
            ipaddress.ip_address(host)
        return host, int(port)

    @property
    def channels(self) -> tuple[str, ...]:
        """The requested IMEX channels."""
        return self.words("imex-channel-ids")

    @property
    def at_most_one(self) -> bool:
        """Tell whether a container may get one share only."""
        if self.sharing is None:
            return False
        wanted = self.sharing.failRequestsGreaterThanOne
        return self.mps if wanted is None else wanted

    def document(self) -> dict[str, Any]:
        """Return the configuration as JSON values, for the log."""
        document = {name: list(v) if isinstance(v, tuple) else v for name, v in self.values.items()}
        if self.sharing is not None:
            document["sharing"] = {"mps" if self.mps else "timeSlicing": self.sharing.model_dump()}
        return document


def parse_flags(words: Sequence[str], flags: Sequence[Flag] = FLAGS) -> dict[str, Any]:
    """Return flag -> value of a command line.

    :param flags: those that it may have.
    :raises ConfigurationError: an unknown flag, or a wrong value.
    """
    by_name = {name: flag for flag in flags for name in flag.names}
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        flag = by_name.get(name) if word.startswith("-") else None
        if flag is None:
            if word.startswith("-"):
                raise ConfigurationError(
                    f"flag provided but not defined: -{name} | --help lists the flags"
                )
            raise ConfigurationError(f"unexpected argument {word!r} | --help lists the flags")
        if not equals:
            if flag.kind == "switch":
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise ConfigurationError(f"flag needs an argument: -{name} | write --{name}=VALUE")
        read = _value(flag, value, f"--{name}")
        key = flag.names[0]
        given[key] = (*given.get(key, ()), *read) if flag.kind == "list" else read
    return given


def _value(flag: Flag, text: str, source: str) -> Any:
    if flag.kind == "switch":
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise ConfigurationError(
            f"invalid boolean value {text!r} for {source} | write true or false"
        )
    if flag.kind == "list":
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if flag.kind == "seconds":
        return _seconds(text, source)
    return text


def _seconds(text: str, source: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < _LONGEST:
            return float(text)
    raise ConfigurationError(f"invalid number {text!r} for {source} | write seconds, such as 60")


def load(
    words: Sequence[str],
    environ: Mapping[str, str],
    read: Callable[[str], bytes] | None = None,
    flags: Sequence[Flag] = FLAGS,
) -> Configuration:
    """Return the configuration of a command line, an environment and a config file.

    :param read: reads the config file.
    :param flags: those that it may have.
    :raises ConfigurationError: something cannot be used.
    """
    given = parse_flags(words, flags)
    for flag in flags:
        for variable in flag.variables:
            if environ.get(variable, "") and flag.names[0] not in given:
                given[flag.names[0]] = _value(flag, environ[variable], variable)
    path = given.get("config-file", "")
    file = _parse_file((read or _read)(path), path) if path else _File()
    from_file = _file_flags(file, path, flags)
    values = {
        flag.names[0]: given.get(flag.names[0], from_file.get(flag.names[0], flag.default))
        for flag in flags
    }
    sharing, mps, warnings = _sharing(file)
    if file.resources is not None and (file.resources.gpus or file.resources.mig):
        warnings.append(
            "customizing the 'resources' field is not yet supported in the config: ignored"
        )
    configuration = Configuration(values, sharing, mps, tuple(warnings))
    _check_imex(configuration)
    return configuration


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_LIMIT + 1)
    except OSError as error:
        raise ConfigurationError(
            f"unable to load config: error opening config file: {path}: {error.strerror}"
            " | point --config-file at a file that this user may read"
        ) from error
    if len(data) > _FILE_LIMIT:
        raise ConfigurationError(
            f"unable to load config: {path}: larger than {_FILE_LIMIT} bytes"
            " | point --config-file at a config file of the plugin"
        )
    return data


def _parse_file(data: bytes, path: str) -> _File:
    start = f"unable to load config: {path}: "
    try:
        document = load_yaml(data, path)
    except DocumentError as error:
        cause = error.cause.removeprefix("not YAML: ")
        raise ConfigurationError(
            f"{start}yaml: unmarshal error: {cause} | correct the YAML"
        ) from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigurationError(f"{start}yaml: not a map of keys | write version: v1 first")
    document = _without_nulls(document)
    version = document.get("version", "v1")
    if version != "v1":
        raise ConfigurationError(f"{start}unknown version: {version} | write version: v1")
    try:
        file = _File.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{start}{where}: {first['msg']} | correct the key") from error
    for resource in [*(file.resources or _Resources()).gpus, *(file.resources or _Resources()).mig]:
        for key in ("pattern", "name"):
            if not getattr(resource, key):
                raise ConfigurationError(
                    f"{start}resources must have a '{key}' field set | write pattern and name"
                )
    return file


def _without_nulls(value: Any) -> Any:
    """Return a value of the file without the keys that have no value: like the reference, they
    count as left out.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _file_flags(file: _File, path: str, flags: Sequence[Flag]) -> dict[str, Any]:
    """Return flag -> value of the part ``flags`` of a config file, and of ``imex``."""
    parts: dict[str, Any] = {"": file.flags or {}}
    parts |= {name: parts[""].get(name) for name in ("plugin", "gfd")}
    values: dict[str, Any] = {}
    for flag in flags:
        part, _, key = flag.key.rpartition(".")
        source = parts.get(part)
        if flag.key and isinstance(source, dict) and key in source:
            values[flag.names[0]] = _file_value(flag, source[key], f"{path}: flags.{flag.key}")
    if file.imex is not None:
        values["imex-channel-ids"] = tuple(str(channel) for channel in file.imex.channelIDs)
        values["imex-required"] = file.imex.required
    return values


def _file_value(flag: Flag, value: object, source: str) -> Any:
    if flag.kind == "switch" and isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _value(flag, value, source)
    if flag.kind == "seconds" and isinstance(value, int | float):
        return _seconds(str(value), source)
    if flag.kind == "list" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ConfigurationError(
        f"unable to load config: {source}: invalid value {value!r} | write {_EXPECTED[flag.kind]}"
    )


def _sharing(file: _File) -> tuple[Sharing | None, bool, list[str]]:
    part = file.sharing
    if part is None or (part.mps is None and part.timeSlicing is None):
        return None, False, []
    sharing = part.mps if part.mps is not None else part.timeSlicing
    assert sharing is not None
    if not sharing.resources:
        raise ConfigurationError(
            "unable to load config: no resources specified | list name and replicas below resources"
        )
    warnings = []
    for resource in sharing.resources:
        if not resource.name:
            raise ConfigurationError(
                "unable to load config: no resource name specified | write name: nvidia.com/gpu"
            )
        resource.name = _resource_name(resource.name)
        if resource.replicas is None:
            raise ConfigurationError(
                "unable to load config: no replicas specified | write replicas: 2 or more"
            )
        if resource.replicas < 2:
            raise ConfigurationError(
                "unable to load config: number of replicas must be >= 2 | leave the resource out"
                " to give whole devices"
            )
        _check_devices(resource.devices)
        if resource.rename:
            warnings.append(
                f"Setting the 'rename' field of {resource.name} is not supported: ignored"
            )
        if resource.devices != "all":
            warnings.append(
                f"Setting the 'devices' field of {resource.name} is not supported: ignored"
            )
    return sharing, part.mps is not None, warnings


def _check_devices(devices: object) -> None:
    if isinstance(devices, str) and devices != "all":
        raise ConfigurationError(
            f"unable to load config: devices set as '{devices}' but the only valid string input is"
            " 'all' | write all, or leave devices out"
        )
    if isinstance(devices, int) and (isinstance(devices, bool) or devices <= 0):
        raise ConfigurationError(
            "unable to load config: devices set as a number must be above 0"
            " | write all, or leave devices out"
        )
    if not isinstance(devices, str | int | list):
        raise ConfigurationError(
            "unable to load config: devices must be 'all', a number or a list"
            " | write all, or leave devices out"
        )


def _resource_name(name: str) -> str:
    plain = name.removeprefix(VENDOR_PREFIX)
    allowed = plain.replace("-", "").replace(".", "").replace("_", "")
    if len(plain) > _NAME_LIMIT or not allowed.isascii() or not allowed.isalnum():
        raise ConfigurationError(
            f"unable to load config: incorrect format for resource name '{VENDOR_PREFIX}{plain}'"
            f" | write at most {_NAME_LIMIT} letters, digits, - and . behind {VENDOR_PREFIX}"
        )
    return VENDOR_PREFIX + plain


def _check_imex(configuration: Configuration) -> None:
    if configuration.channels not in {(), ("0",)}:
        found = " ".join(configuration.channels)
        raise ConfigurationError(
            f"unable to load config: channelIDs must be [] or [0]; found [{found}]"
            " | request channel 0, or none"
        )


def check(configuration: Configuration, *, has_nvml: bool) -> None:
    """Check values that exclude each other, in the reference's order.

    :param has_nvml: whether the node has an NVML that loads.
    :raises ConfigurationError: naming the first.
    """
    if not configuration.strategies:
        raise ConfigurationError(
            "invalid --device-list-strategy option: no strategy is given: containers would get no"
            f" device | name one or more of {', '.join(STRATEGIES)}, or leave it out"
        )
    for strategy in configuration.words("device-list-strategy"):
        if strategy not in STRATEGIES:
            raise ConfigurationError(
                f"invalid --device-list-strategy option: invalid strategy: {strategy}"
                f" | name one or more of {', '.join(STRATEGIES)}"
            )
    if configuration.uses_cdi and not has_nvml:
        raise ConfigurationError(
            "CDI --device-list-strategy options are only supported on NVML-based systems"
            " | use envvar or volume-mounts, or mount the driver root at the path of"
            " --driver-root-ctr-path"
        )
    if configuration.text("device-id-strategy") not in {"uuid", "index"}:
        raise ConfigurationError(
            f"invalid --device-id-strategy option: {configuration.text('device-id-strategy')}"
            " | write uuid or index"
        )
    policy = configuration.text("shared-devices-allocation-policy")
    if policy not in {"distributed", "packed"}:
        raise ConfigurationError(
            f"invalid --shared-devices-allocation-policy option: {policy}"
            " | write distributed or packed"
        )
    if configuration.mps:
        if configuration.text("mig-strategy") == "mixed":
            raise ConfigurationError(
                "using --mig-strategy=mixed is not supported with MPS | use timeSlicing, or"
                " --mig-strategy=none"
            )
        if not configuration.text("mps-root"):
            raise ConfigurationError(
                "using MPS requires --mps-root to be specified | name the host directory of the"
                " MPS control daemons, such as /run/nvidia/mps"
            )
    discovery = configuration.text("device-discovery-strategy")
    if discovery not in {"auto", "nvml", "tegra"}:
        raise ConfigurationError(
            f"invalid --device-discovery-strategy option {discovery} | write auto, nvml or tegra"
        )
    if configuration.text("mig-strategy") not in {"none", "single", "mixed"}:
        raise ConfigurationError(
            f"unknown MIG strategy: {configuration.text('mig-strategy')}"
            " | write none, single or mixed"
        )
    try:
        _ = configuration.metrics_address
    except ValueError as error:
        raise ConfigurationError(
            f"invalid --metrics-address option: {configuration.text('metrics-address')}"
            " | write ADDRESS:PORT, such as 127.0.0.1:9402, or off"
        ) from error


def check_channel(
    configuration: Configuration, exists: Callable[[str], bool] = os.path.exists
) -> tuple[str, ...]:
    """Return those of the requested IMEX channels whose nodes exist.

    :param exists: tells whether the node has a device node.
    :raises ConfigurationError: a channel is missing and required.
    """
    found = []
    for channel in configuration.channels:
        if exists(f"/dev/nvidia-caps-imex-channels/channel{channel}"):
            found.append(channel)
        elif configuration.switch("imex-required"):
            raise ConfigurationError(
                f"requested IMEX channel channel{channel} does not exist"
                " | start nvidia-imex on the node, or leave out --imex-required"
            )
    return tuple(found)
