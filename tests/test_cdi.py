"""CDI specifications of hosts and plans: equal to recorded output of `nvidia-ctk cdi generate`."""

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import hosts
from bundles import EVERYTHING, make_bundle
from nvgraft.cdi.discovery import CdiFacts, discover, live_facts, recorded_facts
from nvgraft.cdi.specification import HookProgram, host_spec
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.actions import AllowDevice, Bind, Plan, Tmpfs, Why
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.cdi import DEFAULT_STRATEGIES, HOOK, spec
from nvgraft_cli.cdi.planned import planned_spec
from nvgraft_cli.shell.main import main
from nvgraft_cli.snapshot.recording import record
from nvgraft_specs import gallery
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

FIXTURES = Path(__file__).parent / "fixtures"
RECORDS = FIXTURES / "reference/cdi"
LIBDIR = "/usr/lib/x86_64-linux-gnu"
CURRENT = f"{LIBDIR}/nvidia/current"

#: Files of a record's machine that its snapshot lacks, since no plan needs them; the record itself
#: shows that they existed.
DEBIAN = """
/etc/OpenCL/vendors/nvidia.icd
"""
DEBIAN_GRAPHICS = """
/usr/share/vulkan/icd.d/nvidia_icd.json
/usr/share/vulkan/implicit_layer.d/nvidia_layers.json
/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json
/usr/share/glvnd/egl_vendor.d/10_nvidia.json
"""
NOT_RECORDED = {
    "al460": "",
    "d470": DEBIAN + DEBIAN_GRAPHICS,
    "d535": DEBIAN
    + DEBIAN_GRAPHICS
    + f"""
{LIBDIR}/libnvidia-nvvm.so.535.309.01 -> nvidia/current/libnvidia-nvvm.so.535.309.01
{CURRENT}/libnvidia-encode.so -> libnvidia-encode.so.1
{CURRENT}/libnvidia-fbc.so -> libnvidia-fbc.so.1
{CURRENT}/libnvidia-ml.so -> libnvidia-ml.so.1
{CURRENT}/libnvidia-ngx.so -> libnvidia-ngx.so.1
{CURRENT}/libnvidia-vulkan-producer.so.535.309.01 elf libnvidia-vulkan-producer.so.535.309.01
{CURRENT}/libvdpau_nvidia.so.1 -> libvdpau_nvidia.so.535.309.01
{CURRENT}/libvdpau_nvidia.so.535.309.01 elf libvdpau_nvidia.so.1
""",
    "d535x32": DEBIAN
    + f"""
{LIBDIR}/libnvidia-nvvm.so.535.261.03 -> nvidia/current/libnvidia-nvvm.so.535.261.03
{CURRENT}/libnvidia-encode.so -> libnvidia-encode.so.1
{CURRENT}/libnvidia-fbc.so -> libnvidia-fbc.so.1
{CURRENT}/libnvidia-ml.so -> libnvidia-ml.so.1
""",
}


def reference_host(name: str) -> Document:
    document: Document = json.loads((FIXTURES / f"reference/hosts/{name}.json").read_text())
    return document


def generate(document: Document, *strategies: str) -> Document:
    """Return the specification of a recorded host, as data."""
    discovered = discover(snapshot_host(document), OFFLINE_PATH, recorded_facts(document))
    text = spec.text(
        host_spec(discovered, strategies or DEFAULT_STRATEGIES, HookProgram(HOOK)), "json"
    )
    parse_specification(text.encode(), "spec")
    check_schema(json.loads(text))
    data: Document = json.loads(text)
    return data


def check_schema(document: Document) -> None:
    """Check a specification against CDI's own JSON schema."""
    schema, definitions = (
        json.loads((FIXTURES / "cdi-schema" / name).read_text())
        for name in ("schema.json", "defs.json")
    )
    registry = jsonschema_rs.Registry([("defs.json", definitions)], draft=jsonschema_rs.Draft7)
    jsonschema_rs.Draft7Validator(schema, registry=registry).validate(document)


def small_host(extra: str = "", **changes: Any) -> Document:
    """Return a host with a few libraries in one directory, and ``extra`` lines of its tree."""
    lines = f"""
{LIBDIR}/libcuda.so.535.1 elf libcuda.so.1
{LIBDIR}/libcuda.so.1 -> libcuda.so.535.1
/dev/nvidiactl char 195:255
/dev/nvidia0 char 195:0
{extra}
"""
    document = hosts.host(lines, gpus=[hosts.gpu(0)])
    return document | changes


def sources(document: Document) -> list[str]:
    return [mount["hostPath"] for mount in document["containerEdits"]["mounts"]]


def hook_arguments(edits: Document, name: str) -> list[list[str]]:
    return [hook["args"][2:] for hook in edits.get("hooks", ()) if hook["args"][1] == name]


