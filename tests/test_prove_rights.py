"""What a program may load by its rights: bits of its file, its user, options of volumes."""

import json
import os
import struct
from pathlib import Path

import pytest

from bundles import put
from loaders import LOADER, X86, Captured, run_prove, starters_bundle
from nvgraft_cli.prove.loader.access import Access
from nvgraft_cli.simulate.stubs import Loading, executable


@pytest.mark.parametrize("no_new_privileges", [False, True])
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o755])
def test_a_program_with_more_rights_ignores_variables(
    mode: int, no_new_privileges: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A loader ignores LD_LIBRARY_PATH where the set-user-ID or set-group-ID bit has an effect."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = starters_bundle(
        tmp_path / "b",
        "LD_LIBRARY_PATH=/opt/x",
        user=user,
        capabilities={},
        noNewPrivileges=no_new_privileges,
    )
    (tmp_path / "b/rootfs/usr/bin/app").chmod(mode)
    code, _ = run_prove(capsys, "--bundle", path)
    assert code == (4 if no_new_privileges or mode == 0o755 else 0)


@pytest.mark.parametrize(
    ("effective", "no_new_privileges", "others"),
    [(1, False, False), (0, False, False), (1, True, False), (0, True, True)],
)
def test_file_capabilities_and_variables(
    effective: int,
    no_new_privileges: bool,
    others: bool,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader ignores LD_LIBRARY_PATH for a program with file capabilities; under no_new_privs,
    where the process gets none of them, for one with effective ones.
    """
    data = struct.pack("<5I", 2 << 24 | effective, 1 << 10, 0, 0, 0)
    monkeypatch.setattr(Access, "_file_capabilities", lambda *_: data)
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    env, held = "LD_LIBRARY_PATH=/opt/x", {"bounding": ["CAP_NET_BIND_SERVICE"]}
    path = starters_bundle(
        tmp_path / "b", env, user=user, capabilities=held, noNewPrivileges=no_new_privileges
    )
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize("options", [["bind"], ["bind", "nosuid"]])
def test_more_rights_on_a_volume(options: list[str], tmp_path: Path, capsys: Captured) -> None:
    """A volume with the option nosuid takes the effect from the set-user-ID bit."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = starters_bundle(
        tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", user=user, capabilities={}, args=["/srv/own"]
    )
    place = tmp_path / "b/rootfs/opt/app/bin"
    (place / "own").chmod(0o4755)
    config = json.loads(Path(path, "config.json").read_text())
    mount = {"destination": "/srv", "type": "bind", "source": str(place), "options": options}
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "--bundle", path)[0] == (4 if "nosuid" in options else 0)


@pytest.mark.parametrize(("mode", "others"), [(0o4755, False), (0o755, True)])
def test_a_program_with_more_rights_ignores_its_origin(
    mode: int, others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A loader expands $ORIGIN of such a program to its own directories alone."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = starters_bundle(tmp_path / "b", user=user, capabilities={}, args=["/opt/y/own"])
    loading = Loading(runpath="$ORIGIN/../x")
    own = put(
        tmp_path / "b/rootfs/opt/y/own",
        executable(X86, "x", ["libc.so.6"], None, LOADER, loading),
    )
    own.chmod(mode)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


def test_a_list_of_libraries_that_the_user_may_not_read(tmp_path: Path, capsys: Captured) -> None:
    """The loader ignores /etc/ld.so.preload if the program's user may not read it."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = starters_bundle(tmp_path / "b", user=user, capabilities={})
    listed = tmp_path / "b/rootfs/etc/ld.so.preload"
    listed.write_text("/opt/x/libcuda.so.1\n")
    assert run_prove(capsys, "--bundle", path)[0] == 4
    listed.chmod(0o600)
    assert run_prove(capsys, "--bundle", path)[0] == 0


@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_library_that_nobody_may_read(mode: int, tmp_path: Path, capsys: Captured) -> None:
    """A loader passes over a library without any right, also one of root without capabilities."""
    user = {"uid": os.getuid(), "gid": os.getgid()}
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", user=user, capabilities={})
    library_file = tmp_path / "b/rootfs/opt/x/libcuda.so.1"
    library_file.chmod(mode)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if mode else 0)


def test_a_library_on_a_volume_without_the_right_to_execute(
    tmp_path: Path, capsys: Captured
) -> None:
    """A loader cannot map code from a volume with the option noexec, and passes over nothing."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    config = json.loads(Path(path, "config.json").read_text())
    mount = {"destination": "/opt/x", "type": "bind", "source": f"{path}/rootfs/opt/x"}
    config["mounts"] = [mount | {"options": ["bind", "noexec"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["failures"][0]["words"]) == (
        1,
        "/opt/x/libcuda.so.1: failed to map segment from shared object (noexec)",
    )
