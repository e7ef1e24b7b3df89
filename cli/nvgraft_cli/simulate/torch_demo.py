"""The question behind ``./dev torch``: ``import torch; print(torch.cuda.get_device_name(0))`` in a
container on a simulated node, and PyTorch's own words when one thing is missing.

Before each start ``nvgraft doctor`` and ``nvgraft prove`` say what will come. PyTorch, its Python,
the loader, runc and the hook are real; the driver and the queries of the CUDA runtime are
stand-ins, and nothing computes.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from nvgraft_cli.simulate import cuda_runtime, python_container
from nvgraft_cli.simulate.demo import DemoFailed

COMMAND = "./dev torch"
PROGRAM = "import torch; print(torch.cuda.get_device_name(0))"
_PYTHON = ("/usr/bin/python3", "-B", "-W", "ignore", "-c", PROGRAM)
#: Major version of CUDA -> a node whose driver serves it, and one whose driver is too old.
NODES = {"12": ("runfile-a10x2", "eks-t4"), "13": ("l40s-580", "runfile-a10x2")}
#: Where CUDA's toolkit keeps the library for linking alone.
STUBS = "/usr/local/cuda/lib64/stubs"
#: Where an image brings a driver of its own.
OTHER_DRIVER = "/opt/driver"
_HONEST = (
    "PyTorch, its libraries, Python, the loader, runc, the hook, nodes and cgroup are real.",
    "The driver and the queries of the CUDA runtime are stand-ins: nothing computes.",
)
_WITHOUT_DRIVER = "RuntimeError: Found no NVIDIA driver on your system."


class Scene(NamedTuple):
    """One start: what is taken away, and what is expected.

    ``doctor`` and ``prove`` are parts of what these commands say, ``code`` is the CUDA error, and
    ``words`` the beginning of PyTorch's last line.
    """

    title: str
    doctor: str
    prove: str
    code: int
    words: str
    #: Shell commands on the node; ROOT is the container's root file system.
    prepare: str = ""
    variables: tuple[str, ...] = ()
    failure: str = ""
    older_node: bool = False


SCENES = (
    Scene("nothing is missing", " (driver ", "loads: /", 0, ""),
    Scene(
        "the container asks for the capability utility alone",
        "CUDA finds no driver: NVIDIA_DRIVER_CAPABILITIES lacks compute",
        "does not load",
        35,
        _WITHOUT_DRIVER,
        variables=("NVIDIA_DRIVER_CAPABILITIES=utility",),
    ),
    Scene(
        "in place of the link libcuda.so.1 the image has an empty file,"
        " as an image that was committed from a GPU container",
        "CUDA does not load: /usr/lib64/libcuda.so.1: file too short",
        "does not load",
        35,
        _WITHOUT_DRIVER,
        prepare="mkdir -p ROOT/usr/lib64 && : > ROOT/usr/lib64/libcuda.so.1",
    ),
    Scene(
        "the node has no /dev/nvidia-uvm",
        "CUDA fails with error 999 because the host has no /dev/nvidia-uvm",
        "loads: /",
        999,
        "RuntimeError: CUDA unknown error",
        failure="no-uvm",
    ),
    Scene(
        "the image's loader reads no /etc/ld.so.cache, as one of Nix",
        "CUDA does not load: libcuda.so.1: cannot open shared object file",
        "does not load",
        35,
        _WITHOUT_DRIVER,
        prepare=f"sed -i s,/etc/ld.so.cache,/nix/ld.so.cache, ROOT{python_container.LOADER}",
    ),
    Scene(
        "LD_LIBRARY_PATH begins with a driver of another version, which the image brings",
        f"its programs load {OTHER_DRIVER}/libcuda.so",
        "loads, but from the image",
        803,
        "RuntimeError: Unexpected error from cudaGetDeviceCount()",
        variables=(f"LD_LIBRARY_PATH={OTHER_DRIVER}",),
    ),
    Scene(
        "the node has an older driver",
        "CUDA fails with error 35",
        "loads: /",
        35,
        "RuntimeError: The NVIDIA driver on your system is too old",
        older_node=True,
    ),
    Scene(
        "LD_LIBRARY_PATH begins with CUDA's directory for linking",
        "it is a stub for linking, not a driver: CUDA calls fail with error 34",
        "loads, but from the image",
        34,
        "RuntimeError: Unexpected error from cudaGetDeviceCount()",
        variables=(f"LD_LIBRARY_PATH={STUBS}",),
    ),
)


def make_rootfs(rootfs: str, packages: str | None = None) -> None:
    """Make the container's root file system.

    :param packages: a directory with packages of Python, on the same file system: they are linked.
    """
    python_container.make_rootfs(rootfs)
    if packages is not None:
        place = rootfs + python_container.PACKAGES
        shutil.copytree(packages, place, copy_function=os.link, dirs_exist_ok=True)
    # Without this file the hook takes the layout of other distributions than Debian, in which the
    # loader finds the driver by its cache alone.
    os.unlink(f"{rootfs}/etc/debian_version")
    version, other = cuda_runtime.other_driver()
    libraries = {
        python_container.RUNTIME: cuda_runtime.library(),
        f"{OTHER_DRIVER}/libcuda.so.{version}": other,
        f"{STUBS}/libcuda.so.1": cuda_runtime.stub(),
    }
    for path, content in libraries.items():
        os.makedirs(os.path.dirname(rootfs + path), exist_ok=True)
        with open(rootfs + path, "wb") as file:
            file.write(content)
    os.symlink(f"libcuda.so.{version}", f"{rootfs}{OTHER_DRIVER}/libcuda.so.1")


class Answers(NamedTuple):
    """The verdict of doctor, the first line of prove, and the last line of the container."""

    doctor: str
    prove: str
    container: str


def play(
    scene: Scene, prefix: str, rootfs: str, node: str, work: str, program: Sequence[str]
) -> Answers:
    """Ask doctor and prove about a container on a simulated node, and start it.

    :param program: the container's program.
    :raises DemoFailed: with the whole output, if a part of the answer is missing.
    """
    bundle = f"{work}/bundle"
    python_container.make_bundle(
        bundle, rootfs, f"{prefix}/bin/nvgraft-hook", program, variables=scene.variables
    )
    nvgraft, name = f"{prefix}/bin/nvgraft", os.path.basename(work)
    script = f"""
{scene.prepare.replace("ROOT", shlex.quote(rootfs)) or "true"} || exit 1
echo "== doctor"; {nvgraft} doctor --container {bundle}
echo "== prove"; {nvgraft} prove --container {bundle}
echo "== container"; runc --root {work}/runc run --bundle {bundle} {name} 2>&1
echo "== end"; runc --root {work}/runc delete --force {name} 2>/dev/null
"""
    options = ["--fail", scene.failure] if scene.failure else []
    command = [nvgraft, "simulate", *options, node, "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    parts = {
        title: [line for line in text.splitlines() if line.strip()]
        for title, _, text in (part.partition("\n") for part in done.stdout.split("== "))
    }
    try:
        return Answers(parts["doctor"][-1], parts["prove"][0], parts["container"][-1])
    except (KeyError, IndexError):
        raise DemoFailed(f"{shlex.join(command)}\n{done.stdout}{done.stderr}") from None


def not_foretold(scene: Scene, answers: Answers) -> list[str]:
    """Return what doctor and prove should have said, and did not."""
    pairs = {"doctor": (scene.doctor, answers.doctor), "prove": (scene.prove, answers.prove)}
    return [
        f"{command} did not say {expected!r}"
        for command, (expected, said) in pairs.items()
        if expected not in said
    ]


def faults(scene: Scene, answers: Answers) -> list[str]:
    """Compare what was said with what was expected; return what differs."""
    found = not_foretold(scene, answers)
    works = scene.code == 0
    if works == ("Error" in answers.container) or not answers.container.startswith(scene.words):
        found.append("PyTorch did not say what it was expected to")
    return found


def shown(number: int, scene: Scene, answers: Answers) -> list[str]:
    """Return the lines of a scene."""
    lines = zip(("doctor", "prove", "PyTorch"), answers, strict=True)
    return [
        "",
        f"[{number}/{len(SCENES)}] {scene.title}",
        *(f"      {who + ':':9}{text}" for who, text in lines),
    ]


def record(lines: Sequence[str], page: str) -> None:
    """Write the output into the block of a page that begins with the command.

    The README has the first two scenes and the end.
    """
    if os.path.basename(page) == "README.md":
        cuts = [number for number, line in enumerate(lines) if line.startswith("[3/")]
        lines = [*lines[: cuts[0]], "...", "", *lines[-2:]]
    with open(page, encoding="utf-8") as file:
        before, _, rest = file.read().partition(f"```text\n$ {COMMAND}\n")
    after = rest.partition("```\n")[2]
    body = "\n".join(["```text", f"$ {COMMAND}", *lines, "```", ""])
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + body + after)


def main() -> int:
    """Play all scenes; return 0 if everything was said as expected."""
    parser = argparse.ArgumentParser(prog="torch_demo")
    parser.add_argument("prefix")
    parser.add_argument("packages")
    parser.add_argument("cuda", choices=sorted(NODES))
    parser.add_argument("--host")
    parser.add_argument("--write", nargs="+", default=[], metavar="PAGE")
    args = parser.parse_args()
    if os.uname().machine != "x86_64":
        print(
            "torch: the simulated node is an x86_64 machine | run this on x86_64", file=sys.stderr
        )
        return 1
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    found: list[str] = []
    printed: list[str] = []
    rootfs = tempfile.mkdtemp(prefix="torch-root.", dir=os.path.dirname(args.packages))
    try:
        make_rootfs(rootfs, args.packages)
        node, older = NODES[args.cuda]
        _say([f"{PROGRAM}  # on the simulated node {args.host or node}"], printed)
        for number, scene in enumerate(SCENES, 1):
            with tempfile.TemporaryDirectory(prefix="nvgraft-torch.") as work:
                where = older if scene.older_node else args.host or node
                answers = play(scene, args.prefix, rootfs, where, work, _PYTHON)
            _say(shown(number, scene, answers), printed)
            found += [f"[{number}] {fault}" for fault in faults(scene, answers)]
    except DemoFailed as error:
        print(f"\ntorch: FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(rootfs)
    if found:
        print("\ntorch: FAILED: " + "; ".join(found), file=sys.stderr)
        return 1
    _say(["", *_HONEST], printed)
    for page in args.write:
        record(printed, page)
    return 0


def _say(lines: Sequence[str], printed: list[str]) -> None:
    print("\n".join(lines), flush=True)
    printed.extend(lines)


if __name__ == "__main__":
    raise SystemExit(main())
