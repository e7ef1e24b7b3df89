"""Programs that start the container's own as another user."""

from pathlib import Path

import pytest

from bundles import put
from loaders import ELF, Captured, run_prove, starters_bundle


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
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", "PLACE=/opt/x", args=args)
    put(tmp_path / "b/rootfs/usr/bin/sudo", ELF)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


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
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", args=args)
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
    ("args", "missing"),
    [
        (["gosu", "guest", "app"], "CAP_SETGID"),
        (["su", "-", "guest", "-c", "app"], "CAP_SETGID"),
        (["su", "root", "-c", "app"], "CAP_SETGID"),
        (["setpriv", "--reuid=4000", "app"], "CAP_SETUID"),
        (["setpriv", "--reuid=4000", "--clear-groups", "app"], "CAP_SETGID"),
        (["setpriv", "--no-new-privs", "app"], ""),
        (["sudo", "app"], ""),  # what sudo does first is not followed
    ],
)
@pytest.mark.parametrize("has", [False, True])
def test_root_without_the_capability_to_change_its_user(
    args: list[str], missing: str, has: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A process of root changes its user and groups with CAP_SETUID and CAP_SETGID alone."""
    held = ["CAP_KILL", *(["CAP_SETUID", "CAP_SETGID"] if has else [])]
    path = starters_bundle(tmp_path / "b", args=args, capabilities={"effective": held})
    root = tmp_path / "b/rootfs"
    for name in ("setpriv", "su", "sudo"):
        put(root / "usr/bin" / name, ELF)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nguest:x:4000:4000::/:/bin/sh\n")
    code, (proof,) = run_prove(capsys, "--bundle", path)
    words = f"{args[0]}: operation not permitted (the container lacks the capability {missing})"
    fails = bool(missing) and not has
    assert (code, [failure["words"] for failure in proof["failures"]]) == (
        (1, [words]) if fails else (0, [])
    )


@pytest.mark.parametrize(
    ("args", "member"),
    [
        (["gosu", "guest", "app"], True),
        (["su-exec", "guest", "app"], True),
        (["runuser", "-u", "guest", "--", "app"], True),
        (["su", "guest", "-c", "exec app"], True),
        (["setpriv", "--reuid=guest", "--regid=guest", "--init-groups", "app"], True),
        (["gosu", "guest:guest", "app"], False),
        (["setuidgid", "guest", "app"], False),
        (["chpst", "-u", "guest", "app"], False),
        (["setpriv", "--reuid=guest", "--regid=guest", "--clear-groups", "app"], False),
        (["gosu", "other", "app"], False),
    ],
)
def test_a_user_has_the_groups_of_which_it_is_a_member(
    args: list[str], member: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Programs that start another one as a user give it, most of them, all the user's groups."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x", args=args)
    root = tmp_path / "b/rootfs"
    for name in ("chpst", "runuser", "setpriv", "setuidgid", "su", "su-exec"):
        put(root / "usr/bin" / name, ELF)
    users = "root:x:0:0::/:/bin/sh\nguest:x:4000:4000::/:/bin/sh\nother:x:4002:4002::/:/bin/sh\n"
    (root / "etc/passwd").write_text(users)
    group = (root / "opt/x/libcuda.so.1").stat().st_gid
    (root / "etc/group").write_text(f"guest:x:4000:\ndriver:x:{group}:someone,guest\n")
    (root / "opt/x/libcuda.so.1").chmod(0o640)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if member else 0)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--reuid=guest", "--clear-groups"], True),
        (["--reuid=guest", "--clear-groups", "--reset-env"], False),
        (["--reset-env"], False),
    ],
)
def test_setpriv_resets_variables(
    options: list[str], kept: bool, tmp_path: Path, capsys: Captured
) -> None:
    """With --reset-env the program gets a usual PATH and the variables of its user, no others."""
    args = ["setpriv", *options, "sh", "-c", 'LD_LIBRARY_PATH=$LIBRARIES exec "$0"', "app"]
    path = starters_bundle(tmp_path / "b", "LIBRARIES=/opt/x", args=args)
    put(tmp_path / "b/rootfs/usr/bin/setpriv", ELF)
    (tmp_path / "b/rootfs/etc/passwd").write_text("guest:x:4000:4000::/:/bin/sh\n")
    assert run_prove(capsys, "--bundle", path)[0] == (4 if kept else 0)


@pytest.mark.parametrize("uid", [0, 4000])
@pytest.mark.parametrize(
    "script",
    [
        "if [ -r /opt/env.sh ]; then . /opt/env.sh; fi; app",
        "test -r /opt/env.sh && . /opt/env.sh; app",
        "[ -r /opt/env.sh ] || exec app; . /opt/env.sh; app",
    ],
)
def test_a_script_tests_whether_its_user_may_read_a_file(
    script: str, uid: int, tmp_path: Path, capsys: Captured
) -> None:
    """A file of root with mode 0600 is read as root alone."""
    user = {"uid": uid, "gid": uid}
    path = starters_bundle(tmp_path / "b", args=["sh", "-c", script], user=user)
    put(tmp_path / "b/rootfs/opt/env.sh", b"export LD_LIBRARY_PATH=/opt/x\n").chmod(0o600)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if uid == 0 else 0)


@pytest.mark.parametrize(("uid", "others"), [(0, True), (4000, False)])
def test_a_login_shell_passes_over_a_profile_its_user_may_not_read(
    uid: int, others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """/etc/profile is optional; the shell goes on without it."""
    user = {"uid": uid, "gid": uid}
    path = starters_bundle(tmp_path / "b", args=["sh", "-lc", "app"], user=user)
    profile = put(tmp_path / "b/rootfs/etc/profile", b"export LD_LIBRARY_PATH=/opt/x\n")
    profile.chmod(0o600)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize(
    ("args", "services", "others"),
    [
        (["su", "root", "-c", "app"], {"su": "session required pam_env.so readenv=1\n"}, True),
        (["su", "-", "-c", "app"], {"su": "session required pam_env.so\n"}, True),
        (
            ["su", "-", "-c", "app"],
            {
                "su": "session required pam_env.so\n",
                "su-l": "session optional pam_keyinit.so\n",
            },
            False,
        ),
        (
            ["su", "-", "-c", "app"],
            {"su": "session required pam_env.so\n", "su-l": "session include su\n"},
            True,
        ),
        (["su", "root", "-c", "app"], {"su": "@include own\n", "own": "@include su\n"}, False),
        (["su", "root", "-c", "app"], {"su": "-session required pam_env.so readenv=0\n"}, False),
        (["su", "root", "-c", "app"], {"su": "# session required pam_env.so\n"}, False),
        (["su", "root", "-c", "app"], {"su": "auth required pam_env.so\n"}, False),
        (["su", "root", "-c", "app"], {}, False),
        (["su", "root", "-c", "app"], {"su": "session required pam_env.so envfile=/x\n"}, False),
        (["runuser", "root", "-c", "app"], {"runuser": "session required pam_env.so\n"}, True),
        (["sudo", "app"], {"sudo": "session required pam_env.so\n"}, False),
    ],
)
def test_variables_that_a_session_of_pam_sets(
    args: list[str],
    services: dict[str, str],
    others: bool,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """Debian's su sets the variables of /etc/environment, as its file for PAM says."""
    path = starters_bundle(tmp_path / "b", args=args)
    for name in ("su", "runuser", "sudo"):
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    (tmp_path / "b/rootfs/bin").symlink_to("usr/bin")
    put(tmp_path / "b/rootfs/etc/passwd", "root:x:0:0::/:/usr/bin/sh\n")
    text = '# of the image\nLANG=C\nexport LD_LIBRARY_PATH="/opt/x"\nPATH=/usr/bin\n'
    put(tmp_path / "b/rootfs/etc/environment", text)
    for name, lines in services.items():
        put(tmp_path / "b/rootfs/etc/pam.d" / name, lines)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)
