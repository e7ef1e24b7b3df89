"""The fuzz targets: every parser of foreign input, as a function of bytes that must not fail.

A target swallows the errors that its parser documents. A finding is every other exception, an
answer that differs from an oracle's (the standard library's JSON, a reference evaluator) or does
not survive a round trip, and text with terminal controls. ``test_fuzz.py`` runs the targets over
mutated documents, ``integration/safety/fuzz.py`` under a coverage-guided fuzzer.
``fixtures/fuzz/TARGET`` holds the seeds and every input that was once a finding. Targets for the
contents of images are in ``fuzz_images.py``, those for the machine's answers in
``fuzz_machine.py``.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import fuzz_images
import fuzz_machine
from fuzz_checks import as_file, check_text, controls
from looks import FixedLook, link_hooks
from nvgraft.base import jsontext
from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.cdi.reader import SpecificationError
from nvgraft.container.offline_target import OfflineTarget, VirtualTree
from nvgraft.formats import elf, ld_so_conf, ldcache, ldcache_entries
from nvgraft.formats.tree import PathError
from nvgraft.host import inventory
from nvgraft.host.components import Inventory, ProcEntry, device_file_minor
from nvgraft.host.graphics_files import CharDevice, FileMount
from nvgraft.host.inventory import parse_majors, read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, SnapshotTree, snapshot_host
from nvgraft.plan.actions import Plan
from nvgraft.plan.document import plan_document
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request import oci, requirements
from nvgraft.request.config import Config, config_from_settings, default_user
from nvgraft.request.decision import decide
from nvgraft.request.request import check_request
from nvgraft.request.toml_settings import settings_from_toml
from nvgraft.system.mountinfo import Mount, parse_mountinfo
from nvgraft.wrapper.additions import Additions
from nvgraft.wrapper.rewrite import rewrite
from nvgraft_cli.case.dynamic import BadElf, read_file
from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.diff import readers, render
from nvgraft_cli.diff.compare import compare
from nvgraft_cli.explain_error import command as explain_error
from nvgraft_cli.explain_error.analysis import analyse
from nvgraft_cli.register import bundle, containerd, docker, hooksd, installation
from nvgraft_cli.register.change import CannotRegister, ConfigFile, diff
from nvgraft_cli.shell import text
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs import gallery
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models.host import parse_host
from nvgraft_specs.models.plan import parse_plan

SEEDS = Path(__file__).parent / "fixtures" / "fuzz"

#: The longest input that is tried. ``integration/safety/fuzz.py`` measures the time of longer ones.
LENGTH = 8192


class Target(NamedTuple):
    """A parser: the function to run, and words of its language for mutations to insert."""

    run: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()

    def seeds(self, name: str, *, findings: bool = True) -> list[bytes]:
        """Return the committed inputs of the target ``name``.

        :param findings: include the inputs that were once findings. Many are as large as a limit
            allows, which makes them poor seeds.
        """
        paths = sorted((SEEDS / name).iterdir())
        return [
            path.read_bytes() for path in paths if findings or not path.name.startswith("found-")
        ]


def _ldcache(data: bytes) -> None:
    try:
        entries = ldcache_entries.parse(data)
    except ValueError:
        return
    chosen = ldcache_entries.parse(data, (b"libcuda", b"libnvidia"))
    assert chosen == [
        entry for entry in entries if entry.soname.startswith(("libcuda", "libnvidia"))
    ]
    names = [entry.soname for entry in entries[:8]]
    for one in names:
        for other in names:
            assert (ldcache.compare_names(one, other) > 0) == (
                ldcache.compare_names(other, one) < 0
            )


def _elf(data: bytes) -> None:
    with as_file(data) as fd:
        for sections in (False, True):
            try:
                elf.read_facts(fd, sections=sections)
            except ValueError:
                continue
        try:
            elf.read_library(fd, isa_level=True)
        except ValueError as error:
            assert str(error)
        try:
            record = read_file(fd).record()
        except BadElf as error:
            assert str(error)
        else:
            assert set(record) == {
                "rpath",
                "runpath",
                "flags_1",
                "versions_needed",
                "versions_defined",
            }


def _toml(data: bytes) -> None:
    try:
        settings = settings_from_toml(data, "/etc/config.toml")
        config_from_settings(settings, lambda _: False, lambda: "")
    except Refusal as refusal:
        check_text(refusal.line())


def _json(data: bytes) -> None:
    """Compare with the standard library.

    We accept what it accepts, except NaN, infinities and more than 64 levels.
    """
    try:
        expected_value = json.loads(
            data.decode("utf-8", "surrogateescape"), parse_constant=_no_constant
        )
        accepted = _depth(expected_value) <= jsontext.MAX_DEPTH
    except (ValueError, RecursionError):
        expected_value, accepted = None, False
    try:
        value = jsontext.loads(data, 1 << 24)
    except jsontext.JsonError as error:
        assert not accepted, f"refused: {error.text}"
        assert error.text
        assert error.hint
        return
    assert accepted
    assert value == expected_value
    if not _has(value, float) and not any(
        "\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False)
    ):
        for indent in (False, True):
            assert jsontext.loads(jsontext.dumps(value, indent).encode(), 1 << 24) == value
    if isinstance(value, dict):
        try:
            jsontext.members(value, {"id": "id", "pid": "pid"})
        except jsontext.JsonError:
            return


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _depth(value: object) -> int:
    deepest, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        deepest += 1
        level = [
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        ]
    return deepest


def _has(value: object, kind: type) -> bool:
    if isinstance(value, (dict, list)):
        return any(
            _has(item, kind) for item in (value.values() if isinstance(value, dict) else value)
        )
    return isinstance(value, kind)


def _state(data: bytes) -> None:
    try:
        state = oci.parse_state(data)
    except Refusal as refusal:
        check_text(refusal.line())
        return
    assert type(state.pid) is int
    assert isinstance(state.bundle, str)


#: The default config.toml, and one that honours everything a container may ask for.
_CONFIGURATIONS = (
    Config(),
    Config(
        accept_nvidia_visible_devices_as_volume_mounts=True,
        accept_nvidia_visible_devices_envvar_when_unprivileged=False,
        swarm_resource="DOCKER_RESOURCE_GPU,NVIDIA_GPU",
        runtime_mode="legacy",
    ),
)


def _config_json(data: bytes) -> None:
    for config in _CONFIGURATIONS:
        decision = decide(data, config, "/run/bundle")
        assert decision.verdict in ("inject", "skip", "refuse")
        assert (decision.request is not None) == (decision.verdict == "inject")
        if decision.refusal is not None:
            check_text(decision.refusal.line())


def _rewrite(data: bytes) -> None:
    hook: dict[str, object] = {
        "path": "/usr/bin/nvgraft-hook",
        "args": ["nvgraft-hook", "prestart"],
    }
    for mode in ("legacy", "auto"):
        try:
            once = rewrite(data, _CONFIGURATIONS[0], mode, hook, lambda: _LOOK, link_hooks)
            parsed = oci.parse_config(once.data, complete=False)
        except Refusal as refusal:
            check_text(refusal.line())
            continue
        if mode == "legacy" and not any(line.startswith("Mounting ") for _, line in once.log.lines):
            assert parsed.mounts == oci.parse_config(data, complete=False).mounts
        assert (
            rewrite(once.data, _CONFIGURATIONS[0], mode, hook, lambda: _LOOK, link_hooks).data
            == once.data
        ), "a second rewrite changes the result of the first"


_LOOK = FixedLook(
    Additions(
        [CharDevice("/dev/dri/card0", (226, 0), 0o660, 44)],
        [FileMount("/usr/bin/nvidia-xconfig"), FileMount("/etc/x", "/usr/share/x/y")],
        ["../card0::/dev/dri/l"],
    ),
    [
        CdiEdits(
            env=["NVIDIA_VISIBLE_DEVICES=void"],
            nodes=[CdiNode("/dev/nvidia0", major=195, gid=44)],
            mounts=[CdiMount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", ("ro",))],
            hooks=[CdiHook("createContainer", "/usr/bin/nvgraft-cdi-hook", ("x",), ("A=b",))],
            gids=[44],
        )
    ],
)


_PROGRAMS = installation.Programs("/usr/local/bin/nvgraft-hook", "/usr/local/bin/nvgraft-runtime")


def _there_and_back(
    add: Callable[[ConfigFile], str], remove: Callable[[ConfigFile], str | None], data: bytes
) -> None:
    """Removing a registration restores the file to the byte."""
    try:
        before = data.decode()
    except UnicodeDecodeError:
        return  # the reader refuses such files
    document = ConfigFile("/fuzzed", "/fuzzed", before, None)
    try:
        after = add(document)
    except CannotRegister as error:
        check_text(str(error), one_line=False)
        return
    assert not controls(diff(document, after))
    assert add(ConfigFile("/fuzzed", "/fuzzed", after, before)) == after, (
        "a second registration changes the result of the first"
    )
    try:
        was_ours = remove(document) != before
    except CannotRegister:
        was_ours = True
    if after != before and not was_ours:  # otherwise there is no backup
        try:
            assert remove(ConfigFile("/fuzzed", "/fuzzed", after, before)) == before
        except CannotRegister as error:
            raise AssertionError(f"a registration cannot be removed: {error}") from error


def _docker(data: bytes) -> None:
    for default in (False, True):
        _there_and_back(
            partial(docker.add, programs=_PROGRAMS, set_default=default), docker.remove, data
        )


def _runc(data: bytes) -> None:
    _there_and_back(lambda document: bundle.add(document, _PROGRAMS), bundle.remove, data)
    try:
        hooksd.remove(ConfigFile("/fuzzed", "/fuzzed", data.decode("utf-8", "replace"), None))
    except CannotRegister:
        return


def _containerd(data: bytes) -> None:
    if b"imports" not in data:  # imports name other files, which a fuzzer must not choose
        _there_and_back(
            lambda document: containerd.add(document, _PROGRAMS), containerd.remove, data
        )


#: The facts of a host, and two different devices.
_FACTS = {"cuda": "12.2", "driver": "535.104.05"}
_DEVICES = (("8.0", "Tesla"), ("7.5", "GeForce"))


def _requirements(data: bytes) -> None:
    expressions = data.decode("utf-8", "replace").split("\n")
    for devices in ((), _DEVICES):
        try:
            requirements.check(expressions, _FACTS["driver"], _FACTS["cuda"], devices)
            answer = "holds"
        except Refusal as refusal:
            check_text(refusal.line())
            answer = "invalid" if refusal.text == "invalid expression" else "unsatisfied"
        assert answer == expected(expressions, devices), expressions


def expected(expressions: list[str], devices: tuple[tuple[str, str], ...]) -> str:
    """Evaluate requirements straight from their description (reference behaviour 8.1 to 8.4)."""
    for arch, brand in devices or ((None, None),):
        for expression in expressions:
            outcome = "holds"
            for alternative in expression.split(" "):
                factors = [factor for factor in alternative.split(",") if factor]
                if not factors:
                    continue
                results = []
                for factor in factors:
                    results.append(_factor(factor, {**_FACTS, "arch": arch, "brand": brand}))
                    if results[-1] != "holds":
                        break
                outcome = results[-1]
                if outcome != "unsatisfied":
                    break
            if outcome != "holds":
                return outcome
    return "holds"


def _factor(factor: str, facts: dict[str, str | None]) -> str:
    at = min((factor.index(sign) for sign in "<>=!" if sign in factor), default=len(factor))
    name, rest = factor[:at].lower(), factor[at:]
    operator = rest[: len(rest) - len(rest.lstrip("<>=!"))]
    value = rest[len(operator) :]
    if name not in facts or operator not in ("=", "!=", "!", "<", "<=", ">", ">=") or not value:
        return "invalid"
    actual = facts[name]
    if actual is None:
        return "holds"
    if name == "brand":
        if operator not in ("=", "!=", "!"):
            return "invalid"
        order = int(actual.lower() != value.lower())
    else:
        if value[0] == "." or not all(char in "0123456789." for char in value):
            return "invalid"
        one, other = ([part for part in version.split(".") if part] for version in (actual, value))
        width = max(map(len, [*one, *other]), default=0)
        length = max(len(one), len(other))
        first, second = (
            [part.zfill(width) for part in parts] + ["0" * width] * (length - len(parts))
            for parts in (one, other)
        )
        order = (first > second) - (first < second)
    holds = {
        "=": order == 0,
        "!=": order != 0,
        "!": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }
    if holds[operator]:
        return "holds"
    return "invalid" if len(factor.encode()) > 127 else "unsatisfied"


def _mountinfo(data: bytes) -> None:
    try:
        mounts = parse_mountinfo(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        return
    assert parse_mountinfo("\n".join(map(mountinfo_line, mounts))) == mounts


def mountinfo_line(mount: Mount) -> str:
    """Write the line of the kernel for this mount."""
    root, point, source = (
        "".join(map(_octal, word)) for word in (mount.root, mount.point, mount.source)
    )
    shared = " shared:1" if mount.shared else ""
    described = f"{mount.fstype} {source} {mount.fs_options}"
    return f"{mount.id} 1 0:1 {root} {point} {mount.options}{shared} - {described}"


def _octal(char: str) -> str:
    return char if char == "/" or char.isalnum() or ord(char) > 0o777 else f"\\{ord(char):03o}"


def _proc(data: bytes) -> None:
    """Parse small texts of /proc and /etc: device majors, access files, mig-minors, os-release."""
    text_ = data.decode("utf-8", "surrogateescape")
    assert all(number >= 0 for number in parse_majors(text_).values())
    device_file_minor(ProcEntry("/proc/driver/nvidia/capabilities/mig/config", 0o444, text_))
    default_user(text_)
    entry = {"type": "file", "mode": "0444", "content": text_}
    inventory.read_mig_minors(SnapshotTree({"/proc/driver/nvidia-caps/mig-minors": entry}))


def _environment(data: bytes) -> None:
    """Decide, plan and print for a container with these variables, one a line."""
    env = [
        "PATH=/bin",
        *(line for line in data.decode("utf-8", "surrogateescape").split("\n") if "=" in line),
    ]
    capabilities = {"bounding": ["CAP_SYS_ADMIN"]} if b"PRIVILEGED" in data else {}
    config_json = json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": {"env": env, "capabilities": capabilities},
            "root": {"path": "r"},
        }
    ).encode()
    # One of four combinations, always the same one for equal input.
    config = _CONFIGURATIONS[len(data) % 2]
    decision = decide(config_json, config, "/run/bundle")
    if decision.request is None:
        return
    try:
        check_request(decision.request)
        host = _inventory(("mig-h100", "debian-a100x8")[len(data) // 2 % 2])
        plan = make_plan(decision.request, host, _target(), Settings.from_config(config))
    except Refusal as refusal:
        check_text(refusal.line())
        return
    _check_plan(plan)


def _check_plan(plan: Plan) -> None:
    parse_plan(json.dumps(plan_document(plan)).encode(), "plan")
    assert not controls(text.render(plan, colour=False))


@cache
def _inventory(name: str) -> Inventory:
    return read_inventory(
        snapshot_host(json.loads(Path(gallery.path(name)).read_bytes())), OFFLINE_PATH
    )


def _target() -> OfflineTarget:
    rootfs = {"/etc/debian_version": {"type": "file", "mode": "0644"}}
    return OfflineTarget(VirtualTree(SnapshotTree(rootfs), "/r"), "x86_64", (), module=True)


def _snapshot(data: bytes) -> None:
    try:
        parse_host(data, "host.json")
    except DocumentError as error:
        check_text(str(error), one_line=False)
        return
    try:
        host = snapshot_host(json.loads(data))
        host_inventory = read_inventory(host, OFFLINE_PATH)
        decision = decide(_EVERYTHING, _CONFIGURATIONS[0], "/run/bundle")
        assert decision.request is not None
        target = OfflineTarget(VirtualTree(SnapshotTree({}), "/r"), host.machine, (), module=True)
        _check_plan(
            make_plan(
                decision.request, host_inventory, target, Settings.from_config(_CONFIGURATIONS[0])
            )
        )
    except Refusal as refusal:
        check_text(refusal.line())
    try:
        host.tree.find("/usr/lib/x86_64-linux-gnu/../libcuda.so.1")
    except PathError:
        return


_EVERYTHING = json.dumps(
    {
        "ociVersion": "1.0.2",
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]},
        "root": {"path": "rootfs"},
    }
).encode()


def _plan_document(data: bytes) -> None:
    try:
        parse_plan(data, "plan.json")
    except DocumentError as error:
        check_text(str(error), one_line=False)


def _ld_so_conf(data: bytes) -> None:
    """Read the image's list of library directories; every included file holds the same text."""
    configuration = ld_so_conf.Configuration(
        lambda _: data, lambda _: ["a.conf", "b.conf", ".hidden", "[x]"]
    )
    configuration.load()
    assert all(path.startswith("/") for path in configuration.directories)


