"""``nvgraft register`` and ``unregister`` on files of every engine, as a user calls them."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from documents import read_document
from nvgraft.base import jsontext
from nvgraft.system import syscalls
from nvgraft_cli.register import containerd, docker, hooksd, installation
from nvgraft_cli.shell.main import main

ENGINES = ("runc", "podman", "crio", "containerd", "docker")

CONFIG_JSON = """\
{
\t"ociVersion": "1.0.2",
\t"process": {"args": ["sh"], "env": ["A=\\u00e4"]},
\t"root": {"path": "rootfs"}
}
"""

CONTAINERD_2 = """\
# what the node needs
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]   # the CRI plugin
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        pod_annotations = ["a", 'b"c']
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
          BinaryName = "/opt/runc"
"""
CONTAINERD_3 = """\
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
"""

#: For each engine, its file's name and texts that the file may have before.
FILES: dict[str, tuple[str, list[str | None]]] = {
    "runc": (
        "config.json",
        [
            CONFIG_JSON,
            CONFIG_JSON.replace("\n", "").replace("\t", ""),
            '{"ociVersion":"1.0.2","hooks":{"prestart":null}}',
        ],
    ),
    "podman": ("nvgraft.json", [None]),
    "crio": ("nvgraft.json", [None]),
    "containerd": (
        "config.toml",
        [None, "", "# nothing yet\n", CONTAINERD_2, CONTAINERD_2.rstrip("\n"), CONTAINERD_3],
    ),
    "docker": (
        "daemon.json",
        [
            None,
            "",
            "{}",
            "{\n}\n",
            '{"debug": true}',
            '{\n  "runtimes": {},\n  "debug": true\n}\n',
            '{\n  "default-runtime": "kata",\n  "runtimes": {"kata": {"path": "/k"}}\n}',
            '{\r\n "runtimes": {\r\n  "kata": {\r\n   "path": "/k"\r\n  }\r\n }\r\n}\r\n',
        ],
    ),
}
CASES = [
    pytest.param(engine, text, id=f"{engine}-{number}")
    for engine in ENGINES
    for number, text in enumerate(FILES[engine][1])
]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the installation; test_register_installation.py tests its checks."""
    monkeypatch.setattr(installation, "check", lambda prefix, names: None)


def command(name: str, engine: str, path: Path, *options: str) -> int:
    """Run ``nvgraft NAME ENGINE`` on a file."""
    place = ["--bundle", str(path.parent)] if engine == "runc" else ["--file", str(path)]
    return main([name, engine, *place, *options])


def make(directory: Path, engine: str, text: str | None) -> Path:
    path = directory / FILES[engine][0]
    if text is not None:
        path.write_bytes(text.encode())
    return path


def listing(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def registered(engine: str, path: Path) -> Any:
    """Return the entry for nvgraft in the file, parsed as by its engine."""
    if engine == "containerd":
        config = tomllib.loads(path.read_text())
        plugin = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}[
            config["version"]
        ]
        return config["plugins"][plugin]["containerd"]["runtimes"]["nvgraft"]["options"][
            "BinaryName"
        ]
    document = json.loads(path.read_text())
    if engine == "docker":
        return document["runtimes"]["nvgraft"]
    return document["hooks"]["prestart"][-1] if engine == "runc" else document


HOOK = {
    "path": "/usr/local/bin/nvgraft-hook",
    "args": ["nvgraft-hook", "prestart"],
    "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    "timeout": 120,
}
HOOK_FILE = {"version": "1.0.0", "hook": HOOK, "when": {"always": True}, "stages": ["prestart"]}
EXPECTED: dict[str, Any] = {
    "runc": HOOK,
    "podman": HOOK_FILE,
    "crio": HOOK_FILE,
    "containerd": "/usr/local/bin/nvgraft-runtime",
    "docker": {"path": "/usr/local/bin/nvgraft-runtime"},
}


