"""Scripts of an image, followed without running them: what they do, and what they start.

``grammar`` parses shell scripts, ``run`` follows their commands, and ``exec_calls`` finds what a
Python or Perl script becomes; ``python`` follows statements of Python for it and for
``prove/python``. Which program runs a script belongs to ``prove/start``.
"""
