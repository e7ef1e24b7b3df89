"""What shells read, set and change before they start the container's program."""

import json
from pathlib import Path

import pytest

from bundles import put
from loaders import ELF, Captured, run_prove, starters_bundle
from nvgraft_cli.shell.main import main

SETS = "export LD_LIBRARY_PATH=/opt/x"
#: The SONAME link, which leads to the host's library.
_LINK = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"


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
    path = starters_bundle(tmp_path / "b", "PLACE=/opt", args=["/entry.sh", "app"])
    (tmp_path / "b/rootfs/bin").symlink_to("usr/bin")
    put(tmp_path / "b/rootfs/entry.sh", f'#!/bin/sh\n{line}\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize(
    ("line", "uid", "code", "fact"),
    [
        ("ldconfig", 0, 4, ""),
        ("ldconfig", 1000, 4, ""),
        ("ldconfig -p", 0, 4, ""),
        ("ln -s /opt/x/libcuda.so.1 /srv", 0, 0, ""),
        ("ln -s /opt/x/libcuda.so.1 /srv", 4321, 0, ""),
        ("rm -r /opt/x/", 0, 0, ""),
        ("export LD_LIBRARY_PATH=/opt/x; rm -r /opt/x/", 0, 0, ""),
        ("export LD_LIBRARY_PATH=/opt/x; rm -r /opt/x/", 4321, 4, ""),
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
    path = starters_bundle(
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


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"cp /opt/x/libcuda.so.1 {_LINK} || :", 0),
        (f"cat /opt/x/libcuda.so.1 > {_LINK} || :", 0),
        (f"cp -f /opt/x/libcuda.so.1 {_LINK}", 4),
        (f"cp --remove-destination /opt/x/libcuda.so.1 {_LINK}", 4),
        (f"rm -f {_LINK}; cp /opt/x/libcuda.so.1 {_LINK}", 4),
        (f"ln -sf /opt/x/libcuda.so.1 {_LINK}", 4),
        (f"rm -f {_LINK}", 1),
    ],
)
def test_a_script_changes_no_file_of_the_host(
    line: str, code: int, tmp_path: Path, capsys: Captured
) -> None:
    """What is written to the link that leads to the host's library would go into its file, which
    is mounted read-only. The link itself can be replaced.
    """
    path = starters_bundle(tmp_path / "b", "PATH=/usr/bin", args=["/entry.sh", "app"])
    put(tmp_path / "b/rootfs/entry.sh", f'#!/usr/bin/sh\n{line}\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == code
    main(["doctor", "--bundle", path, "--host", "runfile-a10x2", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    (unfound,) = (row for row in document["results"] if row["id"] == "library-path")
    fixes = [finding["fix"] for finding in unfound["findings"]]
    assert fixes == (["let the script leave /usr/lib/x86_64-linux-gnu as it is"] * (code == 1))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ln -s /opt/x/libcuda.so.1 /opt/lib/", "/opt"),
        ("cp /opt/x/libcuda.so.1 /opt/y.so", "/opt"),
        ("mv /opt/x/libcuda.so.1 /opt/y.so", "/opt"),
        ("rm -rf /opt/x", "/opt"),
        ("rm -f /opt/none", ""),
        ("mkdir -p /opt/a/b", "/opt"),
        ("mkdir -p /opt/x", ""),
        ("touch /opt/ready", "/opt"),
        ("sed -i s/a/b/ /opt/x/a.conf", "/opt/x"),
        ("echo /opt/x > /etc/ld.so.conf.d/x.conf", "/etc"),
        ("echo a > /opt/x/a.conf", "/opt/x/a.conf"),
        ("echo a | tee /opt/x/a.conf", "/opt/x/a.conf"),
        ("ldconfig", "/etc"),
        ("ldconfig -p", ""),
        ("touch /tmp/ready; echo a > /dev/null; mkdir -p /dev/shm/a /run/a", ""),
        ("ln -s /opt/x/libcuda.so.1 /opt/lib || :", ""),
        ("if ! touch /opt/ready; then :; fi", ""),
    ],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_script_that_ends_where_it_may_not_write(
    line: str, reason: str, read_only: bool, tmp_path: Path, capsys: Captured
) -> None:
    """With set -e a command ends a script that writes to a read-only root, or to what its user may
    not change. On volumes it is not known.
    """
    path = starters_bundle(
        tmp_path / "b",
        "PATH=/usr/bin",
        args=["/entry.sh", "app"],
        user={"uid": 0 if read_only else 4321, "gid": 4321},
    )
    root = tmp_path / "b/rootfs"
    put(root / "entry.sh", f'#!/usr/bin/sh\nset -e\n{line}\nexec "$@"\n')
    put(root / "opt/x/a.conf", "a\n")
    for place in ("opt", "opt/x", "etc", "tmp"):
        (root / place).mkdir(exist_ok=True)
        (root / place).chmod(0o777 if place == "tmp" else 0o755)
    config = json.loads(Path(path, "config.json").read_text())
    config["root"]["readonly"] = read_only
    config["mounts"] += [
        {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup"]}
        for place in (("/run", "/tmp") if read_only else ("/run",))
    ]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (1 if reason else 0)
    words = "".join(failure["words"] for failure in proof["failures"])
    on_root = f"{reason} is on the container's root file system, which is read-only"
    told = on_root if read_only else f"its user may not write to {reason}"
    assert words.endswith(told if reason else "")


@pytest.mark.parametrize(
    ("place", "uid", "read_only", "code", "known"),
    [
        ("/opt/x", 0, False, 4, True),
        ("/opt/x", 4321, False, 0, True),
        ("/opt/x", 0, True, 0, True),
        ("/opt/none", 0, False, 0, True),
        ("/run", 4321, False, 0, False),
    ],
)
def test_a_script_that_asks_whether_it_may_write(
    place: str,
    uid: int,
    read_only: bool,
    code: int,
    known: bool,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """The test -w holds as far as modes and a read-only root tell; of volumes it is not known."""
    path = starters_bundle(
        tmp_path / "b",
        "PATH=/usr/bin",
        args=["sh", "-c", f"if [ -w {place} ]; then {SETS}; fi; app"],
        user={"uid": uid, "gid": uid},
    )
    (tmp_path / "b/rootfs/opt/x").chmod(0o755)
    (tmp_path / "b/rootfs/run").mkdir(mode=0o755)
    config = json.loads(Path(path, "config.json").read_text())
    config["root"]["readonly"] = read_only
    config["mounts"] += [{"destination": "/run", "type": "tmpfs", "source": "tmpfs"}]
    Path(path, "config.json").write_text(json.dumps(config))
    found, (proof,) = run_prove(capsys, "--bundle", path)
    computed = [text for text in proof["unknown"] if "LD_LIBRARY_PATH" in text]
    assert (found, not computed) == (code, known)


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
    path = starters_bundle(tmp_path / "b", "BASH_ENV=/etc/env.sh", args=args)
    (tmp_path / "b/rootfs/root").mkdir()
    (tmp_path / "b/rootfs" / file).write_text("mesg n || true\nexport LD_LIBRARY_PATH=/opt/x\n")
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


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
    path = starters_bundle(tmp_path / "b", "HOME=/root", args=args)
    for name in ("su", "runuser", "zsh", "ksh"):
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    put(tmp_path / "b/rootfs/etc/passwd", "own:x:1000:1000::/home/own:/usr/bin/bash\n")
    for name, content in files.items():
        put(tmp_path / "b/rootfs" / name, content)
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)


@pytest.mark.parametrize(("shell", "others"), [("dash", False), ("bash", True), ("busybox", True)])
def test_the_shell_that_sh_leads_to(
    shell: str, others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Whether sh knows ``source`` depends on the shell that the image has in its place."""
    path = starters_bundle(tmp_path / "b", args=["/entry.sh", "app"])
    root = tmp_path / "b/rootfs"
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin/sh").rename(root / "usr/bin/dash")
    (root / "usr/bin/sh").symlink_to(shell)
    put(root / "opt/env.sh", f"{SETS}\n")
    put(root / "entry.sh", '#!/bin/sh\nsource /opt/env.sh\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == (4 if others else 0)
