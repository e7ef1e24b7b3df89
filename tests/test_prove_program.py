"""Which program ``nvgraft prove`` takes for the container's own, its variables, rights and
volumes.
"""

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from bundles import put
from loaders import LOADER, X86, Captured, bundle, image, library, run_prove
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable

ELF = executable(X86, "x", ["libc.so.6"], None, LOADER)
STARTERS = ("bash", "busybox", "env", "tini", "sh", "timeout", "gosu", "nice")
OTHER = {"opt/x/libcuda.so.1": library("libcuda.so.1")}
PYTHON = """#!/usr/bin/python3
import os, sys
os.environ["LD_LIBRARY_PATH"] = "/opt/x"
os.execvp(sys.argv[1], sys.argv[1:])
"""
SETS = "export LD_LIBRARY_PATH=/opt/x"
RUN = "#!/usr/bin/sh\nexport LD_LIBRARY_PATH=/opt/x\nexec app\n"
EXECLINE = """#!/usr/bin/execlineb -P
# a service
foreground { echo { x } }
export LD_LIBRARY_PATH /opt/x
app -x
"""
CONDA: dict[str, str | bytes] = {
    "usr/bin/conda": ELF,
    "opt/conda/envs/ml/bin/other": ELF,
    "opt/conda/envs/ml/etc/conda/activate.d/a.sh": "export LD_LIBRARY_PATH=/opt/x\n",
}
ENTRYPOINT = b'#!/bin/sh\nset -e\nif [ "$1" = x ]; then\n  exit 1\nfi\nexec "$@"\n'


