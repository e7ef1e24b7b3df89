"""What a container asks for: from its configuration and config.toml to a :class:`Request`, or to the reason why not.

Pure: nothing of the host is looked at. Whether what is asked for exists is decided by the inventory and the plan.

Source: reference behaviour 1 (variables, volume mounts, privileges) and 3.2 (order of the checks, mode).
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.paths import clean
from nvgraft.base.values import Value, number
from nvgraft.request.config import capability_names
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from nvgraft.request.config import Config
    from nvgraft.request.oci import ContainerConfig

#: Bytes of a variable that the hook reads, and of a requirement (SECURITY R10).
VALUE_LIMIT = 4096
REQUIREMENT_LIMIT = 64 << 10

#: IMEX channel ids are device minors: 20 bits.
IMEX_CHANNEL_LIMIT = 1 << 20

MAX_REQUIREMENTS = 32

LEGACY = "legacy"


class Origin(Value):
    """Where the devices and the capabilities of a request come from, for a person: ``NVIDIA_VISIBLE_DEVICES=all``."""

    def __init__(self, devices: str, capabilities: str) -> None:
        self.devices = devices
        self.capabilities = capabilities


class DeviceRequest(Value):
    """The ids of the devices that a container asks for, none for driver files without a device, and their source for a person."""

    def __init__(self, ids: tuple[str, ...], source: str) -> None:
        self.ids = ids
        self.source = source


class ImexChannels(Value):
    """IMEX channels as they are written, parsed once; :meth:`ids` refuses what is not a channel."""

    def __init__(self, written: tuple[str, ...] = ()) -> None:
        self.written = written
        self._unsupported: str | None = None
        ids = []
        for text in written:
            channel = number(text)
            if channel is None or channel >= IMEX_CHANNEL_LIMIT:
                self._unsupported = text
                break
            ids.append(channel)
        self._ids = tuple(ids)

    def ids(self) -> tuple[int, ...]:
        """Return the channels' ids.

        :raises Refusal: "unsupported IMEX channel value: X" for anything but a decimal number below 2^20.
        """
        if self._unsupported is not None:
            raise Refusal(
                "error parsing IMEX info",
                f"unsupported IMEX channel value: {self._unsupported}",
                f"{names.IMEX_CHANNELS} takes decimal channel ids below {IMEX_CHANNEL_LIMIT}",
            )
        return self._ids


class Request(Value):
    """What this container asks for.

    ``devices`` are ids as the container wrote them, in its order (none: driver files without a device); ``capabilities``
    are sorted; ``requirements`` are expressions for ``nvgraft.request.requirements``; ``warnings`` are lines for stderr.
    """

    def __init__(
        self,
        devices: tuple[str, ...],
        capabilities: tuple[str, ...],
        *,
        requirements: tuple[str, ...] = (),
        imex_channels: ImexChannels = ImexChannels(),  # noqa: B008  # inert
        mig_config: str = "",
        mig_monitor: str = "",
        legacy_image: bool = False,
        privileged: bool = False,
        cuda_version: str = "",
        origin: Origin = Origin("", ""),  # noqa: B008  # inert
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.devices = devices
        self.capabilities = capabilities
        self.requirements = requirements
        self.imex_channels = imex_channels
        self.mig_config = mig_config
        self.mig_monitor = mig_monitor
        self.legacy_image = legacy_image
        self.privileged = privileged
        self.cuda_version = cuda_version
        self.origin = origin
        self.warnings = warnings

    def document(self) -> dict[str, Any]:
        """Return the ``request`` of a plan document."""
        return {
            "devices": list(self.devices),
            "capabilities": list(self.capabilities),
            "requirements": list(self.requirements),
            "mig_config": self.mig_config,
            "mig_monitor": self.mig_monitor,
            "imex_channels": list(self.imex_channels.written),
            "devices_from": self.origin.devices,
            "capabilities_from": self.origin.capabilities,
        }


class Skip(Value):
    """This container gets no GPU: why, and the line for stderr if it asked for one in vain (else empty)."""

    def __init__(self, reason: str, warning: str = "") -> None:
        self.reason = reason
        self.warning = warning


def resolve_request(container: ContainerConfig, config: Config) -> Request | Skip:
    """Return what ``container`` asks for, under ``config``.

    :raises Refusal: in the reference's order: an unreadable variable, MIG variables without privileges, unsupported
        capabilities, an invalid CUDA_VERSION.
    """
    env = container.env
    privileged = _is_privileged(container)
    legacy = _is_legacy(env)
    devices = requested_devices(container, config)
    if isinstance(devices, Skip):
        return devices

    mig = [
        _mig_value(env, name, privileged)
        for name in (names.MIG_CONFIG_DEVICES, names.MIG_MONITOR_DEVICES)
    ]
    channels, warnings = _imex_channels(container, config)
    capabilities, capability_source = _capabilities(
        env, config.supported_driver_capabilities, legacy
    )
    return Request(
        devices=devices.ids,
        capabilities=capabilities,
        requirements=_requirements(env, config.disable_require, legacy),
        imex_channels=ImexChannels(channels),
        mig_config=mig[0],
        mig_monitor=mig[1],
        legacy_image=legacy,
        privileged=privileged,
        cuda_version=read_variable(env, names.CUDA_VERSION) or "",
        origin=Origin(devices.source, capability_source),
        warnings=warnings,
    )


def check_request(request: Request) -> None:
    """Check what the reference CLI checks before it looks at the host.

    :raises Refusal: for an unsupported IMEX channel, or more than 32 requirements.
    """
    request.imex_channels.ids()  # refuses what is not a channel
    if len(request.requirements) > MAX_REQUIREMENTS:
        hint = f"the container has {len(request.requirements)} NVIDIA_REQUIRE_ variables"
        raise Refusal(
            "input", "too many requirements", f"{hint}, at most {MAX_REQUIREMENTS} are evaluated"
        )


def requested_devices(container: ContainerConfig, config: Config) -> DeviceRequest | Skip:
    """Return the devices that are asked for, and where they come from (reference behaviour 1.2).

    :raises Refusal: an unreadable variable or mount.
    """
    mounted = [name for item in _mounted_ids(container, config) if (name := _mounted_device(item))]
    if mounted:
        return DeviceRequest(tuple(mounted), "volume mounts")
    env = container.env
    variables = _device_variables(env, config.swarm_resource)
    ids = _listed(env, variables, _is_legacy(env))
    source = ", ".join(f"{name}={env[name]}" for name in variables if name in env)
    if ids is None:
        return Skip(f"not a GPU container: {source or f'{names.VISIBLE_DEVICES} is not set'}")
    if not _is_trusted(container, config):
        named = " ".join(variables)
        return Skip(
            f"not a GPU container: it is unprivileged, and config.toml does not accept devices from {named} then",
            f"Ignoring devices requested by environment variable(s) in unprivileged container: [{named}]",
        )
    return DeviceRequest(ids, source or "legacy image default")


def resolve_mode(configured: str, devices: Sequence[str]) -> tuple[str, str]:
    """Return the runtime mode for the hook's check, and the line with which the reference reports it.

    ``auto`` is ``cdi`` when every requested device is a qualified CDI name, else legacy (reference behaviour 3.2, 9.3).
    """
    if configured != "auto":
        return configured, f"Using requested mode '{configured}'"
    mode = "cdi" if devices and all(map(is_cdi_name, devices)) else LEGACY
    return mode, f"Auto-detected mode as '{mode}'"


def check_mode(mode: str) -> None:
    """Refuse every mode in which another component injects the driver.

    :raises Refusal: the mode is not legacy.
    """
    if mode != LEGACY:
        raise Refusal(
            "",
            "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. "
            "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead",
            f"the mode is {mode}; for this hook set nvidia-container-runtime.mode to legacy in config.toml",
        )


def read_variable(env: dict[str, str], name: str, limit: int = VALUE_LIMIT) -> str | None:
    """Return a variable's value, or None when it is unset.

    :raises Refusal: the value is longer than ``limit`` bytes, has a control character, or is no UTF-8 (SECURITY R10).
    """
    value = env.get(name)
    if value is not None and not (value.isascii() and value.isprintable() and len(value) <= limit):
        _check_text(value, f"invalid environment variable: {name}", limit)
    return value


def is_cdi_name(text: str) -> bool:
    """Return whether ``text`` is a qualified CDI device name, VENDOR/CLASS=NAME (reference behaviour 10.7)."""
    qualifier, equals, device = text.partition("=")
    vendor, slash, kind = qualifier.partition("/")
    if not (equals and slash and _is_cdi_word(device, "_-.:")):
        return False
    return all(word[:1].isalpha() and _is_cdi_word(word, "_-.") for word in (vendor, kind))


def _is_cdi_word(word: str, inside: str) -> bool:
    for char in inside:
        word = word[:1] + word[1:-1].replace(char, "a") + word[1:][-1:]
    return word.isascii() and word.isalnum()


def _check_text(value: str, text: str, limit: int) -> None:
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise Refusal("", text, f"its value has {size} bytes; at most {limit} are read")
    for char in value:
        if char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff":
            raise Refusal(
                "", text, f"its value has a control character or bytes that are no UTF-8 ({char!a})"
            )


def _is_privileged(container: ContainerConfig) -> bool:
    return names.PRIVILEGED_CAPABILITY in container.bounding


def _is_trusted(container: ContainerConfig, config: Config) -> bool:
    """Return whether requests by variables count (reference behaviour 1.2)."""
    return config.accept_nvidia_visible_devices_envvar_when_unprivileged or _is_privileged(
        container
    )


def _is_legacy(env: dict[str, str]) -> bool:
    """Return whether this is an old CUDA image, which asks for everything without a variable (reference behaviour 1.6)."""
    return bool(env.get(names.CUDA_VERSION)) and not env.get(names.REQUIRE_CUDA)


def _device_variables(env: dict[str, str], swarm_resource: str) -> list[str]:
    """Return the variables that decide: those of swarm-resource that are set, else NVIDIA_VISIBLE_DEVICES."""
    chosen = [name for item in swarm_resource.split(",") if (name := item.strip()) and name in env]
    return chosen or [names.VISIBLE_DEVICES]


def _listed(env: dict[str, str], variables: Iterable[str], legacy: bool) -> tuple[str, ...] | None:
    """Return the ids that the variables list (reference behaviour 1.4), none of them for "none"; None where nothing is asked for."""
    values = [value for name in variables if (value := read_variable(env, name)) is not None]
    if not values:
        return (names.ALL,) if legacy else None
    tokens = [token for value in values for item in value.split(",") if (token := item.strip())]
    if not tokens or names.VOID in tokens:
        return None
    for token in tokens:
        if token == names.ALL:
            return (names.ALL,)
        if token == names.NONE:
            return ()
    # Of equal ids the reference keeps the last one's place.
    return tuple(dict.fromkeys(reversed(tokens)))[::-1]


def _mounted_ids(container: ContainerConfig, config: Config) -> list[str]:
    """Return what stands behind the prefix in each mount that requests something, if mounts are accepted as requests."""
    if not config.accept_nvidia_visible_devices_as_volume_mounts:
        return []
    seen = set()
    ids = []
    for source, destination in container.mounts:
        if clean(source) != names.VOLUME_MOUNT_SOURCE:
            continue
        destination = clean(destination)
        if destination in seen:
            continue
        seen.add(destination)
        if destination.startswith(names.VOLUME_MOUNT_PREFIX):
            mounted_id = destination[len(names.VOLUME_MOUNT_PREFIX) :].strip("/")
            if mounted_id:
                _check_text(
                    mounted_id, f"invalid volume mount device request: {destination}", VALUE_LIMIT
                )
                ids.append(mounted_id)
    return ids


def _mounted_device(mounted_id: str) -> str | None:
    """Return the device id that a mount requests; None for a channel and for a name that is not a CDI device."""
    if mounted_id.startswith(names.VOLUME_MOUNT_IMEX):
        return None
    if not mounted_id.startswith(names.VOLUME_MOUNT_CDI):
        return mounted_id
    name = mounted_id[len(names.VOLUME_MOUNT_CDI) :]
    if is_cdi_name(name):
        return name
    parts = name.split("/", 2)
    return f"{parts[0]}/{parts[1]}={parts[2]}" if len(parts) == 3 else None


def _mig_value(env: dict[str, str], name: str, privileged: bool) -> str:
    value = read_variable(env, name) or ""
    if value and not privileged:
        raise Refusal(
            "",
            f"cannot set {name.removeprefix('NVIDIA_')} in non privileged container",
            f"{name}={value} needs {names.PRIVILEGED_CAPABILITY}: start the container privileged, or unset it",
        )
    return value


def _imex_channels(
    container: ContainerConfig, config: Config
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the channels as they are written, and the warning for those that are ignored (reference behaviour 1.9)."""
    if config.features_ignore_imex_channel_requests:
        return (), ()
    prefix = names.VOLUME_MOUNT_IMEX
    mounted = [
        item[len(prefix) :] for item in _mounted_ids(container, config) if item.startswith(prefix)
    ]
    if mounted:
        return tuple(mounted), ()
    channels = _listed(container.env, (names.IMEX_CHANNELS,), _is_legacy(container.env))
    if channels is None or channels == (names.ALL,):
        return (), ()
    if not _is_trusted(container, config):
        return (), (
            f"Ignoring request by environment variable(s) in unprivileged container: [{names.IMEX_CHANNELS}]",
        )
    return channels, ()