def test_a_change_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --format json the change, its backup and the next step are a document on stdout."""
    path = make(tmp_path, "docker", "{}\n")
    said = []
    for name, *options in (
        ("register", "--dry-run"),
        ("register",),
        ("register",),
        ("unregister",),
        ("unregister",),
    ):
        assert command(name, "docker", path, *options, "--format", "json") == 0
        said.append(read_document(capsys.readouterr().out))
    assert [document["state"] for document in said] == [
        "dry-run",
        "registered",
        "unchanged",
        "removed",
        "unchanged",
    ]
    assert said[0]["diff"] == said[1]["diff"] != ""
    assert [document["before"] for document in said] == ["", f"{path}.nvgraft-backup", "", "", ""]
    assert "systemctl reload docker" in said[1]["next"]
    path.write_text("[")
    assert command("register", "docker", path, "--format", "json") == 1
    out, err = capsys.readouterr()
    document = read_document(out)
    assert (document["schema"], document["command"]) == ("nvgraft.error/1", "register")
    assert f"nvgraft register: {document['message']}" in err


def test_the_log_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --log-format json the line on stderr is an object with the file and what was done."""
    path = make(tmp_path, "docker", "{}\n")
    assert command("register", "docker", path, "--log-format", "json") == 0
    line = json.loads(capsys.readouterr().err)
    assert (line["command"], line["level"]) == ("register", "info")
    assert (line["engine"], line["file"], line["state"]) == ("docker", str(path), "registered")


