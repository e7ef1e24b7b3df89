"""request: what a container asks for, in variables, mounts and privileges."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.errors import Refusal
from nvgraft.request.config import Config
from nvgraft.request.oci import ContainerConfig
from nvgraft.request.request import (
    ImexChannels,
    Request,
    Skip,
    check_mode,
    is_cdi_name,
    resolve_mode,
    resolve_request,
)

ROOT = ("CAP_SYS_ADMIN",)
FULL = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
PREFIX = "/var/run/nvidia-container-devices"


def outcome(
    config: Config | None = None,
    mounts: Iterable[tuple[str, str]] = (),
    bounding: tuple[str, ...] = (),
    /,
    **env: str | None,
) -> Request | Skip:
    """Return the outcome for a container with these variables; NVIDIA_VISIBLE_DEVICES is "all"
    unless given.
    """
    env = {"NVIDIA_VISIBLE_DEVICES": "all", **env}
    variables = {name: value for name, value in env.items() if value is not None}
    return resolve_request(ContainerConfig(variables, bounding, tuple(mounts)), config or Config())


def request_of(
    config: Config | None = None,
    mounts: Iterable[tuple[str, str]] = (),
    bounding: tuple[str, ...] = (),
    /,
    **env: str | None,
) -> Request:
    request = outcome(config, mounts, bounding, **env)
    assert isinstance(request, Request)
    return request


def skipped(config: Config | None = None, /, **env: str | None) -> Skip:
    skip = outcome(config, **env)
    assert isinstance(skip, Skip)
    return skip


def refusal(
    config: Config | None = None, mounts: Iterable[tuple[str, str]] = (), /, **env: str | None
) -> str:
    with pytest.raises(Refusal) as error:
        outcome(config, mounts, **env)
    assert error.value.hint
    return error.value.text


def mount(rest: str, source: str = "/dev/null") -> tuple[str, str]:
    return (source, PREFIX + rest)


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("all", ("all",)),
        ("0,1", ("0", "1")),
        ("1,0", ("1", "0")),
        (" 0 ,,GPU-a", ("0", "GPU-a")),
        ("0,0", ("0",)),
        ("1,0,1", ("0", "1")),
        ("0,all,1", ("all",)),
        ("all,none", ("all",)),
        ("none,all", ()),
        ("none", ()),
        ("0,none", ()),
        ("ALL", ("ALL",)),
        ("None", ("None",)),
        ("/dev/nvidia0", ("/dev/nvidia0",)),
    ],
)
def test_device_lists(value: str, devices: tuple[str, ...]) -> None:
    """Tokens are trimmed, "all" and "none" replace the list, and of equal ids the last one's place
    is used.
    """
    request = request_of(NVIDIA_VISIBLE_DEVICES=value)
    assert request.devices == devices
    assert request.devices_from == f"NVIDIA_VISIBLE_DEVICES={value}"


@pytest.mark.parametrize("value", [None, "", ",", " , ", "void", "void,0", "0, void", "void,all"])
def test_containers_without_a_request(value: str | None) -> None:
    """Without a request (unset, empty, or void anywhere in the list) the container is skipped, and
    the reason has the value.
    """
    skip = skipped(NVIDIA_VISIBLE_DEVICES=value)
    assert ("is not set" if value is None else f"NVIDIA_VISIBLE_DEVICES={value}") in skip.reason
    assert skip.warning == ""


def test_swarm_resources_take_precedence() -> None:
    """If any variables of swarm-resource are set, all of them are used instead of
    NVIDIA_VISIBLE_DEVICES.
    """
    config = Config(swarm_resource=" A , B,,C")
    assert request_of(config, A="1", C="2").devices == ("1", "2")
    assert request_of(config, A="1", C="2").devices_from == "A=1, C=2"
    assert request_of(config).devices == ("all",)
    assert isinstance(outcome(config, B=""), Skip)
    assert isinstance(outcome(config, B="void", C="0"), Skip)


def test_an_unprivileged_request_may_be_ignored() -> None:
    """With the switch off, a request by variable needs privileges; otherwise a warning in the
    reference's words says what was ignored.
    """
    config = Config(
        accept_nvidia_visible_devices_envvar_when_unprivileged=False, swarm_resource="A,B"
    )
    warning = "Ignoring devices requested by environment variable(s) in unprivileged container: "
    assert skipped(config, A="0", B="1").warning == warning + "[A B]"
    assert (
        skipped(config, NVIDIA_VISIBLE_DEVICES=None, CUDA_VERSION="9.0").warning
        == warning + "[NVIDIA_VISIBLE_DEVICES]"
    )
    assert request_of(config, (), ROOT).devices == ("all",)
    assert request_of(config, (), ROOT).privileged
    assert skipped(config, NVIDIA_VISIBLE_DEVICES="void").warning == ""


def test_volume_mounts_request_devices() -> None:
    """Mounts of /dev/null below the well-known directory request devices, before variables and
    without privileges.
    """
    config = Config(
        accept_nvidia_visible_devices_as_volume_mounts=True,
        accept_nvidia_visible_devices_envvar_when_unprivileged=False,
    )
    mounts = [
        ("/data", "/data"),
        mount("/skipped", "/tmp"),
        mount(""),
        mount("/../x"),
        ("/dev/null", "var/run/nvidia-container-devices/relative"),
        mount("/0"),
        mount("//0/"),
        ("/dev/../dev/null", "/var/./run/nvidia-container-devices/GPU-1"),
        mount("/a/b"),
        mount("X"),
        mount("/imex/7"),
        mount("/cdi/nvidia.com/gpu/0:1"),
        mount("/cdi/nvidia.com/gpu=1"),
        mount("/cdi/nvidia.com/gpu"),
    ]
    request = request_of(config, mounts)
    assert request.devices == ("0", "GPU-1", "a/b", "X", "nvidia.com/gpu=0:1", "nvidia.com/gpu=1")
    assert request.imex_channels.written == ("7",)
    assert request.devices_from == "volume mounts"


def test_volume_mounts_need_the_switch() -> None:
    """Mounts request nothing by default; with the switch, mounts that name no device leave the
    request to the variable.
    """
    assert request_of(None, [mount("/0")]).devices == ("all",)
    config = Config(accept_nvidia_visible_devices_as_volume_mounts=True)
    assert request_of(config, [mount("/imex/0"), mount("/cdi/x")]).devices == ("all",)
    assert request_of(config, [mount("/all")], NVIDIA_VISIBLE_DEVICES="void").devices == ("all",)


def test_a_mount_with_an_unprintable_id_is_refused() -> None:
    """A device id from a mount's path is checked like a variable."""
    config = Config(accept_nvidia_visible_devices_as_volume_mounts=True)
    assert refusal(config, [mount("/a\nb")]).startswith("invalid volume mount device request: ")


