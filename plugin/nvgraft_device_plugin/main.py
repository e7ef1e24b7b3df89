"""The program ``nvgraft-device-plugin``."""

import asyncio
import faulthandler
import os
import sys
import traceback

# gRPC reads it when it is imported. Its lines are none of the log's, whose errors have its words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import structlog

from nvgraft import __version__
from nvgraft_device_plugin import explain, features, prepare
from nvgraft_device_plugin.configuration import FLAGS, LABEL_FLAGS, Flag
from nvgraft_device_plugin.manager import Manager, configure_log


def main(argv: list[str] | None = None) -> int:
    """Serve this node's GPUs to the kubelet; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if {"--help", "-h", "-help"} & set(words) and words[:1] != ["prepare"]:
        print(_usage())
        return 0
    if {"--version", "-version"} & set(words):
        print(f"nvgraft-device-plugin {__version__}")
        return 0
    if words[:1] == ["explain"]:
        answer, code = explain.text(words[1:], os.environ)
        print(answer)
        return code
    if words[:1] == ["prepare"]:
        return prepare.run(words[1:])
    if words[:1] == ["labels"]:
        return features.run(
            words[1:], os.environ, lambda line: print(f"labels: {line}", file=sys.stderr)
        )
    faulthandler.enable(2)  # a driver that crashes would end the process without a word
    configure_log(json_lines=os.environ.get("NVGRAFT_LOG_FORMAT") == "json")
    try:
        return asyncio.run(_run(words))
    except Exception as error:  # noqa: BLE001 - a person gets one line, with the place
        place = traceback.extract_tb(error.__traceback__)[-1]
        structlog.get_logger().critical(
            "a defect of nvgraft-device-plugin | report this line",
            error=repr(error),
            place=f"{os.path.basename(place.filename)}:{place.lineno}",
        )
        return 70


async def _run(words: list[str]) -> int:
    return await Manager(words, os.environ).run()


def _usage() -> str:
    lines = [
        "usage: nvgraft-device-plugin [explain | labels] [--FLAG=VALUE]...",
        "       nvgraft-device-plugin prepare [--user UID] DIRECTORY...",
        "",
        "Serves the GPUs of this node to the kubelet. explain: prints the chain from the driver to",
        "the kubelet, with the first link that is broken. labels: prints the node's labels, as GPU",
        "feature discovery does, or keeps them in a file. prepare: lets a user that is not root",
        "use the kubelet's directory.",
        "",
        "flags, and their variables:",
        *(line for flag in FLAGS for line in _described(flag)),
        "",
        "flags of labels:",
        *(line for flag in LABEL_FLAGS[len(FLAGS) :] for line in _described(flag)),
        "",
        "Environment: DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS (Xids, or all);",
        "NVGRAFT_LOG_FORMAT=json.",
        "",
        "exit code: 0 ended by a signal (explain: nothing is broken), 1 the node or the",
        "configuration cannot be used, 70 a defect of this program",
    ]
    return "\n".join(lines)


def _described(flag: Flag) -> list[str]:
    names = ", ".join(f"--{name}" for name in flag.names)
    return [f"  {names}  [${', $'.join(flag.variables)}]", f"        {flag.summary}"]


if __name__ == "__main__":
    raise SystemExit(main())
