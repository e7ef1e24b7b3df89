"""The MPS control daemon, which a shared resource waits for before it is served."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from nvgraft_device_plugin.errors import NodeError

#: Where the reference's pods see the directory of --mps-root.
_MOUNTED = "/mps"
_PROGRAM = "nvidia-cuda-mps-control"
_QUESTION = "get_default_active_thread_percentage\n"

#: Seconds for an answer of the daemon.
_PATIENCE = 5.0


def pipe_directory(resource: str, root: str, mounted: str = _MOUNTED) -> str:
    """Return where this process sees the daemon's pipe of a resource: below /mps, as in the
    reference's pods, or below --mps-root where there is no /mps.
    """
    return os.path.join(mounted if os.path.isdir(mounted) else root, resource, "pipe")


def ask(resource: str, root: str, environ: Mapping[str, str]) -> str:
    """Return the answer of a resource's control daemon: the share of threads in percent.

    :raises NodeError: the daemon does not answer.
    """
    directory = pipe_directory(resource, root)
    program = shutil.which(_PROGRAM, path=environ.get("PATH"))
    if program is None:
        raise NodeError(
            f"error waiting for MPS daemon: {_PROGRAM}: not in PATH | give this container the"
            " driver's programs (runtimeClassName, NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        )
    try:
        done = subprocess.run(
            [program],
            input=_QUESTION,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            env={**environ, "CUDA_MPS_PIPE_DIRECTORY": directory},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeError(
            f"error waiting for MPS daemon: no answer at {directory} within {_PATIENCE:.0f} s"
            " | restart the MPS control daemon"
        ) from error
    except OSError as error:
        raise NodeError(
            f"error waiting for MPS daemon: {program}: {error.strerror} | check the program"
        ) from error
    answer = done.stdout.strip()
    if done.returncode != 0 or not answer:
        said = (done.stderr.strip() or answer).splitlines()
        cause = f": {said[-1]}" if said else ""
        raise NodeError(
            f"error waiting for MPS daemon: no answer for {resource} at {directory}{cause}"
            " | start the MPS control daemon of this resource, and mount its directory at"
            f" {_MOUNTED}"
        )
    return answer.splitlines()[-1]
