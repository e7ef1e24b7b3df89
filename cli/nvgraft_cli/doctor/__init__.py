"""``nvgraft doctor``: find what will go wrong before a container starts.

``patient`` gathers the facts that checks read, ``machine`` those that no snapshot records. The
modules ``*_checks`` have one function for each failure of :mod:`nvgraft_specs.checks`;
``examination`` runs them, ``command`` prints the results. A check that lacks a fact says so; it
never says "ok".
"""
