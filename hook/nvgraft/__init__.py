"""The engine: from an OCI state to a configured container.

Runs as root on nodes, so it loads the standard library's smallest parts and python-prctl and nothing else
(docs/decisions/0002). What a person runs, pretty-prints or documents belongs to ``nvgraft_cli``; what is a
contract (names, tables, document models) belongs to ``nvgraft_specs``.
"""

from __future__ import annotations

__version__ = "0.1.0"
