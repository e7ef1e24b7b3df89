"""Read a side: find out what kind of description it is, and read it into the common form."""

import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_text
from nvgraft.cdi.reader import SpecificationError
from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.diff.gpus import gpu_nodes, of_container
from nvgraft_cli.diff.sides import (
    ComparedMount,
    ComparedNode,
    Side,
    guess_version,
    of_the_driver,
)
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs import cdi_hooks, gallery
from nvgraft_specs.documents import SIZE_LIMIT, DocumentError, load_json, read_bytes
from nvgraft_specs.models.plan import parse_plan

if TYPE_CHECKING:
    from nvgraft.cdi.edits import CdiSpec
    from nvgraft_cli.case.hosts import HostSide

_FIX = (
    "pass a plan, a host snapshot, a container, a CDI specification, a mountinfo, pid:NUMBER, a "
    "debug log of nvidia-container-cli, or a pod"
)

#: Options that say how a mount is made or propagates; the others are its properties.
_PROPAGATION = {
    "bind",
    "rbind",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "shared",
    "rshared",
    "unbindable",
    "runbindable",
}

#: Options of a mountinfo that plans do not have.
_ATIME = {"relatime", "noatime", "strictatime", "nodiratime"}

#: Lines of a mountinfo or of a log. Each mount in them takes some KiB of memory.
_LINES = 30_000

#: Steps of hooks whose arguments are compared as links and as directories of the loader cache.
_SHOWN_BY_EFFECT = (cdi_hooks.CREATE_SYMLINKS, cdi_hooks.UPDATE_LDCACHE)

#: Edits of a CDI specification that are compared as they are.
_OTHER_EDITS = ("netDevices", "intelRdt", "additionalGids")

#: What a tar archive has at an offset, and the bytes that tell an archive.
_TAR, _TAR_AT, _START = b"ustar", 257, 262

_LOG_LINE = re.compile(r"^[IWEC]\d{4} \S+ +\d+ \S+?:\d+\] (.*)$")


class Context:
    """What a side may need: the container to plan for a host, the host to plan a container for, the
    device of a CDI specification.

    :param named_by: the argument or option that names the side, for errors.
    """

    def __init__(
        self,
        bundle: str | None,
        env: Sequence[str],
        config: str | None,
        device: str | None,
        mode: str = "hook",
        host: str | None = None,
        named_by: str = "A",
    ) -> None:
        self.bundle = bundle
        self.host = host
        self.env = env
        self.config = config
        self.device = device
        self.mode = mode
        self.named_by = named_by


def read_side(name: str, context: Context) -> Side:
    """Read one side: a file, a container, a gallery host, or a process as ``pid:NUMBER``.

    :raises InputError: the side cannot be used; the text has its name, the cause and the fix.
    """
    if name.startswith("pid:"):
        return _live(name)
    if name in gallery.names():
        return _snapshot(name, context)
    if is_container(name):
        return _container(name, context)
    if name != "-" and "/" not in name and not os.path.lexists(name):
        from nvgraft_cli.case.hosts import no_such_host

        raise no_such_host(name, _FIX.removeprefix("pass "))
    try:
        raw = read_bytes(name)
        logs.debug("read", side=name, bytes=len(raw))
        text = raw.lstrip()
        if text[:1] in {b"{", b"["}:
            return _json(name, raw, context)
        if _is_mountinfo(raw):
            return mountinfo_side(name, raw.decode("utf-8", "surrogateescape"))
        if any(
            _LOG_LINE.match(line)
            for line in raw[:65536].decode("utf-8", "replace").splitlines()[:50]
        ):
            return log_side(name, raw.decode("utf-8", "surrogateescape"))
        if re.search(rb"^[\"']?cdiVersion", raw[: 1 << 20], re.MULTILINE):
            return cdi_side(name, parse_specification(raw, name), context.device)
        if re.search(rb"^kind: *Pod\s*$", raw[: 1 << 20], re.MULTILINE):
            from nvgraft_specs.yaml_text import load_yaml

            return _pod(name, load_yaml(raw, name))
    except (DocumentError, SpecificationError) as error:
        raise InputError(str(error)) from error
    raise InputError(f"{name}: {'an empty file' if not text else 'an unknown format'} | {_FIX}")


