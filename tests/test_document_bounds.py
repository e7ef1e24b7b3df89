"""Documents of strangers have bounds: no command takes more than 10 s or 200 MB for one."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft.base import tomltext
from nvgraft_cli.register import change
from nvgraft_cli.register.change import CannotRegister
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from nvgraft_specs.documents import DEPTH_LIMIT, SIZE_LIMIT, VALUE_LIMIT, DocumentError, load_json

Captured = pytest.CaptureFixture[str]

#: Address space of a command: its code, libraries and reserves take 150 MB; processor seconds.
_SPACE, _SECONDS = 350 << 20, 10


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))


def run(*words: str) -> tuple[int, str]:
    """Run the command line within the limits; return the exit code and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "nvgraft_cli.shell.main", *words],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=_limit,
    )
    assert done.returncode in (0, 1, 2), done.stderr[-500:]
    assert "out of memory" not in done.stderr
    assert "processor time" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_bundle(tmp_path_factory.mktemp("bounds") / "b", *EVERYTHING))


def host(**changes: Any) -> str:
    return json.dumps(json.loads(Path(gallery.path("eks-t4")).read_text()) | changes)


def mounts(count: int, other: int = 0) -> str:
    return "".join(
        f"36 35 98:0 /usr/lib/libcuda.so.{number + other} /usr/lib/libcuda.so.{number} ro"
        " master:1 - ext3 /dev/root rw\n"
        for number in range(count)
    )


def cdi(devices: str) -> str:
    return f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: {devices}\n"


def log(lines: str) -> str:
    return f"I0102 15:04:05.000000 1 nvc.c:1] mounting /usr/bin/x at /r/usr/bin/x\n{lines}"


_MANY = SIZE_LIMIT // 4

