"""The device plugin's decisions: configuration, resources, and the answers to the kubelet."""

import random
import time
from collections.abc import Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from nvgraft_device_plugin import api, health
from nvgraft_device_plugin import node as live
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.configuration import Configuration, check, load
from nvgraft_device_plugin.devices import (
    Device,
    MigDevice,
    MigProfile,
    Node,
    NodeGpu,
)
from nvgraft_device_plugin.errors import ConfigurationError, NodeError, RequestError
from nvgraft_device_plugin.node import numa_node
from nvgraft_device_plugin.preferred import choose
from nvgraft_device_plugin.resources import Resource, divide

SLICE = MigProfile(1, 1, 4864, 14, "")


def gpu(index: int, *migs: MigDevice, enabled: bool | None = None, numa: int | None = 0) -> NodeGpu:
    """Make a GPU of 40 GiB whose minor is not its index."""
    return NodeGpu(
        index=index,
        minor=7 - index,
        uuid=f"GPU-{index}",
        bus_id=f"00000000:{index:02X}:00.0",
        model="NVIDIA A100-SXM4-40GB",
        brand=14,
        arch="8.0",
        memory=40960,
        numa_node=numa,
        mig_enabled=enabled,
        mig_devices=migs,
    )


def mig(name: str, instance: int = 1, compute: int = 0, profile: MigProfile = SLICE) -> MigDevice:
    """Make a MIG device."""
    return MigDevice(f"MIG-{name}", instance, compute, profile)


#: Names of the capabilities of instances 1 to 3 of every GPU.
MINORS = {
    name: number
    for number, name in enumerate(
        f"gpu{minor}/gi{instance}/{part}access"
        for minor in range(8)
        for instance in (1, 2, 3)
        for part in ("", "ci0/", "ci1/")
    )
}


def node(*gpus: NodeGpu, platform: str = "nvml") -> Node:
    """Make a node."""
    return Node(platform, "550.54.15", "12.4", gpus, {}, MINORS)


def configured(*words: str, file: str = "", **environ: str) -> Configuration:
    """Return the configuration of a command line."""
    if file:
        words = (*words, "--config-file=given")
    return load(words, environ, lambda _: file.encode())


# ---- configuration


def test_the_command_line_comes_before_variables_and_the_file() -> None:
    """Each value comes from the first place that has one."""
    file = "version: v1\nflags: {migStrategy: mixed, plugin: {deviceIDStrategy: index, passDeviceSpecs: true}}"
    given = configured("-mig-strategy", "single", file=file, DEVICE_ID_STRATEGY="uuid")
    assert given.text("mig-strategy") == "single"
    assert given.text("device-id-strategy") == "uuid"
    assert given.switch("pass-device-specs")
    assert given.text("cdi-annotation-prefix") == "cdi.k8s.io/"


@pytest.mark.parametrize(
    ("words", "strategies"),
    [
        ([], {"envvar"}),
        (["--device-list-strategy=cdi-cri,envvar"], {"envvar", "cdi-cri"}),
        (["--device-list-strategy", "cdi-cri", "--device-list-strategy=envvar"], {"envvar", "cdi-cri"}),
    ],
)  # fmt: skip
def test_lists_take_commas_and_may_be_repeated(words: list[str], strategies: set[str]) -> None:
    """A list is the same in both spellings."""
    assert configured(*words).strategies == strategies


