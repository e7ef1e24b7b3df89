"""An executable for the rig: the prestart hook made of two programs, as the original stack has it.

usage: configure_as_hook.py NVGRAFT-HOOK NVIDIA-CONTAINER-CLI prestart

The first decides (its dry run prints a command line), the second is run with that command line and config.toml's variables.
"""

import json
import os
import subprocess
import sys
import tomllib

CONFIG = "/etc/nvidia-container-runtime/config.toml"


def main() -> None:
    """Become the second program; the exit code of the first one is kept when it refuses."""
    hook, cli = sys.argv[1:3]
    decided = subprocess.run(
        [hook, "-dry-run", "prestart"], stdin=sys.stdin, capture_output=True, text=True
    )
    sys.stderr.write(decided.stderr)
    sys.stderr.flush()
    if decided.returncode or not decided.stdout:
        raise SystemExit(decided.returncode)
    with open(CONFIG, "rb") as file:
        entries = tomllib.load(file).get("nvidia-container-cli", {}).get("environment", [])
    variables = dict(entry.partition("=")[::2] for entry in entries)
    os.execve(cli, [cli, *json.loads(decided.stdout)], os.environ | variables)


if __name__ == "__main__":
    main()
