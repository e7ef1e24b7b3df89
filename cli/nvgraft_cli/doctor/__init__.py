"""``nvgraft doctor``: what will go wrong, before a container starts.

``patient`` is what is looked at, ``machine`` the part of it that no snapshot has. The ``*_checks`` modules hold one function for
each failure of :mod:`nvgraft_specs.checks`, ``examination`` runs them, ``command`` prints what came out. A check that lacks a fact
says so; it never says "ok".
"""
