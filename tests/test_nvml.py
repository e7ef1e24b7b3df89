"""Asking NVML in a confined child: its answers and every way to fail.

The child loads a `pynvml` written here instead of the real one, and libc in place of NVML.
"""

import errno
import mmap
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from descriptors import nothing_stays_open
from nvgraft.base.errors import Refusal
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice, bus_id
from nvgraft.host.nvml import parse_answer, query

LIBRARY = "libc.so.6"
IS_ROOT = os.geteuid() == 0

WORKING = """
class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

nvmlLib = None
TEXTS = {3: b"Not Supported", 6: b"Not Found", 9: "Driver Not Loaded", 15: "GPU is lost", 18: "Driver/library version mismatch"}

class Pci:
    domain, bus, device = 1, 0xAF, 0x1F

class Plain(Pci):
    domain, bus, device = 0, 0x1B, 0

def nvmlErrorString(value): return TEXTS[value]
def nvmlInit(): assert nvmlLib is not None
def nvmlSystemGetDriverVersion(): return "535.54.03"
def nvmlSystemGetCudaDriverVersion(): return 12020
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetPciInfo(handle): return (Plain, Pci)[handle]
def nvmlDeviceGetCudaComputeCapability(handle): return 8, handle
def nvmlDeviceGetMinorNumber(handle): return 1 - handle
def nvmlDeviceGetUUID(handle): return ("GPU-0", b"GPU-1")[handle] if isinstance(handle, int) else "MIG-" + handle
def nvmlDeviceGetBrand(handle): return 2
def nvmlDeviceGetName(handle): return "Test\\tGPU\\n"
def nvmlDeviceGetMaxMigDeviceCount(handle): return 7
def nvmlDeviceGetGpuInstanceId(device): return 5
def nvmlDeviceGetComputeInstanceId(device): return 1

def nvmlDeviceGetMigMode(handle):
    if handle == 0:
        raise NVMLError(3)
    return [1, 1]

def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if index == 2:
        raise NVMLError(6)
    return "ab"[index]
"""

REPORT = DriverReport(
    "535.54.03",
    "12.2",
    (
        Gpu(1, "GPU-0", "00000000:1b:00.0", 2, "8.0", "unsupported", "Test GPU "),
        Gpu(
            0,
            "GPU-1",
            "00000001:af:1f.0",
            2,
            "8.1",
            "enabled",
            "Test GPU ",
            (MigDevice("MIG-a", 5, 1), MigDevice("MIG-b", 5, 1)),
        ),
    ),
)

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a `pynvml` on sys.path: the working one with a test's own lines at its end."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)

    def write(changes: str) -> None:
        (tmp_path / "pynvml.py").write_text(WORKING + textwrap.dedent(changes))

    return write


def ask(
    *,
    library: str = LIBRARY,
    root: str = "/",
    user: str = "",
    environment: tuple[str, ...] = (),
    timeout: float = 10.0,
) -> DriverReport:
    return query(library, root, user, environment, timeout=timeout)


