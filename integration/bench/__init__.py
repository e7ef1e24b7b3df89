"""``./dev bench``: what a start costs, where the time goes, and how it grows. No time fails a test.

:mod:`bench.command` is the command, :mod:`bench.measure` chooses what to measure, :mod:`bench.node`
    measures on a simulated node, :mod:`bench.phases` is the hook with a clock in it, and
:mod:`bench.report` and :mod:`bench.chart` show the figures.
"""
