"""The configuration: every key, the host's defaults, where the file is, what is refused on load."""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.errors import Refusal
from nvgraft.request import config as module
from nvgraft.request.config import (
    Config,
    config_from_settings,
    config_path,
    default_user,
    host_ldconfig,
    load_config,
)
from nvgraft.request.config_keys import KEYS
from nvgraft.request.toml_settings import settings_from_toml
from nvgraft.system import kept
from nvgraft.system.trusted import Untrusted

P = ParamSpec("P")

LOAD = "error getting hook config: failed to load config"
FILE = f"{LOAD}: couldn't open required configuration file: failed to load specified config file"
UNMARSHAL = f"{LOAD}: failed to unmarshal config"


def load(
    text: str,
    exists: Callable[[str], bool] = lambda _: False,
    os_release: Callable[[], str] = lambda: "",
) -> Config:
    return config_from_settings(
        settings_from_toml(text.encode(), "/x/config.toml"), exists, os_release
    )


def refusal(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> str:
    with pytest.raises(Refusal) as error:
        function(*arguments, **named)
    assert error.value.hint, "the refusal has no cause and fix"
    assert error.value.exit_code == 1
    return "\n".join(line for line in (error.value.first_line, error.value.text) if line)


def toml(table: tuple[str, ...], key: str, value: str) -> str:
    return (f"[{'.'.join(table)}]\n" if table else "") + f"{key} = {value}\n"


@pytest.mark.parametrize(("table", "key", "attribute", "default"), KEYS)
def test_every_key_is_read_and_checked(
    table: tuple[str, ...], key: str, attribute: str, default: bool | int | str | tuple[str, ...]
) -> None:
    """Each key sets its attribute, has a default, and refuses a value of another type."""
    value, text = {
        bool: (not default, str(not default).lower()),
        int: (7, "7"),
        str: ("@x", '"@x"'),
        tuple: (("a=b", "c"), '["a=b", "c"]'),
    }[type(default)]
    if key == "supported-driver-capabilities":
        value, text = "video", '"video"'
    if key == "ldcache" and table == ("nvgraft",):
        value, text = "ldconfig", '"ldconfig"'
    if key == "cdi-hooks":
        value, text = "each", '"each"'
    together = toml(table, key, text) + (
        "simulated-host = true\n" if key == "host-snapshot" else ""
    )
    assert getattr(load(together), attribute) == value
    assert getattr(load(""), attribute) == default
    name = {bool: "bool", int: "int64", str: "string", tuple: "[]string"}[type(default)]
    line = 2 if table else 1
    assert (
        refusal(load, toml(table, key, "3.0"))
        == f"{UNMARSHAL}: ({line}, 1): Can't convert 3.0(float64) to {name}"
    )


@pytest.mark.parametrize("value", ["0", "-1", "true"])
def test_a_bound_is_a_positive_number(value: str) -> None:
    """A bound of zero or less would refuse every container, and true is no number."""
    text = toml(("nvgraft",), "image-names", value)
    assert refusal(load, text).startswith(f"{UNMARSHAL}: (2, 1): ")


def test_keys_and_attributes_are_the_same_set() -> None:
    """Every attribute that the type checker knows has a key, and no attribute has two."""
    attributes = [attribute for _, _, attribute, _ in KEYS]
    assert list(Config.__annotations__) == attributes
    assert len(set(attributes)) == len(attributes)


def test_settings_are_plain_json() -> None:
    """Parsed settings can be kept as JSON and then give the same configuration."""
    text = """
swarm-resource = "A,B"
unknown = 1979-05-27
[nvidia-container-cli]
environment = ["A=1"]
no-cgroups = true
"""
    settings = settings_from_toml(text.encode(), "f")
    assert settings == {"swarm_resource": "A,B", "cli_environment": ["A=1"], "cli_no_cgroups": True}
    assert config_from_settings(
        json.loads(json.dumps(settings)), os_release=str
    ) == config_from_settings(settings, os_release=str)


def test_unknown_keys_and_tables_are_ignored() -> None:
    """Keys of other releases do not stop the hook."""
    assert load(
        'unknown = 3\n[nvidia-container-cli]\nother = []\n[more.tables]\nx = "y"\n'
    ) == load("")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('disable-require = "yes"', "(1, 1): Can't convert yes(string) to bool"),
        (
            "\n[nvidia-container-cli]\n  root = true # no",
            "(3, 3): Can't convert true(bool) to string",
        ),
        ("nvidia-container-cli.user = 1.5", "(1, 1): Can't convert 1.5(float64) to string"),
        (
            '[nvidia-container-cli]\nenvironment = "A=1"',
            "(2, 1): Can't convert A=1(string) to []string",
        ),
        (
            '[nvidia-container-cli]\nenvironment = ["A=1", 2]',
            "(2, 1): Can't convert 2(int64) to string",
        ),
        ("swarm-resource = [1, 2]", "(1, 1): Can't convert [1 2]([]interface {}) to string"),
        ("nvidia-container-cli = 1", "(1, 1): Can't convert 1(int64) to a table"),
        ("[swarm-resource]", "(1, 1): Can't convert {}(*toml.Tree) to string"),
        ("swarm-resource = 1979-05-27", "(1, 1): Can't convert 1979-05-27(time.Time) to string"),
        ('swarm-resource = "a\\u0000"', "(1, 1): the value contains a NUL character"),
        ("features = {ignore-imex-channel-requests = 1}", "(1, 1): Can't convert 1(int64) to bool"),
    ],
)
def test_wrong_types_are_refused_with_their_position(text: str, problem: str) -> None:
    """The refusal names the key's line and column, the value, its type and the expected type."""
    assert refusal(load, text) == f"{UNMARSHAL}: {problem}"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"a = ", "(1, 5)"),
        (b"a = 1\n[b", "(2, 3)"),
        (b"a = 1\n  = 2", "(2, 3)"),
        (b'x = 1\ny = "\xff"', "(2, 6)"),
        (b"a=" + b"[" * 5000, "(1, 1)"),
    ],
)
def test_syntax_errors_are_refused_with_their_position(text: bytes, position: str) -> None:
    """A file that is not TOML is refused with line and column."""
    phrase = f"{FILE}: {position}: "
    assert refusal(settings_from_toml, text, "/x/config.toml").startswith(phrase)


