"""The one error that a command raises for what people gave it; ``main`` turns it into a line and exit code 2."""


class InputError(Exception):
    """Something that was named on the command line cannot be used; the text names it, the cause and the fix."""
