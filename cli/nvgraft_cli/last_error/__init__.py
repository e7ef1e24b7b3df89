"""``nvgraft last-error``: print what the hook last said about a container.

The hook writes the records (:mod:`nvgraft.report.last_error`). What a message means is the answer
of ``explain-error`` and does not belong here.
"""
