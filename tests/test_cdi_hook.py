"""nvgraft-cdi-hook: its command line, and what each step plans in a root file system."""

import json
import os
import posix
import signal
import zlib
from pathlib import Path

import pytest

import hosts
from nvgraft import cdi_hook
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.container.unprepared import is_own_namespace
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import (
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    UpdateLoaderCache,
)
from nvgraft.plan.forward_compat import compat_folder, parse_version
from nvgraft.plan.hook_steps import StepPlanner, hidden_params
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.request.hook_steps import (
    Chmod,
    CreateSymlinks,
    DisableDeviceNodeModification,
    EnableCudaCompat,
    UnknownStep,
    UpdateApplicationProfile,
    UpdateLdcache,
    parse_steps,
)
from nvgraft_specs import cdi_hooks

LIBS = "/usr/lib/x86_64-linux-gnu"
CONF = "/etc/ld.so.conf.d"
COMPAT = "/usr/local/cuda/compat"
PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
PARAMS = "A: 1\nModifyDeviceFiles: 1\nB: 2\n"
DEBIAN = (
    "/etc/debian_version = 12.1\n/etc/ld.so.conf = include /etc/ld.so.conf.d/*.conf\\n\n/proc/\n"
)


class Image(SnapshotTree):
    """An image whose compatibility libraries may have a note: path -> its text."""

    closed = True
    label = "/b/rootfs"

    def __init__(self, text: str, notes: dict[str, bytes]) -> None:
        super().__init__(hosts.tree(text))
        self._notes = notes

    def note(self, path: str, section: str, owner: bytes) -> bytes:
        assert (section, owner) == (".note.cuda.fwd_compatibility", b"NVIDIA Corporation")
        return self._notes.get(path, b"")


class Place(OfflineTarget):
    """A target without the mounts of an engine but for ``volumes``."""

    def __init__(
        self, text: str, volumes: tuple[str, ...] = (), notes: dict[str, bytes] | None = None
    ) -> None:
        super().__init__(Image(text, notes or {}), "x86_64", volumes, module=True)
        self._volumes = volumes


def plan(
    image: str,
    *words: str,
    volumes: tuple[str, ...] = (),
    params: str = PARAMS,
    notes: dict[str, bytes] | None = None,
) -> Plan:
    """Plan the command line ``words`` in ``image``."""
    return StepPlanner(Place(image, volumes, notes), params).plan(parse_steps(words))


def shown(plan: Plan) -> list[str]:
    """Return one line for each action."""
    lines = []
    for action in plan.actions:
        if isinstance(action, MakeDirectory):
            lines.append(f"dir {action.path} {action.mode:o}")
        elif isinstance(action, Symlink):
            lines.append(f"{action.path} -> {action.target}{'!' if action.replaces else ''}")
        elif isinstance(action, PlaceFile):
            lines.append(f"file {action.path} {action.mode:o} {action.content!r}")
        elif isinstance(action, ChangeMode):
            lines.append(f"mode {action.path} {action.mode:o}")
        elif isinstance(action, Bind):
            lines.append(f"bind {action.target} {action.mode:o} {action.content!r}")
        elif isinstance(action, UpdateLoaderCache):
            lines.append(f"cache {action.directories} {action.searched}")
    return lines


def links(*specifications: str) -> list[str]:
    return ["create-symlinks", *(word for text in specifications for word in ("--link", text))]


