"""runtime: the wrapper as a process in front of a low-level runtime that records how it was
started.
"""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.request.config import Config
from nvgraft.runtime import (
    bundle_directory,
    find_runtime,
    hook_entry,
    hook_program,
    is_create,
    link_hooks,
)
from nvgraft_cli.register.audit import problems
from nvgraft_cli.simulate import ldcache_writer

CHECKOUT = Path(__file__).parent.parent
LAUNCHER = (
    "import sys; sys.path[:0] = {paths!r}; from nvgraft.runtime import main; raise"
    " SystemExit(main(sys.argv[1:]))"
)
GOOD = {
    "ociVersion": "1.0.2",
    "process": {
        "env": ["NVIDIA_VISIBLE_DEVICES=all"],
        "args": ["sh"],
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
    },
    "root": {"path": "rootfs"},
}
#: A low-level runtime that records its argv, environment, working directory, descriptors and
#: signals.
RUNC = f"""#!{sys.executable} -IS
import json, os, sys
with open(os.path.dirname(__file__) + "/started", "w") as file:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    json.dump({{"argv": sys.argv, "cwd": os.getcwd(), "fds": sorted(map(int, os.listdir("/proc/self/fd")))}}, file)
with open(os.path.dirname(__file__) + "/environ", "wb") as file:
    file.write(open("/proc/self/environ", "rb").read())
"""
SHOW_SIGNALS = "#!/bin/sh\ngrep SigIgn /proc/$$/status\n"
LEGACY = '[nvidia-container-runtime]\nmode = "legacy"\n'


