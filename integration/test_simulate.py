"""`nvgraft simulate` as root: a command sees the recorded host, and nothing changes outside."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import break_nvml
from harness import CHECKOUT
from nvgraft.host.snapshot import snapshot_host
from nvgraft_cli.simulate import recipe
from nvgraft_device_plugin.configuration import load
from nvgraft_device_plugin.labels import node_labels
from nvgraft_device_plugin.recorded import read_node
from nvgraft_device_plugin.resources import divide
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Device, RegularFile, load_host

pytestmark = pytest.mark.requires("root", "overlayfs", "x86_64", "ldconfig")

#: Hosts of the gallery whose libraries this machine can load.
OF_THIS_MACHINE = [name for name in gallery.names() if name not in {"gb200-580", "jetson-orin"}]

SIMULATE = [sys.executable, "-m", "nvgraft_cli.shell.main", "simulate"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("hook", "cli", "specs")),
}

#: A program that prints NVML's answers as JSON; argv: a driver root to change into.
ASK_NVML = """
import ctypes, json, os, sys
import pynvml
if sys.argv[1:]:
    for name in ("libm.so.6", "libdl.so.2", "libpthread.so.0"):
        ctypes.CDLL(name)
    os.chroot(sys.argv[1])
pynvml.nvmlLib = ctypes.CDLL("/lib/x86_64-linux-gnu/libnvidia-ml.so.1" if sys.argv[1:] else "libnvidia-ml.so.1")
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    sys.exit(f"nvmlInit: {error.value}")
text = lambda value: value.decode() if isinstance(value, bytes) else value
gpus = []
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    pci = pynvml.nvmlDeviceGetPciInfo(gpu)
    # nvidia-container-cli passes the older, shorter structure: nothing behind it may be written.
    older = (ctypes.c_uint * 9)(*[7] * 9)
    assert pynvml.nvmlLib.nvmlDeviceGetPciInfo(gpu, older) == 0
    assert [*older[4:7], older[8]] == [pci.domain, pci.bus, pci.device, 7]
    try:
        mig = ["disabled", "enabled"][pynvml.nvmlDeviceGetMigMode(gpu)[0]]
    except pynvml.NVMLError_NotSupported:
        mig = "unsupported"
    devices = []
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, position)
        except pynvml.NVMLError_NotFound:
            break
        instances = pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)
        devices.append({"uuid": text(pynvml.nvmlDeviceGetUUID(device)), "gpu_instance": instances[0], "compute_instance": instances[1]})
    gpus.append({
        "minor": pynvml.nvmlDeviceGetMinorNumber(gpu),
        "uuid": text(pynvml.nvmlDeviceGetUUID(gpu)),
        "pci": {"domain": pci.domain, "bus": pci.bus, "device": pci.device},
        "brand": pynvml.nvmlDeviceGetBrand(gpu),
        "compute_capability": "%d.%d" % tuple(pynvml.nvmlDeviceGetCudaComputeCapability(gpu)),
        "mig": mig,
        "model": text(pynvml.nvmlDeviceGetName(gpu)),
        "mig_devices": devices,
    })
