"""A plan: an ordered list of inert actions, each with its reason.

Plans are values: two plans are equal if all their fields are. :mod:`nvgraft.plan.document` writes
them.
"""

from __future__ import annotations

from nvgraft.base.finding import Finding
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from nvgraft.request.request import Request

    Origin = Literal["driver", "dev", "proc", "made"]


class Why(Value):
    """The reason for an action: the capability that requires it, the catalogue row, and how the
    file was found.
    """

    def __init__(self, capability: str, row: str, found: str) -> None:
        self.capability = capability
        self.row = row
        self.found = found


class Action(Value):
    """One action; ``op`` is its kind in the document, ``why`` its reason.

    An action without ``op`` is in no document: only steps of nvgraft-cdi-hook have it. ``placed``
    says that :mod:`nvgraft.apply.placement` carries it out.
    """

    op = ""
    placed = False
    why: Why


class MakeDirectory(Action):
    """Make one directory. Its parent exists, or an earlier action makes it."""

    op = "dir"

    def __init__(self, path: str, mode: int, why: Why) -> None:
        self.path = path
        self.mode = mode
        self.why = why


class Bind(Action):
    """Bind ``path`` of the host, below the driver root ``root``, on ``target``. The placeholder has
    the mode ``mode``.

    ``kind`` is file, dir, device or socket. ``origin`` says whether the source is one of the
    driver's files ("driver"), device nodes ("dev") or /proc entries ("proc"), or a new file with
    ``content`` on a tmpfs of its own ("made"). ``placeholder`` says that nothing exists at
    ``target``, so that the applier makes a file there first. ``size`` (bytes) is for people.
    Neither of both is part of the document.
    """

    op = "mount"

    def __init__(
        self,
        kind: str,
        origin: Origin,
        path: str,
        target: str,
        options: tuple[str, ...],
        mode: int,
        why: Why,
        rdev: tuple[int, int] | None = None,
        size: int = 0,
        root: str = "",
        *,
        placeholder: bool = False,
        content: str = "",
    ) -> None:
        self.kind = kind
        self.origin = origin
        self.path = path
        self.target = target
        self.options = options
        self.mode = mode
        self.why = why
        self.rdev = rdev
        self.size = size
        self.root = root
        self.placeholder = placeholder
        self.content = content

    @property
    def source(self) -> str:
        """The source as in documents and messages: /dev and /proc entries without the driver
        root.
        """
        return self.host_path if self.origin == "driver" else self.path

    @property
    def host_path(self) -> str:
        """The source's path on the host."""
        return self.root + self.path


class Tmpfs(Action):
    """Mount a new tmpfs on ``target``. It has the directories and files that later actions make in
    it.
    """

    op = "mount"

    def __init__(self, target: str, options: tuple[str, ...], mode: int, why: Why) -> None:
        self.target = target
        self.options = options
        self.mode = mode
        self.why = why


#: The actions that mount something.
MOUNTS = (Bind, Tmpfs)


class WriteFile(Action):
    """Make a file with ``content`` inside a planned tmpfs, before the tmpfs is attached."""

    op = "file"

    def __init__(self, path: str, mode: int, content: str, why: Why) -> None:
        self.path = path
        self.mode = mode
        self.content = content
        self.why = why


class Symlink(Action):
    """Make a symbolic link at a path where nothing exists, or, with ``replaces``, in the place of
    another link; with ``over_file`` also in the place of a regular file.
    """

    op = "symlink"

    def __init__(
        self, path: str, target: str, why: Why, *, replaces: bool = False, over_file: bool = False
    ) -> None:
        self.path = path
        self.target = target
        self.why = why
        self.replaces = replaces
        self.over_file = over_file


class AllowDevice(Action):
    """Allow the container's cgroup to open a character device; ``access`` has the letters r and w.

    Permission to create nodes (m) is never granted (reference behaviour 7.2 and 7.3).
    """

    op = "allow-device"
    type = "c"

    def __init__(self, major: int, minor: int, why: Why, access: str = "rw") -> None:
        if not access or access.strip("rw"):
            raise ValueError(f"no such access to a device: {access}")
        self.major = major
        self.minor = minor
        self.access = access
        self.why = why


class MountedLibrary(Value):
    """A library of the driver in the container: its directory and name, and its SONAME and flags in
    a loader cache.

    ``soname`` is the file's name if the library has no SONAME, and "" for a file that no loader
    accepts.
    """

    def __init__(self, directory: str, name: str, soname: str, flags: int) -> None:
        self.directory = directory
        self.name = name
        self.soname = soname
        self.flags = flags

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"


class UpdateLoaderCache(Action):
    """Rebuild the container's loader cache with ``directories`` besides those of its own
    configuration.

    ``libraries`` follow from the mounts before. Therefore they are not part of the document.
    ``searched``, if given, are those of the directories that have the driver's libraries; they are
    searched whatever the cache knows.
    """

    op = "ldcache"

    def __init__(
        self,
        directories: tuple[str, ...],
        why: Why,
        libraries: tuple[MountedLibrary, ...] = (),
        searched: tuple[str, ...] | None = None,
    ) -> None:
        self.directories = directories
        self.why = why
        self.libraries = libraries
        self.searched = searched


class PlanHost(Value):
    """The host that a plan is for; ``root`` is the driver root."""

    def __init__(self, *, name: str, root: str, driver_version: str, cuda_version: str) -> None:
        self.name = name
        self.root = root
        self.driver_version = driver_version
        self.cuda_version = cuda_version


class PlanTarget(Value):
    """The root file system that a plan is for: its path, its directories for the driver's files,
    and its owner.
    """

    def __init__(
        self, *, rootfs: str, libs_dir: str, libs32_dir: str, bins_dir: str, uid: int, gid: int
    ) -> None:
        self.rootfs = rootfs
        self.libs_dir = libs_dir
        self.libs32_dir = libs32_dir
        self.bins_dir = bins_dir
        self.uid = uid
        self.gid = gid


class Plan(Value):
    """A decision and its actions. ``decision`` is inject, skip or refuse; only inject has
    actions.
    """

    def __init__(
        self,
        decision: str,
        reason: str,
        actions: tuple[Action, ...] = (),
        links: tuple[tuple[str, str], ...] = (),
        findings: tuple[Finding, ...] = (),
    ) -> None:
        self.decision = decision
        self.reason = reason
        self.actions = actions
        self.links = links
        self.findings = findings


class Injection(Plan):
    """A plan that gives a container the driver, with the host, the request and the target that it
    was made from.
    """

    def __init__(
        self,
        reason: str,
        host: PlanHost,
        request: Request,
        target: PlanTarget,
        actions: tuple[Action, ...] = (),
        links: tuple[tuple[str, str], ...] = (),
        findings: tuple[Finding, ...] = (),
    ) -> None:
        super().__init__("inject", reason, actions, links, findings)
        self.host = host
        self.request = request
        self.target = target