def refused(**how: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(**how)  # type: ignore[arg-type]
    return caught.value


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_callers_work_runs_while_the_child_runs(install: Install) -> None:
    """The caller's work runs while the child does; if it fails, the child is ended."""
    install("")
    child_counts: list[int] = []
    assert query(LIBRARY, "/", "", (), lambda: child_counts.append(len(children()))).driver_version
    assert child_counts == [1]
    with pytest.raises(ZeroDivisionError):
        query(LIBRARY, "/", "", (), lambda: child_counts.append(1 // 0))
    assert children() == set()


def test_the_answer_is_nvmls(install: Install) -> None:
    """The answer has the versions, the GPUs in index order and all MIG devices; texts may be bytes
    and lose the protocol's separators.
    """
    install("")
    assert ask() == REPORT


def test_a_host_without_gpus_is_not_an_error(install: Install) -> None:
    """A host without GPUs is not an error."""
    install("def nvmlDeviceGetCount(): return 0")
    assert ask() == DriverReport("535.54.03", "12.2", ())


@pytest.mark.parametrize(
    ("value", "cuda"), [(12020, "12.2"), (11080, "11.8"), (9000, "9.0"), (13010, "13.1")]
)
def test_the_cuda_version_is_decoded(install: Install, value: int, cuda: str) -> None:
    """The CUDA version is decoded from NVML's integer: thousands and tens."""
    install(
        f"def nvmlSystemGetCudaDriverVersion(): return {value}\ndef nvmlDeviceGetCount(): return 0"
    )
    assert ask().cuda_version == cuda


@pytest.mark.parametrize(
    ("change", "mig"),
    [
        ("raise NVMLError(3)", "unsupported"),
        ("raise NVMLError(13)", "unsupported"),
        ("return [0, 1]", "disabled"),
    ],
)
def test_gpus_may_lack_mig(install: Install, change: str, mig: str) -> None:
    """ "Not supported" and "function not found" mean no MIG; pending modes are ignored."""
    install(f"def nvmlDeviceGetMigMode(handle): {change}")
    assert [(gpu.mig, gpu.mig_devices) for gpu in ask().gpus] == [(mig, ())] * 2


MIG_NAMES = """
def nvmlDeviceGetName(handle):
    names = {{"a": {first}, "b": b"NVIDIA H100 MIG 1c.2g.20gb"}}
    return names[handle]() if callable(names.get(handle)) else names.get(handle, "NVIDIA H100")

def fails(code):
    def fail(): raise NVMLError(code)
    return fail
"""


@pytest.mark.parametrize(
    ("first", "profile"),
    [
        ("'NVIDIA H100 MIG 1g.10gb+me'", "1g.10gb+me"),
        ("'NVIDIA H100 MIG'", ""),
        ("'NVIDIA H100'", ""),
        ("fails(3)", ""),
        ("fails(13)", ""),
        ("fails(15)", ""),
    ],
)
def test_profiles_of_mig_devices_are_their_names_last_word(
    install: Install, first: str, profile: str
) -> None:
    """A MIG device of which NVML says no profile, or nothing, keeps its ids and the others their
    profiles.
    """
    install(MIG_NAMES.format(first=first))
    devices = query(LIBRARY, "/", "", (), mig_profiles=True).gpus[1].mig_devices
    assert devices == (MigDevice("MIG-a", 5, 1, profile), MigDevice("MIG-b", 5, 1, "1c.2g.20gb"))


def test_names_of_mig_devices_are_asked_for_only_on_request(install: Install) -> None:
    """A start asks nothing of a MIG device but its UUID and its ids."""
    install(MIG_NAMES.format(first="lambda: 1 // 0"))
    assert ask().gpus[1].mig_devices == (MigDevice("MIG-a", 5, 1), MigDevice("MIG-b", 5, 1))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            "def nvmlInit(): raise NVMLError(9)",
            "initialization error: nvml error: driver not loaded",
        ),
        (
            "def nvmlInit(): raise NVMLError(18)",
            "initialization error: nvml error: driver/library version mismatch",
        ),
        ("def nvmlInit(): raise NVMLError(77)", "initialization error: nvml error: code 77"),
        (
            "def nvmlDeviceGetUUID(handle): raise NVMLError(15)",
            "detection error: nvml error: gpu is lost",
        ),
        (
            "def nvmlDeviceGetMigMode(handle): raise NVMLError(15)",
            "detection error: nvml error: gpu is lost",
        ),
        (
            "def nvmlDeviceGetMigDeviceHandleByIndex(handle, index): raise NVMLError(15)",
            "detection error: nvml error: gpu is lost",
        ),
        (
            "def nvmlInit(): raise RuntimeError('a\\nb')",
            "initialization error: driver rpc error: RuntimeError: a b",
        ),
        (
            "raise ImportError('no such module')",
            "initialization error: load library failed: nvidia-ml-py: no such module",
        ),
    ],
)
def test_errors_have_the_references_words(install: Install, change: str, line: str) -> None:
    """NVML's errors have its text in lower case and the stage in which they came, in one line with
    a hint.
    """
    install(change)
    refusal = refused()
    assert refusal.reference_line() == f"nvgraft: {line}"
    assert refusal.hint
    assert "\n" not in refusal.line()