# ---- the command line


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["create-symlinks"], [CreateSymlinks(())]),
        (
            ["create-symlinks", "--link", "a::/b", "-link=c::d", "--link", "a::/b", "x"],
            [CreateSymlinks((("a", "/b"), ("c", "d")))],
        ),
        (
            ["create-symlinks", "--link", "a::/b,c::/d"],
            [CreateSymlinks((("a", "/b"), ("c", "/d")))],
        ),
        (["enable-cuda-compat"], [EnableCudaCompat("", "", COMPAT)]),
        (
            [
                "enable-cuda-compat",
                "--host-driver-version=1.2",
                "--host-cuda-version",
                "12.4",
                "--cuda-compat-container-root=/c",
            ],
            [EnableCudaCompat("1.2", "12.4", "/c")],
        ),
        (["update-ldcache"], [UpdateLdcache((), "/sbin/ldconfig")]),
        (
            ["update-ldcache", "--folder", "/a", "--folder=/b", "--ldconfig-path", "/l"],
            [UpdateLdcache(("/a", "/b"), "/l")],
        ),
        (["disable-device-node-modification"], [DisableDeviceNodeModification()]),
        (["update-application-profile"], [UpdateApplicationProfile()]),
        (["update-application-profile", "--container-spec=-"], [UpdateApplicationProfile()]),
        (["chmod", "--mode", "755", "--path", "/a"], [Chmod(0o755, ("/a",))]),
        (["chmod", "--mode", "4711"], [Chmod(0o711, ())]),
        (["noop"], []),
        (["no-such-hook", "--x"], [UnknownStep("no-such-hook")]),
        (["steps"], []),
        (
            ["steps", "chmod", "--mode", "1", "--", "noop", "--", "new", "--x"],
            [Chmod(1, ()), UnknownStep("new")],
        ),
    ],
)
def test_the_steps_of_a_command_line(words: list[str], steps: list[object]) -> None:
    """Options are read as the reference reads them; `steps` has several steps between `--`."""
    assert parse_steps(words) == steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create-symlinks", "--nope"], "flag provided but not defined: -nope"),
        (["noop", "--link=a::b"], "flag provided but not defined: -link"),
        (["create-symlinks", "--link"], "flag needs an argument: --link"),
        (["create-symlinks", "--link", "a"], "invalid symlink specification a"),
        (["create-symlinks", "--link", "a::b::c"], "invalid symlink specification a::b::c"),
        (["create-symlinks", "--link", "::/b"], "invalid symlink specification ::/b"),
        (["create-symlinks", "--link", "a::/b\n"], "invalid symlink specification a::/b"),
        (["chmod", "--path", "/a"], "a non-empty mode must be specified"),
        (["chmod", "--mode", " "], "a non-empty mode must be specified"),
        (["chmod", "--mode", "0o7"], "failed to parse mode as octal"),
        (["chmod", "--mode", "888"], "failed to parse mode as octal"),
        (["chmod", "--mode", "7" * 12], "failed to parse mode as octal"),
        (["chmod", "--mode", "7", "--path", " "], "paths must not be empty"),
        (["chmod", "--mode", "7", "--path", "/\udcff"], "invalid path"),
        (["update-ldcache", "--ldconfig-path", ""], "ldconfig-path must be specified"),
        (["update-ldcache", "--folder", "/a\nb"], "invalid path"),
        (["steps", "--", "noop"], "a step without a name"),
        (["chmod", "--mode=1", "--container-spec", "/x"], "--container-spec /x"),
    ],
)
def test_command_lines_that_are_refused(words: list[str], message: str) -> None:
    """A known sub-command with an unknown option or value is refused in the reference's words."""
    with pytest.raises(Refusal, match=message) as refused:
        parse_steps(words)
    assert refused.value.exit_code == 1
    assert refused.value.hint


