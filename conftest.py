"""Shared test support: requirements of tests on the machine, and isolation of hermetic tests.

A test names its requirements with ``@pytest.mark.requires("root", "runc")``. If one is missing, the
test is skipped with the reason. With CI=true it fails instead, so that CI never skips a test
silently.
"""

import ctypes
import gc
import os
import posixpath
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

CHECKOUT = Path(__file__).parent
#: Recorded behaviour of the reference stack.
RECORDS = CHECKOUT / "tests" / "fixtures" / "reference"
#: gVisor's runtime, as ./dev unpacks it.
RUNSC = CHECKOUT / ".cache/runsc/usr/bin/runsc"
#: NVIDIA's drivers as Debian packages them, unpacked: one directory for each release of Debian.
DRIVER_PACKAGES = CHECKOUT / ".cache/drivers"
#: CUDA runtimes, by major version, and programs that ask a GPU's driver ("python"), unpacked.
CUDA_PACKAGES = CHECKOUT / ".cache/cuda"
#: containerd and Docker of Debian 13, unpacked.
CDI_ENGINES = CHECKOUT / ".cache/engines"
#: A root file system and Python packages, of which the device plugin's image is built.
PLUGIN_IMAGE = CHECKOUT / ".cache/plugin-image"
#: axe-core, unpacked.
AXE = CHECKOUT / ".cache/axe/axe_playwright_python/axe.min.js"
IN_CI = os.environ.get("CI") == "true"
#: Further recorded behaviour and its rigs, which only some checkouts have beside them.
SHARED_RECORDS = CHECKOUT.parent / "shared" / "reference"
#: Variables of the hook and of the commands that hermetic tests set themselves.
_VARIABLES = (
    "NVIDIA_CTK_CONFIG_FILE_PATH",
    "XDG_CONFIG_HOME",
    "NVC_DEBUG_FILE",
    "CUDA_MPS_PIPE_DIRECTORY",
)
#: Requirement -> why its tests are left out, also in CI. ./dev finds requirements for which this
#: distribution has no package, or none that is new enough: Ubuntu has chromium only as a snap.
LEFT_OUT = dict.fromkeys(
    os.environ.get("NVGRAFT_NOT_PACKAGED", "").split(), "for which this distribution has no package"
)
if not SHARED_RECORDS.exists():
    LEFT_OUT["shared-records"] = f"because there is no {SHARED_RECORDS}"

# A shell starts a job in the background with SIGINT ignored, and so would every program of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some tests fork, and gRPC's threads in the same process would end it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def _program(name: str) -> Callable[[], str]:
    return lambda: (
        ""
        if shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        else f"no {name} here"
    )


def _filesystem(name: str) -> Callable[[], str]:
    def check() -> str:
        known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
        return "" if name in known else f"the kernel has no {name} file system (modprobe {name}?)"

    return check


def _mounted(fstype: str, option: str = "") -> Callable[[], str]:
    """Return a check for a mount of this type with this file system option in this mount
    namespace.
    """

    def check() -> str:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            kind, _, options = line.split(" - ")[1].split(" ", 2)
            if kind == fstype and (not option or option in options.split(",")):
                return ""
        return f"no {fstype} {option} mount here"

    return check


def _image(fstype: str, program: str) -> Callable[[], str]:
    """Return a check for a file system, the program that makes images of it, and loop devices."""

    def check() -> str:
        loop = "" if Path("/dev/loop-control").exists() else "no loop devices here"
        return _filesystem(fstype)() or _program(program)() or loop

    return check


def _landlock() -> str:
    # landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) has one number on all
    # architectures.
    version = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)
    return "" if version > 0 else "the kernel has no Landlock, or it is not enabled"


def _static_busybox() -> str:
    path = shutil.which("busybox")
    if path is None:
        return "no busybox here (apt-get install busybox-static)"
    with open(path, "rb") as file:  # a dynamic program names its loader in its first page
        return (
            "busybox is not static (apt-get install busybox-static)"
            if b"ld-linux" in file.read(4096)
            else ""
        )


