"""``nvgraft plan``: print a container's plan as text, as a document, or as a CDI specification.

Plans are made in :mod:`nvgraft_cli.case.planning`, and rendered as text in
:mod:`nvgraft_cli.shell.text`. Neither belongs here.
"""
