"""Read-only roots, namespaces, old kernels and cgroups: cases T54 to T62 of the catalogue
(docs/security.md).

A start either works, with the planned mount flags, or is refused by name with nothing changed.
"""

import ctypes
import errno
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import prctl
import pytest

from attacked import CANARY, DRIVER, LIBS, PLACE, ROOTFS, Case, Outcome, bind_rootfs, runtime_mounts
from bundles import EVERYTHING, make_bundle
from cgroups import ALLOW_ALL, DENY_ALL, FILTER, ZERO, attach, attach_link, device, hierarchy
from containers import CGROUPS, LOOK, Bundle
from harness import LDCONFIG, Installed
from nvgraft.apply import bpf
from nvgraft.system import syscalls
from nvgraft_specs import gallery

pytestmark = pytest.mark.requires("root", "overlayfs", "cgroup-v2", "ldconfig", "x86_64")

Attacked = Callable[[Case], Outcome]

MODES = ["native", "ldconfig"]
_REMOUNT = syscalls.MS_REMOUNT | syscalls.MS_BIND
_MS_NOSYMFOLLOW, _MS_SHARED = 256, 1 << 20
_CLONE_NEWCGROUP = 0x02000000
_MOUNT_ATTR_IDMAP = 0x00100000


def kernel_mounts(rootfs: Path) -> None:
    syscalls.mount("proc", str(rootfs / "proc"), "proc", 0)
    syscalls.mount("tmpfs", str(rootfs / "dev"), "tmpfs", syscalls.MS_NOSUID, "mode=755")


def with_flags(flags: int) -> Callable[[Path], None]:
    """Return a function that makes the mounts of a container whose root has these flags."""

    def mounts(rootfs: Path) -> None:
        bind_rootfs(rootfs)
        syscalls.mount(None, str(rootfs), None, _REMOUNT | flags)
        kernel_mounts(rootfs)

    return mounts


def flags_of(outcome: Outcome) -> dict[str, str]:
    """Return the options of the container's new mounts, without those of access times."""
    return {point: options.replace(",relatime", "") for point, _, _, options in outcome.mounts}


# ---- T54: roots that cannot be written

read_only_bind = with_flags(syscalls.MS_RDONLY)


def overlay_without_upper(rootfs: Path) -> None:
    syscalls.mount("overlay", str(rootfs), "overlay", 0, f"lowerdir={rootfs}:{CANARY}/empty")
    kernel_mounts(rootfs)


def image_of(fstype: str, *command: str) -> Callable[[Path], None]:
    def mounts(rootfs: Path) -> None:
        image = PLACE / "image"
        words = {"IMAGE": str(image), "ROOT": str(rootfs)}
        subprocess.run(
            [words.get(word, word) for word in command], check=True, stdout=subprocess.DEVNULL
        )
        subprocess.run(["mount", "-t", fstype, "-o", "loop,ro", image, rootfs], check=True)
        kernel_mounts(rootfs)

    return mounts


READ_ONLY = [
    pytest.param(read_only_bind, id="bind"),
    pytest.param(overlay_without_upper, id="overlay"),
    pytest.param(
        image_of("squashfs", "mksquashfs", "ROOT", "IMAGE", "-quiet", "-no-progress"),
        id="squashfs",
        marks=pytest.mark.requires("squashfs"),
    ),
    pytest.param(
        image_of("erofs", "mkfs.erofs", "IMAGE", "ROOT"),
        id="erofs",
        marks=pytest.mark.requires("erofs"),
    ),
]


@pytest.mark.parametrize("mounts", READ_ONLY)
def test_t54_a_read_only_root_is_refused(
    attacked: Attacked, mounts: Callable[[Path], None]
) -> None:
    """A root that is read-only before the hook runs is refused, and the line says so."""
    attacked(Case(mounts=mounts)).refused(
        "read-only file system | the root file system is read-only before"
    )


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [("all", "/etc/nvidia/nvidia-application-profiles-rc.d"), ("utility", "/usr/bin")],
)
def test_a_refusal_names_the_target_and_not_its_parent(
    attacked: Attacked, capabilities: str, named: str
) -> None:
    """Like the reference, a refusal names the target, not the first directory that is missing."""

    def prepare() -> None:
        for name in ("etc/nvidia", "usr"):
            shutil.rmtree(ROOTFS / name, ignore_errors=True)

    environment = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    outcome = attacked(Case(prepare=prepare, mounts=read_only_bind, environment=environment))
    outcome.refused(f"file creation failed: {ROOTFS}{named}: read-only file system")


