"""``nvgraft list``, ``info`` and ``configure``: a drop-in for nvidia-container-cli, also when
called by that name.

Command lines, output and exit codes are the original's (reference behaviour 4). The engine decides
what is found on a host, what a container gets and how it gets there, as for the hook.
"""

#: The name by which this is the whole program.
ORIGINAL_NAME = "nvidia-container-cli"

#: Command -> its summary.
COMMANDS = {
    "info": "show the driver's version and the GPUs",
    "list": "list the driver's files and device nodes",
    "configure": "give the driver and devices to a container",
}
