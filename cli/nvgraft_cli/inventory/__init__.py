"""``nvgraft inventory`` and ``nvgraft watch``: the inventory that the hook keeps between
containers.

``refresh`` reads and keeps it anew, ``watcher`` does so when ``uevents`` or changed files call for
it. When a kept inventory is valid is decided in :mod:`nvgraft.host.kept_inventory`, not here.
"""