def grafted_image(attacked: Attacked, mode: str) -> Callable[[], None]:
    """Return a function that makes in an image everything that the hook would make in it."""
    config = {"nvgraft": f'ldcache = "{mode}"'}
    cache = ROOTFS / "etc/ld.so.cache"
    done = attacked(Case(config=config, look=lambda _pid: cache.read_bytes()))
    done.grafted()

    def prepare() -> None:
        for line in sorted(line for line in done.files if line.startswith("+")):
            _, path, kind, bits, *_ = line.split(" ")
            if kind == "d":
                os.mkdir(path, int(bits, 8))
            elif kind == "l":
                os.symlink(line.split(" ")[6], path)
            else:
                Path(path).write_bytes(done.seen if path.endswith("ld.so.cache") else b"")
                os.chmod(path, int(bits, 8))
        os.utime(cache)  # the hook writes the cache last

    return prepare


@pytest.mark.parametrize("mounts", READ_ONLY)
def test_t54_a_read_only_root_that_has_everything_fails_with_ldconfig(
    attacked: Attacked, mounts: Callable[[Path], None]
) -> None:
    """ldconfig always writes a new cache, so that its step fails and the mounts are undone."""
    prepare = grafted_image(attacked, "ldconfig")
    config = {"nvgraft": 'ldcache = "ldconfig"'}
    done = attacked(Case(prepare=prepare, mounts=mounts, config=config))
    done.refused(f"ldcache error: process {LDCONFIG} failed with error code: 1 | ")
    assert "read-only" in done.stderr


@pytest.mark.parametrize("mounts", READ_ONLY)
def test_t54_a_read_only_root_that_has_everything_works(
    attacked: Attacked, mounts: Callable[[Path], None]
) -> None:
    """A root with placeholders, links and a cache of this driver needs no write and works."""
    done = attacked(Case(prepare=grafted_image(attacked, "native"), mounts=mounts))
    assert done.returncode == 0, done.stderr
    assert done.files == ()


@pytest.mark.parametrize("lacking", ["etc/ld.so.cache", f"{LIBS[1:]}/libcuda.so.1"])
@pytest.mark.parametrize("mounts", READ_ONLY)
def test_t54_a_read_only_root_that_lacks_something_is_refused(
    attacked: Attacked, mounts: Callable[[Path], None], lacking: str
) -> None:
    """When a cache or SONAME link is missing, the loader cache step fails and mounts are undone."""
    grafted = grafted_image(attacked, "native")

    def prepare() -> None:
        grafted()
        (ROOTFS / lacking).unlink()

    done = attacked(Case(prepare=prepare, mounts=mounts))
    words = f"ldcache error: process {LDCONFIG} failed with error code: 1"
    done.refused(f"{words} | the loader cache was not written: ")
    fix = "give the container a writable root file system, or an image whose cache"
    assert f"read-only file system: {fix}" in done.stderr


def make_immutable(path: str) -> Callable[[], None]:
    def prepare() -> None:
        (ROOTFS / "etc/ld.so.cache").write_text("not a cache")
        subprocess.run(["chattr", "+i", ROOTFS / path.lstrip("/")], check=True)

    return prepare


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["/usr/bin", LIBS, "/etc", "/etc/ld.so.cache"])
def test_t54_immutable_directories_are_refused(attacked: Attacked, path: str, mode: str) -> None:
    """An immutable directory or cache, which root cannot change either, is refused."""
    config = {"nvgraft": f'ldcache = "{mode}"'}
    compute = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    done = attacked(Case(prepare=make_immutable(path), environment=compute, config=config))
    if path.startswith("/etc"):
        done.refused("ldcache error: ")
    else:
        done.refused(f"file creation failed: {ROOTFS}{path}/")
        assert "the directory is immutable (chattr -i)" in done.stderr


# ---- T54, T57: flags of the root, and of the host's /proc

PLANNED = {
    "/usr/bin/nvidia-smi": "ro,nosuid,nodev",
    f"{LIBS}/libcuda.so.535.1": "ro,nosuid,nodev",
    "/dev/nvidia0": "ro,nosuid,noexec",
    "/run/nvidia-persistenced/socket": "rw,nosuid,nodev,noexec",
    "/proc/driver/nvidia": "rw,nosuid,nodev,noexec",
    "/proc/driver/nvidia/gpus/0000:01:00.0": "ro,nosuid,nodev,noexec",
}