def is_container(name: str) -> bool:
    """Tell whether a side is a bundle, a config.json, a root file system or an image."""
    if name.startswith("pid:") or name in gallery.names():
        return False
    from nvgraft_cli.case.fuse import check_path
    from nvgraft_cli.case.image.archive import compression

    check_path(name)
    if os.path.isdir(name):
        return True
    if not os.path.isfile(name):
        return False
    try:
        with open(name, "rb") as file:
            start = file.read(_START)
    except OSError:
        return False  # whoever reads it as a document says why it cannot be read
    return bool(compression(start)) or start[_TAR_AT:].startswith(_TAR)


def _json(name: str, raw: bytes, context: Context) -> Side:
    data = load_json(raw, name)
    if isinstance(data, dict) and "cdiVersion" in data:
        return cdi_side(name, parse_specification(raw, name), context.device)
    if isinstance(data, dict) and data.get("kind") == "Pod":
        return _pod(name, data)
    schema = str(data.get("schema", "")) if isinstance(data, dict) else ""
    if schema.startswith("nvgraft.host/") or (
        isinstance(data, dict) and "schema" not in data and "nvml" in data
    ):
        return _snapshot(name, context)
    if isinstance(data, dict) and "ociVersion" in data:
        return _container(name, context)
    if schema.startswith("nvgraft.plan/"):
        parse_plan(raw, name)
        return plan_side(name, data, "plan")
    if schema.startswith("nvgraft.error/"):
        failed = f"nvgraft {data.get('command')} has failed and written its error"
        raise InputError(f"{name}: {failed}: {data.get('message')} | write the document again")
    raise InputError(f"{name}: $.schema: {schema or 'missing'} | {_FIX}")


def _pod(name: str, data: Any) -> Side:
    from nvgraft_cli.diff.pod_side import pod_side

    return pod_side(name, data)


def _snapshot(name: str, context: Context) -> Side:
    from nvgraft_cli.case.bundle import NO_CONTAINER
    from nvgraft_cli.case.hosts import open_host

    host = open_host(name, context.config)
    if context.bundle is None:
        from nvgraft_cli.diff.host_side import host_side

        return host_side(host, context.env, context.mode)
    return _planned(name, "snapshot", host, context.bundle, context, NO_CONTAINER)


def _container(name: str, context: Context) -> Side:
    from nvgraft_cli.case.hosts import open_host

    try:
        host = open_host(context.host, context.config)
        host.inventory  # noqa: B018 - a host that cannot be read is not a difference
    except Refusal as refusal:
        raise InputError(
            f"{name}: {refusal.text} | name the host to plan for with --host HOST"
        ) from refusal
    return _planned(name, "container", host, name, context, f"for {context.named_by}, {_FIX}")


def _planned(
    name: str, kind: str, host: "HostSide", container: str, context: Context, fix: str
) -> Side:
    """Return the side of a container on a host.

    :param fix: the instruction for a ``container`` that is none.
    """
    from nvgraft.formats.tree import OutOfBounds
    from nvgraft.plan.document import plan_document
    from nvgraft_cli.case.bundle import open_container
    from nvgraft_cli.case.planning import Case

    try:
        with open_container(container, context.env, fix=fix) as opened:
            # Two hosts that refuse the same unreadable config.json are not known to be equal.
            opened.spec  # noqa: B018
            case = Case(host, opened, context.mode)
            plan, refusal = case.outcome
            rootfs = ""
            if refusal is not None:
                with suppress(Refusal):
                    rootfs = opened.rootfs.label
        if isinstance(refusal, OutOfBounds):
            raise refusal  # two plans that were not made are not known to be equal, either
        report = host.facts.report
    except Refusal as refusal:
        raise InputError(f"{container}: {refusal.text} | {refusal.hint}") from refusal
    side = plan_side(name, json.loads(json.dumps(plan_document(plan))), kind)
    side.rootfs = rootfs
    # A plan that does not inject has no host and no request.
    side.version, side.cuda = report.driver_version, report.cuda_version
    side.machine = host.facts.machine
    side.gpus = of_container(host.inventory, side.nodes, side.mounts)
    if not host.gpus_known:
        side.gpus = side.rules = side.files = side.order = None
    if case.decision.request is not None:
        side.capabilities = list(case.decision.request.capabilities)
        if refusal is not None:
            side.requirements = list(case.decision.request.requirements)
    return side


