"""``bisect_left`` and ``struct`` for the engine: the C modules under the standard library's own.

Each spares a start with GPUs the file of Python around it, 0.05 ms. They stand apart from
:mod:`nvgraft.base._os` because a start that wants no GPU loads neither of them
(docs/decisions/0002).
"""

from __future__ import annotations

import _struct as struct
from _bisect import bisect_left

__all__ = ["bisect_left", "struct"]