def test_a_library_that_cannot_be_loaded_is_refused(install: Install) -> None:
    """A library that cannot be loaded is refused with dlopen's reason in lower case."""
    install("")
    assert refused(library="/none/nvml.so").reference_line() == (
        "nvgraft: initialization error: load library failed: /none/nvml.so: cannot open"
        " shared object file: no such file or directory"
    )


def test_known_errors_have_their_own_hints(install: Install) -> None:
    """A driver that is not loaded and one that was upgraded since boot have different hints."""
    install("def nvmlInit(): raise NVMLError(9)")
    assert "modprobe nvidia" in refused().hint
    install("def nvmlInit(): raise NVMLError(18)")
    assert "reboot" in refused().hint


@pytest.mark.parametrize(
    "change",
    [
        "import time; time.sleep(60)",
        "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)",
    ],
)
def test_a_hanging_driver_is_refused_after_the_limit(install: Install, change: str) -> None:
    """A driver that hangs is refused after the limit in the reference's words, and the child is
    ended.
    """
    install(f"def nvmlInit(): {change}")
    before = children()
    start = time.monotonic()
    refusal = refused(timeout=0.05)
    assert refusal.reference_line() == "nvgraft: initialization error: driver rpc error: timed out"
    assert "0.05 s" in refusal.hint
    assert time.monotonic() - start < 10
    assert children() == before


def test_a_crash_of_the_library_is_refused(install: Install) -> None:
    """If the library crashes, the hint names it and the signal."""
    install("def nvmlInit(): import ctypes; ctypes.string_at(0)")
    before = children()
    refusal = refused()
    assert (
        refusal.reference_line()
        == "nvgraft: initialization error: driver rpc error: unexpected end of file"
    )
    assert f"signal {signal.SIGSEGV}" in refusal.hint
    assert LIBRARY in refusal.hint
    assert children() == before


@pytest.mark.parametrize(
    "change", ["import os; os._exit(0)", "raise KeyboardInterrupt", "raise SystemExit(3)"]
)
def test_a_child_without_an_answer_is_refused(
    install: Install, tmp_path: Path, change: str
) -> None:
    """A child that ends without an answer is refused, and whatever ends it, it never returns into
    the caller's code.
    """
    install(f"def nvmlInit(): {change}")
    parent = os.getpid()
    # shared memory, because the child has no descriptor and may open no file
    went_on = mmap.mmap(-1, 1)
    try:
        refusal = refused()
    finally:
        if os.getpid() != parent:
            went_on[0] = 1
            os._exit(1)
    assert "no answer" in refusal.hint
    assert went_on[0] == 0


def test_descriptors_and_signals_are_restored(install: Install) -> None:
    """Neither an answer nor a time-out leaves a pipe open or a signal blocked."""

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with nothing_stays_open():
        install("")
        ask()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    with nothing_stays_open():
        install("def nvmlInit(): import time; time.sleep(60)")
        refused(timeout=0.05)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


