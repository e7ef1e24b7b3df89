"""The installed `nvgraft list | info | configure` on the recorded hosts.

They run supervised, standalone, and in user namespaces. The rig provides the hosts. For standalone,
a shell script prepares a directory in a mount namespace of its own, like enroot, and prints its
state afterwards.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import CHECKOUT, REFERENCE, RIG, Installed, assert_agrees_with_records

HOSTS = ("al460", "d470", "d535", "d535x32", "mig570", "run560")
LIBS = "/usr/lib/x86_64-linux-gnu"
#: It exists on the recorded hosts too, which have another /tmp.
PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.requires("root", "gcc", "overlayfs", "x86_64")

#: Makes a rootfs at $R: a plain directory with its own /proc and /dev.
PREPARE = """
set -e
mkdir -p $R/usr/bin $R/usr/lib/x86_64-linux-gnu $R/etc $R/proc $R/dev
echo 12 > $R/etc/debian_version
mount --rbind /proc $R/proc
mount -t tmpfs tmpfs $R/dev
set +e
"""

#: Prints the state of $R: mounts (target, options) that process $P sees, links and owners.
REPORT = """
echo "rc $?"
grep " $R/" /proc/${P:-self}/mountinfo | awk '{print "mount", $5, $6}'
find $R -xdev -type l -printf 'link %p %l\\n'
find $R -xdev -printf 'owner %p %U:%G\\n'
"""

#: Without privileges, as a user to whom the host's root file system does not belong.
UNPRIVILEGED = (
    "setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user --map-root-user --mount"
)
PRIVATE = "unshare --mount --propagation private"


@pytest.fixture(scope="module")
def cli(installed: Installed) -> Path:
    """The installed program under the original's name."""
    return installed.cli.with_name("nvidia-container-cli")


class Report:
    """A script's report of its rootfs, with paths relative to it."""

    def __init__(self, done: "subprocess.CompletedProcess[str]", rootfs: str) -> None:
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        rows = [line.split() for line in done.stdout.splitlines()]
        self.code = next(int(row[1]) for row in rows if row[0] == "rc")
        self.mounts = {row[1].removeprefix(rootfs): row[2] for row in rows if row[0] == "mount"}
        self.links = {row[1].removeprefix(rootfs): row[2] for row in rows if row[0] == "link"}
        self.owners = {row[1].removeprefix(rootfs): row[2] for row in rows if row[0] == "owner"}

    def options(self, target: str) -> list[str]:
        return sorted(
            option
            for option in self.mounts[target].split(",")
            if option not in {"relatime", "noatime"}
        )


