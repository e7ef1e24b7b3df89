"""The demonstration behind ``./dev demo``: one container on a simulated GPU node, started without
the hook and with it.

It runs inside ``nvgraft simulate`` and judges the hook from outside: it uses only the standard
library, runc and the installed commands, and imports nothing of the engine. It prints what the
container itself saw.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: The parts of the C library that the driver's libraries need; the container has no others.
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")

#: A node of a GPU that was not given to this container. The container makes the node itself.
FORBIDDEN_NODE = "/tmp/nvidia7"  # noqa: S108 - in the container

#: The container's program, which prints sections. ``--preload`` makes the loader look libcuda.so.1
#: up by its name, as it does for a program that is linked against it.
LOOK_AROUND = f"""
section() {{ echo "== $1"; }}
section tree; find / -path /proc -prune -o -path /sys -prune -o -print | while read -r path; do
  if [ -L "$path" ]; then echo "$path -> $(readlink "$path")"
  elif [ ! -d "$path" ]; then echo "$path"; fi
done
section mounts; cat /proc/self/mountinfo
section devices; ls -l /dev/ | grep nvidia
section libraries; ls -l {LIBRARIES} | grep -e libcuda -e libnvidia-ml
section loader; {LOADER} --preload libcuda.so.1 --list {LIBRARIES}/libc.so.6 2>&1 | grep libcuda
section allowed; cat /dev/nvidia0 2>&1
section forbidden; mknod {FORBIDDEN_NODE} c 195 7; cat {FORBIDDEN_NODE} 2>&1
section smi; nvidia-smi 2>&1
section end
"""

Sections = dict[str, list[str]]


class DemoFailed(Exception):
    """A step that failed; the text names it and has its output."""


def say(step: int, text: str) -> None:
    """Print the headline of a step."""
    print(f"\n[{step}/7] {text}", flush=True)


def show(lines: list[str]) -> None:
    """Print lines of the container's or the planner's output."""
    for line in lines or ["(nothing)"]:
        print(f"      {line.lstrip(chr(9))}")


def run(*command: str) -> str:
    """Run a command and return its output.

    :raises DemoFailed: with the whole output, if the command fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed(
            f"{' '.join(command)}: exit status"
            f" {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


def libraries_of(*programs: str) -> set[str]:
    """Return the paths of the libraries that programs and modules of this machine need.

    :raises DemoFailed: ldd failed.
    """
    listed = run("ldd", *programs)
    return {words[2] for line in listed.splitlines() if len(words := line.split()) == 4}


def make_rootfs(rootfs: str) -> None:
    """Make a minimal image, laid out like Debian: busybox, a dynamic loader and a C library."""
    for directory in ("bin", "dev", "etc", "lib64", "proc", "sys", "tmp", "usr/bin", LIBRARIES[1:]):
        os.makedirs(f"{rootfs}/{directory}")
    busybox = shutil.which("busybox") or "/bin/busybox"
    for name in ("busybox", "sh", "cat", "find", "grep", "ls", "mknod", "readlink"):
        if name == "busybox":
            shutil.copy(busybox, f"{rootfs}/bin/busybox")
        else:
            os.symlink("busybox", f"{rootfs}/bin/{name}")
    shutil.copy(LOADER, rootfs + LOADER)
    for name in C_LIBRARY:
        shutil.copy(f"{LIBRARIES}/{name}", f"{rootfs}{LIBRARIES}/{name}")
    for name, text in (("debian_version", "12.0\n"), ("ld.so.conf", f"{LIBRARIES}\n")):
        with open(f"{rootfs}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)


def make_bundle(bundle: str, hook: str | None) -> None:
    """Make an OCI bundle with ``runc spec`` that asks for both GPUs and has ``hook`` as its
    hook.
    """
    make_rootfs(f"{bundle}/rootfs")
    run("runc", "spec", "--bundle", bundle)
    with open(f"{bundle}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    process = config["process"]
    process["terminal"] = False
    process["args"] = ["/bin/sh", "-c", LOOK_AROUND]
    process["env"] = [
        PATH,
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]
    for kind in process["capabilities"].values():
        kind.append("CAP_MKNOD")
    config["root"]["readonly"] = False
    if hook is not None:
        # Without an explicit environment the hook would inherit the runtime's.
        config["hooks"] = {
            "prestart": [
                {"path": hook, "args": ["nvgraft-hook", "prestart"], "env": [PATH], "timeout": 30}
            ]
        }
    with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


def start(work: str, bundle: str) -> Sections:
    """Run the bundle's container to its end and return what it saw, by section."""
    # The cgroups are this machine's, shared with other simulated nodes: a process id would not do.
    name = os.path.basename(work)
    try:
        output = run("runc", "--root", f"{work}/runc", "run", "--bundle", bundle, name)
    finally:
        subprocess.run(
            ["runc", "--root", f"{work}/runc", "delete", "--force", name],
            capture_output=True,
            check=False,
        )
    sections: Sections = {}
    lines: list[str] = []
    for line in output.splitlines():
        if line.startswith("== "):
            lines = sections.setdefault(line[3:], [])
        else:
            lines.append(line)
    if "end" not in sections:
        raise DemoFailed(f"the container ended early; it printed\n{output}")
    return sections


def mount_points(sections: Sections) -> dict[str, str]:
    """Return the mounts of a container: mount point -> options, as in mountinfo."""
    return {fields[4]: fields[5] for fields in (line.split() for line in sections["mounts"])}


def faults(plan: dict[str, object], before: Sections, after: Sections) -> list[str]:
    """Return every claim of the demonstration that does not hold."""
    actions = plan["actions"]
    assert isinstance(actions, list)
    planned = {action["target"] for action in actions if action["op"] == "mount"}
    made = set(mount_points(after)) - set(mount_points(before))
    found = [f"planned, but not mounted: {path}" for path in sorted(planned - made)]
    found += [f"mounted, but not planned: {path}" for path in sorted(made - planned)]
    if not planned:
        found.append("the plan has no mounts")
    if any("=>" in line for line in before["loader"]):
        found.append("the container had a libcuda.so.1 without the hook")
    if not any(line.split()[:2] == ["libcuda.so.1", "=>"] for line in after["loader"]):
        found.append("the loader does not find libcuda.so.1")
    # There is no driver behind the node: if the device cgroup allows it, open fails with ENXIO.
    if not any("No such device or address" in line for line in after["allowed"]):
        found.append(f"/dev/nvidia0 cannot be opened: {' '.join(after['allowed'])}")
    if not any("Operation not permitted" in line for line in after["forbidden"]):
        found.append(f"a GPU that was not given can be opened: {' '.join(after['forbidden'])}")
    # The stub of a machine without a compiler says that it is simulated, too.
    if not any("nvidia-smi" in line and "simulated" in line for line in after["smi"]):
        found.append(f"nvidia-smi does not answer: {' '.join(after['smi'])}")
    return found


def demonstrate(prefix: str, work: str) -> list[str]:
    """Show the way from a plan to a configured container; return what :func:`faults` found."""
    plain, grafted = f"{work}/plain", f"{work}/grafted"
    say(
        1,
        "two bundles: busybox, a loader, a C library; NVIDIA_VISIBLE_DEVICES=all,"
        " NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )
    make_bundle(plain, hook=None)
    make_bundle(grafted, hook=f"{prefix}/bin/nvgraft-hook")
    show([f"{plain}: no hook", f"{grafted}: prestart hook {prefix}/bin/nvgraft-hook"])

    say(2, "nvgraft plan: what the hook will do")
    show(run(f"{prefix}/bin/nvgraft", "plan", "--bundle", grafted).splitlines())
    plan = json.loads(run(f"{prefix}/bin/nvgraft", "plan", "--bundle", grafted, "--format", "json"))

    say(3, "runc starts both containers: device nodes and libraries, seen from inside")
    before, after = start(work, plain), start(work, grafted)
    show(
        [
            "without the hook:",
            *before["devices"],
            *before["libraries"],
            "with it:",
            *after["devices"],
            *after["libraries"],
        ]
    )

    say(4, "the loader looks for libcuda.so.1, and the kernel guards the devices")
    show(["without the hook:", *before["loader"], "with it:", *after["loader"]])
    show(
        [
            f"opening /dev/nvidia0:{line.rpartition(':')[2]} (allowed; there is no driver"
            " behind it)"
            for line in after["allowed"]
        ]
    )
    show(
        [
            f"opening a node of another GPU, made by the container:{line.rpartition(':')[2]}"
            for line in after["forbidden"]
        ]
    )

    say(5, "the mounts that the hook made")
    options_before, options_after = mount_points(before), mount_points(after)
    show(
        [
            f"{path}  {options}"
            for path, options in options_after.items()
            if path not in options_before
        ]
    )

    say(6, "the container's files, before and after")
    was, now = set(before["tree"]), set(after["tree"])
    show([f"- {path}" for path in sorted(was - now)] + [f"+ {path}" for path in sorted(now - was)])

    say(7, "nvidia-smi, run inside the container")
    show(["without the hook:", *before["smi"], "with it:", *after["smi"]])
    return faults(plan, before, after)


def main() -> int:
    """Run the demonstration on the installation ``sys.argv[1]``; return 0 if all claims hold."""
    if os.uname().machine != "x86_64":
        print("demo: the simulated node is an x86_64 machine | run this on x86_64", file=sys.stderr)
        return 1
    # End quietly if the reader closes the pipe, as in "./dev demo | head".
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="nvgraft-demo.") as work:
        try:
            found = demonstrate(sys.argv[1], work)
        except DemoFailed as error:
            print(f"\ndemo: FAILED: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    if found:
        print("\ndemo: FAILED: " + "; ".join(found), file=sys.stderr)
        return 1
    print(
        "\ndemo: OK. The container has exactly the planned mounts, its loader finds libcuda.so.1, "
        "and it can open only the GPUs that it was given."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
