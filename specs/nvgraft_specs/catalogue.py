"""The catalogue: the driver's libraries and programs, and the capabilities that they belong to.

Source: the recorded behaviour of nvidia-container-cli (reference behaviour 5.1). The order of rows
is the order of lookup and of mounts. Data only: ``nvgraft.host.inventory`` and
``nvgraft.host.libraries`` have the rules that find or reject a file.
"""

from __future__ import annotations


class CatalogueRow:
    """A row of the catalogue: the files of one component of the driver.

    :ivar component_class: the class of the row, which capabilities switch on.
    :ivar name: the start of a library's file names, or the whole name of a program.
    :ivar since: the first release of libnvidia-container that lists the row; "" for 1.0.
    """

    def __init__(self, component_class: str, name: str, since: str = "") -> None:
        self.component_class = component_class
        self.name = name
        self.since = since

    def __repr__(self) -> str:
        return f"CatalogueRow({self.component_class!r}, {self.name!r})"


#: Libraries. Rows of one class stand together, and classes are in lookup order; "glvnd" belongs to
#: graphics.
LIBRARIES = (
    CatalogueRow("utility", "libnvidia-ml.so"),
    CatalogueRow("utility", "libnvidia-cfg.so"),
    CatalogueRow("utility", "libnvidia-nscq.so", "1.4.0"),
    CatalogueRow("compute", "libcuda.so"),
    CatalogueRow("compute", "libcudadebugger.so", "1.10.0"),
    CatalogueRow("compute", "libnvidia-opencl.so"),
    CatalogueRow("compute", "libnvidia-gpucomp.so", "1.14.0"),
    CatalogueRow("compute", "libnvidia-ptxjitcompiler.so"),
    CatalogueRow("compute", "libnvidia-fatbinaryloader.so"),
    CatalogueRow("compute", "libnvidia-allocator.so", "1.1.0"),
    CatalogueRow("compute", "libnvidia-compiler.so"),
    CatalogueRow("compute", "libnvidia-pkcs11.so", "1.8.0"),
    CatalogueRow("compute", "libnvidia-pkcs11-openssl3.so", "1.14.0"),
    CatalogueRow("compute", "libnvidia-nvvm.so", "1.12.0"),
    CatalogueRow("compute", "libnvidia-tileiras.so", "1.19.0"),
    CatalogueRow("ngx", "libnvidia-ngx.so", "1.2.0"),
    CatalogueRow("video", "libvdpau_nvidia.so"),
    CatalogueRow("video", "libnvidia-encode.so"),
    CatalogueRow("video", "libnvidia-opticalflow.so", "1.0.2"),
    CatalogueRow("video", "libnvcuvid.so"),
    CatalogueRow("graphics", "libnvidia-eglcore.so"),
    CatalogueRow("graphics", "libnvidia-glcore.so"),
    CatalogueRow("graphics", "libnvidia-tls.so"),
    CatalogueRow("graphics", "libnvidia-glsi.so"),
    CatalogueRow("graphics", "libnvidia-fbc.so"),
    CatalogueRow("graphics", "libnvidia-ifr.so"),
    CatalogueRow("graphics", "libnvidia-rtcore.so", "1.0.4"),
    CatalogueRow("graphics", "libnvoptix.so", "1.0.4"),
    CatalogueRow("glvnd", "libGLX_nvidia.so"),
    CatalogueRow("glvnd", "libEGL_nvidia.so"),
    CatalogueRow("glvnd", "libGLESv2_nvidia.so"),
    CatalogueRow("glvnd", "libGLESv1_CM_nvidia.so"),
    CatalogueRow("glvnd", "libnvidia-glvkspirv.so", "1.0.3"),
    CatalogueRow("glvnd", "libnvidia-cbl.so", "1.0.7"),
)

#: Programs.
BINARIES = (
    CatalogueRow("utility", "nvidia-smi"),
    CatalogueRow("utility", "nvidia-debugdump"),
    CatalogueRow("utility", "nvidia-persistenced"),
    CatalogueRow("utility", "nv-fabricmanager", "1.4.0"),
    CatalogueRow("compute", "nvidia-cuda-mps-control"),
    CatalogueRow("compute", "nvidia-cuda-mps-server"),
)

#: capability -> classes of LIBRARIES that it switches on.
LIBRARY_CLASSES = {
    "compat32": (),
    "compute": ("compute",),
    "display": ("graphics", "glvnd"),
    "graphics": ("graphics", "glvnd"),
    "ngx": ("ngx",),
    "utility": ("utility",),
    "video": ("video", "compute"),
}

#: capability -> classes of BINARIES that it switches on.
BINARY_CLASSES = {"compute": ("compute",), "utility": ("utility",)}

#: Links to create beside a mounted library: (prefix of its name, link, target). The target "" is
#: the library's own name. Programs open these names, which are not SONAMEs, so that the loader
#: cache step does not create them.
LIBRARY_LINKS = (
    ("libcuda.so", "libcuda.so", "libcuda.so.1"),
    ("libGLX_nvidia.so", "libGLX_indirect.so.0", ""),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
)

#: The sockets of the host's services. A resolved path that is a suffix of one of them belongs to
#: utility.
SERVICE_SOCKETS = {
    "persistenced": "/var/run/nvidia-persistenced/socket",
    "fabricmanager": "/var/run/nvidia-fabricmanager/socket",
}

#: The directory of the MPS daemon's sockets, unless CUDA_MPS_PIPE_DIRECTORY names another.
MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own default

#: The major number of the GPU, control and modeset nodes (Linux' devices.txt).
NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254

#: /proc files copied into the container, in this order (reference behaviour 6.5 A1).
PROC_FILES = ("params", "version", "registry")

#: Of several TLS libraries, the one with this ABI tag is for the kernels that the driver supports.
TLS_LIBRARY = "libnvidia-tls.so"
TLS_ABI_TAG = (2, 3, 99)

#: The reference keeps GPUs in a 64-bit mask, and refuses more ("too many devices").
MAX_GPUS = 64
