"""``os``, ``signal`` and ``stat`` for the engine: the C modules that the standard library's own
modules are made of.

The engine's modules write ``from nvgraft.base._os import os, stat`` and use them as they would use
the others. Everything that the engine calls is in C, and the standard library's Python around it
costs every start time: ``os`` 1.2 ms, ``signal`` with ``enum`` 4 ms, ``stat`` 0.02 ms
(docs/decisions/0002). All three are loaded by the interpreter itself or by every start. What
``os.path`` would give is in :mod:`nvgraft.base.paths`.
"""

from __future__ import annotations

import _signal as signal
import _stat as stat
import posix as os

__all__ = ["os", "signal", "stat"]
