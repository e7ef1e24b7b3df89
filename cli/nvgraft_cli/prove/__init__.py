"""``nvgraft prove``: tell whether a library or a program will load, and from which file.

``proof`` answers one question with what ``start``, ``script``, ``python`` and ``loader`` find,
``opened`` asks it for one case, also for ``why``, ``explain`` and ``doctor``, ``modules`` asks it
for a module of Python, and ``command`` prints the answers. Reading ELF files belongs to
:mod:`nvgraft_cli.case.dynamic`.
"""