def _kernel_threads() -> str:
    stat = Path("/proc/2/stat")
    return (
        ""
        if stat.exists() and "(kthreadd)" in stat.read_text()
        else "this PID namespace does not show the kernel's threads"
    )


def _process_events() -> str:
    if os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC:  # PROC_PID_INIT_INO
        return "not the initial pid namespace"
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as connector:
            connector.sendto(bytes(16), (0, 0))
    except OSError as error:
        return f"no process connector here: {error}"
    return ""


#: Requirement -> check that returns "", or why the machine does not meet it.
REQUIREMENTS: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "not root",
    "runc": _program("runc"),
    "crun": _program("crun"),
    "podman": _program("podman"),
    "newuidmap": _program("newuidmap"),
    "containerd": _program("containerd"),
    "kubelet": _program("kubelet"),
    "runsc": lambda: "" if RUNSC.exists() else f"no {RUNSC} here (./dev test)",
    "cdi-engines": lambda: "" if CDI_ENGINES.exists() else f"no {CDI_ENGINES} here (./dev test)",
    "plugin-image": lambda: (
        ""
        if (PLUGIN_IMAGE / "requirements.txt").exists()
        else f"no {PLUGIN_IMAGE} here (./dev test)"
    ),
    "driver-packages": lambda: (
        "" if (DRIVER_PACKAGES / "trixie").exists() else f"no {DRIVER_PACKAGES} here (./dev test)"
    ),
    "old-driver-packages": lambda: (
        "" if (DRIVER_PACKAGES / "tesla").exists() else f"no {DRIVER_PACKAGES}/tesla (./dev test)"
    ),
    "cuda-packages": lambda: (
        "" if (CUDA_PACKAGES / "python").exists() else f"no {CUDA_PACKAGES} here (./dev test)"
    ),
    "docker": lambda: _program("dockerd")() or _program("docker")(),
    "sh": _program("sh"),
    "bash": _program("bash"),
    "zsh": _program("zsh"),
    "fish": _program("fish"),
    "man": _program("man"),
    "less": _program("less"),
    "gcc": _program("gcc"),
    # For the two sources of the launcher: assemblers, and emulators for the other machine's
    # programs.
    **{
        name: _program(name)
        for machine in ("x86_64", "aarch64")
        for name in (f"{machine}-linux-gnu-as", f"qemu-{machine}")
    },
    "musl-gcc": _program("musl-gcc"),
    "strace": _program("strace"),
    "ldconfig": _program("ldconfig"),
    "busybox": _static_busybox,
    "chromium": lambda: _program("chromium")() or _program("chromedriver")(),
    "axe": lambda: "" if AXE.exists() else f"no {AXE} (./dev test unpacks it)",
    "overlayfs": _filesystem("overlay"),
    "fuse": lambda: "" if Path("/dev/fuse").exists() else "no /dev/fuse here (modprobe fuse?)",
    "squashfs": _image("squashfs", "mksquashfs"),
    "erofs": _image("erofs", "mkfs.erofs"),
    "landlock": _landlock,
    "shared-records": lambda: "" if SHARED_RECORDS.exists() else f"no {SHARED_RECORDS}",
    "kernel-threads": _kernel_threads,
    "process-events": _process_events,
    "cgroup-v1": _mounted("cgroup", "devices"),
    "cgroup-v2": _mounted("cgroup2"),
    "x86_64": lambda: "" if os.uname().machine == "x86_64" else "not an x86_64 machine",
}


def _names(item: pytest.Item) -> list[str]:
    return [str(name) for marker in item.iter_markers("requires") for name in marker.args]