def link_arguments(edits: Document) -> set[str]:
    return {word for arguments in hook_arguments(edits, "create-symlinks") for word in arguments}


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_a_record_of_the_reference_is_reproduced(name: str) -> None:
    """A specification equals the reference's byte for byte, except for white space."""
    document = reference_host(name)
    document["files"] |= hosts.tree(NOT_RECORDED[name])
    assert json.dumps(generate(document)) == json.dumps(
        json.loads((RECORDS / f"{name}.json").read_text())
    )


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_only_missing_files_are_left_out(name: str) -> None:
    """A snapshot that lacks files gives exactly the rest of the record."""
    written, recorded = (
        generate(reference_host(name))["containerEdits"],
        json.loads((RECORDS / f"{name}.json").read_text())["containerEdits"],
    )
    absent = hosts.tree(NOT_RECORDED[name])
    assert written["mounts"] == [
        mount for mount in recorded["mounts"] if mount["hostPath"] not in absent
    ]
    assert link_arguments(written) <= link_arguments(recorded)
    assert (written["env"], written["deviceNodes"]) == (recorded["env"], recorded["deviceNodes"])


@pytest.mark.parametrize("name", gallery.with_hook())
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_specifications_of_the_gallery(name: str, form: str, capsys: Captured) -> None:
    """YAML and JSON are equal and follow CDI's schema; a note says which files are not recorded."""
    assert main(["cdi", "generate", "--host", name, "--format", form]) == 0
    out, err = capsys.readouterr()
    data = yaml.safe_load(out) if form == "yaml" else json.loads(out)
    assert data == generate(read_snapshot(name))
    parse_specification(out.encode(), "spec")
    assert f"nvgraft cdi: {read_snapshot(name)['name']}: not recorded: " in err
    assert "&" not in out


def test_a_driver_root_is_only_in_host_paths() -> None:
    """Container paths and device nodes are those of a host without a driver root."""
    document = generate(read_snapshot("operator-driver-root"))
    edits = document["containerEdits"]
    assert {
        (
            mount["hostPath"].removeprefix("/run/nvidia/driver"),
            "/run/nvidia/driver" in mount["containerPath"],
        )
        for mount in edits["mounts"]
    } == {(mount["containerPath"], False) for mount in edits["mounts"]}
    assert all(path.startswith("/run/nvidia/driver/") for path in sources(document))
    assert "/run/nvidia/driver" not in str(edits["env"] + edits["deviceNodes"] + edits["hooks"])


def test_options_of_sockets_and_of_the_mps_directory() -> None:
    """Sockets and the MPS directory are mounted writable and noexec."""
    mounts = {
        mount["hostPath"]: mount["options"]
        for mount in generate(read_snapshot("runfile-a10x2"))["containerEdits"]["mounts"]
    }
    for path in (
        "/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
    ):
        assert mounts[path] == ["nosuid", "nodev", "rbind", "rprivate", "noexec"]


def test_mig_devices_have_their_capability_nodes() -> None:
    """A MIG device has its GPU's node and two capability nodes.

    A GPU with MIG enabled is not a device itself.
    """
    document = generate(read_snapshot("mig-h100"), "index", "uuid", "type-index")
    devices = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    caps = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    uuid = read_snapshot("mig-h100")["nvml"]["gpus"][0]["mig_devices"][0]["uuid"]
    assert devices["0:0"] == devices["mig0:0"] == devices[uuid] == caps
    assert devices["1"] == devices["gpu1"] == ["/dev/nvidia1"]
    assert "0" not in devices
    assert list(devices) == sorted(devices)
    assert set(devices["all"]) == {path for paths in devices.values() for path in paths}