def hide_processes() -> None:
    subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"], check=True)


@pytest.mark.parametrize(
    "case",
    [
        Case(mounts=with_flags(syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)),
        Case("/usr/lib64 -> lib", mounts=with_flags(_MS_NOSYMFOLLOW)),
        Case(prepare=hide_processes, own_pids=True),
        Case(),
    ],
    ids=["restricted", "nosymfollow", "hidepid", "plain"],
)
def test_t57_mounts_have_the_planned_flags(attacked: Attacked, case: Case) -> None:
    """Mounts have the planned flags, whatever flags the root or /proc has (also T54)."""
    done = attacked(case)
    done.grafted()
    flags = flags_of(done)
    assert {point: flags[point] for point in PLANNED if point in flags} == PLANNED


def cover(path: str, source: str | None = None) -> Callable[[], None]:
    """Return a function that covers ``path`` for the hook, by a tmpfs or by ``source``."""

    def before_exec() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount(source or "tmpfs", path, "tmpfs", syscalls.MS_BIND if source else 0)

    return before_exec


@pytest.mark.parametrize(
    ("before_exec", "message"),
    [
        (
            cover("/proc"),
            (
                "initialization error: open failed: /proc/self/fd: no such file or"
                " directory | mount "
                "/proc"
            ),
        ),
        (cover("/sys/fs/cgroup"), "failed to get device cgroup mount path: no cgroup2 filesystem"),
        (cover("/proc/devices", "/dev/null"), ""),
    ],
    ids=["proc", "cgroup", "devices"],
)
def test_t57_covered_proc_and_cgroups_of_the_host(
    attacked: Attacked, before_exec: Callable[[], None], message: str
) -> None:
    """A covered /proc or cgroup hierarchy is refused; a covered /proc/devices is not needed."""
    done = attacked(Case(before_exec=before_exec))
    if message:
        done.refused(message)
    else:
        done.grafted()


# ---- T55, T56: user namespaces

USER = 100_000


def owners() -> set[tuple[int, int]]:
    """Return uid and gid of what the hook has made in the image."""
    names = ("etc/ld.so.cache", f"{LIBS[1:]}/libcuda.so.1", "usr/bin/nvidia-smi", "run")
    states = [(ROOTFS / name).lstat() for name in names]
    return {(state.st_uid, state.st_gid) for state in states}


@pytest.mark.parametrize("mode", MODES)
def test_t55_files_belong_to_the_containers_root(attacked: Attacked, mode: str) -> None:
    """In a user namespace everything that the hook makes belongs to the namespace's root."""
    config = {"nvgraft": f'ldcache = "{mode}"'}
    done = attacked(Case(owner=USER, look=lambda _pid: owners(), config=config))
    done.grafted()
    assert done.seen == {(USER, USER)}


def idmapped(first: int) -> Callable[[], None]:
    """Return a function that covers the image by an id-mapped mount: 0 becomes ``first``."""

    def prepare() -> None:
        for path in (ROOTFS, *ROOTFS.rglob("*")):
            os.lchown(path, 0, 0)
        tree = syscalls.open_tree(-1, str(ROOTFS), syscalls.OPEN_TREE_CLONE)
        attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_IDMAP, 0, 0, user_namespace(first))
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.syscall(442, tree, b"", 0x1000, attributes, 32)  # mount_setattr
        assert result == 0, os.strerror(ctypes.get_errno())
        syscalls.move_mount(tree, os.open(ROOTFS, os.O_PATH))

    return prepare


def user_namespace(first: int) -> int:
    """Return a descriptor of a user namespace whose uid 0 is ``first`` on the host."""
    said, say = os.pipe()
    listen, tell = os.pipe()
    child = os.fork()
    if child == 0:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(say, b"1")
        os.read(listen, 1)
        os._exit(0)
    assert os.read(said, 1) == b"1"
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 {first} 65536")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.write(tell, b"1")
    os.waitpid(child, 0)
    return namespace


