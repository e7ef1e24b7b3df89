"""Containers whose program does not start, and how it is searched."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from bundles import put
from loaders import ELF, LOADER, X86, Captured, run_prove, starters_bundle
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object

#: Revision 2 with the effective bit, and CAP_SYS_ADMIN (21) permitted (struct vfs_cap_data).
SYS_ADMIN = struct.pack("<5I", 2 << 24 | 1, 1 << 21, 0, 0, 0)


@pytest.mark.parametrize(
    ("args", "starts"),
    [
        (["app"], False),
        (["/usr/bin/app"], True),
        (["/usr/bin/env", "app"], True),
        (["/usr/bin/env", "own"], False),
        (["/usr/bin/sh", "-c", "exec own"], True),
    ],
)
def test_a_container_without_path(
    args: list[str], starts: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Without PATH a runtime finds no program, execvp(3) those in /bin and /usr/bin, and a shell
    more.
    """
    path = starters_bundle(tmp_path / "b", args=args)
    put(tmp_path / "b/rootfs/usr/local/bin/own", ELF)
    config = json.loads(Path(path, "config.json").read_text())
    config["process"]["env"] = [entry for entry in config["process"]["env"] if "PATH=" not in entry]
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "--bundle", path)[0] == (0 if starts else 1)


def test_a_program_that_nobody_may_execute_is_passed_over(tmp_path: Path, capsys: Captured) -> None:
    """A search in PATH takes the first file that can be executed."""
    path = starters_bundle(tmp_path / "b", "PATH=/opt/app/bin:/usr/bin", args=["own"])
    root = tmp_path / "b/rootfs"
    put(root / "usr/bin/own", ELF)
    assert run_prove(capsys, "--bundle", path)[1][0]["program"] == "/opt/app/bin/own"
    (root / "opt/app/bin/own").chmod(0o644)
    assert run_prove(capsys, "--bundle", path)[1][0]["program"] == "/usr/bin/own"


def test_a_program_that_is_not_there_loads_nothing(tmp_path: Path, capsys: Captured) -> None:
    """The runtime does not start it, so that prove says the same as doctor."""
    code, (proof,) = run_prove(capsys, "--bundle", starters_bundle(tmp_path / "b", args=["other"]))
    assert code == 1
    words = 'exec: "other": executable file not found in $PATH'
    assert proof["failures"][0]["words"] == words
    path = starters_bundle(tmp_path / "l", args=["/usr/bin/loop"])
    (tmp_path / "l/rootfs/usr/bin/loop").symlink_to("loop")
    assert run_prove(capsys, "--bundle", path)[0] == 1


@pytest.mark.parametrize(
    "line", ["conda activate x", "export PATH=$(find / -name none)/bin:/bin", ":"]
)
def test_a_program_that_a_script_may_have_found(
    line: str, tmp_path: Path, capsys: Captured
) -> None:
    """Where a script may have set PATH, a program that is not found may be there."""
    path = starters_bundle(tmp_path / "b", args=["/entry.sh"])
    put(tmp_path / "b/rootfs/entry.sh", f"#!/usr/bin/sh\n{line}\nexec /usr/bin/env none\n")
    assert run_prove(capsys, "--bundle", path)[0] == (1 if line == ":" else 0)


