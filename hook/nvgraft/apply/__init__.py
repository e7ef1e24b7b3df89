"""Carry out a plan: the only room that changes anything in a container, with its undo and its
journal.

A plan arrives finished. It is refused, not repaired, when it no longer fits the container (SECURITY
R18, R22). Decisions, and questions to the host or about the request, do not belong here.
"""
