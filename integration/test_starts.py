"""``nvgraft watch --starts`` on this machine, while containers start on simulated hosts."""

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from containers import CONFIG_TOML, Bundle, environment
from documents import read_document

pytestmark = pytest.mark.requires(
    "root", "runc", "busybox", "overlayfs", "x86_64", "process-events"
)


@pytest.fixture
def watcher(bundle: Bundle) -> Iterator["subprocess.Popen[str]"]:
    """Yield a watcher that is ready."""
    command = [str(bundle.installed.cli), "watch", "--starts", "--format", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "watching the starts of containers" in process.stderr.readline()
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def next_start(watcher: "subprocess.Popen[str]", container: str) -> dict[str, Any]:
    """Return the next start of this container; those of other tests are left out."""
    assert watcher.stdout is not None
    for line in watcher.stdout:
        document = read_document(line)
        if document["container"] == container:
            return document
    raise AssertionError("the watcher has ended")


def test_every_outcome_of_the_hook_is_seen(
    bundle: Bundle, watcher: "subprocess.Popen[str]"
) -> None:
    """A container that gets the driver, one that wants none, one that is refused, and one without
    the hook are shown with what the hook did, the reason and the time.
    """
    assert bundle.run("true").returncode == 0
    seen = next_start(watcher, bundle.name)
    assert (seen["hook"], seen["exit_code"]) == ("configured", 0), seen
    assert (seen["runtime"], seen["command"]) == ("runc", "run")
    assert seen["bundle"] == str(bundle.path)
    assert "all; " in seen["message"]
    assert 1 < seen["milliseconds"] < 60_000

    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=void"))
    assert bundle.run("true").returncode == 0
    seen = next_start(watcher, bundle.name)
    assert (seen["hook"], seen["exit_code"]) == ("nothing-to-do", 0)
    assert "NVIDIA_VISIBLE_DEVICES" in seen["message"]

    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=7"))
    assert bundle.run("true").returncode != 0
    seen = next_start(watcher, bundle.name)
    assert (seen["hook"], seen["exit_code"]) == ("refused", 1)
    assert "device error: 7: unknown device" in seen["message"]

    bundle.edit(lambda config: config.pop("hooks"))
    assert bundle.run("true").returncode == 0
    seen = next_start(watcher, bundle.name)
    assert (seen["hook"], seen["exit_code"], seen["milliseconds"]) == ("not-seen", None, None)
    assert seen["message"].endswith("although the container asks for 7")


def test_a_start_through_the_runtime_is_seen_once(
    bundle: Bundle, watcher: "subprocess.Popen[str]"
) -> None:
    """nvgraft-runtime becomes runc; create, start and delete are one start."""
    bundle.set_program("true")
    mode = f"sed -i 's/mode = .*/mode = \"legacy\"/' {CONFIG_TOML}"
    assert bundle.on_host(f"{mode}; {bundle.lifecycle()}").returncode == 0
    seen = next_start(watcher, bundle.name)
    assert (seen["runtime"], seen["command"], seen["hook"]) == ("runc", "create", "configured")
    bundle.edit(lambda config: config.pop("hooks", None))
    assert bundle.run("true").returncode == 0
    assert next_start(watcher, bundle.name)["command"] == "run"


def test_namespaces_without_events_are_refused(bundle: Bundle) -> None:
    """In other network or pid namespaces the watcher says where to run it, and exits with 2."""
    command = [str(bundle.installed.cli), "watch", "--starts", "--format", "json"]
    for options, place in (
        (["--net"], "initial network namespace"),
        (["--pid", "--fork", "--mount-proc"], "initial pid namespace"),
    ):
        done = subprocess.run(["unshare", *options, *command], capture_output=True, text=True)
        assert done.returncode == 2
        assert place in done.stderr
        assert json.loads(done.stdout)["schema"] == "nvgraft.error/1"
