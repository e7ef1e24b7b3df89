"""``nvgraft diff``: what two descriptions of a container say, in one form (``sides``, one reader each), compared
(``compare``), and written (``render``); ``command`` is the command line.
"""