def plan_side(label: str, document: dict[str, Any], kind: str) -> Side:
    """Return the side of a checked ``nvgraft.plan/1`` document."""
    mounts: dict[str, ComparedMount] = {}
    nodes: dict[str, ComparedNode] = {}
    environment: dict[str, Any] = {}
    hooks: dict[str, Any] = {}
    groups: list[int] = []
    side = Side(
        label,
        kind,
        document["host"].get("driver_version"),
        mounts,
        nodes,
        order=[],
        environment=environment,
        hooks=hooks,
    )
    side.rules, side.links, side.files, side.directories, side.cache = {}, {}, {}, {}, {}
    order: list[str] = []
    for action in document["actions"]:
        op = action["op"]
        rest = {
            key: value
            for key, value in action.items()
            if key not in {"op", "path", "target", "source", "options", "type", "rdev"}
        }
        if op == "mount" and action.get("kind") == "device":
            rdev = (action["rdev"][0], action["rdev"][1])
            nodes[action["target"]] = ComparedNode(
                action["target"],
                action["source"],
                rdev,
                _unlike_others(rest) | {"type": action["type"], "options": action["options"]},
            )
            order.append(action["target"])
        elif op == "mount":
            mounts[action["target"]] = ComparedMount(
                action["target"], action["source"], action["type"], tuple(action["options"]), rest
            )
            order.append(action["target"])
        elif op == "allow-device":
            side.rules[f"{action['type']} {action['major']}:{action['minor']}"] = {
                "access": action["access"],
                "why": action["why"],
            }
        elif op == "symlink":
            side.links[action["path"]] = {"target": action["target"], "why": action["why"]}
        elif op == "file":
            side.files[action["path"]] = rest
        elif op == "dir":
            side.directories[action["path"]] = rest
        elif op == "env":
            environment[action["name"]] = {"value": action["value"], "why": action["why"]}
        elif op == "group":
            groups.append(action["gid"])
        elif op == "hook":
            for command, words in _commands(action["path"], action["args"]):
                hooks[command] = {
                    "path": action["path"],
                    "stage": action["stage"],
                    "why": action["why"],
                }
                if command not in _SHOWN_BY_EFFECT:
                    hooks[command]["args"] = words
        else:
            side.cache |= {
                directory: {"position": index, "why": action["why"]}
                for index, directory in enumerate(action["dirs"])
            }
    side.order = order
    side.edits = bool(environment)
    side.decision = (document["decision"], document["reason"])
    side.cuda = document["host"].get("cuda_version")
    side.gpus = [""] * len(gpu_nodes(nodes))
    skipped = document["decision"] == "skip"  # nothing was requested
    side.capabilities = document["request"].get("capabilities", [] if skipped else None)
    side.requirements = document["request"].get("requirements")
    side.soname_links = {path: {"target": target} for path, target in document["links"].items()}
    side.about = _flat(
        {key: document[key] for key in ("decision", "reason", "host", "request", "target")}
    )
    side.about.pop("host.name", None)  # a label, as that of a side
    side.about |= {"groups": groups} if groups else {}
    side.about |= {
        f"finding {finding['id']}: {finding['message']}": finding
        for finding in document["findings"]
    }
    return side


