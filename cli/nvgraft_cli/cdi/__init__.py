"""``nvgraft cdi``: write CDI specifications of hosts and of plans.

``discovery`` finds what a specification of a host contains, ``planned`` turns a plan into one,
``spec`` writes the document, ``command`` is the command line. Source of the rules: reference
behaviour 10.2 and 10.3.
"""

#: Ways to name devices: 0 and 0:1, NVML's UUIDs, gpu0 and mig0:1.
STRATEGIES = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES = ("index", "uuid")

#: Where engines find the program that creates links and the loader cache in a container.
HOOK = "/usr/bin/nvidia-cdi-hook"
