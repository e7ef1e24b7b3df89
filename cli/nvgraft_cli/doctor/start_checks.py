"""Checks of what keeps the runtime from starting the container's program.

The docstring of each check names the threads that reported the failure.
"""

import posixpath
from collections.abc import Iterator

from nvgraft.cdi import platform
from nvgraft.plan.actions import Injection, UpdateLoaderCache
from nvgraft_cli.case.cdi_requests import source_of_edits, to_complete
from nvgraft_cli.case.planned_cache import CACHE
from nvgraft_cli.case.planning import CacheOnVolume
from nvgraft_cli.doctor.patient import Diagnosis, NotChecked, Patient
from nvgraft_cli.prove.start.start_failure import StartCause
from nvgraft_specs import catalogue

_OF_DRIVER = {row.name: row.component_class for row in catalogue.BINARIES}

#: Why a program is not started -> cause and fix.
_TOLD = {
    StartCause.NOT_MOUNTED: (
        "the runtime makes the mounts of config.json before it starts the program",
        (
            "make the source of the mount, a file for a file and a directory for a directory, or"
            " correct the mount; ask about a copied bundle on the machine that it comes from"
        ),
    ),
    StartCause.NOT_EXECUTED: (
        "the kernel executes only files for which the container's user has that right",
        (
            "give the right in the image (chmod +x, or COPY --chmod=755), and mount a volume with "
            "programs without noexec"
        ),
    ),
    StartCause.NOT_PERMITTED: (
        "the kernel starts a program only if it can give it all its file capabilities",
        (
            "add the capability to the container (docker run --cap-add), or take it from the file"
            " in the image (setcap -r)"
        ),
    ),
    StartCause.USER_NOT_CHANGED: (
        "only a process with these capabilities can change its user and its groups",
        (
            "add them to the container (docker run --cap-add SETUID --cap-add SETGID), or start it"
            " as that user (docker run --user)"
        ),
    ),
    StartCause.ENDED: (
        "a script that the container starts ends before it starts another program",
        (
            "run it with sh -x in its place to see the command; set the variables, and mount or"
            " install what it asks for"
        ),
    ),
    StartCause.NO_PROGRAM: (
        "the kernel starts programs, and scripts whose first line names an interpreter",
        (
            "let the first line of the script name a program of the image, as #!/bin/sh does, and"
            " end without a carriage return (sed -i 's/\\r$//')"
        ),
    ),
}


def program_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``program-missing``: neither the image nor the plan has the container's program.

    Reported in NVIDIA/nvidia-docker#1103, #1226.
    """
    failure = None if patient.foreign_program else patient.missing_program
    if failure is None:
        return
    name = posixpath.basename(patient.container.arguments[0])
    if failure.cause in _TOLD:
        cause, fix = _TOLD[failure.cause]
    elif name not in _OF_DRIVER:
        cause = "neither the image nor what is mounted into the container has this program"
        fix = "add the program to the image, or correct the command or PATH of the container"
    elif not patient.host_has(name):
        cause = f"{name} is a program of the driver, which this host does not have in PATH"
        fix = f"install {name} on the host with the rest of the driver (package nvidia-utils)"
        if patient.platform == platform.TEGRA:
            fix = "start another program: JetPack 5 and older have none of the driver's programs"
    elif not isinstance(patient.plan, Injection):
        cause = f"{name} comes with the driver, of which this container gets nothing"
        fix = patient.way_to_gpus
    elif _OF_DRIVER[name] not in patient.capabilities:
        return  # capability-not-requested reports it
    else:
        cause = f"{source_of_edits(patient.case)}: {name} is not mounted, and the host has it"
        fix = to_complete(patient.case)
    yield Diagnosis(failure.words, cause, fix, stops=True, phrase=failure.words)


def loader_cache_mounted(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``loader-cache-mounted``: a volume covers the loader cache that the hook writes.

    Seen with a host's /etc/ld.so.cache as a volume, to make the host's libraries known.
    """
    refusal = patient.refusal
    if refusal is None or refusal.stage != "ldcache":
        if not any(isinstance(action, UpdateLoaderCache) for action in patient.injected.actions):
            raise NotChecked("the loader cache of this container is not written")
        return
    if not isinstance(refusal, CacheOnVolume):
        return  # the image has a directory in its place
    line = refusal.reference_line()
    yield Diagnosis(
        f"{line}: {CACHE} is on a volume of config.json",
        "the hook replaces the loader cache to make the driver's libraries known: it replaces no"
        " file that is mounted, and makes none on a volume",
        f"remove the mount of {CACHE}, or of its directory, from the container",
        stops=True,
        phrase=refusal.text,
    )
