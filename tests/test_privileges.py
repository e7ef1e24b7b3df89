"""The capabilities that each phase keeps. Each case is a process of its own, because dropped
capabilities do not come back.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import _prctl
import prctl
import pytest

from nvgraft.system import privileges, syscalls

HEAD = """
import json, os, sys
sys.path += {path!r}
import prctl
from nvgraft.system import privileges

def has():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    return {{name: int(status["Cap" + name], 16) for name in ("Eff", "Prm", "Inh", "Bnd")}}
"""


def run(script: str, **settings: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", HEAD.format(path=sys.path) + script],
        capture_output=True,
        text=True,
        timeout=30,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bits(capabilities: "frozenset[int]") -> int:
    return sum(1 << capability for capability in capabilities)


def test_later_phases_have_fewer_capabilities() -> None:
    """Each phase has a subset of the capabilities of the phase before; the first loses module
    loading and mknod.
    """
    assert privileges.APPLY < privileges.LOOK < privileges.START
    assert {prctl.CAP_SYS_MODULE, prctl.CAP_MKNOD} == privileges.START - privileges.LOOK
    assert {prctl.CAP_SYS_PTRACE} == privileges.LOOK - privileges.APPLY
    dangerous = {
        prctl.CAP_SYS_RAWIO,
        prctl.CAP_SYS_BOOT,
        prctl.CAP_SYS_TIME,
        prctl.CAP_MAC_ADMIN,
        prctl.CAP_SETFCAP,
        prctl.CAP_NET_RAW,
    }
    assert not dangerous & privileges.START


def test_the_numbers_are_the_kernels() -> None:
    """The numbers of capabilities, which planning needs without python-prctl, equal the
    kernel's.
    """
    names = [name for name in vars(privileges) if hasattr(_prctl, f"CAP_{name}")]
    assert len(names) == 16
    assert {name: getattr(privileges, name) for name in names} == {
        name: getattr(_prctl, f"CAP_{name}") for name in names
    }


@pytest.mark.requires("root")
@pytest.mark.parametrize("phase", ["START", "LOOK", "APPLY"])
def test_keep_drops_all_other_capabilities(phase: str) -> None:
    """keep() drops all other capabilities from every set, including the bounding set, and an
    executed program does not regain them.
    """
    script = f"""
before = has()
privileges.keep(privileges.{phase})
after = has()
child = os.popen("grep -E 'Cap(Eff|Prm)' /proc/self/status").read().split()
print(json.dumps([before, after, int(child[3], 16)]))
"""
    before, after, executed = run(script)
    expected = bits(getattr(privileges, phase)) & before["Prm"]
    assert before["Prm"] != expected, "this process has no capability to drop"
    assert after == {"Eff": expected, "Prm": expected, "Inh": 0, "Bnd": expected}
    assert executed == expected


@pytest.mark.requires("root")
def test_become_drops_every_capability() -> None:
    """become() sets the ids, drops all groups and capabilities, and locks the kernel's special
    treatment of root off.
    """
    script = """
os.setgroups([4, 24])
privileges.become(12345, 54321, fixed_groups=False)
print(json.dumps([has(), os.getresuid(), os.getresgid(), os.getgroups(), prctl.get_securebits(), prctl.get_no_new_privs()]))
"""
    sets, uids, gids, groups, bits_, no_new = run(script)
    assert sets == dict.fromkeys(("Eff", "Prm", "Inh", "Bnd"), 0)
    assert (uids, gids, groups) == ([12345] * 3, [54321] * 3, [])
    assert (
        bits_ & (prctl.SECBIT_NOROOT | prctl.SECBIT_NOROOT_LOCKED)
        == prctl.SECBIT_NOROOT | prctl.SECBIT_NOROOT_LOCKED
    )
    assert no_new == 1


@pytest.mark.requires("root")
def test_an_unprivileged_process_is_refused_by_demand_only() -> None:
    """Without privileges keep() and confine() succeed, and demand() refuses."""
    script = """
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
privileges.keep(privileges.START)
privileges.confine()
try:
    privileges.demand()
except Exception as error:
    print(json.dumps([error.reference_line(), error.hint]))
"""
    line, hint = run(script)
    assert line == "nvgraft: permission error: capability change failed: operation not permitted"
    assert "CAP_SYS_ADMIN" in hint


@pytest.mark.requires("root")
def test_demand_accepts_root() -> None:
    """demand() accepts root and the root of a user namespace, who has the capability there."""
    privileges.demand()
    child = os.fork()  # not a new interpreter, which that root might not be allowed to read
    if child == 0:
        status = 1
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            Path("/proc/self/uid_map").write_text("0 0 1")
            privileges.demand()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_capability_unknown_to_the_kernel_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """forbid() ignores EINVAL, with which an older kernel answers for an unknown capability; other
    failures are raised.
    """

    def refuse(number: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_prctl, "prctl", lambda *_: refuse(22))
    privileges.forbid([60])
    monkeypatch.setattr(_prctl, "prctl", lambda *_: refuse(1))
    with pytest.raises(PermissionError):
        privileges.forbid([60])