#: Ten times what is accepted (or the largest size, if that is not reached), and a document that is
#: only just accepted or refused late.
DOCUMENTS: dict[str, Callable[[], str]] = {
    "size": lambda: host(x="x" * (SIZE_LIMIT * 5)),
    "long string": lambda: host(x="é" * (SIZE_LIMIT // 2 - 100_000)),
    "objects": lambda: host()[:-1] + ',"x":[' + "{}," * (10 * VALUE_LIMIT) + "1]}",
    "files": lambda: host(files={f"/{number}": 1 for number in range(VALUE_LIMIT - 2000)}),
    "no member": lambda: '{"x":[' + "{}," * (VALUE_LIMIT // 2 - 10) + "1]}",
    "links": lambda: host(
        x={f"/usr/lib/x86_64-linux-gnu/{number}": "x" for number in range(VALUE_LIMIT - 2000)}
    ),
    "depth": lambda: '{"x":' + "[" * 39_000 + "]" * 39_000 + "}",
    "quotes": lambda: '{"x":' + '""' * _MANY + "}",
    "escapes": lambda: '{"x":"' + '\\"' * _MANY,
    "yaml values": lambda: cdi("[" + "a," * (10 * VALUE_LIMIT) + "a]"),
    "yaml errors": lambda: cdi("[" + "a," * (VALUE_LIMIT - 100) + "a]"),
    "yaml depth": lambda: cdi("[ " * _MANY),
    "yaml number": lambda: cdi("1" + ":59" * _MANY),
    "lines": lambda: log("\n" * (SIZE_LIMIT - 200)),
    "mountinfo": lambda: mounts(80_000),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_read_or_refused_within_bounds(
    name: str, bundle: str, tmp_path: Path
) -> None:
    """Hosts, plans, specifications, mountinfos and logs of hostile sizes and shapes cost a bounded
    time and memory, as a host and as a side of a difference.
    """
    path = tmp_path / "document"
    path.write_text(DOCUMENTS[name]())
    if name in {"long string", "files", "links"}:
        run("plan", "--bundle", bundle, "--host", str(path))
    run("diff", str(path), "eks-t4", "--bundle", bundle, "--format", "json")
    if name.startswith("yaml"):
        assert run("cdi", "validate", str(path))[0] == 1


def test_differences_without_an_equal_line_stay_within_bounds(tmp_path: Path) -> None:
    """Two mountinfos that are just accepted and differ in every line cost a bounded memory."""
    for name, other in (("a", 0), ("b", 1)):
        (tmp_path / name).write_text(mounts(29_000, other))
    code, _ = run("diff", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "json")
    assert code == 1


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{" + " " * SIZE_LIMIT, "larger than 8 MiB"),
        ('{"x":[' + "1," * 80_000 + "1]}", "it has 80,002 values, more than 80,000"),
        ('{"x":' + "[" * 64 + "]" * 64 + "}", "nested too deeply: more than 64 levels"),
    ],
    ids=["size", "values", "depth"],
)
def test_a_bound_is_named(
    text: str, cause: str, bundle: str, tmp_path: Path, capsys: Captured
) -> None:
    """A refusal names the bound, and the number that was found."""
    path = tmp_path / "document.json"
    path.write_text(text)
    assert main(["plan", "--bundle", bundle, "--host", str(path)]) == 2
    assert cause in capsys.readouterr().err


def test_brackets_in_strings_are_not_depth() -> None:
    """Brackets count only outside of strings, also behind an escaped quote."""
    text = json.dumps({"a": '\\"' + "[" * 200, "b": ["]" * 200]}).encode()
    assert load_json(text, "x") == json.loads(text)
    deep = "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT
    assert load_json(deep.encode(), "x") == json.loads(deep)
    with pytest.raises(DocumentError, match="nested too deeply"):
        load_json(f"[{deep}]".encode(), "x")


#: TOML that the parser takes long or much memory for, or that comes close.
TOML: dict[str, tuple[str, str]] = {
    "a dotted key": (".".join("a" * 50_000) + " = 1\n", "a key has more than 32 parts (at line 1"),
    "a header": ("x = 1\n [" + " . ".join("a" * 33) + "]\n", "(at line 2, column 3)"),
    "quoted parts": ('"a\\"" . \'b\' .' * 17 + "c = 1\n", "a key has more than 32 parts"),
    "in an inline table": ("x = {" + ".".join("a" * 50) + " = 1}\n", "(at line 1, column 6)"),
    "items": ("x = [" + "1," * 100_000 + "]\n", "it has 100002 values and parts of keys"),
    "tables": ("[a.b]\n" * 60_000, "it has 120000 values and parts of keys"),
    "size": ("#" * (1 << 20) + "\n", "it has 1048577 characters, more than 1048576"),
    "depth": ("x = " + "[" * 9000, "nested too deeply"),
}


@pytest.mark.parametrize("name", TOML)
def test_bounds_of_toml(name: str) -> None:
    """A document that would cost the parser much is refused before it is parsed."""
    text, cause = TOML[name]
    with pytest.raises(ValueError, match=re.escape(cause)):
        tomltext.loads(text)


def test_long_texts_in_toml_are_accepted() -> None:
    """Dots in comments, rulers and values are not parts of a key, and a key of 32 parts is read."""
    parts = ".".join(f"k{number}" for number in range(32))
    text = f"# {'.' * 500}\n# {'a. b, ' * 200}\nx = '{'. . ' * 100}'\n{parts} = 1\n"
    assert "k0" in tomltext.loads(text)


@pytest.mark.parametrize("unit", ['"', '\\"', "'", '"a".', "'a'.", "a. "])
def test_looking_for_long_keys_takes_linear_time(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of quotes, escapes and words of a megabyte are looked through once, not for each
    character.
    """
    monkeypatch.setattr(tomltext, "MAX_VALUES", 10**9)
    text = f"{'.' * 40}\n{unit * (1_000_000 // len(unit))}"
    began = time.process_time()
    with suppress(ValueError):
        tomltext._check_bounds(text)
    assert time.process_time() - began < 10


def test_a_configuration_of_an_engine_is_bounded(tmp_path: Path) -> None:
    """register reads at most a megabyte, and names the bound."""
    path = tmp_path / "daemon.json"
    path.write_bytes(b"{" + b" " * change.LIMIT)
    with pytest.raises(CannotRegister, match="too large: it has more than 1048576 bytes"):
        change.read(str(path))
