"""The command line of ``nvgraft unregister``; see :mod:`nvgraft_cli.register.command`."""

from nvgraft_cli.register.command import add_unregister_arguments as add_arguments

__all__ = ["add_arguments"]
