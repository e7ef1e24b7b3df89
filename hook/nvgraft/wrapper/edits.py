"""Write edits of CDI devices, and the additions of mode legacy, into config.json.

The edits have the same members in the same order as the reference's (reference behaviour 9.8). An
entry of config.json that exists in the same form is not added again.
"""

from __future__ import annotations

from nvgraft.base.jsontext import dumps
from nvgraft.base.paths import clean
from nvgraft.cdi.edits import NO_PERMISSIONS, CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.request.oci import as_array, as_number, as_object, as_string
from nvgraft_specs import graphics_files as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvgraft.base.jsonedit import Addition, Document, Place
    from nvgraft.wrapper.additions import Additions

_DEVICES = "struct field Linux.linux.devices of type []specs.LinuxDevice"
_RULES = "struct field LinuxResources.linux.resources.devices of type []specs.LinuxDeviceCgroup"
_MOUNTS = "struct field Spec.mounts of type []specs.Mount"
_DESTINATION = "destination"
_ENV = "struct field Process.process.env of type []string"
_GROUPS = "struct field User.process.user.additionalGids of type []uint32"
#: The type of a node that has none, and the types to which a device rule gives access.
_CHARACTER = "c"
_RULED = ("b", _CHARACTER)


def additions_edits(additions: Additions, hooks: Iterable[CdiHook], *, groups: bool) -> CdiEdits:
    """Return the additions of mode legacy as edits.

    :param hooks: the OCI hooks that make the links, if there are any.
    :param groups: whether the process gets the groups of the nodes that only their group may open.
    """
    nodes = additions.nodes
    return CdiEdits(
        nodes=[
            CdiNode(
                node.path,
                type=_CHARACTER,
                major=node.rdev[0],
                minor=node.rdev[1],
                mode=node.mode,
                permissions=table.NODE_ACCESS,
                gid=node.gid or None,
            )
            for node in nodes
        ],
        mounts=[CdiMount(mount.path, mount.target, table.OPTIONS) for mount in additions.mounts],
        hooks=hooks,
        gids=dict.fromkeys(node.gid for node in nodes if groups and node.needs_group),
    )


def config_edits(document: Document, parts: Sequence[CdiEdits]) -> dict[str, Addition]:
    """Return the additions to be merged into the document's root. Arrays whose order changes are
    replaced in ``document`` here.

    :param parts: applied one after the other.
    :raises JsonError: a member has another type than in the OCI specification.
    """
    root = document.root()
    linux = _object(document, root, "linux", "struct field Spec.linux of type specs.Linux")
    resources = _object(
        document,
        linux,
        "resources",
        "struct field Linux.linux.resources of type specs.LinuxResources",
    )
    process = _object(document, root, "process", "struct field Spec.process of type specs.Process")
    user = _object(
        document, process, "user", "struct field Process.process.user of type specs.User"
    )
    hooks = _object(document, root, "hooks", "struct field Spec.hooks of type specs.Hooks")
    ids = [_number(document, user, name) for name in ("uid", "gid")]
    nodes = [node for part in parts for node in part.nodes]
    rules = [_rule(node) for node in nodes if (node.type or _CHARACTER) in _RULED]
    old_rules = as_array(_value(document, resources, "devices"), _RULES)
    old_gids = as_array(_value(document, user, "additionalGids"), _GROUPS)
    gids = dict.fromkeys(gid for part in parts for gid in part.gids if gid)
    mounts = [_mount(mount) for part in parts for mount in part.mounts]
    edits: dict[str, Addition] = {
        "linux": {
            "devices": _put(
                document, linux, "devices", "path", [_node(node, *ids) for node in nodes], _DEVICES
            ),
            "resources": {
                "devices": []
                if old_rules[-len(rules) :] == rules
                else [dumps(rule) for rule in rules]
            },
            "netDevices": {
                dumps(host_name)[1:-1]: dumps({"name": name})
                for part in parts
                for host_name, name in part.net_devices
            },
            "intelRdt": "".join([dumps(part.intel_rdt) for part in parts if part.intel_rdt][-1:]),
        },
        "mounts": _put(document, root, "mounts", _DESTINATION, mounts, _MOUNTS) if mounts else [],
        "hooks": _added_hooks(document, hooks, [hook for part in parts for hook in part.hooks]),
    }
    if process is not None:
        variables = [variable for part in parts for variable in part.env]
        old_variables = as_array(_value(document, process, "env"), _ENV)
        edits["process"] = {
            "env": []
            if old_variables[-len(variables) :] == variables
            else [dumps(variable) for variable in variables],
            "user": {"additionalGids": [dumps(gid) for gid in gids if gid not in old_gids]},
        }
    return edits


