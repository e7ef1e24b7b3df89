"""Pods: from ``resources.limits`` to the config.json that a runtime gets, with the decisions of the
device plugin. What the runtime and the hook do with it is in :mod:`nvgraft_cli.case`.
"""
