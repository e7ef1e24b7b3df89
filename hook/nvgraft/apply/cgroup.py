"""Find a container's device cgroup and allow the new device nodes there.

Finding it reads the host's procfs and mount table. Changing it uses descriptors only, so it works
while this process is in the container's mount namespace. Cgroup v1 takes two text files and is done
here; :mod:`nvgraft.apply.bpf` rebuilds the programs of cgroup v2. The plan decides which devices to
allow.
"""

from __future__ import annotations

import errno

from nvgraft.apply import bpf, journal
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import AllowDevice
from nvgraft.system import syscalls
from nvgraft.system.mountinfo import Mount, mounts_of_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nvgraft.apply.undo import UndoLog
    from nvgraft.base.finding import Finding

#: The fix to name when the device cgroup cannot or must not be changed.
NO_CGROUPS = (
    "set `no-cgroups = true` in [nvidia-container-cli] to leave the container's device rules alone"
)


def below(mount: Mount, path: str) -> str:
    """Return the cgroup ``path`` of /proc/PID/cgroup relative to ``mount`` (reference behaviour
    7.1).
    """
    if mount.root != "/" and (path + "/").startswith(mount.root + "/"):
        path = path[len(mount.root) :]
    return path.strip("/") or "."


def _lines(text: str) -> list[str]:
    """Split at newlines only: cgroup names may hold the other characters at which ``splitlines``
    splits.
    """
    return [line for line in text.split("\n") if line]


