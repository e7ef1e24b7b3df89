"""A plan foretells whether a container whose volumes meet the driver's files starts."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from containers import Bundle, environment, set_mode

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "cgroup-v1")

LIBS = "/usr/lib/x86_64-linux-gnu"


class Volume(NamedTuple):
    """A bind mount of a directory, or of a file, on ``path``."""

    path: str
    file: bool = False
    option: str = "rw"


VOLUMES = {
    "smi": Volume("/usr/bin/nvidia-smi", file=True),
    "bin": Volume("/usr/bin"),
    "bin-ro": Volume("/usr/bin", option="ro"),
    "firmware": Volume("/lib/firmware"),
    "libs": Volume(LIBS),
    "libcuda1": Volume(f"{LIBS}/libcuda.so.1", file=True),
    "libcuda": Volume(f"{LIBS}/libcuda.so", file=True),
    "etc": Volume("/etc"),
    "conf": Volume("/etc/ld.so.conf", file=True),
    "conf.d": Volume("/etc/ld.so.conf.d"),
    "cache": Volume("/etc/ld.so.cache", file=True),
    "run": Volume("/run"),
}

#: Mode -> the volumes with which a container does not start.
REFUSED = {
    "jit-cdi": ["bin-ro", "libcuda1", "libcuda", "etc", "conf.d", "cache"],
    "legacy": ["bin", "bin-ro", "libs", "etc", "cache"],
}


@pytest.mark.parametrize("mode", REFUSED)
def test_a_plan_refuses_what_does_not_start(bundle: Bundle, tmp_path: Path, mode: str) -> None:
    """With each volume a plan refuses if, and only if, the container does not start; both name the
    volume.
    """
    bundle.set_program("true")
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=all"))
    config = (bundle.path / "config.json").read_text()
    cli, prefix = bundle.installed.cli, bundle.installed.prefix
    runtime = f"{prefix}/bin/nvgraft-runtime --root /run/rt"
    lines = [set_mode(mode)]
    for name, volume in VOLUMES.items():
        source = tmp_path / name
        if volume.file:
            source.touch()
        else:
            source.mkdir()
        document = json.loads(config)
        if mode != "legacy":
            del document["hooks"]
        mount = {"destination": volume.path, "type": "bind", "source": str(source)}
        document["mounts"].append({**mount, "options": ["rbind", volume.option]})
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
        lines.append(f"""
rm -rf /run/b; cp -a {bundle.path} /run/b; cp {tmp_path}/{name}.json /run/b/config.json
echo "=== {name}"; {cli} plan --mode runtime --container /run/b 2>&1; echo "== $?"
{runtime} create --bundle /run/b {bundle.name} > /run/out 2>&1 < /dev/null; code=$?
cat /run/out; echo "== $code"; {runtime} delete --force {bundle.name}
""")
    done = bundle.on_host("\n".join(lines))
    answers = {}
    for part in done.stdout.split("=== ")[1:]:
        name, _, text = part.partition("\n")
        planned, code, started, started_code = re.split(r"== (\d+)\n", text)[:4]
        answers[name] = code, started_code
        if name in REFUSED[mode]:
            path = VOLUMES[name].path
            assert path in planned, planned
            assert path in started, started
    assert answers == {
        name: (code, code) for name in VOLUMES for code in "01"[name in REFUSED[mode]]
    }
