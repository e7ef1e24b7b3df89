"""Find the pages of the documentation that came with this nvgraft."""

import os

#: The package's directory, which has some of the pages in a wheel.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def directory() -> str | None:
    """Return the directory of this nvgraft's documentation, or None.

    A checkout and an installation by ./dev have it, a wheel does not.
    """
    docs = os.path.join(os.path.dirname(os.path.dirname(_PACKAGE)), "docs")
    return docs if os.path.isdir(os.path.join(docs, "guide")) else None


def read(name: str) -> str:
    """Return the page ``name``, which a wheel has too: ``glossary.md`` or ``failures.md``."""
    with open(
        os.path.join(directory() or os.path.join(_PACKAGE, "docs"), name), encoding="utf-8"
    ) as page:
        return page.read()
