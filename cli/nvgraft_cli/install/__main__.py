"""``python3 -I cli/nvgraft_cli/install``: the installer, run from a checkout that is not installed
anywhere yet.
"""

import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[3]
# The first entry is this directory, whose modules have their full names.
sys.path[:1] = [f"{_CHECKOUT}/hook", f"{_CHECKOUT}/cli"]

from nvgraft_cli.install.install import main  # noqa: E402 - the directories above are needed first

raise SystemExit(main())