def test_the_argument_form_of_one_hook_has_the_steps() -> None:
    """What in_one() writes is read back as the same steps, in their order."""
    steps = [links("a::/b"), ["update-ldcache", "--folder", "/c"], ["noop"], ["chmod", "--mode=1"]]
    words = cdi_hooks.in_one(steps)
    assert parse_steps(words) == [step for words in steps for step in parse_steps(words)]
    assert cdi_hooks.in_one(steps, "/c.toml")[:3] == ["--config", "/c.toml", "steps"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "nvgraft: warning: No CDI hook specified"),
        (["hook"], 0, "nvgraft: warning: No CDI hook specified"),
        (["--nope", "create-symlinks"], 0, "nvgraft: warning: No CDI hook specified"),
        (["--quiet"], 0, ""),
        (["no-such"], 0, "nvgraft: warning: Unsupported CDI hook: no-such"),
        (["hook", "no-such"], 0, "nvgraft: warning: Unsupported CDI hook: no-such"),
        (["noop"], 0, ""),
        (["--debug", "hook", "noop"], 0, "nvgraft: warning: Unsupported CDI hook: hook"),
        (["hook", "--debug", "noop"], 0, ""),
        (["--config"], 1, "flag needs an argument: --config"),
        (["create-symlinks", "--nope"], 1, "flag provided but not defined: -nope"),
        (["cdi", "generate"], 1, "nvidia-ctk cdi: no such command | nvgraft has"),
        (["create-symlinks", "--help"], 0, "usage: nvgraft-cdi-hook"),
    ],
)
def test_what_needs_no_container(
    words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No or unknown sub-command is a warning; nvidia-ctk's other commands are refused."""
    assert cdi_hook.main(["nvgraft-cdi-hook", *words]) == code
    err = capfd.readouterr().err
    assert err.startswith(said) and bool(err) == bool(said)


def test_the_version_goes_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """--version prints the reference's line."""
    before = signal.getsignal(signal.SIGPIPE)  # an answer to a closed pipe ends a program
    try:
        assert cdi_hook.main(["nvgraft-cdi-hook", "--version"]) == 0
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert capfd.readouterr().out.startswith("NVIDIA CDI Hook version ")


# ---- create-symlinks


@pytest.mark.parametrize(
    ("image", "specification", "actions"),
    [
        ("/lib/", "t::/lib/a", ["/lib/a -> t"]),
        ("", "t::/x/y/a", ["dir /x 755", "dir /x/y 755", "/x/y/a -> t"]),
        ("", "t::x/../../y/./a", ["dir /y 755", "/y/a -> t"]),
        ("/a -> t", "t::/a", []),
        ("/a -> u", "t::/a", ["/a -> t!"]),
        ("/a", "t::/a", ["/a -> t!"]),
        ("/l -> /lib\n/lib/", "t::/l/a", ["/lib/a -> t"]),
        ("/l -> ../../lib\n/lib/", "t::/l/b/a", ["dir /lib/b 755", "/lib/b/a -> t"]),
        ("/l/m -> ../n\n/n/", "/abs::/l/m/a", ["/n/a -> /abs"]),
    ],
)
def test_links_are_made_inside_the_root(image: str, specification: str, actions: list[str]) -> None:
    """Links of the image are followed inside it, `..` stops at the root, and a file is replaced."""
    assert shown(plan(image, *links(specification))) == actions


@pytest.mark.parametrize(
    ("image", "specification", "message"),
    [
        ("/l -> /gone", "t::/l/a", "failed to create link .*/b/rootfs/l: not a directory"),
        ("/l -> ../../gone", "t::/l/m/a", "/b/rootfs/l: not a directory"),
        ("/l -> l", "t::/l/a", "too many levels of symbolic links"),
        ("/l", "t::/l/a", "/b/rootfs/l: not a directory"),
        ("/a/", "t::/a", "/b/rootfs/a: is a directory"),
        ("/a fifo", "t::/a", "/b/rootfs/a: file exists"),
        ("", "t::/", "is a directory"),
        ("", "t::/x/..", "is a directory"),
        ("/l -> " + "d/" * 130 + "\n/" + "d/" * 130, "t::/l/a", "file name too long"),
    ],
)
def test_links_that_are_refused(image: str, specification: str, message: str) -> None:
    """A link that leads nowhere is not followed, and a directory is not replaced."""
    with pytest.raises(Refusal, match=message):
        plan(image, *links(specification))


def test_each_step_sees_what_the_former_made() -> None:
    """A link, directory or file of an earlier step counts; the last link of a path is made."""
    made = plan("/y/", "steps", *links("y::/a", "z::/a/b", "u::/a", "v::/c/d", "w::/c/e"))
    assert shown(made) == ["/y/b -> z", "/a -> u!", "dir /c 755", "/c/d -> v", "/c/e -> w"]
    with pytest.raises(Refusal, match="not a directory"):
        plan("", *links("y::/a", "z::/a/b"))


def test_a_link_on_a_volume_is_left_out() -> None:
    """Nothing is made on a volume; the others are."""
    made = plan("/v/\n/l -> /v", *links("t::/v/x/a", "t::/l/b", "t::/c"), volumes=("/v",))
    assert shown(made) == ["/c -> t"]
    assert hosts.finding_ids(made.findings) == ["link-skipped", "link-skipped"]


# ---- update-ldcache

DEBIAN_DIRECTORIES = f"/lib/x86_64-linux-gnu\n{LIBS}\n/lib\n/usr/lib\n"
OTHER_DIRECTORIES = "/lib\n/usr/lib\n/lib64\n/usr/lib64\n/libx32\n/usr/libx32\n"


def as_line(text: str) -> str:
    """Return ``text`` as the content of a file in the language of hosts.tree()."""
    return text.replace("\n", "\\n")


def conf(prefix: str, text: str) -> str:
    """Return the start of the line of a file of ld.so.conf.d."""
    return f"file {CONF}/{prefix}-{zlib.crc32(text.encode()):08x}.conf 644 {text!r}"


def test_a_folder_that_no_file_names_gets_one() -> None:
    """A new folder gets a file before all others, the system's own directories one behind them.

    The cache is made with all of them in the order of the names, and the folders are searched.
    """
    assert shown(plan(DEBIAN, "update-ldcache", "--folder", "/opt/l", "--folder", LIBS)) == [
        f"dir {CONF} 755",
        conf("00-nvgraft", "/opt/l\n"),
        conf("zz-nvgraft", DEBIAN_DIRECTORIES),
        f"cache {('/opt/l', *DEBIAN_DIRECTORIES.split())} {('/opt/l', LIBS)}",
    ]


def test_what_is_there_is_not_made_again() -> None:
    """A second start finds the files of the first one: they are named after their text."""
    first = plan(DEBIAN, "update-ldcache", "--folder", "/opt/l")
    files = "".join(
        f"{action.path} = {as_line(action.content)}\n"
        for action in first.actions
        if isinstance(action, PlaceFile)
    )
    again = plan(DEBIAN + files, "update-ldcache", "--folder", "/opt/l")
    assert [type(action) for action in again.actions] == [UpdateLoaderCache]


def test_an_image_without_anything() -> None:
    """An image without /etc, /proc and ld.so.conf gets them; it is not like Debian."""
    assert shown(plan("/bin/", "update-ldcache"))[:5] == [
        "dir /proc 755",
        "dir /etc 755",
        f"file /etc/ld.so.conf 644 'include {CONF}/*.conf\\n'",
        f"dir {CONF} 755",
        conf("zz-nvgraft", OTHER_DIRECTORIES),
    ]


def test_musl_gets_the_same_directories() -> None:
    """In an image like Alpine the lines are added to musl's own file, once."""
    image = "/etc/alpine-release = 3\n/etc/ld-musl-x86_64.path = /own\\n\n/proc/"
    [line] = [
        line for line in shown(plan(image, "update-ldcache", "--folder", "/f")) if "ld-musl" in line
    ]
    whole = f"/own\n/f\n{OTHER_DIRECTORIES}"
    assert line == f"file /etc/ld-musl-x86_64.path 644 {whole!r}"
    image = image.replace(as_line("/own\n"), as_line(whole))
    assert "ld-musl" not in str(shown(plan(image, "update-ldcache", "--folder", "/f")))


@pytest.mark.parametrize(
    ("image", "volumes", "message"),
    [
        (
            f"{CONF} -> /gone",
            (),
            "failed to create ld.so.conf.d: /b/rootfs/etc/ld.so.conf.d: not a",
        ),
        (f"{CONF}", (), "not a directory"),
        ("/etc -> ../../gone", (), "/b/rootfs/etc: not a directory"),
        ("/etc/", ("/etc",), "it would be made on the volume /etc"),
    ],
)
def test_a_configuration_that_cannot_be_written(
    image: str, volumes: tuple[str, ...], message: str
) -> None:
    """ld.so.conf.d must be a directory of the image; nothing is made on a volume."""
    with pytest.raises(Refusal, match=message):
        plan(image, "update-ldcache", volumes=volumes)


# ---- enable-cuda-compat


def note(drivers: list[int], cuda: str = "12.6") -> dict[str, bytes]:
    text = json.dumps({"Format": 1, "CUDA Version": cuda, "Driver": drivers, "Device": []})
    return {f"{COMPAT}/libcuda.so.560.35.05": text.encode() + b"\0\0"}


@pytest.mark.parametrize(
    ("driver", "cuda", "notes", "used"),
    [
        ("550.54.15", "", {}, True),
        ("560.10.01", "", {}, False),
        ("570.1.1", "", {}, False),
        ("x", "", {}, False),
        ("", "", {}, False),
        ("550.54.15", "12.4", {}, False),
        ("550.54.15", "", note([550, 535]), True),
        ("550.54.15", "12.9", note([550]), True),
        ("550.54.15", "", note([535]), False),
        ("560.35.05", "", note([560]), False),
        ("560.35.04", "", note([560]), True),
        ("", "12.4", note([]), True),
        ("", "12.6", note([]), False),
        ("x", "12.4", note([550]), True),
        ("", "12.4", note([], ""), False),
        ("550.1.1", "", {f"{COMPAT}/libcuda.so.560.35.05": b"{"}, True),
        ("550.1.1", "", {f"{COMPAT}/libcuda.so.560.35.05": b'{"Driver": ["x"]}'}, True),
    ],
)
def test_which_compatibility_libraries_come_first(
    driver: str, cuda: str, notes: dict[str, bytes], used: bool
) -> None:
    """The library's note decides; without one a greater major version does."""
    step = EnableCudaCompat(driver, cuda, COMPAT)
    target = Place(f"{COMPAT}/libcuda.so.560.35.05", (), notes)
    assert compat_folder(target, target.tree, step) == (COMPAT if used else None, [])


def test_the_folder_is_the_one_that_links_lead_to() -> None:
    """The resolved folder is written, before the driver's."""
    image = f"/usr/local/cuda -> /usr/local/cuda-12\n/usr/local/cuda-12/compat -> /c\n/c/libcuda.so.560.1 elf -\n{CONF}/"
    command = ("enable-cuda-compat", "--host-driver-version=550.1.1")
    assert shown(plan(image, *command)) == [conf("00-compat", "/c\n")]
    both = plan(DEBIAN + image, "steps", *command, "--", "update-ldcache", "--folder", "/f")
    cache = both.actions[-1]
    assert isinstance(cache, UpdateLoaderCache) and cache.directories[:2] == ("/c", "/f")


@pytest.mark.parametrize(
    ("image", "volumes", "finding"),
    [
        ("", (), None),
        (f"{COMPAT}/libcuda.so.1", (), None),
        (f"{COMPAT}/libcuda.so.560.1 -> x", (), None),
        (f"{COMPAT}/libcuda.so.560.1\n{COMPAT}/libcuda.so.565.1", (), "cuda-compat-several"),
        (f"{COMPAT}/libcuda.so.560.1", ("/usr/local",), "cuda-compat-on-volume"),
        ("/usr/local/cuda -> /a#b\n/a#b/compat/libcuda.so.560.1", (), "cuda-compat-name"),
        (f"{COMPAT}/libcuda.so.560.1\n{CONF}/", (CONF,), "cuda-compat-on-volume"),
    ],
)
def test_compatibility_libraries_that_are_not_used(
    image: str, volumes: tuple[str, ...], finding: str | None
) -> None:
    """No library, several, or a folder on a volume: nothing is done, with a finding."""
    command = ("enable-cuda-compat", "--host-driver-version=550.1.1")
    made = plan(image, *command, volumes=volumes)
    assert shown(made) == []
    assert hosts.finding_ids(made.findings) == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", (550, 54, 15, True, "")),
        ("v12", (12, 0, 0, True, "")),
        ("535.054.03+x-y", (535, 54, 3, True, "")),
        ("1.2-rc1", (1, 2, 0, False, "rc1")),
        *((text, None) for text in ("", "x", "1.2.3.4", "1..2", "-1", "1.2-", "1" * 11, "1.²")),
    ],
)
def test_versions(text: str, version: object) -> None:
    """A version has one to three numbers; a pre-release comes before its release."""
    assert parse_version(text) == version


