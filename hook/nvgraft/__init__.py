"""The engine: from an OCI state to a configured container.

The engine runs as root on nodes at each start of a container. Therefore it only loads small parts
of the standard library and python-prctl (docs/decisions/0002). Commands for people belong to
``nvgraft_cli``; contracts (names, tables, document models) belong to ``nvgraft_specs``.
"""

from __future__ import annotations

__version__ = "0.1.0"
