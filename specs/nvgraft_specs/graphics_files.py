"""The driver's files for graphics and for gated components, and where they are mounted.

Source: reference behaviour 10.3 and 10.4. CDI specifications contain them, and the runtime adds
them to config.json (9.5, 1.9). In patterns only ``*`` has a meaning. Data only:
``nvgraft.host.graphics_files`` finds the files.
"""

#: The directories in which libraries are looked for before the loader cache is used.
LIBRARY_DIRECTORIES = (
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)

#: Libraries that have the driver's version; the first one that exists tells it.
VERSION_LIBRARIES = ("libcuda.so.", "libnvidia-ml.so.")

#: Libraries of EGL platforms, which have versions of their own.
EGL_LIBRARIES = tuple(
    f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib")
)
VULKAN_PRODUCER = "libnvidia-vulkan-producer.so."

#: GBM opens its back end by the name of the link, which leads to this library.
ALLOCATOR = "libnvidia-allocator.so."
GBM_LINK, GBM_TARGET = "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"

XORG_DRIVER = "nvidia_drv.so"
XORG_SERVER = "libglxserver_nvidia.so."
#: The directories of Xorg's modules, below a library directory or below one of XORG_DIRECTORIES.
XORG_MODULES = (
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
)
XORG_DIRECTORIES = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
XORG_BINARY = "nvidia-xconfig"

CONFIG_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")
#: A directory of the container, and the files of CONFIG_DIRECTORIES that are mounted in it.
CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    ),
    "/etc": ("OpenCL/vendors/nvidia.icd",),
}
#: Files that are also mounted in /etc; some drivers have them in the top directory of their root.
#: ``{machine}`` is one of VULKAN_MACHINES.
VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.{machine}.json",
)
VULKAN_MACHINES = ("x86_64", "aarch64")

#: The mount options of these files, in the words of config.json and CDI.
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")

#: The kernel's nodes of display devices, in their order.
DRM_NODES = ("/dev/dri/card*", "/dev/dri/renderD*")
#: The links by which programs find the display devices of a PCI address.
DRM_LINKS = "/dev/dri/by-path"

#: The access to a device node in config.json and in a CDI specification.
NODE_ACCESS = "rwm"

#: The variable of a further component, its device nodes, and the files that are mounted if the host
#: has such a node (reference behaviour 1.9, 10.4).
GATED = {
    "NVIDIA_GDS": (("/dev/nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "NVIDIA_MOFED": (("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"), ()),
    "NVIDIA_GDRCOPY": (("/dev/gdrdrv",), ()),
    "NVIDIA_NVSWITCH": (("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"), ()),
}
