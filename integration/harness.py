"""Functions that integration tests call; fixtures are in conftest.py."""

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from nvgraft.system import syscalls

T = TypeVar("T")
CHECKOUT = Path(__file__).parent.parent
#: Recorded behaviour of the reference stack, and the rig that runs a hook against it.
REFERENCE = CHECKOUT / "tests" / "fixtures" / "reference"
RIG = [sys.executable, str(REFERENCE / "rig.py")]
#: Further records and rigs beside the checkout: mark a test with requires("shared-records").
SHARED_RECORDS = CHECKOUT.parent / "shared" / "reference"
#: The program itself: Ubuntu's /sbin/ldconfig is a script in front of it.
LDCONFIG = "/sbin/ldconfig.real" if Path("/sbin/ldconfig.real").exists() else "/sbin/ldconfig"
#: CUDA runtimes, by major version, and Python packages that ask a GPU's driver, as ./dev unpacks
#: them.
CUDA_PACKAGES = CHECKOUT / ".cache/cuda"
#: gVisor's runtime, as ./dev unpacks it.
RUNSC = CHECKOUT / ".cache/runsc/usr/bin/runsc"
#: No driver can be asked for its version on a simulated host.
RUNSC_OPTIONS = "--platform=systrap --network=none --ignore-cgroups --nvproxy --nvproxy-driver-version=550.54.14"


class Installed(NamedTuple):
    """The paths of a ``./dev install``."""

    prefix: Path
    hook: Path
    cli: Path
    #: The directory that the hook's launcher adds to ``sys.path``.
    library: Path


def assert_agrees_with_records(host: str, cases: Path, answers: Path, hook: list[str]) -> None:
    """Run ``hook`` over every case of the file ``cases`` on a recorded host, and compare with the
    records.
    """
    document = str(REFERENCE / "hosts" / f"{host}.json")
    ran = subprocess.run(
        [*RIG, "run", document, str(cases), str(answers), "--", *hook],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    # The records were made where ldconfig is not a script.
    answers.write_text(
        answers.read_text().replace(f"process {LDCONFIG} ", "process /sbin/ldconfig ")
    )
    compared = subprocess.run(
        [*RIG, "compare", str(cases), str(answers)], capture_output=True, text=True
    )
    count = len(cases.read_text().splitlines())
    assert compared.stdout.splitlines()[-1] == f"{count} passed, 0 failed", compared.stdout


def run_in_mount_namespace(function: Callable[[], T], *, own_pids: bool = False) -> T:
    """Run ``function`` in a child with a private mount namespace and return its result. Root only.

    The mounts end with the child. With ``own_pids`` it is process 1 of a new pid namespace, which
    has its own settings. The result, or the exception, must be picklable. An exception comes back
    as an AssertionError that quotes it.
    """
    # A file, not a pipe: processes that the function leaves running are ended below, and would keep
    # a pipe open until then.
    answer = os.memfd_create("answer")
    child = syscalls.fork_in_pid_namespace() if own_pids else os.fork()
    if child == 0:
        outcome: tuple[str, object]
        try:
            os.setsid()
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            if own_pids:
                syscalls.mount("proc", "/proc", "proc", 0)
            outcome = ("value", function())
        except BaseException:  # noqa: BLE001 - the parent reports whatever ended the child
            outcome = ("error", traceback.format_exc())
        with os.fdopen(answer, "wb") as file:
            pickle.dump(outcome, file)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(answer, "rb") as file:
        file.seek(0)
        said = file.read()
    assert said, f"the child in the mount namespace ended with status {status} and no result"
    kind, value = pickle.loads(said)
    assert kind == "value", value
    return value  # type: ignore[no-any-return]