cuda = pynvml.nvmlSystemGetCudaDriverVersion()
versions = {"driver_version": text(pynvml.nvmlSystemGetDriverVersion()), "cuda_version": "%d.%d" % (cuda // 1000, cuda % 1000 // 10)}
print(json.dumps(versions | {"gpus": gpus}))
"""


def simulate(
    *arguments: str, host: str = "runfile-a10x2", options: tuple[str, ...] = (), timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command on a simulated host, with an empty standard input."""
    command = [*SIMULATE, *options, host, "--", *arguments]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout,
    )


def output(*arguments: str, host: str = "runfile-a10x2", options: tuple[str, ...] = ()) -> str:
    """Run a command that has to succeed on a simulated host; return its standard output."""
    done = simulate(*arguments, host=host, options=options)
    assert (done.returncode, done.stderr) == (0, notes(host))
    return done.stdout


def notes(host: str) -> str:
    """Return what `nvgraft simulate` says of a host: only one of another machine has a note."""
    if host in OF_THIS_MACHINE or "/" in host:
        return ""
    return (
        "nvgraft simulate: the host's driver is for EM_AARCH64, this machine is x86_64: the hook"
        " reads the GPUs from the snapshot, NVML has no functions\n"
    )


def processes(marker: str) -> list[str]:
    """Return the command lines of this machine's processes that contain ``marker``."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and "-c" not in line.split():
            lines.append(line)
    return lines


def count_becomes(count: int, marker: str) -> bool:
    """Wait at most ten seconds until ``count`` processes contain ``marker``."""
    deadline = time.monotonic() + 10
    while len(processes(marker)) != count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.requires("gcc")
@pytest.mark.parametrize("name", OF_THIS_MACHINE)
def test_nvml_answers_as_recorded(name: str) -> None:
    """nvidia-ml-py reads from the stand-in NVML what the document records, also in a root."""
    host = load_host(gallery.path(name))
    arguments = [] if host.root == "/" else [host.root]
    answer = json.loads(output(sys.executable, "-c", ASK_NVML, *arguments, host=name))
    recorded = json.loads(Path(gallery.path(name)).read_text())["nvml"]
    for gpu in recorded["gpus"]:
        for part in (gpu, *gpu["mig_devices"]):
            part.pop("profile", None)  # names of profiles, which NVML does not say
    assert answer == recorded


@pytest.mark.requires("gcc")
@pytest.mark.parametrize(
    "line", ["", "1 x h100-sxm, driver 570.172.08, mig 3g.40gb 1g.10gb 1g.10gb+me"]
)
def test_a_snapshot_of_a_mig_node_serves_its_devices(line: str, tmp_path: Path) -> None:
    """A snapshot has the profiles of the node's document, and the device plugin the same resources
    and labels of both.
    """
    document, snapshot = tmp_path / "made.json", tmp_path / "snapshot.json"
    recorded = json.loads(Path(gallery.path("mig-h100")).read_text())
    document.write_text(json.dumps(recipe.make_document(line) if line else recorded))
    command = [sys.executable, "-m", "nvgraft_cli.shell.main", "snapshot"]
    snapshot.write_text(output(*command, host=str(document)))
    found, expected = (
        [
            (device["uuid"], device["profile"])
            for gpu in json.loads(path.read_text())["nvml"]["gpus"]
            for device in gpu["mig_devices"]
        ]
        for path in (snapshot, document)
    )
    assert found == expected and len(expected) == 3
    configuration = load(["--mig-strategy=mixed"], {})
    nodes = [
        read_node(load_host(str(path)), snapshot_host(json.loads(path.read_text())))
        for path in (snapshot, document)
    ]
    served, wanted = (divide(node, configuration) for node in nodes)
    assert [(one.name, len(one.devices)) for one in served.resources] == [
        (one.name, len(one.devices)) for one in wanted.resources
    ]
    assert served.warnings == wanted.warnings == ()
    assert node_labels(nodes[0], configuration) == node_labels(nodes[1], configuration)


@pytest.mark.requires("gcc")
@pytest.mark.parametrize("code", [9, 18, 999])
def test_nvml_faults_can_be_injected(code: int) -> None:
    """nvmlInit fails with the code that the stand-in's library file says."""
    broken = break_nvml.command(f"nvml-init={code}")
    done = simulate("sh", "-c", f"{broken}; exec '{sys.executable}' -c \"$0\"", ASK_NVML)
    assert (done.returncode, done.stderr) == (1, f"nvmlInit: {code}\n")


@pytest.mark.requires("gcc")
def test_nvml_can_hang() -> None:
    """nvmlInit takes as long as the stand-in's library file says."""
    broken = break_nvml.command("nvml-hang=30")
    script = f"{broken}; timeout 1 '{sys.executable}' -c \"$0\"; echo $?"
    assert output("sh", "-c", script, ASK_NVML) == "124\n"


@pytest.mark.parametrize("name", gallery.with_hook())
def test_files_are_as_recorded(name: str) -> None:
    """Every recorded entry exists with its kind, mode, device numbers, text and size."""
    host = load_host(gallery.path(name))
    real = {
        path: path if path.startswith(("/dev", "/proc")) else host.root.rstrip("/") + path
        for path in host.files
    }
    script = """
import json, os, stat, sys
entries = {}
for path in json.load(sys.stdin):
    status = os.lstat(path)
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFCHR: "char", stat.S_IFSOCK: "socket"}
    text = open(path).read() if path.startswith("/proc") and stat.S_ISREG(status.st_mode) else None
    numbers = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    entries[path] = [kind[stat.S_IFMT(status.st_mode)], stat.S_IMODE(status.st_mode), numbers, status.st_size, text]
print(json.dumps(entries))
"""
    command = [*SIMULATE, name, "--", sys.executable, "-c", script]
    done = subprocess.run(
        command,
        input=json.dumps(list(real.values())),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stderr) == (0, notes(name))
    entries = json.loads(done.stdout)
    for path, entry in host.files.items():
        kind, mode, numbers, size, text = entries[real[path]]
        assert kind == entry.type, path
        if isinstance(entry, Device):
            assert (tuple(numbers), mode) == (entry.rdev, int(entry.mode, 8)), path
        if isinstance(entry, RegularFile):
            assert mode == int(entry.mode, 8), path
            assert entry.size is None or size >= entry.size, path
            assert entry.content is None or text == entry.content, path


@pytest.mark.parametrize(
    "name",
    [name for name in OF_THIS_MACHINE if name not in {"operator-driver-root", "wsl2-rtx3090"}],
)
def test_loader_finds_the_driver(name: str) -> None:
    """dlopen() finds libcuda.so.1 of the recorded version through the loader cache."""
    script = (
        "import ctypes; ctypes.CDLL('libcuda.so.1'); print([l.split()[-1] for l in"
        " open('/proc/self/maps') if 'libcuda.so' in l][0])"
    )
    version = load_host(gallery.path(name)).nvml.driver_version
    library = output(sys.executable, "-c", script, host=name).strip()
    assert library.endswith(f"/libcuda.so.{version}")


@pytest.mark.parametrize("name", gallery.names())
def test_loader_cache_holds_the_recorded_rows(name: str) -> None:
    """ldconfig lists each recorded row, and still lists this machine's C library."""
    host = load_host(gallery.path(name))
    cache = f"{host.root.rstrip('/')}/etc/ld.so.cache"
    listed = output("/sbin/ldconfig", "-p", "-C", cache, host=name)
    for soname, flags, path in host.ld_so_cache:
        assert f"\t{soname} ({flags}) => {path}\n" in listed
    assert ("libc.so.6 (libc6,x86-64" in listed) == (host.root == "/")


def test_proc_shows_the_driver() -> None:
    """/proc shows the driver's version, its GPUs, and one line for each of its major numbers."""
    script = (
        "cat /proc/driver/nvidia/version; ls /proc/driver/nvidia/gpus; grep nvidia /proc/devices"
    )
    lines = output("sh", "-c", script).splitlines()
    assert "560.35.03" in lines[0]
    assert lines[2:] == ["0000:05:00.0", "0000:06:00.0", "195 nvidia", "510 nvidia-uvm"]


def test_driver_root_has_this_hosts_devices() -> None:
    """A driver root contains the driver, /dev and /proc; the host outside of it has no driver."""
    script = """
        cd /run/nvidia/driver
        ls -d dev/nvidia1 proc/driver/nvidia/version usr/lib/x86_64-linux-gnu/libcuda.so.1 run/nvidia-persistenced/socket
        ls /usr/lib/x86_64-linux-gnu | grep -c libnvidia-ml
        grep ^root /etc/nvidia-container-runtime/config.toml"""
    lines = output("sh", "-c", script, host="operator-driver-root").splitlines()
    assert len(lines) == 6
    assert lines[4:] == ["0", 'root = "/run/nvidia/driver"']


def test_programs_are_stubs_that_run() -> None:
    """A program of the driver prints that it is a stub; nvidia-smi does where nothing is compiled."""
    assert output("nvidia-debugdump") == "nvgraft simulated nvidia-debugdump\n"
    assert output("nvidia-smi", options=("--no-nvml",)) == "nvgraft simulated nvidia-smi\n"


@pytest.mark.requires("gcc")
@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("runfile-a10x2", "nvidia-smi"),
        ("debian-a100x8", "nvidia-smi"),
        ("h100-580", "nvidia-smi"),
        ("wsl2-rtx3090", "/usr/lib/wsl/lib/nvidia-smi"),
    ],
)
def test_nvidia_smi_answers(name: str, program: str) -> None:
    """nvidia-smi shows the GPUs of the host, whether the document has facts of it or not."""
    host = load_host(gallery.path(name))
    table = output(program, host=name)
    assert table.count(f"  {host.nvml.gpus[0].model[:30]} ") == len(host.nvml.gpus)
    assert f"Driver Version: {host.nvml.driver_version} " in table
    assert table.endswith(f'the GPUs of host "{name}" are simulated.\n')
    listed = simulate(program, "-L", host=name).stdout
    assert [line.rpartition("UUID: ")[2] for line in listed.splitlines()] == [
        f"{gpu.uuid})" for gpu in host.nvml.gpus
    ]


