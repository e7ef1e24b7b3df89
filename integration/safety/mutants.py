"""Mutants: without one safety measure, a test must fail (SECURITY T29).

Each measure is removed from a copy of the program. A mutant is one change in the code of one
function. The code must be there exactly once, so a measure cannot be changed without its mutant. If
no test notices its removal, a measure is worth nothing.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from safety.figures import Figure

CHECKOUT = Path(__file__).parent.parent.parent
#: The files that the tests need. Nothing is built and nothing is installed.
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
#: Size small runs one mutant of this many.
_SMALL_SHARE = 8


class Mutant(NamedTuple):
    """One measure and its removal: in ``anchor``, ``old`` becomes ``new``, and one of ``tests``
    must fail.

    ``anchor`` is the qualified name of a function or constant of the engine, in any module. ``old``
    is a part of its code as :func:`ast.unparse` writes it, without docstrings, comments and line
    breaks. A mutant thus survives moving and formatting, and no longer applies when the measure has
    changed.
    """

    name: str
    anchor: str
    old: str
    new: str
    tests: tuple[str, ...]


class Change(NamedTuple):
    """A mutant as a change of one file, named relative to the checkout."""

    file: str
    text: str


class DoesNotApply(Exception):
    """The code to replace is not there exactly once: the measure has changed, so change its mutant
    too.
    """


def _mutant(name: str, anchor: str, old: str, new: str, *tests: str) -> Mutant:
    full = tuple(test if "/" in test else f"{_IN_ROOT}::{test}" for test in tests)
    return Mutant(name, anchor, old, new, full)


_ENV = "tests/test_launch.py"
_STEPS = "tests/test_cdi_hook.py"
_PLACED = "tests/test_placement.py"

MUTANTS = (
    # Lookups
    _mutant(
        "R18: no RESOLVE_IN_ROOT",
        "_RESOLVE",
        "syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS",
        "syscalls.RESOLVE_NO_MAGICLINKS",
        "test_two_dots_do_not_lead_above_the_root",
    ),
    _mutant(
        "R18: no RESOLVE_NO_SYMLINKS",
        "_RESOLVE",
        "syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS",
        "syscalls.RESOLVE_NO_MAGICLINKS",
        "test_no_link_on_the_way_is_followed",
    ),
    _mutant(
        "R18: no RESOLVE flags at all",
        "open_in_root",
        "resolve |= _FOLLOW if follow else _RESOLVE\n    flags |= 0 if follow else os.O_NOFOLLOW",
        "",
        "test_no_link_on_the_way_is_followed",
        "test_two_dots_do_not_lead_above_the_root",
    ),
    _mutant(
        "R18: the loader cache step reads outside of the root",
        "_FOLLOW",
        "syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS",
        "syscalls.RESOLVE_NO_MAGICLINKS",
        "tests/test_native_cache_hostile.py",
    ),
    _mutant(
        "R27: the loader cache is written through what is there",
        "_PLACED_FLAGS",
        "os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_CLOEXEC",
        "tests/test_native_cache_hostile.py",
    ),
    _mutant(
        "R17: libraries of the image without end",
        "Bounds.count_library",
        "self._libraries > self._limits[2]",
        "False",
        "tests/test_native_cache_hostile.py",
    ),
    _mutant(
        "R21: the loader cache on a volume",
        "NativeCache._check_volume",
        "volume is not None",
        "False",
        "tests/test_native_cache_hostile.py",
    ),
    _mutant(
        "R18: EAGAIN is tried for ever",
        "open_in_root",
        "== _ATTEMPTS",
        "== 100 * _ATTEMPTS",
        "test_a_lookup_is_tried_again_when_the_kernel_asks_for_it",
    ),
    _mutant(
        "R18: EAGAIN without a limit of time",
        "open_in_root",
        "_ATTEMPTS or time.monotonic() > deadline",
        "_ATTEMPTS",
        "test_a_lookup_is_tried_again_when_the_kernel_asks_for_it",
    ),
    _mutant(
        "R18: the planner opens directories through links",
        "LiveTree.directory",
        "os.O_NOFOLLOW | os.O_DIRECTORY",
        "os.O_DIRECTORY",
        "test_the_planner_follows_no_link_that_has_replaced_a_directory",
    ),
    _mutant(
        "R17: the planner reads files through links",
        "LiveTree.open",
        "os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_CLOEXEC",
        "test_the_planner_reads_no_file_through_a_link_that_has_replaced_one",
    ),
    _mutant(
        "R17: the planner opens what is no regular file",
        "LiveTree.open",
        "not stat.S_ISREG(os.fstat(path_fd).st_mode)",
        "False",
        "tests/test_tree.py",
    ),
    _mutant(
        "R18: `..` above the root is taken",
        "Tree.resolve",
        "if not done:",
        "if False:",
        "tests/test_tree.py",
    ),
    _mutant(
        "R18: links without number",
        "MAX_LINKS",
        "MAX_LINKS = 20",
        "MAX_LINKS = 20000",
        "tests/test_tree.py",
    ),
    # The steps of nvgraft-cdi-hook
    _mutant(
        "R18: steps make directories through links that lead nowhere",
        "StepPlanner._directory",
        "node is None and path == place",
        "node is None",
        _STEPS,
    ),
    _mutant(
        "R21: steps make things on volumes",
        "StepPlanner._check_place",
        "volume is not None",
        "False",
        _STEPS,
    ),
    _mutant(
        "R28: the driver's parameters are covered through links",
        "StepPlanner._hide_params",
        "path != PARAMS or node.type != 'file'",
        "False",
        _STEPS,
    ),
    _mutant(
        "R10: any name of a directory becomes a line of ld.so.conf",
        "compat_folder",
        "path_problem(folder) or folder != folder.strip() or '#' in folder",
        "False",
        _STEPS,
    ),
    _mutant(
        "R41: CUDA's libraries are listed on a volume",
        "compat_folder",
        "(volume := target.volume(f'{folder}/x')) is not None",
        "(volume := '')",
        _STEPS,
    ),
    _mutant(
        "R11: a number of another pid namespace is taken for the container's process",
        "is_own_namespace",
        "outside or ",
        "",
        _STEPS,
    ),
    _mutant(
        "R11: the driver's parameters are hidden on the host",
        "_check",
        "container.standalone and _is_host_namespace()",
        "False",
        _STEPS,
    ),
    _mutant(
        "R12: the loader cache of a directory that is not a mount",
        "_check",
        "not container.is_mount_point()",
        "False",
        _STEPS,
    ),
    _mutant(
        "R45: a variable of the image leads to config.toml",
        "_take",
        "load_config(options.config, {}, ",
        "load_config(options.config, paths.environment(), ",
        _STEPS,
    ),
    _mutant(
        "R21: files are placed on volumes that came since",
        "Placement._look",
        "container.volume(syscalls.mount_id(fd)) is not None",
        "False",
        _PLACED,
    ),
    _mutant(
        "R21: permissions of volumes are changed",
        "Placement._change_mode",
        "(volume := container.volume(mount_id)) is not None",
        "(volume := '')",
        _PLACED,
    ),
    _mutant(
        "R35: permissions are changed without a word in the journal",
        "Placement._change_mode",
        "self._journal.announce([entry])",
        "pass",
        _PLACED,
    ),
    _mutant(
        "R33: permissions are not given back",
        "Placement._change_mode",
        "self._undo.add(f'mode of {action.path}', restore)",
        "pass",
        _PLACED,
    ),
    _mutant(
        "R33: a file that was replaced is not put back",
        "PlacedFile.write",
        "before.restore() if self._renamed else None",
        "None",
        _PLACED,
    ),
    _mutant(
        "R20: a link takes the place of any file",
        "Link.replaceable",
        "self._over_file or ",
        "True or ",
        "tests/test_executor.py",
    ),
    # Making
    _mutant(
        "R20: no O_EXCL",
        "_PLACEHOLDER_FLAGS",
        "os.O_EXCL | os.O_NOFOLLOW",
        "os.O_NOFOLLOW",
        "test_what_appears_where_a_placeholder_goes_is_kept",
    ),
    _mutant(
        "R20: neither O_EXCL nor O_NOFOLLOW",
        "_PLACEHOLDER_FLAGS",
        "os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_CLOEXEC",
        "test_what_appears_where_a_placeholder_goes_is_kept",
    ),
    _mutant(
        "R20: placeholders are truncated",
        "Targets._target",
        "self._check_target(os.fstat(fd), action",
        "os.close(os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=parent)",
        "test_an_existing_target_keeps_its_bytes_and_its_mode",
    ),
    _mutant(
        "R20: targets of any kind",
        "Targets._check_target",
        "not stat.S_ISREG(status.st_mode) and (not _KINDS[kind](status.st_mode))",
        "False",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R20: directories as targets of files",
        "Targets._check_target",
        "stat.S_ISDIR(status.st_mode) != (kind == 'dir')",
        "False",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R21: device targets of any number",
        "Targets._check_target",
        "((os.major(status.st_rdev), os.minor(status.st_rdev)) != action.rdev)",
        "False",
        "test_a_target_of_another_kind_is_refused",
    ),
    _mutant(
        "R21: things are made on volumes",
        "Targets._check_volume",
        "volume is not None",
        "False",
        "test_nothing_is_made_on_a_volume",
    ),
    _mutant(
        "R21: mounts that came since are taken",
        "Container.mount",
        "mount = self.mounts.get(mount_id)",
        "self.read_mounts()\n    mount = self.mounts.get(mount_id)",
        "test_a_mount_that_came_since_is_refused",
    ),
    _mutant(
        "R25: targets on shared mounts",
        "Targets._check_shared",
        "self._container.propagates(mount)",
        "False",
        "test_a_target_on_a_shared_mount_is_refused",
    ),
    _mutant(
        "R30: things belong to the host's root",
        "Owner.__enter__",
        "syscalls.set_fs_ids(self.uid, self.gid)",
        "",
        "test_what_is_made_belongs_to_the_container_s_root",
    ),
    _mutant(
        "R30: the ids are not taken back",
        "Owner.__exit__",
        "syscalls.set_fs_ids(os.geteuid(), os.getegid())",
        "pass",
        "test_what_is_made_belongs_to_the_container_s_root",
    ),
    _mutant(
        "R33: the undo removes what it did not make",
        "_Made._is_another",
        "(made.st_dev, made.st_ino) != (status.st_dev, status.st_ino)",
        "False",
        "test_the_undo_removes_nothing_that_came_in_the_place_of_what_was_made",
    ),
    # Sources
    _mutant(
        "R23: sources through links",
        "_clone",
        "syscalls.OPEN_TREE_CLONE | syscalls.AT_SYMLINK_NOFOLLOW",
        "syscalls.OPEN_TREE_CLONE",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources of any kind",
        "_check_source",
        "stat.S_IFMT(mode) != _TYPES[action.kind]",
        "False",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: devices of any number",
        "_check_source",
        "action.rdev is not None",
        "False",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources that others can write",
        "_check_source",
        "mode & 18 or not",
        "not",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: sources of other owners",
        "_check_source",
        "(mode & 18 or not userns.is_root(uid))",
        "mode & 18",
        "test_a_source_that_is_not_what_was_planned_is_refused",
    ),
    _mutant(
        "R23: mounts hear of the host's",
        "_set_options",
        "syscalls.mount_setattr(fd, attributes, syscalls.MS_PRIVATE,",
        "syscalls.mount_setattr(fd, attributes, 0,",
        "test_an_attached_mount_has_its_options_and_hears_of_no_other",
    ),
    _mutant(
        "R23: mounts without their restrictions",
        "_clone",
        "attributes(action.options)",
        "0",
        "test_an_attached_mount_has_its_options_and_hears_of_no_other",
    ),
    _mutant(
        "R27: tmpfs without limits",
        "_new_tmpfs",
        ", **_TMPFS_LIMITS",
        "",
        "test_a_tmpfs_of_ours_has_limits",
    ),
    # Attaching
    _mutant(
        "R22: targets are opened late",
        "_attach",
        "mount_fd, target_fd",
        "mount_fd, open_in_root(container.rootfs_fd, action.target, os.O_PATH)",
        "test_a_mount_of_ours_does_not_lead_a_later_target_elsewhere",
    ),
    _mutant(
        "R26: mounts are not looked at again",
        "_verify",
        "for action, mount_fd, mount_id in mounts:",
        "for action, mount_fd, mount_id in ():",
        "test_a_target_that_moves_away_is_noticed_and_undone",
    ),
    _mutant(
        "R26: any mount will do",
        "_verify",
        "there != mount_id or os.fstatvfs",
        "os.fstatvfs",
        "test_a_mount_that_is_covered_at_once_is_noticed_and_undone",
    ),
    _mutant(
        "R26: any options will do",
        "_verify",
        " or os.fstatvfs(mount_fd).f_flag & bits != bits",
        "",
        "test_a_mount_with_other_options_than_planned_is_noticed_and_undone",
    ),
    _mutant(
        "R29: the undo trusts the /proc that it finds",
        "_open_procfs",
        "syscalls.new_mount('proc', {'subset': 'pid'}, 0",
        "os.open('/proc', os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC",
        "test_the_undo_trusts_no_proc_that_it_finds",
    ),
    # The container
    _mutant(
        "R11: our own mount namespace",
        "open_container",
        "namespace(pid) == namespace('self')",
        "False",
        "test_a_process_in_our_own_mount_namespace_is_no_container",
    ),
    _mutant(
        "R11: init, ourselves, our parent",
        "hold_process",
        "not 1 < pid <= _PID_MAX or pid in {os.getpid(), os.getppid()}",
        "False",
        "tests/test_container.py",
    ),
    _mutant(
        "R11: threads of the kernel",
        "hold_process",
        "_has_no_program(pid)",
        "False",
        "tests/test_container.py",
        "test_a_thread_of_the_kernel_is_no_container",
    ),
    _mutant(
        "R11: the namespace is entered by number",
        "enter",
        "syscalls.setns(pidfd",
        "syscalls.setns(os.open(f'/proc/{container.pid}/ns/mnt', os.O_RDONLY)",
        "test_a_container_that_has_ended_is_never_taken_for_the_next_one_of_its_number",
    ),
    _mutant(
        "R5: threads are not counted",
        "enter",
        "threads != 1",
        "False",
        "tests/test_container.py::test_a_second_thread_is_refused_before_setns",
    ),
    _mutant(
        "R12: the host's root",
        "check_no_host_root",
        "is_host_root(container.rootfs_fd)",
        "False",
        "test_the_host_s_root_by_another_name_is_refused",
    ),
    _mutant(
        "R12: any directory",
        "open_container",
        "container.is_mount_point()",
        "True",
        "test_a_rootfs_that_is_no_mount_point_is_refused",
    ),
    _mutant(
        "R12: a directory without mounts for a process that somebody else has started",
        "has_same_starter",
        "return ancestor > 1",
        "return True",
        "tests/test_container.py",
    ),
    _mutant(
        "R12: magic links lead to the rootfs",
        "_open_rootfs",
        "syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS",
        "syscalls.RESOLVE_IN_ROOT",
        "test_a_magic_link_does_not_lead_to_a_rootfs",
    ),
    _mutant(
        "R12: the rootfs is looked up in our own namespace",
        "_open_rootfs",
        "syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS",
        "0",
        "test_a_rootfs_that_is_no_mount_point_is_refused",
        "test_a_magic_link_does_not_lead_to_a_rootfs",
    ),
    _mutant(
        "R28: any directory of a procfs",
        "Container.is_procfs",
        "'proc' and (os.fstat(fd).st_ino == _PROC_ROOT_INODE)",
        "'proc'",
        "test_a_proc_that_is_not_the_root_of_a_procfs_is_refused",
    ),
    # The process
    _mutant(
        "R3: LD_PRELOAD is not looked for",
        "LOADER_VARIABLES",
        "'LD_PRELOAD', 'LD_AUDIT'",
        "'LD_AUDIT'",
        "tests/test_launch.py",
    ),
    _mutant(
        "R3: an interpreter that is not isolated",
        "check_interpreter",
        "not (sys.flags.isolated and sys.flags.no_site)",
        "False",
        "tests/test_launch.py",
    ),
    _mutant(
        "R4: inherited descriptors stay open",
        "reset_process",
        "syscalls.close_range(3, ~0)",
        "",
        "tests/test_launch.py",
    ),
    _mutant(
        "R4: the inherited working directory",
        "reset_process",
        "os.chdir('/')",
        "",
        "tests/test_launch.py",
    ),
    _mutant(
        "R4: inherited signal masks",
        "reset_process",
        "signal.pthread_sigmask(signal.SIG_SETMASK, ())",
        "",
        "tests/test_launch.py",
    ),
    _mutant(
        "R4: no deadline",
        "set_deadline",
        "signal.setitimer(signal.ITIMER_REAL, seconds)",
        "pass",
        "tests/test_launch.py",
    ),
    _mutant(
        "R4: others may trace it",
        "reset_process",
        "syscalls.set_dumpable(False)",
        "",
        "tests/test_launch.py",
    ),
    _mutant(
        "R13: config.toml of anybody",
        "_check",
        "not userns.is_root(status.st_uid) and status.st_uid != os.geteuid()",
        "False",
        "tests/test_trusted.py",
    ),
    _mutant(
        "R13: config.toml that others can write",
        "_check",
        "status.st_mode & 18",
        "False",
        "tests/test_trusted.py",
    ),
    _mutant(
        "R40: a set-user-ID hook",
        "check_identity",
        "len(set(os.getresuid())) > 1 or len(set(os.getresgid())) > 1 or "
        "syscalls.is_secure_execution()",
        "False",
        "tests/test_launch.py",
    ),
    _mutant(
        "R36: no lock",
        "_try_lock",
        "syscalls.flock(fd, syscalls.LOCK_EX | syscalls.LOCK_NB)",
        "pass",
        "tests/test_lock.py",
    ),
    _mutant(
        "R36: a lock that was removed counts",
        "_is_current",
        "(current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino)",
        "True",
        "tests/test_lock.py",
    ),
    _mutant(
        "R42: FUSE volumes are looked at",
        "Container.read_mounts",
        "self.fuse and (not allow_fuse())",
        "False",
        "tests/test_fuse.py",
    ),
    _mutant(
        "R42: any root file system on FUSE",
        "shunned_volumes",
        "not (userns.inside() or is_of_engine(mount))",
        "False",
        "tests/test_fuse.py",
    ),
    _mutant(
        "R42: the planner looks at FUSE volumes",
        "ShunningTree.demand",
        "raise OnFuse(self.label + path, volume)",
        "pass",
        "tests/test_fuse.py",
    ),
    _mutant(
        "R42: the loader cache step looks at files that are FUSE volumes",
        "ShunningRootfs.hold",
        "mount is not None",
        "False",
        "tests/test_fuse.py",
    ),
    _mutant(
        "R43: files of other types under /run/nvgraft",
        "unlike_ours",
        "not stat.S_ISREG(status.st_mode)",
        "False",
        "tests/test_recover.py",
    ),
    _mutant(
        "R43: files of other users under /run/nvgraft",
        "unlike_ours",
        "status.st_uid != os.geteuid()",
        "False",
        "tests/test_kept.py",
    ),
    _mutant(
        "R43: files under /run/nvgraft that others can write",
        "unlike_ours",
        "status.st_mode & forbidden",
        "False",
        "tests/test_recover.py",
    ),
    _mutant(
        "R43: any number of journals",
        "_drop_oldest",
        "count <= left_journal.KEPT and size <= left_journal.KEPT_BYTES",
        "True",
        "tests/test_recover.py",
    ),
    _mutant(
        "R43: journals of any size",
        "Journal._write",
        "self._size > SIZE_LIMIT",
        "False",
        "tests/test_journal.py",
    ),
    _mutant(
        "R38: control characters reach a terminal",
        "Refusal.line",
        "printable(self.reference_line(program)",
        "self.reference_line(program",
        "tests/test_hook.py",
    ),
    # ldconfig
    _mutant(
        "R31: a dynamic ldconfig",
        "_check_static",
        "facts.interp is not None or facts.needed",
        "False",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: ldconfig of anybody",
        "_check_owner",
        "not userns.is_root(status.st_uid)",
        "False",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: the copy of ldconfig can be written",
        "_sealed_copy",
        "syscalls.seal(image)",
        "",
        "tests/test_ldconfig.py",
    ),
    _mutant(
        "R31: ldconfig keeps ids and capabilities",
        "_become",
        "privileges.become(jail.uid, jail.gid, fixed_groups=fixed_groups)",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: no seccomp filter",
        "_become",
        "syscalls.set_seccomp_filter(jail.filter_program)",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: all of the container can be written",
        "_enter_root",
        "_locked_down_copy(jail.rootfs_fd",
        "syscalls.open_tree(jail.rootfs_fd, '', syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE "
        "| syscalls.AT_EMPTY_PATH",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R31: the hook's descriptors",
        "_become",
        "_close_all_but(image)",
        "",
        "integration/test_ldconfig.py",
    ),
    _mutant(
        "R37: ldconfig outlives the hook",
        "_become",
        "child.tie(1)",
        "",
        "integration/test_ldconfig.py",
    ),
    # Devices
    _mutant(
        "R32: links lead to the cgroup",
        "_open_cgroup",
        "syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV",
        "0",
        "tests/test_cgroup.py",
    ),
    _mutant(
        "R32: any cgroup", "find_cgroup", "cgroup.check_member(pid)", "", "tests/test_cgroup.py"
    ),
    _mutant(
        "R14: a part of a UUID is enough",
        "_find",
        "lowered == gpu.uuid.lower(",
        "gpu.uuid.lower().startswith(lowered",
        "tests/test_device_selection.py",
    ),
)


def _definitions(
    scope: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each function and each constant of a module or class with its qualified name."""
    for node in scope.body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield prefix + node.targets[0].id, node


