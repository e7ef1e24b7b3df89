"""Make the document of a host from one line: ``8 x h100-sxm, driver 570.172.08, nvswitches 4``.

The files are those of a driver's packages (``nvgraft_specs/driver_files.toml``) in the layout of
Debian and Ubuntu, the GPUs those of a profile. Equal lines give equal documents, and hosts that
differ in the driver alone have the same GPUs, as before and after an upgrade.
"""

import posixpath
import re
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nvgraft_specs
from nvgraft_specs import profiles
from nvgraft_specs.cuda_versions import CUDA_VERSIONS
from nvgraft_specs.models.gpu_profile import GpuProfile, Node, load_profile
from nvgraft_specs.models.host import SCHEMA

#: GPUs that one line can have; a board of eight, twice.
_GPU_LIMIT = 16
#: PCI buses of a node with eight GPUs; more GPUs are in another PCI domain.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_UVM, _CAPS, _SWITCHES, _IMEX = 510, 234, 235, 233
#: The first and the last branch whose files are known.
_OLDEST, _NEWEST = 550, 590
#: The first generation of NVLink whose NVSwitches are reached through InfiniBand alone.
_UNLISTED_SWITCHES = 5
#: Minor numbers of MIG's capabilities: for each GPU, and for each GPU instance.
_CAPS_FIRST, _CAPS_GPU, _CAPS_INSTANCE = 3, 135, 9
_NAMESPACE = uuid.UUID("9a3c8a1c-2f6e-5f3e-8d4e-6e7667726166")


class WrongRecipe(ValueError):
    """A line that no host can be made from: cause and fix, in one line."""


class _Architecture(NamedTuple):
    elf: str
    triplet: str
    cache_flags: str
    loader: str
    interp: str


_MACHINES = {
    "x86_64": _Architecture(
        "EM_X86_64",
        "x86_64-linux-gnu",
        "libc6,x86-64",
        "ld-linux-x86-64.so.2",
        "/lib64/ld-linux-x86-64.so.2",
    ),
    "aarch64": _Architecture(
        "EM_AARCH64",
        "aarch64-linux-gnu",
        "libc6,AArch64",
        "ld-linux-aarch64.so.1",
        "/lib/ld-linux-aarch64.so.1",
    ),
}


class _Recipe(NamedTuple):
    gpus: int
    profile: GpuProfile
    driver: str
    machine: str
    mig: tuple[str, ...]
    switches: int
    nvlink: bool
    numa: int
    imex: int


def make_document(text: str, name: str = "host", description: str | None = None) -> dict[str, Any]:
    """Return the ``nvgraft.host/1`` document that a line describes.

    :raises WrongRecipe: a part is unknown, missing, or cannot be.
    """
    recipe = _parse(text)
    machine = _MACHINES[recipe.machine]
    files: dict[str, dict[str, Any]] = dict((*_driver(recipe, machine), *_node(recipe)))
    for path in list(files):
        for parent in _parents(path):
            files.setdefault(parent, {"type": "dir", "mode": "0755", "uid": 0, "gid": 0})
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "description": description or text,
        "made_from": text,
        "machine": recipe.machine,
        "root": "/",
        "ld_so_cache": _cache(files, machine),
        "nvml": {
            "driver_version": recipe.driver,
            "cuda_version": CUDA_VERSIONS[int(recipe.driver.partition(".")[0])],
            "gpus": [_gpu(recipe, index) for index in range(recipe.gpus)],
        },
        "char_majors": _majors(recipe),
        "files": dict(sorted(files.items())),
    }
    topology = _topology(recipe)
    return document | ({"topology": topology} if topology else {})