def test_ldconfig_must_be_a_path_of_the_host() -> None:
    """A value without "@" is refused on two lines.

    It is accepted if the feature allows the container's own ldconfig.
    """
    for value in ("", "/sbin/ldconfig"):
        text = f'[nvidia-container-cli]\nldconfig = "{value}"\n'
        assert refusal(load, text) == (
            f'{LOAD}: nvidia-container-cli.ldconfig value "{value}" is not host-relative '
            "(does not start with a '@')\ninvalid config value"
        )
        text += "[features]\nallow-ldconfig-from-container = true"
        assert load(text).cli_ldconfig == value


def test_ldconfig_prefers_the_real_program() -> None:
    """ldconfig.real is used where it exists: ldconfig is a script around it on such hosts."""
    for value in ("@/sbin/ldconfig", "@/sbin/ldconfig.real"):
        assert host_ldconfig(value, {"/sbin/ldconfig.real"}.__contains__) == "@/sbin/ldconfig.real"
        assert host_ldconfig(value, lambda _: False) == "@/sbin/ldconfig"
    assert host_ldconfig("/sbin/ldconfig", lambda _: True) == "/sbin/ldconfig"
    assert load("", exists=lambda _: True).cli_ldconfig == "@/sbin/ldconfig.real"


def test_the_default_user_depends_on_the_distribution() -> None:
    """SUSE's default is root:video, the group of its device nodes.

    A user in the file, even an empty one, overrides the default.
    """
    for text, user in {
        'ID=sles\nID_LIKE="suse"\n': "root:video",
        "ID_LIKE='suse opensuse'": "root:video",
        "ID=suse\nID_LIKE=debian": "",
        "": "",
    }.items():
        assert default_user(text) == user
        assert load("", os_release=text.__str__).cli_user == user
    assert (
        load('[nvidia-container-cli]\nuser = ""', os_release=lambda: "ID_LIKE=suse").cli_user == ""
    )


def test_supported_capabilities() -> None:
    """ "all" means the full set; a name outside of it is refused, after ldconfig was checked."""
    full = "compat32,compute,display,graphics,ngx,utility,video"
    assert load('supported-driver-capabilities = "all"').supported_driver_capabilities == full
    assert load('supported-driver-capabilities = ""').supported_driver_capabilities == ""
    for value in ("bogus", "compute,all", "Compute"):
        assert refusal(load, f'supported-driver-capabilities = "{value}"') == (
            "Invalid value for config option 'supported-driver-capabilities'; "
            f"{value} (supported: {full})"
        )
    both = 'supported-driver-capabilities = "bogus"\n[nvidia-container-cli]\nldconfig = ""'
    assert refusal(load, both).endswith("invalid config value")


