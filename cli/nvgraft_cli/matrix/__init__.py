"""``nvgraft matrix``: plan many containers on many hosts.

``compute`` makes the plans, ``render`` writes the results, ``command`` is the command line.
"""
