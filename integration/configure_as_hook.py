"""An executable for the rig: the prestart hook made of two programs, like the original stack.

usage: configure_as_hook.py NVGRAFT-HOOK NVIDIA-CONTAINER-CLI prestart

The first program decides: its dry run prints a command line. The second one is run with that
command line and config.toml's variables.
"""

import json
import os
import subprocess
import sys
import tomllib

CONFIG = "/etc/nvidia-container-runtime/config.toml"


def main() -> None:
    """Become the second program; if the first one refuses, exit with its code."""
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
