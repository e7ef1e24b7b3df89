"""``./dev bench``: what a start costs, where the time goes, and how it grows. Nothing here passes or fails by a time.

:mod:`bench.command` says what is measured, :mod:`bench.node` measures it on a simulated node, :mod:`bench.phases` is the hook
with a clock in it, :mod:`bench.report` and :mod:`bench.chart` show the figures.
"""
