"""Write the additions of :mod:`nvgraft.wrapper.additions` (device nodes, files, links) into
config.json.

The edits have the same members in the same order as the reference's, which edits config.json as by
a CDI specification of what it has found (reference behaviour 9.8). An entry that exists in the same
form is not added again.
"""

from __future__ import annotations

from nvgraft.base.jsontext import dumps
from nvgraft.base.paths import clean
from nvgraft.request.oci import as_array, as_number, as_object, as_string
from nvgraft_specs import graphics_files as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvgraft.base.jsonedit import Addition, Document, Place
    from nvgraft.host.graphics_files import CharDevice, FileMount
    from nvgraft.wrapper.additions import Additions

_DEVICES = "struct field Linux.linux.devices of type []specs.LinuxDevice"
_RULES = "struct field LinuxResources.linux.resources.devices of type []specs.LinuxDeviceCgroup"
_MOUNTS = "struct field Spec.mounts of type []specs.Mount"
_HOOKS = "struct field Hooks.hooks.createRuntime of type []specs.Hook"
_DESTINATION = "destination"
_GROUPS = "struct field User.process.user.additionalGids of type []uint32"


def config_edits(
    document: Document, additions: Additions, hook: dict[str, object] | None, *, groups: bool
) -> dict[str, Addition]:
    """Return the additions to be merged into the document's root. Arrays whose order changes are
    replaced in ``document`` here.

    :param hook: the OCI hook that makes the links, if there are any.
    :param groups: whether the process gets the groups of the nodes that only their group may open.
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
    nodes = [_node(node, *ids) for node in additions.nodes]
    rules = [_rule(node) for node in additions.nodes]
    old_rules = as_array(_value(document, resources, "devices"), _RULES)
    gids = dict.fromkeys(node.gid for node in additions.nodes if groups and node.needs_group)
    old_gids = as_array(_value(document, user, "additionalGids"), _GROUPS)
    edits: dict[str, Addition] = {
        "linux": {
            "devices": _put(document, linux, "devices", "path", nodes, _DEVICES),
            "resources": {
                "devices": []
                if old_rules[-len(rules) :] == rules
                else [dumps(rule) for rule in rules]
            },
        },
        "process": {
            "user": {"additionalGids": [dumps(gid) for gid in gids if gid not in old_gids]}
        },
        "mounts": _put(
            document, root, "mounts", _DESTINATION, map(_mount, additions.mounts), _MOUNTS
        ),
        "hooks": {
            "createRuntime": [dumps(hook)]
            if hook and hook not in as_array(_value(document, hooks, "createRuntime"), _HOOKS)
            else []
        },
    }
    return edits


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


def _node(node: CharDevice, uid: int, gid: int) -> dict[str, object]:
    """Return a node's entry in linux.devices. The owner is the process's user, and its group unless
    the node has one.
    """
    major, minor = node.rdev
    entry: dict[str, object] = {
        "path": node.path,
        "type": "c",
        "major": major,
        "minor": minor,
        "fileMode": node.mode,
    }
    owners = {"uid": uid, "gid": node.gid or gid}
    return entry | {name: value for name, value in owners.items() if value}


def _rule(node: CharDevice) -> dict[str, object]:
    major, minor = node.rdev
    return {"allow": True, "type": "c", "major": major, "minor": minor, "access": table.NODE_ACCESS}


def _mount(mount: FileMount) -> dict[str, object]:
    return {"destination": mount.target, "source": mount.path, "options": list(table.OPTIONS)}


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
