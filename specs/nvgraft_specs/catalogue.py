"""Driver components by capability: the tables that decide which file belongs to which request.

Source: the recorded behaviour of nvidia-container-cli (reference behaviour 5.1). The order of rows is lookup order and mount
order. ``since`` is the first release of libnvidia-container that lists the row; empty means from 1.0.

Data only: how a file is found and when it is rejected is ``nvgraft.host.inventory``'s business.
"""

#: class -> rows of (name prefix, since). The first five classes are in lookup order; "glvnd" belongs to graphics.
LIBRARIES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "utility",
        (
            ("libnvidia-ml.so", ""),
            ("libnvidia-cfg.so", ""),
            ("libnvidia-nscq.so", "1.4.0"),
        ),
    ),
    (
        "compute",
        (
            ("libcuda.so", ""),
            ("libcudadebugger.so", "1.10.0"),
            ("libnvidia-opencl.so", ""),
            ("libnvidia-gpucomp.so", "1.14.0"),
            ("libnvidia-ptxjitcompiler.so", ""),
            ("libnvidia-fatbinaryloader.so", ""),
            ("libnvidia-allocator.so", "1.1.0"),
            ("libnvidia-compiler.so", ""),
            ("libnvidia-pkcs11.so", "1.8.0"),
            ("libnvidia-pkcs11-openssl3.so", "1.14.0"),
            ("libnvidia-nvvm.so", "1.12.0"),
            ("libnvidia-tileiras.so", "1.19.0"),
        ),
    ),
    ("ngx", (("libnvidia-ngx.so", "1.2.0"),)),
    (
        "video",
        (
            ("libvdpau_nvidia.so", ""),
            ("libnvidia-encode.so", ""),
            ("libnvidia-opticalflow.so", "1.0.2"),
            ("libnvcuvid.so", ""),
        ),
    ),
    (
        "graphics",
        (
            ("libnvidia-eglcore.so", ""),
            ("libnvidia-glcore.so", ""),
            ("libnvidia-tls.so", ""),
            ("libnvidia-glsi.so", ""),
            ("libnvidia-fbc.so", ""),
            ("libnvidia-ifr.so", ""),
            ("libnvidia-rtcore.so", "1.0.4"),
            ("libnvoptix.so", "1.0.4"),
        ),
    ),
    (
        "glvnd",
        (
            ("libGLX_nvidia.so", ""),
            ("libEGL_nvidia.so", ""),
            ("libGLESv2_nvidia.so", ""),
            ("libGLESv1_CM_nvidia.so", ""),
            ("libnvidia-glvkspirv.so", "1.0.3"),
            ("libnvidia-cbl.so", "1.0.7"),
        ),
    ),
)

#: class -> rows of (file name, since).
BINARIES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "utility",
        (
            ("nvidia-smi", ""),
            ("nvidia-debugdump", ""),
            ("nvidia-persistenced", ""),
            ("nv-fabricmanager", "1.4.0"),
        ),
    ),
    (
        "compute",
        (
            ("nvidia-cuda-mps-control", ""),
            ("nvidia-cuda-mps-server", ""),
        ),
    ),
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

#: Links made beside a mounted library whose name starts with the prefix: (prefix, link, target; "" is the mounted name).
#: Programs open these names although no SONAME is spelled so, hence no loader cache step makes them.
LIBRARY_LINKS = (
    ("libcuda.so", "libcuda.so", "libcuda.so.1"),
    ("libGLX_nvidia.so", "libGLX_indirect.so.0", ""),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
)

#: Sockets of host services. A resolved path that is a suffix of one of these is utility's.
SERVICE_SOCKETS = ("/var/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket")

#: Where the MPS daemon listens unless CUDA_MPS_PIPE_DIRECTORY says otherwise.
MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own default

#: The character device major of the GPU, control and modeset nodes (Linux' devices.txt).
NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254

#: /proc files copied into the container, in this order (reference behaviour 6.5 A1).
PROC_FILES = ("params", "version", "registry")

#: Only this exact ABI tag is the TLS library for the kernels that the driver supports.
TLS_LIBRARY = "libnvidia-tls.so"
TLS_ABI_TAG = (2, 3, 99)

#: More are refused by the reference ("too many devices"), which indexes them in a 64-bit mask.
MAX_GPUS = 64

#: IMEX channel ids are device minors: 20 bits.
IMEX_CHANNELS = 1 << 20
