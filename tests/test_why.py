"""``nvgraft why``: the steps to a mounted file, or the rule that excludes it and what helps."""

import json
from pathlib import Path
from typing import Any

import pytest

import hosts
from bundles import EVERYTHING, make_bundle
from documents import read_document
from nvgraft.plan.actions import Bind
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.shell.main import main
from nvgraft_specs import catalogue, gallery, names
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

ALL = "NVIDIA_VISIBLE_DEVICES=all"


def run_why(capsys: Captured, bundle: str, host: str, *what: str) -> tuple[int, list[Document]]:
    code = main(["why", *what, "--bundle", bundle, "--host", host, "--format", "json"])
    return code, read_document(capsys.readouterr().out)["answers"]


def rule(answer: Document) -> str:
    excluded = answer["excluded_by"]
    return excluded["rule"] if excluded else "in"


@pytest.fixture
def host(tmp_path: Path) -> str:
    """A host with a library of an older driver, and with one that its loader cache does not
    list.
    """
    document = hosts.full_host(
        "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.1 -> libnvidia-encode.so.470.1\n"
        "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.470.1 elf libnvidia-encode.so.1\n"
        "/opt/nvidia/libnvidia-nscq.so.535.1 elf libnvidia-nscq.so.2\n"
    )
    path = tmp_path / "host.json"
    rows = [
        row
        for row in document["ld_so_cache"]
        if not row[0].startswith(("libnvidia-encode", "libnvidia-nscq"))
    ]
    document["ld_so_cache"] = [
        [
            "libnvidia-encode.so.1",
            "libc6,x86-64",
            "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.1",
        ],
        *rows,
    ]
    path.write_text(json.dumps(document))
    return str(path)


def test_a_library_in_the_container_has_its_chain(tmp_path: Path, capsys: Captured) -> None:
    """The chain of a library is request, capability, row, cache entry, mount and links; the exit
    code is 0.
    """
    bundle = str(make_bundle(tmp_path / "b", ALL))
    code, (answer,) = run_why(capsys, bundle, "eks-t4", "libcuda.so")
    assert code == 0
    assert answer["in_plan"]
    steps = [(step["step"], step["how"]) for step in answer["chain"]]
    assert steps[:3] == [
        ("asked for", "all (NVIDIA_VISIBLE_DEVICES=all)"),
        ("capability", "compute (default)"),
        ("row", "libcuda.so"),
    ]
    assert [step for step, _ in steps[3:]] == ["found", "mounted", "link", "SONAME link"]


