"""Let a simulated host fail in the midst of a test: ``break_nvml.py HOST FAILURE``.

`nvgraft simulate --fail` does the same from the start, or on a running node that has a name.
"""

import shlex
import sys
from pathlib import Path


def command(failure: str, host: str = "runfile-a10x2") -> str:
    """Return the shell command that makes ``failure`` come about on a simulated host."""
    return shlex.join([sys.executable, __file__, host, failure])


def main(name: str, failure: str) -> None:
    """Make a failure come about on the simulated host that is the current root."""
    checkout = Path(__file__).parent.parent
    sys.path[:0] = [str(checkout / part) for part in ("hook", "cli", "specs")]
    from nvgraft_cli.simulate.standins import failures
    from nvgraft_specs import gallery
    from nvgraft_specs.models.host import load_host

    host = load_host(gallery.path(name))
    failures.apply([failures.parse(failure, host)], host)


if __name__ == "__main__":
    main(*sys.argv[1:])
