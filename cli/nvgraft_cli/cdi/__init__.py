"""``nvgraft cdi``: write, list, check and keep CDI specifications.

``generate`` and ``refresh`` write what ``content`` finds, with the engine's room ``nvgraft.cdi``;
``planned`` turns a plan into a specification, ``spec`` writes the text. ``listing``, ``validate``
and ``transform`` read specifications of anybody; ``roots`` has their paths below another root.
Source of the rules: reference behaviour 10.
"""

#: Ways to name devices: 0 and 0:1, NVML's UUIDs, gpu0 and mig0:1.
STRATEGIES = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES = ("index", "uuid")

#: Mode -> the kind of its devices.
MODES = {
    "nvml": "nvidia.com/gpu",
    "csv": "nvidia.com/gpu",
    "wsl": "nvidia.com/gpu",
    "management": "management.nvidia.com/gpu",
    "gds": "nvidia.com/gds",
    "mofed": "nvidia.com/mofed",
    "gdrcopy": "nvidia.com/gdrcopy",
    "nvswitch": "nvidia.com/nvswitch",
    "imex": "nvidia.com/imex-channel",
}

#: Where engines find the program that creates links and the loader cache in a container.
HOOK = "/usr/bin/nvidia-cdi-hook"
