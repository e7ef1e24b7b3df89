"""What ``nvgraft doctor`` foretells, held to what a program in the container then sees.

A program asks the simulated driver how many devices CUDA finds. Doctor and runc get the same
bundles, on the same simulated host.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from containers import Bundle, environment
from nvgraft_cli.simulate.stubs import executable

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "gcc", "x86_64")

#: Prints cuInit's error, or how many devices there are and of which kind the first one is.
COUNT = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : 0, count = 0;
  if (!init) { puts("no driver"); return 1; }
  int error = init(0);
  if (error) {
    const char *text = "";
    ((int (*)(int, const char **))dlsym(cuda, "cuGetErrorString"))(error, &text);
    fprintf(stderr, "CUDA error: %s\\n", text);
    printf("error %d\\n", error);
    return 1;
  }
  ((int (*)(int *))dlsym(cuda, "cuDeviceGetCount"))(&count);
  char name[128] = "";
  ((int (*)(char *, int, int))dlsym(cuda, "cuDeviceGetName"))(name, sizeof name, 0);
  printf("%d %s\\n", count, strstr(name, " MIG") ? "MIG" : "GPU");
}
"""


@pytest.fixture
def counting(bundle: Bundle) -> Bundle:
    """Return a bundle whose program prints what CUDA finds."""
    path = str(bundle.path / "rootfs/bin/count")
    command = ["gcc", "-x", "c", "-", "-o", path, "-ldl"]
    subprocess.run(command, input=COUNT, text=True, check=True)
    return bundle


