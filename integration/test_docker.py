"""Docker: containers that a real dockerd starts on a simulated host, with roots and a socket of its
own.

The runtime is registered by ``nvgraft register docker``. ``--gpus`` finds the hook by its original
name. Whatever happens, the daemon has ended when a test ends, and its mounts and cgroups are gone.
"""

import subprocess

import pytest

from containers import LOADER_LINE, LOOK, Bundle, Run
from harness import RUNSC, RUNSC_OPTIONS
from test_engines import LIBCUDA, REQUEST, assert_grafted

pytestmark = pytest.mark.requires(
    "root", "runc", "busybox", "overlayfs", "x86_64", "docker", "cgroup-v1"
)

#: Runs commands while dockerd runs. A command may use $run, an option list for ``docker run``.
SCRIPT = """
D=/srv/docker-test
export DOCKER_HOST=unix://$D.sock PATH={path}{bin}:/usr/sbin:/usr/bin:/sbin:/bin
{bin}/nvgraft register docker > /dev/null || exit 91
dockerd --data-root $D --exec-root $D.run --pidfile $D.pid --host $DOCKER_HOST --storage-driver=vfs \\
  --iptables=false --ip6tables=false --ip-forward=false --bridge=none --cgroup-parent={name} {options} \\
  > $D.log 2>&1 &
daemon=$!
until docker version > /dev/null 2>&1; do kill -0 $daemon || break; sleep 0.1; done
tar -C {rootfs} -c . | docker import - image > /dev/null
run="run --network none"
({commands})
code=$?
docker ps --all --quiet | xargs -r docker rm --force > /dev/null
kill $daemon
wait $daemon
[ $code = 0 ] || tail -n 20 $D.log >&2
! grep $D /proc/self/mountinfo || code=92
exit $code
"""

#: Its last line, when no driver is in the container.
COUNT = "sh -c 'grep -c nvidia /proc/self/mountinfo || true'"
WITHOUT = "0"


def docker(bundle: Bundle, commands: str, options: str = "", path: str = "") -> Run:
    """Run shell commands on a simulated host on which dockerd runs with the bundle's image.

    :param options: options of dockerd.
    :param path: directories with another Docker, each with a colon behind it.
    """
    (bundle.path / "rootfs/look").write_text(LOOK)
    script = SCRIPT.format(
        bin=bundle.installed.prefix / "bin",
        name=bundle.name,
        rootfs=bundle.path / "rootfs",
        options=options,
        commands=commands,
        path=path,
    )
    try:
        return bundle.on_host(script)
    finally:
        # dockerd's parent cgroup, in each hierarchy: cgroups are those of this machine.
        cgroups = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", f"*/{bundle.name}*"]
        subprocess.run(["find", *cgroups, "-exec", "rmdir", "{}", "+"], check=True)


def test_the_registered_runtime(bundle: Bundle) -> None:
    """`docker run --runtime nvgraft` gives a container devices, mounts and loader, and one that
    requests no GPU gets nothing.
    """
    look = f"docker $run --runtime nvgraft {REQUEST} image sh /look"
    without = f"docker $run --runtime nvgraft image {COUNT}"
    done = docker(bundle, f"{look}; {without}")
    assert_grafted(done, devices=True)
    assert done.stdout.splitlines()[-1] == WITHOUT


def test_gpus_all(bundle: Bundle) -> None:
    """`docker run --gpus all` runs the hook by its original name, with the default runtime."""
    assert_grafted(docker(bundle, "docker $run --gpus all image sh /look"), devices=True)


def test_gpus_by_index(bundle: Bundle) -> None:
    """`docker run --gpus device=1` gives that GPU alone, and an unknown one is refused with the
    hook's line.
    """
    look, unknown = (f"docker $run --gpus device={index} image sh /look" for index in (1, 7))
    done = docker(bundle, f"{look}; {unknown}; [ $? = 125 ]")
    assert done.returncode == 0, done.stderr
    assert "can't open /dev/nvidia1: No such device or address" in done.stdout
    assert "/dev/nvidia0" not in done.stdout
    assert "nvgraft: device error: 7: unknown device | this host has 2 GPU(s)" in done.stderr


#: Like LOOK in a user namespace, whose root may make no nodes.
LOOK_AS_USER = LOOK.replace("mknod", "true mknod")


def test_a_daemon_that_remaps_users(bundle: Bundle) -> None:
    """With `dockerd --userns-remap` mounts and loader are right, and the container's root owns what
    was made.
    """
    (bundle.path / "rootfs/look-as-user").write_text(LOOK_AS_USER)
    owner = "ls -ln /etc/ld.so.cache"
    look = f"docker $run --gpus all image sh -c '{owner}; sh /look-as-user'"
    done = docker(bundle, look, "--userns-remap=default")
    assert_grafted(done, devices=False)
    assert done.stdout.split()[2:4] == ["0", "0"]
    assert "can't open /dev/nvidia0: No such device or address" in done.stdout


def test_a_container_is_restarted_entered_updated_and_committed(bundle: Bundle) -> None:
    """The driver is still there after a restart and an update, an exec has it, and a container of
    the committed image gets it anew.
    """
    commands = f"""
docker $run --detach --name first --runtime nvgraft {REQUEST} image sh -c 'while :; do sleep 1; done' || exit 1
docker restart -t 0 first && echo restarted && docker exec first sh /look || exit 2
docker update --pids-limit 50 first && echo updated && docker exec first sh /look || exit 3
docker commit first again && docker rm --force first || exit 4
echo without; docker $run again {COUNT}
echo committed; docker $run --runtime nvgraft {REQUEST} again sh /look
"""
    done = docker(bundle, commands)
    assert done.returncode == 0, done.stderr
    restarted, rest = done.stdout.partition("\nrestarted\n")[2].split("\nupdated\n")
    updated, rest = rest.split("\nwithout\n")
    without, committed = rest.split("\ncommitted\n")
    for look in (restarted, updated, committed):
        assert_grafted(done._replace(stdout=look), devices=True)
    assert without == WITHOUT


@pytest.mark.requires("runsc")
def test_gpus_under_gvisor(bundle: Bundle) -> None:
    """`docker run --runtime runsc --gpus all` gives a sandbox the driver by `configure --pid`."""
    (bundle.path / "rootfs/look-inside").write_text(f"ls {LIBCUDA} && {LOADER_LINE}\n")
    runtime = bundle.path / "runsc"
    runtime.write_text(f'#!/bin/sh\nexec {RUNSC} {RUNSC_OPTIONS} "$@"\n')
    runtime.chmod(0o755)
    look = "docker $run --runtime runsc --gpus all image sh /look-inside"
    done = docker(bundle, look, f"--add-runtime runsc={runtime}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(LIBCUDA)
    assert "libcuda.so.1 => /" in done.stdout
