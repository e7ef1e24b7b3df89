"""What systemd does to a container's device rules when it reloads its units.

With systemd's cgroup driver the rules of config.json are properties of the container's unit. At
`systemctl daemon-reload` systemd applies them again, in place of the rules that are there: what a
hook has allowed besides is gone (NVIDIA/nvidia-container-toolkit#48).
"""

import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from nvgraft.apply import bpf
from nvgraft.apply.cgroup import DeviceCgroup, find_cgroup
from nvgraft.plan.actions import AllowDevice, Why

#: What runc always allows: making nodes, the common ones, and terminals.
_ALWAYS = (
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
)
#: The rule that allows every device.
EVERYTHING = "a"
#: A device program of cgroup v2 that allows everything: r0 = 1; exit.
_ALLOW = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)
#: The end of a device program of cgroup v2: r0 = 0; exit.
_DENY = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)


def reload(pid: int, config: dict[str, Any]) -> None:
    """Apply the device rules of a config.json to the cgroup of its container again.

    :raises nvgraft.base.errors.Refusal: the container has no device cgroup.
    :raises OSError: the cgroup cannot be changed.
    """
    cgroup = find_cgroup(pid)
    try:
        apply(cgroup, [*_ALWAYS, *rules(config)])
    finally:
        cgroup.close()


def apply(cgroup: DeviceCgroup, lines: list[str]) -> None:
    """Replace the rules of a cgroup.

    On cgroup v2, whose program is replaced, only rules with both numbers count, and no right to
    make nodes.

    :param lines: rules as devices.allow takes them.
    """
    if cgroup.version == 1:
        for name, line in [("deny", "a"), *(("allow", line) for line in lines)]:
            with open(f"{cgroup.path}/devices.{name}", "w", encoding="ascii") as file:
                file.write(line)
        return
    fd = os.open(cgroup.path, os.O_RDONLY | os.O_DIRECTORY)
    flags, programs = bpf.query(fd)
    new = bpf.load(
        _ALLOW if EVERYTHING in lines else bpf.allow_code(list(_numbered(lines))) + _DENY
    )
    for program in programs:
        old = bpf.open_program(program)
        bpf.replace(fd, old, new, flags)
        os.close(old)
    os.close(new)
    os.close(fd)


def rules(config: Mapping[str, Any]) -> list[str]:
    """Return the device rules of a config.json that allow something, as devices.allow takes them.

    A rule for all devices takes back those before it; if it allows, it is :data:`EVERYTHING`.
    """
    resources = (config.get("linux") or {}).get("resources") or {}
    found: list[str] = []
    for rule in resources.get("devices") or ():
        kind, numbers = rule.get("type") or "a", [rule.get("major"), rule.get("minor")]
        if kind == "a":
            found = [EVERYTHING] if rule.get("allow") else []
        elif rule.get("allow") and kind in {"b", "c"}:
            place = ":".join("*" if number in (None, -1) else str(number) for number in numbers)
            found.append(f"{kind} {place} {rule.get('access') or 'rwm'}")
    return found


def _numbered(lines: list[str]) -> Iterator[AllowDevice]:
    for line in lines:
        kind, place, access = line.split()
        major, minor = place.split(":")
        access = "".join(letter for letter in "rw" if letter in access)
        if kind == "c" and major.isdecimal() and minor.isdecimal() and access:
            yield AllowDevice(int(major), int(minor), Why("", "config.json", "config.json"), access)