def on_host(host: str, script: str) -> "subprocess.CompletedProcess[str]":
    command = [*RIG, "shell", str(REFERENCE / "hosts" / f"{host}.json"), "--", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def standalone(
    cli: Path,
    enter: str,
    arguments: str,
    host: str = "run560",
    before: str = "",
    prepare: str = PREPARE,
) -> Report:
    """Configure /c/rootfs in the namespaces that ``enter`` makes; ``before`` runs on the host,
    outside of them.
    """
    inner = f"R=/c/rootfs\n{prepare}\n{cli} {arguments} $R\n{REPORT}"
    outer = (
        f"mkdir /c/rootfs; chown 1000:1000 /c/rootfs; {before}\ncat > /c/inner "
        f"<<'INNER'\n{inner}\nINNER\nexec {enter} sh /c/inner"
    )
    return Report(on_host(host, outer), "/c/rootfs")


def check_compute_and_utility(report: Report) -> None:
    """Check the result of --device=all --compute --utility on run560, whose records are those of
    the hook.
    """
    assert report.code == 0, report.stderr
    assert report.options("/usr/bin/nvidia-smi") == ["nodev", "nosuid", "ro"]
    assert report.options(f"{LIBS}/libcuda.so.560.35.03") == ["nodev", "nosuid", "ro"]
    assert report.options("/dev/nvidia1") == ["noexec", "nosuid", "ro"]
    assert report.options("/proc/driver/nvidia") == ["nodev", "noexec", "nosuid", "rw"]
    assert report.options("/proc/driver/nvidia/gpus/0000:06:00.0") == [
        "nodev",
        "noexec",
        "nosuid",
        "ro",
    ]
    assert report.options("/run/nvidia-persistenced/socket") == ["nodev", "noexec", "nosuid", "rw"]
    assert f"{LIBS}/libGLX_nvidia.so.560.35.03" not in report.mounts
    assert report.links[f"{LIBS}/libcuda.so.1"] == "libcuda.so.560.35.03"
    assert report.links[f"{LIBS}/libnvidia-ml.so.1"] == "libnvidia-ml.so.560.35.03"
    assert "/etc/ld.so.cache" in report.owners


def check_nothing_left(report: Report) -> None:
    """Check that there is only what the script had prepared."""
    assert report.code == 1
    own = {"/proc", "/proc/driver", "/proc/devices", "/dev"}
    assert {target for target in report.mounts if target not in own} == set()
    assert report.links == {}
    assert "/etc/ld.so.cache" not in report.owners
    assert [
        path for path in report.owners if path.startswith((f"{LIBS}/", "/usr/bin/", "/run"))
    ] == []


@pytest.mark.parametrize("host", HOSTS)
def test_list_and_info_print_what_the_original_printed(host: str, cli: Path) -> None:
    """Live, with NVML, they print the original's stdout, exit code, and stderr from the first colon
    on.
    """
    rows = [
        row
        for row in map(json.loads, (REFERENCE / "list-info.jsonl").read_text().splitlines())
        if row["host"] == host
    ]
    script = "".join(
        f"{cli} {row['args']} >/c/{number}.out 2>/c/{number}.err; echo $? >/c/{number}.code\n"
        for number, row in enumerate(rows)
    )
    collect = (
        "import json; print(json.dumps([[open(f'/c/{n}.{k}').read() for k in ('out', 'err', "
        "'code')] for n in range(%d)]))"
    )
    done = on_host(host, f'{script}{PYTHON} -IS -c "{collect % len(rows)}"')
    assert done.returncode == 0, done.stderr
    for row, (out, err, code) in zip(rows, json.loads(done.stdout), strict=True):
        said = err.strip().partition(" | ")[0].partition(": ")[2]
        expected = (row["stdout"], row["rc"], row["stderr"].partition(": ")[2])
        assert (out.removesuffix("\n"), int(code), said) == expected, row["args"]
    assert len(rows) == 14


@pytest.mark.requires("cgroup-v1")
@pytest.mark.parametrize(("host", "every"), [("d470", 6), ("mig570", 4)])
def test_supervised_it_does_what_the_reference_did(
    host: str, every: int, cli: Path, installed: Installed, tmp_path: Path
) -> None:
    """With the reference hook's command line, mounts, links, rules, texts and errors are the
    reference's.
    """
    cases, answers = tmp_path / f"{host}.jsonl", tmp_path / "answers.jsonl"
    chosen = (REFERENCE / "mounts" / f"{host}.jsonl").read_text().splitlines()[::every]
    cases.write_text("\n".join(chosen) + "\n")
    shutil.copy(REFERENCE / "mounts" / "rootfs.json", tmp_path)
    # As text: the rig's host has its own /tmp, which may hide a checkout.
    wrapper = (CHECKOUT / "integration" / "configure_as_hook.py").read_text()
    hook = [PYTHON, "-c", wrapper, str(installed.hook), str(cli), "prestart"]
    assert len(chosen) > 8
    assert_agrees_with_records(host, cases, answers, hook)


def test_standalone_a_user_without_privileges_configures_a_plain_directory(cli: Path) -> None:
    """The user namespace has no number for the host's root and fixed groups, and the pid namespace
    is another's.
    """
    report = standalone(
        cli, UNPRIVILEGED, "--user configure --no-cgroups --device=all --compute --utility"
    )
    check_compute_and_utility(report)
    assert {owner for path, owner in report.owners.items() if path not in report.mounts} == {"0:0"}
    assert report.stderr == ""


def test_standalone_works_without_the_user_option_too(cli: Path) -> None:
    """The default user for asking the driver, nobody, does not exist in a user namespace."""
    check_compute_and_utility(
        standalone(cli, UNPRIVILEGED, "configure --no-cgroups --device=all --compute --utility")
    )


def test_standalone_in_a_pid_namespace_of_its_own(cli: Path) -> None:
    """ROOTFS and the caller have a procfs of that pid namespace."""
    proc = (
        "mount -t proc proc $R/proc; mount --rbind /proc/driver $R/proc/driver; mount --rbind "
        "$R/proc /proc"
    )
    prepare = PREPARE.replace("mount --rbind /proc $R/proc", proc)
    arguments = "configure --no-cgroups --device=all --compute --utility"
    check_compute_and_utility(
        standalone(cli, f"{PRIVATE} --pid --fork", arguments, prepare=prepare)
    )


def test_standalone_as_root_in_a_mount_namespace(cli: Path) -> None:
    """Without a user namespace, the device rules of its cgroup, the root one, are not touched."""
    report = standalone(cli, PRIVATE, "configure --no-cgroups --device=all --compute --utility")
    check_compute_and_utility(report)


def test_restrictions_of_a_source_that_cannot_be_lifted_stay(cli: Path) -> None:
    """The kernel locks the options of mounts that a user namespace inherits, so MPS's directory is
    read-only.
    """
    before = (
        "mount --bind /tmp/nvidia-mps /tmp/nvidia-mps; mount -o remount,bind,ro /tmp/nvidia-mps"
    )
    report = standalone(
        cli, UNPRIVILEGED, "configure --no-cgroups --device=0 --compute", before=before
    )
    assert report.code == 0, report.stderr
    assert report.options("/tmp/nvidia-mps") == ["nodev", "noexec", "nosuid", "ro"]


def test_parts_can_be_left_out(cli: Path) -> None:
    """The options' names leave out nodes, sockets and firmware."""
    options = "--no-cgroups --no-devbind --no-persistenced --no-fabricmanager --no-gsp-firmware"
    report = standalone(cli, UNPRIVILEGED, f"configure {options} --device=all --compute --utility")
    assert report.code == 0, report.stderr
    assert "/usr/bin/nvidia-smi" in report.mounts
    assert [
        target
        for target in report.mounts
        if target.startswith("/dev/") or "firmware" in target or "socket" in target
    ] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--no-cgroups --device=7 --utility", "device error: 7: unknown device"),
        (
            "--no-cgroups --device=0 --require=cuda>=99",
            "requirement error: unsatisfied condition: cuda>=99, please update your driver",
        ),
        (
            "--no-cgroups --utility --cuda-compat-mode=hook",
            "container error: invalid option: cuda-compat-mode=hook",
        ),
        (
            "--no-cgroups --utility --ldconfig=@/nosuch",
            "ldcache error: open failed: /nosuch: no such file or directory",
        ),
    ],
)
def test_a_refused_directory_is_left_as_it_was(arguments: str, text: str, cli: Path) -> None:
    """A refused directory stays as it was, and the error has the original's words and name."""
    report = standalone(cli, UNPRIVILEGED, "configure " + arguments.replace(">", "\\>"))
    check_nothing_left(report)
    assert report.stderr.startswith(f"nvidia-container-cli: {text}")


