"""The outcome of a jailed program. test_child.py tests following it; building the jail needs root
(integration).
"""

import pytest

from nvgraft.system import jail


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, b"", (0, 0, "")),
        (1 << 8, b"first\nlast words \n\n", (1, 0, "last words")),
        (9, b"\xff", (0, 9, "�")),
    ],
)
def test_outcome(status: int, output: bytes, expected: tuple[int, int, str]) -> None:
    """A wait status gives an exit code or a signal; the last line of the output that is not empty
    is quoted.
    """
    outcome = jail.ProgramEnd(status, "", output)
    assert (outcome.code, outcome.signal, outcome.last_line) == expected