@pytest.mark.parametrize(
    ("arguments", "file", "mode", "volume", "words"),
    [
        (["/opt/x/own"], "own", 0o644, (), 'exec: "/opt/x/own": permission denied (nobody may '),
        (["own"], "own", 0o644, (), 'exec: "own": executable file not found in $PATH (/opt/x/own'),
        (["/opt/x/own"], "own", 0o744, (), "the container's user may not execute it: its mode is"),
        (["/opt/x"], "own", 0o755, (), 'exec: "/opt/x": permission denied (it is a directory)'),
        (["/opt/x/run"], "own", 0o644, (), "exec /opt/x/run: permission denied (/opt/x/own: "),
        (["/opt/x/own"], "own", 0o755, ("noexec",), "the volume /opt/x has the option noexec"),
        (["/opt/x/own"], "own", 0o755, ("ro",), ""),
        (["/opt/x/own"], "", 0o700, (), "the container's user may not search its directory"),
        (["env", "/opt/x/own"], "own", 0o644, (), "exec /opt/x/own: permission denied (nobody"),
        (["env", "none"], "own", 0o755, (), "exec none: no such file or directory"),
        ([LOADER, "/opt/x/own"], "own", 0o644, (), ""),
        (["/opt/x/run"], "run", 0o711, (), "exec /opt/x/run: permission denied (its interpreter"),
    ],
)
def test_a_program_that_may_not_be_executed(
    arguments: list[str],
    file: str,
    mode: int,
    volume: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """Nothing loads in a container whose program the kernel refuses; doctor says so as well."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = starters_bundle(
        tmp_path / "b", "PATH=/usr/bin:/opt/x", args=arguments, user=user, capabilities={}
    )
    place = tmp_path / "b/rootfs/opt/x"
    put(place / "own", ELF)
    put(place / "run", "#!/opt/x/own\n")
    (place / "libcuda.so.1").unlink()
    if volume:
        config = json.loads(Path(path, "config.json").read_text())
        mount = {"destination": "/opt/x", "type": "bind", "source": str(place)}
        config["mounts"] = [mount | {"options": ["bind", *volume]}]
        Path(path, "config.json").write_text(json.dumps(config))
    (place / file).chmod(mode)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    place.chmod(0o755)
    assert code == (1 if words else 0)
    if words:
        assert words in proof["failures"][0]["words"]
    (place / file).chmod(mode)
    main(["doctor", "--bundle", path, "--host", "eks-t4"])
    place.chmod(0o755)
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("This container does not start: exec") is bool(words)


@pytest.mark.parametrize(
    ("text", "volume", "code"),
    [
        ("set -e\nfetch_model\n", "", 1),
        ("fetch_model\n", "", 0),
        ("set -e\nfetch_model\n", "/usr/local/bin", 0),
    ],
)
def test_a_script_that_ends_before_the_program(
    text: str, volume: str, code: int, tmp_path: Path, capsys: Captured
) -> None:
    """Nothing loads where a script ends before it starts the program; doctor says so as well.

    What a volume that is not read has may be there.
    """
    path = starters_bundle(tmp_path / "b", args=["/entry.sh"])
    put(tmp_path / "b/rootfs/entry.sh", f"#!/usr/bin/sh\n{text}exec /usr/bin/app\n")
    config = json.loads(Path(path, "config.json").read_text())
    mount = {"destination": volume, "type": "nfs", "source": "server:/"}
    config["mounts"] = [mount] if volume else []
    config["process"]["env"].append("PATH=/usr/local/bin:/usr/bin")
    Path(path, "config.json").write_text(json.dumps(config))
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    words = "/entry.sh: fetch_model: not found"
    assert [failure["words"] for failure in proof["failures"]] == [words] * code
    main(["doctor", "--bundle", path, "--host", "eks-t4"])
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert (verdict == f"This container does not start: {words}.") is bool(code)


@pytest.mark.parametrize(
    ("files", "code"),
    [({"etc/profile": "mesg n\n"}, 1), ({"e.sh": "mesg n\nfetch_model\n"}, 0)],
)
def test_a_program_that_another_one_may_bring(
    files: dict[str, str], code: int, tmp_path: Path, capsys: Captured
) -> None:
    """A script's programs may bring what it starts then, as pip does: that is not known, and said.

    The files that a login reads bring none.
    """
    path = starters_bundle(tmp_path / "b", args=["bash", "-l", "/e.sh"])
    put(tmp_path / "b/rootfs/usr/bin/mesg", ELF)
    for name, text in ({"e.sh": "fetch_model\n"} | files).items():
        put(tmp_path / "b/rootfs" / name, text)
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    fact = "what `fetch_model` is, which the script starts"
    assert [text for text in proof["unknown"] if text.startswith("what `")] == [fact] * (1 - code)


def test_a_mount_that_only_has_the_type_bind(tmp_path: Path, capsys: Captured) -> None:
    """runc and crun bind only with the option: the kernel has no file system of that name."""
    path = starters_bundle(tmp_path / "b")
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [{"destination": "/srv", "type": "bind", "source": "x", "options": ["ro"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == 1
    assert "no such device (type bind needs the option bind" in proof["failures"][0]["words"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/none\n", "no such file or directory (the image lacks /bin/none, which"),
        ("#!/usr/bin/sh\r\n", "no such file or directory (the image lacks /usr/bin/sh\\x0d, which"),
        ("exec app\n", "exec format error (it is neither a program nor a script)"),
    ],
)
def test_a_program_that_the_kernel_does_not_start(
    text: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """Nothing loads in a container whose program does not start; doctor says so as well."""
    path = starters_bundle(tmp_path / "b", args=["/entry.sh"])
    put(tmp_path / "b/rootfs/entry.sh", text)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["verdict"]) == (1, "no")
    assert f"exec /entry.sh: {words}" in proof["failures"][0]["words"]
    assert main(["doctor", "--bundle", path, "--host", "eks-t4"]) == 1
    assert "program-missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "capabilities", "refused"),
    [
        (SYS_ADMIN, {"bounding": ["CAP_KILL"]}, True),
        (SYS_ADMIN, {"bounding": ["CAP_SYS_ADMIN"]}, False),
        (SYS_ADMIN, None, False),
        (struct.pack("<5I", 2 << 24, 1 << 21, 0, 0, 0), {"bounding": []}, False),
        (struct.pack("<5I", 2 << 24 | 1, 0, 0, 1 << 7, 0), {"bounding": ["CAP_KILL"]}, True),
        (struct.pack("<3I", 1 << 24 | 1, 1 << 21, 0), {"bounding": ["CAP_KILL"]}, True),
        (
            struct.pack("<5I", 2 << 24 | 1, 1 << 21, 1 << 21, 0, 0),
            {"bounding": [], "inheritable": ["CAP_SYS_ADMIN"]},
            False,
        ),
        (SYS_ADMIN[:9], {"bounding": []}, False),
        (b"", {"bounding": []}, False),
    ],
)
@pytest.mark.parametrize("args", [["app"], ["env", "app"]])
def test_file_capabilities_outside_of_the_bounding_set(
    args: list[str],
    data: bytes,
    capabilities: dict[str, list[str]] | None,
    refused: bool,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel starts no program that would lack one of its effective file capabilities."""
    app = tmp_path / "b/rootfs/usr/bin/app"
    path = starters_bundle(tmp_path / "b", args=args, capabilities=capabilities)

    def getxattr(fd: int, _name: str) -> bytes:
        if os.fstat(fd).st_ino == app.stat().st_ino and data:
            return data
        raise OSError(errno.ENODATA, "no data")

    monkeypatch.setattr(os, "getxattr", getxattr)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (1 if refused else 0)
    words = [failure["words"] for failure in proof["failures"]]
    assert all("app: operation not permitted (its file capability CAP_" in text for text in words)


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ("/srv/none", "/opt/x", 'error mounting "/srv/none" to rootfs at "/opt/x": stat /srv/none'),
        ("none", "/opt/new", "b/none: no such file or directory"),
        ("config.json", "/opt/x", ": not a directory: one of both is a directory, the other is a"),
        ("rootfs", "/usr/bin/app", ": not a directory: one of both is a directory, the other is a"),
        ("rootfs/opt/app", "/opt/x", ""),
        ("config.json", "/opt/new", ""),
        ("", "/opt/x", ""),
    ],
)
def test_a_volume_that_the_runtime_cannot_mount(
    source: str, place: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """A bind needs its source, of the same kind as its target; without it nothing starts."""
    path = starters_bundle(tmp_path / "b")
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [{"destination": place, "source": source, "options": ["rbind"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (1 if words else 0)
    assert all(words in failure["words"] for failure in proof["failures"])
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2"])
    assert ("does not start: error mounting" in capsys.readouterr().out) is bool(words)


def test_a_program_with_a_library_of_another_glibc_ends_at_once(
    tmp_path: Path, capsys: Captured
) -> None:
    """A library of the image that needs a newer glibc than the program's keeps it from starting."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", args=["own"])
    root = tmp_path / "b/rootfs"
    put(root / "usr/bin/own", executable(X86, "x", ["libx.so.1", "libc.so.6"], None, LOADER))
    needs = Loading(versions_needed={"libc.so.6": ["GLIBC_2.99"]})
    defines = Loading(versions_defined=["libc.so.6", "GLIBC_2.31"])
    libc = "lib/x86_64-linux-gnu/libc.so.6"
    put(root / libc, shared_object(64, X86, "libc.so.6", [], None, loading=defines))
    newer = shared_object(64, X86, "libx.so.1", ["libc.so.6"], None, loading=needs)
    put(root / "opt/x/libx.so.1", newer)
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    words = f"/{libc}: version `GLIBC_2.99' not found (required by /opt/x/libx.so.1)"
    ends = "This container starts, and its program ends at once"
    assert document["verdict"] == f"{ends}: /usr/bin/own: {words}."
    (row,) = (row for row in document["results"] if row["id"] == "glibc-too-old")
    (finding,) = row["findings"]
    assert finding["message"] == words
    assert finding["cause"] == (
        "the container's program ends at its start: /opt/x/libx.so.1 of the image needs a newer"
        " glibc than the one that is loaded"
    )


def test_a_program_that_lacks_a_library_ends_at_once(tmp_path: Path, capsys: Captured) -> None:
    """The verdict of doctor names the program; a library of the driver is one to be requested."""
    own = executable(X86, "x", ["libc.so.6", "libnone.so.1"], None, LOADER)
    path = starters_bundle(tmp_path / "b", args=["own"])
    put(tmp_path / "b/rootfs/usr/bin/own", own)
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2"])
    out = capsys.readouterr().out
    words = "libnone.so.1: cannot open shared object file: No such file or directory"
    assert out.endswith(f"starts, and its program ends at once: /usr/bin/own: {words}.\n")
    put(
        tmp_path / "b/rootfs/usr/bin/own",
        executable(X86, "x", ["libc.so.6", "libcuda.so.1"], None, LOADER),
    )
    more = ["--env", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", *more])
    assert "NVIDIA_DRIVER_CAPABILITIES=utility,compute: libcuda.so.1 is" in capsys.readouterr().out
