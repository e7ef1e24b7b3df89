"""What a container asks for: a :class:`Request`, or a :class:`Skip`, from config.json and
config.toml.

These functions are pure and read nothing of the host. The inventory and the plan decide whether the
requested things exist.

Source: reference behaviour 1 (variables, volume mounts, privileges) and 3.2 (order of the checks,
mode).
"""

from __future__ import annotations

from nvgraft.base.errors import NOT_PRIVILEGED, WRONG_MODE, Refusal
from nvgraft.base.paths import clean
from nvgraft.base.values import Value, number
from nvgraft.request.config import capability_names
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvgraft.request.config import Config
    from nvgraft.request.oci import ContainerConfig

#: The largest accepted value of a variable, and of a requirement, in bytes (SECURITY R10).
VALUE_LIMIT = 4096
REQUIREMENT_LIMIT = 64 << 10

#: IMEX channel ids are device minors: 20 bits.
IMEX_CHANNEL_LIMIT = 1 << 20

MAX_REQUIREMENTS = 32

LEGACY = "legacy"


class DeviceRequest(Value):
    """The ids of the requested devices (none: driver files without a device), and their source as
    text.
    """

    def __init__(self, ids: tuple[str, ...], source: str) -> None:
        self.ids = ids
        self.source = source


class ImexChannels(Value):
    """The requested IMEX channels, parsed once. ``written`` has them as in the request."""

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

        :raises Refusal: "unsupported IMEX channel value: X" for anything but a decimal number below
            2^20.
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

    ``devices`` has the ids as in the request, in its order (none: driver files without a device).
    ``capabilities`` are sorted. ``requirements`` are expressions for
    ``nvgraft.request.requirements``. ``devices_from`` and ``capabilities_from`` say as text where
    these come from: ``NVIDIA_VISIBLE_DEVICES=all``. ``warnings`` are lines for stderr.
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
        devices_from: str = "",
        capabilities_from: str = "",
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
        self.devices_from = devices_from
        self.capabilities_from = capabilities_from
        self.warnings = warnings


class Skip(Value):
    """A container that gets no GPU, and why. ``warning`` is a line for stderr if it asked for one,
    else empty.
    """

    def __init__(self, reason: str, warning: str = "") -> None:
        self.reason = reason
        self.warning = warning


