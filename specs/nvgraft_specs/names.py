"""Names that containers, engines and administrators use, as data: variables, capabilities, spellings, paths.

Source: reference behaviour 1 and 2. What a name means is decided where it is read (``nvgraft.request.request``), not here.
"""

#: Every driver capability, in the order of the canonical string form (reference behaviour 1.7).
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")

#: What a container gets that does not say.
DEFAULT_CAPABILITIES = ("compute", "utility")

#: In a list of capabilities: all that are supported. In a list of devices: every device.
ALL = "all"
#: Driver files, but no device.
NONE = "none"
#: No GPU container, whatever else the list says.
VOID = "void"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
CUDA_VERSION = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"
DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
MIG_CONFIG_DEVICES = "NVIDIA_MIG_CONFIG_DEVICES"
MIG_MONITOR_DEVICES = "NVIDIA_MIG_MONITOR_DEVICES"

#: Each variable with this prefix is one requirement ...
REQUIRE_PREFIX = "NVIDIA_REQUIRE_"
#: ... except these, which choose CSV files on Jetson boards.
REQUIRE_JETPACK_PREFIX = "NVIDIA_REQUIRE_JETPACK"

#: Spellings of a true boolean variable; everything else is false (reference behaviour 1.8).
TRUE_SPELLINGS = ("1", "t", "T", "TRUE", "true", "True")

#: A mount of VOLUME_MOUNT_SOURCE below this destination requests a device (reference behaviour 1.2). A plain string
#: prefix: the reference does not ask for a "/" after it.
VOLUME_MOUNT_PREFIX = "/var/run/nvidia-container-devices"
VOLUME_MOUNT_SOURCE = "/dev/null"
VOLUME_MOUNT_CDI = "cdi/"
VOLUME_MOUNT_IMEX = "imex/"

#: A container is privileged when its bounding set has this capability (reference behaviour 1.5).
PRIVILEGED_CAPABILITY = "CAP_SYS_ADMIN"

#: Value "enabled": the devices of a further component are asked for too (reference behaviour 1.9). Read by the runtime alone.
GATED_DEVICES = ("NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH")
GATE_OPEN = "enabled"

#: The directories that are searched besides those of PATH (reference behaviour 3.3).
DEFAULT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"

#: Seconds that a runtime grants our hook, wherever it is registered: more than the hook itself ever waits for a driver that
#: hangs or for another hook, so that the line which explains it comes from the hook; an engine is not held for ever.
HOOK_TIMEOUT = 120

#: How a bundle's prestart hooks name the hook: the original's two names, and ours.
HOOK_NAMES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvgraft-hook")

#: Modes of the runtime (reference behaviour 9.3).
MODES = ("auto", "legacy", "csv", "cdi", "jit-cdi")

#: What a simulated host's stand-in for NVML answers from, inside the driver root.
STANDIN_NVML = "/etc/nvgraft-nvml.conf"

#: Where config.toml is looked for (reference behaviour 2.1).
CONFIG_VARIABLE = "NVIDIA_CTK_CONFIG_FILE_PATH"
CONFIG_HOME_VARIABLE = "XDG_CONFIG_HOME"
CONFIG_HOME = "/etc"
CONFIG_FILE = "nvidia-container-runtime/config.toml"