@pytest.mark.parametrize("mode", MODES)
def test_t55_an_idmapped_root(attacked: Attacked, mode: str) -> None:
    """On an id-mapped root, made files belong to the container's root, seen through the mapping."""
    config = {"nvgraft": f'ldcache = "{mode}"'}
    case = Case(owner=USER, prepare=idmapped(USER), look=lambda _pid: owners(), config=config)
    done = attacked(case)
    done.grafted()
    assert done.seen == {(USER, USER)}


def test_t55_an_owner_without_a_number_is_refused(attacked: Attacked) -> None:
    """Where the root's mount does not map the container's root, nothing is made."""
    attacked(Case(owner=USER, prepare=idmapped(2 * USER))).refused(
        "value too large for defined data type | the owner of the container's"
    )


def as_container_root(pid: int, tries: Mapping[str, Callable[[], object]]) -> dict[str, int]:
    """Return the errno of each of ``tries`` as root of the container of ``pid``."""
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            process = syscalls.pidfd_open(pid)
            syscalls.setns(process, syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            for name, call in tries.items():
                code = 0
                try:
                    call()
                except OSError as error:
                    code = error.errno or -1
                os.write(say, f"{name}={code}\n".encode())
        finally:
            os._exit(0)
    os.close(say)
    with os.fdopen(said) as lines:
        answers = dict(line.strip().split("=") for line in lines)
    os.waitpid(child, 0)
    return {name: int(code) for name, code in answers.items()}


def test_t56_root_of_a_user_namespace_cannot_write_the_hosts_files(attacked: Attacked) -> None:
    """The container's root may clear flags and unmount; owner and mode protect the host's files."""
    library, node = ROOTFS / LIBS[1:] / "libcuda.so.535.1", ROOTFS / "dev/nvidiactl"

    def write(path: Path) -> Callable[[], object]:
        return lambda: os.write(os.open(path, os.O_WRONLY), b"x")

    def look(pid: int) -> dict[str, int]:
        answers = as_container_root(
            pid,
            {
                "write at first": write(library),
                "clear ro": lambda: syscalls.mount(None, str(library), None, _REMOUNT),
                "write": write(library),
                "chmod": lambda: library.chmod(0o777),
                "chown": lambda: os.chown(library, 0, 0),
                "clear nodev": lambda: syscalls.mount(None, str(node), None, _REMOUNT),
                "mknod": lambda: os.mknod(ROOTFS / "tmp/sda", 0o60600, os.makedev(8, 0)),
                "unmount": lambda: syscalls.umount2(str(library), 0),
                "write the placeholder": write(library),
                "write the host's": write(DRIVER / "usr/lib/libcuda.so.535.1"),
            },
        )
        return answers | {"host": int((DRIVER / "usr/lib/libcuda.so.535.1").stat().st_mode & 0o022)}

    done = attacked(Case(owner=USER, look=look))
    done.grafted()
    allowed = {name for name, code in done.seen.items() if code == 0}
    assert allowed == {"clear ro", "clear nodev", "unmount", "write the placeholder", "host"}, (
        done.seen
    )
    denied = {code for name, code in done.seen.items() if name not in allowed}
    assert denied <= {errno.EACCES, errno.EPERM, errno.EROFS}, done.seen


# ---- T58: kernels and filters without a call

#: Number of each system call that the hook needs on x86-64.
NUMBERS = {
    "openat2": 437,
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "pidfd_open": 434,
    "setns": 308,
    "memfd_create": 319,
    "bpf": 321,
    "close_range": 436,
    "statx": 332,
}
#: Newer system calls that are not needed.
UNUSED = {"statmount": 457, "listmount": 458, "open_tree_attr": 467}
_MOUNT, _UMOUNT2 = 165, 166
_ERRNO, _KILL, _ALLOW = 0x00050000, 0x80000000, 0x7FFF0000


def without(error: int, *numbers: int, deadly: tuple[int, ...] = ()) -> Callable[[], None]:
    """Return a function that installs a filter: ``numbers`` fail, and ``deadly`` calls kill."""
    steps = [(0x20, 0, 0, 0)]  # load the number of the call
    for answer, group in ((_ERRNO | error, numbers), (_KILL, deadly)):
        for number in group:
            steps += [(0x15, 0, 1, number), (0x06, 0, 0, answer)]
    steps.append((0x06, 0, 0, _ALLOW))
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    return lambda: syscalls.set_seccomp_filter(program)


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
@pytest.mark.parametrize("name", NUMBERS)
def test_t58_a_missing_system_call_is_named(attacked: Attacked, name: str, error: str) -> None:
    """The refusal names the missing call, and mount(2), which would kill, is not used."""
    before_exec = without(getattr(errno, error), NUMBERS[name], deadly=(_MOUNT,))
    config = {"nvgraft": 'ldcache = "ldconfig"'}  # only ldconfig needs memfd_create
    done = attacked(Case(before_exec=before_exec, config=config))
    done.refused(f"{'bpf_prog_query' if name == 'bpf' else name}(")
    assert "report this" not in done.stderr


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_t58_newer_calls_are_not_needed(attacked: Attacked, error: str) -> None:
    """Without statmount and listmount, as before Linux 6.8, everything works."""
    attacked(Case(before_exec=without(getattr(errno, error), *UNUSED.values()))).grafted()


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_t58_planning_needs_no_newer_system_call(
    installed: Installed, tmp_path: Path, error: str
) -> None:
    """A plan for a recorded host needs none of these system calls."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    host = gallery.path("runfile-a10x2")
    command = [str(installed.cli), "plan", "--bundle", str(bundle), "--host", host]
    numbers = [number for name, number in NUMBERS.items() if name != "statx"]
    filtered = without(getattr(errno, error), *numbers, _MOUNT, _UMOUNT2)
    plain, done = (
        subprocess.run(command, capture_output=True, text=True, preexec_fn=call)
        for call in (None, filtered)
    )
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "libcuda.so.560.35.03" in done.stdout


# ---- T59: a second thread

_RUN = """
import sys, threading, time
sys.path.append({library!r})
if {threads}:
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
from nvgraft.hook import main
sys.exit(main(["nvgraft-hook", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("threads", [True, False])
def test_t59_a_second_thread_is_refused(
    attacked: Attacked, installed: Installed, threads: bool
) -> None:
    """A hook with a second thread is refused before it enters the container's mount namespace."""
    script = _RUN.format(library=str(installed.library), threads=threads)
    done = attacked(Case(hook=("/usr/bin/python3", "-ISBc", script)))
    if threads:
        done.refused("initialization error: the hook has 2 threads")
    else:
        done.grafted()


# ---- T60: device cgroups


def attach_all(count: int) -> Callable[[int], None]:
    def rules(cgroup: int) -> None:
        for number in range(count):
            attach(cgroup, bpf.allow_code((ZERO, device(9, number))) + DENY_ALL)

    return rules


def one_of_two_linked(cgroup: int) -> int:
    attach(cgroup, FILTER)
    return attach_link(cgroup, FILTER)


@pytest.mark.parametrize("count", [0, 1, 2, 63])
def test_t60_every_bpf_program_of_the_cgroup_is_extended(attacked: Attacked, count: int) -> None:
    """Each BPF program of the device cgroup gets the rules; without a program nothing is done."""
    done = attacked(Case(rules=attach_all(count)))
    done.grafted()
    assert done.rules == (count > 0)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (attach_all(64), "as many as the kernel takes"),
        (one_of_two_linked, "attached by a BPF link"),
        (lambda cgroup: attach_link(cgroup, ALLOW_ALL), "attached by a BPF link"),
    ],
    ids=["64", "one of two linked", "linked"],
)
def test_t60_bpf_programs_that_cannot_be_replaced_are_refused(
    attacked: Attacked, rules: Callable[[int], object], message: str
) -> None:
    """When one program cannot be replaced, the start is refused, and the others are restored."""
    attacked(Case(rules=rules)).refused(message)


def enter_cgroup_namespace() -> None:
    """Put the hook into a cgroup namespace beside the container's, whose path then starts with
    "/..".

    The case's ``look`` removes the directory, which is empty when the hook has ended.
    """
    place = sibling()
    place.mkdir()
    (place / "cgroup.procs").write_text(str(os.getpid()))
    syscalls.unshare(_CLONE_NEWCGROUP)


def sibling() -> Path:
    return hierarchy(2) / f"nvgraft-sibling-{os.getppid()}"


def test_t60_a_cgroup_outside_of_the_hooks_namespace_is_refused(attacked: Attacked) -> None:
    """A cgroup path that starts with "/.." is refused."""

    def look(_pid: int) -> None:
        (hierarchy(2) / f"nvgraft-sibling-{os.getpid()}").rmdir()

    attacked(Case(before_exec=enter_cgroup_namespace, look=look)).refused(
        "relative path in mount prefix: /.."
    )


def test_t60_without_cgroups_no_rule_is_touched(attacked: Attacked) -> None:
    """With no-cgroups, programs that could not be replaced are left alone."""
    done = attacked(Case(rules=attach_all(64), config={"cli": "no-cgroups = true"}))
    done.grafted()
    assert not done.rules


# ---- T61: containers that share namespaces


def chroot_only(rootfs: Path) -> None:
    runtime_mounts(rootfs)
    os.chroot(rootfs)


def pivoted(rootfs: Path) -> None:
    runtime_mounts(rootfs)
    os.chdir(rootfs)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)


def shared(rootfs: Path) -> None:
    runtime_mounts(rootfs)
    syscalls.mount(None, "/", None, syscalls.MS_REC | _MS_SHARED)


def test_t61_the_hosts_pid_namespace_makes_no_difference(attacked: Attacked) -> None:
    """A container in the host's pid namespace gets the driver as any other."""
    attacked(Case(kinds=syscalls.CLONE_NEWNS)).grafted()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(kinds=0), "has no mount namespace of its own"),
        (Case(kinds=syscalls.CLONE_NEWPID), "has no mount namespace of its own"),
        (Case(kinds=0, mounts=chroot_only), "has no mount namespace of its own"),
        (
            Case(mounts=chroot_only),
            f"container error: open failed: {ROOTFS}: no such file or directory",
        ),
        (
            Case(mounts=pivoted),
            f"container error: open failed: {ROOTFS}: no such file or directory",
        ),
        (Case(mounts=shared), "/proc/driver: shared mount | /proc is shared"),
    ],
    ids=["host's", "pid only", "chroot", "chroot in a namespace", "pivoted already", "shared"],
)
def test_t61_mounts_that_others_see_are_refused(
    attacked: Attacked, case: Case, message: str
) -> None:
    """A container without its own mount namespace, or with another root already, is refused."""
    attacked(case).refused(message)


