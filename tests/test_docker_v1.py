"""nvidia-docker 1.0: what the wrapper adds to a command line of docker, and what the plugin
answers.
"""

import http.client
import io
import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_subprocess import FakeProcess

from nvgraft_cli.docker_v1 import answers, command, gpus, plugin, volume, wrapper
from nvgraft_cli.docker_v1.errors import DockerTrouble
from nvgraft_cli.docker_v1.gpus import Driver, NodeGpu, PeerLink

ACCEPT = {"Accept": "application/vnd.docker.plugins.v1.2+json"}


def gpu(minor: int, **facts: Any) -> NodeGpu:
    """Make a GPU; what NVML does not tell is None."""
    known: dict[str, Any] = {
        "uuid": f"GPU-{minor:08d}-aaaa",
        "path": f"/dev/nvidia{minor}",
        "model": "Tesla K80",
        "power": 149,
        "numa_node": 0,
        "bus_id": f"0000:0{minor}:00.0",
        "bar1": 16384,
        "pci_bandwidth": 15760,
        "core_clock": 875,
        "memory_clock": 2505,
        "links": (),
        "arch": "3.7",
        "ecc": True,
        "memory": 11439,
        "memory_bandwidth": 240480,
    }
    return NodeGpu(**{**known, **facts})


DRIVER = Driver(
    "375.66",
    (8, 0),
    (
        gpu(1, links=(PeerLink("0000:00:00.0", 5, "Single PCI switch"),)),
        gpu(0, model=None, power=None),
    ),
)


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ("run gpu", "gpu"),
        ("create gpu true", "gpu"),
        ("container run gpu", "gpu"),
        ("container create -it gpu", "gpu"),
        ("--debug run gpu", "gpu"),
        ("-H tcp://other:2375 run gpu", "gpu"),
        ("--log-level=debug run gpu", "gpu"),
        ("--config run run gpu", "gpu"),
        ("run -ti --rm -v /a:/b --name=x -e A=1 gpu cmd -x", "gpu"),
        ("run -itv /a:/b gpu", "gpu"),
        ("run -eA=1 gpu", "gpu"),
        ("run -dp 80:80 gpu", "gpu"),
        ("run --read-only --sig-proxy=false gpu", "gpu"),
        ("run --network host gpu", "gpu"),
        ("run -- gpu", "gpu"),
        ("run", None),
        ("run -it", None),
        ("run --name", None),
        ("ps -a", None),
        ("exec run gpu", None),
        ("container ls", None),
        ("image run", None),
        ("", None),
    ],
)
def test_the_image_is_the_first_word_that_is_no_option(words: str, image: str | None) -> None:
    """Options that take a value take the next word with them; only `run` and `create` count."""
    parts = words.split()
    at = wrapper.find_image(parts)
    assert (None if at is None else parts[at]) == image


@pytest.mark.parametrize(
    ("variable", "paths"),
    [
        ("", ["/dev/nvidia1", "/dev/nvidia0"]),
        (" , ", ["/dev/nvidia1", "/dev/nvidia0"]),
        ("0", ["/dev/nvidia1"]),
        ("1 0", ["/dev/nvidia1", "/dev/nvidia0"]),
        ("0,0", ["/dev/nvidia1"]),
        ("+1", ["/dev/nvidia0"]),
        ("GPU-00000000", ["/dev/nvidia0"]),
        ("GPU-", ["/dev/nvidia1"]),
    ],
)
def test_nv_gpu_names_gpus(variable: str, paths: list[str]) -> None:
    """Numbers are indices of NVML, and UUIDs may be cut short; only separators mean all."""
    ids = wrapper.gpu_ids({"NV_GPU": variable})
    assert [chosen.path for chosen in gpus.choose(DRIVER.gpus, ids)] == paths


@pytest.mark.parametrize("word", ["2", "-1", "x", "GPU-9", "gpu-00000000", "²", "1.0"])
def test_an_id_of_no_gpu_is_refused(word: str) -> None:
    """The error has the original's words, and what to write."""
    with pytest.raises(DockerTrouble, match=r"invalid device: .* \| name GPUs by index \(0 to 1\)"):
        gpus.choose(DRIVER.gpus, [word])