def _code(node: ast.stmt) -> str:
    """Return the code of a definition as ``ast.unparse`` writes it, without docstrings."""
    tree = ast.parse(ast.unparse(node))
    for inner in ast.walk(tree):
        if isinstance(inner, ast.FunctionDef) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


@cache
def _engine(checkout: Path) -> dict[str, list[tuple[Path, ast.stmt]]]:
    """Return where each qualified name of the engine is defined."""
    places: dict[str, list[tuple[Path, ast.stmt]]] = {}
    for path in sorted((checkout / "hook/nvgraft").rglob("*.py")):
        for name, node in _definitions(ast.parse(path.read_text())):
            places.setdefault(name, []).append((path, node))
    return places


def mutated(mutant: Mutant) -> Change:
    """Return the mutant's file with its change.

    :raises DoesNotApply: with the mutant's name and its anchor.
    """
    places = _engine(CHECKOUT).get(mutant.anchor, [])
    matches = [
        (path, node, code) for path, node in places for code in [_code(node)] if mutant.old in code
    ]
    times = sum(code.count(mutant.old) for _, _, code in matches)
    if times != 1:
        raise DoesNotApply(
            f"{mutant.name}: {mutant.anchor} has its code {times} times: the mutant no longer "
            "applies"
        )
    path, node, code = matches[0]
    lines = path.read_text().splitlines(keepends=True)
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    changed = textwrap.indent(code.replace(mutant.old, mutant.new), " " * node.col_offset)
    # Every test would notice a mutant that cannot be parsed.
    ast.parse(textwrap.dedent(changed))
    lines[start : node.end_lineno] = [changed + "\n"]
    return Change(str(path.relative_to(CHECKOUT)), "".join(lines))


