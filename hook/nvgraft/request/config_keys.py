"""The keys of config.toml, their types and defaults, and the reference's words for its errors."""

from __future__ import annotations

from nvgraft_specs import names

ERROR = "error getting hook config: failed to load config: "
#: This stands before errors of the file and its text in the reference's hook, not in its runtime.
OPEN_ERROR = "couldn't open required configuration file: "
FILE_ERROR = f"{ERROR}{OPEN_ERROR}failed to load specified config file: "

_CLI = ("nvidia-container-cli",)
_RUNTIME = ("nvidia-container-runtime",)
_CSV = (*_RUNTIME, "modes", "csv")
_CDI = (*_RUNTIME, "modes", "cdi")
_JIT_CDI = (*_RUNTIME, "modes", "jit-cdi")
_HOOK = ("nvidia-container-runtime-hook",)
_FEATURES = ("features",)
_NVGRAFT = ("nvgraft",)

#: Who writes a container's loader cache: nvgraft itself (the default), or the host's ldconfig,
#: confined.
LDCACHE_MODES = ("native", "ldconfig")

#: How many hooks a container with CDI edits of nvgraft-runtime gets: one that takes all steps (the
#: default), or one for each step, as the reference.
CDI_HOOKS = ("one", "each")

#: (table, key, attribute, default). A key has the type of its default; a tuple stands for a list of
#: strings. Optional keys of the reference default to false or to the empty value: the reference
#: treats unset and empty alike.
KEYS: tuple[tuple[tuple[str, ...], str, str, bool | int | str | tuple[str, ...]], ...] = (
    ((), "disable-require", "disable_require", False),
    ((), "swarm-resource", "swarm_resource", ""),
    (
        (),
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "accept_nvidia_visible_devices_envvar_when_unprivileged",
        True,
    ),
    (
        (),
        "accept-nvidia-visible-devices-as-volume-mounts",
        "accept_nvidia_visible_devices_as_volume_mounts",
        False,
    ),
    (
        (),
        "supported-driver-capabilities",
        "supported_driver_capabilities",
        ",".join(names.CAPABILITIES),
    ),
    (_CLI, "root", "cli_root", ""),
    (_CLI, "path", "cli_path", ""),
    (_CLI, "environment", "cli_environment", ()),
    (_CLI, "debug", "cli_debug", ""),
    (_CLI, "ldcache", "cli_ldcache", ""),
    (_CLI, "load-kmods", "cli_load_kmods", True),
    (_CLI, "no-pivot", "cli_no_pivot", False),
    (_CLI, "no-cgroups", "cli_no_cgroups", False),
    (_CLI, "user", "cli_user", ""),
    (_CLI, "ldconfig", "cli_ldconfig", "@/sbin/ldconfig"),
    (("nvidia-ctk",), "path", "ctk_path", "nvidia-ctk"),
    (_RUNTIME, "debug", "runtime_debug", "/dev/null"),
    (_RUNTIME, "log-level", "runtime_log_level", "info"),
    (_RUNTIME, "runtimes", "runtime_runtimes", ("runc", "crun")),
    (_RUNTIME, "mode", "runtime_mode", "auto"),
    (
        _CSV,
        "mount-spec-path",
        "runtime_csv_mount_spec_path",
        "/etc/nvidia-container-runtime/host-files-for-container.d",
    ),
    (_CSV, "compat-container-root", "runtime_csv_compat_container_root", ""),
    (_CDI, "spec-dirs", "runtime_cdi_spec_dirs", ("/etc/cdi", "/var/run/cdi")),
    (_CDI, "default-kind", "runtime_cdi_default_kind", "nvidia.com/gpu"),
    (_CDI, "annotation-prefixes", "runtime_cdi_annotation_prefixes", ("cdi.k8s.io/",)),
    (_JIT_CDI, "nvcdi-feature-flags", "runtime_jit_cdi_nvcdi_feature_flags", ()),
    (_JIT_CDI, "nvcdi-disable-hooks", "runtime_jit_cdi_nvcdi_disable_hooks", ()),
    ((*_RUNTIME, "modes", "legacy"), "cuda-compat-mode", "runtime_cuda_compat_mode", "ldconfig"),
    (_HOOK, "path", "hook_path", "nvidia-container-runtime-hook"),
    (_HOOK, "skip-mode-detection", "hook_skip_mode_detection", False),
    (
        _FEATURES,
        "allow-cuda-compat-libs-from-container",
        "features_allow_cuda_compat_libs_from_container",
        False,
    ),
    (_FEATURES, "allow-ldconfig-from-container", "features_allow_ldconfig_from_container", False),
    (_FEATURES, "allow-unknown-oci-spec-fields", "features_allow_unknown_oci_spec_fields", False),
    (_FEATURES, "disable-cuda-compat-lib-hook", "features_disable_cuda_compat_lib_hook", False),
    (_FEATURES, "disable-imex-channel-creation", "features_disable_imex_channel_creation", False),
    (_FEATURES, "ignore-imex-channel-requests", "features_ignore_imex_channel_requests", False),
    (
        _FEATURES,
        "no-additional-gids-for-device-nodes",
        "features_no_additional_gids_for_device_nodes",
        False,
    ),
    (_NVGRAFT, "simulated-host", "simulated_host", False),
    (_NVGRAFT, "host-snapshot", "host_snapshot", ""),
    (_NVGRAFT, "ldcache", "ldcache_mode", LDCACHE_MODES[0]),
    (_NVGRAFT, "cdi-hooks", "cdi_hooks", CDI_HOOKS[0]),
    (_NVGRAFT, "image-names", "image_names", names.IMAGE_NAMES),
    (_NVGRAFT, "image-directories", "image_directories", names.IMAGE_DIRECTORIES),
    (_NVGRAFT, "image-libraries", "image_libraries", names.IMAGE_LIBRARIES),
    (_NVGRAFT, "image-seconds", "image_seconds", names.IMAGE_SECONDS),
    (_NVGRAFT, "allow-fuse", "allow_fuse", False),
)
