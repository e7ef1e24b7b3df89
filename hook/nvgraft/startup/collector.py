"""The garbage collector, which the launchers stop before anything is loaded.

What a start loads stays until the process ends, a moment later, and the collector would look through all of it again and
again. Objects still go with their last reference (docs/decisions/0002).
"""

from __future__ import annotations

import gc


def stop_collector() -> None:
    """Stop the search for objects that only refer to each other."""
    gc.disable()