def resolve_request(container: ContainerConfig, config: Config) -> Request | Skip:
    """Return what ``container`` asks for, under ``config``.

    :raises Refusal: in the reference's order: a variable that is not accepted, MIG variables
        without privileges, unsupported capabilities, an invalid CUDA_VERSION.
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
    channels, warnings = requested_channels(container, config)
    capabilities, capability_source = _capabilities(
        env, config.supported_driver_capabilities, legacy
    )
    return Request(
        devices=devices.ids,
        capabilities=capabilities,
        requirements=requirements_of(env, disabled=config.disable_require),
        imex_channels=ImexChannels(channels or ()),
        mig_config=mig[0],
        mig_monitor=mig[1],
        legacy_image=legacy,
        privileged=privileged,
        cuda_version=read_variable(env, names.CUDA_VERSION) or "",
        devices_from=devices.source,
        capabilities_from=capability_source,
        warnings=warnings,
    )


def check_request(request: Request) -> None:
    """Make the checks that the reference CLI makes before it reads anything of the host.

    :raises Refusal: for an unsupported IMEX channel, or more than 32 requirements.
    """
    request.imex_channels.ids()  # for its refusal
    if len(request.requirements) > MAX_REQUIREMENTS:
        hint = f"the container has {len(request.requirements)} NVIDIA_REQUIRE_ variables"
        raise Refusal(
            "input", "too many requirements", f"{hint}, at most {MAX_REQUIREMENTS} are evaluated"
        )


def requested_devices(container: ContainerConfig, config: Config) -> DeviceRequest | Skip:
    """Return the requested devices, and where the request comes from (reference behaviour 1.2).

    :raises Refusal: a variable or mount whose text is not accepted.
    """
    mounted = [name for item in _mounted_ids(container, config) if (name := _mounted_device(item))]
    if mounted:
        return DeviceRequest(tuple(mounted), "volume mounts")
    env = container.env
    variables = device_variables(env, config.swarm_resource)
    ids = _listed(env, variables, _is_legacy(env))
    source = ", ".join(f"{name}={env[name]}" for name in variables if name in env)
    if ids is None:
        return Skip(f"not a GPU container: {source or f'{names.VISIBLE_DEVICES} is not set'}")
    if not is_trusted(container, config):
        named = " ".join(variables)
        return Skip(
            "not a GPU container: it is unprivileged, and config.toml then does not accept"
            f" devices from {named}",
            "Ignoring devices requested by environment variable(s) in unprivileged"
            f" container: [{named}]",
        )
    return DeviceRequest(ids, source or "legacy image default")


def resolve_mode(configured: str, devices: Sequence[str]) -> tuple[str, str]:
    """Return the runtime mode, and the reference's log line for it.

    ``auto`` means ``cdi`` if every requested device is a qualified CDI name, else legacy (reference
    behaviour 3.2, 9.3).
    """
    if configured != "auto":
        return configured, f"Using requested mode '{configured}'"
    mode = "cdi" if devices and all(map(is_cdi_name, devices)) else LEGACY
    return mode, f"Auto-detected mode as '{mode}'"


def check_mode(mode: str) -> None:
    """Check that the mode is legacy: in every other mode another component injects the driver.

    :raises Refusal: the mode is not legacy.
    """
    if mode != LEGACY:
        raise Refusal(
            "",
            "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the"
            " docker --gpus flag) is not supported. "
            "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia"
            " flag) instead",
            f"the mode is {mode}; to use this hook, set nvidia-container-runtime.mode to"
            " legacy in config.toml",
            kind=WRONG_MODE,
        )


def read_variable(env: dict[str, str], name: str, limit: int = VALUE_LIMIT) -> str | None:
    """Return a variable's value, or None if it is unset.

    :raises Refusal: the value is longer than ``limit`` bytes, has a control character, or is not
        UTF-8 (SECURITY R10).
    """
    value = env.get(name)
    if value is not None and not (value.isascii() and value.isprintable() and len(value) <= limit):
        _check_text(value, f"invalid environment variable: {name}", limit)
    return value


def is_cdi_name(text: str) -> bool:
    """Tell whether ``text`` is a qualified CDI device name, VENDOR/CLASS=NAME (reference behaviour
    10.7).
    """
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
        raise Refusal("", text, f"its value has {size} bytes; at most {limit} are accepted")
    for char in value:
        if char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff":
            raise Refusal(
                "",
                text,
                f"its value has a control character or bytes that are not UTF-8 ({char!a})",
            )


def _is_privileged(container: ContainerConfig) -> bool:
    return names.PRIVILEGED_CAPABILITY in container.bounding


def is_trusted(container: ContainerConfig, config: Config) -> bool:
    """Tell whether requests by variables are accepted (reference behaviour 1.2)."""
    return config.accept_nvidia_visible_devices_envvar_when_unprivileged or _is_privileged(
        container
    )


def _is_legacy(env: dict[str, str]) -> bool:
    """Tell whether this is an old CUDA image, which gets everything without a variable (reference
    behaviour 1.6).
    """
    return bool(env.get(names.CUDA_VERSION)) and not env.get(names.REQUIRE_CUDA)


def device_variables(env: dict[str, str], swarm_resource: str) -> list[str]:
    """Return the variables that request devices: those of swarm-resource that are set, else
    NVIDIA_VISIBLE_DEVICES.
    """
    chosen = [name for item in swarm_resource.split(",") if (name := item.strip()) and name in env]
    return chosen or [names.VISIBLE_DEVICES]


def _listed(env: dict[str, str], variables: Iterable[str], legacy: bool) -> tuple[str, ...] | None:
    """Return the ids in the variables, an empty tuple for "none", or None if nothing is requested
    (reference behaviour 1.4).
    """
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
    # The reference keeps the last of equal ids.
    return tuple(dict.fromkeys(reversed(tokens)))[::-1]


def _mounted_ids(container: ContainerConfig, config: Config) -> list[str]:
    """Return the part after the prefix of each mount that is a request, if config.toml accepts
    mounts as requests.
    """
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
    """Return the device id that a mount requests, or None for an IMEX channel and an incomplete CDI
    name.
    """
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
            f"{name}={value} needs {names.PRIVILEGED_CAPABILITY}: start the container"
            " privileged, or unset the variable",
            kind=NOT_PRIVILEGED,
        )
    return value


def requested_channels(
    container: ContainerConfig, config: Config
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the IMEX channels as in the request, or None if none are requested, and a warning if a
    request is ignored (reference behaviour 1.9).
    """
    if config.features_ignore_imex_channel_requests:
        return None, ()
    prefix = names.VOLUME_MOUNT_IMEX
    mounted = [
        item[len(prefix) :] for item in _mounted_ids(container, config) if item.startswith(prefix)
    ]
    if mounted:
        return tuple(mounted), ()
    channels = _listed(container.env, (names.IMEX_CHANNELS,), _is_legacy(container.env))
    if channels is None or channels == (names.ALL,):
        return None, ()
    if not is_trusted(container, config):
        return None, (
            (
                "Ignoring request by environment variable(s) in unprivileged container:"
                f" [{names.IMEX_CHANNELS}]"
            ),
        )
    return channels, ()


def _capabilities(
    env: dict[str, str], supported_list: str, legacy: bool
) -> tuple[tuple[str, ...], str]:
    """Return the requested capabilities, sorted, and where they come from (reference behaviour
    1.7).
    """
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
            f"unsupported capabilities found in '{','.join(requested)}' (allowed"
            f" '{','.join(allowed)}')",
            f"{source}, but config.toml supports {','.join(supported) or 'none'}",
        )
    return requested, source


def requirements_of(env: dict[str, str], *, disabled: bool = False) -> tuple[str, ...]:
    """Return the requirement expressions in the order of the variables' names (reference behaviour
    1.8).

    For a legacy image the expression that follows from CUDA_VERSION comes last.

    :param disabled: whether config.toml switches requirements off.
    """
    if disabled or read_variable(env, names.DISABLE_REQUIRE) in names.TRUE_SPELLINGS:
        return ()
    expressions = [
        read_variable(env, name, REQUIREMENT_LIMIT) or ""
        for name in sorted(env)
        if name.startswith(names.REQUIRE_PREFIX)
        and not name.startswith(names.REQUIRE_JETPACK_PREFIX)
    ]
    if _is_legacy(env):
        version = read_variable(env, names.CUDA_VERSION) or ""
        major, minor = _major_minor(version)
        expressions.append(f"cuda>={major}.{minor}")
    return tuple(expressions)


def _major_minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a semantic version, parsed leniently: one to three numbers,
    "v" before, -words and +words.
    """
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
            f"set {names.CUDA_VERSION} in the image to MAJOR[.MINOR[.PATCH]], or set"
            f" {names.REQUIRE_CUDA}",
        )
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
