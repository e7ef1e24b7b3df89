"""Registration by a node owner: with the engines' real configuration, and a container started then.

All of it is on a simulated host, whose /etc and /usr are layers that vanish with it.
"""

import json
import tomllib

import pytest

from containers import LOOK, Bundle
from test_engines import PODMAN, PODMAN_RUN, REQUEST, assert_grafted

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")


@pytest.mark.requires("podman", "cgroup-v1")
def test_podman_finds_the_hook_where_it_is_registered(bundle: Bundle) -> None:
    """podman finds the default file without options, and runs its entry for a container that
    requests GPUs.
    """
    (bundle.path / "rootfs/look").write_text(LOOK)
    podman = PODMAN.replace("--hooks-dir /run/hooks.d", "")
    run = f"{podman} {PODMAN_RUN} --rm {REQUEST} --rootfs {bundle.path}/rootfs sh /look"
    cli = bundle.installed.cli
    assert_grafted(bundle.on_host(f"{cli} register podman > /dev/null && {run}"), devices=True)
    done = bundle.on_host(
        f"{cli} register podman && {cli} unregister podman && {run} > /run/out; grep -c nvidia "
        "/run/out"
    )
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.requires("cgroup-v1")
def test_a_registered_bundle_runs_the_hook(bundle: Bundle) -> None:
    """runc accepts the edited config.json, and unregistering restores the bundle."""
    bundle.edit(lambda config: config.pop("hooks"))
    bundle.set_program(LOOK)
    cli, name = bundle.installed.cli, bundle.name
    register, unregister = (
        f"{cli} {command} runc --bundle {bundle.path} > /dev/null"
        for command in ("register", "unregister")
    )
    run = f"runc --root /run/runc-test run --bundle {bundle.path} {name}"
    assert_grafted(bundle.on_host(f"{register} && {run}"), devices=True)
    done = bundle.on_host(
        f"cp -a {bundle.path} /run/was && {register} && {unregister} && diff -r {bundle.path} "
        "/run/was && echo same"
    )
    assert done.stdout.strip() == "same", done.stderr


@pytest.mark.requires("containerd")
@pytest.mark.parametrize(
    "prepare",
    [
        "true",
        "rm -f /etc/containerd/config.toml",
        "mkdir -p /etc/containerd && containerd config default > /etc/containerd/config.toml",
    ],
    ids=["as packaged", "no file", "all defaults written out"],
)
def test_containerd_reads_its_registration(bundle: Bundle, prepare: str) -> None:
    """containerd's own reading of the edited file has the runtime, with our program, and still has
    runc.
    """
    file = "/etc/containerd/config.toml"
    done = bundle.on_host(
        f"{prepare}; {bundle.installed.cli} register containerd > /dev/null && containerd -c "
        f"{file} config dump"
    )
    assert done.returncode == 0, done.stderr
    config = tomllib.loads(done.stdout)
    (plugin,) = (
        section
        for name, section in config["plugins"].items()
        if "containerd" in section and "cri" in name
    )
    runtimes = plugin["containerd"]["runtimes"]
    assert runtimes.keys() == {"runc", "nvgraft"}
    assert runtimes["nvgraft"]["options"].pop("BinaryName") == str(
        bundle.installed.prefix / "bin/nvgraft-runtime"
    )
    # containerd 2 prints its defaults in runc's entry only. What is set for our runtime is what is
    # set for runc.
    ours = {key: value for key, value in runtimes["nvgraft"].items() if value}
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    options = ours.pop("options", {})
    assert options == {key: runtimes["runc"]["options"][key] for key in options}
    assert ours == {key: runtimes["runc"][key] for key in ours}


def test_docker_reads_json_that_names_the_runtime(bundle: Bundle) -> None:
    """A node's daemon.json keeps its settings, and the runtime in it is a program that starts."""
    cli = bundle.installed.cli
    prepare = """mkdir -p /etc/docker && echo '{"debug": true}' > /etc/docker/daemon.json"""
    done = bundle.on_host(
        f"{prepare} && {cli} register docker --set-default > /dev/null && cat "
        "/etc/docker/daemon.json"
    )
    config = json.loads(done.stdout)
    runtime = str(bundle.installed.prefix / "bin/nvgraft-runtime")
    assert config == {
        "debug": True,
        "runtimes": {"nvgraft": {"path": runtime}},
        "default-runtime": "nvgraft",
    }
    assert "runc version" in bundle.on_host(f"{runtime} --version").stdout


@pytest.mark.parametrize("engine", ["podman", "crio", "containerd", "docker"])
@pytest.mark.parametrize(
    "change",
    [
        "chmod g+w {}/bin/nvgraft-hook",
        "chown 1000 {}/lib/nvgraft/hook/nvgraft/hook.py",
        "chmod 1777 {}",
    ],
)
def test_what_others_can_change_is_not_registered(bundle: Bundle, engine: str, change: str) -> None:
    """A program that others than root can replace is not registered with an engine that runs as
    root.
    """
    prefix = bundle.installed.prefix
    done = bundle.on_host(f"{change.format(prefix)} && {bundle.installed.cli} register {engine}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert str(prefix) in done.stderr.splitlines()[-1]
    assert done.stderr.startswith("nvgraft register: ")
