"""Open the case of a command line: a container, or a container of a pod, on a host."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvgraft_cli.case.bundle import ContainerSide, open_container, unknown_image
from nvgraft_cli.case.hosts import HostSide, open_host
from nvgraft_cli.case.planning import Case
from nvgraft_cli.shell.errors import InputError

if TYPE_CHECKING:
    from nvgraft_cli.pods.handover import PodOnNode

#: Options that have a meaning with --pod only.
_OF_PODS = ("pod_container", "plugin_flag", "plugin_devices", "kube")


@contextmanager
def opened_case(args: argparse.Namespace, *, edits_known: bool = True) -> Iterator[Case]:
    """Open the case of the arguments of :func:`nvgraft_cli.shell.arguments.add_case`.

    :param edits_known: as for :class:`Case`.

    For errors see :func:`opened_case_of_pod`.
    """
    with opened_case_of_pod(args, edits_known=edits_known) as (case, _):
        yield case


@contextmanager
def opened_case_of_pod(
    args: argparse.Namespace, *, edits_known: bool = True
) -> "Iterator[tuple[Case, PodOnNode | None]]":
    """Open a case as :func:`opened_case` does, with the pod if one was given.

    :raises InputError: when an input cannot be used.
    :raises nvgraft.base.errors.Refusal: the hook would refuse this config.json.
    """
    if args.pod is None:
        check_options(args)
        with open_container(args.container or ".", args.env) as container:
            host = open_host(args.host, args.config)
            mode = args.mode or "hook"
            yield Case(host, container, mode, cdi=args.cdi, edits_known=edits_known), None
        return
    host = open_host(args.host, args.config)
    with open_image(args) as image:
        pod = open_pod(args, host)
        yield pod_case(args, host, image, pod), pod


def check_options(args: argparse.Namespace) -> None:
    """Check that no option of pods is given without --pod.

    :raises InputError: naming the first.
    """
    for name in _OF_PODS:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: there is no pod | give --pod FILE too, or leave it out")


def open_image(args: argparse.Namespace) -> ContainerSide:
    """Open the image of a pod's container, or an unknown one.

    :raises InputError: there is no container at the path.
    """
    if args.container is None:
        return unknown_image(args.pod)
    return open_container(args.container)


def open_pod(args: argparse.Namespace, host: HostSide) -> "PodOnNode":
    """Read the pod of --pod, and let the device plugin of the host answer for it.

    :raises InputError: the pod or an option cannot be used.
    """
    from nvgraft_cli.pods.handover import PodOnNode
    from nvgraft_cli.pods.manifest import read_pod
    from nvgraft_cli.pods.node import DevicePlugin, parse_facts

    pod = read_pod(args.pod)
    container = pod.container(args.pod_container)
    plugin = DevicePlugin(host, [f"--{word}" for word in args.plugin_flag])
    return PodOnNode(pod, container, parse_facts(args.kube), plugin, args.plugin_devices)


def pod_case(
    args: argparse.Namespace, host: HostSide, image: ContainerSide, pod: "PodOnNode"
) -> Case:
    """Return the case of a pod's container with its image."""
    handover = pod.handover(image, args.mode)
    if args.env:
        handover = handover.with_env(args.env)
    return Case(host, handover.container, pod.mode(args.mode), handover, cdi=args.cdi)