@pytest.mark.requires("cgroup-v2")
def test_device_rules_that_cannot_be_set_undo_everything(cli: Path) -> None:
    """A user without privileges cannot change a cgroup; the error names the option that helps."""
    v1 = "/sys/fs/cgroup/devices/cgroup.procs"
    report = standalone(
        cli,
        UNPRIVILEGED,
        "configure --device=all --utility",
        before=f"[ ! -e {v1} ] || echo $$ > {v1}",
    )
    check_nothing_left(report)
    assert "device" in report.stderr
    assert "no-cgroups" in report.stderr


def test_a_rootfs_without_a_procfs_is_refused(cli: Path) -> None:
    """Standalone, the container's process is looked for below ROOTFS."""
    prepare = PREPARE.replace("mount --rbind /proc $R/proc", "")
    report = standalone(cli, UNPRIVILEGED, "configure --no-cgroups --utility", prepare=prepare)
    check_nothing_left(report)
    assert report.stderr.startswith(
        "nvidia-container-cli: container error: stat failed: /c/rootfs/proc/"
    )


def test_a_shared_mount_is_refused(cli: Path) -> None:
    """A mount below it would appear on the host (SECURITY R25)."""
    before = "mount --bind /c/rootfs /c/rootfs; mount --make-shared /c/rootfs"
    report = standalone(
        cli,
        "unshare --mount --propagation unchanged",
        "configure --no-cgroups --utility",
        before=before,
    )
    check_nothing_left(report)
    assert "shared mount" in report.stderr


def test_an_ldconfig_of_the_image_is_not_run(cli: Path) -> None:
    """The host's ldconfig is run, and the output says so."""
    report = standalone(
        cli, UNPRIVILEGED, "configure --no-cgroups --utility --ldconfig=/sbin/ldconfig"
    )
    assert report.code == 0, report.stderr
    assert f"{LIBS}/libnvidia-ml.so.1" in report.links
    assert report.stderr.startswith(
        "nvidia-container-cli: warning: the host's ldconfig is run, never that of the image"
    )


def test_a_second_run_changes_nothing(cli: Path) -> None:
    """The second run recognises its own mounts (SECURITY R36)."""
    arguments = "configure --no-cgroups --device=0 --utility"
    report = standalone(
        cli, UNPRIVILEGED, arguments, prepare=f"{PREPARE}\n{cli} {arguments} $R || exit 9"
    )
    assert report.code == 0
    assert "this container is configured already" in report.stderr


def test_list_and_info_need_no_privileges(cli: Path) -> None:
    """Any user can run them, without a namespace."""
    done = on_host(
        "d470",
        f"setpriv --reuid 1000 --regid 1000 --clear-groups {cli} list --binaries && setpriv "
        f"--reuid 1000 {cli} info --csv",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "/usr/lib/nvidia/tesla-470/nvidia-smi",
        "NVRM version,CUDA version",
        "470.256.02,11.4",
    ]
