"""Read the container of a case: an OCI bundle, a config.json, a root file system or an image
archive.

The container does not run. Its rootfs stands for its file system, with /proc, /sys and /dev as
engines mount them.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import Any

from nvgraft.container.container import check_rootfs_path
from nvgraft.container.offline_target import OfflineTarget, VirtualTree
from nvgraft.formats.tree import Bounds, LiveTree, Node, OutOfBounds, Tree
from nvgraft.request.oci import CONFIG_LIMIT, ContainerConfig, parse_config, read_config
from nvgraft_cli.case.fuse import check_path, open_tree
from nvgraft_cli.case.image.archive import is_image, open_image
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.volumes import ContainerVolumes, open_volumes
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import STDIN
from nvgraft_cli.shell.errors import InputError

#: The instruction where --container names no container.
NO_CONTAINER = (
    "--container must name a bundle, a config.json, a root file system or an image archive"
)

#: A directory without config.json that has one of these is a root file system.
_ROOT_MARKS = ("etc", "usr", "bin", "lib")

#: Docker's default capabilities. None of them makes a container privileged for the hook.
_DOCKER_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
)


def rootfs_label(container: ContainerConfig, bundle: str) -> str:
    """Return the absolute rootfs as the hook names it; a relative root.path counts from the
    bundle.
    """
    return os.path.normpath(os.path.join(os.path.abspath(bundle), container.root_path))


def find_rootfs(container: ContainerConfig, bundle: str) -> str:
    """Return the directory of the rootfs.

    Where the absolute ``root.path`` does not exist, it is searched inside the bundle, which may
    have been copied from another machine.

    :raises InputError: there is no such directory.
    """
    label = rootfs_label(container, bundle)
    relative = container.root_path.lstrip("/")
    candidates = [
        label,
        os.path.join(bundle, relative),
        os.path.join(bundle, os.path.basename(relative)),
    ]
    for path in candidates:
        check_path(path)
        if os.path.isdir(path):
            return path
    raise InputError(
        f"{label}: no such directory: the root.path of {bundle}/config.json exists neither"
        " as it is nor inside the bundle: copy the rootfs into the bundle"
    )


class EmptyTree(Tree):
    """The unknown root file system of a config.json alone, shown as empty."""

    def __init__(self, label: str) -> None:
        self.label = label

    def lstat(self, path: str) -> Node | None:
        return None

    def listdir(self, path: str) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing was opened."""


