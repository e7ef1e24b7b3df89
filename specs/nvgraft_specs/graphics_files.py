"""Files that a driver has for graphics and for gated components, by name, and where a container is given them: tables.

Source: reference behaviour 10.3 and 10.4. CDI specifications and what the runtime adds to a config.json (9.5, 1.9) are made of
them. In patterns only ``*`` has a meaning. Data only: ``nvgraft.host.graphics_files`` finds the files.
"""

#: Where libraries are looked for before the loader cache is.
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

#: Libraries whose version is the driver's; the first one that is found tells it.
VERSION_LIBRARIES = ("libcuda.so.", "libnvidia-ml.so.")

#: Libraries of EGL platforms have versions of their own.
EGL_LIBRARIES = tuple(
    f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib")
)
VULKAN_PRODUCER = "libnvidia-vulkan-producer.so."

#: GBM opens its back end by a name of its own, which leads to this library.
ALLOCATOR = "libnvidia-allocator.so."
GBM_LINK, GBM_TARGET = "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"

XORG_DRIVER = "nvidia_drv.so"
XORG_SERVER = "libglxserver_nvidia.so."
#: Parts of Xorg's module path below a library directory, and such directories beside the driver's own.
XORG_MODULES = (
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
)
XORG_DIRECTORIES = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
XORG_BINARY = "nvidia-xconfig"

CONFIG_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")
#: Files below one of CONFIG_DIRECTORIES -> the directory in which they are mounted, wherever the host has them.
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
#: Mounted in /etc too; some drivers have them at the top of their root. ``{machine}`` is one of VULKAN_MACHINES.
VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.{machine}.json",
)
VULKAN_MACHINES = ("x86_64", "aarch64")

#: How these files are mounted, in the words of config.json and CDI.
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")

#: The kernel's nodes of display devices, in their order, and the links by which programs find those of a PCI address.
DRM_NODES = ("/dev/dri/card*", "/dev/dri/renderD*")
DRM_LINKS = "/dev/dri/by-path"

#: Access that a config.json and a CDI specification give to a device node.
NODE_ACCESS = "rwm"

#: Variable of a further component -> its device nodes, and what is mounted where there are any (reference behaviour 1.9, 10.4).
GATED = {
    "NVIDIA_GDS": (("/dev/nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "NVIDIA_MOFED": (("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"), ()),
    "NVIDIA_GDRCOPY": (("/dev/gdrdrv",), ()),
    "NVIDIA_NVSWITCH": (("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"), ()),
}