def test_a_legacy_image_gets_everything() -> None:
    """CUDA_VERSION without NVIDIA_REQUIRE_CUDA requests all devices and capabilities, and gives a
    requirement.
    """
    request = request_of(
        NVIDIA_VISIBLE_DEVICES=None, CUDA_VERSION="10.2.89", NVIDIA_REQUIRE_CUDA=""
    )
    assert (request.devices, request.capabilities, request.requirements) == (
        ("all",),
        FULL,
        ("", "cuda>=10.2"),
    )
    assert (request.legacy_image, request.cuda_version) == (True, "10.2.89")
    assert (request.devices_from, request.capabilities_from) == (
        "legacy image default",
        "legacy image default",
    )
    assert isinstance(
        outcome(NVIDIA_VISIBLE_DEVICES=None, CUDA_VERSION="10.2", NVIDIA_REQUIRE_CUDA="cuda>=10.2"),
        Skip,
    )
    assert isinstance(outcome(NVIDIA_VISIBLE_DEVICES=None, CUDA_VERSION=""), Skip)


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("7", "cuda>=7.0"),
        ("v9.0", "cuda>=9.0"),
        ("v11", "cuda>=11.0"),
        ("012.04", "cuda>=12.4"),
        ("12.4.1-rc.1+b-1", "cuda>=12.4"),
        ("8-1", "cuda>=8.0"),
    ],
)
def test_lenient_cuda_versions(version: str, requirement: str) -> None:
    """One to three numbers with v, pre-release and build are accepted as a CUDA version."""
    assert request_of(CUDA_VERSION=version).requirements == (requirement,)


@pytest.mark.parametrize(
    "version",
    [
        "foo",
        "1.2.3.4",
        "v",
        "1.",
        "1..2",
        "-1",
        "1.2-",
        "1.2+",
        "1.2-a..b",
        "²",
        "1 ",
        "vv1",
        "9" * 25,
    ],
)
def test_invalid_cuda_versions(version: str) -> None:
    """Any other CUDA version is refused in the reference's words, unless requirements are
    disabled.
    """
    words = f"failed to get requirements failed to get version: invalid CUDA version {version}: "
    assert (
        refusal(CUDA_VERSION=version) == words + "invalid version string: invalid semantic version"
    )
    assert request_of(CUDA_VERSION=version, NVIDIA_DISABLE_REQUIRE="1").requirements == ()
    assert request_of(Config(disable_require=True), CUDA_VERSION=version).requirements == ()


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        (None, ("compute", "utility")),
        ("", ("compute", "utility")),
        ("all", FULL),
        ("all,bogus", FULL),
        (",", ()),
        ("utility, compute,,compute", ("compute", "utility")),
        (" graphics ", ("graphics",)),
    ],
)
def test_capabilities_are_trimmed_and_sorted(
    value: str | None, capabilities: tuple[str, ...]
) -> None:
    """Unset and empty capabilities mean the default, only separators the empty set; names are
    trimmed, sorted and unique.
    """
    request = request_of(NVIDIA_DRIVER_CAPABILITIES=value)
    assert request.capabilities == capabilities
    assert request.capabilities_from == (
        f"NVIDIA_DRIVER_CAPABILITIES={value}" if value else "default"
    )