@pytest.mark.parametrize(
    ("label", "error"),
    [
        ("", None),
        ("7.5", None),
        ("8.0", None),
        ("8.0.61", None),
        ("8.1", "unsupported CUDA version: driver 8.0 < image 8.1"),
        ("10.0", "unsupported CUDA version: driver 8.0 < image 10.0"),
        ("x", "expected integer"),
        ("8.x", "expected integer"),
        ("8", "unexpected EOF"),
    ],
)
def test_an_image_for_a_newer_cuda_is_refused(label: str, error: str | None) -> None:
    """The label com.nvidia.cuda.version is compared with the driver's CUDA, as numbers."""
    if error is None:
        wrapper.check_cuda(label, (8, 0))
        return
    with pytest.raises(DockerTrouble) as caught:
        wrapper.check_cuda(label, (8, 0))
    assert str(caught.value).startswith(f"{error} | ")


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, ""),
        ({"DOCKER_HOST": "unix:///run/docker.sock"}, ""),
        ({"DOCKER_HOST": "tcp://node:2375"}, "http://node:3476"),
        ({"NV_HOST": "http://node", "DOCKER_HOST": "tcp://node:2375"}, "http://node:3476"),
        ({"NV_HOST": "node:80", "DOCKER_HOST": "tcp://node:2375"}, "http://node:80"),
    ],
)
def test_another_hosts_plugin(environ: Mapping[str, str], host: str) -> None:
    """NV_HOST comes before DOCKER_HOST; a socket is this host."""
    assert wrapper.remote_host(environ) == host


@pytest.mark.parametrize("text", ["ftp://node", "http://", "http://node:x", "ssh://node"])
def test_a_wrong_address_of_another_host(text: str) -> None:
    """What cannot be asked is refused before docker runs."""
    with pytest.raises(DockerTrouble, match=r"invalid remote host URI \| "):
        wrapper.remote_host({"NV_HOST": text, "DOCKER_HOST": "tcp://node:2375"})


def test_nv_host_alone_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """The GPUs of another host are of no use to this one's docker."""
    wrapper.remote_host({"NV_HOST": "http://node"})
    assert "DOCKER_HOST is not" in capsys.readouterr().err


NEEDED = '--format={{index .Config.Labels "com.nvidia.volumes.needed"}}'
CUDA = '--format={{index .Config.Labels "com.nvidia.cuda.version"}}'


class Docker:
    """A stand-in for docker: what it is asked, and the command line that takes the process over."""

    def __init__(self, fp: FakeProcess) -> None:
        self._fp = fp
        self.executed: list[str] = []
        self.volume = ""
        self.absent = False
        self.needed = "nvidia_driver other"
        self.cuda = "<no value>"
        self.answer("inspect", "--type=image", lambda: ("[]", int(self.absent)))
        self.answer("pull", None, self._pull)
        self.answer("inspect", NEEDED, lambda: (self.needed, 0))
        self.answer("inspect", CUDA, lambda: (self.cuda, 0))
        self.answer("volume", "inspect", lambda: (self.volume, int(not self.volume)))

    def answer(self, call: str, option: str | None, say: Callable[[], tuple[str, int]]) -> None:
        """Answer a call of docker by what ``say`` returns then: text and exit code."""

        def run(process: Any) -> None:
            text, process.returncode = say()
            process.stdout = io.StringIO(text) if process.stdout else None

        words: list[Any] = ["docker", call, *([option] if option else []), self._fp.any(max=1)]
        self._fp.register(words, callback=run, occurrences=9)

    def _pull(self) -> tuple[str, int]:
        self.absent = False
        return "", 0

    @property
    def calls(self) -> list[list[str]]:
        """The commands of docker that were run, without the program."""
        return [[str(word) for word in call][1:] for call in self._fp.calls]


