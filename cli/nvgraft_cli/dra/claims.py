"""Prepare a claim: the CDI specification of its devices, and what the kubelet is told.

Source: cdi.go of https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import discover, live_facts, recorded_facts
from nvgraft.cdi.specification import HookProgram, edits, sorted_spec
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.dra import DRIVER
from nvgraft_cli.dra.slices import DraDevice
from nvgraft_cli.pods.manifest import read_documents
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.parser import nearest

#: The kind of the CDI devices of claims.
KIND = f"k8s.{DRIVER}/claim"


#: The pool of a device in a claim that was written by hand without one.
NO_POOL = "None"

#: What a CDI device name may begin with.
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")


class AllocatedDevice(NamedTuple):
    """A device of an allocated claim, and the name of the request that it is for.

    :ivar pool: the node's name, or :data:`NO_POOL`.
    """

    request: str
    pool: str
    device: str


class Claim(NamedTuple):
    """An allocated claim.

    :ivar uid: metadata.uid; the name stands in its place where a claim was written by hand.
    :ivar configured: whether it has parameters for the driver, such as how to share a GPU.
    """

    name: str
    uid: str
    results: tuple[AllocatedDevice, ...]
    configured: bool


def read_claim(path: str) -> Claim:
    """Return the first ResourceClaim of a manifest.

    :raises InputError: there is none, it is not allocated, or has no device of this driver.
    """
    claim = next((one for one in read_documents(path) if one.get("kind") == "ResourceClaim"), None)
    if claim is None:
        raise InputError(f"{path}: has no ResourceClaim | pass a claim, not its template or class")
    metadata = _object(claim.get("metadata"))
    name = str(metadata.get("name") or "claim")
    allocated = _object(_object(claim.get("status")).get("allocation")).get("devices")
    if not isinstance(allocated, dict):
        raise InputError(
            f"{path}: claim {name} is not allocated | take it from the cluster (kubectl get"
            f" resourceclaim {name} -o yaml), or write status.allocation.devices.results: selectors"
            " in CEL are not evaluated here"
        )
    results = tuple(_results(allocated))
    if not results:
        raise InputError(
            f"{path}: claim {name} has no device of the driver {DRIVER} | write driver, pool,"
            " device and request of each result of status.allocation.devices.results"
        )
    configured = any(
        _object(_object(one).get("opaque")).get("driver") == DRIVER
        for one in _list(allocated.get("config"))
    )
    uid = str(metadata.get("uid") or name)
    if _UID.fullmatch(uid) is None:
        raise InputError(
            f"{path}: metadata.uid {uid!r}: no name for a CDI device begins like this | write the"
            " UUID that the cluster gives, or leave it out"
        )
    return Claim(name, uid, results, configured)


def _results(allocated: dict[str, Any]) -> Iterator[AllocatedDevice]:
    for entry in map(_object, _list(allocated.get("results"))):
        if entry.get("driver") == DRIVER and isinstance(entry.get("device"), str):
            yield AllocatedDevice(
                str(entry.get("request")), str(entry.get("pool") or NO_POOL), entry["device"]
            )


def prepare(claim: Claim, host: HostSide, devices: list[DraDevice], hook: str) -> dict[str, Any]:
    """Return the CDI specification of a claim (``cdi``), and the answer to the kubelet
    (``claims``), as in NodePrepareResourcesResponse.

    :param hook: the program of the specification's hooks.
    :raises Refusal: a device is not one of the host's.
    """
    known = {device.name: device for device in devices}
    for result in claim.results:
        if result.device not in known:
            raise Refusal(
                "",
                f"error preparing devices for claim {claim.uid}: prepare devices failed: requested"
                f" device is not allocatable: {result.device}",
                f"this host has {', '.join(known) or 'none'}{nearest(result.device, list(known))}:"
                " the claim was allocated before devices changed, or for another node",
            )
    facts = live_facts(host.facts) if host.document is None else recorded_facts(host.document)
    discovered = discover(host.facts, OFFLINE_PATH, facts)
    program = HookProgram(hook)
    contents = {found.uuid: found.contents for found in discovered.devices}
    missing = [one.device for one in claim.results if known[one.device].uuid not in contents]
    if missing:
        raise Refusal(
            "",
            f"unable to get device spec for {claim.uid}-{missing[0]}",
            "; ".join(discovered.missing) or "this host lacks a device node of it",
        )
    names = {one.device: f"{claim.uid}-{one.device}" for one in claim.results}
    spec = sorted_spec(
        KIND,
        {name: edits(contents[known[device].uuid], program) for device, name in names.items()},
        edits(discovered.common, program),
    )
    answers = [
        {
            "requestNames": [result.request],
            "poolName": result.pool,
            "deviceName": result.device,
            "cdiDeviceIDs": [f"{KIND}={names[result.device]}"],
        }
        for result in claim.results
    ]
    return {"cdi": spec.document(), "claims": {claim.uid: {"devices": answers}}}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