def _capabilities(
    env: dict[str, str], supported_list: str, legacy: bool
) -> tuple[tuple[str, ...], str]:
    """Return the capabilities, sorted, and where they come from (reference behaviour 1.7)."""
    supported = capability_names(supported_list)
    value = read_variable(env, names.DRIVER_CAPABILITIES)
    if not value:
        if value is None and legacy:
            return supported, "legacy image default"
        return tuple(name for name in supported if name in names.DEFAULT_CAPABILITIES), "default"
    source = f"{names.DRIVER_CAPABILITIES}={value}"
    requested = capability_names(value)
    if names.ALL in requested:
        return supported, source
    allowed = tuple(name for name in requested if name in supported)
    if allowed != requested:
        raise Refusal(
            "",
            f"unsupported capabilities found in '{','.join(requested)}' (allowed '{','.join(allowed)}')",
            f"{source}, but config.toml supports {','.join(supported) or 'none'}",
        )
    return requested, source


def _requirements(env: dict[str, str], disabled: bool, legacy: bool) -> tuple[str, ...]:
    """Return the requirement expressions, ordered by variable, a legacy image's own one last (reference behaviour 1.8)."""
    if disabled or read_variable(env, names.DISABLE_REQUIRE) in names.TRUE_SPELLINGS:
        return ()
    expressions = [
        read_variable(env, name, REQUIREMENT_LIMIT) or ""
        for name in sorted(env)
        if name.startswith(names.REQUIRE_PREFIX)
        and not name.startswith(names.REQUIRE_JETPACK_PREFIX)
    ]
    if legacy:
        version = read_variable(env, names.CUDA_VERSION) or ""
        major, minor = _major_minor(version)
        expressions.append(f"cuda>={major}.{minor}")
    return tuple(expressions)


def _major_minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a lenient semantic version: up to three numbers, "v" in front, -words and +words."""
    core, plus, build = version.removeprefix("v").partition("+")
    core, dash, release = core.partition("-")
    numbers = core.split(".")
    words = (release.split(".") if dash else []) + (build.split(".") if plus else [])
    if (
        len(numbers) > 3
        or not all(
            part.isascii() and part.isdigit() and len(part.lstrip("0")) < 20 for part in numbers
        )
        or not all(part.isascii() and part.replace("-", "a").isalnum() for part in words)
    ):
        raise Refusal(
            "",
            f"failed to get requirements failed to get version: invalid CUDA version {version}: "
            "invalid version string: invalid semantic version",
            f"{names.CUDA_VERSION} of the image must read MAJOR[.MINOR[.PATCH]], or {names.REQUIRE_CUDA} must be set",
        )
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