@pytest.mark.parametrize(
    ("words", "file", "text"),
    [
        (["--no-such-flag"], "", "flag provided but not defined: -no-such-flag"),
        (["--gds-enabled=maybe"], "", "invalid boolean value 'maybe' for --gds-enabled"),
        (["--mig-strategy"], "", "flag needs an argument: -mig-strategy"),
        (["serve"], "", "unexpected argument 'serve'"),
        ([], "version: v2", "unknown version: v2"),
        ([], "a: [b", "yaml: unmarshal error: "),
        ([], "- a", "not a map of keys"),
        ([], "a: " + "[" * 100_000, "nested too deeply: more than 64 levels in line 1"),
        ([], "flags: {}\nflags: {}", "duplicate member 'flags' in line 2, column 1"),
        ([], "flags: {migStrategy: [x]}", "flags.migStrategy: invalid value ['x']"),
        ([], "resources: {gpus: [{name: gpu}]}", "resources must have a 'pattern' field set"),
        ([], "sharing: {timeSlicing: {}}", "no resources specified"),
        ([], "sharing: {timeSlicing: {resources: [{replicas: 2}]}}", "no resource name specified"),
        ([], "sharing: {timeSlicing: {resources: [{name: gpu}]}}", "no replicas specified"),
        ([], "sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}", "number of replicas must be >= 2"),
        ([], "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 0}]}}", "must be above 0"),
        ([], "sharing: {timeSlicing: {resources: [{name: amd.com/gpu, replicas: 2}]}}", "incorrect format for resource name 'nvidia.com/amd.com/gpu'"),
        ([], "sharing: {timeSlicing: {resources: [{name: gpu, replicas: two}]}}", "sharing.timeSlicing.resources.0.replicas: "),
        ([], "imex: {channelIDs: [1]}", "channelIDs must be [] or [0]; found [1]"),
    ],
)  # fmt: skip
def test_a_wrong_configuration(words: list[str], file: str, text: str) -> None:
    """The error has the reference's words, and names the place."""
    with pytest.raises(ConfigurationError) as caught:
        configured(*words, file=file)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("words", "file", "text"),
    [
        (["--device-list-strategy=foo"], "", "invalid --device-list-strategy option: invalid strategy: foo"),
        (["--device-list-strategy=cdi-cri"], "", "CDI --device-list-strategy options are only supported on NVML-based systems"),
        (["--device-list-strategy="], "", "invalid --device-list-strategy option: no strategy is given: containers would get no device"),
        ([], "flags: {plugin: {deviceListStrategy: []}}", "invalid --device-list-strategy option: no strategy is given: containers would get no device"),
        (["--device-id-strategy=x"], "", "invalid --device-id-strategy option: x"),
        (["--shared-devices-allocation-policy=x"], "", "invalid --shared-devices-allocation-policy option: x"),
        (["--device-discovery-strategy=x"], "", "invalid --device-discovery-strategy option x"),
        (["--mig-strategy=x"], "", "unknown MIG strategy: x"),
        (["--mig-strategy=mixed"], "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "using --mig-strategy=mixed is not supported with MPS"),
        ([], "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "using MPS requires --mps-root to be specified"),
    ],
)  # fmt: skip
def test_values_that_exclude_each_other(words: list[str], file: str, text: str) -> None:
    """They are refused before the node is served."""
    with pytest.raises(ConfigurationError) as caught:
        check(configured(*words, file=file), has_nvml=False)
    cause, _, fix = str(caught.value).partition(" | ")
    assert cause == text
    assert fix


def test_keys_without_a_value_count_as_left_out() -> None:
    """A key of YAML that ends with its colon is null."""
    given = configured(
        file="version:\nflags: {migStrategy: , failOnInitError: , plugin: {deviceListStrategy: }}\n"
        "sharing: {mps: , timeSlicing: {renameByDefault: , resources: [{name: gpu, rename: ,"
        " replicas: 2}]}}\nimex: {channelIDs: }\nresources: {gpus: }\n"
    )
    assert given.values == {**configured().values, "config-file": "given"}
    assert given.sharing is not None and not given.mps and given.warnings == ()


# ---- resources


def names(read: Node, *words: str, file: str = "") -> dict[str, list[str]]:
    """Return resource -> ids of a node."""
    divided = divide(read, configured(*words, file=file))
    return {
        resource.name: [device.id for device in resource.devices] for resource in divided.resources
    }


def test_mixed_has_a_resource_for_each_profile() -> None:
    """GPUs without MIG stay GPUs; names have no plus sign."""
    media = MigProfile(1, 1, 4864, 14, "+me")
    large = MigProfile(3, 3, 19968, 42, "")
    read = node(
        gpu(0), gpu(1, mig("a"), mig("b", 2, 0, large), mig("c", 3, 0, media), enabled=True)
    )
    assert names(read, "--mig-strategy=mixed") == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/mig-1g.5gb": ["MIG-a"],
        "nvidia.com/mig-3g.20gb": ["MIG-b"],
        "nvidia.com/mig-1g.5gb.me": ["MIG-c"],
    }


