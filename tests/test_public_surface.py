"""The names that users rely on stay as they are."""

from pathlib import Path

from public_surface import surface

HELD = Path(__file__).parent / "fixtures/public_surface.txt"


def test_every_name_that_users_rely_on_is_there() -> None:
    """Commands, options, exit codes, document keys, ids and settings are those of the recorded
    list.

    tests/public_surface.py says how to write the list again after a deliberate change.
    """
    held, now = set(HELD.read_text().splitlines()), set(surface())
    assert {"gone": held - now, "new": now - held} == {"gone": set(), "new": set()}
