"""`nvgraft lab` as root: a real container of runc, stopped at each phase of the hook."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cgroups import DENY_ALL, attach, device, hierarchy
from labs import ENVIRONMENT, LAB, processes, start, traces, wait_for
from nvgraft.apply import bpf
from nvgraft.apply.cgroup import DeviceCgroup
from nvgraft_cli.lab.looks import device_rules
from nvgraft_cli.lab.phases import END, NAMES, PIVOT
from nvgraft_cli.simulate import demo
from terminals import on_terminal, talk

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "ldconfig")

STOPS = [*NAMES, "end"]
#: Lists every file of the container that is not the kernel's. Sizes of directories tell only of the
#: overlay's layers.
TREE = "shell find / -path /proc -prune -o -path /sys -prune -o -print | busybox sort | while read f; do ls -ldn $f | busybox sed 's,^d.*/,d /,'; done"

#: Runs a command with empty directories for temporary files, and lists what is in them then.
ONLY_ITS_OWN = """
for place in /run /tmp /var/tmp; do mount -n -t tmpfs none $place || exit; done
"$@" || exit
find /run /tmp /var/tmp
"""


def scripted(
    *lines: str, options: tuple[str, ...] = (), host: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the lab with a script.

    :param host: the host, and the bundle.
    """
    return subprocess.run(
        [*LAB, *options, "--script", "-", *host],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )


def answers(output: str, command: str) -> list[str]:
    """Return what followed each ``command`` of a script, up to the next one."""
    parts = re.split(r"^lab> ", output, flags=re.MULTILINE)
    return [part.partition("\n")[2] for part in parts if part.partition("\n")[0] == command]


@contextmanager
def stopped_at(stop: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a lab, in a process group of its own, up to a stop."""
    process = start()
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"run {stop}\nnode echo arrived\n")
        process.stdin.flush()
        said = ""
        while not said.endswith("arrived\nlab> "):
            letter = process.stdout.read(1)
            assert letter, said
            said += letter
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_start_is_walked_through_phase_by_phase() -> None:
    """Each phase changes what it is for, the loader finds the library after the last one, and the
    program sees the GPUs; nothing is left.
    """
    before = traces()
    looks = ("show /etc/ld.so.conf", "why libcuda.so.1")
    done = scripted(*looks, *["prove", "next"] * len(NAMES), "why libcuda.so.1")
    assert (done.returncode, done.stderr) == (0, "")
    steps = answers(done.stdout, "next")
    changes = dict(zip(NAMES, steps, strict=True))
    for phase in ("state", "request", "inventory", "plan", "sources"):
        assert "nothing in the container has changed" in changes[phase], phase
    assert "+ /dev/nvidia0  file 0644, 0 bytes" in changes["targets"]
    assert re.search(r"\+ /usr/bin/nvidia-smi  .*\(ro,nosuid,nodev\)", changes["mounts"])
    assert "move_mount(" in changes["mounts"]
    assert "+ c 195:255 rw" in changes["devices"]
    assert "+ /etc/ld.so.cache" in changes["cache"]
    assert "libcuda.so.1  -> libcuda.so.560.35.03" in changes["cache"]
    assert "| GPU 1: NVIDIA A10" in changes["program"]
    proofs = [answer.splitlines()[0] for answer in answers(done.stdout, "prove")]
    assert proofs[NAMES.index("cache")].startswith("libcuda.so.1 does not load: ")
    assert proofs[NAMES.index("pivot")].startswith("libcuda.so.1 loads: ")
    whys = answers(done.stdout, "why libcuda.so.1")
    assert "capability   compute" in whys[0]
    assert whys[0].splitlines() == whys[1].splitlines()
    assert answers(done.stdout, "show /etc/ld.so.conf") == ["/usr/lib/x86_64-linux-gnu\n"]
    assert traces() == before


def test_nothing_is_written_on_this_machine() -> None:
    """The lab writes nothing to /run, /tmp, /var/tmp and the runtime's own directories, except that
    what was compiled for the host is kept.
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ONLY_ITS_OWN, "sh", *LAB, "--script", "-"],
        input="run end",
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "| GPU 0: NVIDIA A10" in done.stdout
    *kept, standins, tmp, other = done.stdout.splitlines()[-6:]
    assert [*kept, tmp, other] == [
        "/run",
        "/run/nvgraft",
        "/run/nvgraft/cache",
        "/tmp",
        "/var/tmp",
    ]
    assert re.fullmatch("/run/nvgraft/cache/standins-[0-9a-f]+", standins)


