"""``nvgraft list``, ``info`` and ``configure``: a drop-in for nvidia-container-cli, also when
called by that name.

Command lines, output and exit codes are the original's (reference behaviour 4). The engine decides
what is found on a host, what a container gets and how it gets there, as for the hook.
"""
