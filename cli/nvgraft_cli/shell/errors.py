"""The error for what a command cannot use or do."""


class InputError(Exception):
    """Input that cannot be used; ``main`` prints it as one line and exits with ``exit_code``.

    The text names the input, the cause and, after ` | ` or the last colon, the fix.
    """

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code