def chosen(size: str, seed: int) -> tuple[Mutant, ...]:
    """Return all mutants, or at size small every few of them, beginning with ``seed``."""
    return MUTANTS if size == "full" else MUTANTS[seed % _SMALL_SHARE :: _SMALL_SHARE]


class _Copy:
    """A copy of the program, in which mutants are tested one after another."""

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
        # Write no byte code: two versions of a file may have been written in the same second.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command, cwd=self._place, capture_output=True, text=True, timeout=300, env=environment
        )

    def survivors(self, mutants: Iterable[Mutant]) -> list[str]:
        """Test each of ``mutants`` and return those that were not noticed."""
        survived = []
        for mutant in mutants:
            change = mutated(mutant)
            file = self._place / change.file
            before = file.read_text()
            file.write_text(change.text)
            done = self.test(mutant.tests)
            file.write_text(before)
            if done.returncode == 0:
                survived.append(f"{mutant.name}: survived {', '.join(mutant.tests)}")
            elif done.returncode != 1:  # pytest collected nothing, or was interrupted
                survived.append(
                    f"{mutant.name}: its tests did not run: "
                    f"{done.stdout[-300:]}{done.stderr[-300:]}"
                )
        return survived


def survivors(mutants: Sequence[Mutant]) -> list[str]:
    """Test ``mutants``; return a line for each that no test has noticed.

    :raises DoesNotApply: before any is tested.
    :raises AssertionError: when a test fails or is skipped without a mutant, and so proves nothing.
    """
    for mutant in mutants:
        mutated(mutant)
    workers = max(1, min(len(mutants), os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as directory:
        copies = [_Copy(Path(directory) / str(number)) for number in range(workers)]
        unchanged = copies[0].test(sorted({test for mutant in mutants for test in mutant.tests}))
        assert unchanged.returncode == 0, (
            "the tests of the mutants fail without a mutant: "
            f"{unchanged.stdout[-2000:]}{unchanged.stderr}"
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