def _demand(name: str) -> None:
    """Skip the running test unless the machine meets the requirement ``name``."""
    missing = REQUIREMENTS[name]()
    if missing:
        pytest.skip(f"requires {name}: {missing}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for long runs of the fuzz tests."""
    parser.addoption(
        "--fuzz-examples",
        type=int,
        default=40,
        metavar="N",
        help="mutated documents for each parser, and at most three times as many examples for a"
        " property that has no number of its own (default: 40)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set how many examples hypothesis tries; their time depends on the load of the machine."""
    hypothesis.settings.register_profile(
        "any-machine",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=min(100, 3 * config.getoption("--fuzz-examples")),
    )
    hypothesis.settings.load_profile("any-machine")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through ten thousand tests again and again, which
    takes a fifth of the time of a run.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse unknown requirements, and deselect tests whose requirements this distribution
    lacks.
    """
    for item in items:
        unknown = [name for name in _names(item) if name not in REQUIREMENTS]
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: requires {unknown[0]!r}, which is not one of"
                f" {', '.join(REQUIREMENTS)}"
            )
    left_out = [item for item in items if LEFT_OUT.keys() & set(_names(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run all integration tests in one worker, and each hermetic file in any free worker."""
    from xdist.scheduler import LoadScopeScheduling

    def scope(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "integration" if file.startswith("integration/") else file

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope
    return scheduler


def pytest_report_header() -> list[str]:
    """Report which tests are left out."""
    return [
        f"left out: tests that require {name}, {reason}"
        for name, reason in sorted(LEFT_OUT.items())
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the requirements of a test before its fixtures are made."""
    for name in _names(item):
        _demand(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn every skip into a failure in CI."""
    report = yield
    if (
        IN_CI
        and report.skipped
        and not hasattr(report, "wasxfail")
        and isinstance(report.longrepr, tuple)
    ):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid}: skipped, which CI=true does not allow: {report.longrepr[2]}"
        )
    return report


@pytest.fixture(scope="session")
def demand() -> Callable[[str], None]:
    """Return a function for fixtures: ``demand("root")`` skips the tests that use the fixture."""
    return _demand


@pytest.fixture(scope="session")
def fuzz_examples(pytestconfig: pytest.Config) -> int:
    """Return the number of documents that a fuzz test tries."""
    number: int = pytestconfig.getoption("--fuzz-examples")
    return number


@pytest.fixture(scope="session")
def records() -> Path:
    """Return the directory of recorded reference behaviour."""
    return RECORDS


#: Whether the running test may start any program: an integration test, or one that names what it
#: requires.
_starts_programs = True


def _refuse_programs(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a hermetic test that starts a program of this machine without requiring it.

    ./dev test --quick, which deselects tests with requirements, therefore needs only Python.
    """
    if event != "subprocess.Popen" or _starts_programs:
        return
    executable, words = arguments[:2]
    directory, name = posixpath.split(os.fsdecode(executable or words[0]))
    of_machine = not directory or directory.startswith(("/bin", "/sbin", "/usr"))
    if of_machine and not name.startswith("python"):
        raise AssertionError(f"mark the test with requires({name!r}), which it starts")


sys.addaudithook(_refuse_programs)


def _refuse_connection(_socket: socket.socket, address: object) -> None:
    raise AssertionError(f"a hermetic test connects to {address!r}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Isolate hermetic tests from the network, this machine's kept documents and the hook's
    variables.

    A hook, since a fixture of each of ten thousand tests takes seconds.
    """
    global _starts_programs  # noqa: PLW0603 - an audit hook is for the whole process
    if not item.path.as_posix().startswith(f"{CHECKOUT}/tests/"):
        return (yield)
    from nvgraft.system import kept

    _starts_programs = bool(_names(item))
    directory, kept.DIRECTORY = kept.DIRECTORY, "/proc/none/cache"
    variables = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    connections: Any = socket.socket
    connections.connect = _refuse_connection
    try:
        return (yield)
    finally:
        del connections.connect
        os.environ.update(variables)
        kept.DIRECTORY = directory
        _starts_programs = True
