"""Start a container through containerd's CRI, as kubelet does: the few calls of its gRPC API that a
test needs, with messages written out by hand.

Run it beside containerd: ``python cri.py SOCKET IMAGE CGROUP DIRECTORY DEVICE COMMAND...``. It prints what
the command prints, and ends with its exit code. DEVICE is the qualified name of a CDI device.
Source of the numbers: k8s.io/cri-api, runtime/v1/api.proto.
"""

import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events

_NODE, _EXITED = 2, 2

Field = tuple[int, "int | str | bytes"]


class Refused(Exception):
    """An answer of containerd that is an error."""


def message(*fields: Field) -> bytes:
    """Return a message of protobuf with these numbers and values."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            data += _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return data


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def fields(data: bytes) -> dict[int, "int | bytes"]:
    """Return the fields of a message by their numbers; of a repeated one the last."""
    found: dict[int, int | bytes] = {}
    rest = iter(data)
    for byte in rest:
        key = _read_varint(byte, rest)
        value: int | bytes = _read_varint(next(rest), rest)
        if key & 7 == 2:
            value = bytes(next(rest) for _ in range(int(value)))
        found[key >> 3] = value
    return found


def _read_varint(byte: int, rest: Iterator[int]) -> int:
    value = shift = 0
    while byte & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        byte = next(rest)
    return value | byte << shift


def call(path: str, method: str, request: bytes) -> dict[int, "int | bytes"]:
    """Call a method of the runtime service at a socket, and return the fields of its answer.

    :raises Refused: containerd answers with an error.
    """
    config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
    connection = h2.connection.H2Connection(config)
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(60)
        stream.connect(path)
        connection.initiate_connection()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/runtime.v1.RuntimeService/{method}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        connection.send_headers(1, headers)
        connection.send_data(1, struct.pack(">BI", 0, len(request)) + request, end_stream=True)
        answer = b""
        said: dict[str, str] = {}
        while True:
            stream.sendall(connection.data_to_send())
            for event in connection.receive_data(stream.recv(1 << 16)):
                if isinstance(event, h2.events.DataReceived):
                    answer += event.data or b""
                elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    said |= {str(name): str(value) for name, value in event.headers or ()}
                elif isinstance(event, (h2.events.StreamEnded, h2.events.ConnectionTerminated)):
                    if said.get("grpc-status") != "0":
                        raise Refused(said.get("grpc-message", "no answer"))
                    return fields(answer[5:])


def run(
    path: str, image: str, cgroup: str, directory: Path, device: str, command: list[str]
) -> int:
    """Run a command in a container of a sandbox on the host's network, and return its exit code.

    :param cgroup: the parent of the containers' cgroups.
    :param directory: for the container's output.
    """
    namespaces = message((1, _NODE))
    sandbox = message(
        (1, message((1, "pod"), (2, "uid"), (3, "default"))),
        (3, str(directory)),
        (8, message((1, cgroup), (2, message((1, namespaces))))),
    )
    pod = call(path, "RunPodSandbox", message((1, sandbox)))[1]
    try:
        words = [(3, word) for word in command]
        container = message(
            (1, message((1, "container"))),
            (2, message((1, image))),
            *words,
            (11, "log"),
            (15, message((2, message((3, namespaces))))),
            (17, message((1, device))),
        )
        request = message((1, pod), (2, container), (3, sandbox))
        name = call(path, "CreateContainer", request)[1]
        call(path, "StartContainer", message((1, name)))
        while True:
            status = call(path, "ContainerStatus", message((1, name)))[1]
            facts = fields(status if isinstance(status, bytes) else b"")
            if facts.get(3) == _EXITED:
                break
            time.sleep(0.05)
        for line in (directory / "log").read_text().splitlines():
            print(line.split(" ", 3)[3])  # time, stream and tag come first
        return int(facts.get(7, 0))
    finally:
        call(path, "StopPodSandbox", message((1, pod)))
        call(path, "RemovePodSandbox", message((1, pod)))


if __name__ == "__main__":
    address, image_name, parent, logs, cdi_device, *words = sys.argv[1:]
    try:
        raise SystemExit(run(address, image_name, parent, Path(logs), cdi_device, words))
    except Refused as refused:
        raise SystemExit(f"cri: {refused}") from None