def test_an_unknown_way_to_write_the_loader_cache_is_refused() -> None:
    """An unknown nvgraft.ldcache is refused with the two known values; the default is native."""
    assert load("").ldcache_mode == "native"
    text = refusal(load, '[nvgraft]\nldcache = "Native"')
    assert text == f"{LOAD}: nvgraft.ldcache value 'Native' is not known"
    with pytest.raises(Refusal) as error:
        load('[nvgraft]\nldcache = ""')
    assert error.value.hint == 'set it to "native" (the default) or "ldconfig"'


def test_an_unknown_form_of_cdi_hooks_is_refused() -> None:
    """An unknown nvgraft.cdi-hooks is refused with the two known values."""
    with pytest.raises(Refusal) as error:
        load('[nvgraft]\ncdi-hooks = "six"')
    assert error.value.line().endswith(
        'nvgraft.cdi-hooks value \'six\' is not known | set it to "one" (the default) or "each"'
    )


def test_a_host_snapshot_needs_a_simulated_host() -> None:
    """host-snapshot without simulated-host is refused.

    A recorded host is never mistaken for the real one.
    """
    assert load('[nvgraft]\nsimulated-host = true\nhost-snapshot = "/s"').host_snapshot == "/s"
    assert "without nvgraft.simulated-host = true" in refusal(
        load, '[nvgraft]\nhost-snapshot = "/s"'
    )


def test_where_the_file_is() -> None:
    """The flag counts first, then the variable, XDG_CONFIG_HOME and /etc.

    Only a named file has to exist.
    """
    environ = {"NVIDIA_CTK_CONFIG_FILE_PATH": "/var", "XDG_CONFIG_HOME": "/xdg"}
    assert config_path("/flag", environ) == ("/flag", True)
    assert config_path(None, environ) == ("/var", True)
    del environ["NVIDIA_CTK_CONFIG_FILE_PATH"]
    assert config_path(None, environ) == ("/xdg/nvidia-container-runtime/config.toml", False)
    assert config_path(None, {"XDG_CONFIG_HOME": ""}) == (
        "/etc/nvidia-container-runtime/config.toml",
        False,
    )