def seen_and_foretold(
    bundle: Bundle, cases: list[list[str]], host: str, options: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    """Return for each list of variables what the program printed, and doctor's last line."""
    config = json.loads((bundle.path / "config.json").read_text())
    config["process"]["args"] = ["/bin/count"]
    config["root"]["path"] = str(bundle.path / "rootfs")
    commands = []
    for number, variables in enumerate(cases):
        place = Path(f"{bundle.path}-{number}")
        place.mkdir()
        config["process"]["env"] = ["PATH=/usr/bin:/bin", *variables]
        config["linux"]["cgroupsPath"] = f"/{bundle.name}-{number}"
        (place / "config.json").write_text(json.dumps(config))
        start = f"runc --root /run/runc-test run --bundle {place} {bundle.name}-{number} 2>&1"
        commands.append(f"{start} | grep -v '^CUDA error: '")
        commands.append(f"{bundle.installed.cli} doctor --bundle {place} | tail -1")
    done = bundle.on_host("; ".join(commands), host, options)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(cases), done
    return list(zip(lines[::2], lines[1::2], strict=True))


def agree(seen: str, foretold: str) -> bool:
    """Tell whether doctor's sentence says what the program saw."""
    if seen.startswith("error"):
        return f"CUDA fails with {seen} (" in foretold
    if seen == "no driver":
        return "CUDA finds no driver" in foretold
    count, kind = seen.split()
    if kind == "MIG":
        return count == "1" and "CUDA finds one MIG device" in foretold
    return re.search(rf"CUDA finds {count} (?:of \d )?GPUs?", foretold) is not None


def test_cuda_visible_devices(counting: Bundle) -> None:
    """Whatever CUDA_VISIBLE_DEVICES is, doctor counts the GPUs that the program finds."""
    values = ["0", "1,0", "", "-1", "2", "0,0", "0,2", "GPU-1704f16f", "GPU-ffff", "MIG-1", "1gpu"]
    cases = [[f"CUDA_VISIBLE_DEVICES={value}"] for value in values]
    cases = [[*case, "NVIDIA_VISIBLE_DEVICES=all"] for case in cases]
    cases.append(["NVIDIA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1"])
    answers = seen_and_foretold(counting, cases, "runfile-a10x2")
    assert [answer for answer in answers if not agree(*answer)] == []
    seen = [seen for seen, _ in answers]
    assert seen == [
        *("1 GPU", "2 GPU", *["error 100"] * 4, "1 GPU", "1 GPU", "error 100", "error 100"),
        *("1 GPU", "error 100"),
    ]


def test_gpus_in_mig_mode(counting: Bundle) -> None:
    """A GPU in MIG mode given whole is none to CUDA, and of several MIG devices there is one."""
    cases = [[f"NVIDIA_VISIBLE_DEVICES={devices}"] for devices in ("0", "0,1", "0:1", "all")]
    answers = seen_and_foretold(counting, cases, "mig-h100")
    assert [answer for answer in answers if not agree(*answer)] == []
    assert [seen for seen, _ in answers] == ["error 100", "1 GPU", "1 MIG", "1 MIG"]


def test_a_host_without_a_driver_that_answers(counting: Bundle) -> None:
    """Without stand-ins the container starts, and doctor says that there is no driver in it."""
    ((seen, foretold),) = seen_and_foretold(
        counting, [["NVIDIA_VISIBLE_DEVICES=all"]], "runfile-a10x2", ("--no-nvml",)
    )
    assert seen == "no driver"
    assert agree(seen, foretold)


def test_an_image_of_another_architecture(counting: Bundle) -> None:
    """The kernel refuses the program with the words that doctor has foretold."""
    program = counting.path / "rootfs/bin/count"
    program.write_bytes(executable("EM_AARCH64", "x"))
    ((seen, foretold),) = seen_and_foretold(
        counting, [["NVIDIA_VISIBLE_DEVICES=all"]], "runfile-a10x2"
    )
    assert "exec format error" in seen
    assert "does not start: /bin/count: exec format error (a program for aarch64" in foretold


#: What is done to the edits that all devices of a specification share.
LACKING = {
    "hooks": "del e['hooks']",  # first: what hooks make stays in the root file system
    "libcuda": "e['mounts'] = [m for m in e['mounts'] if 'libcuda.so' not in m['hostPath']]",
    "nothing": "pass",
    "uvm": "e['deviceNodes'] = [n for n in e['deviceNodes'] if n['path'] != '/dev/nvidia-uvm']",
}


def test_containers_of_cdi_specifications(counting: Bundle) -> None:
    """What a container finds whose specification is whole, or lacks a library, the hooks or a node,
    doctor says before its start from the specification, and after it from the rewritten config.json
    alone.
    """
    file, cli = "/etc/cdi/nvidia.json", counting.installed.cli
    program = f"--nvidia-cdi-hook-path {counting.installed.prefix}/bin/nvgraft-cdi-hook"
    mode = "sed -i 's/^mode.*/mode = \"cdi\"/' /etc/nvidia-container-runtime/config.toml"
    config = json.loads((counting.path / "config.json").read_text())
    config.pop("hooks")
    config["process"] |= {"args": ["/bin/count"]}
    config["process"]["env"] = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"]
    config["root"]["path"] = str(counting.path / "rootfs")
    runtime = f"{counting.installed.prefix}/bin/nvgraft-runtime --root /run/runc-test"
    ended = f"""until {runtime} state $2 | grep -q '"status": "stopped"'; do sleep 0.05; done"""
    create = f"{runtime} create --bundle $1 $2 > /run/out 2>&1 < /dev/null"
    started = f"{create} && {runtime} start $2 && {ended}; {runtime} delete $2; cat /run/out"
    commands = [f"started() {{ {started}; }}", mode, "mkdir -p /etc/cdi"]
    for number, change in enumerate(LACKING.values()):
        place = Path(f"{counting.path}-{number}")
        place.mkdir()
        config["linux"]["cgroupsPath"] = f"/{counting.name}-{number}"
        (place / "config.json").write_text(json.dumps(config))
        edit = f"import json; d = json.load(open('{file}')); e = d['containerEdits']; {change}"
        write = f"json.dump(d, open('{file}', 'w'))"
        doctor = f"{cli} doctor --bundle {place}"
        commands += [
            f"{cli} cdi generate {program} --format json -o {file} 2> /dev/null",
            f'{sys.executable} -c "{edit}; {write}"',
            f"{doctor} --mode cdi | tail -1",
            f"started {place} {counting.name}-{number} | grep -v '^CUDA error: '",
            f"{doctor} | tail -1",
        ]
    done = counting.on_host("; ".join(commands), "runfile-a10x2")
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(LACKING), done
    assert lines[1::3] == ["no driver", "no driver", "1 GPU", "error 999"]
    for seen, before, after in zip(lines[1::3], lines[::3], lines[2::3], strict=True):
        assert before.replace(file, "config.json") == after
        assert "CUDA does not load" in after if seen == "no driver" else agree(seen, after)


#: Failure on purpose -> the host, doctor's finding, and the devices of a container that sees it.
SHOWN = {
    "nvml-init": ("runfile-a10x2", "driver-not-loaded", "all"),
    "driver-mismatch": ("runfile-a10x2", "driver-library-mismatch", "all"),
    "lost@1": ("runfile-a10x2", "driver-not-loaded", "all"),
    "xid=48@1": ("runfile-a10x2", "gpu-errors", "all"),
    "missing-node@1": ("runfile-a10x2", "driver-not-loaded", "1"),
    "missing-library": ("runfile-a10x2", "host-layout", "all"),
    "no-uvm": ("runfile-a10x2", "driver-not-loaded", "all"),
    "fabric-manager-down": ("b200-580", "fabric-manager", "all"),
}


@pytest.mark.parametrize("failure", SHOWN)
def test_the_words_that_users_see(failure: str, counting: Bundle) -> None:
    """What doctor shows as the words that users see is what nvidia-smi, the start of a container,
    its program or the kernel's log really say.
    """
    host, identifier, devices = SHOWN[failure]
    counting.set_program("/bin/count")
    counting.edit(environment(f"NVIDIA_VISIBLE_DEVICES={devices}"))
    start = f"runc --root /run/runc-test run --bundle {counting.path} {counting.name}"
    seen = f"(nvidia-smi; {start}; cat /dev/kmsg) 2>&1"
    doctor = f"{counting.installed.cli} doctor --format json > /run/doctor"
    command = f"{doctor}; {seen}; echo ==; cat /run/doctor"
    done = counting.on_host(command, host, ("--fail", failure))
    said, _, document = done.stdout.partition("\n==\n")
    (result,) = (one for one in json.loads(document)["results"] if one["id"] == identifier)
    phrases = [finding["phrase"] for finding in result["findings"]]
    assert phrases
    assert [phrase for phrase in phrases if phrase.lower() not in said.lower()] == [], said


#: What keeps a container from its start: how config.json and the simulated host are changed.
STOPPED = {
    "no utility": (["nvidia-smi"], ["NVIDIA_DRIVER_CAPABILITIES=compute"], [], ":"),
    "no nvidia-smi": (["nvidia-smi"], [], [], "rm /usr/bin/nvidia-smi"),
    "no program": (["/bin/absent"], [], [], ":"),
    "read-only cache": (["/bin/count"], [], ["ro"], ":"),
    "cache": (["/bin/count"], [], ["rw"], ":"),
}


@pytest.mark.parametrize("case", STOPPED)
def test_what_keeps_a_container_from_its_start(case: str, counting: Bundle) -> None:
    """Doctor foretells that the container does not start, in words that the runtime then says."""
    args, variables, volumes, change = STOPPED[case]
    cache = counting.path / "cache"
    cache.write_bytes(b"")
    config = json.loads((counting.path / "config.json").read_text())
    config["process"]["args"] = args
    config["process"]["env"] = ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all", *variables]
    config["linux"]["cgroupsPath"] = f"/{counting.name}"
    config["mounts"] += [
        {
            "destination": "/etc/ld.so.cache",
            "type": "bind",
            "source": str(cache),
            "options": ["bind", mode],
        }
        for mode in volumes
    ]
    (counting.path / "config.json").write_text(json.dumps(config))
    start = f"runc --root /run/runc-test run --bundle {counting.path} {counting.name} 2>&1"
    doctor = f"{counting.installed.cli} doctor --bundle {counting.path} --format json"
    done = counting.on_host(f"{change}; {doctor}; {start}", "runfile-a10x2")
    document, _, said = done.stdout.partition("\n}\n")
    results = json.loads(f"{document}\n}}")
    assert results["verdict"].startswith("This container does not start: ")
    phrases = {
        finding["phrase"]
        for result in results["results"]
        for finding in result["findings"]
        if finding["level"] == "error"
    }
    said = said.replace('\\"', '"')
    assert [phrase for phrase in phrases if phrase in said] != [], (phrases, said)


def test_a_closed_uvm_node(counting: Bundle) -> None:
    """A user who may not open /dev/nvidia-uvm gets CUDA's error 999, and nvidia-smi works."""
    config = json.loads((counting.path / "config.json").read_text())
    config["process"]["args"] = ["/bin/count"]
    config["process"]["user"] = {"uid": 65534, "gid": 65534}
    config["process"]["env"] = ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all"]
    config["linux"]["cgroupsPath"] = f"/{counting.name}"
    (counting.path / "config.json").write_text(json.dumps(config))
    start = f"runc --root /run/runc-test run --bundle {counting.path} {counting.name} 2> /dev/null"
    doctor = f"{counting.installed.cli} doctor --bundle {counting.path} | tail -1"
    smi = f"sed -i 's,/bin/count,/usr/bin/nvidia-smi,' {counting.path}/config.json; {start}"
    command = f"chmod 0600 /dev/nvidia-uvm; {start}; {doctor}; {smi}"
    seen, foretold, *table = counting.on_host(command, "runfile-a10x2").stdout.splitlines()
    assert seen == "error 999"
    assert agree(seen, foretold)
    assert "NVIDIA A10" in "\n".join(table)