def _parse(text: str) -> _Recipe:
    parts: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")):
        gpus = re.fullmatch(r"([0-9]{1,4}) ?x ?([a-z0-9-]+)", part)
        word, _, rest = part.partition(" ")
        added: dict[str, str] = {}
        if gpus:
            added = {"count": gpus.group(1), "profile": gpus.group(2)}
        elif word in {"driver", "mig", "nvswitches", "numa", "imex"} and rest:
            added = {word: rest}
        elif part in {"nvlink", *_MACHINES}:
            added = {"machine" if part in _MACHINES else part: part}
        else:
            raise WrongRecipe(
                f"{part!r} is not a part of a host | write for example"
                " '8 x h100-sxm, driver 570.172.08', and nvswitches 4, nvlink, numa 2, imex 4,"
                " mig 3g.40gb 1g.10gb, or aarch64"
            )
        if parts.keys() & added.keys():
            raise WrongRecipe(
                f"{part!r} says again what a part before it says | write one product, and each"
                " part once; edit the document for a node with several products"
            )
        parts |= added
    if "profile" not in parts or "driver" not in parts:
        raise WrongRecipe(
            "the GPUs or the driver are missing | write for example"
            " '8 x h100-sxm, driver 570.172.08'"
        )
    if parts["profile"] not in profiles.names():
        raise WrongRecipe(
            f"there is no GPU profile {parts['profile']!r} | name one of"
            f" {', '.join(profiles.names())}"
        )
    numbers = {
        key: _number(key, parts.get(key, default), least, most)
        for key, default, least, most in (
            ("count", "1", 1, _GPU_LIMIT),
            ("nvswitches", "0", 0, 8),
            ("numa", "1", 0, 8),
            ("imex", "0", 0, 8),
        )
    }
    profile = load_profile(parts["profile"])
    if (numbers["nvswitches"] or "nvlink" in parts) and not profile.values().get("nvlinks"):
        raise WrongRecipe(f"a {profile.title} has no NVLink | leave nvlink and nvswitches out")
    if numbers["nvswitches"] and profile.values()["nvlink_version"] >= _UNLISTED_SWITCHES:
        raise WrongRecipe(
            f"the driver does not list the NVSwitches of a {profile.title} | write nvlink instead"
        )
    if "mig" in parts and profile.mig is None:
        raise WrongRecipe(f"a {profile.title} has no MIG | leave mig out")
    driver = _driver_version(parts["driver"])
    machine = parts.get("machine", "x86_64")
    if profile.node is not None:
        _check_node(profile, profile.node, numbers["count"], driver, machine)
    return _Recipe(
        numbers["count"],
        profile,
        driver,
        machine,
        tuple(parts.get("mig", "").split()),
        numbers["nvswitches"],
        "nvlink" in parts,
        numbers["numa"],
        numbers["imex"],
    )


def _check_node(profile: GpuProfile, node: Node, count: int, driver: str, machine: str) -> None:
    """Refuse a driver, an architecture or a number of GPUs that no node with the product has."""
    branch = int(driver.partition(".")[0])
    if node.first_driver and branch < node.first_driver:
        raise WrongRecipe(
            f"driver {driver} does not know a {profile.title} | take a driver of branch"
            f" {node.first_driver} or newer"
        )
    if node.last_driver and branch > node.last_driver:
        raise WrongRecipe(
            f"driver {driver} does not serve a {profile.title} | take a driver of branch"
            f" {node.last_driver} or older"
        )
    if node.machine and machine != node.machine:
        raise WrongRecipe(
            f"a {profile.title} is in {node.machine} nodes alone | add {node.machine}"
        )
    if node.gpus and count > node.gpus:
        raise WrongRecipe(
            f"count {count}: a node has {node.gpus} of {profile.title} at most | change it"
        )


