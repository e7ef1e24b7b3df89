"""Mutation control: each safety measure is removed from a copy of the program, and a named test has to notice (SECURITY T29).

A mutant is one change of text that has to match exactly once, so that a measure cannot be renamed out of sight: then the
mutant no longer applies, which is an error of its own. A measure whose removal no test notices might as well not be there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .figures import Figure

CHECKOUT = Path(__file__).parent.parent.parent
#: What the tests need; nothing is built and nothing is installed.
_COPIED = (
    "hook",
    "cli",
    "specs",
    "tests",
    "integration",
    "conftest.py",
    "pyproject.toml",
    "dev",
    "docs",
)
_IN_ROOT = "integration/test_in_root.py"
#: Every so many of them are run at size small.
_SMALL_SHARE = 8


class Mutant(NamedTuple):
    """One measure and its removal: in ``file``, ``old`` becomes ``new``, and at least one of ``tests`` has to fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class DoesNotApply(Exception):
    """The text that a mutant replaces is not there exactly once: the measure has moved, and its mutant has to follow."""


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    full = tuple(test if "/" in test else f"{_IN_ROOT}::{test}" for test in tests)
    return Mutant(name, f"hook/nvgraft/{file}", old, new, full)


_ENV = "tests/test_launch.py"

MUTANTS = (
    # Lookups
    _mutant(
        "R18: no RESOLVE_IN_ROOT",
        "apply/targets.py",
        "_RESOLVE = syscalls.RESOLVE_IN_ROOT | ",
        "_RESOLVE = ",
        "test_two_dots_do_not_lead_above_the_root",
    ),
    _mutant(
        "R18: no RESOLVE_NO_SYMLINKS",
        "apply/targets.py",
        " | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS",
        " | syscalls.RESOLVE_NO_MAGICLINKS",
        "test_no_link_on_the_way_is_followed",
    ),
    _mutant(
        "R18: no RESOLVE flags at all",
        "apply/targets.py",
        "    resolve |= _FOLLOW if follow else _RESOLVE\n    flags |= 0 if follow else os.O_NOFOLLOW\n",
        "",
        "test_no_link_on_the_way_is_followed",
        "test_two_dots_do_not_lead_above_the_root",
    ),
    _mutant(
        "R18: the loader cache step reads outside of the root",
        "apply/targets.py",
        "_FOLLOW = syscalls.RESOLVE_IN_ROOT | ",
        "_FOLLOW = ",
        "tests/test_native_cache.py",
    ),
    _mutant(
        "R27: the loader cache is written through what is there",
        "apply/cache/native.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC",
        "tests/test_native_cache.py",
    ),
    _mutant(
        "R17: libraries of the image without end",
        "apply/cache/rootfs.py",
        "        if self._libraries < 0:\n",
        "        if False:\n",
        "tests/test_native_cache.py",
    ),
    _mutant(
        "R21: the loader cache on a volume",
        "apply/cache/native.py",
        "        if volume is not None:\n",
        "        if False:\n",
        "tests/test_native_cache.py",
    ),
    _mutant(
        "R18: EAGAIN is tried for ever",
        "apply/targets.py",
        "or attempts == _ATTEMPTS or",
        "or attempts == 100 * _ATTEMPTS or",
        "test_a_lookup_is_tried_again_when_the_kernel_asks_for_it",
    ),
    _mutant(
        "R18: EAGAIN without a limit of time",
        "apply/targets.py",
        " or time.monotonic() > deadline:",
        ":",
        "test_a_lookup_is_tried_again_when_the_kernel_asks_for_it",
    ),
    _mutant(
        "R18: the planner opens directories through links",
        "formats/tree.py",
        "os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.directory(parent)",
        "os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.directory(parent)",
        "test_the_planner_follows_no_link_that_has_replaced_a_directory",
    ),
    _mutant(
        "R17: the planner reads files through links",
        "formats/tree.py",
        "held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC",
        "held = os.open(name, os.O_PATH | os.O_CLOEXEC",
        "test_the_planner_reads_no_file_through_a_link_that_has_replaced_one",
    ),
    _mutant(
        "R17: the planner opens what is no regular file",
        "formats/tree.py",
        "            if not stat.S_ISREG(os.fstat(held).st_mode):",
        "            if False:",
        "tests/test_tree.py",
    ),
    _mutant(
        "R18: `..` above the root is taken",
        "formats/tree.py",
        "                if not done:\n",
        "                if False:\n",
        "tests/test_tree.py",
    ),
    _mutant(
        "R18: links without number",
        "formats/tree.py",
        "MAX_LINKS = 20",
        "MAX_LINKS = 20000",
        "tests/test_tree.py",
    ),
    # Making
    _mutant(
        "R20: no O_EXCL",
        "apply/targets.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW",
        "test_what_appears_where_a_placeholder_goes_is_kept",
    ),
    _mutant(
        "R20: neither O_EXCL nor O_NOFOLLOW",
        "apply/targets.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT",
        "test_what_appears_where_a_placeholder_goes_is_kept",
    ),
    _mutant(
        "R20: placeholders are truncated",
        "apply/targets.py",
        "        self._check_target(os.fstat(fd) if made is None else made, mount, action, kind)\n        return fd",
        "        os.close(os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=parent))\n        return fd",
        "test_an_existing_target_keeps_its_bytes_and_its_mode",
    ),
    _mutant(
        "R20: targets of any kind",
        "apply/targets.py",
        "        if not stat.S_ISREG(found.st_mode) and not _KINDS[kind](found.st_mode):",
        "        if False:",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R20: directories as targets of files",
        "apply/targets.py",
        '        if stat.S_ISDIR(found.st_mode) != (kind == "dir"):',
        "        if False:",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R21: device targets of any number",
        "apply/targets.py",
        "(os.major(found.st_rdev), os.minor(found.st_rdev)) != action.rdev:",
        "False:",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R21: things are made on volumes",
        "apply/targets.py",
        "        if volume is not None:",
        "        if False:",
        "test_nothing_is_made_on_a_volume",
    ),
    _mutant(
        "R21: mounts that came since are taken",
        "container/container.py",
        "        mount = self.mounts.get(syscalls.mount_id(fd))\n        if mount is None:\n            raise",
        "        self.read_mounts()\n        mount = self.mounts.get(syscalls.mount_id(fd))\n        if mount is None:\n            raise",
        "test_a_mount_that_came_since_is_refused",
    ),
    _mutant(
        "R25: targets on shared mounts",
        "apply/targets.py",
        "        if mount is not None and mount.shared:",
        "        if False:",
        "test_a_target_on_a_shared_mount_is_refused",
    ),
    _mutant(
        "R30: things belong to the host's root",
        "apply/restore.py",
        "            syscalls.set_fs_ids(self.uid, self.gid)\n",
        "",
        "test_what_is_made_belongs_to_the_container_s_root",
    ),
    _mutant(
        "R30: the ids are not taken back",
        "apply/restore.py",
        "            syscalls.set_fs_ids(os.geteuid(), os.getegid())\n",
        "            pass\n",
        "test_what_is_made_belongs_to_the_container_s_root",
    ),
    _mutant(
        "R33: the undo removes what it did not make",
        "apply/targets.py",
        "            another = self._identity != (found.st_dev, found.st_ino)",
        "            another = False",
        "test_the_undo_removes_nothing_that_came_in_the_place_of_what_was_made",
    ),
    # Sources
    _mutant(
        "R23: sources through links",
        "apply/sources.py",
        "syscalls.OPEN_TREE_CLONE | syscalls.AT_SYMLINK_NOFOLLOW",
        "syscalls.OPEN_TREE_CLONE",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources of any kind",
        "apply/sources.py",
        "    if stat.S_IFMT(found.st_mode) != _TYPES[action.kind]:",
        "    if False:",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: devices of any number",
        "apply/sources.py",
        "    if action.rdev is not None and (os",
        "    if False and (os",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources that others can write",
        "apply/sources.py",
        "found.st_mode & 0o022 or",
        "",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources of other owners",
        "apply/sources.py",
        " or not userns.is_root(found.st_uid)",
        "",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: mounts hear of the host's",
        "apply/sources.py",
        "        syscalls.mount_setattr(fd, wanted, syscalls.MS_PRIVATE, _ALL_ATTRIBUTES & ~wanted)",
        "        syscalls.mount_setattr(fd, wanted, 0, _ALL_ATTRIBUTES & ~wanted)",
        "test_an_attached_mount_has_its_options_and_hears_of_no_other",
    ),
    _mutant(
        "R23: mounts without their restrictions",
        "apply/sources.py",
        "        _set_options(fd, attributes(action.options))",
        "        _set_options(fd, 0)",
        "test_an_attached_mount_has_its_options_and_hears_of_no_other",
    ),
    _mutant(
        "R27: tmpfs without limits",
        "apply/sources.py",
        ', "gid": str(gid), **_TMPFS_LIMITS}',
        ', "gid": str(gid)}',
        "test_a_tmpfs_of_ours_has_limits",
    ),
    # Attaching
    _mutant(
        "R22: targets are opened late",
        "apply/executor.py",
        "            syscalls.move_mount(mount_fd, target_fd)",
        "            syscalls.move_mount(mount_fd, open_in_root(container.rootfs_fd, action.target, os.O_PATH))",
        "test_a_mount_of_ours_does_not_lead_a_later_target_elsewhere",
    ),
    _mutant(
        "R26: mounts are not looked at again",
        "apply/executor.py",
        "        _verify(action, mount_fd, container)\n",
        "",
        "test_a_target_that_moves_away_is_noticed_and_undone",
    ),
    _mutant(
        "R26: any mount will do",
        "apply/executor.py",
        "syscalls.mount_id(fd) != syscalls.mount_id(mount_fd) or",
        "",
        "test_a_mount_that_is_covered_at_once_is_noticed_and_undone",
    ),
    _mutant(
        "R26: any options will do",
        "apply/executor.py",
        " or os.fstatvfs(fd).f_flag & wanted != wanted",
        "",
        "test_a_mount_with_other_options_than_planned_is_noticed_and_undone",
    ),
    _mutant(
        "R29: the undo trusts the /proc that it finds",
        "apply/executor.py",
        '            return syscalls.new_mount("proc", {"subset": "pid"}, 0)',
        '            return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)',
        "test_the_undo_trusts_no_proc_that_it_finds",
    ),
    # The container
    _mutant(
        "R11: our own mount namespace",
        "container/container.py",
        '    if _namespace(pid) == _namespace("self"):',
        "    if False:",
        "test_a_process_in_our_own_mount_namespace_is_no_container",
    ),
    _mutant(
        "R11: init, ourselves, our parent",
        "container/container.py",
        "    if not 1 < pid <= _PID_MAX or pid in {os.getpid(), os.getppid()}:",
        "    if False:",
        "tests/test_container.py",
    ),
    _mutant(
        "R11: threads of the kernel",
        "container/container.py",
        "    if _has_no_program(pid):",
        "    if False:",
        "tests/test_container.py",
        "test_a_thread_of_the_kernel_is_no_container",
    ),
    _mutant(
        "R11: the namespace is entered by number",
        "container/container.py",
        "lambda: syscalls.setns(pidfd, syscalls.CLONE_NEWNS)",
        'lambda: syscalls.setns(os.open(f"/proc/{container.pid}/ns/mnt", os.O_RDONLY), syscalls.CLONE_NEWNS)',
        "test_a_container_that_has_ended_is_never_taken_for_the_next_one_of_its_number",
    ),
    _mutant(
        "R5: threads are not counted",
        "container/container.py",
        "    if threads != 1:",
        "    if False:",
        "tests/test_container.py::test_a_second_thread_is_refused_before_setns",
    ),
    _mutant(
        "R12: the host's root",
        "container/container.py",
        "    if (found.st_dev, found.st_ino) == (host.st_dev, host.st_ino):",
        "    if False:",
        "test_the_host_s_root_by_another_name_is_refused",
    ),
    _mutant(
        "R12: any directory",
        "container/container.py",
        "    if not syscalls.mount_attributes(container.rootfs_fd) & _STATX_ATTR_MOUNT_ROOT:",
        "    if False:",
        "test_a_rootfs_that_is_no_mount_point_is_refused",
    ),
    _mutant(
        "R12: magic links lead to the rootfs",
        "container/container.py",
        "        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS\n        fix =",
        "        resolve = syscalls.RESOLVE_IN_ROOT\n        fix =",
        "test_a_magic_link_does_not_lead_to_a_rootfs",
    ),
    _mutant(
        "R12: the rootfs is looked up in our own namespace",
        "container/container.py",
        "        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS\n        fix =",
        "        resolve = 0\n        fix =",
        "test_a_rootfs_that_is_no_mount_point_is_refused",
        "test_a_magic_link_does_not_lead_to_a_rootfs",
    ),
    _mutant(
        "R28: any directory of a procfs",
        "container/container.py",
        " or os.fstat(fd).st_ino != _PROC_ROOT_INODE:",
        ":",
        "test_a_proc_that_is_not_the_root_of_a_procfs_is_refused",
    ),
    # The process
    _mutant("R3: LD_PRELOAD is not looked for", "system/launch.py", '"LD_PRELOAD", ', "", _ENV),
    _mutant(
        "R3: an interpreter that is not isolated",
        "system/launch.py",
        "    if not (sys.flags.isolated and sys.flags.no_site):",
        "    if False:",
        _ENV,
    ),
    _mutant(
        "R4: inherited descriptors stay open",
        "system/launch.py",
        "    syscalls.close_range(3, ~0)\n",
        "",
        _ENV,
    ),
    _mutant(
        "R4: the inherited working directory", "system/launch.py", '    os.chdir("/")\n', "", _ENV
    ),
    _mutant(
        "R4: inherited signal masks",
        "system/launch.py",
        "    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())\n",
        "",
        _ENV,
    ),
    _mutant(
        "R4: no deadline",
        "system/launch.py",
        "    _signal.setitimer(_signal.ITIMER_REAL, seconds)\n",
        "    pass\n",
        _ENV,
    ),
    _mutant(
        "R4: others may trace it",
        "system/launch.py",
        "    syscalls.set_dumpable(False)\n",
        "",
        _ENV,
    ),
    _mutant(
        "R13: config.toml of anybody",
        "system/trusted.py",
        "    if not userns.is_root(found.st_uid) and found.st_uid != os.geteuid():",
        "    if False:",
        "tests/test_trusted.py",
    ),
    _mutant(
        "R13: config.toml that others can write",
        "system/trusted.py",
        "    writable = found.st_mode & 0o022 and",
        "    writable = False and",
        "tests/test_trusted.py",
    ),
    _mutant(
        "R40: a set-user-ID hook",
        "system/launch.py",
        "    if len(set(os.getresuid())) > 1 or len(set(os.getresgid())) > 1 or syscalls.is_secure_execution():",
        "    if False:",
        _ENV,
    ),
    _mutant(
        "R36: no lock",
        "system/lock.py",
        "        syscalls.flock(fd, syscalls.LOCK_EX | syscalls.LOCK_NB)\n",
        "        pass\n",
        "tests/test_lock.py",
    ),
    _mutant(
        "R36: a lock that was removed counts",
        "system/lock.py",
        "    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)",
        "    return True",
        "tests/test_lock.py",
    ),
    _mutant(
        "R38: control characters reach a terminal",
        "base/errors.py",
        "        text = printable(self.reference_line(program))",
        "        text = self.reference_line(program)",
        "tests/test_hook.py",
    ),
    # ldconfig
    _mutant(
        "R31: a dynamic ldconfig",
        "apply/cache/ldconfig.py",
        "    if facts.interp is not None or facts.needed:",
        "    if False:",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: ldconfig of anybody",
        "apply/cache/ldconfig.py",
        "    if not userns.is_root(found.st_uid):",
        "    if False:",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: the copy of ldconfig can be written",
        "apply/cache/ldconfig.py",
        "        syscalls.seal(image)\n",
        "",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: ldconfig keeps ids and capabilities",
        "system/jail.py",
        "        privileges.become(jail.uid, jail.gid, fixed_groups=fixed_groups)\n",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: no seccomp filter",
        "system/jail.py",
        "        syscalls.set_seccomp_filter(jail.filter_program)\n",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: all of the container can be written",
        "system/jail.py",
        "    root = _locked_down_copy(jail.rootfs_fd)\n",
        '    root = syscalls.open_tree(jail.rootfs_fd, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH)\n',
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: the hook's descriptors",
        "system/jail.py",
        "        _close_all_but(image)\n",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R37: ldconfig outlives the hook",
        "system/jail.py",
        "        child.tie(1)\n",
        "",
        "integration/test_ldconfig.py",
    ),
    # Devices
    _mutant(
        "R32: links lead to the cgroup",
        "apply/cgroup.py",
        "syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV",
        "0",
        "tests/test_cgroup.py",
    ),
    _mutant(
        "R32: any cgroup",
        "apply/cgroup.py",
        "        cgroup.check_member(pid)\n",
        "",
        "tests/test_cgroup.py",
    ),
    _mutant(
        "R14: a part of a UUID is enough",
        "plan/selection.py",
        "        if lowered == gpu.uuid.lower() or",
        "        if gpu.uuid.lower().startswith(lowered) or",
        "tests/test_selection.py",
    ),
)