def _added_hooks(
    document: Document, place: Place | None, hooks: Sequence[CdiHook]
) -> dict[str, Addition]:
    """Return the hooks that config.json does not have, by their stages."""
    added: dict[str, list[str]] = {}
    for hook in hooks:
        old = as_array(
            _value(document, place, hook.stage),
            f"struct field Hooks.hooks.{hook.stage} of type []specs.Hook",
        )
        entry = _hook(hook)
        if entry not in old:
            added.setdefault(hook.stage, []).append(dumps(entry))
    return dict(added)


def _value(document: Document, parent: Place | None, name: str) -> object:
    place = parent and document.member(parent, name)
    return place.value if place else None


def _object(document: Document, parent: Place | None, name: str, target: str) -> Place | None:
    """Return the object that is the member ``name`` of ``parent``, or None if there is none."""
    place = parent and document.member(parent, name)
    as_object(place and place.value, target)
    return place if place and place.value is not None else None


def _number(document: Document, user: Place | None, name: str) -> int:
    return as_number(
        _value(document, user, name), f"struct field User.process.user.{name} of type uint32"
    )


def _node(node: CdiNode, uid: int, gid: int) -> dict[str, object]:
    """Return a node's entry in linux.devices. The owner is the process's user, and its group,
    unless the node has others.
    """
    entry: dict[str, object] = {
        "path": node.path,
        "type": node.type or _CHARACTER,
        "major": node.major,
        "minor": node.minor,
    }
    if node.mode is not None:
        entry["fileMode"] = node.mode
    owners = {"uid": uid if node.uid is None else node.uid}
    owners["gid"] = gid if node.gid is None else node.gid
    return entry | {name: value for name, value in owners.items() if value}


def _rule(node: CdiNode) -> dict[str, object]:
    access = node.permissions or table.NODE_ACCESS
    return {
        "allow": True,
        "type": node.type or _CHARACTER,
        "major": node.major,
        "minor": node.minor,
        "access": "" if access == NO_PERMISSIONS else access,
    }


def _mount(mount: CdiMount) -> dict[str, object]:
    entry: dict[str, object] = {"destination": mount.target, "source": mount.source}
    if mount.type:
        entry["type"] = mount.type
    if mount.options:
        entry["options"] = list(mount.options)
    return entry


def _hook(hook: CdiHook) -> dict[str, object]:
    entry: dict[str, object] = {"path": hook.path}
    if hook.args:
        entry["args"] = list(hook.args)
    if hook.env:
        entry["env"] = list(hook.env)
    if hook.timeout is not None:
        entry["timeout"] = hook.timeout
    return entry


def _put(
    document: Document,
    parent: Place | None,
    name: str,
    key: str,
    added: Iterable[dict[str, object]],
    target: str,
) -> list[str]:
    """Append ``added`` to an array in place of items with the same ``key``. If there is no array
    yet, return its items.

    Mounts are then sorted by the depth of their destinations: deeper ones are mounted later.
    """
    place = parent and document.member(parent, name)
    old = document.items(place) if place and as_array(place.value, target) else []
    items = [
        _NamedItem(
            _key(document, item, key, target), document.text[item.start : item.end], item.value
        )
        for item in old
    ]
    for value in added:
        named = str(value[key])
        same = next((item for item in items if item.key == named), None)
        items = [item for item in items if item is not same]
        items.append(_NamedItem(named, dumps(value), value))
    if key == _DESTINATION:
        items.sort(key=lambda item: clean(item.key).count("/"))
    if [item.value for item in items] == [item.value for item in old]:
        return []
    texts = [item.text for item in items]
    if place is None or place.value is None:
        return texts
    document.replace(place, f"[{','.join(texts)}]")
    return []


def _key(document: Document, item: Place, key: str, target: str) -> str:
    as_object(item.value, target.replace("[]", ""))
    return as_string(
        _value(document, item, key), f"{target.partition(' of type ')[0]}.{key} of type string"
    )


class _NamedItem:
    """An item of an array: the value of its key, its text in the document, and its value."""

    def __init__(self, key: str, text: str, value: object) -> None:
        self.key = key
        self.text = text
        self.value = value
