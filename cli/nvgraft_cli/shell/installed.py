"""Where this nvgraft is installed."""

#: The path of this module in an installation, below its prefix.
_BELOW_PREFIX = "/lib/nvgraft/cli/nvgraft_cli/shell/installed.py"


def default_prefix() -> str:
    """Return the prefix of this installation; ``/usr/local`` for a checkout."""
    return (
        __file__.removesuffix(_BELOW_PREFIX) if __file__.endswith(_BELOW_PREFIX) else "/usr/local"
    )