# ---- disable-device-node-modification


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (PARAMS, PARAMS.replace("Files: 1", "Files: 0")),
        ("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0\n"),
        ("ModifyDeviceFiles: 0\n", None),
        ("ModifyDeviceFiles: 1\nModifyDeviceFiles: 0\n", None),
        ("ModifyDeviceFiles: 10\n", None),
        (" ModifyDeviceFiles: 1\n", None),
        ("", None),
    ],
)
def test_the_drivers_parameters(text: str, hidden: str | None) -> None:
    """Only the line that allows the driver's programs to make nodes is changed."""
    assert hidden_params(text) == hidden


@pytest.mark.parametrize(
    ("image", "params", "actions"),
    [
        ("/proc/driver/nvidia/params = x", PARAMS, 1),
        ("/proc/driver/nvidia/params = x", "", 0),
        ("/proc/x", PARAMS, 0),
        ("/proc/driver/nvidia/params = A: 1\\nModifyDeviceFiles: 0\\nB: 2\\n", PARAMS, 0),
    ],
)
def test_the_parameters_are_covered(image: str, params: str, actions: int) -> None:
    """The file is covered once, where the container has one and the host allows nodes."""
    made = shown(plan(image, "disable-device-node-modification", params=params))
    expected = f"bind /proc/driver/nvidia/params 444 {PARAMS.replace('s: 1', 's: 0')!r}"
    assert made == [expected] * actions