def test_back_takes_back_exactly_what_a_phase_has_done() -> None:
    """The container is as before after each step back, and every phase can be done again."""
    stops = NAMES[: NAMES.index("program")]
    forth = [line for _ in stops[:-1] for line in (TREE, "shell cat /proc/1/mountinfo", "next")]
    back = [line for _ in stops[:-1] for line in ("back", TREE, "shell cat /proc/1/mountinfo")]
    done = scripted(*forth, *back, "run end")
    assert (done.returncode, done.stderr) == (0, "")
    for command in (TREE, "shell cat /proc/1/mountinfo"):
        looks = [re.sub(r"^\d+ (\d+ )", "", text) for text in answers(done.stdout, command)]
        seen = [re.sub(r" \d\d:\d\d ", " ", look) for look in looks]
        assert len(seen) == 2 * (len(stops) - 1)
        assert seen[len(stops) - 1 :] == seen[: len(stops) - 1][::-1]
    assert done.stdout.count("taken back: ") == len(stops) - 1
    assert "| GPU 0: NVIDIA A10" in done.stdout


@pytest.mark.parametrize("stop", [name for name in STOPS if STOPS.index(name) <= PIVOT][1:])
def test_a_phase_can_be_taken_back_and_done_again(stop: str) -> None:
    """A single step back does not break the start."""
    done = scripted(f"run {stop}", "back", "next", "run end")
    assert (done.returncode, done.stderr) == (0, "")
    assert "| GPU 0: NVIDIA A10" in done.stdout


def test_the_lab_has_time() -> None:
    """The limits of time of the hook do not count what the learner takes at a stop."""
    limit = (
        r"sed -i 's/^\[nvgraft\]/&\nimage-seconds = 1/' /etc/nvidia-container-runtime/config.toml"
    )
    pauses = (f"run {name}\nnode sleep 0.7" for name in ("plan", "sources", "targets", "cache"))
    done = scripted(f"node {limit}", *pauses, "run end")
    assert (done.returncode, done.stderr) == (0, "")
    assert "not all of the image's libraries" not in done.stdout


def test_the_hooks_refusal_ends_the_start() -> None:
    """A refusal is shown with the hook's own words, and the start fails."""
    done = scripted("node rm /usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03", "run end", "next")
    assert done.returncode == 1
    assert "the start has failed: nvgraft: detection error: " in done.stdout
    assert "\nfailed: inventory (" in done.stdout


def own_bundle(directory: Path, **linux: object) -> Path:
    """Make a bundle like the lab's own, with other members of ``linux`` and a hook of its own."""
    demo.make_bundle(str(directory), None)
    config = json.loads((directory / "config.json").read_text())
    config["linux"] |= linux
    config["process"]["args"] = ["sh", "-c", "cat /proc/self/uid_map"]
    config["hooks"] = {"prestart": [{"path": "/bin/false"}]}
    (directory / "config.json").write_text(json.dumps(config))
    for path in (directory / "rootfs", *(directory / "rootfs").rglob("*")):
        os.lchown(path, 100000, 100000)
    return directory


