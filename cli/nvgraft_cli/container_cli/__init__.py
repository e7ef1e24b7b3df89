"""``nvgraft list``, ``info`` and ``configure``: a drop-in for nvidia-container-cli, also when
called by that name.

Command lines, output and exit codes are the original's (reference behaviour 4). What is found on a
host, what a container gets and how it is put there is the engine's business, the same as in the
hook.
"""