TELL = """
import ctypes, os, resource  # while the tests' Python can still be read

def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetName(handle):
    def refused(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            return error.errno
        return 0
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
    return repr({
        "ids": (os.getresuid(), os.getresgid(), os.getgroups()),
        "caps": [int(status["Cap" + name], 16) for name in ("Eff", "Prm", "Inh")], "bounding": int(status["CapBnd"], 16),
        "new": int(status["NoNewPrivs"]), "filters": int(status["Seccomp"]), "pid": os.getpid(), "parent dies": signal.value,
        "limits": [resource.getrlimit(name)[1] for name in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)],
        "std": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)],
        "open": [os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in range(3, 20000) if os.path.lexists(f"/proc/self/fd/{fd}")],
        "refused": [refused(os.fork), refused(os.execv, "/bin/true", ["true"]), refused(os.kill, os.getppid(), 0)],
        "cwd": os.getcwd(), "variable": os.environ.get("OF_CONFIG_TOML")})
"""


def child_state(
    install: Install, user: str = "", environment: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the child's ids, capabilities, limits and descriptors while NVML runs in it."""
    install(TELL)
    text = ask(user=user, environment=environment).gpus[0].model
    result: dict[str, Any] = eval(text, {})
    return result


def test_nvml_runs_without_privileges(install: Install) -> None:
    """NVML runs without capabilities, without new privileges and in /; with the overflow ids if the
    hook is root.
    """
    state = child_state(install)
    assert (state["caps"], state["new"], state["cwd"]) == ([0, 0, 0], 1, "/")
    if IS_ROOT:
        overflow = [
            int(Path(f"/proc/sys/kernel/overflow{kind}").read_text()) for kind in ("uid", "gid")
        ]
        assert state["ids"] == ((overflow[0],) * 3, (overflow[1],) * 3, [])
        assert (state["bounding"], state["pid"]) == (0, 1)
    else:
        assert state["ids"][:2] == (os.getresuid(), os.getresgid())


def test_nvml_cannot_start_or_reach_anything(
    install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    """NVML cannot fork, execute or signal, does not see the hook's outputs and descriptors, and
    dies with the hook.
    """
    secret = os.open("/", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        state = child_state(install)
    finally:
        os.close(secret)
    assert (state["filters"], state["refused"]) == (2, [errno.EPERM] * 3)
    assert (state["std"], state["open"]) == (["/dev/null"] * 3, ["pipe"])
    assert state["parent dies"] == signal.SIGKILL
    assert all(
        limit >= most for limit, most in zip((10, 4 << 30, 1024), state["limits"], strict=True)
    )
    install("def nvmlInit(): import os; os.write(1, b'noise'); os.write(2, b'noise')")
    ask()
    assert capfd.readouterr() == ("", "")


def test_nvml_may_start_threads(install: Install) -> None:
    """NVML may start threads, as drivers do."""
    install("""
        import threading

        def nvmlInit():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()
    """)
    assert ask() == REPORT


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("0:0", (0, 0)),
        ("root", (0, 0)),
        ("root:root", (0, 0)),
        ("12345:54321", (12345, 54321)),
        ("0", (0, 0)),
        ("+0: 00", (0, 0)),
        ("root:", (0, 0)),
    ],
)
def test_config_toml_names_the_user(install: Install, user: str, ids: tuple[int, int]) -> None:
    """The user of config.toml is given by names or numbers; without a group it gets its own.
    Another user's ids need root.
    """
    uid, gid, _ = child_state(install, user)["ids"]
    expected = ((ids[0],) * 3, (ids[1],) * 3) if IS_ROOT else (os.getresuid(), os.getresgid())
    assert (uid, gid) == expected


NO_USER = "no such file or directory"
RANGE = "numerical result out of range"


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("no-such-user-here", NO_USER),
        ("root:no-such-group-here", NO_USER),
        (":root", NO_USER),
        ("a b", NO_USER),
        ("4294967000", NO_USER),
        ("4294967295", NO_USER),
        ("-1", RANGE),
        ("0:-1", RANGE),
        ("4294967296:0", RANGE),
        ("9" * 5000, RANGE),
        ("0:4294967295", RANGE),
        ("0x", "invalid argument"),
        ("0:99999999999999999999x", "invalid argument"),
    ],
    ids=lambda text: text[:30],
)
def test_an_unknown_user_is_refused(install: Install, user: str, reason: str) -> None:
    """An unknown user or group is refused with the reference's reason, and so is a number without
    a group that no user has. The hint says what to correct.
    """
    install("")
    refusal = refused(user=user)
    assert refusal.reference_line() == f"nvgraft: input error: parse user/group failed: {reason}"
    assert "set user in [nvidia-container-cli] of config.toml" in refusal.hint


