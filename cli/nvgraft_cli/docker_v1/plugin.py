"""``nvgraft docker-v1 plugin``: the volume plugin of nvidia-docker 1.0, and its queries
(reference behaviour 12.3).

Docker calls it through a socket; people and schedulers ask it over HTTP.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nvgraft_cli.docker_v1 import answers
from nvgraft_cli.docker_v1.errors import DockerTrouble
from nvgraft_cli.docker_v1.gpus import choose, read_driver
from nvgraft_cli.docker_v1.volume import Volumes, split_name

SOCKET = "nvidia-docker.sock"

#: The most bytes of a request's body, and seconds after which a silent client is left.
_BODY_LIMIT = 64 << 10
_PATIENCE = 30

_DRIVER_TYPE = "application/vnd.docker.plugins.v1+json"
_ACCEPTED = tuple(f"application/vnd.docker.plugins.v1.{minor}+json" for minor in (1, 2))
_TEXT_TYPE = "text/plain; charset=utf-8"


class VolumeDriver:
    """The calls of docker's volume driver protocol, each with the name of a volume.

    :param version: the running driver's.
    """

    def __init__(self, volumes: Volumes, version: str) -> None:
        self._volumes = volumes
        self._version = version
        self._lock = threading.Lock()
        self.calls: dict[str, Callable[[str], dict[str, Any]]] = {
            "Create": self._create,
            "Remove": self._remove,
            "Mount": self._path,
            "Path": self._path,
            "Unmount": self._unmount,
            "Get": self._get,
            "List": self._list,
            "Capabilities": lambda _: {"Capabilities": {"Scope": "local"}},
        }

    def answer(self, call: str, name: str) -> dict[str, Any]:
        """Return the answer to a call; an error is an answer too."""
        with self._lock:
            return self.calls[call](name)

    def _create(self, name: str) -> dict[str, Any]:
        try:
            version = split_name(name)
            if version != self._version:
                raise DockerTrouble(f"invalid volume version: {name}")
            self._volumes.create(version)
        except DockerTrouble as error:
            return {"Err": str(error)}
        return {"Err": None}

    def _remove(self, name: str) -> dict[str, Any]:
        try:
            self._volumes.remove(split_name(name))
        except DockerTrouble as error:
            return {"Err": str(error)}
        return {"Err": None}

    def _unmount(self, name: str) -> dict[str, Any]:
        try:
            split_name(name)
        except DockerTrouble as error:
            return {"Err": str(error)}
        return {"Err": None}

    def _existing(self, name: str) -> str:
        version = split_name(name)
        if not self._volumes.exists(version):
            raise DockerTrouble(f"no such volume: {name}")
        return str(self._volumes.path(version))

    def _path(self, name: str) -> dict[str, Any]:
        try:
            return {"Mountpoint": self._existing(name), "Err": None}
        except DockerTrouble as error:
            return {"Mountpoint": None, "Err": str(error)}

    def _get(self, name: str) -> dict[str, Any]:
        try:
            return {"Volume": {"Name": name, "Mountpoint": self._existing(name)}, "Err": None}
        except DockerTrouble as error:
            return {"Volume": None, "Err": str(error)}

    def _list(self, _name: str) -> dict[str, Any]:
        volumes = [
            {
                "Name": answers.volume_name(version),
                "Mountpoint": str(self._volumes.path(version)),
            }
            for version in self._volumes.versions()
        ]
        return {"Volumes": volumes or None, "Err": None}


class _Handler(BaseHTTPRequestHandler):
    """What both servers share."""

    timeout = _PATIENCE
    server_version = "nvgraft"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: docker asks often, and its own log has the answers."""

    def _reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _missing(self) -> None:
        self._reply(HTTPStatus.NOT_FOUND, _TEXT_TYPE, "404 page not found\n")

    def _route(self) -> str:
        """Return the path without its version, of which there is one."""
        return urlsplit(self.path).path.removeprefix("/v1.0")


