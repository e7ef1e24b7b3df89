"""Carrying out a plan: the only part of nvgraft that changes anything.

Here are the executor, its undo log, device rules and the loader cache step. What decides is not here: a plan
arrives finished, and is refused rather than repaired when it no longer fits what is found (SECURITY R18, R22).
"""
