"""config.toml: every key of the reference stack, and the table ``[nvgraft]``.

The text becomes a :class:`Config` in two steps, so that the result of the first can be kept.
:mod:`nvgraft.request.toml_settings`, whose parser is slow to load, checks the types of the known
keys that the file sets, and returns them as plain JSON values. :func:`config_from_settings` adds
the defaults, some of which depend on the host, and makes the checks that the reference makes on
load.

Source: reference behaviour 2. The module that uses a key decides what it does.
"""

from __future__ import annotations

from nvgraft.base import files, paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.request import config_keys
from nvgraft.request.config_keys import (
    CDI_HOOKS,
    ERROR,
    FILE_ERROR,
    KEYS,
    LDCACHE_MODES,
    OPEN_ERROR,
)
from nvgraft.system.trusted import Untrusted
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes of config.toml that are read.
LIMIT = 1 << 20


class Config(Value):
    """The configuration of the hook and of the runtime, with the host's defaults. Each key has an
    attribute.
    """

    disable_require: bool
    swarm_resource: str
    accept_nvidia_visible_devices_envvar_when_unprivileged: bool
    accept_nvidia_visible_devices_as_volume_mounts: bool
    supported_driver_capabilities: str
    cli_root: str
    cli_path: str
    cli_environment: tuple[str, ...]
    cli_debug: str
    cli_ldcache: str
    cli_load_kmods: bool
    cli_no_pivot: bool
    cli_no_cgroups: bool
    cli_user: str
    cli_ldconfig: str
    ctk_path: str
    runtime_debug: str
    runtime_log_level: str
    runtime_runtimes: tuple[str, ...]
    runtime_mode: str
    runtime_csv_mount_spec_path: str
    runtime_csv_compat_container_root: str
    runtime_cdi_spec_dirs: tuple[str, ...]
    runtime_cdi_default_kind: str
    runtime_cdi_annotation_prefixes: tuple[str, ...]
    runtime_jit_cdi_nvcdi_feature_flags: tuple[str, ...]
    runtime_jit_cdi_nvcdi_disable_hooks: tuple[str, ...]
    runtime_cuda_compat_mode: str
    hook_path: str
    hook_skip_mode_detection: bool
    features_allow_cuda_compat_libs_from_container: bool
    features_allow_ldconfig_from_container: bool
    features_allow_unknown_oci_spec_fields: bool
    features_disable_cuda_compat_lib_hook: bool
    features_disable_imex_channel_creation: bool
    features_ignore_imex_channel_requests: bool
    features_no_additional_gids_for_device_nodes: bool
    simulated_host: bool
    host_snapshot: str
    ldcache_mode: str
    cdi_hooks: str
    image_names: int
    image_directories: int
    image_libraries: int
    image_seconds: int
    allow_fuse: bool

    def __init__(self, **settings: object) -> None:
        """Use the built-in default for each attribute that is not given. A list is stored as a
        tuple.
        """
        for _, _, attribute, default in KEYS:
            value = settings.pop(attribute, default)
            setattr(self, attribute, tuple(value) if isinstance(value, list) else value)
        if settings:
            raise TypeError(f"no such setting: {', '.join(settings)}")

    @property
    def image_limits(self) -> tuple[int, int, int, int]:
        """The arguments of :class:`nvgraft.formats.tree.Bounds`."""
        return self.image_names, self.image_directories, self.image_libraries, self.image_seconds


def config_path(
    explicit: str | None, environ: Mapping[str, str], directory: str = ""
) -> tuple[str, bool]:
    """Return the path of config.toml, and whether the file must exist. It must if an option or a
    variable names it.

    A relative name is relative to ``directory``, or to the working directory if that is empty.
    """
    named = explicit or environ.get(names.CONFIG_VARIABLE)
    if named:
        return paths.join(directory, named), True
    return paths.join(
        paths.join(directory, environ.get(names.CONFIG_HOME_VARIABLE) or names.CONFIG_HOME),
        names.CONFIG_FILE,
    ), False


def load_config(
    explicit: str | None,
    environ: Mapping[str, str],
    directory: str = "",
    open_file: Callable[[str], int] = files.open_file,
    *,
    cached: bool = False,
) -> Config:
    """Return the configuration that applies (reference behaviour 2.1). For ``directory`` see
    :func:`config_path`.

    :param explicit: the file of ``-config``, or None.
    :param open_file: opens the file. A caller that acts on the result passes
        ``trusted.open_trusted`` (SECURITY R13).
    :param cached: use :func:`known_settings`; otherwise nothing is written.
    :raises Refusal: the named file is missing, the file cannot be read, it is not TOML, or it sets
        a key to a value of the wrong type or meaning.
    """
    path, required = config_path(explicit, environ, directory)
    data = read_config_file(path, required, open_file)
    if not data:
        return config_from_settings({})
    if cached:
        return config_from_settings(known_settings(data, path))
    from nvgraft.request.toml_settings import settings_from_toml

    return config_from_settings(settings_from_toml(data, path))


def read_config_file(path: str, required: bool, open_file: Callable[[str], int]) -> bytes | None:
    """Return the bytes of config.toml, or None if there is no such file and none is required."""
    try:
        fd = open_file(path)
    except Untrusted as error:
        raise Refusal(
            "",
            f"{FILE_ERROR}{path} is not trusted: {error}",
            error.hint,
        ) from None
    except FileNotFoundError as error:
        if required:
            hint = "point -config at an existing file, or remove the option and the variable"
            raise Refusal(
                "",
                f"{ERROR}{OPEN_ERROR}open {path}: {files.reason(error)}",
                hint,
            ) from None
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        return files.read_fd(fd, LIMIT)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(fd)


