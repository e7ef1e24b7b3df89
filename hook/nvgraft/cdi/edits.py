"""A CDI specification as plain values: devices, and the edits that a container gets with each.

Every value has a ``document`` method, which returns its JSON form. Members without a value are left
out, as by CDI's own encoder, and so are the numbers of a device node that are 0.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md.
"""

from __future__ import annotations

from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Document = dict[str, object]

#: The stage at which the hooks of a specification run: in the container's namespaces, before the
#: root is changed.
STAGE = "createContainer"


def links_step(links: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the step that makes links, each TARGET::LINK, as a list of one; without links it is
    empty.
    """
    words = [word for link in dict.fromkeys(links) for word in ("--link", link)]
    return [("create-symlinks", *words)] if words else []


#: Permissions of a device node that mean a device rule without access.
NO_PERMISSIONS = "none"


class CdiNode(Value):
    """A device node. ``host_path`` is "" if it is the same on the host; without ``major``, numbers
    and type are the host's.
    """

    def __init__(
        self,
        path: str,
        *,
        host_path: str = "",
        type: str = "",
        major: int = 0,
        minor: int = 0,
        mode: int | None = None,
        permissions: str = "",
        uid: int | None = None,
        gid: int | None = None,
    ) -> None:
        self.path = path
        self.host_path = host_path
        self.type = type
        self.major = major
        self.minor = minor
        self.mode = mode
        self.permissions = permissions
        self.uid = uid
        self.gid = gid

    def document(self) -> Document:
        return _present(
            path=self.path,
            hostPath=self.host_path,
            type=self.type,
            major=self.major,
            minor=self.minor,
            fileMode=self.mode,
            permissions=self.permissions,
            uid=self.uid,
            gid=self.gid,
        )


class CdiMount(Value):
    """A mount. ``source`` is a path of the host, with the driver root; "" as ``type`` means a
    bind mount.
    """

    def __init__(
        self, source: str, target: str, options: tuple[str, ...] = (), type: str = ""
    ) -> None:
        self.source = source
        self.target = target
        self.options = options
        self.type = type

    def document(self) -> Document:
        return _present(
            hostPath=self.source, containerPath=self.target, options=self.options, type=self.type
        )


class CdiHook(Value):
    """An OCI hook. ``args`` begin with argv[0]; ``timeout`` is in seconds, or None."""

    def __init__(
        self,
        stage: str,
        path: str,
        args: tuple[str, ...] = (),
        env: tuple[str, ...] = (),
        timeout: int | None = None,
    ) -> None:
        self.stage = stage
        self.path = path
        self.args = args
        self.env = env
        self.timeout = timeout

    def document(self) -> Document:
        return _present(
            hookName=self.stage, path=self.path, args=self.args, env=self.env, timeout=self.timeout
        )


class CdiEdits(Value):
    """The edits of a container, each kind in the order in which it is applied.

    NVIDIA's devices use neither ``net_devices``, network interfaces as (name on the host, name in
    the container), nor ``intel_rdt``, which is as in the document.
    """

    def __init__(
        self,
        *,
        env: Iterable[str] = (),
        nodes: Iterable[CdiNode] = (),
        hooks: Iterable[CdiHook] = (),
        mounts: Iterable[CdiMount] = (),
        gids: Iterable[int] = (),
        net_devices: Iterable[tuple[str, str]] = (),
        intel_rdt: Document | None = None,
    ) -> None:
        self.env = tuple(env)
        self.nodes = tuple(nodes)
        self.hooks = tuple(hooks)
        self.mounts = tuple(mounts)
        self.gids = tuple(gids)
        self.net_devices = tuple(net_devices)
        self.intel_rdt = intel_rdt

    def __add__(self, other: CdiEdits) -> CdiEdits:
        """Return both, without repetitions."""
        return CdiEdits(
            env=dict.fromkeys(self.env + other.env),
            nodes=dict.fromkeys(self.nodes + other.nodes),
            hooks=dict.fromkeys(self.hooks + other.hooks),
            mounts=dict.fromkeys(self.mounts + other.mounts),
            gids=dict.fromkeys(self.gids + other.gids),
            net_devices=dict.fromkeys(self.net_devices + other.net_devices),
            intel_rdt=other.intel_rdt or self.intel_rdt,
        )

    def document(self) -> Document:
        return _present(
            env=self.env,
            deviceNodes=[node.document() for node in self.nodes],
            netDevices=[
                {"hostInterfaceName": host_name, "name": name}
                for host_name, name in self.net_devices
            ],
            hooks=[hook.document() for hook in self.hooks],
            mounts=[mount.document() for mount in self.mounts],
            intelRdt=self.intel_rdt,
            additionalGids=self.gids,
        )


class Generated(Value):
    """The edits in the order in which they are applied, and lines for the log as (level, line)."""

    def __init__(self, edits: Iterable[CdiEdits], log: Iterable[tuple[str, str]] = ()) -> None:
        self.edits = tuple(edits)
        self.log = tuple(log)


class CdiDevice(Value):
    """A device by its name in the specification, and its own edits. No container gets its
    ``annotations``.
    """

    def __init__(
        self, name: str, edits: CdiEdits, annotations: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.edits = edits
        self.annotations = annotations or {}

    def document(self) -> Document:
        return {
            "name": self.name,
            **_present(annotations=self.annotations),
            "containerEdits": self.edits.document(),
        }


class CdiSpec(Value):
    """Devices of one kind (VENDOR/CLASS), and the ``edits`` that all of them share.

    :param version: of the format; by default the lowest one that has all members.
    """

    def __init__(
        self,
        kind: str,
        devices: Iterable[CdiDevice],
        edits: CdiEdits,
        version: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.devices = tuple(devices)
        self.edits = edits
        self.annotations = annotations or {}
        self.version = version or self.lowest_version()

    def document(self) -> Document:
        members: Document = {
            "cdiVersion": self.version,
            "kind": self.kind,
            **_present(annotations=self.annotations),
            "devices": [device.document() for device in self.devices],
        }
        return members | _present(containerEdits=self.edits.document())

    def lowest_version(self) -> str:
        """Return the lowest version of the format that has all members (reference behaviour
        10.2).
        """
        return next((version for version, needed in _NEEDS if needed(self)), "0.3.0")

    def _all_edits(self) -> list[CdiEdits]:
        return [self.edits, *(device.edits for device in self.devices)]


def _is_new(rdt: Document | None) -> bool:
    return rdt is not None and any(name in rdt for name in RDT_NEW)


#: Members of intelRdt that 1.1.0 has added.
RDT_NEW = ("schemata", "enableMonitoring")

#: A version, and whether a specification has a member that it added; the newest first.
_NEEDS: tuple[tuple[str, Callable[[CdiSpec], bool]], ...] = (
    (
        "1.1.0",
        lambda spec: any(part.net_devices or _is_new(part.intel_rdt) for part in spec._all_edits()),
    ),
    (
        "0.7.0",
        lambda spec: any(part.gids or part.intel_rdt is not None for part in spec._all_edits()),
    ),
    (
        "0.6.0",
        lambda spec: (
            "." in spec.kind.partition("/")[2]
            or bool(spec.annotations)
            or any(device.annotations for device in spec.devices)
        ),
    ),
    (
        "0.5.0",
        lambda spec: (
            any(device.name[0].isdecimal() for device in spec.devices)
            or any(node.host_path for part in spec._all_edits() for node in part.nodes)
        ),
    ),
    ("0.4.0", lambda spec: any(mount.type for part in spec._all_edits() for mount in part.mounts)),
)


#: Members whose value 0 means something else than their absence.
_OPTIONAL_NUMBERS = ("fileMode", "uid", "gid", "timeout")


def _present(**members: object) -> Document:
    """Return the members that have a value; tuples become lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in members.items()
        if value or (value == 0 and name in _OPTIONAL_NUMBERS)
    }