@pytest.mark.parametrize(
    "image", ["/proc/driver/nvidia/params/", "/x/nvidia/params\n/proc/driver -> /x"]
)
def test_parameters_elsewhere_are_refused(image: str) -> None:
    """A link or a directory in the place of the driver's file is refused."""
    with pytest.raises(Refusal, match="failed to mount modified params file"):
        plan(image, "disable-device-node-modification")


# ---- update-application-profile


def test_the_profile_has_a_bit_for_each_gpu() -> None:
    """The mask has the minor numbers of the nodes, whatever their names."""
    image = "/dev/nvidia0 char 195:0\n/dev/nvidia9 char 195:3\n/dev/nvidiactl char 195:255\n/dev/nvidia7"
    made = shown(plan(image, "update-application-profile"))
    assert made[:-1] == [
        f"dir {path} 555" for path in ("/etc", "/etc/nvidia", PROFILE.rpartition("/")[0])
    ]
    assert made[-1].startswith(f"file {PROFILE} 444 ")
    assert '"EGLVisibleDGPUDevices",0x9]' in made[-1]


def test_a_profile_that_cannot_be_written() -> None:
    """Without a node nothing is written; a number beyond the mask and a volume are findings."""
    assert plan("/dev/", "update-application-profile") == plan("", "update-application-profile")
    made = plan("/dev/nvidia70 char 195:70", "update-application-profile")
    assert (shown(made), hosts.finding_ids(made.findings)) == ([], ["profile-minor"])
    image = "/dev/nvidia0 char 195:0\n/etc/nvidia/"
    made = plan(image, "update-application-profile", volumes=("/etc/nvidia",))
    assert (shown(made), hosts.finding_ids(made.findings)) == ([], ["profile-on-volume"])