class Node:
    """A bundle with its own low-level runtime and config.toml."""

    def __init__(self, path: Path) -> None:
        self.bundle = path / "bundle"
        self.bundle.mkdir()
        self.config = self.bundle / "config.json"
        self.config.write_text(json.dumps(GOOD))
        self.runc = path / "bin/runc"
        self.runc.parent.mkdir()
        self.set_runtime(RUNC)
        self.toml = path / "config.toml"
        self.set_toml(LEGACY)

    def set_runtime(self, script: str) -> None:
        self.runc.write_text(script)
        self.runc.chmod(0o755)

    def set_toml(self, text: str) -> None:
        table = "[nvidia-container-runtime]\n"
        self.toml.write_text(text.replace(table, f'{table}runtimes = ["{self.runc}"]\n'))

    def command(self, *arguments: str, program: str = "/opt/x/bin/nvgraft-runtime") -> list[str]:
        paths = [str(CHECKOUT / name) for name in ("hook", "specs")]
        return [sys.executable, "-ISB", "-c", LAUNCHER.format(paths=paths), program, *arguments]

    def run(
        self, *arguments: str, program: str = "/opt/x/bin/nvgraft-runtime", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, program=program)
        options = {
            "env": {"PATH": "/usr/bin:/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.toml)},
            "cwd": self.bundle,
            **options,
        }
        return subprocess.run(command, capture_output=True, text=True, timeout=30, **options)

    def create(self, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.run(*options, "create", "--bundle", str(self.bundle), "c1", **more)

    def started(self) -> Any:
        """Return how the low-level runtime was started, or None."""
        file = self.runc.parent / "started"
        return json.loads(file.read_text()) if file.exists() else None

    def prestart(self) -> list[dict[str, Any]]:
        hooks = json.loads(self.config.read_text()).get("hooks", {}).get("prestart", [])
        assert isinstance(hooks, list)
        return hooks


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_create_inserts_the_hook_beside_the_program(node: Node) -> None:
    """create inserts the hook beside the program, with its own environment and timeout, and passes
    its arguments on.
    """
    done = node.create()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.started()["argv"] == [str(node.runc), "create", "--bundle", str(node.bundle), "c1"]
    [hook] = node.prestart()
    assert hook["path"] == "/opt/x/bin/nvgraft-hook"
    assert hook["args"] == ["nvgraft-hook", "prestart"]
    assert hook["env"] == [
        "PATH=/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin",
        f"NVIDIA_CTK_CONFIG_FILE_PATH={node.toml}",
    ]
    assert hook["timeout"] > 0


def test_a_link_finds_the_neighbour_of_its_target(node: Node, tmp_path: Path) -> None:
    """Started through a link as nvidia-container-runtime, the program inserts the hook beside the
    link's target.
    """
    program = tmp_path / "nvgraft-runtime"
    program.touch()
    link = tmp_path / "bin/nvidia-container-runtime"
    link.symlink_to(program)
    assert node.create(program=str(link)).returncode == 0
    assert node.prestart()[0]["path"] == str(tmp_path / "nvgraft-hook")


@pytest.mark.parametrize(
    "command",
    [
        ["state", "c1"],
        ["start", "c1"],
        ["--root", "/create", "kill", "c1", "KILL"],
        ["run", "--bundle", "create"],
    ],
)
def test_other_commands_pass_through(node: Node, command: list[str]) -> None:
    """Other commands than create go to the low-level runtime, and config.json is not read."""
    node.config.write_text("no JSON")
    done = node.run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.started()["argv"] == [str(node.runc), *command]
    assert node.config.read_text() == "no JSON"


def test_the_low_level_runtime_inherits_everything(node: Node) -> None:
    """The low-level runtime gets the environment to the byte, the working directory, and
    descriptors for consoles and sockets.
    """
    reader, writer = os.pipe()
    environment = {
        "NVIDIA_CTK_CONFIG_FILE_PATH": str(node.toml),
        "LISTEN_FDS": "1",
        "ODD": "\udcff",
    }
    try:
        assert node.run("state", "c1", env=environment, pass_fds=[writer]).returncode == 0
    finally:
        os.close(reader)
        os.close(writer)
    started = node.started()
    assert started["cwd"] == str(node.bundle)
    # Other descriptors are the runtime's own: its script, its file and the listing.
    assert writer in started["fds"]
    environ = (node.runc.parent / "environ").read_bytes().rstrip(b"\0").split(b"\0")
    assert sorted(environ) == sorted(
        f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in environment.items()
    )


@pytest.mark.requires("sh")
def test_the_low_level_runtime_gets_no_descriptor_of_ours(node: Node, tmp_path: Path) -> None:
    """config.toml, config.json and the log are closed when the low-level runtime starts."""
    node.set_runtime("#!/bin/sh\nls -l /proc/$$/fd\n")
    done = node.create("--log", str(tmp_path / "log"))
    assert done.returncode == 0
    assert str(tmp_path / "log") not in done.stdout
    assert ".toml" not in done.stdout
    assert "config.json" not in done.stdout


@pytest.mark.requires("sh")
def test_signals_that_python_ignores_are_reset(node: Node) -> None:
    """Signals that Python ignores, such as SIGPIPE, are not ignored in the low-level runtime and
    the container.
    """
    node.set_runtime(SHOW_SIGNALS)
    done = node.run("state", "c1")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


@pytest.mark.parametrize("value", [None, "C", "C.UTF-8"])
def test_the_locale_is_handed_on(node: Node, value: str | None) -> None:
    """Python's change of a C locale does not reach the low-level runtime."""
    environment = {
        "NVIDIA_CTK_CONFIG_FILE_PATH": str(node.toml),
        **({} if value is None else {"LC_CTYPE": value}),
    }
    assert node.run("state", "c1", env=environment).returncode == 0
    environ = (node.runc.parent / "environ").read_bytes()
    assert (b"LC_CTYPE=" in environ) == (value is not None)
    assert value is None or f"LC_CTYPE={value}\0".encode() in environ


@pytest.mark.requires("sh")
def test_the_exit_code_is_the_low_level_runtimes(node: Node) -> None:
    """The exit code and output are those of the low-level runtime, which replaces the wrapper's
    process.
    """
    node.set_runtime("#!/bin/sh\necho out; echo err >&2; exit 7\n")
    done = node.create()
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.requires("sh")
def test_version_prints_both_programs(node: Node, tmp_path: Path) -> None:
    """--version prints our lines and then the low-level runtime's, and creates no log file."""
    node.set_runtime('#!/bin/sh\necho "runc version 9"\n')
    done = node.run("--log", str(tmp_path / "log"), "--version")
    assert done.returncode == 0
    first, second, empty, last = done.stdout.splitlines()
    assert first.startswith("NVIDIA Container Runtime version ")
    assert (second, empty, last) == ("spec: 1.3.0", "", "runc version 9")
    assert not (tmp_path / "log").exists()


def test_a_reader_that_has_gone_ends_the_version_silently(node: Node) -> None:
    """`nvgraft-runtime --version | true` is ended by SIGPIPE, as git is, and logs nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = subprocess.run(
            node.command("--version"), stdout=pipe, stderr=subprocess.PIPE, text=True, env={}
        )
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_full_standard_output_is_one_line_and_exit_2(node: Node) -> None:
    """`nvgraft-runtime --version > /dev/full` is one line with the cause, and exit code 2."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            node.command("--version"), stdout=full, stderr=subprocess.PIPE, text=True, env={}
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output: no space left on device | write to another file" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["run", "c1"],
        ["--root", "/x", "run", "--bundle", "start", "c1"],
        ["--debug", "--rootless=true", "run", "c1"],
    ],
)
def test_run_is_passed_on_with_a_warning_in_the_log(
    node: Node, tmp_path: Path, words: list[str]
) -> None:
    """run changes nothing, as with the original, and the log says so; stderr is the container's."""
    before = node.config.read_bytes()
    log = tmp_path / "log"
    done = node.run("--log", str(log), *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.config.read_bytes() == before
    (warning,) = (line for line in log.read_text().splitlines() if "level=warning" in line)
    assert "run: config.json is not changed" in warning
    assert "use create and start" in warning


def test_only_run_itself_is_warned_about(node: Node, tmp_path: Path) -> None:
    """A container or a file named run is not the command run."""
    log = tmp_path / "log"
    for words in (["start", "run"], ["--root", "run", "state", "c1"], ["delete", "run"], []):
        node.run("--log", str(log), *words)
    assert "level=warning" not in log.read_text()


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a failed run: one error line on stderr, and exit code 1."""
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert " level=error msg=" in line
    message = json.loads(line.partition(" msg=")[2])
    assert isinstance(message, str)
    return message


MODIFY = "could not apply required modification to OCI specification: error "


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (
            "",
            (
                "loading OCI specification for modification: error loading OCI specification"
                " from file: error reading OCI specification: "
            ),
        ),
        (
            '{"process": ',
            (
                "loading OCI specification for modification: error loading OCI specification"
                " from file: "
            ),
        ),
        ("[]", "loading OCI specification for modification: "),
        ("null", "loading OCI specification for modification: "),
        ('{"hooks": 7}', "loading OCI specification for modification: "),
        ('{"hooks": {"prestart": {}}}', "loading OCI specification for modification: "),
        ('{"hooks": {"prestart": [7]}}', "loading OCI specification for modification: "),
        ('{"hooks": {"prestart": [{"path": 7}]}}', "loading OCI specification for modification: "),
        ('{"hooks": {}, "Hooks": {}}', "loading OCI specification for modification: "),
        ('{"process": {"user": "root"}}', "loading OCI specification for modification: "),
        ('{"a": NaN}', "loading OCI specification for modification: "),
        ("[" * 100000, "loading OCI specification for modification: "),
        (
            '{"process": {"env": ["NOEQUALS"]}}',
            "modifying OCI spec: invalid environment variable: NOEQUALS | ",
        ),
    ],
)
def test_a_bad_config_json_stays_as_it_is(node: Node, text: str, phrase: str) -> None:
    """An unusable config.json is neither changed nor passed on; the error is one line."""
    node.config.write_text(text)
    assert failure(node.create()).startswith(MODIFY + phrase)
    assert node.config.read_text() == text
    assert node.started() is None


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "large"])
def test_a_config_json_that_is_not_a_file_is_refused(node: Node, kind: str) -> None:
    """A missing config.json, a directory, a FIFO or a huge file is refused without waiting."""
    node.config.unlink()
    if kind == "directory":
        node.config.mkdir()
    elif kind == "fifo":
        os.mkfifo(node.config)
    elif kind == "large":
        with node.config.open("wb") as file:
            file.truncate(1 << 30)
    assert failure(node.create()).startswith(
        f"{MODIFY}loading OCI specification for modification: "
    )
    assert node.started() is None


def test_mode_and_owner_are_kept(node: Node) -> None:
    """The new config.json has the old one's mode and owner, and no other file is left in the
    bundle.
    """
    node.config.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(node.config, 1234, 2345)
    was = node.config.stat()
    assert node.create().returncode == 0
    now = node.config.stat()
    assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (0o640, was.st_uid, was.st_gid)
    assert [path.name for path in node.bundle.iterdir()] == ["config.json"]


def test_a_link_stays_a_link(node: Node, tmp_path: Path) -> None:
    """If config.json is a link, its target is rewritten, as by the reference."""
    elsewhere = tmp_path / "elsewhere.json"
    node.config.rename(elsewhere)
    node.config.symlink_to(elsewhere)
    assert node.create().returncode == 0
    assert node.config.is_symlink()
    assert json.loads(elsewhere.read_text())["hooks"]["prestart"]


def test_a_full_disk_leaves_config_json_alone(node: Node) -> None:
    """If the new text cannot be written, the old one stays, no file is left beside it, and nothing
    is started.
    """
    before = node.config.read_bytes()
    limit = len(before) + 10

    def limit_files() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    message = failure(node.create(preexec_fn=limit_files))
    assert message.startswith(
        f"{MODIFY}writing modified OCI specification: error opening OCI specification file:"
        f" open {node.config}: file too large"
    )
    assert node.config.read_bytes() == before
    assert [path.name for path in node.bundle.iterdir()] == ["config.json"]
    assert node.started() is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["create"],
        ["create", "-b", "@B@"],
        ["create", "--bundle=@B@"],
        ["create", "--bundle", "/x", "-bundle", "@B@"],
    ],
)
def test_the_bundle_is_named_by_option_or_directory(node: Node, arguments: list[str]) -> None:
    """The bundle is the last of -b, -bundle and --bundle with either separator, or the working
    directory.
    """
    done = node.run(*[argument.replace("@B@", str(node.bundle)) for argument in arguments], "c1")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(node.prestart()) == 1


def test_a_bundle_option_without_a_value_is_refused(node: Node) -> None:
    """A bundle option without a value is refused in the reference's words."""
    message = failure(node.run("create", "c1", "--bundle"))
    assert message.startswith("failed to create NVIDIA Container Runtime: ")
    assert "bundle option requires an argument" in message


def test_a_container_called_create_is_not_created() -> None:
    """ "create" as the bundle's name is not the command; anywhere else it is."""
    assert not is_create(["start", "--bundle", "create"])
    assert not is_create(["--bundle=create", "start"])
    assert is_create(["--bundle", "create", "create", "c1"])
    assert is_create(["--bundle", "--bundle", "create"])
    # as in the reference, which knows no other option with a value
    assert is_create(["--root", "create"])
    assert bundle_directory(["create", "--b", "x", "c1"]) == "x"


def test_errors_reach_both_logs(node: Node, tmp_path: Path) -> None:
    """Errors reach the configured log file, whose directories are created, the engine's --log in
    its format, and stderr.
    """
    node.set_toml(f'{LEGACY}debug = "{tmp_path}/deep/er/log"\n')
    node.config.write_text("{")
    for name in ("--log", "-log"):
        node.create(name, str(tmp_path / "engine"), "--log-format", "json")
    for file in (tmp_path / "deep/er/log", tmp_path / "engine"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert (
            sum(line["level"] == "error" and "unexpected EOF" in line["msg"] for line in lines) == 2
        )
        assert all(line["time"].endswith("Z") for line in lines)


@pytest.mark.parametrize(
    ("level", "logged"), [("info", True), ("warn", False), ("ERROR", False), ("nonsense", True)]
)
def test_the_log_level_limits_the_log(node: Node, tmp_path: Path, level: str, logged: bool) -> None:
    """The log has the decision unless log-level is higher; --debug overrides it, and an unknown
    level means info, with a warning.
    """
    log = tmp_path / "log"
    node.set_toml(f'{LEGACY}log-level = "{level}"\ndebug = "{log}"\n')
    node.create()
    assert ("Using requested mode 'legacy'" in log.read_text()) == logged
    assert ("invalid log-level 'nonsense'" in log.read_text()) == (level == "nonsense")
    node.create("--debug")
    assert "Using requested mode 'legacy'" in log.read_text()


def test_a_log_file_that_cannot_be_opened_is_a_warning(node: Node, tmp_path: Path) -> None:
    """A directory or a FIFO as log file is a warning in the other log, and the container starts."""
    os.mkfifo(tmp_path / "fifo")
    node.set_toml(f'{LEGACY}debug = "{tmp_path}/fifo"\n')
    assert node.create("--log", str(tmp_path / "engine")).returncode == 0
    assert "Failed to open log file: open" in (tmp_path / "engine").read_text()
    assert node.create("--log", str(tmp_path)).returncode == 0


def test_hostile_text_cannot_forge_a_log_line(node: Node, tmp_path: Path) -> None:
    """Control and format characters in the container's configuration are escaped in every log."""
    evil = "EVIL\n\x1b[31m\u2028\u202elevel info"
    node.config.write_text(json.dumps({**GOOD, "process": {"env": [evil]}}))
    assert failure(node.create("--log", str(tmp_path / "log"))).replace("\n", "").isprintable()
    assert [
        line
        for line in (tmp_path / "log").read_text().splitlines()
        if not line.startswith('time="20')
    ] == []


def test_a_missing_low_level_runtime_is_refused(node: Node, tmp_path: Path) -> None:
    """Without a usable candidate (the wrapper itself and files without execute permission are
    skipped) the reference's words list them.
    """
    plain = tmp_path / "plain"
    plain.touch(0o644)
    node.toml.write_text(
        f'[nvidia-container-runtime]\nruntimes = ["/nonexistent", "{plain}", "no-such-runc"]\n'
    )
    message = failure(node.run("state", "c1"))
    assert (
        f"no runtime binary found from candidate list: [/nonexistent {plain} no-such-runc]"
        in message
    )
    with pytest.raises(Refusal, match="no runtime binary found"):
        find_runtime([str(node.runc)], None, str(node.runc))


@pytest.mark.requires("sh")
def test_the_low_level_runtime_is_found_in_path(node: Node, tmp_path: Path) -> None:
    """A name is searched in PATH and then in the default directories, and the first candidate is
    used.
    """
    assert find_runtime(["runc", "sh"], str(node.runc.parent), "/x") == str(node.runc)
    assert find_runtime(["no-such-runc", "sh"], None, "/x") in ("/usr/bin/sh", "/bin/sh")
    # A wrapper called runc, first in PATH, is skipped.
    (tmp_path / "first").mkdir()
    (tmp_path / "first/runc").symlink_to(node.runc)
    runtime = find_runtime(["runc"], f"{tmp_path}/first:{tmp_path}/second", str(node.runc))
    assert runtime != str(node.runc)


def test_a_file_that_the_kernel_cannot_execute_is_refused(node: Node) -> None:
    """An executable file that is not a program is refused with the kernel's reason."""
    node.set_runtime("")
    assert failure(node.run("state", "c1")).startswith(
        f"could not exec '{node.runc}': exec format error"
    )


@pytest.mark.parametrize(
    ("toml", "phrase"),
    [
        (
            "[nvidia-container-runtime\n",
            "error loading config: failed to load specified config file: (1, ",
        ),
        (
            "[nvidia-container-runtime]\nmode = 3\n",
            "error loading config: failed to unmarshal config: ",
        ),
        (
            f'{LEGACY}[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n',
            "error loading config: nvidia-container-cli.ldconfig value",
        ),
    ],
)
def test_a_bad_config_toml_is_refused(node: Node, toml: str, phrase: str) -> None:
    """A bad config.toml stops create in the reference's words, without a change."""
    node.set_toml(toml)
    before = node.config.read_bytes()
    assert failure(node.create()).startswith(phrase)
    assert node.config.read_bytes() == before


def test_a_container_can_be_deleted_with_a_bad_value_in_config_toml(node: Node) -> None:
    """A bad value that only create needs does not stop delete, so that running containers can be
    removed.
    """
    node.set_toml(f'{LEGACY}[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n')
    assert node.run("delete", "--force", "c1").returncode == 0


def test_a_missing_config_toml_is_an_empty_one(node: Node) -> None:
    """A missing config.toml counts as an empty one, even if a variable names it; the hook differs
    in this.
    """
    node.toml.unlink()
    node.config.write_text(json.dumps(GOOD | {"process": {"env": []}}))
    done = node.create(
        env={"PATH": str(node.runc.parent), "NVIDIA_CTK_CONFIG_FILE_PATH": str(node.toml)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert node.started() is not None


@pytest.mark.parametrize(
    ("suffix", "mode", "served"),
    [("legacy", "cdi", True), ("cdi", "legacy", False), ("", "legacy", True)],
)
def test_names_that_fix_the_mode(node: Node, suffix: str, mode: str, served: bool) -> None:
    """The names nvidia-container-runtime.legacy and .cdi fix the mode, whatever config.toml
    says.
    """
    node.set_toml(f'[nvidia-container-runtime]\nmode = "{mode}"\n')
    done = node.create(program=f"/opt/x/bin/nvidia-container-runtime{suffix and '.'}{suffix}")
    assert (done.returncode == 0) == served
    assert len(node.prestart()) == served


@pytest.mark.parametrize(
    ("configured", "path"),
    [
        ("nvidia-container-runtime-hook", "/own/nvgraft-hook"),
        ("", "/own/nvgraft-hook"),
        ("/usr/local/bin/my-hook", "/usr/local/bin/my-hook"),
        ("no-such-hook", "/usr/bin/no-such-hook"),
    ],
)
def test_the_inserted_hook_is_the_configured_one(configured: str, path: str) -> None:
    """A configured path is used as it is, a name is searched, and the packages' default value means
    our own hook.
    """
    entry = hook_entry(Config(hook_path=configured), {}, "/own/nvgraft-runtime")
    assert (entry["path"], entry["args"]) == (path, [path.rpartition("/")[2], "prestart"])


def test_the_hook_gets_the_runtimes_variables() -> None:
    """The variables that the hook reads are passed on, a relative config.toml as an absolute path;
    others are not.
    """
    environ = {
        "NVIDIA_CTK_CONFIG_FILE_PATH": "c.toml",
        "XDG_CONFIG_HOME": "/x",
        "CUDA_MPS_PIPE_DIRECTORY": "/m",
        "LD_PRELOAD": "/evil",
    }
    entry = hook_entry(Config(), environ, "/own/nvgraft-runtime")
    assert entry["env"] == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"NVIDIA_CTK_CONFIG_FILE_PATH={os.getcwd()}/c.toml",
        "XDG_CONFIG_HOME=/x",
        "CUDA_MPS_PIPE_DIRECTORY=/m",
    ]


def recorded_rows() -> list[dict[str, Any]]:
    lines = (CHECKOUT / "tests/fixtures/reference/runtime-wrapper.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def is_test(row: dict[str, Any]) -> bool:
    """Return whether the reference's answer does not depend on a driver, which its machine did not
    have.
    """
    needs_driver = any(
        "libcuda.so." in line or "ERROR_LIBRARY_NOT_FOUND" in line for line in row["logs"]
    )
    return not needs_driver


def without_hook_details(document: Any) -> Any:
    """Return config.json without the path, args[0], env and timeout of an inserted hook, which the
    records leave open.
    """
    hooks = (document or {}).get("hooks", {}).get("prestart", [])
    for hook in hooks:
        if hook.get("args", [])[1:] == ["prestart"]:
            hook.update(path="", args=["", "prestart"])
            hook.pop("env", None)
            hook.pop("timeout", None)
    return document


def test_most_records_are_tests() -> None:
    """33 of the 49 records are tests; the others depend on a driver that was missing."""
    rows = recorded_rows()
    assert len(rows) == 49
    assert sum(map(is_test, rows)) == 33


@pytest.mark.parametrize(
    "row", [row for row in recorded_rows() if is_test(row)], ids=lambda row: str(row["name"])
)
def test_every_recorded_run_is_reproduced(row: dict[str, Any], node: Node) -> None:
    """Exit code, arguments of the low-level runtime and the new config.json equal the record."""
    node.toml.write_text(row["toml"].replace("@RUNC@", str(node.runc)))
    node.config.write_text(json.dumps(row["config"]))
    done = node.run(*[argument.replace("@B@", str(node.bundle)) for argument in row["argv"]])
    assert done.returncode == row["rc"], done.stderr
    started = node.started()
    assert [argument.replace(str(node.bundle), "@B@") for argument in started["argv"][1:]] == row[
        "runc_argv"
    ]
    assert without_hook_details(json.loads(node.config.read_text())) == without_hook_details(
        row["out"]
    )


def needs_version(row: dict[str, Any]) -> bool:
    """Return whether the reference needed the driver's version for graphics on its machine without
    a driver.
    """
    return any("failed to create mounts discoverer" in line for line in row["logs"])


def rooted(node: Node, root: Path, toml: str = LEGACY) -> None:
    """Make ``root`` the driver root."""
    root.mkdir(parents=True, exist_ok=True)
    node.set_toml(f'{toml}[nvidia-container-cli]\nroot = "{root}"\n')


@pytest.mark.parametrize(
    "row", [row for row in recorded_rows() if needs_version(row)], ids=lambda row: str(row["name"])
)
def test_graphics_without_a_driver_are_refused(
    row: dict[str, Any], node: Node, tmp_path: Path
) -> None:
    """Graphics without a driver are refused as recorded: nothing is started or changed, and the
    reference's words come first.
    """
    rooted(node, tmp_path / "empty")
    node.config.write_text(json.dumps(row["config"]))
    message = failure(node.create())
    [line] = [line for line in row["logs"] if "failed to create mounts discoverer" in line]
    assert message.startswith(json.loads(line.partition("msg=")[2]) + " | ")
    assert node.started() is None
    assert json.loads(node.config.read_text()) == row["config"]


def test_graphics_files_are_found_in_the_driver_root(node: Node, tmp_path: Path) -> None:
    """Graphics files are found in the driver root, also through its loader cache and links inside
    it, and mounted at their places.
    """
    root = tmp_path / "driver"
    rooted(node, root)
    for path in (
        "usr/lib64/libcuda.so.535.1",
        "usr/local/share/vulkan/icd.d/nvidia_icd.json",
        "opt/libnvidia-egl-gbm.so.1.1.2",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    (root / "etc/glvnd/egl_vendor.d").mkdir(parents=True)
    (root / "etc/glvnd/egl_vendor.d/10_nvidia.json").symlink_to(
        "/usr/local/share/vulkan/icd.d/nvidia_icd.json"
    )
    rows = [("libnvidia-egl-gbm.so.1", "libc6,x86-64", "/opt/libnvidia-egl-gbm.so.1.1.2")]
    (root / "etc/ld.so.cache").write_bytes(ldcache_writer.cache(rows))
    node.config.write_text(
        json.dumps(
            GOOD
            | {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]}}
        )
    )
    done = node.create()
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(node.config.read_text())
    icd = f"{root}/usr/local/share/vulkan/icd.d/nvidia_icd.json"
    assert {mount["destination"]: mount["source"] for mount in document["mounts"]} == {
        "/etc/vulkan/icd.d/nvidia_icd.json": icd,
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": icd,
        "/opt/libnvidia-egl-gbm.so.1.1.2": f"{root}/opt/libnvidia-egl-gbm.so.1.1.2",
    }
    assert "createRuntime" not in document["hooks"]


def test_a_missing_driver_root_is_refused(node: Node, tmp_path: Path) -> None:
    """A missing driver root is refused with its path."""
    rooted(node, tmp_path / "driver")
    (tmp_path / "driver").rmdir()
    node.config.write_text(
        json.dumps(
            GOOD
            | {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]}}
        )
    )
    assert (
        f"failed to get driver version: open {tmp_path}/driver: no such file or directory |"
        " set root in config.toml" in failure(node.create())
    )


def test_links_are_created_by_nvgrafts_own_hook() -> None:
    """Links are created by nvgraft's own hook, whichever hook is configured, with environment and
    timeout.
    """
    (hook,) = link_hooks(Config(), {"PATH": "/bin"}, "/own/nvgraft-runtime", ["a::/b", "c::/d"])
    assert (hook.stage, hook.path, hook.args) == (
        "createRuntime",
        "/own/nvgraft-hook",
        ("nvgraft-hook", "create-symlinks", "--link", "a::/b", "--link", "c::/d"),
    )
    usual = hook_entry(Config(), {"PATH": "/bin"}, "/own/nvgraft-runtime")
    assert list(hook.env) == usual["env"]
    entry = {"path": hook.path, "args": list(hook.args), "env": list(hook.env), "timeout": 120}
    assert problems({**entry, "path": sys.executable}, "createRuntime") == problems(
        {**entry, "path": sys.executable, "args": ["x", "prestart"]}, "createRuntime"
    )
    assert problems(entry, "createRuntime") != problems({**entry, "args": ["x"]}, "createRuntime")


STEPS = [("create-symlinks", "--link", "a::/b"), ("update-application-profile",)]


def test_one_hook_takes_all_steps() -> None:
    """The hooks of CDI edits are one of our own beside the program, with environment, timeout, and
    the config.toml that the runtime read.
    """
    environ = {"NVIDIA_CTK_CONFIG_FILE_PATH": "/etc/my.toml"}
    own = "/own/nvgraft-runtime"
    (hook,) = hook_program(Config(), {}, own).hooks(STEPS)
    assert (hook.stage, hook.path, hook.timeout) == (
        "createContainer",
        "/own/nvgraft-cdi-hook",
        120,
    )
    words = ("steps", *STEPS[0], "--", *STEPS[1])
    assert hook.args == ("nvgraft-cdi-hook", *words)
    assert hook.env
    (hook,) = hook_program(Config(), environ, own).hooks(STEPS)
    assert hook.args == ("nvgraft-cdi-hook", "--config", "/etc/my.toml", *words)


@pytest.mark.parametrize(
    ("settings", "environ", "program"),
    [
        ({"cdi_hooks": "each"}, {}, ("/own/nvgraft-cdi-hook", "nvgraft-cdi-hook")),
        ({}, {"NVGRAFT_CDI_HOOKS": "each"}, ("/own/nvgraft-cdi-hook", "nvgraft-cdi-hook")),
        ({"ctk_path": "/opt/nvidia-ctk"}, {}, ("/opt/nvidia-ctk", "nvidia-ctk", "hook")),
        (
            {"ctk_path": "no-such-ctk", "cdi_hooks": "each"},
            {},
            ("/own/nvgraft-cdi-hook", "nvgraft-cdi-hook"),
        ),
    ],
)
def test_each_step_has_a_hook_where_that_is_asked(
    settings: dict[str, Any], environ: dict[str, str], program: tuple[str, ...]
) -> None:
    """With cdi-hooks = "each", by the variable, and with a program of config.toml, each step has a
    hook with the reference's arguments; in mode legacy the links, too.
    """
    config = Config(**settings)
    path, *words = program
    made = hook_program(config, environ, "/own/nvgraft-runtime").hooks(STEPS)
    assert [(hook.path, hook.args) for hook in made] == [(path, (*words, *step)) for step in STEPS]
    assert all(hook.env for hook in made)
    (linked,) = link_hooks(config, environ, "/own/nvgraft-runtime", ["a::/b"])
    assert (linked.stage, linked.args) == ("createContainer", (*words, *STEPS[0]))


def test_modules_for_graphics_are_loaded_on_demand(node: Node) -> None:
    """A start without graphics or a gate loads no module that reads the host."""
    code = (
        "import sys; sys.path[:0] = {paths!r}; import os; from nvgraft import runtime;"
        " runtime._become = lambda *_: os.write(1, "
        "' '.join(sys.modules).encode()); runtime.main(sys.argv[1:])"
    )
    paths = [str(CHECKOUT / name) for name in ("hook", "specs")]
    environment = {"PATH": "/usr/bin:/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": str(node.toml)}
    command = [
        sys.executable,
        "-ISB",
        "-c",
        code.format(paths=paths),
        "/opt/x/bin/nvgraft-runtime",
        "create",
        "-b",
        str(node.bundle),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
    loaded = {name for name in done.stdout.split() if name.startswith("nvgraft")}
    assert "nvgraft.wrapper.rewrite" in loaded
    assert loaded.isdisjoint(
        {
            "nvgraft.cdi.edits",
            "nvgraft.cdi.generation",
            "nvgraft.wrapper.host_look",
            "nvgraft.wrapper.additions",
            "nvgraft.wrapper.edits",
            "nvgraft.host.graphics_files",
            "nvgraft.host.live",
            "nvgraft.formats.tree",
            "nvgraft_specs.graphics_files",
        }
    )
