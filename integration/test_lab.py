"""`nvgraft lab` as root: a real container of runc, stopped at each phase of the hook."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import CHECKOUT
from nvgraft_cli.lab.phases import END, NAMES
from terminals import on_terminal

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "ldconfig")

LAB = [sys.executable, "-m", "nvgraft_cli.shell.main", "lab"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("hook", "cli", "specs")),
}
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


def scripted(*lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the lab with a script."""
    return subprocess.run(
        [*LAB, *options, "--script", "-"],
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


def processes() -> set[str]:
    """Return the processes of labs and of their containers."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "nvgraft-lab" in words or "shell.main lab" in words:
            found.add(f"{path.parent.name} {words}")
    return found


def traces() -> tuple[str, set[str], set[str], list[str]]:
    """Return what a lab could leave on this machine."""
    mounts = Path("/proc/self/mountinfo").read_text()
    cgroups = {path for path, _, _ in os.walk("/sys/fs/cgroup") if "nvgraft-lab" in path}
    devices = sorted(name for name in os.listdir("/dev") if "nvidia" in name)
    return mounts, processes(), cgroups, devices


@contextmanager
def stopped_at(stop: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a lab, in a process group of its own, up to a stop."""
    process = subprocess.Popen(
        [*LAB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
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
    assert proofs[NAMES.index("cache")] == "libcuda.so.1 does not load"
    assert proofs[NAMES.index("pivot")].startswith("libcuda.so.1 loads: ")
    whys = answers(done.stdout, "why libcuda.so.1")
    assert "capability   compute" in whys[0]
    assert whys[0].splitlines() == whys[1].splitlines()
    assert answers(done.stdout, "show /etc/ld.so.conf") == ["/usr/lib/x86_64-linux-gnu\n"]
    assert traces() == before


def test_nothing_is_written_on_this_machine() -> None:
    """The lab writes nothing to /run, /tmp, /var/tmp and the runtime's own directories."""
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
    assert done.stdout.splitlines()[-3:] == ["/run", "/tmp", "/var/tmp"]


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


def test_the_hooks_refusal_ends_the_start() -> None:
    """A refusal is shown with the hook's own words, and the start fails."""
    done = scripted("node rm /usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03", "run end", "next")
    assert done.returncode == 1
    assert "the start has failed: nvgraft: detection error: " in done.stdout


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
            _wait_for(end)
    assert traces() == before


def _wait_for(pidfd: int) -> None:
    assert select.select([pidfd], [], [], 20)[0], "a process of the lab does not end"
    os.close(pidfd)


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
    """A shell that is killed is told of, and the lab goes on."""
    done = scripted("run devices", "shell kill -9 $$", "node kill -9 $$", "run end")
    assert done.stdout.count("the shell was ended by signal 9") == 2
    assert "| GPU 0: NVIDIA A10" in done.stdout
    assert done.returncode == 1


def test_lines_fit_a_narrow_terminal() -> None:
    """On a terminal of 40 columns every line of the lab is folded to its width."""
    seen = on_terminal(["lab", "--no-pager"], 40, typed="run mounts\ndid\nhelp\nquit\n")
    assert seen.code == 0
    assert "lab>" in seen.text
    assert [line for line in seen.lines if len(line.rstrip()) > 40] == []


def test_a_page_of_a_run_is_recorded(tmp_path: Path) -> None:
    """--record writes one file with every stop and what changed, which may load nothing."""
    page = tmp_path / "page.html"
    done = scripted("run end", options=("--record", str(page)))
    assert (done.returncode, done.stderr) == (0, "")
    text = page.read_text()
    assert text.count("<section") == END + 1
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "+ c 195:255 rw" in text and "move_mount(" in text
    assert not re.search(r"(src|href)=\"(?!#|data:,)", text)
