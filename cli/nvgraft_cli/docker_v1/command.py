"""The command line of ``nvgraft docker-v1``. What does not begin with ``plugin`` is docker's."""

import argparse
import os
import sys
import time

from nvgraft.base.errors import printable
from nvgraft_cli.docker_v1.errors import DockerTrouble

#: What errors begin with, as those of the original.
_PROGRAM = "nvidia-docker"

_EXAMPLES = """\
examples:
  nvgraft docker-v1 run --rm nvidia/cuda:8.0-runtime nvidia-smi
  NV_GPU=0,1 nvgraft docker-v1 run --rm IMAGE        # two GPUs, by index or GPU-UUID
  sudo nvgraft docker-v1 plugin -s /run/docker/plugins
  nvgraft simulate runfile-a10x2 -- nvgraft docker-v1 run IMAGE

An image that needs GPUs says so by the label com.nvidia.volumes.needed=nvidia_driver. The variable
NV_DOCKER names the command of docker, NV_HOST the plugin of another host.

exit code: docker's, 1 the container cannot have its GPUs (docker was not run)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``docker-v1``, of which all but ``plugin`` are docker's."""
    parser.description = (
        "Run docker as nvidia-docker 1.0 (2015 to 2017) did, for learning: an image with a label"
        " gets device nodes and a volume with the driver. `plugin` serves that volume."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs=argparse.REMAINDER,
        help="a command line of docker; or plugin [-l HOST:PORT] [-d DIR] [-s DIR]",
    )
    parser.set_defaults(run=lambda args: main(args.words))


def main(words: list[str]) -> int:
    """Run a command line; return the exit code, unless docker takes this process over."""
    try:
        if _is_plugin(words):
            return _plugin(words[1:])
        from nvgraft_cli.docker_v1 import wrapper

        return wrapper.run(words, os.environ)
    except DockerTrouble as error:
        now = time.strftime("%Y/%m/%d %H:%M:%S")
        print(printable(f"{_PROGRAM} | {now} Error: {error}"), file=sys.stderr)
        return 1


def _is_plugin(words: list[str]) -> bool:
    """Tell whether the plugin is meant: docker has a command of this name, followed by another."""
    return words[:1] == ["plugin"] and all(word.startswith("-") for word in words[1:2])


def _plugin(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nvgraft docker-v1 plugin",
        description="Serve the volume nvidia_driver_VERSION to docker, and queries over HTTP.",
    )
    parser.add_argument(
        "-l",
        dest="listen",
        metavar="HOST:PORT",
        default="localhost:3476",
        help="where to answer queries (default: localhost:3476)",
    )
    parser.add_argument(
        "-d",
        dest="directory",
        metavar="DIR",
        default="/var/lib/nvidia-docker/volumes",
        help="where to make volumes (default: /var/lib/nvidia-docker/volumes)",
    )
    parser.add_argument(
        "-s",
        dest="sockets",
        metavar="DIR",
        default="/run/docker/plugins",
        help="where docker looks for plugins (default: /run/docker/plugins)",
    )
    parser.add_argument("-v", action="version", version="1.0.1", help="print the version")
    args = parser.parse_args(words)
    from nvgraft_cli.docker_v1.plugin import serve

    return serve(args.listen, args.directory, args.sockets)
