"""Ask the driver for its GPUs through NVML (nvidia-ml-py), in a confined child.

NVML is a large library and talks to a kernel driver that may hang. Therefore a child loads it,
which has changed its root to the driver root and given up all privileges before, and the hook waits
for it for a limited time (reference behaviour 4.6). The child answers in lines of tab-separated
words.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.values import number
from nvgraft.host.gpus import MINORS, DriverReport, Gpu, MigDevice, bus_id
from nvgraft.system import child, confinement, privileges, syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

#: Seconds that the hook waits for the driver, as the reference does.
TIMEOUT = 10.0

#: Bytes. The answer for 64 GPUs with 8 MIG devices each has about 50 KiB.
ANSWER_LIMIT = 1 << 20

#: In seconds, bytes, descriptors, bytes. NVML needs far less; a faulty library cannot exhaust the
#: machine.
LIMITS = (
    (syscalls.RLIMIT_CPU, 10),
    (syscalls.RLIMIT_AS, 4 << 30),
    (syscalls.RLIMIT_NOFILE, 1024),
    (syscalls.RLIMIT_FSIZE, 16 << 20),
)

#: NVML's return codes for a GPU without MIG: not supported, function not found.
_NO_MIG = (3, 13)
_NOT_FOUND = 6

#: The stages in which the child may fail, and the states of MIG.
_STAGES = ("initialization", "detection", "input")
_MIG = ("unsupported", "disabled", "enabled")

#: A user or group id that means none (setresuid(2)).
_NO_ID = 0xFFFFFFFF
_NO_IDS = (
    "set user in [nvidia-container-cli] of config.toml (or --user) to a user of this host, as"
    " NAME[:GROUP] or UID[:GID]"
)

_MISSING = (
    "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file"
    " or directory"
)


def library_missing(hint: str) -> Refusal:
    """Return the refusal for a host without NVML; ``hint`` says where it is missing and what to
    do.
    """
    return Refusal("initialization", _MISSING, hint)


def query(
    library: str,
    root: str,
    user: str,
    environment: Sequence[str],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    timeout: float = TIMEOUT,
    mig_profiles: bool = False,
) -> DriverReport:
    """Ask the NVML at ``library`` (a path inside the driver root ``root``) in a confined child.

    :param user: ``UID[:GID]``, names or numbers; empty for the kernel's overflow ids, as the
        reference.
    :param environment: ``K=V`` entries of config.toml, which are set in this child only.
    :param meanwhile: called while the child works.
    :param mig_profiles: whether to ask for the profiles of MIG devices, which no container needs.
    :raises Refusal: stage ``initialization`` (``nvml error: ...``, ``load library failed: ...``,
        ``driver rpc error: timed out``), ``detection`` for errors while reading a GPU, ``input``
        for an unknown user, ``permission`` without python-prctl.
    """
    privileges.check_installed()
    fixed_groups = userns.groups_are_fixed()
    nvml = child.start(
        lambda writer: _answer(
            writer,
            library,
            root,
            user,
            environment,
            fixed_groups=fixed_groups,
            mig_profiles=mig_profiles,
        ),
        forks=False,
    )
    deadline = time.monotonic() + timeout
    answer = None
    try:
        meanwhile()
        answer = nvml.read(deadline, ANSWER_LIMIT)
    finally:
        status = nvml.end()
    if answer is None:
        raise Refusal(
            "initialization",
            "driver rpc error: timed out",
            f"NVML did not answer within {timeout:g} s: the driver or a GPU hangs; see"
            " dmesg for Xid messages, reset the GPU or reboot",
        )
    try:
        return parse_answer(answer)
    except ValueError:
        killed = status is not None and os.WIFSIGNALED(status)
        how = f"signal {os.WTERMSIG(status)}" if status is not None and killed else "no answer"
        raise Refusal(
            "initialization",
            "driver rpc error: unexpected end of file",
            f"the process that loaded {library} ended with {how}: reinstall the driver",
        ) from None


def user_ids(text: str) -> tuple[int, int]:
    """Return the ids of ``UID[:GID]``, as names or numbers; by default the user's primary group.

    :raises Refusal: stage ``input``: there is no such user or group on this host.
    """
    import grp
    import pwd

    name, _, group = text.partition(":")
    try:
        uid = _id(name)
        account: pwd.struct_passwd | None = None
        if uid is None:
            account = pwd.getpwnam(name)
            uid = account.pw_uid
        gid = _id(group)
        if gid is None:
            gid = grp.getgrnam(group).gr_gid if group else (account or pwd.getpwuid(uid)).pw_gid
    except KeyError:
        raise _no_ids(errno.ENOENT) from None
    if _NO_ID in (uid, gid):
        raise _no_ids(errno.ERANGE)
    return uid, gid


def _id(text: str) -> int | None:
    """Return the number that strtoumax(3) reads in ``text``; None if it does not begin with one."""
    unsigned = text.lstrip(" \t").removeprefix("+")
    negative = unsigned.startswith("-")
    digits = unsigned[negative:]
    rest = digits.lstrip("0123456789")
    if rest == digits:
        return None
    if rest:
        raise _no_ids(errno.EINVAL)
    significant = digits.lstrip("0") or "0"
    if (negative and significant != "0") or len(significant) > 10 or int(significant) > _NO_ID:
        raise _no_ids(errno.ERANGE)
    return int(significant)


def _no_ids(number: int) -> Refusal:
    return Refusal("input", f"parse user/group failed: {reason(OSError(number, ''))}", _NO_IDS)


def _hint(text: str) -> str:
    if text.startswith("load library failed"):
        return "the driver's library exists but cannot be loaded: reinstall the driver"
    return _HINTS.get(
        text.rpartition(": ")[2], "run nvidia-smi on the host: it reports the same error"
    )


_HINTS = {
    "driver not loaded": "the nvidia kernel module is not loaded: load it (modprobe nvidia), or"
    " install the driver for this kernel",
    "driver/library version mismatch": "the driver was upgraded while the old kernel module is"
    " loaded: reload the nvidia modules or reboot",
    "insufficient permissions": "the user that asks NVML may not open /dev/nvidia*: check `user`"
    " in config.toml and the mode of the nodes",
}


def parse_answer(answer: bytes) -> DriverReport:
    """Parse the child's output strictly: a faulty library may make it write anything, and paths are
    made from it.

    :raises Refusal: the child reports an error.
    :raises ValueError: the output is not complete or not in the child's form.
    """
    rows = [line.split("\t") for line in answer.decode("utf-8", "surrogateescape").split("\n")]
    if rows.pop() != ["end"]:
        raise ValueError("no end")
    if rows and rows[0][0] == "error":
        stage, *words = rows[0][1:] or [""]
        if stage not in _STAGES:
            raise ValueError(f"no stage: {stage}")
        text = "\t".join(words)
        raise Refusal(stage, text, _NO_IDS if stage == "input" else _hint(text))
    answer.decode()  # the names must be UTF-8, because documents contain them
    driver = cuda = ""
    gpus: list[tuple[list[str], list[MigDevice]]] = []
    for kind, *words in rows:
        if kind == "driver":
            driver, cuda = words
        elif kind == "gpu":
            gpus.append((words, []))
        elif kind == "mig" and gpus:
            uuid, gpu_instance, compute_instance, *rest = words
            (profile,) = rest or ("",)
            ids = _number(gpu_instance), _number(compute_instance)
            gpus[-1][1].append(MigDevice(uuid, *ids, profile))
        else:
            raise ValueError(f"no row: {kind}")
    return DriverReport(
        driver, cuda, tuple([_gpu(*words, migs=tuple(migs)) for words, migs in gpus])
    )


def _gpu(*words: str, migs: tuple[MigDevice, ...]) -> Gpu:
    minor, uuid, address, brand, arch, mig, model = words
    domain, bus, device = (int(part, 16) for part in address.removesuffix(".0").split(":"))
    if min(domain, bus, device) < 0 or address != bus_id(domain, bus, device) or mig not in _MIG:
        raise ValueError(f"no GPU: {address} {mig}")
    return Gpu(_number(minor), uuid, address, _number(brand), arch, mig, model, migs)


def _number(word: str) -> int:
    value = number(word)
    if value is None or value >= MINORS:
        raise ValueError(f"no number: {word}")
    return value


# ---- the functions below run only in the child


def _answer(
    writer: int,
    library: str,
    root: str,
    user: str,
    environment: Sequence[str],
    *,
    fixed_groups: bool,
    mig_profiles: bool,
) -> None:
    try:
        confinement.close_all_but(writer)
        for entry in environment:
            name, _, value = entry.partition("=")
            os.environ[name] = value
        # These modules lie outside of the driver root: load them before the root is changed.
        import ctypes

        pynvml = _load_pynvml()
        _confine(writer, root, *_ids(user), fixed_groups=fixed_groups)
        lines = _ask(pynvml, ctypes.CDLL, library, mig_profiles=mig_profiles)
    except (_NvmlTrouble, Refusal) as trouble:
        lines = [f"error\t{trouble.stage}\t{trouble.text}"]
    except Exception as error:  # noqa: BLE001 - the parent only sees the answer
        text = f"driver rpc error: {type(error).__name__}: {error}".replace("\n", " ")
        lines = [f"error\tinitialization\t{text}"]
    data = "\n".join([*lines, "end"]).encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(writer, data) :]


def _load_pynvml() -> ModuleType:
    """Load pynvml without ``ctypes.util``, from which it imports a function that it does not use.

    That module loads subprocess, shutil and tempfile, which takes a third of the child's time.

    :raises _NvmlTrouble: pynvml is not installed.
    """
    util = type(sys)("ctypes.util")
    util.find_library = None  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = util
    try:
        try:
            import pynvml
        except ImportError:  # a later release may import more names
            del sys.modules["ctypes.util"]
            import pynvml
    except ImportError as error:
        raise _NvmlTrouble(
            "initialization", f"load library failed: nvidia-ml-py: {error}"
        ) from error
    module: ModuleType = pynvml
    return module


class _NvmlTrouble(Exception):
    def __init__(self, stage: str, text: str) -> None:
        super().__init__(text)
        self.stage = stage
        self.text = text


def _ask(
    pynvml: ModuleType, load: Callable[[str], object], library: str, *, mig_profiles: bool
) -> list[str]:
    try:
        pynvml.nvmlLib = load(library)  # type: ignore[attr-defined]  # pynvml's loader would set it
    except OSError as error:
        raise _NvmlTrouble(
            "initialization", "load library failed: " + _lower_reason(str(error))
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _NvmlTrouble("initialization", _nvml_text(pynvml, error)) from error
    try:
        return _read(mig_profiles=mig_profiles)
    except pynvml.NVMLError as error:
        raise _NvmlTrouble("detection", _nvml_text(pynvml, error)) from error


def _ids(user: str) -> tuple[int, int]:
    """Return the user and group ids that NVML runs as; by default the kernel's overflow ids, which
    own nothing.
    """
    return user_ids(user) if user else confinement.overflow_ids()


def _confine(writer: int, root: str, uid: int, gid: int, *, fixed_groups: bool) -> None:
    """Change the root to the driver root, and give up everything that NVML does not need to talk to
    the driver.
    """
    confinement.limit(LIMITS)
    if root != "/":
        import ctypes

        # Loaded before, these libraries also serve NVML in a driver root that has no libc.
        for name in ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"):
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
        os.chroot(root)
    os.chdir("/")
    confinement.give_up(writer, uid, gid, fixed_groups=fixed_groups)


def _lower_reason(text: str) -> str:
    head, colon, reason = text.rpartition(": ")
    return head + colon + reason.lower()


def _nvml_text(pynvml: object, error: Exception) -> str:
    value = getattr(error, "value", 999)
    try:
        text = pynvml.nvmlErrorString(value)  # type: ignore[attr-defined]
        text = text.decode() if isinstance(text, bytes) else text
    except Exception:  # noqa: BLE001 - an old or damaged library may not name its errors
        text = f"code {value}"
    return f"nvml error: {text.lower()}"


def _word(value: str | bytes) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text.replace("\t", " ").replace("\n", " ")


def _read(*, mig_profiles: bool) -> list[str]:
    import pynvml

    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    lines = [
        f"driver\t{_word(pynvml.nvmlSystemGetDriverVersion())}\t{cuda // 1000}.{cuda % 100 // 10}"
    ]
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        try:
            mig = "enabled" if pynvml.nvmlDeviceGetMigMode(handle)[0] else "disabled"
        except pynvml.NVMLError as error:
            if error.value not in _NO_MIG:
                raise
            mig = "unsupported"
        words = (
            str(pynvml.nvmlDeviceGetMinorNumber(handle)),
            _word(pynvml.nvmlDeviceGetUUID(handle)),
            bus_id(pci.domain, pci.bus, pci.device),
            str(pynvml.nvmlDeviceGetBrand(handle)),
            f"{major}.{minor}",
            mig,
            _word(pynvml.nvmlDeviceGetName(handle)),
        )
        lines.append("\t".join(("gpu", *words)))
        if mig == "enabled":
            lines.extend(_read_mig(handle, mig_profiles=mig_profiles))
    return lines


def _read_mig(handle: object, *, mig_profiles: bool) -> list[str]:
    import pynvml

    lines = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value == _NOT_FOUND:
                break
            raise
        instances = (
            pynvml.nvmlDeviceGetGpuInstanceId(device),
            pynvml.nvmlDeviceGetComputeInstanceId(device),
        )
        words = [_word(pynvml.nvmlDeviceGetUUID(device)), *map(str, instances)]
        if mig_profiles:
            words.append(_mig_profile(device))
        lines.append("\t".join(("mig", *words)))
    return lines


def _mig_profile(device: object) -> str:
    """Return the profile that the name of a MIG device says last, or nothing.

    The profile of the GPU instance says it too, but is not shown to a user without privileges.
    """
    import pynvml

    try:
        return _word(pynvml.nvmlDeviceGetName(device)).partition(" MIG ")[2]
    except pynvml.NVMLError:
        return ""
