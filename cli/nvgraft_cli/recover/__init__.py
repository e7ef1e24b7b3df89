"""``nvgraft recover``: remove what killed hooks have left behind.

It lists the journals and says what became of each thing. The removal itself is
:mod:`nvgraft.apply.leftovers`, which the next start of a container uses, too.
"""
