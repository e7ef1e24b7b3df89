"""Offline plans compared with the recorded behaviour of the reference: mounts in order, devices,
links, texts.

The records are in tests/fixtures/reference, which says with docs/decisions what is compared and
which cases planning covers. Cases that need a live host are run by
integration/test_reference_cases.py.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nvgraft.plan.actions import AllowDevice, Bind, Plan, Symlink, Tmpfs, WriteFile
from planned import plan_bundle

REFERENCE = Path(__file__).parent / "fixtures" / "reference"
HOSTS = ("al460", "d470", "d535", "d535x32", "mig570", "run560")
ROOTFS = "c/b/rootfs"


def is_live(case: dict[str, Any]) -> bool:
    """Return whether a case depends on something that is not in files: NVML's answers, or a mount's
    state.
    """
    return (
        "host_files" in case
        or "NVML_STUB" in case["toml"]
        or case.get("ro")
        or case.get("procdriver") is False
    )


@cache
def cases(host: str) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, (REFERENCE / "mounts" / f"{host}.jsonl").read_text().splitlines())
    return {row["name"]: row for row in rows if not is_live(row)}


def all_cases() -> Iterator[Any]:
    for host in HOSTS:
        for name in cases(host):
            yield pytest.param(host, name, id=name)


@pytest.fixture(scope="session")
def rootfs_templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One bundle directory for each rootfs template; cases share them, because planning changes
    nothing.
    """
    bundles = {}
    for name, entries in json.loads((REFERENCE / "mounts" / "rootfs.json").read_text()).items():
        bundle = tmp_path_factory.mktemp(name)
        root = bundle / ROOTFS
        root.mkdir(parents=True)
        for path, kind, *rest in entries:
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "d":
                place.mkdir(exist_ok=True)
            elif kind == "l":
                place.symlink_to(rest[0])
            else:
                place.write_text(rest[1] if kind == "f" and len(rest) > 1 else "")
                place.chmod(rest[0] if kind == "f" and rest else 0o755)
        bundles[name] = bundle
    return bundles


def mounts_of(plan: Plan) -> list[tuple[str, str, str, list[str]]]:
    rows = []
    for action in plan.actions:
        if isinstance(action, Tmpfs):
            rows.append(("tmpfs", "tmpfs", action.target, list(action.options)))
        elif isinstance(action, Bind):
            rows.append(("bind", action.source, action.target, list(action.options)))
    return rows


@pytest.mark.parametrize(("host", "name"), list(all_cases()))
def test_a_plan_equals_the_recorded_behaviour(
    host: str, name: str, rootfs_templates: dict[str, Path], tmp_path: Path
) -> None:
    """The plan from snapshot, config.json, config.toml and rootfs alone equals what was
    recorded.
    """
    case = cases(host)[name]
    expected = case["expect"]
    bundle = rootfs_templates[case["rootfs"]]
    (bundle / "config.json").write_text(json.dumps(case["config"]))
    toml = tmp_path / "config.toml"
    toml.write_text(case["toml"])
    plan, refusal = plan_bundle(str(bundle), str(REFERENCE / "hosts" / f"{host}.json"), str(toml))
    if refusal is not None and (expected["rc"] == 0 or not expected["mounts"]):
        assert expected["rc"] != 0, refusal.line()
        phrase = expected["stderr"].strip().splitlines()[-1].split(": ", 1)[-1]
        assert phrase in refusal.line()
        return
    if expected["rc"] != 0 and "/lib/firmware/" in expected["stderr"]:
        # The reference lets the kernel follow a linked firmware directory and fails; resolved
        # inside the rootfs, the mount succeeds.
        return
    assert refusal is None
    assert expected["rc"] == 0 or expected["mounts"], (
        "the reference refused this container before it mounted anything"
    )
    assert mounts_of(plan) == [
        (row["fstype"], row["source"], row["target"], row["options"]) for row in expected["mounts"]
    ]
    if expected["rc"] != 0:
        # The reference failed late, without an /etc for the loader cache, and nothing more was
        # recorded.
        return
    allowed = sorted(
        {
            f"c {action.major}:{action.minor} {action.access}"
            for action in plan.actions
            if isinstance(action, AllowDevice)
        }
    )
    assert allowed == expected["devices"]
    links = {
        action.path: action.target for action in plan.actions if isinstance(action, Symlink)
    } | dict(plan.links)
    assert links == {
        path: node["link"] for path, node in expected["created"].items() if node["type"] == "l"
    }
    written = {
        action.path: action.content for action in plan.actions if isinstance(action, WriteFile)
    }
    # The records have the texts in tmpfs mounts at their usual places, and those in bound
    # directories.
    recorded = ("/proc/driver/nvidia/", "/etc/nvidia/")
    bound = ("/proc/driver/nvidia/gpus/", "/proc/driver/nvidia/capabilities/")
    texts = {path: text for path, text in expected["texts"].items() if not path.startswith(bound)}
    assert {path: text for path, text in written.items() if path.startswith(recorded)} == texts


def test_the_records_are_there() -> None:
    """The fixtures exist: without them the test above would have no cases and pass."""
    assert sum(len(cases(host)) for host in HOSTS) > 300
