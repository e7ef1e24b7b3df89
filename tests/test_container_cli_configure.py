"""`configure`: how options become the engine's request and settings.

Its effect on containers is tested in integration/.
"""

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import OfflineTarget, VirtualTree
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, SnapshotTree, snapshot_host
from nvgraft.plan.actions import AllowDevice, Bind, Plan
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.request import Request
from nvgraft.system import launch
from nvgraft_cli.container_cli import configure
from nvgraft_cli.container_cli.configure import prepare_process, request_of
from nvgraft_cli.container_cli.options import parse_configure


def request(line: str) -> Request:
    return request_of(parse_configure([*line.split(), "/rootfs"], "cli"))


def test_the_request_is_that_of_the_hook() -> None:
    """Empty ids are dropped and capabilities sorted; everything else stays as it was written."""
    parsed = request(
        "--device=,0 -d GPU-1 --utility --compute --require=cuda>=11 --imex-channel=1,2 "
        "--mig-config=all --mig-monitor=all"
    )
    assert parsed.devices == ("0", "GPU-1")
    assert parsed.capabilities == ("compute", "utility")
    assert parsed.requirements == ("cuda>=11",)
    assert parsed.imex_channels.written == ("1", "2")
    assert (parsed.mig_config, parsed.mig_monitor) == ("all", "all")
    assert parsed.devices_from == "--device=0,GPU-1"


def test_no_device_asks_for_driver_files_alone() -> None:
    """No --device asks for driver files alone, as the reference hook does for `none`."""
    assert request("--utility").devices == ()


def test_without_devbind_nodes_are_allowed_but_not_mounted() -> None:
    """With --no-devbind device nodes are allowed and not mounted: the caller has made them."""
    document = hosts.full_host()
    inventory = read_inventory(snapshot_host(document), OFFLINE_PATH)

    def plan(*, devbind: bool) -> Plan:
        target = OfflineTarget(
            VirtualTree(SnapshotTree({}), "/rootfs"), inventory.machine, (), module=True
        )
        return make_plan(
            Request(("all",), ("utility",)),
            inventory,
            target,
            Settings(cgroups=True, simulated=False, devbind=devbind),
        )

    def nodes(plan: Plan) -> list[str]:
        return [
            action.target
            for action in plan.actions
            if isinstance(action, Bind) and action.kind == "device"
        ]

    def rules(plan: Plan) -> list[tuple[int, int]]:
        return [
            (action.major, action.minor)
            for action in plan.actions
            if isinstance(action, AllowDevice)
        ]

    assert nodes(plan(devbind=True)) == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert nodes(plan(devbind=False)) == []
    assert (
        rules(plan(devbind=False)) == rules(plan(devbind=True)) == [(195, 255), (195, 0), (195, 1)]
    )


def test_the_environment_is_checked_where_a_hook_may_have_it_from_a_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LD_LIBRARY_PATH is refused with --pid, where a hook may have it from a container.

    Standalone it is the caller's own, and common.
    """
    reset: list[bool] = []
    monkeypatch.setattr(launch, "reset_process", lambda: reset.append(True))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    with pytest.raises(Refusal, match="LD_LIBRARY_PATH"):
        prepare_process(parse_configure(["--pid=4711", "/rootfs"], "cli"))
    assert reset == []
    prepare_process(parse_configure(["/rootfs"], "cli"))
    assert reset == [True]


@pytest.mark.parametrize(
    ("name", "value"), [("LD_LIBRARY_PATH", "/opt/engine/lib:"), ("LD_PRELOAD", "/opt/lib.so")]
)
def test_a_library_path_with_which_the_caller_was_started_is_its_own(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --pid, LD_LIBRARY_PATH is accepted if the caller was started with the same value; no
    other variable of the loader is.
    """
    monkeypatch.setattr(launch, "reset_process", lambda: None)
    environment = f"PATH=/bin\0{name}={value}\0"
    monkeypatch.setattr(configure, "read_text", lambda *_: environment)
    asked = parse_configure(["--pid=4711", "/rootfs"], "cli")
    for given in (value, value + "/more"):
        monkeypatch.setenv(name, given)
        if name == "LD_LIBRARY_PATH" and given == value:
            prepare_process(asked)
        else:
            with pytest.raises(Refusal, match=name):
                prepare_process(asked)