def _unlike_others(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a device node without those that a bound node of the host lacks: the
    type of most nodes, and root as their owner.
    """
    usual = {"node": "c", "uid": 0, "gid": 0}
    return {name: value for name, value in members.items() if usual.get(name, "") != value}


def _commands(path: str, args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each sub-command of a hook and its words: one that takes steps has several."""
    for step in cdi_hooks.steps_of(args) or [[posixpath.basename(path)]]:
        yield step[0], step[1:]


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def cdi_side(label: str, spec: "CdiSpec", device: str | None) -> Side:
    """Return the side of a container that gets a device of a CDI specification.

    :param device: its name; None for "all", or for every device where there is no such one.
    :raises InputError: when the specification has no such device.
    """
    if device is None and any(entry.name == "all" for entry in spec.devices):
        device = "all"
    devices = [entry for entry in spec.devices if device is None or entry.name == device]
    if not devices:
        names = ", ".join(entry.name for entry in spec.devices)
        raise InputError(f"{label}: no device {device} | pass --device one of {names}")
    mounts: dict[str, ComparedMount] = {}
    nodes: dict[str, ComparedNode] = {}
    links: dict[str, Any] = {}
    hooks: dict[str, Any] = {}
    cache: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for edits in (spec.edits, *(entry.edits for entry in devices)):
        for mount in edits.mounts:
            options = set(mount.options) - _PROPAGATION
            if "ro" in options:
                options.discard("rw")
            else:
                options.add("rw")
            propagation = sorted(_PROPAGATION & set(mount.options))
            facts = {"propagation": propagation, "fstype": mount.type or None}
            mounts[mount.target] = ComparedMount(
                mount.target, mount.source, "bind", tuple(sorted(options)), facts
            )
        for node in edits.nodes:
            rdev = (node.major, node.minor) if node.major else None
            members = node.document()
            for name in ("path", "hostPath", "major", "minor"):
                members.pop(name, None)
            nodes[node.path] = ComparedNode(node.path, node.host_path or node.path, rdev, members)
        for entry in edits.env:
            key, _, value = entry.partition("=")
            environment[key] = {"value": value}
        for hook in edits.hooks:
            for command, words in _commands(hook.path, hook.args):
                flags = list(zip(words[0::2], words[1::2], strict=False))
                if command == cdi_hooks.CREATE_SYMLINKS:
                    for flag, value in flags:
                        if flag == "--link":
                            target, _, link = value.partition("::")
                            links[link] = {"target": target}
                elif command == cdi_hooks.UPDATE_LDCACHE:
                    cache |= {value: {} for flag, value in flags if flag == "--folder"}
                hooks[command] = {"path": hook.path, "stage": hook.stage, "env": list(hook.env)}
                if command not in _SHOWN_BY_EFFECT:
                    hooks[command] |= {"args": words, "timeout": hook.timeout}
        rest = edits.document()
        hooks |= {name: {"value": rest[name]} for name in _OTHER_EDITS if name in rest}
    rules = {
        f"c {node.rdev[0]}:{node.rdev[1]}": {"access": node.facts.get("permissions", "rwm")}
        for node in nodes.values()
        if node.rdev
    }
    side = Side(
        label,
        "cdi",
        guess_version(list(mounts)),
        mounts,
        nodes,
        environment=environment,
        hooks=hooks,
        cache=cache,
        rules=rules,
    )
    side.links = links
    side.gpus = [""] * len(gpu_nodes(nodes))
    return side


def _live(name: str) -> Side:
    number = name.removeprefix("pid:")
    if not number.isdecimal():
        raise InputError(f"{name}: not a process number | write pid:1234")
    path = f"/proc/{number}/mountinfo"
    try:
        return mountinfo_side(name, read_text(path, SIZE_LIMIT))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"{path}: {reason} | name a running process of the container, and run nvgraft as root"
        ) from error


def _lines(label: str, text: str) -> list[str]:
    """Split a text at newlines only: a path in it may have another line separator."""
    lines = text.split("\n")
    if len(lines) > _LINES:
        raise InputError(
            f"{label}: it has {len(lines):,} lines, more than {_LINES:,} | check that this is the"
            " right file"
        )
    return lines