def device_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts that can hold device rules: cgroup2, and v1 hierarchies mounted at
    ``devices``.
    """
    return tuple(
        mount
        for mount in mounts
        if mount.fstype == "cgroup2"
        or (mount.fstype == "cgroup" and paths.basename(mount.point) == "devices")
    )


def parse_membership(text: str) -> tuple[str | None, str | None]:
    """Return the paths that /proc/PID/cgroup names for the v1 devices controller and for cgroup v2.

    :raises ValueError: for a line that is not ID:CONTROLLERS:PATH, and when neither is named.
    """
    paths: dict[str, str] = {}
    for line in _lines(text):
        parts = line.split(":", 2)
        if len(parts) != 3:
            raise ValueError(f"malformed cgroup entry: {line}")
        paths.setdefault(parts[1], parts[2])
    if "devices" not in paths and "" not in paths:
        raise ValueError("no devices or unified cgroup entries found")
    return paths.get("devices"), paths.get("")


def choose(
    v1_path: str | None, v2_path: str | None, mounts: Sequence[Mount]
) -> tuple[int, str, Mount]:
    """Return the version, the path in its hierarchy and the mount of the cgroup that decides on
    devices.

    The v1 hierarchy does not confine a process in its root, and cannot be changed where it is not
    mounted. In both cases v2 decides, if there is one (SECURITY R32).

    :raises ValueError: when the hierarchy is not mounted here, or starts outside of our cgroup
        namespace.
    """
    v1 = next((mount for mount in mounts if mount.fstype == "cgroup"), None)
    v2 = next((mount for mount in mounts if mount.fstype == "cgroup2"), None)
    if v1_path is not None and (
        v2_path is None or (v1 is not None and (v1_path != "/" or v2 is None))
    ):
        version, path, mount = 1, v1_path, v1
    else:
        assert v2_path is not None
        version, path, mount = 2, v2_path, v2
    if mount is None:
        # The missing letter in the first message is the reference's, and people search for it.
        message = "no cgroup filesystem mounted for the devices subsytem in mountinfo file"
        raise ValueError(message if version == 1 else "no cgroup2 filesystem in mountinfo file")
    if mount.root.startswith("/.."):
        raise ValueError(f"relative path in mount prefix: {mount.root}")
    return version, path, mount


def missing_rules(listed: str, rules: Sequence[AllowDevice]) -> Iterator[AllowDevice]:
    """Yield the rules to add to ``listed``, the text of ``devices.list``, so that ``rules`` hold.

    A result has only the letters that the node's own entry lacks, because the kernel merges entries
    of one node: denying the result then takes back exactly what it gave.

    :raises ValueError: when ``listed`` cannot be parsed.
    """
    entries = [
        (kind, number.split(":"), access)
        for kind, number, access in (line.split() for line in _lines(listed))
    ]
    for rule in rules:
        numbers = [str(rule.major), str(rule.minor)]
        granted = ""
        for kind, pattern, access in entries:
            if kind not in ("a", "c") or any(
                granted_number not in (number, "*")
                for granted_number, number in zip(pattern, numbers, strict=True)
            ):
                continue
            # The kernel needs one entry with all letters: two entries with half of them do not add
            # up.
            if not set(rule.access) - set(access):
                break
            if pattern == numbers:
                granted = access
        else:
            access = "".join(letter for letter in rule.access if letter not in granted)
            yield AllowDevice(rule.major, rule.minor, rule.why, access)


class DeviceCgroup:
    """The cgroup whose device rules apply to the container, held by a descriptor.

    ``version`` is 1 or 2. ``path`` is its directory on the host, for messages only. ``is_root``
    tells whether it is the root of its hierarchy: its rules hold for the whole machine and are
    never changed.
    """

    def __init__(self, version: int, path: str, fd: int, *, is_root: bool) -> None:
        self.version = version
        self.path = path
        self.is_root = is_root
        self._fd = fd
        self._kept: list[int] = []

    def close(self) -> None:
        """Close all descriptors, including those that an undo needs: call this after the
        transaction.
        """
        for fd in (*self._kept, self._fd):
            syscalls.close(fd)
        self._kept.clear()
        self._fd = -1

    def check_member(self, pid: int) -> None:
        """Check that ``pid`` is in this cgroup, and not in another of the same name. Close it if
        not.

        :raises ValueError: when ``pid`` is not listed.
        :raises OSError: when the list cannot be read.
        """
        try:
            if str(pid) not in _read(self._fd, "cgroup.procs").split():
                raise ValueError(f"process {pid} is not a member of {self.path}")
        except (OSError, ValueError):
            self.close()
            raise

    def entry(self) -> journal.JournalEntry:
        """Return the journal's entry. Rules end with the cgroup, and its inode number is never
        reused.
        """
        return journal.JournalEntry("devices", self.path, str(os.fstat(self._fd).st_ino))

    def look_above(self, rules: Sequence[AllowDevice]) -> list[Finding]:
        """Return a warning if the cgroups above this one deny nodes of ``rules``, or may.

        Their rules are never changed, since they hold for others too. In cgroup v1 the kernel
        accepts no rule beyond those of the parent, which :meth:`allow` refuses then. Call this in
        the host's mount namespace.
        """
        if self.version == 1:
            return []
        try:
            effective = bpf.query(self._fd, effective=True)[1]
            above = set(effective).difference(bpf.query(self._fd)[1] if effective else ())
        except bpf.ProgramError:
            return []  # allow() has the same error, and refuses
        if not above:
            return []
        from nvgraft.apply.bpf_verdict import look_at

        return look_at(sorted(above), rules, self.path)

    def allow(self, rules: Sequence[AllowDevice], undo: UndoLog) -> None:
        """Allow the container the nodes of ``rules`` in one step, and register the way back in
        ``undo``.

        :raises Refusal: when the cgroup cannot be changed. Changes made until then are in ``undo``.
        """
        if not rules:
            return
        try:
            if self.version == 1:
                self._allow_v1(rules, undo)
            else:
                self._allow_v2(rules, undo)
        except bpf.ProgramError as error:
            raise _add_failed(str(error), f"the cgroup is {self.path}; {NO_CGROUPS}") from error

    def _allow_v1(self, rules: Sequence[AllowDevice], undo: UndoLog) -> None:
        try:
            missing = list(missing_rules(_read(self._fd, "devices.list"), rules))
        except (OSError, ValueError) as error:
            raise _add_failed(f"{self.path}: {bpf.reason(error)}", NO_CGROUPS) from error
        if not missing:
            return
        try:
            self._refuse_root()
            allow = self._keep(_open_file(self._fd, "devices.allow", os.O_WRONLY))
            deny = self._keep(_open_file(self._fd, "devices.deny", os.O_WRONLY))
        except OSError as error:
            raise _add_failed(f"{self.path}: {bpf.reason(error)}", NO_CGROUPS) from error
        for rule in missing:
            self._write_v1(allow, deny, rule, undo)

    def _write_v1(self, allow: int, deny: int, rule: AllowDevice, undo: UndoLog) -> None:
        line = f"c {rule.major}:{rule.minor} {rule.access}"

        def take_back() -> None:
            try:
                _write_rule(deny, line)
            except OSError as error:
                # ENODEV: the cgroup is gone, and its rules with it.
                if error.errno != errno.ENODEV and not any(
                    missing_rules(_read(self._fd, "devices.list"), (rule,))
                ):
                    raise

        # Denying what is not allowed changes nothing, so the step can be registered before the
        # change.
        undo.add(f"device rule {line} of {self.path}", take_back)
        try:
            _write_rule(allow, line)
        except OSError as error:
            hint = (
                "the parent cgroup allows less than this, or the hook lacks CAP_SYS_ADMIN; "
                f"{NO_CGROUPS}"
            )
            raise _add_failed(
                f"{self.path}/devices.allow: {line}: {bpf.reason(error)}", hint
            ) from error

    def _allow_v2(self, rules: Sequence[AllowDevice], undo: UndoLog) -> None:
        flags, programs = bpf.query(self._fd)
        if not programs:
            return  # without a program every device is allowed
        self._refuse_root()
        prefix = bpf.allow_code(rules)
        # Everything that can be refused is checked before the first exchange.
        pairs = []
        for program in programs:
            old = self._keep(bpf.open_program(program))
            pairs.append((old, self._keep(bpf.load(prefix + bpf.fetch(old)))))
        for old, new in pairs:
            self._exchange(old, new, flags, undo)

    def _exchange(self, old: int, new: int, flags: int, undo: UndoLog) -> None:
        # put_back() does nothing for a program that is not attached, so it can be registered first.
        undo.add(f"device rules of {self.path}", lambda: bpf.put_back(self._fd, new, old, flags))
        bpf.replace(self._fd, old, new, flags)

    def _keep(self, fd: int) -> int:
        self._kept.append(fd)
        return fd

    def _refuse_root(self) -> None:
        if self.is_root:
            raise _add_failed(
                f"{self.path} is the root cgroup",
                "its rules hold for the whole machine; start the container in a cgroup of its "
                f"own, or {NO_CGROUPS}",
            )


def find_cgroup(pid: int, proc: str = "/proc") -> DeviceCgroup:
    """Find and open the device cgroup of process ``pid``. Call this in the host's mount namespace.

    :param proc: a procfs that shows the host's processes.
    :raises Refusal: stage ``container``, or ``mount`` where the reference opens the directory only
        when it adds the rules. The texts are those of reference behaviour 7.1 and 7.3.
    """
    reachable: dict[Mount, int] = {}
    step = "version"
    try:
        v1_path, v2_path = parse_membership(_read_proc(proc, f"{pid}/cgroup"))
        step = "mount path"
        # The hook is the runtime's child and in its mount namespace, so the hook's own table is the
        # runtime's.
        reachable = open_mounts(
            device_mounts(mounts_of_type(_read_proc(proc, "self/mountinfo"), "cgroup", "cgroup2"))
        )
        version, path, mount = choose(v1_path, v2_path, tuple(reachable))
        step = "root path"
        cgroup = _open_cgroup(version, path, mount, reachable[mount])
        cgroup.check_member(pid)
    except (OSError, ValueError) as error:
        raise Refusal(
            "container", f"failed to get device cgroup {step}: {bpf.reason(error)}", NO_CGROUPS
        ) from error
    finally:
        for mount_fd in reachable.values():
            syscalls.close(mount_fd)
    return cgroup


def _open_cgroup(version: int, path: str, mount: Mount, mount_fd: int) -> DeviceCgroup:
    relative = below(mount, path)
    directory = paths.clean(paths.join(mount.point, relative))
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
    try:
        # Not O_PATH: bpf() refuses such a descriptor for a cgroup.
        fd = syscalls.openat2(mount_fd, relative, os.O_RDONLY | os.O_DIRECTORY, resolve)
    except OSError as error:
        raise _add_failed(
            f"unable to open the cgroup path: open {directory}: {bpf.reason(error)}", NO_CGROUPS
        ) from error
    return DeviceCgroup(version, directory, fd, is_root=path == "/")


def open_mounts(mounts: Sequence[Mount]) -> dict[Mount, int]:
    """Return those mounts that can be reached at their mount points, with a descriptor each.

    A cgroup2 mounted over /sys/fs/cgroup hides the v1 hierarchies below it, but mountinfo still
    lists them. Another reason why one cannot be reached is an error: a remaining hierarchy may not
    be the one that decides.
    """
    reachable: dict[Mount, int] = {}
    try:
        for mount in mounts:
            try:
                fd = syscalls.openat2(
                    -1, mount.point, os.O_PATH | os.O_DIRECTORY, syscalls.RESOLVE_NO_SYMLINKS
                )
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    raise
                continue
            reachable[mount] = fd
            if syscalls.mount_id(fd) != mount.id:
                syscalls.close(reachable.pop(mount))
    except BaseException:
        for fd in reachable.values():
            syscalls.close(fd)
        raise
    return reachable


def _open_file(directory: int, name: str, flags: int) -> int:
    return syscalls.openat2(
        directory, name, flags, syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
    )


def _read_proc(proc: str, name: str) -> str:
    directory = syscalls.openat2(-1, proc, os.O_PATH | os.O_DIRECTORY, syscalls.RESOLVE_NO_SYMLINKS)
    try:
        return _read(directory, name)
    finally:
        syscalls.close(directory)


def _read(directory: int, name: str) -> str:
    fd = _open_file(directory, name, os.O_RDONLY)
    try:
        return paths.fsdecode(b"".join(iter(lambda: os.read(fd, 1 << 16), b"")))
    finally:
        syscalls.close(fd)


def _write_rule(fd: int, line: str) -> None:
    # The kernel takes a rule as a whole: the rest of a partial write cannot be sent later.
    if os.write(fd, line.encode()) != len(line):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _add_failed(text: str, hint: str) -> Refusal:
    return Refusal("mount", f"failed to add device rules: {text}", hint)
