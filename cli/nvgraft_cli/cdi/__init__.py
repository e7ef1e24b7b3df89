"""CDI specifications: what a host offers (``discovery``), a plan's own (``planned``), the document itself (``spec``), ``nvgraft cdi``
(``command``). Source of the rules: reference behaviour 10.2 and 10.3."""

#: Ways to name devices: 0 and 0:1, NVML's UUIDs, gpu0 and mig0:1.
STRATEGIES = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES = ("index", "uuid")

#: Where engines find the program that makes links and the loader cache in a container.
HOOK = "/usr/bin/nvidia-cdi-hook"