@pytest.mark.requires("gcc", "driver-packages")
@pytest.mark.parametrize("mig", ["", ", mig 3g.40gb 1g.10gb 1g.10gb+me"])
@pytest.mark.parametrize(
    "arguments", [(), ("-L",), ("--query-gpu=index,name,memory.used,pstate", "--format=csv")]
)
def test_nvidia_smi_prints_what_nvidias_prints(
    arguments: tuple[str, ...], mig: str, tmp_path: Path
) -> None:
    """The output is that of NVIDIA's program of branch 550, except for the line whose it is."""
    document = tmp_path / "host.json"
    line = f"2 x h100-sxm, driver 550.163.01{mig}"
    document.write_text(json.dumps(recipe.make_document(line)))
    real = str(CHECKOUT / ".cache/drivers/trixie/usr/lib/nvidia/current/nvidia-smi")
    script = '"$0" "$@"; echo ==; nvidia-smi "$@"'
    done = simulate("sh", "-c", script, real, *arguments, host=str(document))
    theirs, _, ours = done.stdout.partition("==\n")
    without_date = 0 if arguments else 1
    mark = (
        []
        if arguments
        else ['This is nvgraft\'s nvidia-smi: the GPUs of host "host" are simulated.']
    )
    assert ours.splitlines()[without_date:] == theirs.splitlines()[without_date:] + mark


