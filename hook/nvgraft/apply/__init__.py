"""Carrying out a plan: the only room that changes anything in a container, with the undo and the journal of it.

A plan arrives finished, and is refused rather than repaired when it no longer fits what is found (SECURITY R18, R22).
What decides does not belong here, nor what asks the host or the request.
"""
