"""``nvgraft explain-error``: say what a pasted error of a GPU container means.

``analysis`` finds the known errors in a text and their causes; ``command`` is the command line. The
errors themselves are data of ``nvgraft_specs``. Checks of this machine belong to ``doctor``.
"""
