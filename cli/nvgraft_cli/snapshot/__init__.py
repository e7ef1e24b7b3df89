"""``nvgraft snapshot``: record a host (``recording``) or a driver that is not installed
(``package``).

Reading recorded hosts belongs to :mod:`nvgraft.host.snapshot` and :mod:`nvgraft_cli.case.hosts`.
"""
