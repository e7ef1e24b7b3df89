"""Hostile requests of a container's environment (cases T32 and T33), from config.json to the plan.

The forms of single variables are tested with their readers (test_request, test_device_selection,
test_requirements).
"""

import json
import time

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import Bind, Plan
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config
from nvgraft.request.decision import INJECT, REFUSE, SKIP, decide
from nvgraft.request.request import check_request

LEGACY = Config(runtime_mode="legacy")


def outcome(
    *env: str, bounding: tuple[str, ...] = (), mounts: tuple[str, ...] = (), config: Config = LEGACY
) -> Plan | str:
    """Return the plan for a container with this environment on a host with two GPUs.

    A refusal is returned as its line, and a skip as "".
    """
    document = {
        "ociVersion": "1.0.2",
        "process": {"env": list(env), "capabilities": {"bounding": list(bounding)}},
        "root": {"path": "rootfs"},
        "mounts": [{"source": "/dev/null", "destination": destination} for destination in mounts],
    }
    decision = decide(json.dumps(document).encode("utf-8", "surrogatepass"), config, "/bundle")
    if decision.refusal is not None:
        assert decision.verdict == REFUSE
        return decision.refusal.line()
    if decision.request is None:
        assert decision.verdict == SKIP
        return ""
    assert decision.verdict == INJECT
    try:
        check_request(decision.request)
        return make_plan(
            decision.request,
            hosts.inventory(hosts.full_host()),
            hosts.target(),
            Settings(cgroups=True, simulated=False),
        )
    except Refusal as refusal:
        return refusal.line()


def refused(*env: str, **more: tuple[str, ...]) -> str:
    line = outcome(*env, **more)  # type: ignore[arg-type]
    assert isinstance(line, str), "the container was not refused"
    assert "\n" not in line
    assert len(line) <= 4096
    return line


def planned(*env: str) -> Plan:
    plan = outcome(*env)
    assert isinstance(plan, Plan), plan
    return plan


def gpus(plan: Plan) -> list[str]:
    return [
        path for path in hosts.binds(plan) if path.startswith("/dev/nvidia") and path[-1].isdigit()
    ]


# ---- T32


@pytest.mark.parametrize(
    "value",
    [
        "../../dev/sda",
        "/dev/sda",
        "0/../1",
        "0\u0660",
        "\uff10",
        "GPU-",
        "GPU",
        "gpu",
        "0,1,2",
        "0-1",
        "-1",
        "+-0",
        "0x0",
        "1e0",
        "all;0",
        "$(id)",
    ],
)
def test_t32_a_value_that_is_not_a_device_is_refused(value: str) -> None:
    """A value that is not exactly a device's name is refused.

    Paths, prefixes, digits of other scripts and arithmetic are not accepted.
    """
    assert "unknown device" in refused(f"NVIDIA_VISIBLE_DEVICES={value}")


def test_t32_every_prefix_of_a_uuid_is_unknown() -> None:
    """Only a whole UUID names a GPU, without regard to case."""
    uuid = hosts.full_host()["nvml"]["gpus"][0]["uuid"]
    assert gpus(planned(f"NVIDIA_VISIBLE_DEVICES={uuid}")) == gpus(
        planned(f"NVIDIA_VISIBLE_DEVICES={uuid.upper()}")
    )
    for end in range(1, len(uuid)):
        assert "unknown device" in refused(f"NVIDIA_VISIBLE_DEVICES={uuid[:end]}")
    for other in (uuid + "0", uuid + "\u200b", " " + uuid + "x"):
        assert "unknown device" in refused(f"NVIDIA_VISIBLE_DEVICES={other}")


@pytest.mark.parametrize("value", ["0\n", "0\x1b[2J", "0\x00", "\udc30", "0\udcff"])
def test_t32_a_value_that_is_not_text_is_refused(value: str) -> None:
    """A value with control characters or bad UTF-8 is refused with the variable's name only."""
    line = refused(f"NVIDIA_VISIBLE_DEVICES={value}")
    assert line.startswith("invalid environment variable: NVIDIA_VISIBLE_DEVICES | ")


def test_t32_a_hundred_thousand_items() -> None:
    """A value longer than any list of devices is refused for its length.

    A list of 4 KiB is one plan that has each device once.
    """
    start = time.process_time()
    line = refused("NVIDIA_VISIBLE_DEVICES=" + ",".join(["0"] * 100_000))
    assert line.startswith(
        "invalid environment variable: NVIDIA_VISIBLE_DEVICES | its value has 199999 bytes"
    )
    assert gpus(planned("NVIDIA_VISIBLE_DEVICES=" + ",".join(["0"] * 2048))) == ["/dev/nvidia0"]
    assert time.process_time() - start < 5


