"""A plan of CDI edits says exactly what a container of runc then has: nodes, device rules, mounts,
variables, groups, hooks, links and files.
"""

import json
import re
from typing import Any, NamedTuple

import pytest

from containers import Bundle, environment, set_mode

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "cgroup-v1")

LOOK = r"""
echo "== env"; env
echo "== groups"; sed -n 's/^Groups:\s*//p' /proc/self/status
echo "== mounts"; cat /proc/self/mountinfo
echo "== nodes"; find /dev -type c -o -type b -o -type p | xargs stat -c '%n|%F|%t|%T|%a|%u|%g'
echo "== links"; find / -xdev -path /opt/board -prune -o -type l -print | while read link; do echo "$link|$(readlink $link)"; done
echo "== files"; find /etc -xdev -type f | xargs md5sum
"""

#: Runs the container of a config.json and prints its device rules, what it sees, and config.json.
RUN = """
run() {{
    cp {path}/$1.json {path}/config.json
    {runtime} create --bundle {path} {name} > /run/out 2>&1 < /dev/null || {{ cat /run/out; exit 1; }}
    echo "==== $1"; echo "== rules"; cat /sys/fs/cgroup/devices/{name}/devices.list
    {runtime} start {name} || exit 3
    for _ in $(seq 600); do
        {runtime} state {name} | grep -q '"status": "stopped"' && break; sleep 0.05
    done
    {runtime} delete {name} || exit 4
    cat /run/out; echo "== config"; cat {path}/config.json; echo
}}
"""

#: A specification of somebody, with everything that an engine can carry out.
SPECIFICATION: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "example.com/board",
    "containerEdits": {"env": ["COMMON=yes", "SHARED=common"], "additionalGids": [0, 27]},
    "devices": [
        {
            "name": "one",
            "containerEdits": {
                "env": ["SHARED=device"],
                "additionalGids": [44, 27],
                "deviceNodes": [
                    {
                        "path": "/dev/board0",
                        "hostPath": "/dev/nvidia0",
                        "permissions": "rw",
                        "fileMode": 0o640,
                        "uid": 7,
                        "gid": 44,
                    },
                    {"path": "/dev/nvidia1"},
                    {"path": "/dev/board-pipe", "type": "p", "fileMode": 0o600},
                    {
                        "path": "/dev/board-disk",
                        "type": "b",
                        "major": 7,
                        "minor": 9,
                        "permissions": "r",
                    },
                ],
                "mounts": [
                    {
                        "hostPath": "/etc/hostname",
                        "containerPath": "/opt/board/name",
                        "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
                    },
                    {
                        "hostPath": "/usr/share",
                        "containerPath": "/opt/board/share",
                        "options": ["rw", "rbind", "rprivate"],
                    },
                    {
                        "hostPath": "tmpfs",
                        "containerPath": "/opt/board/scratch",
                        "type": "tmpfs",
                        "options": ["nosuid", "noexec", "mode=0750"],
                    },
                ],
                "hooks": [
                    {
                        "hookName": "createRuntime",
                        "path": "/bin/true",
                        "args": ["true", "board"],
                        "env": ["BOARD=1"],
                        "timeout": 7,
                    },
                    {
                        "hookName": "createContainer",
                        "path": "@PREFIX@/bin/nvgraft-cdi-hook",
                        "args": ["nvgraft-cdi-hook", "create-symlinks", "--link", "x::/opt/y"],
                        "env": ["A=b"],
                    },
                ],
            },
        }
    ],
}


class Setup(NamedTuple):
    """A host, the runtime's mode, and what a container asks for."""

    mode: str
    host: str = "runfile-a10x2"
    env: tuple[str, ...] = ("NVIDIA_VISIBLE_DEVICES=all",)
    annotation: str = ""
    user: tuple[int, int] = (0, 0)
    hooks: str = "one"


CASES = {
    "generated": Setup("jit-cdi"),
    "each-hook": Setup("auto", hooks="each", user=(1000, 1001)),
    "mig": Setup("auto", host="mig-h100"),
    "group": Setup("auto", host="jetson-orin", user=(1000, 1001)),
    "wsl": Setup("auto", host="wsl2-rtx3090"),
    "wsl-none": Setup("auto", host="wsl2-rtx3090", env=("NVIDIA_VISIBLE_DEVICES=none",)),
    "specification": Setup("cdi"),
    "annotation": Setup("auto", annotation="nvidia.com/gpu=1"),
    "annotations": Setup("cdi", annotation="example.com/board=one,nvidia.com/gpu=0", env=()),
    "somebodys": Setup("cdi", annotation="example.com/board=one", user=(1000, 1001)),
}


class Container(NamedTuple):
    """What a container has, by kind: name -> value."""

    rules: dict[str, str]
    env: dict[str, str]
    groups: set[int]
    mounts: dict[str, tuple[str, ...]]
    nodes: dict[str, list[str]]
    links: dict[str, str]
    files: dict[str, str]
    hooks: dict[str, Any]


_ATIME = {"relatime", "noatime", "nodiratime", "strictatime"}
_KINDS = {"character special file": "c", "block special file": "b", "fifo": "p"}


