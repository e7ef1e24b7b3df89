"""`nvgraft register` with the engines' real configuration, and a container that is started then.

Everything runs on a simulated host, whose changes to /etc and /usr are thrown away.
"""

import json
import tomllib

import pytest

from containers import LOOK, Bundle
from test_engines import PODMAN, PODMAN_RUN, REQUEST, assert_grafted

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")


@pytest.mark.requires("podman", "cgroup-v1")
def test_podman_finds_the_hook_where_it_is_registered(bundle: Bundle) -> None:
    """podman runs the hook of the registered file by default, and not after unregistering."""
    (bundle.path / "rootfs/look").write_text(LOOK)
    podman = PODMAN.replace("--hooks-dir /run/hooks.d", "")
    run = f"{podman} {PODMAN_RUN} --rm {REQUEST} --rootfs {bundle.path}/rootfs sh /look"
    cli = bundle.installed.cli
    assert_grafted(bundle.on_host(f"{cli} register podman > /dev/null && {run}"), devices=True)
    both = f"{cli} register podman && {cli} unregister podman"
    done = bundle.on_host(f"{both} && {run} > /run/out; grep -c nvidia /run/out")
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.requires("cgroup-v1")
def test_a_registered_bundle_runs_the_hook(bundle: Bundle) -> None:
    """runc runs the hook of the edited config.json; unregistering restores the bundle."""
    bundle.edit(lambda config: config.pop("hooks"))
    bundle.set_program(LOOK)
    cli, name = bundle.installed.cli, bundle.name
    register, unregister = (
        f"{cli} {command} runc --bundle {bundle.path} > /dev/null"
        for command in ("register", "unregister")
    )
    run = f"runc --root /run/runc-test run --bundle {bundle.path} {name}"
    assert_grafted(bundle.on_host(f"{register} && {run}"), devices=True)
    compare = f"diff -r {bundle.path} /run/was && echo same"
    done = bundle.on_host(
        f"cp -a {bundle.path} /run/was && {register} && {unregister} && {compare}"
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
    """containerd's dump of the edited configuration has runc, and the runtime with our program."""
    file = "/etc/containerd/config.toml"
    register = f"{bundle.installed.cli} register containerd > /dev/null"
    done = bundle.on_host(f"{prepare}; {register} && containerd -c {file} config dump")
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
    # The dump of containerd 2 shows defaults in runc's entry only: what our entry sets equals them.
    ours = {key: value for key, value in runtimes["nvgraft"].items() if value}
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    options = ours.pop("options", {})
    assert options == {key: runtimes["runc"]["options"][key] for key in options}
    assert ours == {key: runtimes["runc"][key] for key in ours}


def test_docker_reads_json_that_names_the_runtime(bundle: Bundle) -> None:
    """daemon.json keeps its other keys, and the runtime that it names is a program that starts."""
    cli = bundle.installed.cli
    prepare = """mkdir -p /etc/docker && echo '{"debug": true}' > /etc/docker/daemon.json"""
    register = f"{cli} register docker --set-default > /dev/null"
    done = bundle.on_host(f"{prepare} && {register} && cat /etc/docker/daemon.json")
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
def test_programs_that_others_can_change_are_not_registered(
    bundle: Bundle, engine: str, change: str
) -> None:
    """register refuses a program that another user than root can replace."""
    prefix = bundle.installed.prefix
    done = bundle.on_host(f"{change.format(prefix)} && {bundle.installed.cli} register {engine}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert str(prefix) in done.stderr.splitlines()[-1]
    assert done.stderr.startswith("nvgraft register: ")
