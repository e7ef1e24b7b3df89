"""What a dynamic loader does: ``search`` finds one library, ``loading`` loads an object with all
that it needs, ``code_opens`` what a program's own code opens first, ``access`` tells which files
its user may read, ``precedence`` why one comes first.

Which program asks belongs to ``prove/start``, what the answer is worth to ``prove``.
"""
