"""Commands on a simulated node that runs: ``simulate --name`` and ``--node``."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import CHECKOUT, Installed

pytestmark = pytest.mark.requires("root", "overlayfs", "x86_64", "ldconfig", "sh")

NODE = f"test-{os.getpid()}"
BUNDLE = CHECKOUT / "docs/examples/one-gpu"


@pytest.fixture(scope="module")
def node(installed: Installed) -> Iterator[Installed]:
    """Start a node that runs until the end of the tests; its command says that it is there."""
    command = ["sh", "-c", "echo there; exec cat"]
    with subprocess.Popen(
        [installed.cli, "simulate", "--name", NODE, "runfile-a10x2", "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "there\n"
        yield installed
        child.stdin.close()
        assert child.wait(60) == 0


def nvgraft(node: Installed, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run nvgraft with --node."""
    done = subprocess.run(
        [node.cli, *words, "--node", NODE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_command_sees_the_node(node: Installed) -> None:
    """With --node a plan is that of the recorded host, read live on the node."""
    words = ["plan", "--container", str(BUNDLE), "--format", "json"]
    live = json.loads(nvgraft(node, *words).stdout)
    done = subprocess.run(
        [node.cli, *words, "--host", "runfile-a10x2"], capture_output=True, text=True, timeout=60
    )
    recorded = json.loads(done.stdout)
    assert live["host"]["driver_version"] == recorded["host"]["driver_version"]
    assert files(live) == files(recorded)


def files(plan: dict[str, Any]) -> list[str]:
    """Return the files that a plan mounts."""
    return [action["source"] for action in plan["actions"] if action.get("kind") == "file"]


def test_output_is_written_where_the_caller_is(node: Installed, tmp_path: Path) -> None:
    """--output and --html write to the caller's file system, not to the node's, and a snapshot of
    the node can be planned for.
    """
    nvgraft(node, "snapshot", "--output", tmp_path / "node.json")
    nvgraft(node, "explain", "--container", BUNDLE, "--html", tmp_path / "page.html")
    done = subprocess.run(
        [node.cli, "diff", tmp_path / "node.json", "runfile-a10x2", "--container", BUNDLE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.endswith("\nequal\n")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_change_stays_on_the_node(node: Installed) -> None:
    """What a command changes is there for the next command on the node, and nowhere else."""
    nvgraft(node, "inventory", "refresh")
    assert "the next hook uses it" in nvgraft(node, "inventory", "show").stdout
    shown = nvgraft(node, "inventory", "show", "--format", "json").stdout
    outside = subprocess.run(
        [node.cli, "inventory", "show", "--format", "json"], capture_output=True, text=True
    )
    assert outside.stdout != shown


def test_standard_input_reaches_the_node(node: Installed) -> None:
    """``-`` reads the caller's standard input on the node, where the command is confined: a pipe
    and a file.
    """
    words = [str(node.cli), "plan", "--node", NODE, "--container", "-"]
    with open(BUNDLE / "config.json", "rb") as file:
        text = file.read()
        file.seek(0)
        from_file = subprocess.run(words, stdin=file, capture_output=True, timeout=60)
    from_pipe = subprocess.run(words, input=text, capture_output=True, timeout=60)
    assert (from_file.returncode, from_file.stderr) == (0, b"")
    assert from_file.stdout.startswith(b"inject: ")
    assert (from_pipe.stdout, from_pipe.stderr) == (from_file.stdout, b"")


def test_exit_codes_and_errors_are_those_of_the_command(node: Installed) -> None:
    """The exit code and the error of a command on the node are as without --node."""
    done = nvgraft(node, "plan", "--container", "/nowhere", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("nvgraft plan: /nowhere: no such file or directory")
    assert nvgraft(node, "why", "nothing", "--container", BUNDLE, code=1).stdout


#: A container that asks for graphics, before and after the real nvgraft-runtime has rewritten its
#: config.json.
_START = """
set -e
place=$(mktemp -d)
cp -r "$1/." "$place"
printf '#!/bin/sh\n' >"$place/runc"
chmod +x "$place/runc"
cd "$place"
"$2/nvgraft" plan --env NVIDIA_DRIVER_CAPABILITIES=all --mode runtime --format json
sed -i 's/"env": *\\[/&"NVIDIA_DRIVER_CAPABILITIES=all",/' config.json
PATH=$place:$PATH "$2/nvgraft-runtime" create --bundle "$place" x
"$2/nvgraft" plan --format json
"""


def test_mode_runtime_is_what_the_runtime_does(node: Installed) -> None:
    """--mode runtime plans for the container that the real nvgraft-runtime makes of it, also with
    the files that it adds for graphics.
    """
    done = subprocess.run(
        [
            node.cli,
            "simulate",
            "runfile-a10x2",
            "--",
            "sh",
            "-c",
            _START,
            "sh",
            BUNDLE,
            node.cli.parent,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    predicted, end = json.JSONDecoder().raw_decode(done.stdout)
    started = json.loads(done.stdout[end:])
    remarks = [one for one in predicted["findings"] if one["id"] == "runtime"]
    assert len(remarks) > 2  # the mode, the hook, and what is added for graphics
    predicted["findings"] = [one for one in predicted["findings"] if one["id"] != "runtime"]
    assert predicted == started


def test_a_killed_node_is_not_found(installed: Installed) -> None:
    """A node that was killed is not found, and its name is free."""
    name = f"{NODE}-killed"
    for _ in range(2):
        with subprocess.Popen(
            [installed.cli, "simulate", "--name", name, "eks-t4", "--", "sh", "-c", "echo; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            child.stdout.read()  # until the last process of the node has ended
        done = subprocess.run(
            [installed.cli, "plan", "--node", name], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert f"--node {name}: no simulated node with this name runs" in done.stderr
    os.unlink(f"/run/nvgraft/nodes/{name}")