def test_t32_all_and_none_together() -> None:
    """Of `all` and `none` the first decides, whatever else is in the list, as in the reference."""
    assert len(gpus(planned("NVIDIA_VISIBLE_DEVICES=all,none"))) == 2
    for value in ("none", "none,all", "0,none", "none,0"):
        assert gpus(planned(f"NVIDIA_VISIBLE_DEVICES={value}")) == []


@pytest.mark.parametrize(
    ("entries", "devices"),
    [(("0", "1"), ["/dev/nvidia1"]), (("1", "0"), ["/dev/nvidia0"]), (("all", "none"), [])],
)
def test_t32_of_equal_variables_the_last_one_counts(
    entries: tuple[str, ...], devices: list[str]
) -> None:
    """The last of equal variables counts, as in the reference.

    Names in other letters are other variables.
    """
    env = [f"NVIDIA_VISIBLE_DEVICES={value}" for value in entries]
    assert (
        gpus(planned(*env, "nvidia_visible_devices=all", "NVIDIA_VISIBLE_DEVICES =all")) == devices
    )


def test_t32_tens_of_thousands_of_mounts() -> None:
    """Requests by mounts are bounded like the document.

    A mount that is cleaned to another path is not a request; an unknown name is refused as a whole.
    """
    config = Config(runtime_mode="legacy", accept_nvidia_visible_devices_as_volume_mounts=True)
    base = "/var/run/nvidia-container-devices"
    start = time.process_time()
    plan = outcome(mounts=tuple(f"{base}/{number % 2}" for number in range(40_000)), config=config)
    assert isinstance(plan, Plan)
    assert len(gpus(plan)) == 2
    assert "2: unknown device" in str(
        outcome(mounts=tuple(f"{base}/{number}" for number in range(40_000)), config=config)
    )
    assert time.process_time() - start < 5
    assert (
        outcome(mounts=(f"{base}/..", f"{base}/../../../../dev/sda", f"{base}/"), config=config)
        == ""
    )
    assert "document too large" in str(
        outcome(mounts=tuple(f"{base}/{number % 2}" for number in range(90_000)), config=config)
    )


# ---- T33


@pytest.mark.parametrize("kind", ["CONFIG", "MONITOR"])
def test_t33_mig_is_administered_with_privileges_only(kind: str) -> None:
    """MIG administration needs CAP_SYS_ADMIN in the bounding set, exactly so spelt."""
    env = ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_MIG_{kind}_DEVICES=all")
    for bounding in (
        (),
        ("CAP_SYS_ADMINX",),
        ("cap_sys_admin",),
        ("CAP_SYS_ADMIN ",),
        ("CAP_SYS_CHROOT",),
    ):
        assert refused(*env, bounding=bounding).startswith(
            f"cannot set MIG_{kind}_DEVICES in non privileged container"
        )
    assert isinstance(outcome(*env, bounding=("CAP_SYS_ADMIN",)), Plan)


@pytest.mark.parametrize(
    "value", ["../0", "-1", "\u0660", "0-2047", "4294967296", "9" * 4000, "0x0"]
)
def test_t33_channels_are_numbers_and_nothing_else(value: str) -> None:
    """An IMEX channel that is not a number is refused and never becomes a path below /dev."""
    assert refused("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={value}")


@pytest.mark.parametrize(
    "value",
    ["root", "compute,root", "../compute", "compute\u200b", "--help", "utility --ldconfig=/x"],
)
def test_t33_capabilities_are_known_names(value: str) -> None:
    """An unknown capability is refused and never becomes an option."""
    assert "unsupported capabilities" in refused(
        "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}"
    )


def test_t33_sources_are_always_the_hosts() -> None:
    """With every variable that the hook reads, each mount's source is still in the host's
    inventory.
    """
    plan = planned(
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        "CUDA_VERSION=1.0",
        "NVIDIA_DISABLE_REQUIRE=1",
        "HOME=/x",
    )
    host_files = set(hosts.full_host()["files"])
    sources = {action.source for action in plan.actions if isinstance(action, Bind)}
    assert sources
    assert all(
        source in host_files or source.startswith("/proc/driver/nvidia") for source in sources
    )


@pytest.mark.parametrize("text", ["cuda>=1 ", "cuda>=1,", "brand=x ", "arch>=1.0 driver>=1 "])
def test_t33_a_million_terms(text: str) -> None:
    """A million terms in one variable are too long; in many they are evaluated in linear time."""
    many = (text * 1_000_000)[:8_000_000]
    line = refused("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_REQUIRE_X={many}")
    # Commas count as values of the document, whose number is checked before the length of one.
    assert line.startswith(
        (
            "invalid environment variable: NVIDIA_REQUIRE_X | ",
            "could not decode OCI spec: document too large",
        )
    )
    each = (text * (65_000 // len(text)))[:-1]
    start = time.process_time()
    outcome(
        "NVIDIA_VISIBLE_DEVICES=all", *(f"NVIDIA_REQUIRE_{number}={each}" for number in range(100))
    )
    assert time.process_time() - start < 10
