"""Installing the programs: what the hook may load, byte code, launchers, and who may own the files.

It runs on the standard library alone, before anything of the project is installed.
Registering the hook with a container engine belongs to ``nvgraft_cli.register``.
"""
