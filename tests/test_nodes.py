"""Names of simulated nodes: which are found, and what a name that is not found says."""

import os
from pathlib import Path

import pytest

from nvgraft_cli.shell import nodes
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.main import main
from nvgraft_cli.shell.nodes import Registration, start_time

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the names in a directory of the test."""
    place = tmp_path / "nvgraft/nodes"
    monkeypatch.setattr(nodes, "DIRECTORY", str(place))
    return place


def announce(node: Registration) -> None:
    """Announce this process as the first one of a node."""
    node.announce(os.getpid(), start_time("self"))


def test_a_node_is_found_while_it_runs(directory: Path) -> None:
    """A node is found after it was announced and until its context ends, and leaves no file."""
    assert nodes.names() == []
    with Registration("a") as node:
        assert nodes.names() == []
        announce(node)
        assert nodes.names() == ["a"]
    assert nodes.names() == []
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["", "-a", ".", "..", "a/b", "a b", "a" * 65, "ä", "a\n"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    """A name is a file name without surprises."""
    with pytest.raises(InputError, match="not a name"):
        Registration(name)


def test_a_name_is_given_once() -> None:
    """A second node cannot have the name of one that runs; afterwards the name is free."""
    with Registration("a"), pytest.raises(InputError, match="a simulated node with this name runs"):
        Registration("a")
    with Registration("a"):
        pass


@pytest.mark.parametrize("content", ["", "junk", "1", "PID 1", "99999999 1", "-1 1"])
def test_a_file_without_its_process_is_no_node(directory: Path, content: str) -> None:
    """A file that names no process, or another one with the same number, is not a node."""
    with Registration("a") as node:
        os.pwrite(node._fd, content.replace("PID", str(os.getpid())).encode(), 0)
        assert nodes.names() == []


def test_a_file_of_a_killed_node_is_no_node(directory: Path) -> None:
    """The file that a killed node has left is not a node, and its name is free."""
    with Registration("b"):
        (directory / "a").write_text(f"{os.getpid()} {start_time('self')}\n")
        (directory / "a").chmod(0o600)
        assert nodes.names() == []
    with Registration("a") as node:
        assert (directory / "a").read_text() == ""
        announce(node)
        assert nodes.names() == ["a"]


def test_a_node_that_does_not_run_is_one_line() -> None:
    """--node with an unknown name lists those that run, and says how to start it."""
    with Registration("a") as node:
        announce(node)
        with pytest.raises(InputError) as caught:
            nodes._open("b")
    assert str(caught.value) == (
        "--node b: no simulated node with this name runs | name one of a, or start it:"
        " nvgraft simulate --name b HOST -- COMMAND"
    )


def test_only_root_can_enter_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root's rights --node says what to do."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="only root can enter a simulated node"):
        nodes.enter("a")


def test_host_and_node_exclude_each_other(capsys: Captured) -> None:
    """A command is about a recorded host or a running node, not both."""
    with pytest.raises(SystemExit):
        main(["plan", "--host", "eks-t4", "--node", "a"])
    assert "--node: not allowed with argument --host" in capsys.readouterr().err
