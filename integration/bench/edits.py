"""Measure starts by CDI edits on a simulated node: the runtime in mode jit-cdi, then all hooks that
it has written into config.json.

Ours and the reference's (``nvidia-container-runtime`` and ``nvidia-cdi-hook``) are started in each
round, in a shuffled order. The low-level runtime is a program that ends at once. What it would do
before it starts the hooks, the edits' mounts and nodes, is done between the two and not measured.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench.cases import Case
from bench.container import leave_mount_namespace, make_bundle, mount_rootfs
from bench.node import PATH, start
from nvgraft.system import syscalls

CONFIG_TOML = Path("/etc/nvidia-container-runtime/config.toml")
REFERENCE = ("nvidia-container-runtime", "nvidia-cdi-hook")


class Stack(NamedTuple):
    """A runtime, and the config.toml that it reads."""

    runtime: str
    config: str


class Run(NamedTuple):
    """One start: seconds of the runtime, of all its hooks, of the processor in both, and the number
    of hooks.
    """

    runtime: float
    hooks: float
    processor: float
    number: int


def find_stacks(prefix: str) -> dict[str, Stack]:
    """Return our stack and, if its programs are in PATH, the reference's."""
    ours = CONFIG_TOML.read_text().replace('mode = "legacy"', 'mode = "jit-cdi"')
    stacks = {"ours": Stack(f"{prefix}/bin/nvgraft-runtime", ours)}
    programs = [shutil.which(name) for name in REFERENCE]
    if all(programs):
        theirs = (
            f'[nvidia-ctk]\npath = "{programs[1]}"\n\n'
            '[nvidia-container-runtime]\nmode = "jit-cdi"\nruntimes = ["runc"]\n'
        )
        stacks["reference"] = Stack(str(programs[0]), theirs)
    return stacks


def start_once(stack: Stack, bundle: str, image: str, path: str) -> Run:
    """Start one container.

    :raises SystemExit: when it does not work.
    """
    CONFIG_TOML.write_text(stack.config)
    kept = Path(bundle, "config.json").read_text()
    try:
        ran = start([stack.runtime, "create", "--bundle", bundle, "bench"], "", bundle, path)
        config = json.loads(Path(bundle, "config.json").read_text())
        seconds = _run_hooks(config, bundle, image)
    finally:
        Path(bundle, "config.json").write_text(kept)
    return Run(
        (ran.ended - ran.started) / 1e9,
        sum(wall for wall, _ in seconds),
        ran.processor + sum(processor for _, processor in seconds),
        len(seconds),
    )


def _run_hooks(config: dict[str, Any], bundle: str, image: str) -> list[tuple[float, float]]:
    """Run the hooks of a config.json in a new container's mount namespace; return the seconds of
    each, and of the processor.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            leave_mount_namespace()
            rootfs = mount_rootfs(bundle, image)
            _carry_out(config, rootfs)
            state = json.dumps({"id": "bench", "pid": os.getpid(), "bundle": bundle})
            seconds = []
            for hook in config["hooks"]["createContainer"]:
                sample = start([hook["path"], *hook["args"][1:]], state, rootfs)
                seconds.append(((sample.ended - sample.started) / 1e9, sample.processor))
            os.write(writer, json.dumps(seconds).encode())
        except (SystemExit, OSError) as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        raise SystemExit("bench: the hooks of CDI edits cannot be measured here")
    found: list[tuple[float, float]] = json.loads(said)
    return found


def _carry_out(config: dict[str, Any], rootfs: str) -> None:
    """Make the container's /proc, and the mounts and nodes of the edits."""
    driver = Path(rootfs, "proc/driver")
    syscalls.mount("proc", f"{rootfs}/proc", "proc", 0)
    # What the loaded kernel module shows on a real node.
    syscalls.mount("tmpfs", str(driver), "tmpfs", 0, "mode=755")
    (driver / "nvidia").mkdir()
    shutil.copy("/proc/driver/nvidia/params", driver / "nvidia")
    for mount in config.get("mounts", ()):
        target = Path(rootfs + mount["destination"])
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(mount["source"]):
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        syscalls.mount(mount["source"], str(target), None, syscalls.MS_BIND)
    for node in config["linux"].get("devices", ()):
        path = Path(rootfs + node["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, 0o20666, os.makedev(node["major"], node["minor"]))


def measure(prefix: str, request: str) -> int:
    """Measure as a JSON object with ``rounds``, ``images`` and ``seed`` asks, and print one JSON
    object: for each image the runs of each stack.
    """
    given = json.loads(request)
    work = tempfile.mkdtemp(prefix="nvgraft-bench.", dir="/run")
    shutil.copy("/bin/true", f"{work}/runc")
    order = random.Random(given["seed"])
    stacks = find_stacks(prefix)
    answer: dict[str, dict[str, list[Run]]] = {}
    try:
        for image in given["images"]:
            bundle = f"{work}/{len(answer)}"
            make_bundle(bundle, Case("edits", image=image))
            runs = answer[image] = {name: [] for name in stacks}
            # The first round keeps the inventory, and is left out.
            for number in range(given["rounds"] + 1):
                for name in order.sample(list(stacks), len(stacks)):
                    run = start_once(stacks[name], bundle, image, f"{work}:{PATH}")
                    if number:
                        runs[name].append(run)
                print(f"bench: edits, round {number} of {given['rounds']}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(answer))
    return 0