def known_settings(data: bytes, path: str) -> Mapping[str, object]:
    """Return what :func:`nvgraft.request.toml_settings.settings_from_toml` returns, and keep it for
    the next hook that reads the same bytes.
    """
    from nvgraft.system import kept

    source = paths.join(paths.dirname(__file__), "toml_settings.py")
    code = kept.code(__file__, config_keys.__file__, source, names.__file__)
    key = [code, data.decode("utf-8", "surrogateescape")]
    settings = kept.read("config", key)
    if not isinstance(settings, dict):
        from nvgraft.request.toml_settings import settings_from_toml
        from nvgraft.system import keep

        settings = settings_from_toml(data, path)
        keep.write("config", key, settings)
    return settings


def config_from_settings(
    settings: Mapping[str, object],
    exists: Callable[[str], bool] | None = None,
    os_release: Callable[[], str] | None = None,
) -> Config:
    """Return the configuration for ``settings``, with the host's defaults.

    :param exists: tells whether a path exists on the host; by default the live host.
    :param os_release: returns the text of the host's os-release; by default that of the live host.
    :raises Refusal: ldconfig is not host-relative, root is in /proc, supported-driver-capabilities
        or ldcache has an unknown name, or a host snapshot is named without simulated-host. The
        reference refuses the first and the third on load, too.
    """
    values = dict(settings)
    if values.get("supported_driver_capabilities") == names.ALL:
        del values["supported_driver_capabilities"]
    config = Config(**values)
    if (
        not config.cli_ldconfig.startswith("@")
        and not config.features_allow_ldconfig_from_container
    ):
        value = config.cli_ldconfig.replace("\\", "\\\\").replace('"', '\\"')
        raise Refusal(
            "",
            "invalid config value",
            'write it as a path of the host, such as ldconfig = "@/sbin/ldconfig"',
            first_line=f'{ERROR}nvidia-container-cli.ldconfig value "{value}" is not'
            " host-relative (does not start with a '@')",
        )
    if (paths.clean(config.cli_root) + "/").startswith("/proc/"):
        raise Refusal(
            "",
            f"{ERROR}nvidia-container-cli.root is {config.cli_root}",
            "a path in /proc means something else to each process; set root to the"
            " directory with the driver",
        )
    unknown = [
        name
        for name in capability_names(config.supported_driver_capabilities)
        if name not in names.CAPABILITIES
    ]
    if unknown:
        raise Refusal(
            "",
            "Invalid value for config option 'supported-driver-capabilities';"
            f" {config.supported_driver_capabilities} "
            f"(supported: {','.join(names.CAPABILITIES)})",
            f"there is no driver capability {unknown[0]}; correct config.toml",
        )
    if config.host_snapshot and not config.simulated_host:
        raise Refusal(
            "",
            f"{ERROR}nvgraft.host-snapshot is set without nvgraft.simulated-host = true",
            "a recorded host is used only if the host is simulated; remove host-snapshot"
            " from config.toml",
        )
    if config.ldcache_mode not in LDCACHE_MODES:
        raise Refusal(
            "",
            f"{ERROR}nvgraft.ldcache value {config.ldcache_mode!r} is not known",
            'set it to "{}" (the default) or "{}"'.format(*LDCACHE_MODES),
        )
    if config.cdi_hooks not in CDI_HOOKS:
        raise Refusal(
            "",
            f"{ERROR}nvgraft.cdi-hooks value {config.cdi_hooks!r} is not known",
            'set it to "{}" (the default) or "{}"'.format(*CDI_HOOKS),
        )
    # Nobody else has seen the value yet.
    if "cli_user" not in values:
        config.cli_user = default_user((os_release or _os_release)())
    config.cli_ldconfig = host_ldconfig(config.cli_ldconfig, exists or paths.exists)
    return config


def capability_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of capabilities, trimmed, sorted, without
    repetitions.
    """
    return tuple(sorted({name for item in text.split(",") if (name := item.strip())}))


def default_user(os_release: str) -> str:
    """Return the user of ``nvidia-container-cli`` if config.toml sets none. SUSE guards its devices
    by a group.
    """
    for line in os_release.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ID_LIKE":
            return "root:video" if "suse" in value else ""
    return ""


def host_ldconfig(value: str, exists: Callable[[str], bool]) -> str:
    """Return the ldconfig to run for a configured one. On Debian-like hosts ``PATH`` is a script
    around ``PATH.real``.
    """
    if not value.startswith("@"):
        return value
    path = value[1:].removesuffix(".real")
    return f"@{path}.real" if exists(f"{path}.real") else f"@{path}"


def _os_release() -> str:
    try:
        fd = files.open_file("/etc/os-release")
    except OSError:
        return ""
    try:
        return files.read_fd(fd, LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _unreadable(path: str, error: OSError) -> Refusal:
    call = "read" if isinstance(error, IsADirectoryError) else "open"
    text = f"{FILE_ERROR}{call} {path}: {files.reason(error)}"
    return Refusal(
        "", text, f"config.toml must be a regular file of at most {LIMIT} bytes that root can read"
    )


def compat_mode(config: Config) -> str:
    """Return the CLI's mode for the image's CUDA libraries. If it is empty, the CLI uses its
    default, mount.
    """
    mode = config.runtime_cuda_compat_mode
    if mode in ("ldconfig", "mount"):
        return mode
    if mode in ("disabled", "hook") or not config.features_allow_cuda_compat_libs_from_container:
        return "disabled"
    return ""
