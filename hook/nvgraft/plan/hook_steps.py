"""Plan the steps of nvgraft-cdi-hook: what each sub-command makes in a container's root file
system.

The steps are planned one after the other, each in the tree that the former ones leave. Links are
followed as for a process in the container: inside its root, where ``..`` at the root is the root.
A directory is made where nothing is; a link that leads nowhere is refused instead, as in the
reference. Nothing is made on a volume (SECURITY R21).
"""

from __future__ import annotations

import errno
import zlib

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.finding import Finding
from nvgraft.container.target import OnVolume
from nvgraft.formats import ld_so_conf
from nvgraft.formats.tree import NOT_A_DIRECTORY, Node, PathError, Tree
from nvgraft.plan.actions import (
    Action,
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    UpdateLoaderCache,
    Why,
)
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.request import hook_steps as request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.container.target import Target
    from nvgraft.request.hook_steps import HookStep

CONF_DIRECTORY = "/etc/ld.so.conf.d"
_INCLUDE = f"include {CONF_DIRECTORY}/*.conf\n"

#: What a loader of glibc searches by default, by the reference's table. ``{}`` is the machine.
_DEBIAN_DIRECTORIES = ("/lib/{}-linux-gnu", "/usr/lib/{}-linux-gnu", "/lib", "/usr/lib")
_OTHER_DIRECTORIES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
_X32_DIRECTORIES = ("/libx32", "/usr/libx32")

PARAMS = "/proc/driver/nvidia/params"
_ALLOWED, _FORBIDDEN = "ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"
_PARAMS_OPTIONS = ("nodev", "noexec", "nosuid", "ro")

_PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
_PROFILE = f"{_PROFILES}/10-container.conf"
#: The number of GPUs that the profile's mask has bits for.
_MASK_BITS = 64

#: Bytes of the largest file of a container that gets more lines, and of the driver's parameters.
TEXT_LIMIT = 64 << 10
#: Bytes and levels of the longest path in which something is made (SECURITY R10).
_LONGEST_PATH = 4096 - 256
_MOST_LEVELS = 128

_CHANGES = "let nothing change the image while it is started"
_IN_THE_WAY = "the image has something in the place of this {}: rebuild the image without it"


class _Draft(Tree):
    """The container's tree as the steps that were planned so far leave it."""

    closed = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.label = tree.label
        self.bounds = tree.bounds
        self._nodes: dict[str, Node] = {}
        self._texts: dict[str, bytes] = {}

    def put(self, path: str, node: Node, text: bytes = b"") -> None:
        """Note what a step makes at a resolved ``path``."""
        self._nodes[path] = node
        self._texts[path] = text

    def lstat(self, path: str) -> Node | None:
        return self._nodes.get(path) or self._tree.lstat(path)

    def listdir(self, path: str) -> list[str]:
        made = [paths.basename(name) for name in self._nodes if paths.dirname(name) == path]
        return sorted({*self._tree.listdir(path), *made})

    def read(self, path: str, limit: int) -> bytes:
        if path in self._texts:
            return self._texts[path]
        return self._tree.read(path, limit)

    def note(self, path: str, section: str, owner: bytes) -> bytes:
        return self._tree.note(path, section, owner)