@pytest.mark.requires("gcc")
def test_gpus_come_from_nvml_where_it_can_be_built() -> None:
    """With a C compiler, config.toml names no snapshot, and there is none."""
    listed = output(
        "sh", "-c", "cd /etc/nvidia-container-runtime; ls; cat config.toml"
    ).splitlines()
    assert listed[:3] == ["config.toml", "[nvgraft]", "simulated-host = true"]
    assert not any("host-snapshot" in line for line in listed)


@pytest.mark.requires("gcc")
def test_a_driver_that_was_recorded_without_gpus_is_listed(tmp_path: Path) -> None:
    """What needs no GPU is answered for a driver that is not installed yet: its version, and the
    paths of its files.
    """
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["files"] = {
        path: entry
        for path, entry in document["files"].items()
        if not path.startswith(("/dev/", "/proc/"))
    }
    document |= {"without_gpus": True, "char_majors": {}}
    document["nvml"]["gpus"] = []
    (tmp_path / "host.json").write_text(json.dumps(document))
    host = str(tmp_path / "host.json")
    listed = output(*SIMULATE[:3], "list", "--libraries", "--binaries", host=host).splitlines()
    assert "/usr/bin/nvidia-smi" in listed
    assert "/usr/lib64/libcuda.so.460.106.00" in listed
    assert output(*SIMULATE[:3], "info", host=host).startswith("NVRM version:   460.106.00\n")


def test_gpus_come_from_the_snapshot_where_it_cannot(
    in_mount_namespace: Callable[[Callable[[], None]], None],
) -> None:
    """With --no-nvml, or without a compiler, config.toml names a copy of the document that root
    owns.

    Without a compiler a note says so.
    """
    name = "/etc/nvidia-container-runtime/nvgraft-host.json"
    script = (
        f"stat -c '%u %a' {name}; grep host-snapshot /etc/nvidia-container-runtime/config.toml; "
        f"cat {name}"
    )
    expected = f'0 644\nhost-snapshot = "{name}"\n' + Path(gallery.path("eks-t4")).read_text()
    assert output("sh", "-c", script, host="eks-t4", options=("--no-nvml",)) == expected

    def without_compiler() -> None:
        for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
            compiler = os.path.join(directory, "cc")
            if os.path.exists(compiler):
                subprocess.run(["mount", "--bind", "/dev/null", compiler], check=True)
        done = simulate("sh", "-c", script, host="eks-t4")
        assert (done.returncode, done.stdout) == (0, expected)
        assert (
            "simulate: there is no C compiler: the hook reads the GPUs from the snapshot"
            in done.stderr
        )

    in_mount_namespace(without_compiler)