@pytest.mark.parametrize(("engine", "text"), CASES)
def test_unregister_restores_every_byte(
    engine: str, text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """register adds the entry and a backup of the old file, a second time changes nothing, and
    unregister restores every byte.
    """
    path = make(tmp_path, engine, text)
    before = listing(tmp_path)
    assert command("register", engine, path) == 0
    assert registered(engine, path) == EXPECTED[engine]
    assert listing(tmp_path).keys() - {path.name} == (
        {f"{path.name}.nvgraft-backup"} if text is not None else set()
    )
    assert text is None or (tmp_path / f"{path.name}.nvgraft-backup").read_bytes() == text.encode()
    once = listing(tmp_path)
    capsys.readouterr()
    assert command("register", engine, path) == 0
    assert listing(tmp_path) == once
    printed = capsys.readouterr()
    assert (printed.out, "nothing to do" in printed.err) == ("", True)
    assert command("unregister", engine, path) == 0
    assert listing(tmp_path) == before
    assert command("unregister", engine, path) == 0
    assert listing(tmp_path) == before


@pytest.mark.parametrize(("engine", "text"), CASES)
def test_a_dry_run_shows_the_change_only(
    engine: str, text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--dry-run`` prints the diff of the real run, for both commands, and changes no file."""
    path = make(tmp_path, engine, text)
    for name in ("register", "unregister"):
        before = listing(tmp_path)
        assert command(name, engine, path, "--dry-run") == 0
        diff = capsys.readouterr().out
        assert listing(tmp_path) == before
        assert "nvgraft-" in diff
        assert diff.startswith("--- ")
        assert command(name, engine, path) == 0
        assert capsys.readouterr().out == diff


@pytest.mark.parametrize(
    ("engine", "text", "edit", "left"),
    [
        ("runc", CONFIG_JSON, ('"sh"', '"bash"'), CONFIG_JSON.replace('"sh"', '"bash"')),
        (
            "docker",
            '{\n  "debug": true\n}\n',
            ("true,", 'true,\n  "ipv6": 1,'),
            '{\n  "debug": true,\n  "ipv6": 1\n}\n',
        ),
        (
            "docker",
            None,
            ('"runtimes": {', '"runtimes": {"kata":{"path":"/k"},'),
            '{\n    "runtimes": {"kata":{"path":"/k"}\n    }\n}\n',
        ),
        (
            "containerd",
            CONTAINERD_2,
            ("what the node", "all that a node"),
            CONTAINERD_2.replace("what the node", "all that a node"),
        ),
    ],
)
def test_edits_since_stay(
    engine: str, text: str | None, edit: tuple[str, str], left: str, tmp_path: Path
) -> None:
    """unregister keeps a user's edits in other parts of the file."""
    path = make(tmp_path, engine, text)
    assert command("register", engine, path) == 0
    changed = path.read_text().replace(*edit)
    assert changed != path.read_text()
    path.write_text(changed)
    assert command("unregister", engine, path) == 0
    assert path.read_text() == left
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", [CONTAINERD_2, CONTAINERD_2.rstrip("\n")], ids=["with", "without a last line feed"]
)
def test_lines_after_containerds_block_stay_lines(text: str, tmp_path: Path) -> None:
    """A table added behind the block does not end up on the line before it."""
    path = make(tmp_path, "containerd", text)
    assert command("register", "containerd", path) == 0
    with path.open("a") as file:
        file.write('[debug]\nlevel = "debug"\n')
    assert command("unregister", "containerd", path) == 0
    assert path.read_text() == CONTAINERD_2 + '[debug]\nlevel = "debug"\n'


@pytest.mark.parametrize("name", ["register", "unregister"])
@pytest.mark.parametrize(
    ("engine", "data", "complaint"),
    [
        ("runc", b"{", "config.json: unexpected EOF"),
        (
            "runc",
            b'{"ociVersion": "1.0.2", "hooks": {"prestart": {}}}',
            "hooks.prestart is not an array",
        ),
        ("runc", b'{"ociVersion": "1.0.2", "hooks": []}', "hooks is not an object"),
        ("runc", b'{"ociVersion": "1.0.2", "hooks": {}, "Hooks": {}}', "duplicate member"),
        ("podman", b"not JSON", "cannot be parsed"),
        ("podman", b'{"version": "1.0.0", "hook": {"path": "/usr/bin/other"}}', "nvgraft.json: "),
        ("containerd", b"version = = 2", "not valid TOML"),
        ("containerd", b"version = 2\n\xff", "not UTF-8"),
        ("docker", b'{"runtimes": {},}', "daemon.json: "),
        ("docker", b"[]", "not a JSON object"),
    ],
)
def test_a_broken_file_is_refused(
    name: str,
    engine: str,
    data: bytes,
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that cannot be parsed stays as it is, and one line gives the cause."""
    path = tmp_path / FILES[engine][0]
    path.write_bytes(data)
    assert command(name, engine, path) == 1
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert listing(tmp_path) == {path.name: data}


OTHER = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvgraft]\nruntime_type = "x"\n'


@pytest.mark.parametrize(
    ("engine", "text", "complaint"),
    [
        ("runc", None, "no such file"),
        ("runc", '{"hooks": {}}', "not an OCI configuration"),
        (
            "runc",
            '{"ociVersion": "1.0.2", "hooks": {"prestart": [{"path": "/x/nvgraft-hook"}]}}',
            "in another form",
        ),
        (
            "runc",
            (
                '{"ociVersion": "1.0.2", "hooks": {"prestart": [{"path":'
                ' "/usr/bin/nvidia-container-runtime-hook"}]}}'
            ),
            "configured twice",
        ),
        ("containerd", 'root = "/x"\n', "config version 1 |"),
        ("containerd", "version = 4\n", "config version 4 |"),
        (
            "containerd",
            'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n',
            "is disabled",
        ),
        ("containerd", "version = 2\n" + OTHER, "has another runtime"),
        (
            "containerd",
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {}}\n',
            "cannot be extended",
        ),
        ("containerd", "version = 2\nplugins = 1\n", "plugins is not a table"),
        (
            "containerd",
            'version = 2\nimports = ["conf.d/*.toml"]\n',
            "conf.d/gpu.toml has a section of the CRI plugin",
        ),
        ("docker", '{"runtimes": {"nvgraft": {"path": "/other"}}}', "another program"),
        ("docker", '{"runtimes": [1]}', "runtimes is not an object"),
    ],
)
def test_an_entry_without_effect_is_refused(
    engine: str,
    text: str | None,
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An entry that would collide with another one, or have no effect, is refused in one line, and
    no file changes.
    """
    path = make(tmp_path, engine, text)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/gpu.toml").write_text(OTHER)
    before = sorted(os.listdir(tmp_path))
    assert command("register", engine, path) == 1
    assert complaint in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before
    assert text is None or path.read_text() == text


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        ((containerd._END + "\n", ""), "the marks of `nvgraft register` were changed"),
        (
            (containerd._END + "\n", containerd._END + "\nNoPivotRoot = true\n"),
            "lines after the block",
        ),
        ((containerd._BEGIN + "\n", ""), "the marks of `nvgraft register` were changed"),
    ],
)
def test_a_block_that_cannot_be_removed_stays(
    edit: tuple[str, str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """unregister refuses if removing the block would change the meaning of other lines."""
    path = make(tmp_path, "containerd", CONTAINERD_2)
    assert command("register", "containerd", path) == 0
    path.write_text(path.read_text().replace(*edit))
    before = listing(tmp_path)
    assert command("unregister", "containerd", path) == 1
    assert complaint in capsys.readouterr().err
    assert listing(tmp_path) == before


def test_the_rest_of_a_file_keeps_its_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables added to a file that register created need the version line in its block, so
    unregister refuses.
    """
    path = make(tmp_path, "containerd", None)
    assert command("register", "containerd", path) == 0
    with path.open("a") as file:
        file.write('[debug]\nlevel = "debug"\n')
    assert command("unregister", "containerd", path) == 1
    assert "needs the line version = 2" in capsys.readouterr().err


def test_an_entry_without_marks_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A runtime of that name outside of the marks, written by hand, is not removed."""
    path = make(tmp_path, "containerd", "version = 2\n" + OTHER)
    assert command("unregister", "containerd", path) == 1
    assert "outside of the marks" in capsys.readouterr().err


def test_containerds_entry_copies_the_default_runtime(tmp_path: Path) -> None:
    """The entry copies the default runtime, cgroup driver included, except for the program."""
    path = make(tmp_path, "containerd", CONTAINERD_2)
    old = tomllib.loads(CONTAINERD_2)
    assert command("register", "containerd", path) == 0
    new = tomllib.loads(path.read_text())
    runtimes = new["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    entry = runtimes.pop("nvgraft")
    assert new == old
    assert path.read_text().startswith(CONTAINERD_2)
    assert entry == {
        **runtimes["runc"],
        "options": {"SystemdCgroup": True, "BinaryName": "/usr/local/bin/nvgraft-runtime"},
    }


def test_containerd_keeps_the_built_in_runc(tmp_path: Path) -> None:
    """A first table of runtimes replaces the built-in one, so runc is added too: CRI does not start
    without its default.
    """
    path = make(tmp_path, "containerd", "version = 2\n")
    assert command("register", "containerd", path) == 0
    runtimes = tomllib.loads(path.read_text())["plugins"]["io.containerd.grpc.v1.cri"][
        "containerd"
    ]["runtimes"]
    assert runtimes["runc"] == {"runtime_type": "io.containerd.runc.v2"}


@pytest.mark.parametrize("text", FILES["docker"][1])
def test_dockers_default_runtime(text: str | None, tmp_path: Path) -> None:
    """``--set-default``, also in a second call, makes nvgraft the default, and unregister restores
    the old default.
    """
    path = make(tmp_path, "docker", text)
    before = listing(tmp_path)
    assert command("register", "docker", path) == 0
    assert command("register", "docker", path, "--set-default") == 0
    assert json.loads(path.read_text())["default-runtime"] == "nvgraft"
    assert command("unregister", "docker", path) == 0
    assert listing(tmp_path) == before


def test_owner_mode_and_link_stay(tmp_path: Path) -> None:
    """A file behind a link is replaced in its place with its mode, and the backup is beside it with
    the same mode.
    """
    (tmp_path / "real").mkdir()
    target = make(tmp_path / "real", "docker", "{}")
    target.chmod(0o640)
    link = tmp_path / "daemon.json"
    link.symlink_to("real/daemon.json")
    assert command("register", "docker", link) == 0
    assert link.is_symlink()
    assert {path.name: path.stat().st_mode & 0o7777 for path in target.parent.iterdir()} == {
        "daemon.json": 0o640,
        "daemon.json.nvgraft-backup": 0o640,
    }
    assert command("unregister", "docker", link) == 0
    assert (link.is_symlink(), target.read_text()) == (True, "{}")


def test_a_new_file_is_readable_by_all(tmp_path: Path) -> None:
    """A new file has mode 0644, and its directory is created."""
    path = tmp_path / "oci/hooks.d/nvgraft.json"
    assert command("register", "podman", path) == 0
    assert path.stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("kind", ["fifo", "directory", "link to a link"])
def test_anything_but_a_file_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO, a directory or a second link is refused without waiting."""
    path = tmp_path / "daemon.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("second")
        (tmp_path / "second").symlink_to("third")
    assert command("register", "docker", path) == 1
    assert "daemon.json: " in capsys.readouterr().err


def test_a_stale_backup_does_not_survive(tmp_path: Path) -> None:
    """If the file was removed by hand and registered again, unregister does not restore the old
    backup.
    """
    path = make(tmp_path, "docker", '{"runtimes": {}}')
    assert command("register", "docker", path) == 0
    path.unlink()
    assert command("register", "docker", path) == 0
    assert command("unregister", "docker", path) == 0
    assert listing(tmp_path) == {}


@pytest.mark.parametrize(
    "hook",
    ['{"path": "/usr/bin/nvidia-container-runtime-hook"}', '"/usr/bin/nvidia-container-toolkit"'],
)
def test_no_second_hook_for_gpus_in_a_directory(
    hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hook beside the original hook's file, in either version of the format, is refused: GPUs
    would be added twice.
    """
    (tmp_path / "oci-nvidia-hook.json").write_text(f'{{"hook": {hook}}}')
    assert command("register", "podman", tmp_path / "nvgraft.json") == 1
    assert "oci-nvidia-hook.json: registers nvidia-container-" in capsys.readouterr().err


def test_other_hooks_are_ignored(tmp_path: Path) -> None:
    """Other programs' hooks, and files that are not hooks, are ignored."""
    (tmp_path / "other.json").write_text('{"hook": {"path": "/usr/bin/oci-umount"}}')
    (tmp_path / "README").write_text("nvidia-container-runtime-hook")
    assert command("register", "crio", tmp_path / "nvgraft.json") == 0


@pytest.mark.parametrize(
    ("files", "directory"),
    [
        ({}, "/usr/share/containers/oci/hooks.d"),
        ({"a.conf": "[engine]\nhooks_dir = []\n"}, "/usr/share/containers/oci/hooks.d"),
        ({"a.conf": '[engine]\nhooks_dir = ["/etc/x", "/etc/hooks.d"]\n'}, "/etc/hooks.d"),
        (
            {
                "a.conf": '[engine]\nhooks_dir = ["/etc/x"]\n',
                "b.conf": '[engine]\nhooks_dir = ["/etc/y"]\n',
            },
            "/etc/y",
        ),
        (
            {"a.conf": '[engine]\nhooks_dir = ["/usr/share/containers/oci/hooks.d", "/etc/x"]\n'},
            "/usr/share/containers/oci/hooks.d",
        ),
    ],
)
def test_the_file_goes_where_the_engine_reads(
    files: dict[str, str], directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes into the default directory, unless the engine is configured to read only
    others.
    """
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(
        hooksd, "_CONFIGURATION", {"podman": ((f"{tmp_path}/*.conf",), ("engine",))}
    )
    assert hooksd.default_file("podman") == f"{directory}/nvgraft.json"


def test_the_usual_files_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --file the engine's own file is used, and without --bundle the working directory."""
    monkeypatch.setattr(docker, "DEFAULT_FILE", f"{tmp_path}/docker/daemon.json")
    monkeypatch.setattr(containerd, "DEFAULT_FILE", f"{tmp_path}/containerd/config.toml")
    make(tmp_path, "runc", CONFIG_JSON)
    monkeypatch.chdir(tmp_path)
    for engine, place in (
        ("docker", tmp_path / "docker"),
        ("containerd", tmp_path / "containerd"),
        ("runc", "./config.json"),
    ):
        assert main(["register", engine, "--dry-run"]) == 0
        assert f"+++ {place}" in capsys.readouterr().out
    assert listing(tmp_path) == {"config.json": CONFIG_JSON.encode()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["register"],
        ["register", "lxc"],
        ["register", "docker", "--bundle", "x"],
        ["register", "runc", "--file", "x"],
        ["register", "podman", "--set-default"],
        ["unregister", "docker", "--set-default"],
    ],
)
def test_bad_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option of another engine exits with 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: nvgraft" in capsys.readouterr().err


def _save(path: Path, how: str) -> str | None:
    """Change a file as another program does, and return its new text (None: it is removed)."""
    text = '{"of": "another program"}\n'
    if how == "removed":
        path.unlink()
        return None
    if how == "renamed over":
        other = path.parent.parent / "other"
        other.write_text(text)
        other.replace(path)
    elif how == "mode":
        path.chmod(0o600)
        return path.read_text()
    else:
        path.write_text(text)
    return text


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
@pytest.mark.parametrize("how", ["renamed over", "written", "removed", "mode"])
@pytest.mark.parametrize("act", ["register", "unregister"])
def test_a_save_of_another_program_meanwhile_is_kept(
    act: str,
    how: str,
    exchange: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that another program changes or removes after it was read is refused and stays as
    that program left it, also where the file system cannot exchange names.
    """
    (tmp_path / "etc").mkdir()
    path = make(tmp_path / "etc", "docker", "{}")
    if act == "unregister":
        assert command("register", "docker", path) == 0
    before = listing(path.parent)
    saved: list[str | None] = []
    rename = syscalls.rename

    def renamed(old: str, new: str, flags: int) -> None:
        if not saved:
            saved.append(_save(path, how))
        if not exchange:
            raise syscalls.SyscallError(22, "renameat2")
        rename(old, new, flags)

    monkeypatch.setattr(syscalls, "rename", renamed)
    assert command(act, "docker", path) == 1
    assert (
        "another program has changed it meanwhile: nothing was changed" in capsys.readouterr().err
    )
    after = {name: text for name, text in before.items() if name != path.name}
    if saved[0] is not None:
        after[path.name] = saved[0].encode()
    assert listing(path.parent) == after


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
def test_a_file_that_another_program_makes_meanwhile_is_kept(
    exchange: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that did not exist when it was read is not replaced."""
    path = tmp_path / "daemon.json"
    rename = syscalls.rename

    def renamed(old: str, new: str, flags: int) -> None:
        path.write_text("{}")
        if not exchange:
            raise syscalls.SyscallError(22, "renameat2")
        rename(old, new, flags)

    monkeypatch.setattr(syscalls, "rename", renamed)
    assert command("register", "docker", path) == 1
    assert "another program has changed it meanwhile" in capsys.readouterr().err
    assert listing(tmp_path) == {"daemon.json": b"{}"}


def test_a_file_without_edits_is_removed_only_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """unregister does not remove a file of its own that another program has changed meanwhile."""
    path = make(tmp_path, "podman", None)
    assert command("register", "podman", path) == 0
    rename = os.rename

    def renamed(old: str, new: str) -> None:
        path.write_text("{}")
        rename(old, new)

    monkeypatch.setattr(os, "rename", renamed)
    assert command("unregister", "podman", path) == 1
    assert "another program has changed it meanwhile" in capsys.readouterr().err
    assert listing(tmp_path) == {"nvgraft.json": b"{}"}


def test_no_save_is_lost_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If another program saves again while its first file is put back, both files are kept, and
    the message names the one that is not in its place.
    """
    path = make(tmp_path, "docker", "{}")
    rename = syscalls.rename
    times: list[int] = []

    def renamed(old: str, new: str, flags: int) -> None:
        times.append(flags)
        other = tmp_path / "other"
        other.write_text(f'{{"save": {len(times)}}}')
        other.replace(path)
        rename(old, new, flags)

    monkeypatch.setattr(syscalls, "rename", renamed)
    assert command("register", "docker", path) == 1
    assert len(times) == 2
    kept = {name: text for name, text in listing(tmp_path).items() if name != "daemon.json"}
    assert [*kept.values(), path.read_bytes()] == [b'{"save": 2}', b'{"save": 1}']
    assert next(iter(kept)) in capsys.readouterr().err


def test_a_refused_write_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the new file cannot be written, the old one stays and no temporary file is left."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    path = make(tmp_path, "podman", None)
    monkeypatch.setattr(os, "fsync", full)
    assert command("register", "podman", path) == 1
    assert "no space left on device" in capsys.readouterr().err
    assert listing(tmp_path) == {}


@pytest.mark.parametrize(
    ("engine", "line"),
    [("docker", '  "x": "\x9b2J\x7f",\r\n'), ("containerd", "# \x9b2J # \x85\r\n")],
)
def test_lines_of_a_file_cannot_control_the_terminal(
    engine: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The diff has the file's lines as its format counts them, with control characters escaped and
    tabs kept.
    """
    text = {"docker": "{\n" + line + '\t"y": 1\n}\n', "containerd": line + "version = 2\n\t\n"}[
        engine
    ]
    path = make(tmp_path, engine, text)
    assert command("register", engine, path) == 0
    out, err = capsys.readouterr()
    assert "\\x9b2J" in out
    assert "\\x0d\n" in out
    assert "\t" in out
    assert not [
        char for char in out + err if (char < " " and char not in "\t\n") or "\x7f" <= char < "\xa0"
    ]
    assert command("unregister", engine, path) == 0
    assert path.read_bytes() == text.encode()


def test_errors_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in a file, and the file's own, are escaped in errors."""
    path = make(
        tmp_path,
        "containerd",
        'version = 2\n"\x9b2J" = {}\n[plugins."io.containerd.grpc.v1.cri"]\ncontainerd = 1\n',
    ).rename(tmp_path / "\x1b[2J.toml")
    assert command("register", "containerd", path) == 1
    assert "\\x1b[2J.toml" in capsys.readouterr().err


def test_many_entries_are_removed_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config.json with thousands of our hooks, as an attacker may write, is not parsed once for
    each.
    """
    ours, other = {"path": "/x/nvgraft-hook"}, {"path": "/bin/true"}
    hooks = [ours, ours, other, ours, other, *[ours] * 3000]
    path = make(
        tmp_path,
        "runc",
        json.dumps({"ociVersion": "1.0.2", "hooks": {"prestart": hooks}}, indent=1),
    )
    parsed = []
    loads = jsontext.loads

    def counted(data: bytes, limit: int) -> object:
        parsed.append(data)
        return loads(data, limit)

    monkeypatch.setattr(jsontext, "loads", counted)
    assert command("unregister", "runc", path) == 0
    assert path.read_text() == json.dumps(
        {"ociVersion": "1.0.2", "hooks": {"prestart": [other, other]}}, indent=1
    )
    assert len(parsed) < 10
