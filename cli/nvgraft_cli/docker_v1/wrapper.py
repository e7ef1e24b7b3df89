"""``nvgraft docker-v1 ...`` in the place of ``nvidia-docker ...``: find the image of a command line
of docker, ask its labels, and add what gives it the driver.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from nvgraft_cli.docker_v1 import answers
from nvgraft_cli.docker_v1.errors import DockerTrouble

NEEDED_LABEL = "com.nvidia.volumes.needed"
CUDA_LABEL = "com.nvidia.cuda.version"

#: The version of nvidia-docker whose behaviour this is.
VERSION = "1.0.1"

#: The port of the plugin on another host (NV_HOST), seconds to wait for it, and the most bytes
#: that are read of its answer.
_PORT = 3476
_PATIENCE = 10
_ANSWER_LIMIT = 1 << 20

#: Options without a value. A word behind any other option is its value, so that what follows is the
#: image (docker run --help, docker --help).
_GLOBAL_FLAGS = frozenset({"--debug", "--tls", "--tlsverify", "--help", "--version"})
_RUN_FLAGS = frozenset(
    {
        "--detach",
        "--disable-content-trust",
        "--help",
        "--init",
        "--interactive",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--privileged",
        "--publish-all",
        "--quiet",
        "--read-only",
        "--rm",
        "--sig-proxy",
        "--tty",
        "--use-api-socket",
    }
)
_GLOBAL_LETTERS = frozenset("Dv")
_RUN_LETTERS = frozenset("diPtq")


def find_image(words: Sequence[str]) -> int | None:
    """Return the index of the image in the arguments of docker; None unless they run or create a
    container.
    """
    at = _skip_options(words, 0, _GLOBAL_FLAGS, _GLOBAL_LETTERS)
    if at is not None and words[at] == "container":
        at = _skip_options(words, at + 1, _GLOBAL_FLAGS, _GLOBAL_LETTERS)
    if at is None or words[at] not in {"run", "create"}:
        return None
    return _skip_options(words, at + 1, _RUN_FLAGS, _RUN_LETTERS)


def first_command(words: Sequence[str]) -> str:
    """Return the command of docker that the arguments name; empty for none."""
    at = _skip_options(words, 0, _GLOBAL_FLAGS, _GLOBAL_LETTERS)
    return "" if at is None else words[at]


def _skip_options(
    words: Sequence[str], at: int, flags: frozenset[str], letters: frozenset[str]
) -> int | None:
    """Return the index of the first word from ``at`` on that is neither option nor value."""
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1 if at + 1 < len(words) else None
        if not word.startswith("-") or word == "-":
            return at
        at += 2 if _takes_next(word, flags, letters) else 1
    return None


def _takes_next(word: str, flags: frozenset[str], letters: frozenset[str]) -> bool:
    """Tell whether the value of an option is the next word."""
    if word.startswith("--"):
        return "=" not in word and word not in flags
    # -ti has two flags; in -te the last letter has a value, which is the next word; in -teA=1 the
    # value is behind the letter.
    for position, letter in enumerate(word[1:], 2):
        if letter not in letters:
            return position == len(word)
    return False


def gpu_ids(environ: Mapping[str, str]) -> list[str]:
    """Return what NV_GPU names: indices and beginnings of UUIDs, behind blanks or commas."""
    return [word for word in re.split(r"[\s,]+", environ.get("NV_GPU", "")) if word]


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run docker with ``words``, and with the GPUs that its image needs; return if that fails.

    :raises DockerTrouble: the container cannot have what its image needs; docker was not run then.
    """
    docker = environ.get("NV_DOCKER", "").split() or ["docker"]
    if shutil.which(docker[0]) is None:
        raise DockerTrouble(
            f"{docker[0]}: command not found | install docker, or name it in NV_DOCKER"
        )
    if first_command(words) == "version":
        print(f"NVIDIA Docker: {VERSION}\n", flush=True)
    at = find_image(words)
    added: list[str] = []
    if at is not None:
        added = _added(docker, words[at], environ)
    else:
        at = len(words)
    os.execvp(docker[0], [*docker, *words[:at], *added, *words[at:]])  # noqa: S606


def _added(docker: list[str], image: str, environ: Mapping[str, str]) -> list[str]:
    if _ask(docker, "inspect", "--type=image", image) is None:
        done = subprocess.run([*docker, "pull", image], stdout=sys.stderr, check=False)
        if done.returncode:
            raise DockerTrouble(f"no image {image}: docker pull failed | its own message is above")
    needed = _label(docker, image, NEEDED_LABEL)
    if not needed:
        return []
    host = remote_host(environ)
    if host:
        return _remote_arguments(host, needed, environ)
    return _local_arguments(docker, image, needed, environ)