def test_config_tomls_environment_is_set_in_the_child(install: Install) -> None:
    """The environment of config.toml is set in the child, not in this process."""
    assert child_state(install, environment=("OF_CONFIG_TOML=a=b",))["variable"] == "a=b"
    assert "OF_CONFIG_TOML" not in os.environ
    assert child_state(install, environment=("OF_CONFIG_TOML",))["variable"] == ""


def test_nvml_sees_the_driver_root_as_its_root(install: Install, tmp_path: Path) -> None:
    """The child changes its root before it opens the library; a caller who may not change it is
    refused.
    """
    root = tmp_path / "driver"
    (root / "marker").mkdir(parents=True)
    install(
        "def nvmlDeviceGetCount(): return 1\ndef nvmlDeviceGetName(handle): import os;"
        " return ' '.join(os.listdir('/'))"
    )
    if IS_ROOT:
        tmp_path.chmod(0o755)
        assert ask(root=str(root)).gpus[0].model == "marker"
    else:
        assert refused(root=str(root)).text.startswith("driver rpc error: PermissionError")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((0, 0, 0), "00000000:00:00.0"), ((0x10000, 0xAF, 0x1F), "00010000:af:1f.0")],
)
def test_pci_addresses_have_eight_digits(numbers: tuple[int, int, int], text: str) -> None:
    """PCI addresses have eight digits of domain, lower-case hexadecimal numbers, and function 0."""
    assert bus_id(*numbers) == text


def row(
    minor: str = "0", address: str = "00000000:17:00.0", mig: str = "enabled", model: str = "H100"
) -> str:
    return f"gpu\t{minor}\tGPU-0\t{address}\t2\t9.0\t{mig}\t{model}"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "end\n",
        "driver\t1",
        "driver\t1\nend",
        "mig\tMIG-0\t1\t0\nend",
        row(address="../../../../etc/shadow") + "\nend",
        row(address="00000000:17:00.0/../../x") + "\nend",
        row(address="-0000001:17:00.0") + "\nend",
        row(minor="-1") + "\nend",
        row(minor="99999999999") + "\nend",
        row(mig="maybe") + "\nend",
        row() + "\nmig\tMIG-0\t../..\t0\nend",
        row() + "\nmig\tMIG-0\t1\t0\t1g.10gb\tmore\nend",
        row() + "\nwhat\nend",
        row(model="\udcff") + "\nend",
        "error\nend",
        "error\tmount\ttext\nend",
    ],
)
def test_a_malformed_answer_is_refused(answer: str) -> None:
    """A malformed answer is refused: host paths are made from it, and a broken library may write
    anything.
    """
    assert parse_answer(f"{row()}\nmig\tMIG-0\t1\t0\nend".encode()).gpus[0].mig_devices == (
        MigDevice("MIG-0", 1, 0),
    )
    with pytest.raises(ValueError):
        parse_answer(answer.encode("utf-8", "surrogateescape"))


def test_a_malformed_answer_counts_as_a_missing_one(install: Install) -> None:
    """A malformed answer gives the reference's words for a child that ended too early."""
    install("def nvmlDeviceGetMinorNumber(handle): return -1")
    assert (
        refused().reference_line()
        == "nvgraft: initialization error: driver rpc error: unexpected end of file"
    )


def test_an_error_text_may_have_tabs() -> None:
    """The text of an error may have tabs, as in a file name."""
    with pytest.raises(Refusal, match="a\tb"):
        parse_answer(b"error\tdetection\ta\tb\nend")
