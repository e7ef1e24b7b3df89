"""Names that containers, engines and administrators use: variables, capabilities, values, paths.

Source: reference behaviour 1 and 2. Data only: ``nvgraft.request.request`` reads them.
"""

#: Every driver capability, in the order of the canonical string form (reference behaviour 1.7).
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")

#: The capabilities of a container that does not request any.
DEFAULT_CAPABILITIES = ("compute", "utility")

#: In a list of capabilities: all supported ones. In a list of devices: every device.
ALL = "all"
#: The driver's files without a device.
NONE = "none"
#: Not a GPU container, also beside other devices in the list.
VOID = "void"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
#: Set by CDI edits alone: the directories that have libcuda.
LIBCUDA_DIR = "NVIDIA_CTK_LIBCUDA_DIR"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
CUDA_VERSION = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"
DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
MIG_CONFIG_DEVICES = "NVIDIA_MIG_CONFIG_DEVICES"
MIG_MONITOR_DEVICES = "NVIDIA_MIG_MONITOR_DEVICES"

#: Each variable with this prefix is a requirement, except those with the next prefix.
REQUIRE_PREFIX = "NVIDIA_REQUIRE_"
#: These choose CSV files on Jetson boards.
REQUIRE_JETPACK_PREFIX = "NVIDIA_REQUIRE_JETPACK"
#: The value of the variable of that name that chooses all CSV files.
EVERY_CSV_FILE = "csv-mounts=all"

#: The values of a true boolean variable; all others are false (reference behaviour 1.8).
TRUE_SPELLINGS = ("1", "t", "T", "TRUE", "true", "True")

#: A mount of VOLUME_MOUNT_SOURCE below this destination requests a device (reference behaviour
#: 1.2). It is a plain prefix: like the reference, no "/" is needed after it.
VOLUME_MOUNT_PREFIX = "/var/run/nvidia-container-devices"
VOLUME_MOUNT_SOURCE = "/dev/null"
VOLUME_MOUNT_CDI = "cdi/"
VOLUME_MOUNT_IMEX = "imex/"

#: A container is privileged when its bounding set has this capability (reference behaviour 1.5).
PRIVILEGED_CAPABILITY = "CAP_SYS_ADMIN"

#: With the value "enabled" they request the devices of a further component (reference behaviour
#: 1.9). Only the runtime reads them.
GATED_DEVICES = ("NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH")
GATE_OPEN = "enabled"

#: The directories to search in addition to those of PATH (reference behaviour 3.3).
DEFAULT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"

#: The timeout of every registration of our hook, in seconds. The hook gives up earlier on a driver
#: that hangs and on another hook, so that it can explain the failure itself.
HOOK_TIMEOUT = 120

#: The most that is read of one image, and of the volumes in it: names in directories, library
#: directories, libraries, and seconds (SECURITY R41). config.toml has a key for each.
IMAGE_NAMES = 200_000
IMAGE_DIRECTORIES = 64
IMAGE_LIBRARIES = 20_000
IMAGE_SECONDS = 6

#: The hook's names among a bundle's prestart hooks: the reference's two, and ours.
HOOK_NAMES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvgraft-hook")

#: Modes of the runtime (reference behaviour 9.3).
MODES = ("auto", "legacy", "csv", "cdi", "jit-cdi")

#: The variables and the path that lead to config.toml (reference behaviour 2.1).
CONFIG_VARIABLE = "NVIDIA_CTK_CONFIG_FILE_PATH"
CONFIG_HOME_VARIABLE = "XDG_CONFIG_HOME"
CONFIG_HOME = "/etc"
CONFIG_FILE = "nvidia-container-runtime/config.toml"

#: The stand-in for the CUDA runtime's queries, which containers on simulated hosts preload.
STANDIN_RUNTIME = "libnvgraft-cudart.so.1"