def _paste(data: bytes) -> None:
    """Analyse a pasted error."""
    analysis = analyse(data.decode("utf-8", "replace"))
    assert not controls("\n".join(explain_error._lines(analysis, colour=False)))
    assert not controls(json.dumps(asdict(analysis)))


def _diff(data: bytes) -> None:
    """Compare any side that ``nvgraft diff`` may be given with itself."""
    try:
        with as_file(data) as fd:
            side = readers.read_side(f"/proc/self/fd/{fd}", readers.Context(None, (), None, None))
    except InputError as error:
        check_text(str(error), one_line=False)
        return
    difference = compare(side, side)
    assert difference.equal
    assert not controls(render.text(difference, whole=True, colour=False))
    assert not controls(render.markdown(difference, whole=True))


def _cdi(data: bytes) -> None:
    """Read a CDI specification of anybody; what is accepted is written and read again."""
    try:
        spec = parse_specification(data, "/x")
    except SpecificationError as error:
        check_text(str(error))
        return
    written = json.dumps(spec.document()).encode("utf-8", "surrogateescape")
    assert parse_specification(written, "/y") == spec


TARGETS: dict[str, Target] = {
    "cdi": Target(
        _cdi,
        (
            b"cdiVersion: 1.1.0\n",
            b"kind: nvidia.com/gpu\n",
            b"containerEdits:\n",
            b'"deviceNodes":[{"path":"/dev/null","permissions":"rwm"}]',
            b'"mounts":[{"hostPath":"/","containerPath":"/x"}]',
            b'"hooks":[{"hookName":"prestart","path":"/h","timeout":1}]',
            b'"intelRdt":{"schemata":["a"]},"netDevices":[{"hostInterfaceName":"a","name":"b"}]',
            b"&a [*a]",
            b"<<: *a",
            b"!!python/object:os.system x",
        ),
    ),
    "ldcache": Target(
        _ldcache,
        (b"ld.so-1.7.0", b"glibc-ld.so.cache1.1", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80"),
    ),
    "elf": Target(
        _elf,
        (
            b"\x7fELF\x01\x01\x01",
            b"\x7fELF\x02\x01\x01",
            b".note.ABI-tag\0",
            b"GNU\0",
            b"\xff" * 8,
            b"\x06\0\0\0",
        ),
    ),
    "toml": Target(
        _toml,
        (
            b"[nvidia-container-cli]",
            b"[nvgraft]",
            b'ldconfig = "@/sbin/ldconfig"',
            b'"""',
            b"[[",
            b"0x",
            b"1979-05-27T07:32:00Z",
            b"inf",
            b".a",
        ),
    ),
    "json": Target(
        _json,
        (
            b"NaN",
            b"Infinity",
            b"-",
            b'"\\ud800"',
            b"[" * 70,
            b'{"id":',
            b"1e999",
            b"\\u",
            b"\xff",
            b"null",
            b"1" * 4400,
        ),
    ),
    "state": Target(
        _state,
        (b'"pid":', b'"Bundle":', b'"bundlePath":', b"1.0", b"true", b"-1", b"9" * 20, b"\\u0000"),
    ),
    "config": Target(
        _config_json,
        (
            b'"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}',
            b'"mounts":[{"source":"/dev/null","destination":"',
            b'"ociVersion":"1.0.0-rc2"',
            b'"capabilities":["CAP_SYS_ADMIN"]',
            b"/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0",
            b'"root":null',
            b"CUDA_VERSION=12.0",
        ),
    ),
    "rewrite": Target(
        _rewrite,
        (
            b'"hooks":{"prestart":[]}',
            b'"hooks":null',
            b'"path":"/x/nvidia-container-runtime-hook"',
            b'"user":{"uid":1}',
            b"NVIDIA_GDS=enabled",
            b'"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=0"}',
        ),
    ),
    "docker": Target(
        _docker,
        (
            b'"runtimes":{}',
            b'"nvgraft":',
            b'"default-runtime":"nvgraft"',
            b"null",
            b"\t",
            b"\r\n",
            b'"RUNTIMES":',
            b"\xc2\x9b",
        ),
    ),
    "runc": Target(
        _runc,
        (
            b'"ociVersion":"1.0.2"',
            b'"hooks":{"prestart":[{"path":"/x/nvgraft-hook"}]}',
            b"null",
            b'"Hooks":',
            b"\r\n",
        ),
    ),
    "containerd": Target(
        _containerd,
        (
            b"version = 2\n",
            b"version = 3\n",
            b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n',
            b"# <<< nvgraft register",
            b"# >>> nvgraft register containerd",
            b"\r\n",
            b"plugins.",
            b'disabled_plugins = ["cri"]',
        ),
    ),
    "requirements": Target(
        _requirements,
        (
            b"cuda>=",
            b"driver<",
            b"brand=tesla",
            b"arch!=",
            b",",
            b" ",
            b"12.2",
            b"!",
            b"0" * 130,
            b"535.104.05",
            b"BRAND!",
            b"\n",
        ),
    ),
    "mountinfo": Target(
        _mountinfo,
        (b" - ", b"\\040", b"\\134", b"shared:1", b" master:2", b"\\777", b"\\", b"36 35 98:0 /"),
    ),
    "proc": Target(
        _proc,
        (
            b"Character devices:",
            b"195 nvidia",
            b"DeviceFileMinor: ",
            b"gpu0/gi1/access ",
            b"9" * 4400,
            b"ID_LIKE=",
            "²".encode(),
        ),
    ),
    "environment": Target(
        _environment,
        (
            b"NVIDIA_VISIBLE_DEVICES=",
            b"NVIDIA_DRIVER_CAPABILITIES=",
            b"NVIDIA_REQUIRE_CUDA=",
            b"NVIDIA_MIG_CONFIG_DEVICES=all",
            b"void",
            b"none",
            b"all",
            b"0:0",
            b"GPU-",
            b"MIG-",
            b"0000:17:00.0",
            b"compute,utility",
            b"CUDA_VERSION=11.4",
            b"NVIDIA_IMEX_CHANNELS=0",
            b"PRIVILEGED=1",
            b"video,graphics,display,ngx,compat32",
            b"NVIDIA_DISABLE_REQUIRE=1",
            b"\xc2\x9b",
            b"\x1b",
        ),
    ),
    "snapshot": Target(
        _snapshot,
        (
            b'"schema":"nvgraft.host/2"',
            b'"type":"symlink","target":"',
            b"..",
            b"/" + b"a/" * 200,
            b'"elf":null',
            b'"mode":"7777"',
            b'"content":"',
            b'"rdev":[195,255]',
            b"\\u001b",
            b"9" * 30,
            b"\\ud800",
            b'"/":',
            b"//",
        ),
    ),
    "ld_so_conf": Target(
        _ld_so_conf,
        (
            b"include *.conf\n",
            b"include /a/[!a-c]*/?\n",
            b"/usr/lib\n",
            b"\\",
            b"[",
            b"[" * 300,
            b"*" * 64,
            b"hwcap 1",
        ),
    ),
    "paste": Target(
        _paste,
        (
            b"nvidia-container-cli: ",
            b"OCI runtime create failed",
            b"\\n",
            b"\\" * 60,
            b"nvml error: ",
            b"exit status 1",
            b"\x1b[31m",
        ),
    ),
    "diff": Target(
        _diff,
        (
            *(
                b"cdiVersion: 0.6.0\n",
                b"containerEdits:\n",
                b"deviceNodes:\n- path: /dev/nvidia0\n",
                b"&a [*a]",
                b"!!python/object:os.system x",
            ),
            *(
                b"I0101 00:00:00.0 1 nvc_mount.c:1] mounting /a at /b",
                b"whitelisting device node 195:0",
                b"\\033",
                b'"schema":"nvgraft.plan/1"',
            ),
        ),
    ),
    "plan": Target(
        _plan_document,
        (
            b'"op":"mount"',
            b'"type":"tmpfs"',
            b'"why":',
            b'"rdev":',
            b'"schema":"nvgraft.plan/2"',
            b"\\u0000",
            b"/../..",
        ),
    ),
    "image": Target(
        fuzz_images.archive,
        (
            b'"Layers":["l"]',
            b'"Env":["A=B"]',
            b'"Entrypoint":null',
            b"ustar  \0",
            b"0000644\0",
            b"\x1f\x8b\x08\0",
            b"(\xb5/\xfd",
            b"11 path=a/b\n",
            b"\x80\0\0\0\0\0\0\0\0\0\0\1",
            b"\xff" * 12,
        ),
    ),
    "layers": Target(
        fuzz_images.layers,
        (
            *(b"\n\n", b"\nf a/b x", b"\nd a", b"\nl a/l ..", b"\nl l /a", b"\nh a/h a/b"),
            *(b"\nf a/.wh.b", b"\nf a/.wh..wh..opq", b"../", b"//", b"/a" * 40),
        ),
    ),
    "ldcache_table": Target(
        fuzz_images.loader_cache,
        (
            b"ld.so-1.7.0",
            b"glibc-ld.so.cache1.1",
            b"\xff\xff\xff\xff",
            b"\x42\xa2\x74\xea",
            b"libcuda.so.1\0",
            b"/usr/lib/\0",
        ),
    ),
    "loader": Target(
        fuzz_images.loader,
        (b"/lib/\0/usr/lib/\0", b"/etc/ld.so.cache\0", b"\0x86-64-v4:x86-64-v3\0", b"/", b"\0"),
    ),
    "nvml": Target(
        fuzz_machine.nvml_answer,
        (
            *(b"driver\t", b"gpu\t", b"mig\t", b"error\t", b"\nend", b"detection\t"),
            *(b"00000000:17:00.0", b"enabled", b"\t-1", b"9" * 30, "\t²".encode()),
        ),
    ),
    "kept_inventory": Target(
        fuzz_machine.inventory_document,
        (
            b'"signs":{',
            b'"files":{"/a":false}',
            b'"gpus":[',
            b'"wide":[',
            b"nvgraft-cache/2 ",
            b"null",
            b'"\\u0000"',
        ),
    ),
    "kept_journal": Target(
        fuzz_machine.kept_journal,
        (
            b"nvgraft.journal/2\0",
            b"\n\n",
            b"dir\0/a\0",
            b"link\0",
            b"was-file\0",
            b"was-link\0",
            b"\0",
            b"9" * 4400,
        ),
    ),
    "cgroup": Target(
        fuzz_machine.device_cgroup,
        (
            b":devices:/",
            b"0::/",
            b"\0",
            b" - cgroup cgroup rw,devices",
            b" - cgroup2 ",
            b"a *:* rwm",
            b"c 195:0 rw",
            b"c 195:* r",
            b"/../",
        ),
    ),
    "command_line": Target(
        fuzz_machine.command_line,
        (
            *(
                b"\nconfigure\n",
                b"\nlist\n",
                b"\ninfo\n",
                b"--require=",
                b"--device=",
                b"--pid=",
                b"--imex-channel=",
                b"--user=",
            ),
            *(
                b"--",
                b"-",
                b"--help",
                b"cuda>=12.0",
                b"brand=tesla",
                b"\n/run/rootfs",
                b"9" * 30,
                b"--re=",
                b"\xff",
            ),
        ),
    ),
    "bpf": Target(
        fuzz_machine.device_program,
        (b"\x85\0\0\0", b"\x18\x10\0\0", b"\x18\0\0\0", b"\x95" + bytes(7), b"\x61\xb1"),
    ),
    "mount_table": Target(
        fuzz_machine.mount_table,
        (b" - ", b"shared:1", b"\n36 35 98:0 / /mnt rw - ext4 /dev/sda rw", b"\\040"),
    ),
}
