"""nvgraft-runtime in the place of runc, called directly and by containerd."""

import json
import subprocess
from typing import Any

import pytest

from containers import CONFIG, HOST, LOOK, Bundle, Run, environment, set_mode
from test_engines import CONTAINERD, DENIED, LIBCUDA, assert_grafted

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "cgroup-v1")


@pytest.fixture
def plain(bundle: Bundle) -> Bundle:
    """Return a bundle without any hook: the runtime inserts it."""
    bundle.set_program(LOOK)
    bundle.edit(lambda config: config.pop("hooks"))
    return bundle


def hooks(done: Run) -> list[dict[str, Any]]:
    """Return the prestart hooks of config.json as the wrapper has written it."""
    config = json.loads(done.stdout.partition(f"\n{CONFIG}\n")[2])
    prestart = config.get("hooks", {}).get("prestart", [])
    assert isinstance(prestart, list)
    return prestart


def test_a_container_gets_its_driver(plain: Bundle) -> None:
    """A container created through the wrapper has devices, mounts and a loader that finds the
    driver.

    runc's other commands pass through the wrapper.
    """
    done = plain.on_host(plain.lifecycle())
    assert_grafted(done, devices=True)
    assert '"status": "created"' in done.stdout
    [hook] = hooks(done)
    assert hook["path"] == str(plain.installed.hook)


def test_a_second_create_inserts_nothing_more(plain: Bundle) -> None:
    """A second create of a bundle that has the hook already does not add it again."""
    done = plain.on_host(f"{{ {plain.lifecycle()}; }} > /dev/null && {plain.lifecycle()}")
    assert_grafted(done, devices=True)
    assert len(hooks(done)) == 1


def test_a_container_that_wants_no_gpu_is_left_alone(plain: Bundle) -> None:
    """In mode auto, a container that requests no GPU is created without the hook."""
    plain.edit(environment())
    auto = "sed -i 's/^mode.*/mode = \"auto\"/' /etc/nvidia-container-runtime/config.toml"
    done = plain.on_host(f"{auto} && {plain.lifecycle()}")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout.partition(CONFIG)[0]
    assert hooks(done) == []


def test_a_refused_container_is_not_created(plain: Bundle) -> None:
    """The hook's refusal comes through runc and the wrapper, and nothing is changed."""
    plain.edit(environment("NVIDIA_VISIBLE_DEVICES=7"))
    done = plain.on_host(plain.lifecycle())
    assert done.returncode == 1
    assert "nvgraft: device error: 7: unknown device" in done.stderr
    assert [line for line in done.changes if f" {plain.path}/config.json " not in line] == []


def test_version_names_the_wrapper_and_runc(plain: Bundle) -> None:
    """--version prints the versions of the wrapper and of the real runc."""
    done = plain.on_host(f"{plain.installed.prefix}/bin/nvgraft-runtime --version")
    assert done.returncode == 0
    assert done.stdout.startswith("NVIDIA Container Runtime version ")
    assert "\n\nrunc version " in done.stdout


@pytest.mark.requires("containerd")
def test_containerd_with_the_wrapper_as_its_runtime(plain: Bundle) -> None:
    """`ctr run` with nvgraft-runtime as its runtime binary gives a container the driver."""
    # containerd makes a bundle directory of its own, so that the path of the rootfs has to be
    # absolute.
    plain.edit(lambda config: config["root"].update(path=str(plain.path / "rootfs")))
    binary = f"{plain.installed.prefix}/bin/nvgraft-runtime"
    options = f"--rm --runc-binary {binary} --config {plain.path}/config.json"
    run = f"ctr -a /run/containerd-test.sock run {options} {plain.name}"
    done = plain.on_host(f"{CONTAINERD}\n{run}; code=$?; kill $!; exit $code")
    assert_grafted(done, devices=True)


@pytest.mark.parametrize("hooks", ["one", "each"])
@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_a_container_gets_its_driver_from_edits(plain: Bundle, mode: str, hooks: str) -> None:
    """In modes with CDI edits a container has its GPU, the driver's files and a loader that finds
    them, without the prestart hook.
    """
    done = plain.on_host(f"{set_mode(mode, hooks)} && {plain.lifecycle()}")
    assert done.returncode == 0, done.stderr
    assert LIBCUDA in [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert "libcuda.so.1 => /" in done.stdout
    for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"):
        assert f"can't open {node}: No such device or address" in done.stdout
    assert DENIED in done.stdout
    config = json.loads(done.stdout.partition(f"\n{CONFIG}\n")[2])
    assert list(config["hooks"]) == ["createContainer"]
    assert (len(config["hooks"]["createContainer"]) == 1) == (hooks == "one")


def test_a_plan_of_edits_is_what_the_container_gets(plain: Bundle) -> None:
    """`plan --mode jit-cdi`, made from files alone, names the mounts, nodes and links that the
    started container has.
    """
    bundle = str(plain.path)
    before = plain.path / "plan.json"
    with before.open("w") as file:
        words = ["plan", "--container", bundle, "--host", HOST, "--mode", "jit-cdi"]
        subprocess.run(
            [str(plain.installed.cli), *words, "--format", "json"], stdout=file, check=True
        )
    actions = json.loads(before.read_text())["actions"]
    before.unlink()
    done = plain.on_host(f"{set_mode('jit-cdi')} && {plain.lifecycle()}")
    assert done.returncode == 0, done.stderr
    mounted = {line.split()[4] for line in done.stdout.splitlines() if " - " in line}
    files = {a["target"] for a in actions if a["op"] == "mount" and a["kind"] != "device"}
    assert "/proc/driver/nvidia/params" not in files or "/proc/driver/nvidia/params" in mounted
    assert {path for path in files if path in mounted} == files
    assert not [path for path in mounted if "nvidia" in path and path not in files]
    nodes = {a["target"] for a in actions if a["op"] == "mount" and a["kind"] == "device"}
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"} <= nodes
    links = {a["path"] for a in actions if a["op"] == "symlink"}
    made = {
        line.split()[1].removeprefix(f"{bundle}/rootfs") for line in done.changes if " l " in line
    }
    assert made == {path for path in links if not path.startswith("/dev/")}