def test_a_bundle_with_a_user_namespace_is_walked_through(tmp_path: Path) -> None:
    """The shell is root of the container's user namespace; the bundle itself stays as it was."""
    mappings = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "network", "mount", "user")]
    bundle = own_bundle(tmp_path, uidMappings=mappings, gidMappings=mappings, namespaces=namespaces)
    before = {str(path): path.lstat().st_mtime for path in bundle.rglob("*")}
    done = scripted(
        "run program", "shell id -u; cat /proc/self/uid_map", "next", host=("eks-t4", str(bundle))
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "hooks of the bundle that are left out in the lab: 1" in done.stdout
    assert done.stdout.count("100000      65536") == 2
    assert "\n0\n" in done.stdout
    assert {str(path): path.lstat().st_mtime for path in bundle.rglob("*")} == before


def test_the_runtimes_refusal_is_one_line(tmp_path: Path) -> None:
    """A bundle that runc refuses ends the lab with its words, and nothing is left."""
    kinds = [{"type": "mount"}, {"type": "nothing"}]
    bundle = own_bundle(tmp_path, namespaces=kinds)
    before = traces()
    done = scripted("next", host=("runfile-a10x2", str(bundle)))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        r"nvgraft lab: runc create failed: .*nothing.* \| look at the bundle's config.json", line
    )
    assert traces() == before


@pytest.mark.parametrize("stop", STOPS)
def test_a_lab_that_is_killed_leaves_nothing(stop: str) -> None:
    """SIGKILL at any stop leaves no mount, process, file or cgroup on this machine."""
    before = traces()
    with stopped_at(stop) as process:
        janitors = [
            int(line.split()[0]) for line in processes() - before[1] if "sys.stdin.buffer" in line
        ]
        ends = [os.pidfd_open(pid) for pid in janitors]
        process.kill()
        process.wait()
        for end in ends:  # the last process of a lab
            wait_for(end)
    assert traces() == before


def test_the_end_of_any_process_of_a_lab_leaves_nothing() -> None:
    """SIGKILL of the hook's process, the waiter, runc, the node's first process or any other one,
    in the middle of the start: the lab ends when it is told to, and nothing is left.
    """
    before = traces()
    for number in (*range(8), -1):  # the hook's process and its children are the last ones
        with stopped_at("devices") as process:
            victims = sorted(int(line.split()[0]) for line in processes() - before[1])
            assert len(victims) > 12
            ends = [os.pidfd_open(pid) for pid in victims]
            os.kill(victims[number], signal.SIGKILL)
            out, said = process.communicate("next\n", timeout=20)
            assert "Traceback" not in out + said
            for end in ends:
                wait_for(end)
        assert traces() == before, number


@pytest.mark.parametrize("stop", STOPS)
def test_an_interrupt_takes_everything_back(stop: str) -> None:
    """Ctrl-C at any stop is one line and exit code 130, and leaves nothing."""
    before = traces()
    with stopped_at(stop) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (
            130,
            "nvgraft lab: interrupted | everything was taken back\n",
        )
    assert traces() == before


def test_a_killed_shell_is_no_end() -> None:
    """A shell that is killed at any stop is told of, and the lab goes on."""
    done = scripted(*["shell kill -9 $$", "node kill -9 $$", "next"] * END, "node kill -9 $$")
    assert done.stdout.count("the shell was ended by signal 9") == 2 * END + 1
    assert "| GPU 0: NVIDIA A10" in done.stdout
    assert done.returncode == 1


#: Kills each process of the node with a name, and waits until it has ended.
KILL = (
    "node for p in /proc/[0-9]*; do case $(cat $p/comm) in {})"
    " kill -9 ${{p#/proc/}}; while [ -d $p ] && ! grep -qs 'State:.Z' $p/status; do :; done;;"
    " esac; done 2>/dev/null"
)


@pytest.mark.parametrize("stop", ["state", "plan", "devices", "pivot"])
def test_the_end_of_runc_is_one_line(stop: str) -> None:
    """runc is killed at a stop: the next phase says so, and the lab ends with 1."""
    done = scripted(f"run {stop}", KILL.format("runc"), "next", "back", "why libcuda.so.1", "quit")
    assert (done.returncode, done.stderr) == (1, "")
    assert answers(done.stdout, "next") == [
        "lab: runc has ended, and with it the container | write quit\n"
    ]
    assert answers(done.stdout, "back") == [
        "lab: the start has failed: runc has ended | write quit\n"
    ]


