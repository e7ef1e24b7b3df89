"""``nvgraft prove``: whether a library or a program will load in the container, and from where.

``search`` knows where a loader looks, ``loading`` walks from one object to the next as it does, ``proof`` puts one question to
it, ``command`` says what came out. What a file says of itself is :mod:`nvgraft_cli.case.dynamic`'s.
"""
