"""``python -m nvgraft_cli.pages DIRECTORY``: write all pages below DIRECTORY/share."""

import os
import sys
from pathlib import Path

from nvgraft_cli.pages import completions, manual


def write(directory: Path) -> None:
    """Write all pages below ``directory``."""
    os.environ["COLUMNS"] = "80"  # argparse wraps texts before man does
    for place, text in {**completions.texts(), **manual.texts()}.items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
