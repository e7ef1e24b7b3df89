"""``struct`` for the engine: the C module under the standard library's, 0.06 ms less for a start that reads binary files.

It stands apart from :mod:`nvgraft.base._os`, because a start that wants no GPU does without it (docs/decisions/0002).
"""

from __future__ import annotations

import _struct as struct

__all__ = ["struct"]
