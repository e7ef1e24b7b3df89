"""``nvgraft prove``: tell whether a library or a program will load, and from which file.

``search`` finds one library as a loader does, ``loading`` loads an object with all that it needs,
``program`` finds the program that the container runs, ``starters`` takes each step on the way to it
(one ``starter_`` module for each family of programs that start another one), ``start_errors`` tells
what does not start, ``shell_run`` and the other ``shell_`` modules follow scripts, ``proof``
answers one question, ``opened`` asks it for one case, also for ``why``, ``explain`` and ``doctor``,
``modules`` asks it for a module of Python, and ``command`` prints the answers. Reading ELF files
belongs to :mod:`nvgraft_cli.case.dynamic`.
"""