# ---- chmod


@pytest.mark.parametrize(
    ("path", "actions"),
    [
        ("/d", ["mode /d 755"]),
        ("d/../d", ["mode /d 755"]),
        ("/same", []),
        ("/gone", []),
        ("/../d", []),
        ("d/../../d", []),
        ("/out", ["mode /d 755"]),
        ("/up", ["mode /d 755"]),
        ("/nowhere", []),
        ("/circle", []),
        ("/d,/f", ["mode /d 755", "mode /f 755"]),
    ],
)
def test_permissions_change_inside_the_root(path: str, actions: list[str]) -> None:
    """Links are followed inside the root; what is missing there is skipped."""
    image = (
        "/d/ mode=0777\n/f mode=0600\n/same mode=0755\n/out -> /d\n/up -> ../../d\n"
        "/nowhere -> /gone\n/circle -> circle"
    )
    assert shown(plan(image, "chmod", "--mode", "755", "--path", path)) == actions


# ---- the container


@pytest.mark.parametrize(
    ("pid", "shown", "namespaces", "own"),
    [
        (0, "self", {}, True),
        (1, "self", {}, True),
        ("parent", "self", {}, True),
        (4711, "other", {"4711": "a", "self": "b"}, True),
        (4711, "self", {"4711": "a", "self": "a"}, True),
        (4711, "self", {"4711": "a", "self": "b"}, False),
    ],
)
def test_whether_the_hook_is_in_the_containers_namespace(
    pid: int | str,
    shown: str,
    namespaces: dict[str, str],
    own: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At createContainer the pid may be of another pid namespace than /proc: it is not looked up
    then, since another process of the host may have that number.
    """

    def readlink(path: str) -> str:
        if path == "/proc/self":
            return str(os.getpid()) if shown == "self" else "99999"
        assert shown == "self", "a number of another pid namespace was looked up"
        return namespaces[path.split("/")[2]]

    monkeypatch.setattr(posix, "readlink", readlink)
    assert is_own_namespace(os.getppid() if isinstance(pid, str) else pid) == own


@pytest.mark.parametrize(
    ("words", "mounted", "host", "message"),
    [
        (["update-ldcache"], True, True, ""),
        (["update-ldcache"], False, False, "error running pivot_root"),
        (["update-ldcache", "--ldconfig-path", "/no/such"], True, False, "stat /no/such: no such"),
        (["update-ldcache", "--ldconfig-path", __file__], True, False, "exec format error"),
        (["update-ldcache", "--ldconfig-path", "/usr/bin/python3"], True, False, "not a static"),
        (["disable-device-node-modification"], False, False, ""),
        (["disable-device-node-modification"], False, True, "no mount namespace of its own"),
    ],
)
def test_what_steps_need(
    words: list[str], mounted: bool, host: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader cache needs a root that is a mount and, if one is named, a static ldconfig; the
    parameters are not hidden in the host's own mount namespace.
    """
    container = Container(os.getpid(), None, "/b/rootfs", -1, 0, 0)
    monkeypatch.setattr(Container, "is_mount_point", lambda _self: mounted)
    monkeypatch.setattr(cdi_hook, "_is_host_namespace", lambda: host)
    if not message:
        cdi_hook._check(parse_steps(words), container)
        return
    with pytest.raises(Refusal, match=message):
        cdi_hook._check(parse_steps(words), container)


def test_no_variable_leads_to_a_config_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook may have the container's environment: only its option names another config.toml."""
    seen = []

    def load_config(given: str | None, environ: dict[str, str], *_: object, **__: object) -> None:
        seen.append((given, environ))
        raise Refusal("", "enough")

    monkeypatch.setattr(cdi_hook, "begin", lambda: os.open(tmp_path, os.O_PATH))
    monkeypatch.setattr(cdi_hook, "load_config", load_config)
    monkeypatch.setattr(posix, "environ", {b"NVIDIA_CTK_CONFIG_FILE_PATH": b"/evil"})
    for words in ([], ["--config", "/c.toml"]):
        assert cdi_hook.main(["nvgraft-cdi-hook", *words, "update-application-profile"]) == 1
    assert seen == [(None, {}), ("/c.toml", {})]


def test_a_link_is_not_made_on_a_mount_point() -> None:
    """No link can take the place of a file that is mounted: the volume is named."""
    path = "/usr/lib/libcuda.so.1"
    with pytest.raises(Refusal, match="device or resource busy") as refused:
        plan("/usr/lib/", *links(f"libcuda.so.9::{path}"), volumes=(path,))
    assert refused.value.hint == f"remove the volume that is mounted on {path}"


def test_a_mounted_configuration_of_the_loader_is_used() -> None:
    """A volume on ld.so.conf is there already: no such file is made."""
    made = shown(plan("/etc/\n/proc/", "update-ldcache", volumes=("/etc/ld.so.conf",)))
    assert not [line for line in made if line.startswith("file /etc/ld.so.conf ")]
