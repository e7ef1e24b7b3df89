"""`nvgraft simulate --fail`: which failures there are, which a host can have, and where they stand
in the files of stand-in libraries.
"""

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.standins import build, failures
from nvgraft_cli.simulate.standins.failures import HostFailure, UnknownFailure
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Host, load_host


def host(name: str = "mig-h100", **changes: object) -> Host:
    """Return a host of the gallery."""
    return load_host(gallery.path(name)).model_copy(update=changes)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("nvml-init", HostFailure("nvml-init")),
        ("nvml-init=9", HostFailure("nvml-init", 9)),
        ("lost", HostFailure("lost")),
        ("lost@1", HostFailure("lost", None, 1)),
        ("xid=31@GPU-11111111-aaaa-bbbb-cccc-000000000001", HostFailure("xid", 31, 1)),
    ],
)
def test_a_failure_is_named_with_value_and_gpu(text: str, failure: HostFailure) -> None:
    """A failure has a name, some a value, and those of one GPU its index or UUID (default: 0)."""
    assert failures.parse(text, host()) == failure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvml", r"there is no failure 'nvml' \| name one of nvml-init, "),
        ("lost@", r"there is no failure 'lost@'"),
        ("xid=many@1", r"xid=many: not a number of at most six digits \| change it"),
        ("lost=1", r"lost takes no value \| write lost$"),
        ("xid", r"xid needs the number of an Xid \| write xid=79@0"),
        ("xid=0", r"xid needs the number of an Xid"),
        ("xid=99999", r"xid needs the number of an Xid"),
        ("no-uvm@1", r"no-uvm is a failure of the whole host \| leave out @1"),
        ("lost@2", r"the host has no GPU 2 \| name a GPU by its index \(0 to 1\) or its UUID"),
        ("fabric-manager-down", r"the host has no NVSwitches, .* \| choose a host with NVSwitches"),
    ],
)
def test_a_failure_that_cannot_be_has_cause_and_fix(text: str, message: str) -> None:
    """A failure that there is not, or that this host cannot have, is refused with a fix."""
    with pytest.raises(UnknownFailure, match=message):
        failures.parse(text, host())


def test_only_gpus_with_ecc_count_memory_errors() -> None:
    """A GPU without ECC cannot have the failure ecc."""
    found = host()
    gpu = found.nvml.gpus[0].model_copy(update={"profile": "rtx-5090"})
    nvml = found.nvml.model_copy(update={"gpus": [gpu]})
    with pytest.raises(UnknownFailure, match=r"GPU 0, NVIDIA H100 80GB HBM3, has no ECC \| choose"):
        failures.parse("ecc", found.model_copy(update={"nvml": nvml}))
    assert failures.parse("ecc", found) == HostFailure("ecc")


@pytest.mark.parametrize("text", ["missing-node", "missing-library", "no-uvm", "driver-mismatch"])
def test_what_is_not_there_cannot_be_lost(text: str) -> None:
    """A host without a file cannot lose it."""
    with pytest.raises(UnknownFailure, match=r"the host has no .* \| choose a host that has it"):
        failures.parse(text, host(files={}))


def test_help_lists_each_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """`nvgraft simulate --help` describes each failure that there is, and no other."""
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    listed = capsys.readouterr().out.partition("\nfailures:\n")[2]
    assert re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE) == list(failures.KINDS)


def test_an_unknown_failure_is_named_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong --fail, or a wrong one of the document, ends the command with its place and fix."""
    assert main(["simulate", "--fail", "x", "eks-t4", "--", "true"]) == 2
    assert "--fail: there is no failure 'x' | name one of " in capsys.readouterr().err
    document = json.loads(Path(gallery.path("eks-t4")).read_text()) | {"failures": ["lost@9"]}
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document))
    assert main(["simulate", str(path), "--", "true"]) == 2
    assert f"{path}: $.failures: the host has no GPU 9 | name a GPU" in capsys.readouterr().err


def test_a_real_machine_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """--fail without HOST changes nothing where no simulated host is."""
    assert main(["simulate", "--fail", "no-uvm"]) == 2
    assert (
        "this is not a simulated host | name a running one with --node" in capsys.readouterr().err
    )


def fields(record: bytes) -> tuple[int, ...]:
    """Return the six numbers of a record."""
    return struct.unpack_from("<6I", record, 16)


def test_failures_add_up() -> None:
    """A later failure leaves those before it; a GPU's are its own."""
    first = failures.record([HostFailure("nvml-init"), HostFailure("ecc", None, 1)], host())
    assert fields(first) == (999, 0, 0, 0, 0, 0)
    both = failures.record([HostFailure("slow-start"), HostFailure("xid", 79, 1)], host(), first)
    assert fields(both) == (999, 0, 0, 3000, 1, 0)
    assert struct.unpack_from("<2I2Q", both, 64 + 40) == (1, 79, 14, 2)
    assert struct.unpack_from("<2I2Q", both, 64) == (0, 0, 0, 0)
    slow = failures.record([HostFailure("slow-start", 999)], host())
    assert fields(slow) == (0, 0, 0, 20_000, 1, 0)
    mismatch = failures.record([HostFailure("driver-mismatch")], host())
    assert fields(mismatch) == (18, 803, 0, 0, 0, 0)
    fabric = failures.record([HostFailure("fabric-manager-down")], host())
    assert fields(fabric) == (0, 802, 0, 0, 0, 1)
    assert len(both) == len(first) == failures._SIZE


@pytest.mark.requires("gcc")
def test_the_layout_is_that_of_the_header(tmp_path: Path) -> None:
    """The record has the layout that a compiler gives to struct sim_failures."""
    source = tmp_path / "layout.c"
    source.write_text(
        '#include "driver.h"\n#include <stdio.h>\n'
        'static const struct sim_driver simulated = {"", "", 0, 0, 0, NULL, 0};\n'
        "static const struct sim_failures sim_failures = {\n"
        '"nvgraft-failures", .fabric_down = 5, .gpus = {[1] = {.xid = 7, .ecc_uncorrected = 9}}};\n'
        "int main(void) { fwrite((void *)&sim_failures, sizeof sim_failures, 1, stdout); }\n"
    )
    program = tmp_path / "layout"
    subprocess.run(["gcc", "-w", f"-I{build.SOURCES}", source, "-o", program], check=True)
    compiled = subprocess.run([program], capture_output=True, check=True).stdout
    assert len(compiled) == failures._SIZE
    assert failures.record([], host(), compiled) == compiled
    assert fields(compiled)[5] == 5
    assert struct.unpack_from("<2I2Q", compiled, 64 + 40) == (0, 7, 0, 9)
