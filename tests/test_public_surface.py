"""What users rely on by name stays as it is."""

from pathlib import Path

from public_surface import surface

HELD = Path(__file__).parent / "fixtures/public_surface.txt"


def test_every_name_that_users_rely_on_is_there() -> None:
    """Commands, options, exit codes, document keys, ids, settings: none goes, and none comes unnoticed.

    tests/public_surface.py says how to write the file anew after a deliberate change.
    """
    held, now = set(HELD.read_text().splitlines()), set(surface())
    assert {"gone": held - now, "new": now - held} == {"gone": set(), "new": set()}