class StepPlanner:
    """Plans the steps for one container.

    :param params: the text of the host's PARAMS; "" where there is none.
    """

    def __init__(self, target: Target, params: str) -> None:
        self._target = target
        self._tree = _Draft(target.tree)
        self._params = params
        self._actions: list[Action] = []
        self._findings: list[Finding] = []
        self._searched: dict[str, None] = {}
        self._updates: Why | None = None

    def plan(self, steps: Sequence[HookStep]) -> Plan:
        """Return the plan for ``steps``. Optional things that cannot be made become findings.

        :raises Refusal: a step cannot be carried out; nothing may be done then.
        """
        for step in steps:
            if isinstance(step, request.CreateSymlinks):
                for target, path in step.links:
                    self._link(target, path)
            elif isinstance(step, request.EnableCudaCompat):
                self._enable_compat(step)
            elif isinstance(step, request.UpdateLdcache):
                self._update_ldcache(step)
            elif isinstance(step, request.DisableDeviceNodeModification):
                self._hide_params()
            elif isinstance(step, request.UpdateApplicationProfile):
                self._write_profile()
            elif isinstance(step, request.Chmod):
                for path in step.paths:
                    self._change_mode(path, step)
        if self._updates is not None:
            directories = tuple(self._configured())
            self._actions.append(
                UpdateLoaderCache(directories, self._updates, searched=tuple(self._searched))
            )
        return Plan("inject", "steps", tuple(self._actions), findings=tuple(self._findings))

    # ---- create-symlinks

    def _link(self, target: str, requested: str) -> None:
        path = paths.clean(f"/{requested}")
        why = Why("", requested, "programs open it by this name")
        failed = f"failed to create link [{target} {requested}]"
        if path == "/":
            raise Refusal("", f"{failed}: {self._shown(path)}: is a directory", "name a link")
        parent, name = paths.split(path)
        try:
            directory = self._directory(parent, 0o755, why, failed)
            path = paths.join(directory, name)
            node = self._tree.lstat(path)
            if node is not None and node.type == "symlink" and node.target == target:
                return
            if node is not None and node.type == "dir":
                raise Refusal(
                    "",
                    f"{failed}: {self._shown(path)}: is a directory",
                    _IN_THE_WAY.format("link"),
                )
            if node is not None and node.type not in {"symlink", "file"}:
                raise Refusal(
                    "", f"{failed}: {self._shown(path)}: file exists", _IN_THE_WAY.format("link")
                )
            self._check_place(path, failed)
        except OnVolume as refusal:
            self._leave_out("link-skipped", path, refusal)
            return
        self._forget(path)
        replaces = node is not None
        self._actions.append(Symlink(path, target, why, replaces=replaces, over_file=replaces))
        self._tree.put(path, Node("symlink", target=target))

    def _forget(self, path: str) -> None:
        """Drop an earlier link at ``path``: the last one of several counts."""
        self._actions = [
            action
            for action in self._actions
            if not (isinstance(action, Symlink) and action.path == path)
        ]

    # ---- enable-cuda-compat

    def _enable_compat(self, step: request.EnableCudaCompat) -> None:
        from nvgraft.plan.forward_compat import compat_folder

        folder, findings = compat_folder(self._target, self._tree, step)
        self._findings += findings
        if folder is None:
            return
        why = Why("compute", folder, "its libcuda is newer than the driver's")
        try:
            self._add_conf("00-compat", f"{folder}\n", why)
        except OnVolume as refusal:
            self._leave_out("cuda-compat-on-volume", CONF_DIRECTORY, refusal)

    # ---- update-ldcache

    def _update_ldcache(self, step: request.UpdateLdcache) -> None:
        why = Why("", request.UpdateLdcache.name, "the loader finds the driver's libraries by it")
        if self._tree.lstat("/proc") is None:
            self._make_directory("/proc", 0o755, why, "error mounting /proc")
        directory, name = paths.split(ld_so_conf.PATH)
        directory = self._directory(directory, 0o755, why, "failed to ensure ld.so.conf file")
        path = f"{directory}/{name}"
        if self._tree.lstat(path) is None and not self._target.is_volume(path):
            self._place(path, 0o644, _INCLUDE, why)
        known = {*self._configured(), *self._system_directories()}
        folders = [folder for folder in step.folders if folder not in known]
        system = "".join(f"{path}\n" for path in self._system_directories())
        added = "".join(f"{path}\n" for path in folders)
        if folders:
            self._add_conf("00-nvgraft", added, why)
        self._add_conf("zz-nvgraft", system, why)
        self._add_musl_path((added, system), why)
        self._searched |= dict.fromkeys(step.folders)
        self._updates = why

    def _system_directories(self) -> list[str]:
        machine = self._target.machine
        if self._tree.is_there("/etc/debian_version"):
            return [path.format(machine) for path in _DEBIAN_DIRECTORIES]
        wide = _X32_DIRECTORIES if machine == "x86_64" else ()
        return [*_OTHER_DIRECTORIES, *wide]

    def _configured(self) -> list[str]:
        """Return the directories of ld.so.conf, with those of planned files."""
        configuration = ld_so_conf.Configuration(self._read, self._names)
        configuration.load()
        return configuration.directories

    def _read(self, path: str) -> bytes:
        try:
            return self._tree.read(self._tree.resolve(path), ld_so_conf.FILE_LIMIT)
        except PathError as error:
            raise FileNotFoundError(path) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise
            raise FileNotFoundError(path) from error  # ldconfig skips what is not a file

    def _names(self, path: str) -> list[str]:
        try:
            resolved = self._tree.resolve(path)
        except PathError:
            return []
        return [] if self._target.volume(f"{resolved}/x") else self._tree.listdir(resolved)

    def _add_musl_path(self, parts: Sequence[str], why: Why) -> None:
        """Add the lines that musl's file lacks, in an image with Alpine's name.

        A restarted container has them already.
        """
        if not self._tree.is_there("/etc/alpine-release"):
            return
        failed = "failed to update .path file for musl"
        path = self._resolve(f"/etc/ld-musl-{self._target.machine}.path", failed)
        text = ""
        if self._tree.lstat(path) is not None:
            try:
                text = self._tree.read(path, TEXT_LIMIT).decode("utf-8", "surrogateescape")
            except OSError as error:
                raise Refusal(
                    "", f"{failed}: {self._shown(path)}: {reason(error)}", _CHANGES
                ) from error
        whole = text + "".join(part for part in parts if part not in text)
        self._place(path, 0o644, whole, why)

    # ---- disable-device-node-modification

    def _hide_params(self) -> None:
        text = hidden_params(self._params)
        if text is None:
            return
        failed = "failed to mount modified params file"
        path = self._resolve(PARAMS, failed)
        node = self._tree.lstat(path)
        if node is None:
            return  # the container has no parameters that would have to be hidden
        if path != PARAMS or node.type != "file":
            text = f"{failed}: open {self._shown(PARAMS)}: not a regular file"
            raise Refusal("", text, "mount a procfs at /proc in config.json")
        if self._has(PARAMS, text.encode()):
            return  # an earlier run has covered it
        why = Why("", PARAMS, "the driver's programs make no device nodes in the container")
        self._actions.append(
            Bind("file", "made", "", PARAMS, _PARAMS_OPTIONS, 0o444, why, content=text)
        )

    # ---- update-application-profile

    def _write_profile(self) -> None:
        mask = 0
        for minor in self._gpu_minors():
            if minor < _MASK_BITS:
                mask |= 1 << minor
            else:
                message = f"GPU with the minor number {minor} is not in the application profile"
                hint = f"it has {_MASK_BITS} bits: give the container GPUs with lower numbers"
                self._findings.append(Finding("profile-minor", "warning", message, hint))
        if not mask:
            return
        why = Why("graphics", _PROFILE, "EGL shows the container's GPUs alone")
        failed = "failed to write application profile"
        text = (
            f'{{"profiles":[{{"name":"_container_","settings":["EGLVisibleDGPUDevices",{mask:#x}]'
            f'}}],"rules":[{{"pattern":[],"profile":"_container_"}}]}}'
        )
        try:
            directory = self._directory(_PROFILES, 0o555, why, failed)
            path = self._resolve(f"{directory}/{paths.basename(_PROFILE)}", failed)
            self._place(path, 0o444, text, why)
        except OnVolume as refusal:
            self._leave_out("profile-on-volume", _PROFILE, refusal)

    def _gpu_minors(self) -> list[int]:
        """Return the minor numbers of the nodes /dev/nvidiaN."""
        try:
            directory = self._tree.resolve("/dev")
            names = [
                name
                for name in self._tree.listdir(directory)
                if name.startswith("nvidia") and name[len("nvidia") :].isdecimal()
            ]
            nodes = [self._tree.lstat(f"{directory}/{name}") for name in names]
        except (PathError, OnVolume):
            return []
        return [
            node.rdev[1] for node in nodes if node is not None and node.type == "char" and node.rdev
        ]

    # ---- chmod

    def _change_mode(self, requested: str, step: request.Chmod) -> None:
        if paths.clean(requested.lstrip("/")).startswith(".."):
            return  # for the reference this is a file outside of the root
        try:
            path, node = self._tree.find(paths.clean(f"/{requested}"))
        except PathError:
            return  # it does not exist for a process in the container
        if node is not None and (node.mode & 0o7777 != step.mode or path == "/"):
            self._actions.append(ChangeMode(path, step.mode, Why("", requested, "of the edit")))

    # ---- the tree

    def _shown(self, path: str) -> str:
        return self._target.rootfs + path

    def _resolve(self, path: str, failed: str) -> str:
        try:
            resolved = self._tree.resolve(path)
        except PathError as error:
            hint = "use another image: its symbolic links lead in a circle, or through a file"
            raise Refusal("", f"{failed}: {error.text}", hint) from error
        if len(resolved.encode()) > _LONGEST_PATH or resolved.count("/") > _MOST_LEVELS:
            text = f"{failed}: {self._shown(path)}: file name too long"
            raise Refusal("", text, "use another image: its symbolic links lead too deep")
        return resolved

    def _directory(self, requested: str, mode: int, why: Why, failed: str) -> str:
        """Return the path to which the directory ``requested`` leads; plan it and its parents.

        :raises Refusal: a link on the way leads nowhere, or something is in the way.
        """
        if requested == "/":
            return "/"
        parent, name = paths.split(requested)
        place = paths.join(self._directory(parent, mode, why, failed), name)
        path = self._resolve(place, failed)
        node = self._tree.lstat(path)
        if node is None and self._target.is_volume(path):
            return path
        if node is None and path == place:
            self._make_directory(path, mode, why, failed)
        elif node is None or node.type != "dir":
            # A link that leads nowhere is an error, too: its target is not made.
            text = f"{failed}: {self._shown(requested)}: {NOT_A_DIRECTORY}"
            raise Refusal("", text, _IN_THE_WAY.format("directory"))
        return path

    def _make_directory(self, path: str, mode: int, why: Why, failed: str) -> None:
        self._check_place(path, failed)
        self._actions.append(MakeDirectory(path, mode, why))
        self._tree.put(path, Node("dir", mode))

    def _add_conf(self, prefix: str, text: str, why: Why) -> None:
        """Plan a file of CONF_DIRECTORY, named after its text: the next start finds it there."""
        failed = f"failed to write {prefix}-*.conf drop-in: failed to create ld.so.conf.d"
        directory = self._directory(CONF_DIRECTORY, 0o755, why, failed)
        number = zlib.crc32(paths.fsencode(text))
        self._place(f"{directory}/{prefix}-{number:08x}.conf", 0o644, text, why)

    def _place(self, path: str, mode: int, text: str, why: Why) -> None:
        """Plan a file with ``text`` at the resolved ``path``, unless it has that text."""
        failed = "failed to create file"
        data = text.encode("utf-8", "surrogateescape")
        node = self._tree.lstat(path)
        if node is not None and node.type == "file" and self._has(path, data):
            return
        if node is not None and node.type not in {"file", "symlink"}:
            text = f"{failed}: {self._shown(path)}: file exists"
            raise Refusal("", text, _IN_THE_WAY.format("file"))
        self._check_place(path, failed)
        self._actions.append(PlaceFile(path, mode, text, why))
        self._tree.put(path, Node("file", mode, size=len(data)), data)

    def _has(self, path: str, data: bytes) -> bool:
        """Tell whether the file at a resolved ``path`` has the content ``data``."""
        try:
            return self._tree.read(path, TEXT_LIMIT) == data
        except OSError:
            return False

    def _check_place(self, path: str, failed: str) -> None:
        """Check that something may be made, or replaced, at the resolved ``path``.

        :raises OnVolume: it is on a volume.
        :raises Refusal: a volume is mounted on it, or it is read-only.
        """
        volume = self._target.volume(paths.join(paths.dirname(path), "x"))
        if volume is not None:
            text = f"{failed}: {self._shown(path)}: it would be made on the volume {volume}"
            raise OnVolume(text, volume, "mount the volume elsewhere")
        if self._target.is_volume(path):
            text = f"{failed}: {self._shown(path)}: device or resource busy"
            raise Refusal("", text, f"remove the volume that is mounted on {path}")
        if self._target.is_read_only(path):
            text = f"{failed}: {self._shown(path)}: read-only file system"
            raise Refusal("", text, "let the engine make the root file system read-only later")

    def _leave_out(self, finding: str, path: str, refusal: OnVolume) -> None:
        """Note that something optional would be on a volume. Nothing was planned for it: what is
        below a volume's mount point is on the volume, too.
        """
        message = f"{path} is left out: {refusal.text}"
        self._findings.append(Finding(finding, "warning", message, refusal.hint))


def hidden_params(text: str) -> str | None:
    """Return the driver's parameters with ModifyDeviceFiles off; None if they need no change."""
    lines = text.removesuffix("\n").split("\n")
    if _ALLOWED not in lines or _FORBIDDEN in lines:
        return None
    return "".join(f"{_FORBIDDEN if line == _ALLOWED else line}\n" for line in lines)