@pytest.mark.requires("runc", "busybox", "gcc")
def test_t61_no_pivot_works(bundle: Bundle) -> None:
    """Under runc --no-pivot the container gets the driver, and the host sees no mount."""
    bundle.set_program(LOOK)
    runc = f"runc --root /run/runc-test run --no-pivot --bundle {bundle.path} {bundle.name}"
    done = bundle.on_host(
        f"cat /proc/self/mountinfo > /run/m; {runc} && diff /run/m /proc/self/mountinfo"
    )
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /" in done.stdout


@pytest.mark.requires("runc", "busybox", "gcc", "cgroup-v1")
@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_t61_privileged_works(bundle: Bundle, prepare: str) -> None:
    """A container that may use every device gets the driver, and may still use every device."""

    def change(config: dict[str, Any]) -> None:
        config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        config["linux"].update(maskedPaths=[], readonlyPaths=[])
        capabilities = config["process"]["capabilities"]
        for kind in capabilities:
            capabilities[kind] = sorted({*capabilities[kind], "CAP_SYS_ADMIN", "CAP_MKNOD"})

    bundle.edit(change)
    done = bundle.run(LOOK, prepare)
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /" in done.stdout
    assert "can't open /tmp/other: No such device or address" in done.stdout, "a device is denied"


# ---- T62: security modules


def landlock() -> None:
    """Restrict this process by Landlock to write anywhere; this always forbids mounts."""
    libc = ctypes.CDLL(None, use_errno=True)
    write_file = 1 << 1
    ruleset = libc.syscall(444, (ctypes.c_uint64 * 1)(write_file), 8, 0)
    assert ruleset >= 0, os.strerror(ctypes.get_errno())
    rule = struct.pack("=Qi", write_file, os.open("/", os.O_PATH))
    assert libc.syscall(445, ruleset, 1, rule, 0) == 0
    prctl.set_no_new_privs(1)
    assert libc.syscall(446, ruleset, 0) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.requires("landlock")
def test_t62_a_sandboxed_hook_is_refused(attacked: Attacked) -> None:
    """A hook that Landlock keeps from the container's process and from mounting is refused."""
    attacked(Case(before_exec=landlock)).refused(
        "permission denied | the container's process has ended, the hook does not run as root, or "
        "a security"
    )