def _outside() -> dict[str, object]:
    """Return a sample of this machine's state that a simulation could change."""
    places = ["/", "/dev", "/etc", "/run", "/tmp", "/usr/bin", "/usr/lib", "/usr/lib64"]
    places += ["/usr/lib/x86_64-linux-gnu", "/usr/lib/firmware", "/var/cache", "/var/tmp"]
    places += ["/proc/driver", str(CHECKOUT / "cli/nvgraft_cli")]
    # /run/nvgraft keeps what was compiled for a host.
    trees = {
        place: sorted(name for name in os.listdir(place) if name not in {"__pycache__", "nvgraft"})
        for place in places
        if os.path.isdir(place)
    }
    return trees | {
        "mountinfo": Path("/proc/self/mountinfo").read_text(),
        "cache": Path("/etc/ld.so.cache").read_bytes(),
    }


def test_a_jetson_says_its_family() -> None:
    """sysfs has the board's family beside this machine's own devices, and a user namespace may
    still mount a sysfs.
    """
    script = (
        "cat /sys/devices/soc0/family; echo; ls /sys/devices; cat /sys/devices/system/cpu/online;"
        " unshare --user --net --mount --map-root-user mount -t sysfs none /mnt && echo mounted"
    )
    family, *names = output("sh", "-c", script, host="jetson-orin").split()
    assert family == "Tegra"
    own = {*os.listdir("/sys/devices"), Path("/sys/devices/system/cpu/online").read_text().strip()}
    assert {*names} == own | {"soc0", "mounted"}


def test_nothing_changes_outside() -> None:
    """The command can write and remove files anywhere, and nothing changes outside, except that what
    was compiled is kept.
    """
    before = _outside()
    script = """
        for d in / /etc /usr/bin /var /var/tmp /tmp /run /dev /root; do echo x > $d/nvgraft-was-here || exit 1; done
        rm -r /etc/passwd /usr/bin/env /var/lib/dpkg; mount -t tmpfs none /mnt; mkdir /mnt/x; mknod /dev/x c 1 3; hostname"""
    assert simulate("sh", "-c", script, host="mig-h100").returncode == 0
    assert _outside() == before
    for directory in ("", "/var", "/root"):
        assert not os.path.exists(f"{directory}/nvgraft-was-here")


def test_command_sees_this_machines_files(tmp_path: Path) -> None:
    """The working directory and its files have their usual paths; changes to them do not last."""
    (tmp_path / "file").write_text("here")
    command = [*SIMULATE, "eks-t4", "--", "sh", "-c", "pwd; cat file; echo gone > file; cat file"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert done.stdout == f"{tmp_path}\nheregone\n"
    assert (tmp_path / "file").read_text() == "here"


def test_other_file_systems_are_copied(
    tmp_path: Path, in_mount_namespace: Callable[[Callable[[], None]], None]
) -> None:
    """A mount below the root is overlaid too and keeps its sticky bit.

    A mounted single file is read-only, and a note says so.
    """
    (tmp_path / "a mount:1,2").mkdir()
    (tmp_path / "file").touch()

    def check() -> None:
        mount = tmp_path / "a mount:1,2"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", mount], check=True)
        subprocess.run(["mount", "--bind", "/etc/hostname", tmp_path / "file"], check=True)
        (mount / "data").write_text("below")
        script = (
            'cat data && stat -c %a . && rm data && touch new && ls; cmp "$0" /etc/hostname && ! '
            'echo x > "$0"'
        )
        command = [*SIMULATE, "eks-t4", "--", "sh", "-c", script, str(tmp_path / "file")]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=mount)
        assert (done.returncode, done.stdout) == (0, "below1777\nnew\n"), done.stderr
        note = "simulate: read-only on the simulated host, for lack of an overlay"
        assert f"{note}: {tmp_path / 'file'}" in done.stderr
        assert os.listdir(mount) == ["data"]

    in_mount_namespace(check)


