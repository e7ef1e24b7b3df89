"""Checks of a host's CDI specifications against the engines that are to read them.

The docstring of each check names the threads that reported the failure.
"""

import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nvgraft.base import jsontext, tomltext
from nvgraft.base.jsontext import JsonError
from nvgraft.cdi.edits import CdiSpec
from nvgraft.cdi.reader import SpecificationError
from nvgraft.cdi.registry import DIRECTORIES
from nvgraft_cli.case.specifications import read_specifications
from nvgraft_cli.doctor.patient import TEXT_LIMIT, Diagnosis, NotChecked, Patient

if TYPE_CHECKING:
    from nvgraft_cli.doctor.machine import Machine

_SUFFIXES = (".json", ".yaml", ".yml")
_VENDOR = "nvidia.com"

_DOCKER = "/etc/docker/daemon.json"
_CONTAINERD = "/etc/containerd/config.toml"
#: The tables of containerd's plugins that have the setting, in version 2 and 3 of its file.
_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_CRIO, _CRIO_DROP_INS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"


class _Engine(NamedTuple):
    """The directories of CDI specifications that an engine's configuration names."""

    name: str
    file: str
    key: str
    directories: Sequence[str]


def cdi_directories(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cdi-directories``: an engine does not read the directories of the specifications.

    An engine that is not configured reads directories that depend on its version: it is not
    judged.

    Reported in NixOS/nixpkgs#420638; containers/common#2460; NVIDIA/nvidia-container-toolkit#434
    (rootless Docker).
    """
    machine = patient.machine
    having = _with_specifications(patient, machine)
    if not having:
        raise NotChecked("no CDI specification of NVIDIA devices is installed")
    engines = [*_engines(machine)]
    if not engines:
        raise NotChecked("no engine's configuration names directories of CDI specifications")
    for engine in engines:
        read = {_real(directory) for directory in engine.directories}
        if read and not read & {_real(directory) for directory in having}:
            first = having[0]
            yield Diagnosis(
                f"{engine.file}: {engine.key} = {', '.join(engine.directories)}, and the CDI "
                f"specifications of NVIDIA devices are in {', '.join(having)}",
                f"{engine.name} reads the directories of its configuration only: it finds no "
                "NVIDIA device by a CDI name",
                f"add {first} to {engine.key} in {engine.file} and restart {engine.name}, or write "
                f"the specification there: nvgraft cdi generate --output "
                f"{engine.directories[-1]}/nvidia.yaml",
                "warning",
            )


def _with_specifications(patient: Patient, machine: "Machine") -> list[str]:
    """Return the directories that have a specification of NVIDIA devices."""
    having = []
    for directory in dict.fromkeys((*patient.host.config.runtime_cdi_spec_dirs, *DIRECTORIES)):
        paths = [
            f"{machine.root}{directory}/{name}"
            for name in machine.listdir(directory)
            if name.endswith(_SUFFIXES)
        ]
        found = read_specifications(paths)
        if any(not isinstance(file, SpecificationError) and of_nvidia(file.spec) for file in found):
            having.append(directory)
    return having


def of_nvidia(spec: CdiSpec) -> bool:
    """Tell whether a specification is of NVIDIA devices."""
    vendor = spec.kind.partition("/")[0]
    return vendor == _VENDOR or vendor.endswith(f".{_VENDOR}")


def _real(directory: str) -> str:
    """Return a directory without the link that /var/run is."""
    path = posixpath.normpath(directory)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _engines(machine: "Machine") -> Iterator[_Engine]:
    """Yield the engines whose configuration names directories.

    :raises NotChecked: a configuration cannot be read, or other files may change it.
    """
    daemon = _table(machine, _DOCKER)
    features = daemon.get("features")
    if not (isinstance(features, dict) and features.get("cdi") is False):
        yield from _engine("docker", _DOCKER, "cdi-spec-dirs", daemon)
    containerd = _table(machine, _CONTAINERD)
    plugins = containerd.get("plugins")
    for name in _PLUGINS:
        table = plugins.get(name) if isinstance(plugins, dict) else None
        if not isinstance(table, dict) or table.get("enable_cdi") is False:
            continue
        if containerd.get("imports") and "cdi_spec_dirs" in table:
            raise NotChecked(f"{_CONTAINERD} imports files that may set cdi_spec_dirs anew")
        yield from _engine("containerd", _CONTAINERD, "cdi_spec_dirs", table)
    last = None
    files = [f"{_CRIO_DROP_INS}/{name}" for name in machine.listdir(_CRIO_DROP_INS)]
    for path in (_CRIO, *files):
        crio = _table(machine, path).get("crio")
        runtime = crio.get("runtime") if isinstance(crio, dict) else None
        if isinstance(runtime, dict):
            last = next(_engine("crio", path, "cdi_spec_dirs", runtime), last)
    if last is not None:
        yield last


def _engine(name: str, file: str, key: str, table: dict[str, Any]) -> Iterator[_Engine]:
    """Yield the engine, if ``table`` has the key."""
    value = table.get(key)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield _Engine(name, file, key, value)


def _table(machine: "Machine", path: str) -> dict[str, Any]:
    """Return a configuration in JSON or TOML, without members if there is no such file.

    :raises NotChecked: it cannot be read.
    """
    try:
        text = machine.text(path) or ""
        if path.endswith(".json"):
            value = jsontext.loads((text or "{}").encode(), TEXT_LIMIT)
        else:
            value = tomltext.loads(text)
    except (OSError, ValueError, JsonError) as error:
        raise NotChecked(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}