def _number(key: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise WrongRecipe(f"{key} {text}: not a number from {least} to {most} | change it")
    return int(text)


def _driver_version(text: str) -> str:
    found = re.fullmatch(r"([0-9]{3})\.[0-9]{2,3}(\.[0-9]{2})?", text)
    if found is None:
        raise WrongRecipe(
            f"driver {text}: not the version of a driver | write it in full, such as 570.172.08"
        )
    branch = int(found.group(1))
    known = [number for number in CUDA_VERSIONS if _OLDEST <= number <= _NEWEST]
    if branch not in known:
        raise WrongRecipe(
            f"driver {text}: the files of branch {branch} are not known | take one of"
            f" {', '.join(map(str, known))},"
            " or record a host with nvgraft snapshot"
        )
    return text


def _driver(recipe: _Recipe, machine: _Architecture) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files of the driver's packages."""
    path = Path(nvgraft_specs.__file__).with_name("driver_files.toml")
    known = tomllib.loads(path.read_text(encoding="utf-8"))
    version = recipe.driver
    branch = int(version.partition(".")[0])

    def filled(text: str) -> str:
        return text.replace("{version}", version).replace("{loader}", machine.loader)

    for directory, target in (("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")):
        yield f"/{directory}", _link(target)
    if recipe.machine == "x86_64":
        yield "/lib64", _link("usr/lib64")
        yield "/usr/lib64", {"type": "dir", "mode": "0755", "uid": 0, "gid": 0}
    yield "/usr/sbin", {"type": "dir", "mode": "0755", "uid": 0, "gid": 0}
    yield "/var/run", _link("/run")
    libraries = f"/usr/lib/{machine.triplet}"
    for row in known["library"]:
        if branch < row.get("since", 0):
            continue
        name, soname = f"{row['name']}.{version}", filled(row["soname"])
        elf = _elf(machine, soname, [filled(text) for text in row["needed"]], row.get("abi_tag"))
        yield f"{libraries}/{name}", _file("0644", row["size"], elf=elf)
        if soname != name:
            yield f"{libraries}/{soname}", _link(name)
        if row.get("development_link"):
            yield f"{libraries}/{row['name']}", _link(soname)
    for row in known["program"]:
        elf = _elf(machine, None, row["needed"], row["abi_tag"], machine.interp)
        yield f"/usr/bin/{row['name']}", _file("0755", row["size"], elf=elf)
    for row in known["firmware"]:
        yield f"/usr/lib/firmware/nvidia/{version}/{row['name']}", _file("0644", row["size"])
    yield "/run/nvidia-persistenced/socket", _node_of("socket", "0755")
    if recipe.switches:
        yield "/run/nvidia-fabricmanager/socket", _node_of("socket", "0755")


def _node(recipe: _Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the device nodes and the files of /proc/driver."""
    yield "/dev/nvidiactl", _device("0666", 195, 255)
    yield "/dev/nvidia-modeset", _device("0666", 195, 254)
    yield "/dev/nvidia-uvm", _device("0666", _UVM, 0)
    yield "/dev/nvidia-uvm-tools", _device("0666", _UVM, 1)
    for number in range(recipe.switches):
        yield f"/dev/nvidia-nvswitch{number}", _device("0666", _SWITCHES, number)
        address = f"0000:{number + 5:02x}:00.0"
        yield f"/proc/driver/nvidia-nvswitch/devices/{address}", _text(f"Device: {number}\n")
    if recipe.switches:
        yield "/dev/nvidia-nvswitchctl", _device("0666", _SWITCHES, 255)
    for number in range(recipe.imex):
        path = f"/dev/nvidia-caps-imex-channels/channel{number}"
        yield path, _device("0666", _IMEX, number)
    module = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {recipe.machine}  {recipe.driver}"
        "  Release Build\n"
    )
    yield "/proc/driver/nvidia/version", _text(module)
    parameters = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
    yield "/proc/driver/nvidia/params", _text(f"RmLogonRC: 1\n{parameters}")
    yield "/proc/driver/nvidia/registry", _text('Binary: ""\n')
    for index in range(recipe.gpus):
        gpu = _gpu(recipe, index)
        yield f"/dev/nvidia{index}", _device("0666", 195, index)
        pci = gpu["pci"]
        address = f"{pci['domain']:04x}:{pci['bus']:02x}:{pci['device']:02x}.0"
        information = f"Model: \t\t {gpu['model']}\nGPU UUID: \t {gpu['uuid']}\n"
        path = f"/proc/driver/nvidia/gpus/{address}/information"
        yield path, _text(f"{information}Device Minor: \t {index}\n")
        for device in gpu["mig_devices"]:
            yield from _capabilities(index, device["gpu_instance"], device["compute_instance"])
    if recipe.profile.mig:
        for number, name in ((1, "config"), (2, "monitor")):
            yield from _capability(f"mig/{name}", number)
    if recipe.mig:
        yield "/proc/driver/nvidia-caps/mig-minors", _text(_mig_minors(recipe.gpus))


def _mig_minors(gpus: int) -> str:
    """Return the minor of each possible instance of so many GPUs, as the driver lists them."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(gpus):
        for instance in range(_CAPS_GPU // _CAPS_INSTANCE):
            first = _CAPS_FIRST + gpu * _CAPS_GPU + instance * _CAPS_INSTANCE
            name = f"gpu{gpu}/gi{instance}"
            lines.append(f"{name}/access {first}")
            lines += [
                f"{name}/ci{compute}/access {first + 1 + compute}"
                for compute in range(_CAPS_INSTANCE - 1)
            ]
    return "".join(f"{line}\n" for line in lines)


def _capabilities(gpu: int, instance: int, compute: int) -> Iterator[tuple[str, dict[str, Any]]]:
    first = _CAPS_FIRST + gpu * _CAPS_GPU + instance * _CAPS_INSTANCE
    directory = f"gpu{gpu}/mig/gi{instance}"
    yield from _capability(f"{directory}/access", first)
    yield from _capability(f"{directory}/ci{compute}/access", first + 1 + compute)


def _capability(name: str, minor: int) -> Iterator[tuple[str, dict[str, Any]]]:
    mode = 256 if name == "mig/config" else 292
    text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
    yield f"/proc/driver/nvidia/capabilities/{name}", _text(text)
    yield f"/dev/nvidia-caps/nvidia-cap{minor}", _device("0444", _CAPS, minor)


def _gpu(recipe: _Recipe, index: int) -> dict[str, Any]:
    mig = "unsupported" if recipe.profile.mig is None else "enabled" if recipe.mig else "disabled"
    return {
        "minor": index,
        "uuid": f"GPU-{uuid.uuid5(_NAMESPACE, f'{recipe.profile.name}/{index}')}",
        "pci": {"domain": index // len(_BUSES), "bus": _BUSES[index % len(_BUSES)], "device": 0},
        "brand": recipe.profile.brand,
        "compute_capability": recipe.profile.values()["compute_capability"],
        "mig": mig,
        "model": recipe.profile.models[0],
        "mig_devices": [
            {
                "uuid": f"MIG-{uuid.uuid5(_NAMESPACE, f'{recipe.profile.name}/{index}/{number}')}",
                "gpu_instance": number,
                "compute_instance": 0,
                "profile": profile,
            }
            for number, profile in enumerate(recipe.mig, 1)
        ],
        "profile": recipe.profile.name,
    }


def _majors(recipe: _Recipe) -> dict[str, int]:
    majors = {"nvidia": 195, "nvidia-uvm": _UVM}
    majors |= {"nvidia-caps": _CAPS} if recipe.profile.mig else {}
    majors |= {"nvidia-nvswitch": _SWITCHES} if recipe.switches else {}
    return majors | ({"nvidia-caps-imex-channels": _IMEX} if recipe.imex else {})


def _topology(recipe: _Recipe) -> dict[str, Any]:
    topology: dict[str, Any] = {}
    if recipe.switches or recipe.nvlink:
        topology["nvlink"] = "switch"
    if recipe.numa:
        share = -(-recipe.gpus // recipe.numa)
        topology["numa"] = [
            {
                "node": node,
                "cpus": f"{node * 32}-{node * 32 + 31}",
                "gpus": list(range(node * share, min((node + 1) * share, recipe.gpus))),
            }
            for node in range(recipe.numa)
        ]
    return topology


def _cache(files: dict[str, dict[str, Any]], machine: _Architecture) -> list[list[str]]:
    directory = f"/usr/lib/{machine.triplet}"
    names = [
        posixpath.basename(path)
        for path, entry in files.items()
        if posixpath.dirname(path) == directory
    ]
    sonames = {
        entry["elf"]["soname"] for entry in files.values() if (entry.get("elf") or {}).get("soname")
    }
    return [
        [name, machine.cache_flags, f"/lib/{machine.triplet}/{name}"]
        for name in sorted(names, reverse=True)
        if name in sonames or name.endswith(".so")
    ]


def _parents(path: str) -> Iterator[str]:
    while (path := posixpath.dirname(path)) != "/":
        yield path


def _elf(
    machine: _Architecture,
    soname: str | None,
    needed: list[str],
    abi_tag: list[int] | None,
    interp: str | None = None,
) -> dict[str, Any]:
    return {
        "bits": 64,
        "machine": machine.elf,
        "soname": soname,
        "needed": needed,
        "abi_tag": abi_tag,
        "interp": interp,
    }


def _file(mode: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "file", "mode": mode, "uid": 0, "gid": 0, "size": size, **more}


def _text(content: str) -> dict[str, Any]:
    return _file("0644", len(content.encode()), content=content)


def _link(target: str) -> dict[str, Any]:
    return {"type": "symlink", "uid": 0, "gid": 0, "target": target}


def _node_of(kind: str, mode: str) -> dict[str, Any]:
    return {"type": kind, "mode": mode, "uid": 0, "gid": 0}


def _device(mode: str, major: int, minor: int) -> dict[str, Any]:
    return {**_node_of("char", mode), "rdev": [major, minor]}