def test_a_gpu_in_mig_mode_that_is_given_as_a_whole() -> None:
    """CDI specifications do not have it, so the engine refuses its containers."""
    read = node(gpu(0), gpu(1, mig("a"), enabled=True))
    assert divide(read, configured()).warnings == ()
    (warning,) = divide(read, configured("--device-list-strategy=cdi-cri")).warnings
    assert warning.startswith("GPU 1 is in MIG mode and given as a whole")


def test_a_compute_instance_that_is_smaller_than_its_instance_is_left_out() -> None:
    """It does not keep the other devices of the node from being served."""
    odd = MigProfile(3, 1, 19968, 14, "")
    divided = divide(
        node(gpu(0), gpu(1, mig("a", 1, 0, odd), enabled=True)), configured("--mig-strategy=mixed")
    )
    assert [resource.name for resource in divided.resources] == ["nvidia.com/gpu"]
    assert "MIG profile '1c.3g.20gb' does not match any resource patterns" in divided.warnings[0]


def test_single_makes_one_kind_of_all() -> None:
    """MIG devices are GPUs to pods; a MIG GPU without devices is left out with a warning."""
    read = node(
        gpu(0, mig("a"), enabled=True), gpu(1, mig("b"), enabled=True), gpu(2, enabled=True)
    )
    divided = divide(read, configured("--mig-strategy=single"))
    assert [device.id for device in divided.resources[0].devices] == ["MIG-a", "MIG-b"]
    assert divided.warnings == ("device 2 has no MIG devices configured: it is left out",)
    assert names(node(gpu(0), gpu(1)), "--mig-strategy=single") == {
        "nvidia.com/gpu": ["GPU-0", "GPU-1"]
    }


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ([gpu(0, enabled=True)], "device 0 has no MIG devices configured"),
        ([gpu(0, mig("a"), enabled=True), gpu(1)], "the same migEnabled value"),
        ([gpu(0, mig("a"), mig("b", 2, 0, MigProfile(2, 2, 9856, 28, "")), enabled=True)], "more than one MIG device type"),
        ([gpu(0, mig("a", 9), enabled=True)], "missing MIG GPU instance capability path"),
    ],
)  # fmt: skip
def test_single_wants_equal_devices(gpus: list[NodeGpu], text: str) -> None:
    """A node that does not fit the strategy is refused, with what does not fit."""
    with pytest.raises(NodeError, match=text):
        divide(node(*gpus), configured("--mig-strategy=single"))


def test_a_mig_device_has_three_nodes() -> None:
    """Its GPU's, and one for each of its instances."""
    (resource,) = divide(
        node(gpu(0, mig("a", 2, 1), enabled=True)), configured("--mig-strategy=single")
    ).resources
    caps = [MINORS["gpu7/gi2/access"], MINORS["gpu7/gi2/ci1/access"]]
    assert resource.devices[0].paths == (
        "/dev/nvidia7",
        *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in caps),
    )
    assert resource.devices[0].index == "0:0"


@pytest.mark.parametrize(("platform", "device"), [("tegra", "tegra"), ("wsl", "all")])
def test_other_platforms_have_one_device(platform: str, device: str) -> None:
    """It stands for all that the platform has."""
    assert names(node(platform=platform)) == {"nvidia.com/gpu": [device]}