def _is_mountinfo(raw: bytes) -> bool:
    first = next((line for line in raw[:65536].splitlines() if line.strip()), b"").split()
    return (
        len(first) >= 10
        and first[0].isdigit()
        and first[1].isdigit()
        and b":" in first[2]
        and b"-" in first[6:]
    )


def mountinfo_side(label: str, text: str) -> Side:
    """Return the side of a mountinfo: the driver's mounts, by their paths inside the container.

    It may have been read inside the container, or in the mount namespace of the hook, where the
    root file system is a directory.
    """
    rows = []
    for number, line in enumerate(_lines(label, text), 1):
        fields = line.split()
        if not fields:
            continue
        if "-" not in fields[6:] or len(fields) < fields.index("-", 6) + 3:
            raise InputError(
                f"{label}: line {number}: not a line of mountinfo | the file may be truncated: "
                "record it again"
            )
        separator = fields.index("-", 6)
        rows.append((_unescape(fields[3]), _unescape(fields[4]), fields[5], fields[separator + 1]))
    proc = "/proc/driver/nvidia"
    prefix = max(
        (point.removesuffix(proc) for _, point, _, _ in rows if point.endswith(proc)),
        key=len,
        default="",
    )
    mounts: dict[str, ComparedMount] = {}
    nodes: dict[str, ComparedNode] = {}
    order: list[str] = []
    for source, point, options, fstype in rows:
        inside = point.removeprefix(prefix)
        if (prefix and not point.startswith(prefix + "/")) or not of_the_driver(inside):
            continue
        compared = tuple(sorted(set(options.split(",")) - _ATIME))
        order.append(inside)
        if inside.startswith("/dev/") and inside != "/dev/nvidia-caps":
            nodes[inside] = ComparedNode(inside, None, None, {"options": list(compared)})
        elif fstype == "tmpfs" and source == "/":
            mounts[inside] = ComparedMount(inside, "tmpfs", "tmpfs", compared)
        else:
            mounts[inside] = ComparedMount(inside, source, "bind", compared, partial=True)
    gpus = [""] * len(gpu_nodes(nodes))
    return Side(label, "mountinfo", guess_version(list(mounts)), mounts, nodes, order, gpus=gpus)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def log_side(label: str, text: str) -> Side:
    """Return the side of a debug log of nvidia-container-cli or nvgraft: the mounts it reports."""
    mounts: dict[str, ComparedMount] = {}
    nodes: dict[str, ComparedNode] = {}
    links: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    order: list[str] = []
    rootfs = ""
    for line in _lines(label, text):
        match = _LOG_LINE.match(line)
        if match is None:
            continue
        message = match[1]
        if message.startswith("setting rootfs to "):
            rootfs = message.removeprefix("setting rootfs to ").rstrip("/")
        elif mount := re.fullmatch(r"mounting (\S+) at (\S+?)(?: with flags \S+)?", message):
            source, target = mount[1], mount[2].removeprefix(rootfs)
            order.append(target)
            if target.startswith("/dev/") and target != "/dev/nvidia-caps":
                nodes[target] = ComparedNode(target, source, None)
            else:
                mounts[target] = ComparedMount(
                    target, source, "tmpfs" if source == "tmpfs" else "bind", None
                )
        elif link := re.fullmatch(r"creating symlink (\S+) -> (\S+)", message):
            links[link[1].removeprefix(rootfs)] = {"target": link[2]}
        elif rule := re.fullmatch(r"whitelisting device node (\d+):(\d+)", message):
            rules[f"c {rule[1]}:{rule[2]}"] = {}
    if not order:
        raise InputError(
            f"{label}: this log contains no mount | pass a complete log of `nvidia-container-cli "
            "configure`"
        )
    return Side(
        label,
        "log",
        guess_version(list(mounts)),
        mounts,
        nodes,
        order,
        rules=rules or None,
        links=links,
        gpus=[""] * len(gpu_nodes(nodes)),
    )