class _DriverHandler(_Handler):
    """The volume driver, for docker."""

    driver: VolumeDriver

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > _BODY_LIMIT:
            self._reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TEXT_TYPE, "request too large\n")
            return
        body = self.rfile.read(int(size))
        path = self._route()
        if path == "/Plugin.Activate":
            if not any(kind in self.headers.get("Accept", "") for kind in _ACCEPTED):
                self._reply(HTTPStatus.NOT_ACCEPTABLE, _TEXT_TYPE, "")
                return
            self._answer({"Implements": ["VolumeDriver"]})
            return
        call = path.removeprefix("/VolumeDriver.")
        if call == path or call not in self.driver.calls:
            self._missing()
            return
        try:
            asked = json.loads(body or b"{}")
            name = asked.get("Name", "")
            if not isinstance(name, str):
                raise TypeError
        except (ValueError, RecursionError, AttributeError, TypeError):
            self._answer({"Err": 'the request is not an object with a text as "Name"'})
            return
        self._answer(self.driver.answer(call, name))

    def do_GET(self) -> None:
        self._missing()

    def _answer(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":")) + "\n"
        self._reply(HTTPStatus.OK, _DRIVER_TYPE, text)


class _QueryHandler(_Handler):
    """The queries of people and schedulers. GPUs are read for each one: they may change."""

    def do_GET(self) -> None:
        queries: dict[str, Callable[[], tuple[str, str]]] = {
            "/gpu/info": lambda: (_TEXT_TYPE, answers.info_text(read_driver())),
            "/gpu/info/json": lambda: _json(answers.description(read_driver())),
            "/docker/cli": self._arguments,
            "/docker/cli/json": self._arguments_document,
            "/mesos/cli": lambda: (_TEXT_TYPE, answers.mesos_text(read_driver())),
        }
        query = queries.get(self._route())
        if query is None:
            self._missing()
            return
        try:
            kind, text = query()
        except DockerTrouble as error:
            self._reply(HTTPStatus.BAD_REQUEST, _TEXT_TYPE, f"{error}\n")
            return
        self._reply(HTTPStatus.OK, kind, text)

    def _asked(self) -> tuple[str, list[str], list[str]]:
        """Return the driver's version, the volumes and the nodes that a query asks for."""
        asked = parse_qs(urlsplit(self.path).query)
        volumes = answers.known_volumes(" ".join(asked.get("vol", [])).split())
        ids = [word for word in " ".join(asked.get("dev", [])).split() if word != "*"]
        driver = read_driver()
        nodes = [gpu.path for gpu in choose(driver.gpus, ids)]
        return driver.version, volumes, [*answers.control_devices(), *nodes]

    def _arguments(self) -> tuple[str, str]:
        version, _, nodes = self._asked()
        words = [f"--volume-driver={answers.VOLUME_DRIVER}", answers.volume_argument(version)]
        return _TEXT_TYPE, " ".join([*words, *(f"--device={node}" for node in nodes)])

    def _arguments_document(self) -> tuple[str, str]:
        version, _, nodes = self._asked()
        return _json(
            {
                "VolumeDriver": answers.VOLUME_DRIVER,
                "Volumes": [answers.volume_argument(version).removeprefix("--volume=")],
                "Devices": nodes,
            }
        )


def _json(document: dict[str, Any]) -> tuple[str, str]:
    return "application/json", json.dumps(document, separators=(",", ":")) + "\n"


class _SocketServer(ThreadingUnixStreamServer):
    daemon_threads = True


def serve(listen: str, directory: str, sockets: str) -> int:
    """Serve until a signal ends it.

    :param listen: address and port of the queries.
    :param directory: where the volumes are.
    :param sockets: where docker looks for the sockets of plugins.
    :raises DockerTrouble: there is no driver, or an address or directory cannot be used.
    """
    driver = VolumeDriver(Volumes(directory), read_driver().version)
    handler = type("Handler", (_DriverHandler,), {"driver": driver})
    path = Path(sockets, SOCKET)
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise DockerTrouble(f"{listen}: not an address | write HOST:PORT after -l")
    try:
        os.makedirs(sockets, 0o755, exist_ok=True)
        _remove_dead(path)
        queries = ThreadingHTTPServer((host.strip("[]"), int(port)), _QueryHandler)
    except (OSError, OverflowError) as error:
        raise DockerTrouble(f"{listen}, {path}: {error}") from error
    try:
        calls = _SocketServer(str(path), handler)
    except OSError as error:
        queries.server_close()
        raise DockerTrouble(f"{path}: {error} | name another directory with -s") from error
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    servers: list[BaseServer] = [queries, calls]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving {path} and http://{listen}", flush=True)
    stop.wait()
    for server in servers:
        server.shutdown()
        server.server_close()
    path.unlink(missing_ok=True)
    return 0


def _remove_dead(path: Path) -> None:
    """Remove a socket that nobody serves any more.

    :raises DockerTrouble: somebody does.
    """
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    raise DockerTrouble(f"{path}: served already | stop the other plugin, or name another -s")