@pytest.fixture
def docker(fp: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A stand-in for docker, on a node with two GPUs."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(wrapper, "_load_uvm", lambda: None)
    monkeypatch.setattr(gpus, "read_driver", lambda: DRIVER)
    monkeypatch.setattr(answers, "control_devices", lambda: ["/dev/nvidiactl"])
    stand_in = Docker(fp)
    monkeypatch.setattr(os, "execvp", lambda _, words: stand_in.executed.extend(words))
    return stand_in


ADDED = "--device=/dev/nvidiactl --device=/dev/nvidia1 --device=/dev/nvidia0"
MOUNT = "--volume=nvidia_driver_375.66:/usr/local/nvidia:ro"


def test_the_driver_is_added_before_the_image(docker: Docker) -> None:
    """An image with the label gets devices and the volume, before its name."""
    command.main(["run", "--rm", "gpu", "sh"])
    added = f"{ADDED} --volume-driver=nvidia-docker {MOUNT}"
    assert " ".join(docker.executed) == f"docker run --rm {added} gpu sh"


@pytest.mark.parametrize("words", ["ps -a", "run", "volume ls", "plugin ls", ""])
def test_another_command_goes_to_docker_unasked(words: str, docker: Docker) -> None:
    """`plugin` alone, or with an option, is the volume plugin; docker has commands of that name."""
    command.main(words.split())
    assert docker.executed == ["docker", *words.split()]
    assert docker.calls == []


def test_an_image_without_the_label_gets_nothing(docker: Docker) -> None:
    """The command line goes on unchanged."""
    docker.needed = "<no value>"
    command.main(["run", "plain", "sh"])
    assert docker.executed == ["docker", "run", "plain", "sh"]


def test_an_absent_image_is_pulled_first(docker: Docker) -> None:
    """Its labels are not known before."""
    docker.absent = True
    command.main(["run", "gpu"])
    assert ["pull", "gpu"] in docker.calls
    assert docker.executed[:2] == ["docker", "run"]


def test_a_volume_that_exists_needs_no_driver(docker: Docker) -> None:
    """docker takes a volume's driver only for a new one."""
    docker.volume = "[{}]"
    command.main(["run", "gpu"])
    assert " ".join(docker.executed) == f"docker run {ADDED} {MOUNT} gpu"


def test_a_refused_container_is_not_run(docker: Docker, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with the original's words, and docker has not run."""
    docker.cuda = "99.0"
    assert command.main(["run", "gpu"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nvidia-docker | ")
    assert "Error: unsupported CUDA version: driver 8.0 < image 99.0 | " in error
    assert docker.executed == []


def test_without_docker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that is missing is named."""
    monkeypatch.setenv("NV_DOCKER", "no-such-docker -H tcp://x")
    assert command.main(["ps"]) == 1
    assert "no-such-docker: command not found | " in capsys.readouterr().err


def test_info_has_each_gpu() -> None:
    """What is not known is N/A in the text and null in the document."""
    text = answers.info_text(DRIVER)
    assert "Family:        Kepler" in text
    assert "    0000:00:00.0 - Single PCI switch" in text
    assert "  Model:         N/A" in text
    first, second = answers.description(DRIVER)["Devices"]
    assert first["Topology"] == [{"BusID": "0000:00:00.0", "Link": 5}]
    assert (second["Power"], second["Topology"]) == (None, None)


@pytest.mark.parametrize(("content", "node"), [("1\n", 1), ("-1\n", None), ("x", None), (None, 0)])
def test_the_numa_node_of_an_address(content: str | None, node: int | None, tmp_path: Path) -> None:
    """An address that the kernel does not know is on node 0, as in the original."""
    if content is not None:
        (tmp_path / "0000:0a:00.0").mkdir()
        (tmp_path / "0000:0a:00.0/numa_node").write_text(content)
    assert gpus.numa_node("0000:0A:00.0", str(tmp_path)) == node


@pytest.mark.parametrize(
    "name", ["x", "nvidia_driver_", "nvidia_driver_..", "nvidia_driver_.", "nvidia_driver_1/2", ""]
)
def test_a_bad_volume_name(name: str) -> None:
    """A version has digits: one of dots alone would name a directory above."""
    with pytest.raises(DockerTrouble, match="bad volume format"):
        volume.split_name(name)


@pytest.fixture
def volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plugin.VolumeDriver:
    """A volume driver whose volumes have one file."""
    monkeypatch.setattr(volume, "_fill", lambda work: (work / "bin").mkdir())
    return plugin.VolumeDriver(volume.Volumes(str(tmp_path)), "375.66")


def test_a_volume_from_creation_to_removal(volumes: plugin.VolumeDriver, tmp_path: Path) -> None:
    """A volume exists between Create and Remove; both may be repeated."""
    name = "nvidia_driver_375.66"
    place = str(tmp_path / "nvidia_driver/375.66")
    absent = {"Mountpoint": None, "Err": f"no such volume: {name}"}
    assert volumes.answer("Path", name) == absent
    assert volumes.answer("List", "") == {"Volumes": None, "Err": None}
    for _ in range(2):
        assert volumes.answer("Create", name) == {"Err": None}
    assert volumes.answer("Mount", name) == {"Mountpoint": place, "Err": None}
    listed = {"Name": name, "Mountpoint": place}
    assert volumes.answer("Get", name) == {"Volume": listed, "Err": None}
    assert volumes.answer("List", "") == {"Volumes": [listed], "Err": None}
    assert os.listdir(place) == ["bin"]
    assert volumes.answer("Unmount", name) == {"Err": None}
    for _ in range(2):
        assert volumes.answer("Remove", name) == {"Err": None}
    assert volumes.answer("Path", name) == absent


def test_a_volume_of_another_driver_is_not_made(volumes: plugin.VolumeDriver) -> None:
    """The files of another version are not on this node."""
    assert volumes.answer("Create", "nvidia_driver_1.0") == {
        "Err": "invalid volume version: nvidia_driver_1.0"
    }
    assert volumes.answer("Create", "other_375.66") == {"Err": "unsupported volume: other_375.66"}


def test_a_volume_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a volume is made, or nothing."""

    def fail(work: Path) -> None:
        (work / "bin").mkdir()
        raise DockerTrouble("a file of the driver is missing")

    monkeypatch.setattr(volume, "_fill", fail)
    driver = plugin.VolumeDriver(volume.Volumes(str(tmp_path)), "375.66")
    assert driver.answer("Create", "nvidia_driver_375.66")["Err"].startswith("a file")
    assert os.listdir(tmp_path / "nvidia_driver") == []


def ask(handler: type[BaseHTTPRequestHandler], request: bytes) -> tuple[int, str]:
    """Have a handler answer one request; return status and body."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(request)
        handler(server, ("", 0), cast("Any", None))  # no handler of ours asks its server
        server.close()
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    ("method", "call", "body", "headers", "status", "text"),
    [
        ("POST", "/Plugin.Activate", "", ACCEPT, 200, '{"Implements":["VolumeDriver"]}\n'),
        ("POST", "/v1.0/Plugin.Activate", "", ACCEPT, 200, '{"Implements":["VolumeDriver"]}\n'),
        ("POST", "/Plugin.Activate", "", {}, 406, ""),
        ("POST", "/v2.0/Plugin.Activate", "", ACCEPT, 404, "404 page not found\n"),
        ("POST", "/VolumeDriver.Nothing", "{}", ACCEPT, 404, "404 page not found\n"),
        ("GET", "/VolumeDriver.List", "", ACCEPT, 404, "404 page not found\n"),
        ("POST", "/VolumeDriver.Path", '{"Name": "x"}', ACCEPT, 200, '{"Mountpoint":null,"Err":"bad volume format: x"}\n'),
        ("POST", "/VolumeDriver.Path", "[", ACCEPT, 200, '{"Err":"the request is not an object with a text as \\"Name\\""}\n'),
        ("POST", "/VolumeDriver.Path", '{"Name": 1}', ACCEPT, 200, '{"Err":"the request is not an object with a text as \\"Name\\""}\n'),
        ("POST", "/VolumeDriver.Path", "[" * 60_000, ACCEPT, 200, '{"Err":"the request is not an object with a text as \\"Name\\""}\n'),
        ("POST", "/VolumeDriver.Path", " " * 70_000, ACCEPT, 413, "request too large\n"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_dockers_calls(
    method: str,
    call: str,
    body: str,
    headers: dict[str, str],
    status: int,
    text: str,
    volumes: plugin.VolumeDriver,
) -> None:
    """Docker's calls are answered, and bad ones too."""
    handler = type("Handler", (plugin._DriverHandler,), {"driver": volumes})
    fields = {"Content-Length": str(len(body)), **headers}
    lines = [f"{method} {call} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    request = "\r\n".join([*lines, "", body])
    assert ask(handler, request.encode()) == (status, text)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/docker/cli", 200, f"--volume-driver=nvidia-docker {MOUNT} {ADDED}"),
        ("/v1.0/docker/cli", 200, f"--volume-driver=nvidia-docker {MOUNT} {ADDED}"),
        (
            "/docker/cli?dev=0&vol=nvidia_driver",
            200,
            f"--volume-driver=nvidia-docker {MOUNT} --device=/dev/nvidiactl --device=/dev/nvidia1",
        ),
        ("/docker/cli?dev=9", 400, "invalid device: 9 | "),
        ("/docker/cli?vol=none", 400, "invalid volume: none | "),
        ("/nothing", 404, "404 page not found"),
    ],
)
def test_queries(path: str, status: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of docker can be asked for over HTTP."""
    monkeypatch.setattr(plugin, "read_driver", lambda: DRIVER)
    monkeypatch.setattr(answers, "control_devices", lambda: ["/dev/nvidiactl"])
    code, body = ask(plugin._QueryHandler, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert (code, body.startswith(text)) == (status, True)


def test_documents_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description and the arguments are JSON too; a scheduler gets the description packed."""
    assert json.loads(json.dumps(answers.description(DRIVER)))["Version"] == {
        "Driver": "375.66",
        "CUDA": "8.0",
    }
    attribute, resource = answers.mesos_text(DRIVER).split()
    assert attribute.startswith("--attributes=gpus:eJ")
    assert resource == "--resources=gpus:{GPU-00000001-aaaa,GPU-00000000-aaaa}"
