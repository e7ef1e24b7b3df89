"""The hook as a process, up to reading the host: bad input, usage and decisions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

CHECKOUT = Path(__file__).parent.parent
GOOD = {
    "ociVersion": "1.0.2",
    "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "args": ["sh"], "cwd": "/"},
    "root": {"path": "rootfs"},
}
LAUNCHER = """
import sys
sys.path += {paths!r}
from nvgraft.hook import run
run(["nvgraft-hook", *sys.argv[1:]])
"""


class Bundle:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(json.dumps(GOOD))
        (path / "config.toml").write_text('[nvidia-container-runtime]\nmode = "legacy"\n')

    def write(self, text: str) -> None:
        (self.path / "config.json").write_text(text)

    def state(self, **changes: object) -> str:
        return json.dumps(
            {"ociVersion": "1.0.2", "id": "x", "pid": 4194000, "bundle": str(self.path), **changes}
        )

    def hook(
        self, *arguments: str, stdin: str | None = None, stdout: IO[str] | int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        paths = [str(CHECKOUT / name) for name in ("hook", "specs")]
        command = [
            sys.executable,
            "-ISB",
            "-c",
            LAUNCHER.format(paths=paths),
            *(arguments or ("-config", "config.toml", "-dry-run", "prestart")),
        ]
        text = self.state() if stdin is None else stdin
        return subprocess.run(
            command,
            input=text,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            timeout=30,
            env={"PATH": "/usr/bin"},
        )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path)


def test_a_dry_run_prints_the_original_argv(bundle: Bundle) -> None:
    """A dry run prints the arguments of the original's nvidia-container-cli as one JSON array.

    Nothing else is looked at.
    """
    done = bundle.hook()
    assert done.returncode == 0
    argv = json.loads(done.stdout)
    assert argv[0] == "--load-kmods"
    assert argv[-2:] == ["--pid=4194000", str(bundle.path / "rootfs")]
    assert done.stderr == "Using requested mode 'legacy'\n"


def test_a_container_without_a_request_is_skipped_silently(bundle: Bundle) -> None:
    """A container that wants no GPU is exit 0 without a byte of output, as with the original."""
    bundle.write(json.dumps({**GOOD, "process": {"env": []}}))
    done = bundle.hook()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["poststart", "poststop"])
def test_other_stages_do_nothing(bundle: Bundle, command: str) -> None:
    """The later stages of a container's life do nothing, and do not even read stdin."""
    done = bundle.hook(command, stdin="no JSON")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "arguments", [["-bogus", "prestart"], ["-config"], [""], ["bogus"], ["-dry-run"]]
)
def test_usage_errors_exit_with_two(bundle: Bundle, arguments: list[str]) -> None:
    """A faulty command line prints the usage on stderr and exits with 2."""
    done = bundle.hook(*arguments)
    assert done.returncode == 2
    assert "usage: nvgraft-hook" in done.stderr


@pytest.mark.parametrize("arguments", [["--link"], ["--link", "a"], ["a::/b"]])
def test_usage_errors_of_create_symlinks(bundle: Bundle, arguments: list[str]) -> None:
    """A faulty command line of create-symlinks prints its own usage and changes nothing."""
    done = bundle.hook("create-symlinks", *arguments)
    assert done.returncode == 2
    assert "usage: nvgraft-hook create-symlinks" in done.stderr


def test_links_of_a_bad_state(bundle: Bundle) -> None:
    """create-symlinks reads the container's state on stdin, after the command line."""
    done = bundle.hook("create-symlinks", "--link", "a::/b", stdin="{")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("could not decode container state: unexpected EOF")


@pytest.mark.parametrize("flag", ["-h", "--help", "-version", "--version"])
def test_help_and_version_succeed(bundle: Bundle, flag: str) -> None:
    """--help and --version print nvgraft's name and exit with 0."""
    done = bundle.hook(flag)
    assert done.returncode == 0
    assert "nvgraft" in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["-version"], []], ids=["version", "dry run"])
def test_standard_output_that_cannot_be_written(bundle: Bundle, words: list[str]) -> None:
    """A full standard output is one line and exit code 2; a reader that has gone ends the hook as
    SIGPIPE does.
    """
    with open("/dev/full", "w") as full:
        done = bundle.hook(*words, stdout=full)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith("nvgraft: standard output: no space left on device | write to another")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = bundle.hook(*words, stdout=pipe)
    assert done.returncode == -signal.SIGPIPE
    assert "nvgraft" not in done.stderr