def test_a_link_has_the_chain_of_its_file(tmp_path: Path, capsys: Captured) -> None:
    """A link is found with or without directory; files with the same prefix are not included."""
    bundle = str(make_bundle(tmp_path / "b", ALL))
    _, answers = run_why(
        capsys, bundle, "eks-t4", "libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    )
    for answer in answers:
        steps = [(step["step"], step["how"]) for step in answer["chain"]]
        assert [step for step, _ in steps] == [
            "asked for",
            "capability",
            "row",
            "found",
            "mounted",
            "SONAME link",
        ]
        assert dict(steps)["mounted"].startswith(
            "/usr/lib64/libcuda.so.460.106.00 on /usr/lib/x86_64-linux-gnu/libcuda.so.460.106.00 "
        )


@pytest.mark.parametrize(
    "device",
    [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia0",
        "0",
        "1",
    ],
)
def test_a_device_is_mounted_and_allowed(device: str, tmp_path: Path, capsys: Captured) -> None:
    """The chain of a device has its node and its device rule, also for major numbers that vary."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    _, (answer,) = run_why(capsys, bundle, "runfile-a10x2", device)
    assert [step["step"] for step in answer["chain"] if step["step"] in {"mounted", "allowed"}] == [
        "mounted",
        "allowed",
    ]


def test_every_mount_is_found_by_its_target(tmp_path: Path, capsys: Captured) -> None:
    """On each host of the gallery every mount is found by its target."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    for name in gallery.with_hook():
        plan, _ = plan_bundle(bundle, name, None)
        targets = [action.target for action in plan.actions if isinstance(action, Bind)]
        code, answers = run_why(capsys, bundle, name, *targets)
        assert code == 0, [answer["name"] for answer in answers if not answer["in_plan"]]


def test_every_mount_is_found_by_its_source(tmp_path: Path, capsys: Captured) -> None:
    """Every mount is found by its source, also below a driver root in /dev, where libraries stay
    libraries.
    """
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    host = tmp_path / "host.json"
    host.write_text(json.dumps(read_snapshot("operator-driver-root") | {"root": "/dev/shm/x"}))
    plan, _ = plan_bundle(bundle, str(host), None)
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    code, answers = run_why(capsys, bundle, str(host), *(action.source for action in binds))
    assert code == 0, [answer["name"] for answer in answers if not answer["in_plan"]]
    libraries = {action.source for action in binds if ".so" in action.source}
    assert libraries == {answer["name"] for answer in answers if answer["kind"] == "library"}


def test_the_suggested_change_helps(tmp_path: Path, capsys: Captured) -> None:
    """With the suggested change a plan includes the row; for a capability one variable is
    enough.
    """
    bundle = str(make_bundle(tmp_path / "b", ALL, "NVIDIA_DRIVER_CAPABILITIES=utility"))
    whole = str(make_bundle(tmp_path / "all", *EVERYTHING))
    excluded = 0
    for name in ("runfile-a10x2", "debian-a100x8"):
        mounted = {
            action.why.row
            for action in plan_bundle(whole, name, None)[0].actions
            if isinstance(action, Bind)
        }
        rows = [
            row.name for row in (*catalogue.LIBRARIES, *catalogue.BINARIES) if row.name in mounted
        ]
        for answer in run_why(capsys, bundle, name, *rows)[1]:
            if not answer["in_plan"]:
                excluded += 1
                assert rule(answer) == "capability"
                assert len(answer["smallest_change"]) == 1
                plan, _ = plan_bundle(bundle, name, None, answer["smallest_change"])
                assert answer["name"] in {
                    action.why.row for action in plan.actions if isinstance(action, Bind)
                }
    assert excluded > 20


@pytest.mark.parametrize(
    ("what", "condition"),
    [
        ("/dev/dri/card0", "capability graphics or display"),
        ("/etc/vulkan/icd.d/nvidia_icd.json", "capability graphics or display"),
        ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "capability graphics or display"),
        ("libnvidia-egl-gbm.so.1", "capability graphics or display"),
        ("/dev/nvidia-fs0", "NVIDIA_GDS=enabled"),
        ("/dev/infiniband/uverbs3", "NVIDIA_MOFED=enabled"),
    ],
)
def test_files_that_only_the_runtime_mounts(
    what: str, condition: str, host: str, tmp_path: Path, capsys: Captured
) -> None:
    """The advice for a file that only the runtime mounts names the runtime and the variable or
    capability.
    """
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    code, (answer,) = run_why(capsys, bundle, host, what)
    assert (code, rule(answer)) == (1, "not-in-catalogue")
    assert answer["excluded_by"]["mend"].startswith(
        f"start the container with nvgraft-runtime, which adds it for {condition} "
    )


