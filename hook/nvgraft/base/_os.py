"""``os`` for the engine: the C module that the standard library's ``os`` is made of.

The engine's modules write ``from nvgraft.base._os import os`` and use it like ``os``. Loading the
standard library's own module with ``posixpath``, ``stat`` and ``abc`` costs a start of the hook 1.2
ms, and everything that the engine calls is in C (docs/decisions/0026). What ``os.path`` would give
is in :mod:`nvgraft.base.paths`.
"""

from __future__ import annotations

import posix as os

__all__ = ["os"]