def test_a_missing_file_matters_only_when_it_was_named(tmp_path: Path) -> None:
    """Without the default file the built-in defaults apply; a missing named file is an error."""
    assert load_config(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == config_from_settings({})
    phrase = f"{LOAD}: couldn't open required configuration file: open "
    assert (
        refusal(load_config, f"{tmp_path}/x", {})
        == f"{phrase}{tmp_path}/x: no such file or directory"
    )
    assert (
        refusal(load_config, None, {"NVIDIA_CTK_CONFIG_FILE_PATH": f"{tmp_path}"})
        == f"{FILE}: read {tmp_path}: is a directory"
    )


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """The named file is read, and an empty one gives the defaults."""
    path = tmp_path / "config.toml"
    path.write_text("disable-require = true\n")
    assert load_config(str(path), {}).disable_require
    path.write_text("")
    assert load_config(str(path), {}) == config_from_settings({})


def test_an_untrusted_file_is_refused(tmp_path: Path) -> None:
    """An untrusted file is refused, whether it was named or is the default one.

    The message names the file, the place, the problem and the fix.
    """
    path = tmp_path / "nvidia-container-runtime" / "config.toml"
    path.parent.mkdir()
    path.write_text("disable-require = true\n")

    def untrusted(_path: str) -> int:
        raise Untrusted("/tmp", "group or others may write it", "chmod go-w /tmp")

    for explicit, environ in (
        (str(path), {}),
        (None, {"XDG_CONFIG_HOME": str(tmp_path)}),
        (None, {"NVIDIA_CTK_CONFIG_FILE_PATH": str(path)}),
    ):
        with pytest.raises(Refusal) as caught:
            load_config(explicit, environ, open_file=untrusted)
        phrase = f"{FILE}: {path} is not trusted"
        assert caught.value.text == f"{phrase}: /tmp: group or others may write it"
        assert caught.value.hint == "chmod go-w /tmp"


@pytest.mark.parametrize(
    "root", ["/proc/self/cwd", "/proc", "//proc/1/root/", "/x/../proc/self/root"]
)
def test_a_driver_root_in_proc_is_refused(root: str) -> None:
    """A driver root below /proc is refused: it is another directory for each process."""
    text = refusal(load, f'[nvidia-container-cli]\nroot = "{root}"')
    assert text == f"{LOAD}: nvidia-container-cli.root is {root}"


def test_a_driver_root_elsewhere_is_accepted() -> None:
    """A driver root whose name only begins with /proc is accepted."""
    assert load('[nvidia-container-cli]\nroot = "/process/driver"').cli_root == "/process/driver"


def test_relative_names_count_from_the_directory() -> None:
    """Relative paths of the flag, the variable and XDG_CONFIG_HOME count from the directory."""
    assert config_path("c.toml", {}, "/d") == ("/d/c.toml", True)
    assert config_path(None, {"NVIDIA_CTK_CONFIG_FILE_PATH": "c.toml"}, "/d") == ("/d/c.toml", True)
    assert config_path(None, {"XDG_CONFIG_HOME": "x"}, "/d") == (
        "/d/x/nvidia-container-runtime/config.toml",
        False,
    )
    assert config_path(None, {}, "/d") == ("/etc/nvidia-container-runtime/config.toml", False)


def test_the_same_bytes_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bytes of config.toml are parsed once, other bytes always, whatever the file's time.

    The TOML parser costs more than everything else that a container without a GPU needs.
    """
    monkeypatch.setattr(kept, "DIRECTORY", str(tmp_path / "nvgraft/cache"))
    path = tmp_path / "config.toml"
    parsed: list[str] = []
    original = tomllib.loads

    def loads(text: str) -> dict[str, object]:
        parsed.append(text)
        return original(text)

    monkeypatch.setattr(tomllib, "loads", loads)
    texts = [
        "disable-require = true\n",
        'swarm-resource = "é"\n[nvidia-container-cli]\nenvironment = ["A=b"]\n',
    ]
    for _ in range(3):
        for text in texts:
            path.write_text(text)
            os.utime(path, (1, 1))
            assert load_config(str(path), {}, cached=True) == load_config(str(path), {})
    assert parsed == [texts[0], texts[0], texts[1], texts[1], *texts, *texts]


def test_a_config_toml_that_is_refused_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused file is refused again with the same words."""
    monkeypatch.setattr(kept, "DIRECTORY", str(tmp_path / "nvgraft/cache"))
    path = tmp_path / "config.toml"
    for text in ("= 1", "disable-require = 1", 'supported-driver-capabilities = "x"'):
        path.write_text(text)
        assert (
            refusal(load_config, str(path), {}, cached=True)
            == refusal(load_config, str(path), {}, cached=True)
            == refusal(load_config, str(path), {})
        )


def test_an_unreadable_default_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default file that exists and is not a bounded regular file is an error.

    The built-in defaults are not used instead.
    """
    path = tmp_path / "nvidia-container-runtime" / "config.toml"
    path.mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert refusal(load_config, None, environ) == f"{FILE}: read {path}: is a directory"
    assert refusal(load_config, str(path), {}) == f"{FILE}: read {path}: is a directory"
    path.rmdir()
    path.write_text("disable-require = true\n")
    monkeypatch.setattr(module, "LIMIT", 5)
    assert refusal(load_config, None, environ) == f"{FILE}: open {path}: file too large"


def test_a_misspelt_attribute_is_a_mistake() -> None:
    """Config takes no attribute that has no key."""
    with pytest.raises(TypeError, match="no such setting: rooot"):
        Config(rooot="/")


scalars = st.booleans() | st.integers() | st.text(max_size=5)
tomls = st.dictionaries(
    st.sampled_from(
        [*{key for _, key, _, _ in KEYS}, *{part for table, _, _, _ in KEYS for part in table}]
    ),
    scalars
    | st.lists(scalars, max_size=2)
    | st.dictionaries(st.sampled_from(["root", "path", "mode"]), scalars, max_size=2),
    max_size=4,
)


def inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@given(tomls)
def test_any_values_give_a_configuration_or_a_refusal(tables: dict[str, object]) -> None:
    """Values of any type give a Config or a refusal."""
    try:
        load("\n".join(f"{key} = {inline(value)}" for key, value in tables.items()))
    except Refusal as error:
        assert error.text


@given(st.text(max_size=40) | st.text(alphabet='[]="\n.a#', max_size=20))
def test_any_text_gives_a_configuration_or_a_refusal(text: str) -> None:
    """Any text gives settings or a refusal, and no other exception."""
    try:
        settings_from_toml(text.encode("utf-8", "surrogatepass"), "f")
    except Refusal as error:
        assert "failed to load specified config file: (" in error.text
