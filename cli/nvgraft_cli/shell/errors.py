"""The error for input that a command cannot use."""


class InputError(Exception):
    """Input that cannot be used; ``main`` prints it as one line and exits with 2.

    The text names the input, the cause and the fix.
    """
