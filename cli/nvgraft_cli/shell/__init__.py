"""The command line itself: the parser, confinement, errors as one line, output, logs and progress.

Commands are known by name only and loaded when they are asked for.
What a command does does not belong here.
"""