@pytest.mark.parametrize(
    ("what", "expected", "words", "change"),
    [
        ("libnvidia-encode.so", "rejected", "does not end in the driver's version 535.1", []),
        (
            "libnvidia-nscq.so",
            "not-in-cache",
            "but the file exists at /opt/nvidia/libnvidia-nscq.so.535.1",
            [],
        ),
        ("libnvidia-ifr.so", "not-on-host", "no entry that starts with libnvidia-ifr.so", []),
        ("nv-fabricmanager", "not-on-host", "is not in the search path of this host", []),
        (
            "libcudart.so.12",
            "not-in-catalogue",
            "is not in the catalogue of files that the hook mounts; the catalogue has libcuda.so",
            [],
        ),
        ("/etc/debian_version", "image", "is a file of the image", []),
        ("9", "not-on-host", "9: unknown device", []),
        ("GPU-none", "not-on-host", "unknown device", []),
        ("/dev/nvidia9", "not-on-host", "its GPUs are /dev/nvidia0, /dev/nvidia1", []),
        (
            "/dev/nvidia-modeset",
            "capability",
            "needs capability display",
            ["NVIDIA_DRIVER_CAPABILITIES=compute,utility,video,display"],
        ),
        (
            "graphics",
            "capability",
            "the container does not request capability graphics",
            ["NVIDIA_DRIVER_CAPABILITIES=compute,utility,video,graphics"],
        ),
        (
            "1",
            "device",
            "the container does not request 1: it requests 0",
            ["NVIDIA_VISIBLE_DEVICES=0,1"],
        ),
        (
            "/dev/nvidia1",
            "device",
            "does not request GPU 1 (GPU-00000001-0000-0000-0000-000000000000)",
            ["NVIDIA_VISIBLE_DEVICES=all"],
        ),
    ],
)
def test_the_first_rule_that_keeps_a_file_out(
    what: str,
    expected: str,
    words: str,
    change: list[str],
    host: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """The first rule that excludes a file is named, with the smallest change if there is one; the
    exit code is 1.
    """
    bundle = str(
        make_bundle(
            tmp_path / "b",
            "NVIDIA_VISIBLE_DEVICES=0",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
        )
    )
    code, (answer,) = run_why(capsys, bundle, host, what)
    assert code == 1
    assert (rule(answer), answer["smallest_change"]) == (expected, change)
    assert words in answer["excluded_by"]["text"]


def test_a_container_that_asks_for_nothing_needs_devices_first(
    tmp_path: Path, capsys: Captured
) -> None:
    """For a container without a request the change is one variable if the default capabilities
    suffice, else two.
    """
    bundle = str(make_bundle(tmp_path / "b"))
    _, answers = run_why(capsys, bundle, "runfile-a10x2", "nvidia-smi", "libnvidia-encode.so")
    assert [rule(answer) for answer in answers] == ["nothing-requested"] * 2
    assert answers[0]["smallest_change"] == [ALL]
    assert answers[1]["smallest_change"] == [
        ALL,
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
    ]


def test_a_refusal_is_the_rule_and_can_be_lifted(tmp_path: Path, capsys: Captured) -> None:
    """An unmet requirement excludes all files; the change disables it."""
    bundle = str(make_bundle(tmp_path / "b", ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99"))
    _, (answer,) = run_why(capsys, bundle, "eks-t4", "nvidia-smi")
    assert rule(answer) == "refused"
    assert "unsatisfied condition: cuda>=99" in answer["excluded_by"]["text"]
    assert answer["smallest_change"] == ["NVIDIA_DISABLE_REQUIRE=1"]
    bundle = str(
        make_bundle(
            tmp_path / "c",
            ALL,
            "NVIDIA_REQUIRE_CUDA=cuda>=99",
            "NVIDIA_DRIVER_CAPABILITIES=compute",
        )
    )
    _, (answer,) = run_why(capsys, bundle, "eks-t4", "nvidia-smi")
    assert answer["smallest_change"] == [
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "NVIDIA_DISABLE_REQUIRE=1",
    ]


def test_variables_of_the_command_line_count(tmp_path: Path, capsys: Captured) -> None:
    """The change is made in addition to variables of the command line."""
    bundle = str(make_bundle(tmp_path / "b"))
    words = ["why", "graphics", "--bundle", bundle, "--env", ALL, "--host", "runfile-a10x2"]
    assert main([*words, "--format", "json"]) == 1
    assert read_document(capsys.readouterr().out)["answers"][0]["smallest_change"] == [
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
    ]


def test_one_candidate_was_chosen_over_another(tmp_path: Path, capsys: Captured) -> None:
    """Of two candidates the last one in the loader cache is chosen; the other is listed with the
    reason.
    """
    document = read_snapshot("eks-t4")
    path = "/usr/lib64/libcuda.so.460.106.00"
    document["files"]["/opt/libcuda.so.460.106.00"] = document["files"][path]
    document["ld_so_cache"] = [
        ["libcuda.so.1", "libc6,x86-64", "/opt/libcuda.so.460.106.00"],
        *document["ld_so_cache"],
    ]
    (tmp_path / "h.json").write_text(json.dumps(document))
    _, (answer,) = run_why(
        capsys, str(make_bundle(tmp_path / "b", ALL)), str(tmp_path / "h.json"), "libcuda.so.1"
    )
    verdicts = {candidate["path"]: candidate["verdict"] for candidate in answer["candidates"]}
    assert verdicts == {
        "/opt/libcuda.so.460.106.00": f"passed over for {path}, which the cache names later",
        path: "chosen",
    }


@pytest.mark.parametrize(
    ("library", "capabilities"),
    [("libcuda", "compute,utility,compat32"), ("libnvcuvid", "compute,utility,video,compat32")],
)
def test_a_32_bit_library_needs_compat32(
    library: str, capabilities: str, tmp_path: Path, capsys: Captured
) -> None:
    """A path of a 32-bit library is added by compat32, with the capability of its class."""
    bundle = str(make_bundle(tmp_path / "b", ALL))
    path = f"/usr/lib/i386-linux-gnu/{library}.so.535.261.03"
    code, (answer,) = run_why(capsys, bundle, "debian-compat32", path)
    assert code == 1
    assert answer["excluded_by"]["rule"] == "capability"
    assert answer["smallest_change"] == [f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    if library == "libcuda":
        assert "need capability compat32, which" in answer["excluded_by"]["text"]


@pytest.mark.parametrize("capability", names.CAPABILITIES)
def test_any_capability_can_be_asked_about(
    capability: str, tmp_path: Path, capsys: Captured
) -> None:
    """Any capability can be asked about, requested or not, with or without files on the host."""
    for env in (EVERYTHING, (ALL,)):
        bundle = str(make_bundle(tmp_path / f"b{len(env)}", *env))
        code, (answer,) = run_why(capsys, bundle, "debian-compat32", capability)
        assert answer["kind"] == "capability"
        assert code == int(not answer["in_plan"])


def test_text_has_a_block_for_each_argument(tmp_path: Path, capsys: Captured) -> None:
    """Text output has a block for each argument; names are printed without control characters."""
    bundle = str(make_bundle(tmp_path / "b", ALL))
    what = ("nvidia-smi", "libnvidia-encode.so.1", "x\x1b[31m")
    assert main(["why", *what, "--bundle", bundle, "--host", "eks-t4"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "nvidia-smi is in the container\n"
        "  asked for   all (NVIDIA_VISIBLE_DEVICES=all)\n"
        "  capability  utility (default)\n"
    )
    assert (
        "\n\nlibnvidia-encode.so.1 is not in the container\n"
        "  because libnvidia-encode.so needs capability video, which the container does not "
    ) in out
    assert (
        "  the smallest change that adds it: NVIDIA_DRIVER_CAPABILITIES=compute,utility,video\n"
    ) in out
    assert "\x1b" not in out


def test_libraries_of_graphics_are_those_of_display_too(tmp_path: Path, capsys: Captured) -> None:
    """Where both are requested, a library names one of them as its reason and is of both; what
    display alone has is not of graphics.
    """
    bundle = make_bundle(
        tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"
    )
    main(["why", "graphics", "display", "--bundle", str(bundle), "--host", "b200-580"])
    graphics, display = [
        line for line in capsys.readouterr().out.splitlines() if "  brings" in line
    ]
    assert "libGLX_nvidia.so" in graphics
    assert "libGLX_nvidia.so" in display
    assert "nvidia-modeset" not in graphics
