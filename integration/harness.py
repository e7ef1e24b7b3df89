"""What integration tests call; fixtures are in conftest.py."""

import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from nvgraft import syscalls

T = TypeVar("T")
CHECKOUT = Path(__file__).parent.parent


class Installed(NamedTuple):
    """Where ``./dev install`` has put things."""

    prefix: Path
    hook: Path
    cli: Path
    #: The directory that the hook's launcher adds to ``sys.path``.
    library: Path


def run_in_mount_namespace(function: Callable[[], T]) -> T:
    """Run ``function`` in a child with a private mount namespace and return its result; its mounts end with it.

    Root only. The result, or the exception, has to be picklable; an exception comes back as an AssertionError that
    quotes it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome: tuple[str, object]
        try:
            os.close(reader)
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            outcome = ("value", function())
        except BaseException:  # noqa: BLE001 - whatever ended the child is reported by the parent
            outcome = ("error", traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert answer, f"the child in the mount namespace ended with status {status} and no result"
    kind, value = pickle.loads(answer)
    assert kind == "value", value
    return value  # type: ignore[no-any-return]