def test_shares() -> None:
    """Each device of a named resource becomes several; the name may say so."""
    file = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}"
    assert names(node(gpu(0)), file=file) == {"nvidia.com/gpu.shared": ["GPU-0::0", "GPU-0::1"]}
    file = "sharing: {timeSlicing: {resources: [{name: other, replicas: 2}]}}"
    assert names(node(gpu(0)), file=file) == {"nvidia.com/gpu": ["GPU-0"]}


def test_more_shares_than_a_kubelet_can_be_told_of() -> None:
    """A typing error in the number of replicas does not fill the memory."""
    for count in (25_001, 10**30):
        file = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {count}}}]}}}}"
        with pytest.raises(NodeError, match=f"2 devices with {count} .* [|] write fewer replicas"):
            divide(node(gpu(0), gpu(1)), configured(file=file))


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        (MigProfile(1, 1, 4864, 14, ""), "1g.5gb"),
        (MigProfile(2, 2, 9856, 28, ""), "2g.10gb"),
        (MigProfile(3, 3, 19968, 42, ""), "3g.20gb"),
        (MigProfile(7, 7, 40192, 98, ""), "7g.40gb"),
        (MigProfile(4, 2, 19968, 28, "+gfx"), "2c.4g.20gb+gfx"),
    ],
)
def test_names_of_profiles(profile: MigProfile, name: str) -> None:
    """The memory is the GPU's, in eighths."""
    assert profile.name(40960) == name


# ---- Allocate

SHARED = Resource("nvidia.com/gpu", tuple(d for d in [Device("GPU-0", "GPU-0", "0", "GPU-0", None, ("/dev/nvidia7",), 0)] for d in d.shares(3)), 3)  # fmt: skip
TWO = Resource(
    "nvidia.com/gpu",
    (
        Device("GPU-0", "GPU-0", "0", "GPU-0", None, ("/dev/nvidia7",), 0),
        Device("MIG-a", "MIG-a", "1:0", "GPU-1", (1, 0), ("/dev/nvidia6", "/dev/nvidia-caps/nvidia-cap3"), None),
    ),
)  # fmt: skip


def allocated(resource: Resource, ids: list[str], *words: str, **more: Any) -> dict[str, Any]:
    """Return what a container gets, without what is empty."""
    allocator = Allocator(
        resource, configured(*words, file=more.pop("file", "")), exists=lambda _: True, **more
    )
    answer = allocator.allocate(ids)
    api.message("ContainerAllocateResponse")(**answer)  # it fits the message
    return {name: value for name, value in answer.items() if value}


def test_the_variable_names_devices_once() -> None:
    """Several shares of a GPU are the GPU."""
    assert allocated(SHARED, ["GPU-0::2", "GPU-0::0"]) == {
        "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
    }
    assert allocated(TWO, ["MIG-a", "GPU-0"], "--device-id-strategy=index") == {
        "envs": {"NVIDIA_VISIBLE_DEVICES": "1:0,0"}
    }


def test_volume_mounts_replace_the_list() -> None:
    """A pod cannot forge a mount as it can a variable."""
    answer = allocated(
        TWO, ["GPU-0"], "--device-list-strategy=envvar,volume-mounts", channels=["0"]
    )
    assert answer["envs"]["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert [mount["container_path"] for mount in answer["mounts"]] == [
        "/var/run/nvidia-container-devices/GPU-0",
        "/var/run/nvidia-container-devices/imex/0",
    ]


def test_cdi_names() -> None:
    """Both ways to name CDI devices have the same names; optional parts need a specification."""
    answer = allocated(
        TWO,
        ["GPU-0"],
        "--device-list-strategy=cdi-annotations,cdi-cri",
        "--gds-enabled",
        "--mofed-enabled",
        classes={"gds"},
    )
    names = ["k8s.device-plugin.nvidia.com/gpu=GPU-0", "k8s.device-plugin.nvidia.com/gds=all"]
    assert [device["name"] for device in answer["cdi_devices"]] == names
    ((key, value),) = answer["annotations"].items()
    assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
    assert value == ",".join(names)
    assert answer["envs"] == {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}