def mutated(mutant: Mutant, checkout: Path = CHECKOUT) -> str:
    """Return the text of the mutant's file with its change.

    :raises DoesNotApply: with the mutant's name and the file.
    """
    text = (checkout / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise DoesNotApply(
            f"{mutant.name}: {mutant.file} has its text {text.count(mutant.old)} times: the mutant no longer applies"
        )
    return text.replace(mutant.old, mutant.new)


def chosen(size: str, seed: int) -> tuple[Mutant, ...]:
    """All of them, or at size small every few, beginning with ``seed``."""
    return MUTANTS if size == "full" else MUTANTS[seed % _SMALL_SHARE :: _SMALL_SHARE]


class _Copy:
    """A copy of the program in which mutants are tested, one after the other."""

    def __init__(self, place: Path) -> None:
        self._place = place
        for name in _COPIED:
            source = CHECKOUT / name
            if source.is_dir():
                shutil.copytree(
                    source, place / name, ignore=shutil.ignore_patterns("__pycache__", "gallery")
                )
            else:
                shutil.copy(source, place / name)
        (place / "specs/nvgraft_specs/gallery").symlink_to(CHECKOUT / "specs/nvgraft_specs/gallery")

    def test(self, tests: Iterable[str]) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
            *tests,
        ]
        # Without its own byte code: two versions of a file may have been written in the same second.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command, cwd=self._place, capture_output=True, text=True, timeout=300, env=environment
        )

    def survivors(self, mutants: Iterable[Mutant]) -> list[str]:
        """Test each of ``mutants`` and say which were not noticed."""
        found = []
        for mutant in mutants:
            file = self._place / mutant.file
            before = file.read_text()
            file.write_text(mutated(mutant, self._place))
            done = self.test(mutant.tests)
            file.write_text(before)
            if done.returncode == 0:
                found.append(f"{mutant.name}: survived {', '.join(mutant.tests)}")
            elif done.returncode != 1:  # pytest: nothing was collected, or it was interrupted
                found.append(
                    f"{mutant.name}: its tests did not run: {done.stdout[-300:]}{done.stderr[-300:]}"
                )
        return found