@pytest.mark.parametrize(
    ("stdin", "phrase"),
    [
        ("", "could not decode container state: "),
        ("{", "could not decode container state: "),
        ("pid 7", "could not decode container state: "),
        ("[]", "could not decode container state: "),
        ('{"pid": "7", "bundle": "/x"}', "could not decode container state: "),
        ('{"pid": 1.5, "bundle": "/x"}', "could not decode container state: "),
        ('{"pid": true, "bundle": "/x"}', "could not decode container state: "),
        ('{"pid": 7, "bundle": "/nonexistent"}', "could not open OCI spec: "),
        ('{"pid": 7, "bundle": 7}', "could not decode container state: "),
        ("[" * 100000, "could not decode container state: "),
        (" " * (2 << 20), "could not decode container state: "),
    ],
)
def test_a_bad_state_is_one_line(bundle: Bundle, stdin: str, phrase: str) -> None:
    """Input that is not an OCI state is one line in the original's words and exit 1."""
    done = bundle.hook(stdin=stdin)
    assert done.returncode == 1
    assert done.stderr.startswith(phrase)
    assert len(done.stderr.splitlines()) == 1


def _without(member: str) -> str:
    return json.dumps({name: value for name, value in GOOD.items() if name != member})


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "could not decode OCI spec: "),
        (json.dumps(GOOD)[:50], "could not decode OCI spec: "),
        ("null", "Version is empty in OCI spec"),
        ("[1]", "could not decode OCI spec: "),
        (_without("ociVersion"), "Version is empty in OCI spec"),
        (_without("process"), "Process is empty in OCI spec"),
        (_without("root"), "Root is empty in OCI spec"),
        (json.dumps({**GOOD, "process": {"env": "A=b"}}), "could not decode OCI spec: "),
        (
            json.dumps({**GOOD, "process": {"env": ["NOEQUALS"]}}),
            "invalid environment variable: NOEQUALS",
        ),
        (json.dumps({**GOOD, "root": {"path": 7}}), "could not decode OCI spec: "),
        ('{"ociVersion": NaN}', "could not decode OCI spec: "),
    ],
)
def test_a_bad_config_json_is_one_line(bundle: Bundle, text: str, phrase: str) -> None:
    """A truncated, mistyped or incomplete config.json is one line in the original's words and exit
    1.
    """
    bundle.write(text)
    done = bundle.hook()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(phrase)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("toml", "phrase"),
    [
        ("disable-require = 7", "error getting hook config: failed to load config: "),
        ("[nvidia-container-cli\n", "error getting hook config: failed to load config: "),
        ('[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"', "invalid config value"),
        ('[nvgraft]\nhost-snapshot = "/x"', "error getting hook config: "),
    ],
)
def test_a_bad_config_toml_is_refused(bundle: Bundle, toml: str, phrase: str) -> None:
    """Wrong types, bad syntax and forbidden values of config.toml are fatal."""
    (bundle.path / "config.toml").write_text(toml)
    done = bundle.hook()
    assert done.returncode == 1
    assert phrase in done.stderr
    assert "Traceback" not in done.stderr


def test_a_named_config_toml_must_exist(bundle: Bundle) -> None:
    """-config with a missing file fails."""
    done = bundle.hook("-config", "missing.toml", "-dry-run", "prestart")
    assert done.returncode == 1
    assert "couldn't open required configuration file" in done.stderr


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"])
def test_loader_variables_of_the_runtime_are_refused(bundle: Bundle, name: str) -> None:
    """A hook with loader variables in its environment refuses, with the variable and the fix."""
    paths = [str(CHECKOUT / part) for part in ("hook", "specs")]
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", LAUNCHER.format(paths=paths), "prestart"],
        input=bundle.state(),
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin", name: "/nonexistent"},
    )
    assert done.returncode == 1
    assert (
        f"environment variable {name} is set for the hook | register the hook with an explicit env"
        in done.stderr
    )


@pytest.mark.parametrize("steering", ["\n\x1b[31m", "\u2028", "\u202e", "\u2066"], ids=ascii)
def test_hostile_text_cannot_forge_a_log_line(bundle: Bundle, steering: str) -> None:
    """Control and format characters of the container's configuration are escaped on stderr."""
    entry: Any = f"EVIL{steering}nvgraft: all is well"
    bundle.write(json.dumps({**GOOD, "process": {"env": [entry]}}))
    done = bundle.hook()
    assert done.returncode == 1
    assert done.stderr.removesuffix("\n").isprintable()