class ContainerSide:
    """A container that is to be planned. Its rootfs is opened when it is needed. Close it after
    use.

    :param label: the path that the user gave.
    :param directory: the absolute path of the bundle, from which a relative root.path counts.
    :param here: whether config.json belongs to this machine, so that sources of mounts are here.
    :param data: config.json.
    :param open_rootfs: opens the files of the image.
    :param rootfs_known: false for a config.json alone, whose files are not known.
    :param image_env: the variables that the image itself sets; None if that is not known.
    :param reading_seconds: the time to allow beyond that of a directory.

    ``beyond`` is the refusal of a plan for which the image was too large. It holds for all hosts,
    because to read the image again for each of them would take as long each time.
    """

    def __init__(
        self,
        label: str,
        directory: str,
        data: bytes,
        open_rootfs: "OpenRootfs",
        *,
        rootfs_known: bool = True,
        image_env: Mapping[str, str] | None = None,
        reading_seconds: float = 0.0,
        here: bool = False,
    ) -> None:
        self.label = label
        self.directory = directory
        self.data = data
        self.rootfs_known = rootfs_known
        self.image_env = image_env
        self._reading_seconds = reading_seconds
        self._here = here
        self._before: ContainerSide | None = None
        self._volumes: ContainerVolumes | None = None
        self._open_rootfs = open_rootfs
        self.beyond: OutOfBounds | None = None
        self._bounds = Bounds()
        self._tree: OpenTree | None = None
        self._targets: dict[tuple[str, bool], OfflineTarget] = {}

    def __enter__(self) -> "ContainerSide":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def with_env(self, env: Sequence[str]) -> "ContainerSide":
        """Return the container with ``NAME=VALUE`` entries added. It uses the rootfs of this
        one.
        """
        data = self.data
        if env:
            self.spec  # noqa: B018 - refuses what the hook would refuse
            data = _with_entries(data, env)
        container = self.rewritten(data)
        container.image_env = None
        return container

    def rewritten(self, data: bytes, *, elsewhere: bool = False) -> "ContainerSide":
        """Return the container with another config.json. It uses the rootfs of this one.

        :param elsewhere: whether the sources of the mounts that this one lacks are not here.
        """
        container = ContainerSide(
            self.label,
            self.directory,
            data,
            lambda *_: self.rootfs,
            rootfs_known=self.rootfs_known,
            image_env=self.image_env,
            here=self._here,
        )
        container._before = self if elsewhere else self._before
        return container

    def close(self) -> None:
        """Close the rootfs and the volumes."""
        if self._volumes is not None:
            self._volumes.close()
            self._volumes = None
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        self._targets.clear()

    @cached_property
    def spec(self) -> ContainerConfig:
        """The parts of config.json that the hook reads.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        return parse_config(self.data)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The whole config.json: commands read members that the hook does not.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        self.spec  # noqa: B018 - refuses what the hook would refuse
        document: dict[str, Any] = json.loads(self.data)
        return document

    def member(self, *path: str) -> Any:
        """Return the member of config.json at ``path``.

        None where it is absent, or where a member above it is absent or not an object.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        value: Any = self.document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def arguments(self) -> list[str]:
        """The words of process.args; none if config.json has no usable ones.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        args = self.member("process", "args")
        return [word for word in args if isinstance(word, str)] if isinstance(args, list) else []

    @property
    def working_directory(self) -> str:
        """The absolute process.cwd, or /.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        directory = self.member("process", "cwd")
        return directory if isinstance(directory, str) and directory.startswith("/") else "/"

    @property
    def user(self) -> tuple[Any, list[Any]]:
        """The uid of process.user, and its gid with the additional ones; foreign types stay.

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        additional = self.member("process", "user", "additionalGids")
        return self.member("process", "user", "uid") or 0, [
            self.member("process", "user", "gid") or 0,
            *(additional if isinstance(additional, list) else ()),
        ]

    @property
    def rootfs(self) -> "OpenTree":
        """The files of the image.

        :raises InputError: the rootfs is missing or unreadable.
        :raises nvgraft.base.errors.Refusal: the rootfs is the host's own root.
        """
        if self._tree is None:
            self._tree = self._open_rootfs(self.spec, self._bounds)
        return self._tree

    @property
    def volumes(self) -> ContainerVolumes:
        """The mounts of config.json; those of a bundle with a root file system are read here.

        :raises InputError: the rootfs is missing or unreadable.
        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        if self._volumes is None:
            # Where the root file system is not in its place, the bundle is a copy.
            here = self._here and os.path.isdir(rootfs_label(self.spec, self.directory))
            of_bundle = (self._before or self).member("mounts")
            self._volumes = open_volumes(
                self.member("mounts"),
                self.rootfs,
                self._bounds,
                self.directory,
                here=of_bundle if here and isinstance(of_bundle, list) else [],
            )
        return self._volumes

    def bound(self, bounds: Bounds) -> None:
        """Limit what is read of the image from now on."""
        bounds.allow(self._reading_seconds)
        self._bounds = bounds
        if self._tree is not None:
            self._tree.bounds = bounds

    def target(self, machine: str, *, module: bool) -> OfflineTarget:
        """Return the target for the planner.

        :param module: false for a simulated host, which has no NVIDIA kernel module.
        :raises InputError: the rootfs is missing or unreadable.
        :raises nvgraft.base.errors.Refusal: the rootfs is the host's own root, or a symbolic
            link leads out of the rootfs.
        """
        key = (machine, module)
        if key not in self._targets:
            tree = self.rootfs
            self._targets[key] = OfflineTarget(
                VirtualTree(tree, tree.label),
                machine,
                tuple(destination for _, destination in self.spec.mounts),
                module=module,
                read_only=self._read_only_volumes(),
            )
        return self._targets[key]

    def _read_only_volumes(self) -> tuple[str, ...]:
        """Return the mount points of volumes that a runtime mounts read-only."""
        found = []
        mounts = self.member("mounts")
        for mount in mounts if isinstance(mounts, list) else ():
            options = mount.get("options") if isinstance(mount, dict) else None
            words = options if isinstance(options, list) else []
            access = [word for word in words if word in ("ro", "rw")]
            if access[-1:] == ["ro"] and isinstance(mount.get("destination"), str):
                found.append(mount["destination"])
        return tuple(found)


OpenTree = LiveTree | EmptyTree | ImageTree
OpenRootfs = Callable[[ContainerConfig, Bounds], OpenTree]