@pytest.mark.parametrize("stop", ["state", "targets", "pivot", "program"])
def test_the_end_of_the_containers_process_is_one_line(stop: str) -> None:
    """The process that becomes the container is killed: so say the next phase and a shell."""
    done = scripted(f"run {stop}", KILL.format("runc:*"), "shell id", "next")
    assert (done.returncode, done.stderr) == (1, "")
    assert answers(done.stdout, "shell id") == [
        "lab: the container's process has ended | write quit\n"
    ]
    assert answers(done.stdout, "next") == ["lab: the container's process has ended | write quit\n"]


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        ("<&-", 0, ""),
        (">&-", 2, "nvgraft lab: standard output: closed | "),
        (">/dev/full", 2, "nvgraft lab: standard output: no space left on device | "),
    ],
)
def test_a_closed_or_full_stream_is_one_line(
    streams: str, code: int, said: str, tmp_path: Path
) -> None:
    """Without standard input a script is obeyed; without a place to print there is no lab."""
    script = tmp_path / "script"
    script.write_text("run end\n")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *LAB, "--script", script],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stderr.startswith(said) and done.stderr.count("\n") == bool(said)
    assert ("| GPU 0: NVIDIA A10" in done.stdout) == (code == 0)


def test_shells_and_commands_are_lent_the_terminal() -> None:
    """A shell in the container and one on the node have job control and Ctrl-C, commands read from
    the terminal; when they end, or are killed, the lab has its terminal again.
    """
    turns = []
    for command in ("shell", "node"):
        turns += [
            ("lab> ", f"{command}\n"),
            # What a job prints, it prints as the foreground job, which Ctrl-C ends.
            ("# ", "busybox tail -f /proc/1/status\n"),
            ("ctxt_switches", "\x03"),
            ("# ", "exit\n"),
            ("lab> ", f"{command}\n"),
            ("# ", "kill -9 $$\n"),
            ("the shell was ended by signal 9", ""),
            # Nobody could continue this lab: Ctrl-Z stops it no longer than a moment.
            ("lab> ", f"{command} echo b$((6 * 7)); read word; echo got $word\n"),
            ("b42", "\x1ait\n"),
            ("got it", ""),
            ("lab> ", f"{command} busybox tail -f /proc/1/status\n"),
            ("ctxt_switches", "\x03"),
            ("ended by signal 2", ""),
        ]
    seen = talk(["lab", "--no-pager"], [*turns, ("lab> ", "run end\n"), ("lab> ", "quit\n")])
    assert seen.code == 0, seen.text
    assert "| GPU 0: NVIDIA A10" in seen.text
    assert "job control" not in seen.text


def test_lines_fit_a_narrow_terminal() -> None:
    """On a terminal of 40 columns every line of the lab is folded to its width."""
    seen = on_terminal(["lab", "--no-pager"], 40, typed="run mounts\ndid\nhelp\nquit\n")
    assert seen.code == 0
    assert "lab>" in seen.text
    assert [line for line in seen.lines if len(line.rstrip()) > 40] == []


@pytest.mark.requires("cgroup-v2")
def test_rules_of_cgroup_v2_are_read_from_its_programs() -> None:
    """Of the nodes in question those are shown that every device program of the cgroup allows."""
    path = hierarchy(2) / f"nvgraft-lab-test-{os.getpid()}"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = DeviceCgroup(2, str(path), fd, is_root=False)
        nodes = [(195, 0), (195, 1), (195, 255)]
        assert device_rules(held, nodes) == frozenset()
        attach(fd, bpf.allow_code([device(195, 0), device(195, 255)]) + DENY_ALL)
        assert device_rules(held, nodes) == {"c 195:0 rw", "c 195:255 rw"}
        attach(fd, bpf.allow_code([device(195, 255)]) + DENY_ALL)
        assert device_rules(held, nodes) == {"c 195:255 rw"}
    finally:
        os.close(fd)
        path.rmdir()