def _ask(docker: list[str], *words: str) -> str | None:
    """Return what docker prints, or None if it fails."""
    done = subprocess.run(
        [*docker, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        check=False,
    )
    return None if done.returncode else done.stdout.strip()


def _label(docker: list[str], image: str, name: str) -> str:
    answer = _ask(docker, "inspect", f'--format={{{{index .Config.Labels "{name}"}}}}', image)
    if answer is None:
        raise DockerTrouble(f"no image {image} | pull or build it")
    return "" if answer == "<no value>" else answer


def _local_arguments(
    docker: list[str], image: str, needed: str, environ: Mapping[str, str]
) -> list[str]:
    from nvgraft_cli.docker_v1.gpus import choose, read_driver

    _load_uvm()
    driver = read_driver()
    check_cuda(_label(docker, image, CUDA_LABEL), driver.cuda)
    arguments = answers.device_arguments(choose(driver.gpus, gpu_ids(environ)))
    for name in needed.split(" "):
        if name == answers.VOLUME:
            volume = answers.volume_name(driver.version)
            if _ask(docker, "volume", "inspect", volume) in {None, "", "[]"}:  # there is none
                arguments.append(f"--volume-driver={answers.VOLUME_DRIVER}")
            arguments.append(answers.volume_argument(driver.version))
    return arguments


def _load_uvm() -> None:
    """Make /dev/nvidia-uvm, as root or by a set-user-ID program of the driver."""
    program = shutil.which("nvidia-modprobe")
    if program is not None:
        done = subprocess.run([program, "-u", "-c=0"], check=False)
        if done.returncode == 0:
            return
    if not os.path.exists("/dev/nvidia-uvm"):
        raise DockerTrouble(
            "Could not load UVM kernel module. Is nvidia-modprobe installed? | /dev/nvidia-uvm is"
            " missing: install nvidia-modprobe, or run nvidia-smi as root once"
        )


def check_cuda(label: str, driver: tuple[int, int]) -> None:
    """Check that the driver's CUDA version is at least the one of an image's label.

    :param label: empty if the image asks for nothing.
    :raises DockerTrouble: it is older, or the label is not MAJOR.MINOR.
    """
    if not label:
        return
    words = label.strip().split(".")
    fix = f"write MAJOR.MINOR into the label {CUDA_LABEL} of the image"
    if not words[0].isdecimal() or (len(words) > 1 and not words[1][:1].isdecimal()):
        raise DockerTrouble(f"expected integer | {label!r} is not a CUDA version: {fix}")
    if len(words) < 2:
        raise DockerTrouble(f"unexpected EOF | {label!r} has no minor version: {fix}")
    minor = re.match(r"\d+", words[1])
    image = int(words[0]), int(minor[0]) if minor else 0
    if image > driver:
        raise DockerTrouble(
            f"unsupported CUDA version: driver {driver[0]}.{driver[1]} < image"
            f" {image[0]}.{image[1]} | install a newer driver on this node, or use an image that is"
            " built for an older CUDA"
        )


def remote_host(environ: Mapping[str, str]) -> str:
    """Return the address of another host's plugin (NV_HOST, DOCKER_HOST), or "" for this host.

    :raises DockerTrouble: the address is not one, or needs ssh.
    """
    text = environ.get("NV_HOST", "")
    if not text:
        docker_host = environ.get("DOCKER_HOST", "")
        # A socket is on this host.
        text = urlsplit(docker_host).hostname or "" if "://" in docker_host else ""
        return f"http://{text}:{_PORT}" if text and not docker_host.startswith("unix:") else ""
    if not environ.get("DOCKER_HOST"):
        print(
            "nvidia-docker: NV_HOST is set and DOCKER_HOST is not: docker runs on this host, with"
            " the GPUs of another",
            file=sys.stderr,
        )
    try:
        address = urlsplit(text if "://" in text else f"http://{text}")
        port = address.port or _PORT
    except ValueError:
        address, port = urlsplit(""), 0
    if address.scheme == "ssh":
        raise DockerTrouble(
            "invalid remote host URI | ssh is not implemented here: forward port 3476 yourself"
            " (ssh -L 3476:localhost:3476 HOST) and set NV_HOST=http://localhost"
        )
    if address.scheme != "http" or not address.hostname:
        raise DockerTrouble("invalid remote host URI | write NV_HOST=http://HOST[:PORT]")
    return f"http://{address.hostname}:{port}"


def _remote_arguments(host: str, needed: str, environ: Mapping[str, str]) -> list[str]:
    query = urlencode({"vol": needed, "dev": " ".join(gpu_ids(environ))})
    url = f"{host}/v1.0/docker/cli?{query}"
    try:
        with urlopen(url, timeout=_PATIENCE) as answer:  # noqa: S310 - remote_host() makes it http
            text = answer.read(_ANSWER_LIMIT).decode("utf-8", "replace")
    except (URLError, OSError, ValueError) as error:
        raise DockerTrouble(
            f"{host}: {error} | start `nvgraft docker-v1 plugin -l 0.0.0.0:{_PORT}` there"
        ) from error
    return [str(word) for word in text.split() if word.startswith("--")]
