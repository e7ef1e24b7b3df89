"""Bundles of the lab's containers."""

import os
import re
import stat
from typing import Any

from nvgraft.system import syscalls
from nvgraft_cli.shell.errors import InputError


def bundle_config(bundle: str) -> dict[str, Any]:
    """Return the config.json of ``bundle`` with an absolute root.path.

    :raises InputError: it cannot be used.
    """
    from nvgraft_specs.documents import DocumentError, load_json, read_bytes

    path = f"{bundle}/config.json"
    try:
        config = load_json(read_bytes(path), path)
    except DocumentError as error:
        raise InputError(str(error)) from error
    root, process = (member(config, name) for name in ("root", "process"))
    place, arguments = root.get("path"), process.get("args")
    if not isinstance(place, str) or not isinstance(arguments, list) or not arguments:
        raise InputError(
            f"{path}: it has no root.path or process.args | name the directory of an OCI bundle"
        )
    root["path"] = os.path.join(os.path.abspath(bundle), place)
    if not os.path.isdir(root["path"]):
        raise InputError(
            f"{path}: root.path {place!r} is not a directory | unpack the image's root file system"
            " there"
        )
    namespaces = member(config, "linux").get("namespaces")
    if not isinstance(namespaces, list) or "mount" not in [
        entry.get("type") for entry in namespaces if isinstance(entry, dict)
    ]:
        raise InputError(
            f"{path}: the container has no mount namespace of its own, so that no driver can be"
            ' mounted for it alone | add {"type": "mount"} to linux.namespaces, as engines do'
        )
    process["env"] = [str(entry) for entry in process.get("env") or ()]
    return dict(config)


def member(config: object, name: str) -> dict[str, Any]:
    """Return a member of config.json that is an object, or an empty one."""
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def private_root(image: str, work: str) -> str:
    """Return a root file system that shows ``image``; changes in it leave ``image`` as it is.

    Where the kernel stacks no further overlay, it is ``image`` itself, which is the node's copy.
    """
    root = f"{work}/rootfs"
    for part in ("upper", "work"):
        os.makedirs(f"{work}/layers/{part}")
    os.makedirs(root)
    status = os.stat(image)
    os.chown(f"{work}/layers/upper", status.st_uid, status.st_gid)
    os.chmod(f"{work}/layers/upper", stat.S_IMODE(status.st_mode))
    lower = "".join("\\" + letter if letter in "\\:," else letter for letter in image)
    layers = f"lowerdir={lower},upperdir={work}/layers/upper,workdir={work}/layers/work"
    try:
        syscalls.mount("overlay", root, "overlay", 0, layers)
    except OSError:
        return image
    return root


def last_line(text: str) -> str:
    """Return the last line of runc's log: its message, without the time and the level."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    message = re.search(r'msg="((?:[^"\\]|\\.)*)"', line)
    return message[1].replace('\\"', '"') if message else line
