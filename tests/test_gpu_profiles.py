"""GPU profiles, and what a host document says of a simulated GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from nvgraft_cli.simulate.standins import data
from nvgraft_specs import gallery, profiles
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models.gpu_profile import (
    GpuProfile,
    load_profile,
    parse_profile,
    profile_of_model,
)
from nvgraft_specs.models.host import Host, parse_host

PROMISED = {
    "t4",
    "v100-sxm2-16gb",
    "a10",
    "a10g",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "l4",
    "l40s",
    "h100-sxm",
    "h200-sxm",
    "b200",
    "gb200",
    "rtx-4090",
    "rtx-5090",
}
#: CUDA cores of a multiprocessor, by compute capability (CUDA C++ Programming Guide).
CORES = {
    "7.0": 64,
    "7.5": 64,
    "8.0": 64,
    "8.6": 128,
    "8.9": 128,
    "9.0": 128,
    "10.0": 128,
    "12.0": 128,
}


@pytest.fixture(params=profiles.names())
def profile(request: pytest.FixtureRequest) -> GpuProfile:
    """Load each profile."""
    return load_profile(request.param)


def test_the_promised_products_have_profiles() -> None:
    """Every product that this project promises has a profile."""
    assert set(profiles.names()) >= PROMISED


def test_a_profile_has_the_name_of_its_file(profile: GpuProfile) -> None:
    """A profile is found by its own name, and by each model name that NVML may print."""
    assert profile == load_profile(profile.name)
    assert [profile_of_model(model) for model in profile.models] == [profile] * len(profile.models)


def test_the_values_of_a_product_agree(profile: GpuProfile) -> None:
    """Cores are those of the multiprocessors; limits are in order; MIG fits into the memory."""
    values = profile.values()
    assert values["cores"] == values["sm_count"] * CORES[values["compute_capability"]]
    assert values["power_min_w"] <= values["power_limit_w"] <= values["power_max_w"]
    for row in profile.mig.profiles if profile.mig else ():
        assert row.memory_mib <= values["memory_mib"]
        assert row.sm_count <= values["sm_count"]
        assert all(start + row.size <= 8 for start in row.starts)
        assert row.name.startswith(f"{row.slices}g.")


def test_a_value_has_one_source() -> None:
    """A value that two groups state, or a group without a source, is refused."""
    head = 'schema = "nvgraft.gpu-profile/1"\nname = "x"\ntitle = "X"\nmodels = ["X"]\nbrand = 14\n'
    group = '[[facts]]\nsource = "a text"\nsm_count = 1\n'
    assert parse_profile(head + group).values() == {"sm_count": 1}
    with pytest.raises(ValueError, match="sm_count has two sources"):
        parse_profile(head + group * 2)
    with pytest.raises(ValueError, match=r"facts\.0\.source"):
        parse_profile(head + "[[facts]]\nsm_count = 1\n")


def document(**changes: Any) -> bytes:
    """Return the document of two H100 without MIG, with changes to the first GPU; a key that
    starts with an underscore is one of the document.
    """
    found = json.loads(Path(gallery.path("mig-h100")).read_text())
    first = found["nvml"]["gpus"][0]
    first |= {"mig": "disabled", "mig_devices": []}
    for key, value in changes.items():
        if key.startswith("_"):
            found[key[1:]] = value
        else:
            first[key] = value
    return json.dumps(found).encode()


def parsed(**changes: Any) -> Host:
    """Parse :func:`document`."""
    return parse_host(document(**changes), "x.json")


def mig(*names: str, instance: int | None = None) -> dict[str, Any]:
    """Return the keys of a GPU with MIG devices of these profiles, each in a GPU instance of its
    own unless ``instance`` is given.
    """
    devices = [
        {
            "uuid": f"MIG-{index}",
            "gpu_instance": index + 1 if instance is None else instance,
            "compute_instance": 0 if instance is None else index,
            "profile": name,
        }
        for index, name in enumerate(names)
    ]
    return {"mig": "enabled", "mig_devices": devices}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"profile": "h101"},
            r"\$\.nvml\.gpus\[0\]\.profile: there is no GPU profile 'h101' \| name one of a10, ",
        ),
        (
            {"profile": "t4", "compute_capability": "7.5"},
            r"\$\.nvml\.gpus\[0\]\.mig: a NVIDIA T4 has no MIG \| set it to \"unsupported\"",
        ),
        (
            {"profile": "t4"},
            r"gpus\[0\]\.compute_capability: a NVIDIA T4 has 7\.5, not 9\.0 \| set it to 7\.5",
        ),
        (
            mig("1g.5gb"),
            (
                r"mig_devices\[0\]\.profile: '1g\.5gb' is not a MIG profile of this GPU \| name one of"
                r" 1g\.10gb, "
            ),
        ),
        (
            {"model": "Tesla T4", **mig("1g.5gb")},
            r"'1g\.5gb' is not a MIG profile of this GPU \| name a GPU profile with MIG",
        ),
        (mig("4g.40gb", "4g.40gb"), r"4g\.40gb, 4g\.40gb do not fit on one GPU"),
        (
            mig("3g.40gb", "3g.40gb", "1g.20gb"),
            r"do not fit on one GPU \(7 compute slices, 8 memory",
        ),
        (
            mig("1c.1g.10gb", "1c.1g.10gb", instance=1),
            r"GPU instance 1 has 1 compute slices, its compute instances 2",
        ),
        (mig("1g.10gb", "2g.20gb", instance=1), r"GPU instance 1 has two profiles"),
        (mig("1g.10gb") | {"mig": "disabled"}, r"MIG devices without MIG mode \| set it to"),
        (
            {"_topology": {"numa": [{"node": 0, "cpus": "0-3", "gpus": [0, 2]}]}},
            r"\$\.topology\.numa\[0\]\.gpus: there is no GPU 2 \| name GPUs by their index, 0 to 1",
        ),
        ({"_topology": {"levels": [["X", "SYS"]]}}, r"levels: it should have 2 rows of 2 levels"),
        (
            {"model": "NVIDIA L4", "_topology": {"nvlink": "switch"}},
            r"\$\.topology\.nvlink: GPU 0, NVIDIA L4, has no NVLink \| leave nvlink out",
        ),
        ({"values": {"sm_count": "many"}}, r"gpus\[0\]\.values\.sm_count: "),
        ({"values": {"smcount": 1}}, r"gpus\[0\]\.values\.smcount: extra inputs are not permitted"),
        ({"values": {"power_w": {"every_s": 0, "values": [1]}}}, r"power_w.*every_s: "),
        ({"values": {"cuda_attributes": {"sm": 1}}}, r"gpus\[0\]\.values\.cuda_attributes"),
    ],
)
def test_the_impossible_is_refused_with_cause_and_fix(
    changes: dict[str, Any], message: str
) -> None:
    """An unknown profile, an impossible combination or a wrong value is one line with its place."""
    with pytest.raises(DocumentError, match=message) as error:
        parsed(**changes)
    assert "\n" not in str(error.value)
    assert error.value.fix


def test_values_of_the_document_replace_the_profiles() -> None:
    """A GPU answers with its document's values, then with its profile's; a script of values becomes
    a list in the unit of the stand-ins.
    """
    script = {"every_s": 5, "values": [70, 300.5]}
    source = data.c_source(
        parsed(values={"memory_mib": 7, "power_w": script, "cuda_attributes": {"16": 99}})
    )
    first, second = source[source.index("struct sim_gpu gpus_") :].splitlines()[1:3]
    assert ".memory_mib = 7, " in first
    assert ".memory_mib = 81559, " in second
    assert ".power_limit_mw = 700000, " in first
    assert "70000,\n  300500}" in source
    assert ", 2, 5}, .memory_used_mib" in first
    assert "{16, 99}" in source
    assert "{16, 132}" in source


def test_links_and_levels_are_of_the_topology() -> None:
    """NVLinks lead where the topology says, and GPUs of one NUMA node are nearer than others."""
    bridged = {
        "nvlink": [{"gpus": [0, 1], "links": 4}],
        "numa": [
            {"node": 0, "cpus": "0-31", "gpus": [0]},
            {"node": 1, "cpus": "32-63", "gpus": [1]},
        ],
    }
    source = data.c_source(parsed(_topology=bridged))
    assert source.count(".end = SIM_LINK_GPU, .gpu = 1,") == 4
    assert source.count(".end = SIM_LINK_GPU, .gpu = 0,") == 4
    assert "{\n  0,\n  50}" in source
    assert ".numa_node = 1" in source
    assert '.cpus = "32-63"' in source
    assert ".has_fabric = 0" in source
    switched = data.c_source(parsed(_topology={"nvlink": "switch"}))
    assert switched.count(".end = SIM_LINK_SWITCH") == 18
    assert switched.count(".nvlinks = nvlinks_") == 2
    assert ".has_fabric = 1" in switched


def test_gpus_of_one_node_without_a_topology() -> None:
    """Where the document says nothing of NUMA nodes, GPUs are neighbours in one: nvidia-smi topo
    never prints an unknown path between two GPUs. A GPU beside the nodes that it names is unknown.
    """
    node = "{\n  0,\n  40}"
    assert node in data.c_source(parsed())
    assert node in data.c_source(parsed(_topology={"nvlink": "switch"}))
    one = {"numa": [{"node": 0, "cpus": "0-3", "gpus": [1]}]}
    assert node not in data.c_source(parsed(_topology=one))


def test_gpus_share_answers_but_no_handles() -> None:
    """Equal answers stand in the file once; GPU instances, whose addresses are handles, do not."""
    source = data.c_source(parse_host(document_of_two(mig("3g.40gb")), "x.json"))
    assert source.count("struct sim_gi_profile gi_profiles_") == 1
    assert source.count("struct sim_gpu_instance gpu_instances_") == 2
    assert source.count("struct sim_mig_device mig_devices_") == 2


def document_of_two(changes: dict[str, Any]) -> bytes:
    """Return :func:`document` with the same changes to both GPUs."""
    found = json.loads(document(**changes))
    found["nvml"]["gpus"][1] |= changes
    return json.dumps(found).encode()


def test_mig_devices_have_the_size_of_their_profiles() -> None:
    """A MIG device has the memory and multiprocessors of its profile, and its placement; a part of
    a GPU instance has its share of them.
    """
    devices = mig("3g.40gb", "1g.10gb")["mig_devices"]
    parts = mig("1c.2g.20gb", "1c.2g.20gb", instance=9)["mig_devices"]
    source = data.c_source(
        parsed(mig="enabled", mig_devices=[*devices, parts[0], {**parts[1], "uuid": "MIG-z"}])
    )
    lines = [line for line in source.splitlines() if ".ci_slices" in line]
    assert [
        (".sm_count = 60" in line, ".memory_mib = 40448" in line, ".size = 3" in line)
        for line in lines
    ] == [(True, True, True), *[(False, False, False)] * 3]
    assert [".start = 1," in line for line in lines] == [False, False, False, True]
    assert '.name = "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb"' in source
    assert ".id = 1, .profile = 4, .start = 0, .size = 4}" in source
    assert ".id = 9, .profile = 3, .start = 4, .size = 2}" in source
    assert ".id = 2, .profile = 0, .start = 6, .size = 1}" in source