def open_container(path: str, env: Sequence[str] = (), *, fix: str = NO_CONTAINER) -> ContainerSide:
    """Open a container: an OCI bundle, a config.json alone, a root file system, or an image.

    An image is an archive of `docker save` or `podman save`, or an OCI layout. A container without
    config.json gets the one that Docker would write for `docker run IMAGE`.

    :param env: ``NAME=VALUE`` entries to add to the environment, as `docker run -e` does.
    :param fix: the instruction for a ``path`` at which there is no container.
    :raises InputError: there is no container at ``path``.
    :raises nvgraft.base.errors.Refusal: the hook would refuse this config.json.
    """
    for entry in env:
        if "=" not in entry:
            raise InputError(f"--env {entry}: no value: write NAME=VALUE")
    check_path(path)
    if os.path.isdir(path) and not is_image(path):
        configured = _has_config(path)
        if not configured and any(os.path.isdir(os.path.join(path, name)) for name in _ROOT_MARKS):
            root = os.path.abspath(path)
            logs.debug("opened", container=root, kind="root file system")
            return ContainerSide(
                path,
                root,
                _config_json({}, root, env),
                partial(_open_bundle, os.path.dirname(root)),
            )
        if not configured:
            raise InputError(f"{path}: has neither a config.json nor a root file system: {fix}")
        directory = os.path.abspath(path)
        logs.debug("opened", container=directory, kind="bundle")
        return ContainerSide(
            path,
            directory,
            _with_env(read_config(path), env),
            partial(_open_bundle, directory),
            here=True,
        )
    if is_image(path) and not _is_json(path):
        image = open_image(path)
        logs.debug("opened", container=path, kind="image")
        given = {entry.partition("=")[0] for entry in env}
        own = dict(
            entry.partition("=")[::2]
            for entry in image.config.get("Env") or ()
            if isinstance(entry, str)
        )
        own = {name: value for name, value in own.items() if name not in given}
        return ContainerSide(
            path,
            "/",
            _config_json(image.config, "rootfs", env),
            lambda _, bounds: image.tree(bounds),
            image_env=own,
            reading_seconds=image.reading_seconds,
        )
    if os.path.isfile(path):
        logs.debug("opened", container=path, kind="config.json alone")
        return _config_alone(path, env)
    cause = "neither a file nor a directory" if os.path.exists(path) else _missing(path)
    raise InputError(f"{path}: {cause}: {fix}")


def unknown_image(label: str) -> ContainerSide:
    """Return the container of an image of which nothing is known, with an empty root file system.

    :param label: what the user has given in its place.
    """
    return ContainerSide(
        label,
        "/",
        _config_json({}, "rootfs", ()),
        lambda *_: EmptyTree("/rootfs"),
        rootfs_known=False,
    )


def _has_config(directory: str) -> bool:
    """Tell whether a directory has a config.json.

    :raises OSError: this user may not search the directory.
    """
    try:
        os.lstat(os.path.join(directory, "config.json"))
    except FileNotFoundError:
        return False
    return True


def _missing(path: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "no such file or directory"


def _is_json(path: str) -> bool:
    """Tell whether a file begins like JSON and not like an archive."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as file:
        return file.read(64).lstrip()[:1] in {b"{", b"["}


def _config_alone(path: str, env: Sequence[str]) -> ContainerSide:
    # A relative root.path of standard input counts from the working directory.
    directory = os.getcwd() if path == STDIN else os.path.dirname(os.path.abspath(path))
    data = _with_env(_read(path), env)
    container = parse_config(data)
    try:
        find_rootfs(container, directory)
    except InputError:
        return ContainerSide(
            path,
            directory,
            data,
            lambda spec, _: EmptyTree(rootfs_label(spec, directory)),
            rootfs_known=False,
        )
    return ContainerSide(path, directory, data, partial(_open_bundle, directory), here=True)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(CONFIG_LIMIT + 1)
    if len(data) > CONFIG_LIMIT:
        raise InputError(f"{path}: larger than {CONFIG_LIMIT >> 20} MiB: this is not a config.json")
    return data


def _open_bundle(bundle: str, container: ContainerConfig, bounds: Bounds) -> LiveTree:
    label = rootfs_label(container, bundle)
    check_rootfs_path(label)
    path = find_rootfs(container, bundle)
    try:
        return open_tree(path, label, bounds)
    except OSError as error:
        raise InputError(
            f"{path}: {(error.strerror or str(error)).lower()}: the rootfs must be readable"
        ) from error


def _with_env(data: bytes, env: Sequence[str]) -> bytes:
    if not env:
        return data
    parse_config(data)  # refuse first what the hook refuses
    return _with_entries(data, env)


def _with_entries(data: bytes, env: Sequence[str]) -> bytes:
    """Return a config.json that the hook accepts, with entries added to its environment."""
    document = json.loads(data)
    document["process"]["env"] = [*(document["process"].get("env") or []), *env]
    return json.dumps(document).encode()


def _config_json(image: dict[str, Any], rootfs: str, env: Sequence[str]) -> bytes:
    """Return the config.json that Docker writes for an image with the configuration ``image``."""
    own = [
        str(entry)
        for entry in image.get("Env")
        or ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    ]
    args = [str(word) for word in [*(image.get("Entrypoint") or []), *(image.get("Cmd") or [])]]
    document = {
        "ociVersion": "1.0.2",
        "process": {
            "args": args or ["sh"],
            "env": [*own, *env],
            "cwd": image.get("WorkingDir") or "/",
            "capabilities": {"bounding": list(_DOCKER_CAPABILITIES)},
        },
        "root": {"path": rootfs},
        "mounts": [],
    }
    return json.dumps(document).encode()
