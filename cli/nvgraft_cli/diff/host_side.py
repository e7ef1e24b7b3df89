"""The side of a host without a container: its inventory, and how the containers of the
documentation fare on it.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.host.components import DeviceNode, Inventory
from nvgraft.host.gpus import DriverReport
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planning import Case
from nvgraft_cli.diff import gpus
from nvgraft_cli.diff.sides import ComparedMount, ComparedNode, Side
from nvgraft_cli.diff.summary import outcome
from nvgraft_cli.shell import documentation
from nvgraft_cli.shell.errors import InputError


def host_side(host: HostSide, env: Sequence[str], mode: str) -> Side:
    """Return the side of a recorded host.

    :param env: ``NAME=VALUE`` entries for the containers of the documentation.
    :param mode: how these are started, as for :class:`Case`.
    :raises InputError: the host's inventory cannot be read.
    """
    try:
        inventory = host.inventory
    except Refusal as refusal:
        raise InputError(f"{host.label}: {refusal.text} | {refusal.hint}") from refusal
    report = inventory.report
    nodes = [*inventory.devices.control, *inventory.devices.imex_channels, *inventory.mig.nodes]
    nodes += [device.node for device in inventory.devices.gpus]
    return Side(
        host.label,
        "host",
        report.driver_version,
        {mount.target: mount for mount in _files(inventory)},
        {node.path: _node(node) for node in nodes},
        files=_texts(inventory) if host.gpus_known else None,
        about=_about(inventory),
        cuda=report.cuda_version,
        machine=inventory.machine,
        gpus=gpus.of_host(host) if host.gpus_known else None,
        gpu_facts=_gpus(report) if host.gpus_known else None,
        examples=_examples(host, env, mode),
    )


def _files(inventory: Inventory) -> Iterator[ComparedMount]:
    """Yield the driver's files by their paths on the host."""
    files = inventory.files
    for component in (*files.libraries, *files.libraries32, *files.binaries):
        facts = {"class": component.row.component_class, "soname": component.soname}
        yield _file(component.path, "file", component.mode, component.found, facts)
    for firmware in files.firmware:
        facts = {"class": "firmware", "at": firmware.target}
        yield _file(firmware.path, "file", firmware.mode, firmware.found, facts)
    for socket in (*files.sockets, *((files.mps,) if files.mps is not None else ())):
        facts = {"class": socket.component_class, "at": socket.well_known}
        yield _file(socket.path, socket.kind, socket.mode, socket.found, facts)


def _file(path: str, kind: str, mode: int, found: str, facts: dict[str, Any]) -> ComparedMount:
    facts |= {"mode": f"{mode:04o}", "why": found}
    return ComparedMount(path, None, kind, None, facts)


def _node(device: DeviceNode) -> ComparedNode:
    facts: dict[str, Any] = {"exists": device.node is not None}
    if device.node is not None:
        facts["mode"] = f"{device.node.mode:04o}"
    return ComparedNode(device.path, None, device.rdev, facts)


def _about(inventory: Inventory) -> dict[str, Any]:
    return {
        "host.root": inventory.root,
        "host.machine": inventory.machine,
        "host.driver_version": inventory.report.driver_version,
        "host.cuda_version": inventory.report.cuda_version,
    }


def _texts(inventory: Inventory) -> dict[str, Any]:
    return {
        entry.path: {"content": entry.content, "mode": f"{entry.mode:04o}"}
        for entry in inventory.proc_files
    }


def _gpus(report: DriverReport) -> dict[str, Any]:
    return {
        str(index): {
            "model": gpu.model,
            "compute capability": gpu.arch,
            "mig": gpu.mig,
            "MIG devices": len(gpu.mig_devices),
            "minor": gpu.minor,
            "uuid": gpu.uuid,
            "PCI address": gpu.bus_id,
        }
        for index, gpu in enumerate(report.gpus)
    }


def _examples(host: HostSide, env: Sequence[str], mode: str) -> dict[str, str] | None:
    """Return the outcome of each container of the documentation; None where there is none."""
    docs = documentation.directory()
    if docs is None:
        return None
    outcomes = {}
    for name in sorted(os.listdir(os.path.join(docs, "examples"))):
        with open_container(os.path.join(docs, "examples", name), env) as container:
            plan, _ = Case(host, container, mode).outcome
        outcomes[name] = outcome(plan.decision, plan.reason)
    return outcomes
