"""``nvgraft why``: for one thing, why it is in the container, or which rule keeps it out and what would let it in.

``subject`` finds out what was named, ``exclusion`` which rule excludes it first, ``change`` the smallest change that includes
it, tried out rather than guessed; ``answer`` puts it together and ``command`` prints it.
"""
