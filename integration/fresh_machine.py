"""Try the README's commands on a machine that has only git, made for this with debootstrap.

    sudo python3 integration/fresh_machine.py trixie sudo python3 integration/fresh_machine.py noble
    --mirror URL --debootstrap=--keyring=FILE --step demo

The last commit of this checkout is cloned there into the home directory of an ordinary user. The
user, root (as after sudo) and again the user then follow the README. A line for each step tells
whether it went as it should, with its last output. The whole output is kept in .cache/fresh-SUITE.
Kernel, devices, cgroups and network are this machine's, as are name servers, certificates and pip's
configuration; nothing else is.

This runs the programs of the distribution as root on its own root file system. That is not a jail:
use a mirror that you trust.
"""

import argparse
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, TextIO

CHECKOUT = Path(__file__).parent.parent
sys.path.insert(0, str(CHECKOUT / "hook"))

from nvgraft.system import syscalls  # noqa: E402

#: Files of the network that this machine is in, not of the project.
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
USER = "someone"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Step(NamedTuple):
    """A command of the README, its user, and whether it should succeed."""

    user: str
    command: str
    succeeds: bool = True


STEPS = {
    "refused": Step(USER, "./dev demo", succeeds=False),
    "demo": Step("root", "./dev demo"),
    "test": Step("root", "CI=true .ci/run"),
    "user": Step(USER, "./dev test"),
}


def make(root: Path, suite: str, mirror: str, options: list[str]) -> None:
    """Make the root file system of a fresh machine with this checkout in a user's home directory.

    :raises subprocess.CalledProcessError: when one of the programs fails, with its own message.
    """
    # debootstrap uses this script for every later Ubuntu.
    ubuntu = Path("/usr/share/debootstrap/scripts", suite).resolve().name == "gutsy"
    components = "main,universe" if ubuntu else "main"
    command = [
        "debootstrap",
        *options,
        f"--components={components}",
        "--include=git,ca-certificates",
        suite,
        str(root),
    ]
    subprocess.run([*command, *([mirror] if mirror else [])], check=True, stdout=sys.stderr)
    for path in NETWORK:
        if os.path.exists(path):
            target = root / path[1:]
            target.unlink(missing_ok=True)  # it may be a link to a service's file
            shutil.copyfile(path, target)
    subprocess.run(
        ["useradd", "--root", root, "--create-home", "--shell", "/bin/sh", USER], check=True
    )
    home = root / "home" / USER
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", CHECKOUT, home / "nvgraft"], check=True
    )
    subprocess.run(["chroot", root, "chown", "-R", f"{USER}:{USER}", f"/home/{USER}"], check=True)


def enter(root: Path, name: str) -> None:
    """Make ``root`` the root of this process, with the mounts of a started machine. All ends with
    the process.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(str(root), str(root), None, syscalls.MS_BIND)
    for tree in ("proc", "sys", "dev"):
        syscalls.mount(f"/{tree}", str(root / tree), None, syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.mount(
        "tmpfs", str(root / "run"), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755"
    )
    (root / "run/lock").mkdir()
    subprocess.run(["hostname", name], check=True)
    os.chdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")


def run(root: Path, suite: str, step: Step, log: TextIO) -> tuple[int, float]:
    """Run the command of a step there; return its exit status and its duration in seconds."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            enter(root, f"fresh-{suite}")
            account = pwd.getpwnam(step.user)  # from the fresh machine
            os.chdir(f"/home/{USER}/nvgraft")
            with open("/dev/null", "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            environment = {
                "PATH": PATH,
                "HOME": account.pw_dir,
                "USER": account.pw_name,
                "LANG": "C.UTF-8",
            }
            os.execve("/bin/sh", ["sh", "-c", step.command], environment)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            print(f"fresh_machine: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(126)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "suite",
        metavar="SUITE",
        help="a release that debootstrap knows: bookworm, trixie, noble, ...",
    )
    parser.add_argument(
        "--mirror",
        default="",
        metavar="URL",
        help="where debootstrap gets it (default: debootstrap's own)",
    )
    parser.add_argument(
        "--debootstrap",
        default="",
        metavar="OPTIONS",
        help="further options of debootstrap, such as --keyring=FILE",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/opt"),
        help="below this the root is made (default: /opt)",
    )
    parser.add_argument(
        "--step",
        action="append",
        choices=STEPS,
        help="only this one; may be given again (default: all)",
    )
    options = parser.parse_args()
    if os.geteuid():
        parser.error("needs root: debootstrap, mounts")
    unexpected = 0
    (CHECKOUT / ".cache").mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=f"fresh-{options.suite}.", dir=options.directory))
    root.chmod(0o755)
    try:
        make(root, options.suite, options.mirror, shlex.split(options.debootstrap))
        for name in options.step or STEPS:
            step = STEPS[name]
            path = CHECKOUT / f".cache/fresh-{options.suite}-{name}"
            with path.open("w") as log:
                status, seconds = run(root, options.suite, step, log)
            last = (path.read_text(errors="replace").splitlines() or [""])[-1].strip("= ")
            good = (status == 0) is step.succeeds
            unexpected += not good
            verdict = "as it should" if good else f"UNEXPECTED, see {path}"
            print(
                f"{options.suite}  {step.user}: {step.command}  exit {status}  {seconds:.0f} s  "
                f"{verdict}: {last}",
                flush=True,
            )
    finally:
        shutil.rmtree(root)
    return unexpected != 0


if __name__ == "__main__":
    sys.exit(main())