def test_device_specs_are_named_on_the_host() -> None:
    """The kubelet's CPU manager keeps the nodes that it knows of."""
    answer = allocated(TWO, ["MIG-a"], "--pass-device-specs", "--driver-root=/run/nvidia/driver")
    assert [node["host_path"] for node in answer["devices"]][-2:] == [
        "/run/nvidia/driver/dev/nvidia6",
        "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap3",
    ]
    assert answer["devices"][0] == {
        "container_path": "/dev/nvidiactl",
        "host_path": "/run/nvidia/driver/dev/nvidiactl",
        "permissions": "rw",
    }


def test_mps_mounts_its_pipe() -> None:
    """Clients find the daemon of their resource."""
    file = "sharing: {mps: {resources: [{name: gpu, replicas: 3}]}}"
    answer = allocated(SHARED, ["GPU-0::1"], "--mps-root=/run/mps", file=file)
    assert answer["envs"]["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert answer["mounts"][0]["host_path"] == "/run/mps/nvidia.com/gpu/pipe"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["GPU-9"], "invalid request: unknown device: GPU-9"),
        (["GPU-0::0", "GPU-0::1"], "invalid request: maximum request size for shared resources is 1; found 2"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_answered(ids: list[str], text: str) -> None:
    """The error is the reference's."""
    file = "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 3}]}}"
    with pytest.raises(
        RequestError, match=f'invalid allocation request for "nvidia.com/gpu": {text}'
    ):
        allocated(SHARED, ids, file=file)


# ---- GetPreferredAllocation


def plain(count: int) -> list[Device]:
    """Make whole GPUs A, B, ..."""
    return [
        Device(name, name, "0", name, None, ("/dev/nvidia0",), 0)
        for name in "ABCDEFGHIJKLMNOPQRST"[:count]
    ]


def both(pairs: Mapping[str, int], other: int, letters: str) -> dict[tuple[str, str], int]:
    """Return the scores of all pairs of letters."""
    scores = dict.fromkeys(((a, b) for a in letters for b in letters if a != b), other)
    for (a, b), score in ((tuple(pair), score) for pair, score in pairs.items()):
        scores[a, b] = scores[b, a] = score
    return scores


@pytest.mark.parametrize(
    ("required", "chosen"), [([], "AC"), (["D"], "BD"), (["A"], "AC"), (["B"], "BD")]
)
def test_what_remains_is_near_each_other_too(required: list[str], chosen: str) -> None:
    """The best pair alone would leave two GPUs that are far apart."""
    scores = both({"AB": 300, "AC": 200, "BD": 200}, 10, "ABCD")
    found = choose(plain(4), list("ABCD"), required, 2, scores, packed=False)
    assert "".join(sorted(found)) == chosen


@pytest.mark.parametrize(
    ("size", "required", "chosen"),
    [(3, [], "ABC"), (3, ["D"], "ABD"), (1, ["D"], "D"), (1, [], "A"), (4, [], "ABCD")],
)
def test_a_division_that_does_not_come_out_even(
    size: int, required: list[str], chosen: str
) -> None:
    """One set is smaller; of equal divisions the first counts."""
    scores = both({"AB": 440, "CD": 440}, 20, "ABCD")
    found = choose(plain(4), list("ABCD"), required, size, scores, packed=False)
    assert "".join(sorted(found)) == chosen


@pytest.mark.parametrize(
    ("available", "required", "size"),
    [("AB", [], 3), ("AB", [], 0), ("AB", ["A", "B"], 1), ("AB", ["C"], 2)],
)
def test_nothing_fits(available: str, required: list[str], size: int) -> None:
    """An impossible wish has an empty answer; the kubelet then chooses."""
    assert choose(plain(4), list(available), required, size, {}, packed=False) == []


def test_an_unknown_gpu() -> None:
    """The kubelet may know devices of an earlier start."""
    with pytest.raises(RequestError, match="no device with uuid: Z"):
        choose(plain(2), ["A", "Z"], [], 1, {}, packed=False)


def by_trying_all(letters: str, size: int, scores: Mapping[tuple[str, str], int]) -> int:
    """Return the sum of the best division, by trying all of them."""

    def total(members: tuple[str, ...]) -> int:
        return sum(scores[pair] for pair in combinations(members, 2))

    def best(left: str) -> int:
        if not left:
            return 0
        return max(
            total((left[0], *others)) + best("".join(c for c in left[1:] if c not in others))
            for others in combinations(left[1:], size - 1)
        )

    return best(letters)


@pytest.mark.parametrize("seed", range(8))
def test_the_division_is_the_best_one(seed: int) -> None:
    """The set that is chosen is part of a division with the greatest sum."""
    number = random.Random(seed)
    letters = "ABCDEFGH"
    scores = both({a + b: number.randrange(500) for a, b in combinations(letters, 2)}, 0, letters)
    chosen = choose(plain(8), list(letters), [], 2, scores, packed=False)
    rest = "".join(letter for letter in letters if letter not in chosen)
    assert scores[chosen[0], chosen[1]] + by_trying_all(rest, 2, scores) == by_trying_all(
        letters, 2, scores
    )


def test_many_gpus_are_chosen_quickly() -> None:
    """A node of more GPUs than can be compared has an answer too."""
    letters = "ABCDEFGHIJKLMNOPQRST"
    scores = both({"AT": 100, "ST": 90}, 1, letters)
    assert sorted(choose(plain(20), list(letters), ["T"], 3, scores, packed=False)) == [
        "A",
        "S",
        "T",
    ]


def shares(*counts: int) -> list[Device]:
    """Make GPUs A, B, ... with so many shares."""
    return [
        share
        for device, count in zip(plain(len(counts)), counts, strict=True)
        for share in device.shares(count)
    ]


@pytest.mark.parametrize(
    ("taken", "size", "packed", "picks"),
    [
        ([], 3, False, {"A": 2, "B": 1}),
        ([], 3, True, {"A": 3}),
        (["A::0"], 1, False, {"B": 1}),
        (["B::0"], 1, True, {"B": 1}),
        (["A::0", "A::1"], 4, False, {"A": 1, "B": 3}),
    ],
)
def test_shares_are_spread_or_packed(
    taken: list[str], size: int, packed: bool, picks: dict[str, int]
) -> None:
    """They come from the GPU with the fewest taken, or with the most."""
    devices = shares(4, 4)
    available = [device.id for device in devices if device.id not in taken]
    found = choose(devices, available, [], size, {}, packed=packed)
    assert {name: sum(chosen.startswith(name) for chosen in found) for name in picks} == picks
    assert len(set(found)) == size


def test_too_few_shares() -> None:
    """That is an error, unlike for whole GPUs."""
    with pytest.raises(RequestError, match="not enough available devices"):
        choose(shares(2), ["A::0"], [], 2, {}, packed=False)


def test_required_shares_are_always_chosen() -> None:
    """Also those that the plugin does not know."""
    assert choose(shares(2), ["A::0"], ["Z::1"], 2, {}, packed=False) == ["Z::1", "A::0"]


def test_a_large_node_answers_quickly() -> None:
    """64 GPUs with 7 MIG devices of 10 shares each: the work grows with the number of devices."""
    devices = [
        share
        for number in range(64 * 7)
        for share in Device(
            f"M{number}", f"M{number}", "0:0", "G", (1, 0), ("/dev/nvidia0",), 0
        ).shares(10)
    ]
    began = time.process_time()
    found = choose(devices, [device.id for device in devices], [], 64, {}, packed=False)
    assert len(found) == 64
    assert time.process_time() - began < 5


# ---- health


@pytest.mark.parametrize(
    ("environ", "counting", "ignoring"),
    [
        ({}, [48, 79, 94], [13, 31, 43, 45, 68, 109]),
        ({"DP_DISABLE_HEALTHCHECKS": "79"}, [48], [13, 79]),
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, [], [13, 79]),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, [], [13, 79]),
        ({"DP_ENABLE_HEALTHCHECKS": "13"}, [13, 79], [31]),
        ({"DP_ENABLE_HEALTHCHECKS": "all"}, [13, 31, 79], []),
        ({"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "74"}, [74], [79]),
    ],
)
def test_which_xids_count(
    environ: dict[str, str], counting: list[int], ignoring: list[int]
) -> None:
    """An Xid that is enabled counts, whatever is disabled."""
    xids, problems = health.watched_xids(environ)
    assert problems == []
    assert [xid for xid in counting + ignoring if xids.counts(xid)] == counting
    assert xids.watching == bool(counting)


def test_malformed_xids_are_named() -> None:
    """The others count."""
    xids, problems = health.watched_xids({"DP_DISABLE_HEALTHCHECKS": "79, x1"})
    assert not xids.counts(79)
    assert problems == [
        "ignoring malformed Xid 'x1' in DP_DISABLE_HEALTHCHECKS | write numbers, or all"
    ]


@pytest.mark.parametrize(
    ("instances", "concerned"),
    [(None, ["GPU-1", "MIG-a", "MIG-b"]), ((1, 0), ["GPU-1", "MIG-a"]), ((3, 0), ["GPU-1"])],
)
def test_what_an_event_concerns(instances: tuple[int, int] | None, concerned: list[str]) -> None:
    """All of a GPU's devices, or those of the instance that NVML names."""
    devices = [
        Device("GPU-1", "GPU-1", "1", "GPU-1", None, (), 0),
        Device("MIG-a", "MIG-a", "1:0", "GPU-1", (1, 0), (), 0),
        Device("MIG-b", "MIG-b", "1:1", "GPU-1", (2, 0), (), 0),
        Device("GPU-2", "GPU-2", "2", "GPU-2", None, (), 0),
    ]
    change = health.Change(frozenset({"GPU-1"}), instances, "Xid 48")
    assert [device.id for device in devices if change.concerns(device)] == concerned


def test_a_gpu_that_cannot_be_watched_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called healthy before its events can be had."""
    changes: list[health.Change] = []
    outcomes = [True, False, False]
    waits: list[None] = []
    watcher = health.EventWatcher(
        ["GPU-1"], health.watched_xids({})[0], changes.append, print, probe_after=1e-9
    )

    def register(*_: object) -> None:
        if outcomes.pop():
            return
        raise pynvml.NVMLError_Unknown

    def wait(_events: object, _milliseconds: int) -> Any:
        waits.append(None)
        if len(waits) == 4:
            watcher.stop()
        raise pynvml.NVMLError_Timeout

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", object)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", lambda _: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSupportedEventTypes", lambda _: 11)
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", register)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(health, "_answers", lambda _: True)
    watcher.run()
    ill = "NVML cannot watch it: Unknown Error"
    assert [change.reason for change in changes] == [ill, ill, ""]


@pytest.mark.parametrize(
    ("answering", "ill"), [({"GPU-1"}, ["GPU-2"]), (set(), ["GPU-1", "GPU-2"]), ({"GPU-1", "GPU-2"}, ["GPU-1", "GPU-2"])]
)  # fmt: skip
def test_a_lost_gpu_that_nvml_does_not_name(
    answering: set[str], ill: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not answer are unhealthy; if all of them do, all are, as in the reference."""
    changes: list[health.Change] = []
    watcher = health.EventWatcher(
        ["GPU-1", "GPU-2"], health.watched_xids({})[0], changes.append, print
    )

    def wait(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(health, "_WAIT", 0)
    monkeypatch.setattr(health, "_answers", lambda uuid: uuid in answering)
    watcher._wait(object())
    assert [sorted(change.gpus) for change in changes] == [ill]
    assert watcher.failure == "waiting for events: GPU is lost"


def test_a_driver_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are served without health checks, and nothing is said to hang."""

    def fail() -> None:
        raise pynvml.NVMLError_NotSupported

    warnings: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", fail)
    monkeypatch.setattr(health, "SILENCE", -1.0)
    watcher = health.EventWatcher(["GPU-1"], health.watched_xids({})[0], print, warnings.append)
    assert "no answer for" in watcher.failure
    watcher.run()
    assert watcher.failure == ""
    assert warnings[0].startswith("no health checks: NVML makes no event set: Not Supported | ")


def test_a_gpu_that_answers_again_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some time after its Xid a GPU is asked; one that does not answer stays unhealthy."""
    events = [
        SimpleNamespace(eventType=8, eventData=79, device="GPU-1", gpuInstanceId=2**32 - 1, computeInstanceId=2**32 - 1),
        SimpleNamespace(eventType=2, eventData=0, device="GPU-2", gpuInstanceId=0, computeInstanceId=0),
        SimpleNamespace(eventType=8, eventData=13, device="GPU-2", gpuInstanceId=0, computeInstanceId=0),
    ]  # fmt: skip
    changes: list[health.Change] = []
    answering = iter([False, False, True])
    watcher = health.EventWatcher(
        ["GPU-1", "GPU-2"],
        health.watched_xids({})[0],
        changes.append,
        lambda _: None,
        probe_after=1e-9,
    )

    def wait(_events: object, _milliseconds: int) -> Any:
        if not events:
            if len(changes) == 2:
                watcher.stop()
            raise pynvml.NVMLError_Timeout
        return events.pop(0)

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", object)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", lambda _: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSupportedEventTypes", lambda _: 11)
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", lambda *_: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: handle)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(health, "_answers", lambda _: next(answering))
    watcher.run()
    assert [(sorted(change.gpus), change.reason) for change in changes] == [
        (["GPU-1"], "Xid 79"),
        (["GPU-1"], ""),
    ]


def test_a_mig_device_without_attributes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML may fail for one that is just being destroyed; the others are served."""
    facts = SimpleNamespace(
        gpuInstanceSliceCount=1, computeInstanceSliceCount=1, memorySizeMB=4864, multiprocessorCount=14,
        sharedCopyEngineCount=1, sharedDecoderCount=0, sharedEncoderCount=0, sharedJpegCount=0, sharedOfaCount=0,
    )  # fmt: skip

    def attributes(device: int) -> object:
        if device == 1:
            raise pynvml.NVMLError_NotFound
        return facts

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda _: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", lambda _, place: place)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda device: f"MIG-{device}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuInstanceId", lambda device: device + 7)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeInstanceId", lambda _: 0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetAttributes_v2", attributes)
    monkeypatch.setattr(pynvml, "nvmlErrorString", lambda _: b"Not Found")
    monkeypatch.setattr(live, "_suffix", lambda *_: "")
    faults: list[str] = []
    found = list(live._mig_devices(object(), "GPU 0", faults))
    assert [device.uuid for device in found] == ["MIG-0", "MIG-2"]
    assert faults == ["GPU 0: MIG device 1: Not Found"]


@pytest.mark.parametrize(("text", "number"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("x", None)])
def test_the_numa_node(text: str, number: int | None, tmp_path: Any) -> None:
    """The kernel's addresses have four digits of the domain."""
    (tmp_path / "0000:0a:00.0").mkdir()
    (tmp_path / "0000:0a:00.0/numa_node").write_text(text)
    assert numa_node("00000000:0A:00.0", str(tmp_path)) == number


def test_messages_are_those_of_the_api() -> None:
    """Field numbers are part of the wire format, also of maps."""
    answer = api.message("ContainerAllocateResponse")(envs={"A": "b"}, cdi_devices=[{"name": "c"}])
    assert answer.SerializeToString() == b"\x0a\x06\x0a\x01A\x12\x01b\x2a\x03\x0a\x01c"
    register = api.message("RegisterRequest")(
        version="v1beta1", options={"get_preferred_allocation_available": True}
    )
    assert register.SerializeToString() == b"\x0a\x07v1beta1\x22\x02\x10\x01"