def seen(text: str) -> Container:
    """Return what RUN has printed of a container."""
    words = re.split(r"^== (\w+)\n", text, flags=re.MULTILINE)
    parts = dict(zip(words[1::2], words[2::2], strict=True))
    lines = {name: part.splitlines() for name, part in parts.items()}
    mounts = [line.split() for line in lines["mounts"]]
    nodes = [line.split("|") for line in lines["nodes"]]
    rules: dict[str, str] = {}
    for line in lines["rules"]:
        device, _, access = line.rpartition(" ")
        rules[device] = access
    return Container(
        rules,
        dict(line.split("=", 1) for line in lines["env"] if "=" in line),
        {int(word) for word in lines["groups"][0].split()},
        {
            row[4]: tuple(sorted(word for word in row[5].split(",") if word not in _ATIME))
            for row in mounts
        },
        {
            path: [_KINDS[kind], str(int(major, 16)), str(int(minor, 16)), mode, uid, gid]
            for path, kind, major, minor, mode, uid, gid in nodes
        },
        dict(line.split("|") for line in lines["links"]),
        {line.split()[1]: line.split()[0] for line in lines["files"]},
        json.loads(parts["config"]).get("hooks") or {},
    )


def new(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that are new or different."""
    return {name: value for name, value in now.items() if before.get(name) != value}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_what_the_container_has(bundle: Bundle, name: str) -> None:
    """Everything that the plan names is there as it says, and nothing else is new."""
    setup = CASES[name]
    bundle.set_program(LOOK)
    bundle.edit(lambda config: config.pop("hooks"))
    config = bundle.path / "config.json"

    def ask(document: dict[str, Any]) -> None:
        document["process"]["user"] = {"uid": setup.user[0], "gid": setup.user[1]}
        if setup.annotation:
            document["annotations"] = {"cdi.k8s.io/board": setup.annotation}

    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=void"))
    bundle.edit(
        lambda document: document["process"].update(
            user=dict(zip(("uid", "gid"), setup.user, strict=True))
        )
    )
    (bundle.path / "without.json").write_text(config.read_text())
    bundle.edit(environment(*setup.env))
    bundle.edit(ask)
    (bundle.path / "with.json").write_text(config.read_text())
    (bundle.path / "board.json").write_text(
        json.dumps(SPECIFICATION).replace("@PREFIX@", str(bundle.installed.prefix))
    )
    cli, prefix = bundle.installed.cli, bundle.installed.prefix
    script = (
        set_mode(setup.mode, setup.hooks)
        + f"""
mkdir -p /etc/cdi && cp {bundle.path}/board.json /etc/cdi/
{cli} cdi generate --hooks nvgraft --output /etc/cdi/nvidia.yaml || exit 9
{cli} plan --mode runtime --format json --container {bundle.path} || exit 8
"""
        + RUN.format(
            path=bundle.path,
            name=bundle.name,
            runtime=f"{prefix}/bin/nvgraft-runtime --root /run/rt",
        )
        + "run without; run with"
    )
    done = bundle.on_host(script, host=setup.host)
    assert done.returncode == 0, done.stdout + done.stderr
    text, without, with_ = done.stdout.split("==== ")
    plan = json.loads(text)
    before, now = seen(without), seen(with_)
    actions = plan["actions"]

    nodes = [action for action in actions if action.get("node")]
    assert new(now.nodes, before.nodes) == {
        a["target"]: [
            a["node"],
            *map(str, a["rdev"]),
            f"{int(a['mode'], 8):o}",
            str(a["uid"]),
            str(a["gid"]),
        ]
        for a in nodes
    }
    rules: dict[str, str] = {}
    for a in (a for a in actions if a["op"] == "allow-device"):
        device = f"{a['type']} {a['major']}:{a['minor']}"
        rules[device] = "".join(c for c in "rwm" if c in rules.get(device, "") + a["access"])
    assert new(now.rules, before.rules) == new(rules, before.rules)
    mounts = {
        a["target"]: tuple(a["options"]) for a in actions if a["op"] == "mount" and "node" not in a
    }
    assert new(now.mounts, before.mounts) == mounts
    variables = {a["name"]: a["value"] for a in actions if a["op"] == "env"}
    assert {name: now.env.get(name) for name in variables} == variables
    assert set(new(now.env, before.env)) <= {*variables, "NVIDIA_VISIBLE_DEVICES"}
    assert now.groups - before.groups == {a["gid"] for a in actions if a["op"] == "group"}
    links = {a["path"]: a["target"] for a in actions if a["op"] == "symlink"} | plan["links"]
    assert new(now.links, before.links) == links
    files = {a["path"] for a in actions if a["op"] == "file"}
    written = set(new(now.files, before.files)) - {"/etc/ld.so.cache", *mounts}
    assert written == files
    hooks: dict[str, list[dict[str, Any]]] = {}
    for a in (a for a in actions if a["op"] == "hook"):
        entry = {name: a[name] for name in ("path", "args", "env", "timeout")}
        hooks.setdefault(a["stage"], []).append({k: v for k, v in entry.items() if v is not None})
    assert now.hooks == hooks
    asked = (
        [*setup.annotation.split(",")] if setup.annotation else [e.split("=")[1] for e in setup.env]
    )
    assert plan["request"]["devices"] == ([] if asked == ["none"] else asked)
    if setup.annotation:
        assert plan["request"]["devices_from"] == "annotation cdi.k8s.io/board"