def test_works_where_the_root_is_an_overlay() -> None:
    """A simulated host can be started on a simulated host, whose root is an overlay."""
    look = ["sh", "-c", "stat -f -c %T /; ls /dev/nvidia*"]
    lines = output(*SIMULATE, "runfile-a10x2", "--", *look, host="eks-t4").splitlines()
    assert lines == [
        "overlayfs",
        *(f"/dev/nvidia{name}" for name in ("-modeset", "-uvm", "-uvm-tools", "0", "1", "ctl")),
    ]


def test_a_simulated_host_has_a_kernel_log_of_its_own() -> None:
    """A kubelet does not start without /dev/kmsg; what this machine's kernel said is not in it."""
    look = ["stat", "-c", "%F %a", "/dev/kmsg"]
    assert output(*SIMULATE, "eks-t4", "--", *look) == "regular empty file 600\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ],
)
def test_exit_code_is_passed_on(script: str, code: int) -> None:
    """simulate ends with the exit code of its command, or with 128 + N if signal N ended it."""
    assert simulate("sh", "-c", script).returncode == code


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [("no-such-program", 127, "not found"), ("/etc/hostname", 126, "cannot be executed")],
)
def test_command_that_cannot_run(program: str, code: int, message: str) -> None:
    """Like env(1): 127 for a missing program, 126 for one that cannot be executed, and one line."""
    done = simulate(program)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"nvgraft simulate: {program}: {message}")
    assert done.stderr.count("\n") == 1


def test_everything_ends_with_the_command() -> None:
    """What the command leaves running, even in another session, ends before simulate."""
    marker = f"1234.{os.getpid()}"
    script = f"sleep {marker} & setsid sleep {marker} & sleep 0.2; exit 3"
    assert simulate("sh", "-c", script).returncode == 3
    assert processes(f"sleep {marker}") == []


@pytest.fixture
def sleeping() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a simulation that ends with 5 at SIGTERM; yield it and its marker."""
    marker = f"4321.{os.getpid()}"
    script = f"trap 'echo ended; exit 5' TERM; sleep {marker} & echo ready; wait"
    child = subprocess.Popen(
        [*SIMULATE, "eks-t4", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert child.stdout
    assert child.stdout.readline() == "ready\n"
    yield child, marker
    child.kill()
    child.wait()
    child.stdout.close()


def test_sigterm_reaches_the_command(sleeping: tuple[subprocess.Popen[str], str]) -> None:
    """SIGTERM is passed on to the command, which decides when to end; no process is left."""
    child, marker = sleeping
    child.send_signal(signal.SIGTERM)
    assert child.stdout
    assert child.stdout.read() == "ended\n"
    assert child.wait(timeout=10) == 5
    assert processes(f"sleep {marker}") == []


def test_sigkill_leaves_nothing(sleeping: tuple[subprocess.Popen[str], str]) -> None:
    """When simulate itself is killed, the kernel ends the simulated host."""
    child, marker = sleeping
    # The shell prints "ready" before its child has become sleep.
    assert count_becomes(1, f"sleep {marker}")
    child.kill()
    child.wait()
    assert count_becomes(0, f"sleep {marker}")


def test_recorded_hosts_start(records: Path) -> None:
    """The hosts on which the reference was recorded, with their toolkit, can be simulated."""
    for path in sorted((records / "hosts").glob("*.json")):
        host = load_host(str(path))
        listed = simulate("sh", "-c", "nvidia-smi -L && ldconfig -p", host=str(path)).stdout
        assert listed.startswith("GPU 0: ")
        assert all(
            f"\t{soname} ({flags}) => {target}\n" in listed
            for soname, flags, target in host.ld_so_cache
        )


def test_a_file_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    """As the simulated host's command, nvgraft refuses to write a file, with the way out; in a
    shell the file is there for the other commands.
    """
    nvgraft = [sys.executable, "-m", "nvgraft_cli.shell.main"]
    target = tmp_path / "node.json"
    for words in (["snapshot", "-o"], ["cdi", "generate", "--output"]):
        done = simulate(*nvgraft, *words, str(target))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{target}: would be lost: a simulated host throws its files away" in done.stderr
        assert f"COMMAND > {target}" in done.stderr
    script = f"{shlex.join(nvgraft)} snapshot -o {target} && test -s {target} && echo there"
    assert simulate("sh", "-c", script).stdout == "there\n"
    assert not target.exists()