def test_empty_capabilities_of_a_legacy_image_are_the_default() -> None:
    """A legacy image gets all capabilities only if the variable is unset; an empty one means the
    default.
    """
    assert request_of(NVIDIA_DRIVER_CAPABILITIES="", CUDA_VERSION="9.0").capabilities == (
        "compute",
        "utility",
    )


def test_supported_capabilities_limit_what_is_given() -> None:
    """supported-driver-capabilities limits "all" and the default; requesting more by name is
    refused.
    """
    config = Config(supported_driver_capabilities="video,utility")
    assert request_of(config, NVIDIA_DRIVER_CAPABILITIES="all").capabilities == ("utility", "video")
    assert request_of(config).capabilities == ("utility",)
    assert request_of(Config(supported_driver_capabilities=""), CUDA_VERSION="9").capabilities == ()
    text = refusal(config, NVIDIA_DRIVER_CAPABILITIES="video,compute,none")
    assert text == "unsupported capabilities found in 'compute,none,video' (allowed 'video')"


def test_requirements_are_ordered_and_complete() -> None:
    """All NVIDIA_REQUIRE_ variables are requirements, ordered by name, even empty ones; JETPACK's
    are not.
    """
    request = request_of(
        NVIDIA_REQUIRE_X="arch>=7",
        NVIDIA_REQUIRE_="",
        NVIDIA_REQUIRE_CUDA="cuda>=9",
        NVIDIA_REQUIRE_JETPACK_2="a",
        CUDA_VERSION="9.0",
    )
    assert request.requirements == ("", "cuda>=9", "arch>=7")


@pytest.mark.parametrize(
    ("value", "disabled"),
    [
        ("1", True),
        ("t", True),
        ("TRUE", True),
        ("True", True),
        ("yes", False),
        ("", False),
        ("tRUE", False),
    ],
)
def test_requirements_can_be_disabled(value: str, disabled: bool) -> None:
    """Only Go's spellings of true disable requirements."""
    assert request_of(NVIDIA_DISABLE_REQUIRE=value, NVIDIA_REQUIRE_A="x").requirements == (
        () if disabled else ("x",)
    )


@pytest.mark.parametrize("kind", ["CONFIG", "MONITOR"])
def test_mig_variables_need_privileges(kind: str) -> None:
    """A MIG variable is handed on verbatim to a privileged container, and refused to others; an
    empty one is unset.
    """
    name = f"NVIDIA_MIG_{kind}_DEVICES"
    assert (
        getattr(request_of(None, (), ROOT, **{name: " all,x"}), f"mig_{kind.lower()}") == " all,x"
    )
    assert getattr(request_of(**{name: ""}), f"mig_{kind.lower()}") == ""
    assert (
        refusal(**{name: "all", "NVIDIA_DRIVER_CAPABILITIES": "bogus"})
        == f"cannot set MIG_{kind}_DEVICES in non privileged container"
    )
    assert isinstance(outcome(NVIDIA_VISIBLE_DEVICES="void", **{name: "all"}), Skip)


def test_imex_channels_follow_the_rules_of_devices() -> None:
    """IMEX channels follow the rules of devices, except that "all" is dropped and a feature ignores
    them.
    """
    for value, channels in {
        "0,1": ("0", "1"),
        " 2,": ("2",),
        "none": (),
        "void,1": (),
        "all": (),
        "0,all": (),
        "": (),
    }.items():
        assert request_of(NVIDIA_IMEX_CHANNELS=value).imex_channels.written == channels
    assert request_of(CUDA_VERSION="9.0").imex_channels.written == ()
    config = Config(features_ignore_imex_channel_requests=True)
    assert request_of(config, NVIDIA_IMEX_CHANNELS="0").imex_channels == ImexChannels()


def test_imex_channels_are_decimal_numbers() -> None:
    """IMEX channels are decimal numbers below 2^20, in the requested order, with leading zeros or
    not.
    """
    assert ImexChannels(("7", "00", "1048575")).ids() == (7, 0, 1048575)
    assert ImexChannels().ids() == ()


@pytest.mark.parametrize(
    "value",
    [
        "1048576",
        "-1",
        "+1",
        "0x1",
        "1.0",
        "",
        " 1",
        "all",
        "channel0",
        "\u0661",
        "9" * 5000,
        "../1",
    ],
    ids=lambda value: ascii(value[:20]),
)
def test_other_imex_channels_are_refused(value: str) -> None:
    """Any other IMEX channel is refused with its value, in the reference's words."""
    with pytest.raises(Refusal) as caught:
        ImexChannels(("0", value)).ids()
    assert (
        caught.value.reference_line()
        == f"nvgraft: error parsing IMEX info: unsupported IMEX channel value: {value}"
    )