def survivors(mutants: Sequence[Mutant]) -> list[str]:
    """Test ``mutants``; return a line for each that no test has noticed.

    :raises DoesNotApply: before any is tested.
    :raises AssertionError: when a test fails or is skipped without any mutant, and so shows nothing.
    """
    for mutant in mutants:
        mutated(mutant)
    workers = max(1, min(len(mutants), os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as directory:
        copies = [_Copy(Path(directory) / str(number)) for number in range(workers)]
        unchanged = copies[0].test(sorted({test for mutant in mutants for test in mutant.tests}))
        assert unchanged.returncode == 0, (
            f"the tests of the mutants fail without a mutant: {unchanged.stdout[-2000:]}{unchanged.stderr}"
        )
        with ThreadPoolExecutor(workers) as pool:
            shares = pool.map(
                lambda number: copies[number].survivors(mutants[number::workers]), range(workers)
            )
            return [line for share in shares for line in share]


def figures(size: str, seed: int) -> list[Figure]:
    """Test every mutant, or at size small some of them."""
    mutants = chosen(size, seed)
    left = survivors(mutants)
    killed = Figure(
        "mutants killed", f"{len(mutants) - len(left)} of {len(mutants)}", "all", not left
    )
    return [killed, *(Figure("mutant", line, "killed", False) for line in left)]
