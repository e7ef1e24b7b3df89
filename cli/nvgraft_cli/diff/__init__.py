"""``nvgraft diff``: compare two descriptions of a container.

``readers`` reads each kind of description into the one form of ``sides``, ``compare`` compares two,
``render`` writes the difference, ``command`` is the command line.
"""