def test_ignored_imex_channels_are_reported() -> None:
    """An unprivileged container whose devices come from mounts gets no channels by variable, and a
    warning.
    """
    config = Config(
        accept_nvidia_visible_devices_as_volume_mounts=True,
        accept_nvidia_visible_devices_envvar_when_unprivileged=False,
    )
    request = request_of(config, [mount("/0")], NVIDIA_IMEX_CHANNELS="0")
    assert request.imex_channels.written == ()
    assert request.warnings == (
        (
            "Ignoring request by environment variable(s) in unprivileged container:"
            " [NVIDIA_IMEX_CHANNELS]"
        ),
    )


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_DISABLE_REQUIRE",
        "NVIDIA_REQUIRE_X",
        "NVIDIA_IMEX_CHANNELS",
        "CUDA_VERSION",
    ],
)
def test_variables_that_are_read_must_be_text(name: str) -> None:
    """A variable with control characters, lone surrogates or excessive length is refused by its
    name alone.
    """
    limit = 65536 if "REQUIRE_" in name else 4096
    for value in ("a\nb", "\x7f", "a\udcff", "x" * (limit + 1), "é" * (limit // 2 + 1)):
        assert refusal(**{name: value}) == f"invalid environment variable: {name}"


def test_other_variables_may_have_any_value() -> None:
    """A variable that the hook does not read may have any value."""
    assert request_of(OTHER="\udcff\n" * 9000).devices == ("all",)


@pytest.mark.parametrize(
    ("configured", "devices", "mode"),
    [
        ("legacy", ("nvidia.com/gpu=0",), "legacy"),
        ("cdi", ("0",), "cdi"),
        ("bogus", (), "bogus"),
        ("auto", ("0",), "legacy"),
        ("auto", (), "legacy"),
        ("auto", ("nvidia.com/gpu=0", "0"), "legacy"),
        ("auto", ("nvidia.com/gpu=0", "runtime.nvidia.com/gpu=all"), "cdi"),
    ],
)
def test_auto_is_cdi_only_for_qualified_cdi_names(
    configured: str, devices: tuple[str, ...], mode: str
) -> None:
    """A configured mode is used; auto becomes cdi only if every device is a qualified CDI name."""
    line = (
        f"Auto-detected mode as '{mode}'"
        if configured == "auto"
        else f"Using requested mode '{configured}'"
    )
    assert resolve_mode(configured, devices) == (mode, line)
    if mode == "legacy":
        check_mode(mode)
    else:
        with pytest.raises(Refusal, match="is not supported"):
            check_mode(mode)


def test_cdi_names_have_vendor_class_and_name() -> None:
    """A qualified CDI name is VENDOR/CLASS=NAME with the characters of the CDI specification."""
    for name in ("nvidia.com/gpu=0", "a/b=c", "v-1.x/c_2=GPU-1:2.3", "a/b=0"):
        assert is_cdi_name(name)
    for name in (
        "",
        "0",
        "a=b",
        "a/b",
        "/b=c",
        "a/=c",
        "a/b=",
        "1a/b=c",
        "a./b=c",
        "a/b=-c",
        "a/b=c-",
        "a/b=c/d",
        "a/b=ä",
        "a:b/c=d",
        "a/b=c=d",
    ):
        assert not is_cdi_name(name)


names = st.sampled_from(
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_VERSION",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_REQUIRE_JETPACK",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_DISABLE_REQUIRE",
        "A",
    ]
)
words = st.sampled_from(
    ["all", "none", "void", "", "0", "1,0", "compute", "9.0", "a/b=c", "\n"]
) | st.text(max_size=8)


@given(
    st.dictionaries(names, words, max_size=5),
    st.lists(st.tuples(st.just("/dev/null"), words.map(f"{PREFIX}/".__add__)), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_any_container_gets_an_answer(
    env: dict[str, str], mounts: list[tuple[str, str]], accepted: bool, privileged: bool
) -> None:
    """Any container gives a Request, a Skip with a reason, or a refusal."""
    container = ContainerConfig(env, ROOT if privileged else (), tuple(mounts))
    config = Config(accept_nvidia_visible_devices_as_volume_mounts=accepted, swarm_resource="A")
    try:
        answer = resolve_request(container, config)
    except Refusal as error:
        assert error.text
        return
    if isinstance(answer, Skip):
        assert answer.reason
        return
    assert isinstance(answer, Request)
    assert list(answer.capabilities) == sorted(set(answer.capabilities))
    assert all(answer.devices)