def test_a_device_without_its_nodes_is_left_out(tmp_path: Path, capsys: Captured) -> None:
    """A device whose nodes are missing is left out, and a note says so.

    Without any device there is no specification, and the exit code is 1.
    """
    document = read_snapshot("mig-h100")
    del document["files"]["/dev/nvidia-caps/nvidia-cap12"]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document))
    assert main(["cdi", "generate", "--host", str(path), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert "is left out: this host has no device node /dev/nvidia-caps/nvidia-cap12" in err
    assert [device["name"] for device in json.loads(out)["devices"] if ":" in device["name"]] == [
        "0:1",
        "0:2",
    ]
    for node in ("/dev/nvidia0", "/dev/nvidia1"):
        del document["files"][node]
    path.write_text(json.dumps(document))
    assert main(["cdi", "generate", "--host", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("nvgraft: detection error: no devices | ")


ETC_ICD, SHARE_ICD = "/etc/OpenCL/vendors/nvidia.icd", "/usr/share/OpenCL/vendors/nvidia.icd"
GBM = "/share/egl/egl_external_platform.d/15_nvidia_gbm.json"
ICD = "vulkan/icd.d/nvidia_icd"
XORG = "xorg/modules/drivers/nvidia_drv.so"
EGL = f"{LIBDIR}/libnvidia-egl-gbm.so.1"
FIRMWARE = ("/lib/firmware/6.1.0/nvidia/535.1/gsp_a.bin", "/lib/firmware/nvidia/535.1/gsp_b.bin")


@pytest.mark.parametrize(
    ("lines", "mounts"),
    [
        ([ETC_ICD, SHARE_ICD], {ETC_ICD: ETC_ICD}),
        ([f"/usr/local{GBM}"], {f"/usr/local{GBM}": f"/usr{GBM}"}),
        ([f"/{ICD}.json"], {f"/{ICD}.json": f"/etc/{ICD}.json"}),
        (
            [f"/usr/share/{ICD}.x86_64.json"],
            {f"/usr/share/{ICD}.x86_64.json": f"/etc/{ICD}.x86_64.json"},
        ),
        ([f"/usr/share/{ICD}.aarch64.json"], {}),
        (
            ["/usr/local/bin/nvidia-smi mode=0644", "/usr/bin/nvidia-smi mode=0755"],
            "/usr/bin/nvidia-smi",
        ),
        ([f"{LIBDIR}/{XORG}", f"/usr/lib/{XORG}"], f"{LIBDIR}/{XORG}"),
        ([f"/usr/lib/{XORG}"], f"/usr/lib/{XORG}"),
        (
            [f"{LIBDIR}/vdpau/libvdpau_nvidia.so.535.1 elf libvdpau_nvidia.so.1"],
            f"{LIBDIR}/vdpau/libvdpau_nvidia.so.535.1",
        ),
        (
            [f"{LIBDIR}/libnvidia-nvvm70.so.4 elf libnvidia-nvvm70.so.4"],
            f"{LIBDIR}/libnvidia-nvvm70.so.4",
        ),
        (
            [f"{EGL}.1.2 elf libnvidia-egl-gbm.so.1", f"{EGL} -> libnvidia-egl-gbm.so.1.1.2"],
            f"{EGL}.1.2",
        ),
        (
            [
                f"{LIBDIR}/libother.so.535.2 elf libother.so.1",
                "/opt/libother.so.535.1 elf libother.so.1",
            ],
            {},
        ),
        ([f"{LIBDIR}/libdangling.so.535.1 -> nowhere", f"{LIBDIR}/libdir.so.535.1/"], {}),
        (
            [*FIRMWARE, "/lib/firmware/nvidia/535.2/gsp_c.bin"],
            dict(zip(FIRMWARE, FIRMWARE, strict=True)),
        ),
    ],
)
def test_which_files_are_mounted_and_where(lines: list[str], mounts: dict[str, str] | str) -> None:
    """The first directory that has a file counts; configuration is mounted where programs look."""
    facts = {"kernel": "6.1.0", "drm": {}}
    edits = generate(small_host("\n".join(lines), cdi=facts))["containerEdits"]
    written = {mount["hostPath"]: mount["containerPath"] for mount in edits["mounts"]}
    expected = {mounts: mounts} if isinstance(mounts, str) else mounts
    assert written == {f"{LIBDIR}/libcuda.so.535.1": f"{LIBDIR}/libcuda.so.535.1"} | expected


def test_links_of_the_host_and_links_that_programs_need() -> None:
    """SONAME and .so links are created if the host has them, Xorg's and Vulkan's in any case."""
    lines = f"""
{LIBDIR}/libnvidia-ml.so.535.1 elf libnvidia-ml.so.1
{LIBDIR}/libnvidia-ml.so.1 -> libnvidia-ml.so.535.1
{LIBDIR}/libnvidia-ml.so -> libnvidia-ml.so.1
{LIBDIR}/libnvidia-cfg.so.535.1 elf libnvidia-cfg.so.1
{LIBDIR}/libnvidia-vulkan-producer.so.535.1 elf -
/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.535.1 elf libglxserver_nvidia.so
"""
    graphics, libraries = hook_arguments(
        generate(small_host(lines))["containerEdits"], "create-symlinks"
    )
    assert graphics[1::2] == [
        f"libnvidia-vulkan-producer.so.535.1::{LIBDIR}/libnvidia-vulkan-producer.so",
        "libglxserver_nvidia.so.535.1::/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so",
    ]
    assert libraries[1::2] == [
        f"libcuda.so.1::{LIBDIR}/libcuda.so",
        f"libcuda.so.535.1::{LIBDIR}/libcuda.so.1",
        f"libnvidia-ml.so.535.1::{LIBDIR}/libnvidia-ml.so.1",
        f"libnvidia-ml.so.1::{LIBDIR}/libnvidia-ml.so",
    ]


def test_libraries_elsewhere_are_found_by_the_loader_cache() -> None:
    """The loader cache names the libraries where no well-known directory has any.

    Those of the other architecture are never used.
    """
    lines = """
/opt/nvidia/libcuda.so.535.1 elf libcuda.so.1
/opt/nvidia/libcuda.so.1 -> libcuda.so.535.1
/opt/nvidia32/libcuda.so.535.1 elf libcuda.so.1 bits=32
/opt/nvidia32/libcuda.so.1 -> libcuda.so.535.1
/dev/nvidia0 char 195:0
"""
    edits = generate(hosts.host(lines, gpus=[hosts.gpu(0)]))["containerEdits"]
    assert [mount["hostPath"] for mount in edits["mounts"]] == ["/opt/nvidia/libcuda.so.535.1"]
    assert edits["env"][0] == "NVIDIA_CTK_LIBCUDA_DIR=/opt/nvidia"
    assert hook_arguments(edits, "update-ldcache") == [["--folder", "/opt/nvidia"]]


def test_drm_nodes_come_with_their_gpu() -> None:
    """A GPU brings its own DRM nodes and the links by which programs find them."""
    lines = """
/dev/dri/card1 char 226:1
/dev/dri/renderD128 char 226:128
/dev/dri/card0 char 226:0
/dev/dri/by-path/pci-0000:01:00.0-card -> ../card1
/dev/dri/by-path/pci-0000:01:00.0-render -> ../renderD129
"""
    document = generate(
        small_host(
            lines,
            cdi={"kernel": "6.1.0", "drm": {"0000:01:00.0": ["card1", "renderD128", "renderD200"]}},
        )
    )
    edits = document["devices"][0]["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert hook_arguments(edits, "create-symlinks") == [
        ["--link", "../card1::/dev/dri/by-path/pci-0000:01:00.0-card"]
    ]


def test_a_node_that_a_group_owns() -> None:
    """The process joins the group that owns a node, which CDI knows since 0.7.0.

    A node for all users needs no group.
    """
    document = small_host()
    document["files"]["/dev/nvidia0"] |= {"gid": 44, "mode": "0660"}
    document["files"]["/dev/nvidiactl"] |= {"gid": 44}
    written = generate(document)
    assert written["cdiVersion"] == "0.7.0"
    assert written["devices"][0]["containerEdits"]["additionalGids"] == [44]
    assert written["devices"][0]["containerEdits"]["deviceNodes"][0] == {
        "path": "/dev/nvidia0", "major": 195, "fileMode": 0o660, "permissions": "rwm", "gid": 44,
    }  # fmt: skip
    assert "additionalGids" not in written["containerEdits"]


def test_the_lowest_version() -> None:
    """Names that start with a digit need 0.5.0; without them the version is 0.3.0."""
    assert generate(small_host())["cdiVersion"] == "0.5.0"
    assert generate(small_host(), "type-index")["cdiVersion"] == "0.3.0"


def test_the_hook_program() -> None:
    """nvidia-ctk has the hooks as sub-commands; every hook has an environment of its own."""
    discovered = discover(snapshot_host(small_host()), OFFLINE_PATH, None)
    for path, words in (
        ("/opt/bin/nvidia-ctk", ("nvidia-ctk", "hook")),
        ("/opt/my-hook", ("my-hook",)),
    ):
        hooks = host_spec(discovered, ["index"], HookProgram(path)).edits.hooks
        assert all(
            hook.path == path and hook.args[: len(words)] == words and hook.env for hook in hooks
        )


def test_a_host_without_the_files_of_its_driver(tmp_path: Path, capsys: Captured) -> None:
    """A host without libcuda is a refusal in one line with exit code 1."""
    path = tmp_path / "host.json"
    path.write_text(json.dumps(small_host() | {"files": hosts.tree("/dev/nvidia0 char 195:0")}))
    assert main(["cdi", "generate", "--host", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(
        "nvgraft: detection error: libcuda.so.535.1: not found below / | "
    )


def test_the_file_is_written_whole(tmp_path: Path, capsys: Captured) -> None:
    """The output file has the format of its name and is readable for all users.

    A file that cannot be written is one line and exit code 2.
    """
    path = tmp_path / "nvidia.json"
    path.write_text("old")
    umask = os.umask(0o077)
    try:
        assert main(["cdi", "generate", "--host", "eks-t4", "--output", str(path)]) == 0
    finally:
        os.umask(umask)
    assert json.loads(path.read_text())["kind"] == "nvidia.com/gpu"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["nvidia.json"]
    capsys.readouterr()
    assert (
        main(["cdi", "generate", "--host", "eks-t4", "--output", str(tmp_path / "no/spec.yaml")])
        == 2
    )
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith(f"nvgraft cdi: {tmp_path}/no/spec.yaml: cannot be written: no such file")
    )


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_a_snapshot_has_all_that_a_specification_needs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The specification of a snapshot equals that of the host, and no file is missing."""
    document = reference_host(name)
    document["files"] |= hosts.tree(
        NOT_RECORDED[name]
        + "/lib/firmware/updates/6.1.0/nvidia/other/gsp.bin\n/dev/dri/card0 char 226:0"
    )
    monkeypatch.setattr(
        "nvgraft.host.live.read_live_host", lambda *_, **__: snapshot_host(document)
    )
    monkeypatch.setenv("PATH", OFFLINE_PATH)
    path = tmp_path / "host.json"
    assert main(["snapshot", "-o", str(path)]) == 0
    words = ["cdi", "generate", "--format", "json", "--nvidia-cdi-hook-path"]
    assert main([*words, sys.executable]) == 0
    live = capsys.readouterr()
    assert main([*words, sys.executable, "--host", str(path)]) == 0
    assert capsys.readouterr() == live
    assert live.err == ""
    live_text = live.out.replace(sys.executable, HOOK).replace(
        f'"{os.path.basename(sys.executable)}"', f'"{os.path.basename(HOOK)}"'
    )
    assert json.loads(live_text) == generate(document)


def test_drm_nodes_are_recorded() -> None:
    """A snapshot records DRM nodes, the links to them, and the kernel's release."""
    lines = "/dev/dri/card1 char 226:1\n/dev/dri/by-path/pci-0000:01:00.0-card -> ../card1"
    host = snapshot_host(small_host(lines))
    facts = CdiFacts("6.1.0", {"0000:01:00.0": ["card1"]})
    again = record(host, OFFLINE_PATH, "", facts)
    assert recorded_facts(again) == facts
    assert discover(snapshot_host(again), OFFLINE_PATH, facts) == discover(
        host, OFFLINE_PATH, facts
    )
    assert live_facts(host).drm == {"0000:01:00.0": []}, "this machine has a GPU at that address"


def plan_spec(
    tmp_path: Path, host: str, capsys: Captured, *arguments: str
) -> tuple[Document, str, str]:
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert main(["plan", "--bundle", bundle, "--host", host, "--format", "cdi", *arguments]) == 0
    out, err = capsys.readouterr()
    check_schema(json.loads(out))
    parse_specification(out.encode(), "spec")
    return json.loads(out), err, bundle


@pytest.mark.parametrize("name", gallery.with_hook())
def test_a_plan_as_a_specification(name: str, tmp_path: Path, capsys: Captured) -> None:
    """A plan's mounts and device nodes are in the specification with their options.

    Links and the loader cache are hooks, and the command names everything that is left out.
    """
    data, err, bundle = plan_spec(tmp_path, name, capsys)
    plan, _ = plan_bundle(bundle, name, None)
    (device,) = data["devices"]
    edits = device["containerEdits"]
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    mounts = {
        (mount["hostPath"], mount["containerPath"], *mount["options"]) for mount in edits["mounts"]
    }
    nodes = {
        (node["path"], node["major"], node.get("minor", 0), node["permissions"])
        for node in edits["deviceNodes"]
    }
    devices = [action for action in binds if action.kind == "device" and action.rdev]
    assert nodes == {(action.target, *(action.rdev or ()), "rw") for action in devices}
    files = [
        action
        for action in binds
        if action not in devices and not action.target.startswith("/proc/")
    ]
    assert mounts == {
        (action.source, action.target, *action.options, "bind", "private") for action in files
    }
    for action in binds:
        assert (
            f"{action.target}: engines refuse mounts below /proc" in err
        ) is action.target.startswith("/proc/")
    links = {
        word for arguments in hook_arguments(edits, "create-symlinks") for word in arguments[1::2]
    }
    assert {f"{target}::{path}" for path, target in plan.links} <= links
    assert hook_arguments(edits, "disable-device-node-modification") == [[]]
    (folders,) = hook_arguments(edits, "update-ldcache")
    assert folders[0] == "--folder"
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert data["kind"] == "nvgraft/plan"
    assert "no device node has this number" not in err


def test_a_container_without_gpus_has_no_specification(tmp_path: Path, capsys: Captured) -> None:
    """A line says why there is no specification; CDI does not allow an empty one."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=void"))
    assert main(["plan", "--bundle", bundle, "--host", "eks-t4", "--format", "cdi"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nvgraft plan: no CDI specification: ")


def test_actions_that_cdi_cannot_express() -> None:
    """Device rules without a node, and new file systems, are named one by one."""
    why = Why("utility", "row", "found")
    actions = (AllowDevice(234, 7, why), Tmpfs("/run/other", ("rw",), 0o555, why))
    plan = Plan(
        "inject",
        "",
        (
            Bind("device", "dev", "/dev/nvidia0", "/dev/x0", ("rw",), 0, why, (195, 0)),
            *actions,
        ),
    )
    document, left_out = planned_spec(plan, HOOK)
    assert left_out == [
        "/run/other: CDI cannot describe a new tmpfs with files",
        "device rule c 234:7: no device node has this number",
    ]
    assert document.version == "0.5.0"
    assert [
        (node.path, node.host_path, node.permissions) for node in document.devices[0].edits.nodes
    ] == [("/dev/x0", "/dev/nvidia0", "")]


def test_a_refused_plan_has_no_specification(tmp_path: Path, capsys: Captured) -> None:
    """A refused plan prints the hook's own error, with exit code 1."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=9"))
    assert main(["plan", "--bundle", bundle, "--host", "eks-t4", "--format", "cdi"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nvgraft: device error: 9: unknown device | ")


def test_a_command_line_that_writes_a_file_is_confined(tmp_path: Path) -> None:
    """The command is confined, whether its answer is printed or written to a file."""
    words = [sys.executable, "-m", "nvgraft_cli.shell.main", "--debug"]
    words += ["cdi", "generate", "--host", "eks-t4"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    to_stdout, to_file = (
        subprocess.run([*words, *more], capture_output=True, text=True, env=environment, timeout=60)
        for more in ([], ["--output", str(tmp_path / "nvidia.yaml")])
    )
    assert (to_stdout.returncode, "debug: confined" in to_stdout.stderr) == (0, True)
    assert (to_file.returncode, "debug: confined" in to_file.stderr) == (0, True)
    assert (tmp_path / "nvidia.yaml").read_text() == to_stdout.stdout


# ---- other modes, roots, hooks


def generated(capsys: Captured, *words: str, code: int = 0) -> Document:
    """Return what `cdi generate` writes, after checks against CDI's schema and the reader."""
    assert main(["cdi", "generate", "--format", "json", *words]) == code
    out = capsys.readouterr().out
    document: Document = json.loads(out)
    parse_specification(out.encode(), "spec")
    check_schema(document)
    return document


def saved(path: Path, lines: str) -> str:
    """Write a small host with ``lines`` of its tree, and return the path of its document."""
    path.write_text(json.dumps(small_host(lines)))
    return str(path)


COMPONENTS = """
/dev/nvidia-fs0 char 240:0
/dev/nvidia-fs1 char 240:1
/run/udev/
/etc/cufile.json
/dev/infiniband/uverbs0 char 231:192
/dev/infiniband/rdma_cm char 10:58
/dev/infiniband/umad0 char 231:0
/dev/gdrdrv char 241:0
/dev/nvidia-nvswitchctl char 242:255
/dev/nvidia-caps-imex-channels/channel0 char 243:0
/dev/nvidia-caps-imex-channels/channel7 char 243:7
/dev/nvidia-caps/nvidia-cap1 char 244:1
/dev/nvidia-nvlink char 245:0
/usr/bin/nvidia-smi mode=0755
/usr/bin/nvidia-xconfig mode=0755
"""


@pytest.mark.parametrize(
    ("mode", "kind", "devices", "mounts"),
    [
        (
            "gds",
            "nvidia.com/gds",
            {"all": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]},
            ["/etc/cufile.json", "/run/udev"],
        ),
        (
            "mofed",
            "nvidia.com/mofed",
            {"all": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]},
            [],
        ),
        ("gdrcopy", "nvidia.com/gdrcopy", {"all": ["/dev/gdrdrv"]}, []),
        ("nvswitch", "nvidia.com/nvswitch", {"all": ["/dev/nvidia-nvswitchctl"]}, []),
        (
            "imex",
            "nvidia.com/imex-channel",
            {
                "0": ["/dev/nvidia-caps-imex-channels/channel0"],
                "7": ["/dev/nvidia-caps-imex-channels/channel7"],
                "all": [f"/dev/nvidia-caps-imex-channels/channel{n}" for n in (0, 7)],
            },
            [],
        ),
        (
            "management",
            "management.nvidia.com/gpu",
            {
                "all": [
                    "/dev/nvidia0",
                    "/dev/nvidiactl",
                    "/dev/nvidia-caps-imex-channels/channel0",
                    "/dev/nvidia-caps-imex-channels/channel7",
                    "/dev/nvidia-caps/nvidia-cap1",
                ]
            },
            [],
        ),
    ],
)
def test_devices_of_other_modes(
    mode: str,
    kind: str,
    devices: dict[str, list[str]],
    mounts: list[str],
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """Each mode has the nodes and files of its component, and its kind; a hook of the engine leaves
    the container alone.
    """
    host = saved(tmp_path / "host.json", COMPONENTS)
    document = generated(capsys, "--host", host, "--mode", mode)
    assert document["kind"] == kind
    assert {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    } == devices
    assert "NVIDIA_VISIBLE_DEVICES=void" in document["containerEdits"]["env"]
    for device in document["devices"]:
        found = [mount["hostPath"] for mount in device["containerEdits"].get("mounts", ())]
        assert found == mounts
    (tmp_path / "none.json").write_text(json.dumps({**small_host(), "files": {}}))
    assert main(["cdi", "generate", "--host", str(tmp_path / "none.json"), "--mode", mode]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("nvgraft: detection error: ")


def test_a_management_container_has_the_drivers_files(tmp_path: Path, capsys: Captured) -> None:
    """A management container gets the driver's libraries and programs, nothing for graphics, and
    may make device nodes.
    """
    host = saved(tmp_path / "host.json", COMPONENTS)
    edits = generated(capsys, "--host", host, "--mode", "management")["containerEdits"]
    assert [mount["hostPath"] for mount in edits["mounts"]] == [
        "/usr/bin/nvidia-smi",
        f"{LIBDIR}/libcuda.so.535.1",
    ]
    assert edits["env"][0] == f"NVIDIA_CTK_LIBCUDA_DIR={LIBDIR}"
    assert [hook["args"][1] for hook in edits["hooks"]] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
    ]


def test_the_kind_and_the_devices_can_be_chosen(tmp_path: Path, capsys: Captured) -> None:
    """Vendor and class of the kind, and the device all, are the user's choice."""
    host = saved(tmp_path / "host.json", "")
    words = ["--host", host, "--vendor", "example.com", "--class", "a.b", "--no-all-device"]
    document = generated(capsys, *words, "--device-name-strategy", "type-index")
    assert document["kind"] == "example.com/a.b"
    assert document["cdiVersion"] == "0.6.0"
    assert [device["name"] for device in document["devices"]] == ["gpu0"]


def test_hooks_that_are_left_out(tmp_path: Path, capsys: Captured) -> None:
    """Single steps of the hooks can be left out, or all of them."""
    host = saved(tmp_path / "host.json", "")
    apart = ["--disable-hook", "enable-cuda-compat", "--disable-hook", "update-ldcache"]
    for words in (apart, ["--disable-hook", "enable-cuda-compat,update-ldcache"]):
        document = generated(capsys, "--host", host, *words)
        assert [hook["args"][1] for hook in document["containerEdits"]["hooks"]] == [
            "create-symlinks",
            "disable-device-node-modification",
            "update-application-profile",
        ]
    document = generated(capsys, "--host", host, "--disable-hook", "all")
    assert "hooks" not in document["containerEdits"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--vendor", "a b"], "invalid kind 'a b/gpu' | write VENDOR/CLASS: each begins with"),
        (["--class", "9"], "invalid kind 'nvidia.com/9' | write VENDOR/CLASS: each begins with"),
        (
            ["--nvidia-cdi-hook-path", "bin/hook"],
            "--nvidia-cdi-hook-path: bin/hook is not an absolute path | engines refuse such hooks",
        ),
        (
            ["--disable-hook", "update-ldcache,ldconfig"],
            "argument --disable-hook: invalid choice: 'ldconfig' (choose from create-symlinks,",
        ),
    ],
)
def test_a_specification_that_engines_would_refuse(
    tmp_path: Path, capsys: Captured, words: list[str], error: str
) -> None:
    """It is not written: one line names the option, the cause and the fix."""
    written = tmp_path / "nvidia.yaml"
    host = saved(tmp_path / "host.json", "")
    with contextlib.suppress(SystemExit):
        assert main(["cdi", "generate", "--host", host, "--output", str(written), *words]) == 2
    assert error in capsys.readouterr().err
    assert not written.exists()


def test_one_hook_of_nvgraft(tmp_path: Path, capsys: Captured) -> None:
    """nvgraft's own program takes all steps in one process, with an environment of its own; with
    cdi-hooks = "each" there is a hook for each step.
    """
    host = saved(tmp_path / "host.json", "")
    (hook,) = generated(capsys, "--host", host, "--hooks", "nvgraft")["containerEdits"]["hooks"]
    assert hook["path"].endswith("/bin/nvgraft-cdi-hook")
    assert hook["args"][:2] == ["nvgraft-cdi-hook", "steps"]
    steps = " ".join(hook["args"][2:]).split(" -- ")
    each = generated(capsys, "--host", host)["containerEdits"]["hooks"]
    assert steps == [" ".join(other["args"][1:]) for other in each]
    assert hook["env"] == ["NVIDIA_CTK_DEBUG=false"]
    config = tmp_path / "config.toml"
    config.write_text('[nvgraft]\ncdi-hooks = "each"\n')
    words = ["--hooks", "nvgraft", "--nvidia-cdi-hook-path", "/opt/h", "--config", str(config)]
    hooks = generated(capsys, "--host", host, *words)["containerEdits"]["hooks"]
    assert [hook["args"][1:] for hook in hooks] == [hook["args"][1:] for hook in each]
    assert {hook["path"] for hook in hooks} == {"/opt/h"}
    config.write_text("")
    (hook,) = generated(capsys, "--host", host, *words)["containerEdits"]["hooks"]
    assert hook["args"][:4] == ["h", "--config", str(config), "steps"]


def test_device_nodes_below_another_root(tmp_path: Path, capsys: Captured) -> None:
    """With a root of device nodes they have a path on the host, which CDI knows since 0.5.0."""
    host = saved(tmp_path / "host.json", "")
    words = ["--host", host, "--device-name-strategy", "type-index"]
    document = generated(capsys, *words, "--dev-root", "/run/driver/")
    assert document["cdiVersion"] == "0.5.0"
    (node,) = document["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["path"], node["hostPath"]) == ("/dev/nvidia0", "/run/driver/dev/nvidia0")
    document = generated(capsys, *words, "--dev-root", "/")
    assert "hostPath" not in document["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert main(["cdi", "generate", *words, "--driver-root", "/x"]) == 2
    assert "--driver-root: the recorded host has its own" in capsys.readouterr().err


@pytest.mark.requires("root")
def test_the_roots_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Device nodes are looked for below the driver root, as by the reference, or below the root
    that is named; the files are always those of the driver root.
    """
    root, nodes = tmp_path / "driver", tmp_path / "nodes"
    for directory, number in ((root, 0), (nodes, 1)):
        (directory / "dev").mkdir(parents=True)
        os.mknod(directory / "dev/gdrdrv", 0o660 | stat.S_IFCHR, os.makedev(241, number))
    words = ["--mode", "gdrcopy", "--driver-root", str(root)]

    def node(*more: str) -> tuple[str, int]:
        (found,) = generated(capsys, *words, *more)["devices"][0]["containerEdits"]["deviceNodes"]
        return found.get("hostPath", ""), found.get("minor", 0)

    assert node() == (f"{root}/dev/gdrdrv", 0)
    assert node("--dev-root", str(nodes)) == (f"{nodes}/dev/gdrdrv", 1)
    (root / "dev/gdrdrv").unlink()
    assert main(["cdi", "generate", *words]) == 1
    error = capsys.readouterr().err
    assert f"nodes in {root}/dev, or name the root of the nodes: --dev-root /" in error
    assert main(["cdi", "generate", *words, "--dev-root", f"{root}/none"]) == 1
    assert f"open failed: {root}/none: no such file" in capsys.readouterr().err


@pytest.mark.requires("root")
def test_a_program_of_hooks_that_is_missing(tmp_path: Path, capsys: Captured) -> None:
    """On this machine the program of the hooks must be there, or no container starts: the
    specification is written, with a warning. Where nothing runs it, its absence is nothing.
    """
    root = tmp_path / "driver"
    library = root / "usr/lib64/libcuda.so.535.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (root / "dev").mkdir()
    os.mknod(root / "dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    program = tmp_path / "cdi-hook"
    words = ["cdi", "generate", "--mode", "management", "--driver-root", str(root)]
    words += ["--nvidia-cdi-hook-path", str(program)]
    warning = f"the hooks run {program}, which is not there: no container will start | install it"
    assert main(words) == 0
    assert warning in capsys.readouterr().err
    assert main([*words, "--disable-hook", "all"]) == 0
    assert warning not in capsys.readouterr().err
    program.touch()
    assert main(words) == 0
    assert warning not in capsys.readouterr().err


def test_a_tegra_board(tmp_path: Path, capsys: Captured) -> None:
    """Of a Tegra board the base CSV files say what its one device needs."""
    directory = "/etc/nvidia-container-runtime/host-files-for-container.d"
    document = hosts.host(
        f"""
/etc/nv_tegra_release
/dev/nvhost-gpu char 510:0
/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
{directory}/devices.csv
""",
        gpus=[],
    )
    document["files"][f"{directory}/devices.csv"] |= {"content": "dev, /dev/nvhost-gpu\n"}
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document))
    written = generated(capsys, "--host", str(path), "--mode", "csv")
    assert [device["name"] for device in written["devices"]] == ["0", "all"]
    (node,) = written["devices"][0]["containerEdits"]["deviceNodes"]
    assert node["path"] == "/dev/nvhost-gpu"