def made(place: Path, *env: str, **process: Any) -> str:
    """Return a bundle with programs that start others, and with these members of ``process``."""
    files = image(*OTHER.items(), *((f"usr/bin/{name}", ELF) for name in STARTERS))
    files |= {"entry.sh": ENTRYPOINT, "start.sh": b"#!/usr/bin/sh\nrun() { app; }\nrun\n"}
    files |= {"run.py": b"#!/usr/bin/env -S nice -n 1 app\n", "opt/app/bin/own": ELF}
    path = bundle(place, files, *env)
    config = json.loads(Path(path, "config.json").read_text())
    config["process"] |= process
    Path(path, "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("args", "program"),
    [
        (["app"], "/usr/bin/app"),
        (["tini", "-g", "-p", "SIGTERM", "--", "app", "-x"], "/usr/bin/app"),
        (["env", "-u", "HOME", "A=1", "app"], "/usr/bin/app"),
        (["env"], "/usr/bin/env"),
        (["timeout", "-s", "KILL", "5", "app"], "/usr/bin/app"),
        (["gosu", "user", "nice", "app"], "/usr/bin/app"),
        (["sh", "-c", 'exec app --all "$@"', "sh"], "/usr/bin/app"),
        (["sh", "-ec", "A=1 tini app"], "/usr/bin/app"),
        (["sh", "-c", "cd /work && app"], "/usr/bin/app"),
        (["sh", "-c", "mkdir -p /x; ./bin/own & wait"], "/opt/app/bin/own"),
        (["sh", "-c", "none; "], "/usr/bin/sh"),
        (["sh", "/entry.sh", "app"], "/usr/bin/app"),
        (["sh", "-c", "$PROGRAM"], "/usr/bin/sh"),
        (["sh", "-c"], "/usr/bin/sh"),
        (["sh"], "/usr/bin/sh"),
        (["/entry.sh", "app"], "/usr/bin/app"),
        (["/entry.sh"], "/bin/sh"),
        (["/start.sh", "app"], "/usr/bin/app"),
        (["/run.py"], "/usr/bin/app"),
        (["./bin/own"], "/opt/app/bin/own"),
        ([LOADER, "--argv0", "x", "/usr/bin/app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "nice", "app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "sh", "-c", "exec app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "httpd"], "/usr/bin/busybox"),
    ],
)
def test_the_program_that_the_container_runs(
    args: list[str], program: str, tmp_path: Path, capsys: Captured
) -> None:
    """Programs that become their argument are passed over; of a shell's commands, the last one that
    does more than prepare a start is the program. A shell is it where that is not known.
    """
    path = made(tmp_path / "b", args=args, cwd="/opt/app")
    (tmp_path / "b/rootfs/bin").symlink_to("usr/bin")
    _, (proof,) = run_prove(capsys, "--bundle", path)
    assert proof["program"] == program


@pytest.mark.parametrize(
    ("args", "env", "others"),
    [
        (["env", "LD_LIBRARY_PATH=/opt/x", "app"], [], True),
        (["env", "-i", "/usr/bin/app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        (["env", "-u", "LD_LIBRARY_PATH", "app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        (["sh", "-c", "LD_LIBRARY_PATH=/opt/x exec app"], [], True),
        ([LOADER, "--library-path", "/opt/x", "/usr/bin/app"], [], True),
        (["env", "-C", "/opt", "app"], ["LD_LIBRARY_PATH=x"], True),
        (["env", "-u", "LD_LIBRARY_PATH", "-C", "/", "app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        ([LOADER, "--library-path=/none", "/usr/bin/app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        ([LOADER, "--preload", "/opt/x/libcuda.so.1", "/usr/bin/app"], [], True),
    ],
)
def test_what_starts_a_program_gives_it_variables(
    args: list[str], env: list[str], others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Variables on the way count, and options of a loader in their place."""
    path = made(tmp_path / "b", *env, args=args)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (4 if others else 0)
    assert (proof["file"]["path"] == "/opt/x/libcuda.so.1") is others
    assert f"the container starts it through {Path(args[0]).name}" in proof["notes"]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("export LD_LIBRARY_PATH=/opt/x", True),
        ('export LD_LIBRARY_PATH="/opt/x:$LD_LIBRARY_PATH"', True),
        ("export LD_LIBRARY_PATH=${PLACE}/x", True),
        ("if [ -d /opt/x ]; then\n  export LD_LIBRARY_PATH=/opt/x\nfi", True),
        ("if [ ! -d /opt/x ]; then\n  export LD_LIBRARY_PATH=/opt/x\nfi", False),
        ("export LD_LIBRARY_PATH=$(dirname /opt/x/y)", True),
        ("export LD_LIBRARY_PATH=$(uname -m)/x", False),
        ("export LD_LIBRARY_PATH=/opt/x:$(uname -m)", True),
        ("LD_LIBRARY_PATH=/opt/x", False),
        ("HOME=/opt; [ -d ~/x ] && export LD_LIBRARY_PATH=~/x", True),
        ("HOME=/opt; export LD_LIBRARY_PATH='~/x'", False),
        ("export A=$A$A$PLACE\n" * 500, False),
    ],
)
def test_an_entry_point_exports_variables(
    line: str, others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """What a script exports for certain before it becomes its arguments counts."""
    path = made(tmp_path / "b", "PLACE=/opt", args=["/entry.sh", "app"])
    (tmp_path / "b/rootfs/bin").symlink_to("usr/bin")
    put(tmp_path / "b/rootfs/entry.sh", f'#!/bin/sh\n{line}\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize("no_new_privileges", [False, True])
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o755])
def test_a_program_with_more_rights_ignores_variables(
    mode: int, no_new_privileges: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A loader ignores LD_LIBRARY_PATH where the set-user-ID or set-group-ID bit has an effect."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = made(
        tmp_path / "b",
        "LD_LIBRARY_PATH=/opt/x",
        user=user,
        capabilities={},
        noNewPrivileges=no_new_privileges,
    )
    (tmp_path / "b/rootfs/usr/bin/app").chmod(mode)
    code, _ = run_prove(capsys, "--bundle", path)
    assert code == (4 if no_new_privileges or mode == 0o755 else 0)


@pytest.mark.parametrize("options", [["bind"], ["bind", "nosuid"]])
def test_more_rights_on_a_volume(options: list[str], tmp_path: Path, capsys: Captured) -> None:
    """A volume with the option nosuid takes the effect from the set-user-ID bit."""
    user = {"uid": os.getuid() + 1, "gid": os.getgid() + 1}
    path = made(
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
    path = made(tmp_path / "b", user=user, capabilities={}, args=["/opt/y/own"])
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
    path = made(tmp_path / "b", user=user, capabilities={})
    listed = tmp_path / "b/rootfs/etc/ld.so.preload"
    listed.write_text("/opt/x/libcuda.so.1\n")
    assert run_prove(capsys, "--bundle", path)[0] == 4
    listed.chmod(0o600)
    assert run_prove(capsys, "--bundle", path)[0] == 0


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
    path = made(tmp_path / "b", args=args)
    put(tmp_path / "b/rootfs/usr/local/bin/own", ELF)
    config = json.loads(Path(path, "config.json").read_text())
    config["process"]["env"] = [entry for entry in config["process"]["env"] if "PATH=" not in entry]
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "--bundle", path)[0] == (0 if starts else 1)


#: Revision 2 with the effective bit, and CAP_SYS_ADMIN (21) permitted (struct vfs_cap_data).
SYS_ADMIN = struct.pack("<5I", 2 << 24 | 1, 1 << 21, 0, 0, 0)


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
    path = made(tmp_path / "b", args=args, capabilities=capabilities)

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
    ("args", "others"),
    [
        (["sudo", "app"], False),
        (["sudo", "-E", "app"], False),
        (["sudo", "LD_LIBRARY_PATH=/opt/x", "app"], True),
        (
            [
                "sudo",
                "-E",
                "-H",
                "-u",
                "root",
                "A=",
                "LD_LIBRARY_PATH=/opt/x",
                "PATH=/usr/bin",
                "app",
            ],
            True,
        ),
        (["sudo", "--preserve-env=A,LD_LIBRARY_PATH", "app"], True),
        (["sudo", "-E", "sh", "-c", "LD_LIBRARY_PATH=$PLACE app"], True),
        (["sudo", "sh", "-c", "LD_LIBRARY_PATH=$PLACE app"], False),
    ],
)
def test_variables_that_sudo_gives(
    args: list[str], others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Sudo drops variables but those that it is told, and the loader's unless they are named."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", "PLACE=/opt/x", args=args)
    put(tmp_path / "b/rootfs/usr/bin/sudo", ELF)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


def test_a_program_that_nobody_may_execute_is_passed_over(tmp_path: Path, capsys: Captured) -> None:
    """A search in PATH takes the first file that can be executed."""
    path = made(tmp_path / "b", "PATH=/opt/app/bin:/usr/bin", args=["own"])
    root = tmp_path / "b/rootfs"
    put(root / "usr/bin/own", ELF)
    assert run_prove(capsys, "--bundle", path)[1][0]["program"] == "/opt/app/bin/own"
    (root / "opt/app/bin/own").chmod(0o644)
    assert run_prove(capsys, "--bundle", path)[1][0]["program"] == "/usr/bin/own"


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
    path = made(tmp_path / "b", "PATH=/usr/bin:/opt/x", args=arguments, user=user, capabilities={})
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


def test_a_library_on_a_volume_without_the_right_to_execute(
    tmp_path: Path, capsys: Captured
) -> None:
    """A loader cannot map code from a volume with the option noexec, and passes over nothing."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    config = json.loads(Path(path, "config.json").read_text())
    mount = {"destination": "/opt/x", "type": "bind", "source": f"{path}/rootfs/opt/x"}
    config["mounts"] = [mount | {"options": ["bind", "noexec"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["failures"][0]["words"]) == (
        1,
        "/opt/x/libcuda.so.1: failed to map segment from shared object (noexec)",
    )


@pytest.mark.parametrize(
    ("line", "uid", "code", "fact"),
    [
        ("ldconfig", 0, 4, ""),
        ("ldconfig", 1000, 4, ""),
        ("ldconfig -p", 0, 4, ""),
        ("ln -s /opt/x/libcuda.so.1 /srv", 0, 0, ""),
        ("ln -s /opt/x/libcuda.so.1 /srv", 1000, 0, "by `ln -s /opt/x/libcuda.so.1 /srv`"),
        ("rm -r /opt/x/", 0, 0, ""),
        ("export LD_LIBRARY_PATH=/opt/x; rm -r /opt/x/", 0, 0, ""),
        ("export LD_LIBRARY_PATH=/opt/x; rm -r /opt/x/", 1000, 4, "`rm -r /opt/x/`"),
        ("mkdir -p /srv/a; cp /opt/x/libcuda.so.1 /srv/a; export LD_LIBRARY_PATH=/srv/a", 0, 4, ""),
        ("cp -r /opt/x /srv/a; export LD_LIBRARY_PATH=/srv/a", 0, 4, ""),
        ("ln -s /opt/x /srv/a; export LD_LIBRARY_PATH=/srv/a", 0, 4, ""),
        ("mv /opt/x/libcuda.so.1 /srv/; export LD_LIBRARY_PATH=/opt/x", 0, 0, ""),
        ("if grep -q a /b; then ln -s /opt/x /srv/a; fi", 0, 0, ""),
        ("curl -o /usr/lib/libcuda.so.1 host/x", 0, 0, "by `curl -o /usr/lib/libcuda.so.1 host/x`"),
        ("echo /opt/x > /etc/ld.so.conf; ldconfig", 0, 4, ""),
        ("ldconfig -v /opt/x 2>&1 >/dev/null", 0, 4, ""),
        ("ldconfig -n /opt/x", 0, 0, ""),
        ("conda activate x", 0, 0, "what `conda activate x` sets"),
    ],
)
def test_what_a_script_does_before_it_starts_the_program(
    line: str, uid: int, code: int, fact: str, tmp_path: Path, capsys: Captured
) -> None:
    """ldconfig of root enters the directories of ld.so.conf in their order. What other commands
    change is not known, and prove and the verdict of doctor say so where it matters.
    """
    path = made(
        tmp_path / "b", "PATH=/usr/bin", args=["/entry.sh", "app"], user={"uid": uid, "gid": uid}
    )
    root = tmp_path / "b/rootfs"
    put(root / "entry.sh", f'#!/usr/bin/sh\n{line}\nexec "$@"\n')
    if line in {"ldconfig", "ldconfig -p"}:
        put(root / "etc/ld.so.conf", "/opt/x\n/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n")
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    rewritten = "ldconfig" in line and " -p" not in line and " -n" not in line and uid == 0
    assert ("writes anew" in proof["file"]["how"]) is rewritten
    told = [text for text in proof["unknown"] if text.startswith("what ")]
    assert len(told) == bool(fact)
    assert all(fact in text for text in told)
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    (shadowed,) = (row for row in document["results"] if row["id"] == "library-shadowed")
    levels = [finding["level"] for finding in shadowed["findings"]]
    scripted = fact.endswith("`")
    assert set(levels) == ({"warning"} if scripted else {"error"} if code else set())
    if fact and not code:
        assert f"; not known is {fact}" in document["verdict"] or scripted


def test_a_program_that_is_not_there_loads_nothing(tmp_path: Path, capsys: Captured) -> None:
    """The runtime does not start it, so that prove says the same as doctor."""
    code, (proof,) = run_prove(capsys, "--bundle", made(tmp_path / "b", args=["other"]))
    assert code == 1
    words = 'exec: "other": executable file not found in $PATH'
    assert proof["failures"][0]["words"] == words
    path = made(tmp_path / "l", args=["/usr/bin/loop"])
    (tmp_path / "l/rootfs/usr/bin/loop").symlink_to("loop")
    assert run_prove(capsys, "--bundle", path)[0] == 1


@pytest.mark.parametrize("line", ["conda activate x", "export PATH=$(where)/bin:/bin", ":"])
def test_a_program_that_a_script_may_have_found(
    line: str, tmp_path: Path, capsys: Captured
) -> None:
    """Where a script may have set PATH, a program that is not found may be there."""
    path = made(tmp_path / "b", args=["/entry.sh"])
    put(tmp_path / "b/rootfs/entry.sh", f"#!/usr/bin/sh\n{line}\nexec /usr/bin/env none\n")
    assert run_prove(capsys, "--bundle", path)[0] == (1 if line == ":" else 0)


def test_a_program_that_lacks_a_library_ends_at_once(tmp_path: Path, capsys: Captured) -> None:
    """The verdict of doctor names the program; a library of the driver is one to be requested."""
    own = executable(X86, "x", ["libc.so.6", "libnone.so.1"], None, LOADER)
    path = made(tmp_path / "b", args=["own"])
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


def test_a_device_in_the_place_of_a_library(tmp_path: Path, capsys: Captured) -> None:
    """A link to /dev/null is a file without bytes, at which the loader stops."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    place = tmp_path / "b/rootfs/opt/x/libcuda.so.1"
    place.unlink()
    os.mkfifo(place)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == 1
    assert proof["failures"][0]["words"] == "/opt/x/libcuda.so.1: file too short"


def test_a_file_that_is_mounted_over_the_link_is_loaded(tmp_path: Path, capsys: Captured) -> None:
    """The hook replaces no file that is mounted, so a volume on libcuda.so.1 hides the host's."""
    path = made(tmp_path / "b")
    place = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    config = json.loads(Path(path, "config.json").read_text())
    source = f"{path}/rootfs/opt/x/libcuda.so.1"
    mount = {"destination": place, "type": "bind", "source": source, "options": ["bind"]}
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["file"]["path"]) == (4, place)


def test_older_subdirectories_of_a_loader(tmp_path: Path, capsys: Captured) -> None:
    """A loader before 2.37 searches tls and x86_64 below each directory, its file shows."""
    files = image(("opt/x/tls/libcuda.so.1", library("libcuda.so.1")))
    variable = "LD_LIBRARY_PATH=/opt/x"
    assert run_prove(capsys, "--bundle", bundle(tmp_path / "new", files, variable))[0] == 0
    files[LOADER.lstrip("/")] += b"\0tls\0"
    code, (proof,) = run_prove(capsys, "--bundle", bundle(tmp_path / "old", files, variable))
    assert (code, proof["file"]["path"]) == (4, "/opt/x/tls/libcuda.so.1")
    assert proof["file"]["how"] == "LD_LIBRARY_PATH, in a subdirectory for processors"


@pytest.mark.parametrize(
    ("mount", "code", "unknown"),
    [
        ({"destination": "/opt/x", "type": "tmpfs"}, 0, False),
        ({"destination": "/opt/link", "type": "tmpfs"}, 0, False),
        ({"destination": "/opt/x", "type": "tmpfs", "options": ["tmpcopyup"]}, 4, False),
        ({"destination": "/opt", "type": "nfs", "source": "server:/none"}, 0, True),
        ({"destination": "/opt/x/libcuda.so.1", "type": "nfs", "source": "server:/x"}, 0, True),
        ({"destination": "/opt/xy", "type": "tmpfs"}, 4, False),
        ({"destination": "/dev/shm", "type": "tmpfs"}, 4, False),
    ],
)
def test_a_volume_covers_files_of_the_image(
    mount: dict[str, str], code: int, unknown: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A tmpfs hides the image's files. What another volume has is not known, and is said."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    (tmp_path / "b/rootfs/opt/link").symlink_to("x")
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    place = mount["destination"]
    fact = f"which libraries the volume {place} has, which comes first in the search"
    assert [text for text in proof["unknown"] if "volume" in text] == [fact] * unknown


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
    path = made(tmp_path / "b")
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [{"destination": place, "source": source, "options": ["rbind"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (1 if words else 0)
    assert all(words in failure["words"] for failure in proof["failures"])
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2"])
    assert ("does not start: error mounting" in capsys.readouterr().out) is bool(words)


def test_files_that_the_runtime_mounts_are_those_of_the_host(
    tmp_path: Path, capsys: Captured
) -> None:
    """Graphics files that mode legacy adds for a recorded host need not exist on this machine."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    words = ["--host", "debian-a10g-index", "--mode", "legacy"]
    main(["doctor", "--bundle", made(tmp_path / "b", *env), *words])
    assert "error mounting" not in capsys.readouterr().out


@pytest.mark.parametrize("elsewhere", ["bundle", "host"])
def test_volumes_of_another_machine(elsewhere: str, tmp_path: Path, capsys: Captured) -> None:
    """Sources of mounts are not known if the bundle is a copy, whose root.path is on another
    machine, and if the host is another one.
    """
    path = made(tmp_path / "b")
    config = json.loads(Path(path, "config.json").read_text())
    host = "runfile-a10x2"
    if elsewhere == "bundle":
        config["root"]["path"] = "/srv/other-machine/rootfs"
    else:
        document = put(tmp_path / "node.json", json.dumps(read_snapshot(host)))
        host = str(document)
    config["mounts"] = [{"destination": "/opt", "source": "/srv/none", "options": ["rbind"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "--bundle", path, host=host)[0] == 0


SUPERVISED = "[program:one]\ncommand=app -x\n"


@pytest.mark.parametrize(
    ("args", "files", "code", "unknown"),
    [
        (["/run.py", "app"], {"run.py": PYTHON}, 4, ""),
        (["python3", "-u", "/run.py", "app"], {"run.py": PYTHON}, 4, ""),
        (["python3", "-c", PYTHON, "app"], {}, 4, ""),
        (
            ["python3", "/run.py", "app"],
            {
                "run.py": "import random\n"
                + PYTHON.replace("os.exec", "random.random() and os.exec")
            },
            0,
            "what the script becomes by os.execvp in line 5 (/run.py)",
        ),
        (
            ["perl", "/run.pl", "app"],
            {"run.pl": "$ENV{LD_LIBRARY_PATH} = '/opt/x';\nexec @ARGV;"},
            4,
            "",
        ),
        (["flock", "-n", "/x", "env", "LD_LIBRARY_PATH=/opt/x", "app"], {}, 4, ""),
        (["flock", "/x", "-c", "LD_LIBRARY_PATH=/opt/x app"], {}, 4, ""),
        (["s6-envdir", "/env", "app"], {"env/LD_LIBRARY_PATH": "/opt/x\nmore"}, 4, ""),
        (["chpst", "-u", "nobody", "-e/env", "app"], {"env/LD_LIBRARY_PATH": "/opt/x"}, 4, ""),
        (["envdir", "/env", "app"], {"env/PLACE": ""}, 0, ""),
        (
            ["capsh", "--drop=all", "--", "-c", "LD_LIBRARY_PATH=/opt/x app"],
            {"bin/bash": ELF},
            4,
            "",
        ),
        (["capsh", "--print"], {}, 0, ""),
        (["sh", "-c", "/plain"], {"plain": "LD_LIBRARY_PATH=/opt/x app\n", "bin/sh": ELF}, 4, ""),
        (["env", "/plain"], {"plain": "LD_LIBRARY_PATH=/opt/x app\n", "bin/sh": ELF}, 4, ""),
        (["/run.el"], {"run.el": EXECLINE}, 4, ""),
        (["execlineb", "-P", "-c", "unexport PLACE cd /x fdmove -c 2 1 app"], {}, 0, ""),
        (
            ["execlineb", "-c", "importas A B export LD_LIBRARY_PATH $A app"],
            {},
            0,
            "which of the programs that /usr/bin/execlineb starts opens the library",
        ),
        (
            ["supervisord", "-c", "/s.conf"],
            {"s.conf": SUPERVISED + 'environment=A="1",LD_LIBRARY_PATH="%(ENV_PLACE)s"\n'},
            4,
            "",
        ),
        (
            ["supervisord"],
            {
                "etc/supervisord.conf": "[include]\nfiles = s/*.conf\n[supervisord]\nenvironment=LD_LIBRARY_PATH=/opt/x",
                "etc/s/a.conf": SUPERVISED,
                "etc/s/b.conf": SUPERVISED.replace("one", "two").replace("app", "/bin/sleep"),
                "etc/s/c.conf": SUPERVISED.replace("one", "three") + "autostart=false\n",
            },
            4,
            "",
        ),
        (
            ["supervisord", "--configuration=/s.conf"],
            {"s.conf": SUPERVISED + SUPERVISED.replace("one", "two")},
            0,
            "which of the programs that /usr/bin/supervisord starts opens the library",
        ),
        (
            ["s6-svscan", "/s"],
            {"s/a/run": RUN, "s/.x/run": RUN, "s/b/run": RUN, "s/b/down": ""},
            4,
            "",
        ),
        (["/init"], {"init": ELF, "etc/s6/x": "", "etc/services.d/a/run": RUN}, 4, ""),
        (["/init", "env", "LD_LIBRARY_PATH=/opt/x", "app"], {"init": ELF, "etc/s6/x": ""}, 4, ""),
        (
            ["systemd"],
            {},
            0,
            "which of the programs that /usr/bin/systemd starts opens the library",
        ),
        (["conda", "run", "-n", "ml", "--no-capture-output", "app"], CONDA, 4, ""),
        (["micromamba", "run", "-p", "/opt/conda/envs/ml", "app"], CONDA, 4, ""),
        (["conda", "run", "-n", "none", "app"], CONDA, 0, "what `conda run -n none app` starts"),
        (["bash", "-c", "conda activate ml && exec app"], CONDA, 4, ""),
        (
            ["bash", "-c", "conda activate none; exec app"],
            CONDA,
            0,
            "what `conda activate none` sets",
        ),
        (["bash", "-c", "echo 'export LD_LIBRARY_PATH=/opt/x; app' >/r; bash /r"], {}, 4, ""),
        (["bash", "-c", "echo 'LD_LIBRARY_PATH=/opt/x' >/r; set -a; . /r; app"], {}, 4, ""),
    ],
)
def test_programs_that_start_the_program(
    args: list[str],
    files: dict[str, str | bytes],
    code: int,
    unknown: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """Scripts of Python and Perl, supervisors and conda are followed where that is plain, and it is
    told where it is not.
    """
    path = made(tmp_path / "b", "PLACE=/opt/x", args=args)
    names = (
        "envdir",
        "s6-envdir",
        "chpst",
        "capsh",
        "execlineb",
        "python3",
        "perl",
        "flock",
        "supervisord",
        "s6-svscan",
        "systemd",
        "micromamba",
    )
    for name in names:
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    for name, content in files.items():
        put(tmp_path / "b/rootfs" / name, content)
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    told = [text for text in proof["unknown"] if not text.startswith("the search directories")]
    assert all(text.startswith(unknown) for text in told)
    assert bool(told) is bool(unknown)


@pytest.mark.parametrize(
    ("args", "files", "others"),
    [
        (["su", "-", "own", "-c", "app"], {"home/own/.bash_profile": SETS}, True),
        (["su", "own", "-c", "app"], {"home/own/.bash_profile": SETS}, False),
        (["su", "-l", "none", "-c", "app"], {"home/own/.bash_profile": SETS}, False),
        (["runuser", "-l", "own", "-c", "app"], {"etc/profile": SETS}, True),
        (
            ["bash", "-ic", "app"],
            {"root/.bashrc": f"case $- in *i*) ;; *) return;; esac\n{SETS}"},
            True,
        ),
        (["bash", "-c", "app"], {"root/.bashrc": SETS}, False),
        (["bash", "-lc", "app"], {"root/.profile": f'[ "$BASH" ] && {SETS}'}, True),
        (["sh", "-lc", "app"], {"root/.profile": f'[ "$BASH" ] && {SETS}'}, False),
        (["zsh", "-c", "app"], {"root/.zshenv": SETS}, True),
        (["zsh", "-c", "app"], {"root/.zshrc": SETS}, False),
        (["zsh", "-ic", "app"], {"root/.zshrc": SETS, "etc/zsh/zshenv": "A=1"}, True),
        (["zsh", "-lc", "app"], {"root/.zprofile": SETS}, True),
        (["ksh", "/x.sh"], {"x.sh": f"{SETS}\napp\n"}, True),
    ],
)
def test_files_that_other_shells_read_first(
    args: list[str], files: dict[str, str], others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A login reads the user's own files with the user's shell, bash -i .bashrc, zsh .zshenv."""
    path = made(tmp_path / "b", "HOME=/root", args=args)
    for name in ("su", "runuser", "zsh", "ksh"):
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    put(tmp_path / "b/rootfs/etc/passwd", "own:x:1000:1000::/home/own:/usr/bin/bash\n")
    for name, content in files.items():
        put(tmp_path / "b/rootfs" / name, content)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (["make", "run"], "what `make run` starts, with which variables"),
        (["/x.csh"], "what `/usr/bin/tcsh /x.csh` starts, with which variables"),
        (["sh", "-c", ") app"], "what the script starts, with which variables"),
        (["sh", "/x.csh"], "what the script /x.csh starts, with which variables"),
        (["sh", "-c", 'shift $(date); exec "$@"'], "what the script starts, with which variables"),
        (["make"], ""),
    ],
)
def test_a_starter_that_is_not_followed(
    args: list[str], fact: str, tmp_path: Path, capsys: Captured
) -> None:
    """What starts other programs by files in a language that is not read here is told."""
    path = made(tmp_path / "b", args=args)
    for name in ("make", "tcsh"):
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    put(tmp_path / "b/rootfs/x.csh", "#!/usr/bin/tcsh\nsetenv LD_LIBRARY_PATH /opt/x\n) app\n")
    _, (proof,) = run_prove(capsys, "--bundle", path)
    assert [text for text in proof["unknown"] if text.startswith("what ")] == [fact] * bool(fact)


@pytest.mark.parametrize("source", ["volume", "link", "volume/libcuda.so.470.57.02"])
def test_a_volume_of_this_machine_is_read(source: str, tmp_path: Path, capsys: Captured) -> None:
    """The files of a bundle's volume count where they are here, the driver's mounts before them."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "link").symlink_to("volume")
    (volume / "libcuda.so.470.57.02").write_bytes(library("libcuda.so.1"))
    (volume / "libcuda.so.1").symlink_to("libcuda.so.470.57.02")
    file = "." in source
    (tmp_path / "b/rootfs/opt/x/libcuda.so.1").unlink()
    if file:
        (tmp_path / "b/rootfs/opt/x/libcuda.so.1").touch()
    place = "/opt/x/libcuda.so.1" if file else "/opt/x"
    mount = {"destination": place, "source": str(tmp_path / source), "options": ["rbind", "ro"]}
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    final = "/opt/x/libcuda.so.1" if file else "/opt/x/libcuda.so.470.57.02"
    assert (code, proof["file"]["path"]) == (4, final)
    assert proof["file"]["from"] == "image"
    assert f"the volume {place} is read from {tmp_path / source} of this machine" in proof["notes"]


@pytest.mark.parametrize(
    ("args", "readable"),
    [
        (["gosu", "guest", "app"], False),
        (["gosu", "4000:guests", "app"], False),
        (["gosu", "nobody-knows", "app"], True),
        (["setpriv", "--reuid=guest", "--clear-groups", "app"], False),
        (["runuser", "-u", "guest", "--", "app"], False),
        (["su", "guest", "-c", "exec app"], False),
        (["sh", "-c", "exec gosu guest app"], False),
        (["sudo", "app"], False),  # it does not pass LD_LIBRARY_PATH on
    ],
)
def test_programs_that_change_the_user(
    args: list[str], readable: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A loader passes over what the new user may not read."""
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", args=args)
    root = tmp_path / "b/rootfs"
    for name in ("setpriv", "runuser", "su", "sudo"):
        (root / "usr/bin" / name).write_bytes(ELF)
        (root / "usr/bin" / name).chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nguest:x:4000:4000::/:/bin/sh\n")
    (root / "etc/group").write_text("guests:x:4001:\n")
    (root / "opt/x/libcuda.so.1").chmod(0o600)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["program"]) == (4 if readable else 0, "/usr/bin/app")


@pytest.mark.parametrize(
    ("args", "file", "others"),
    [
        (["bash", "-lc", "app"], "etc/profile", True),
        (["bash", "--login", "-c", "app"], "root/.bash_profile", True),
        (["sh", "-l", "-c", "app"], "root/.profile", True),
        (["sh", "-l", "-c", "app"], "root/.bash_profile", False),
        (["bash", "-c", "app"], "etc/profile", False),
        (["bash", "-c", "app"], "etc/env.sh", True),
        (["sh", "-c", "app"], "etc/env.sh", False),
    ],
)
def test_files_that_a_shell_reads_first(
    args: list[str], file: str, others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A login shell reads the profile, and bash what BASH_ENV names."""
    path = made(tmp_path / "b", "BASH_ENV=/etc/env.sh", args=args)
    (tmp_path / "b/rootfs/root").mkdir()
    (tmp_path / "b/rootfs" / file).write_text("mesg n || true\nexport LD_LIBRARY_PATH=/opt/x\n")
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


def test_a_script_that_is_called_like_a_starter_is_followed(
    tmp_path: Path, capsys: Captured
) -> None:
    """What such a script sets counts: s6 images have a with-contenv of their own."""
    path = made(tmp_path / "b", args=["nice", "app"])
    script = tmp_path / "b/rootfs/usr/bin/nice"
    script.write_text('#!/usr/bin/sh\nexport LD_LIBRARY_PATH=/opt/x\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == 4


@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_library_that_nobody_may_read(mode: int, tmp_path: Path, capsys: Captured) -> None:
    """A loader passes over a library without any right, also one of root without capabilities."""
    user = {"uid": os.getuid(), "gid": os.getgid()}
    path = made(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", user=user, capabilities={})
    library_file = tmp_path / "b/rootfs/opt/x/libcuda.so.1"
    library_file.chmod(mode)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if mode else 0)


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
    path = made(tmp_path / "b", args=["/entry.sh"])
    put(tmp_path / "b/rootfs/entry.sh", text)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["verdict"]) == (1, "no")
    assert f"exec /entry.sh: {words}" in proof["failures"][0]["words"]
    assert main(["doctor", "--bundle", path, "--host", "eks-t4"]) == 1
    assert "program-missing" in capsys.readouterr().out
