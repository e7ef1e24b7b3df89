"""``nvgraft explain-error``: pasted errors are recognised in any wrapping; others are not."""

import ast
import io
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from itertools import combinations, islice, product
from pathlib import Path
from textwrap import fill, indent
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

import nvgraft
from nvgraft.base.errors import Refusal
from nvgraft_cli.explain_error import known as known_errors
from nvgraft_cli.explain_error.analysis import MOST, STAGES, analyse
from nvgraft_cli.explain_error.known import known, words_in
from nvgraft_cli.explain_error.paste import LIMIT, blocks, decode, plain
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.main import main
from nvgraft_specs import errors
from nvgraft_specs.checks import FAILURES
from sources import nodes

Captured = pytest.CaptureFixture[str]

FIXTURES = Path(__file__).parent / "fixtures"
DATA: dict[str, dict[str, Any]] = {
    name: tomllib.loads((files(errors) / f"{name}.toml").read_text("utf-8"))
    for name in errors.FILES
}
ROWS: list[dict[str, Any]] = [row for data in DATA.values() for row in data.get("error", ())]

#: The row that explains a paste, the thread that it is from (or "-"), and the paste.
PASTES = [
    (row, text)
    for line in (FIXTURES / "pasted-errors.tsv").read_text("utf-8").splitlines()
    for row, _, text in [line.split("\t")]
]
MISMATCH = "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"


@pytest.fixture(scope="module", autouse=True)
def _many_pastes() -> None:
    """Make the expression that finds the words of thousands of pastes sooner, as a long one does."""
    known_errors._any_word()


def ids(text: str) -> list[str]:
    """Return the rows that explain ``text``."""
    return [meaning.id for meaning in analyse(text).meanings]


def spread(pastes: list[tuple[str, str]], number: int) -> list[tuple[str, str]]:
    """Return at least so many of ``pastes``, from all parts of them."""
    assert len(pastes) > number
    return pastes[:: len(pastes) // number]


@pytest.mark.parametrize("row", sorted({row for row, _ in PASTES}))
def test_a_pasted_error_is_recognised(row: str) -> None:
    """A pasted error has exactly one meaning, with at most three causes, a next step and no
    unfilled group.
    """
    meanings = {text: analyse(text).meanings for known_by, text in PASTES if known_by == row}
    told = {text: [meaning.id for meaning in found] for text, found in meanings.items()}
    assert {text: found for text, found in told.items() if found != [row]} == {}
    for (meaning,) in meanings.values():
        assert meaning.cause
        assert len(meaning.otherwise) <= 2
        assert meaning.next
        text = " ".join((meaning.cause, *meaning.otherwise, *meaning.next))
        assert not re.search(r"\{\d(:\w+)?\}|`", text)


def test_an_error_of_something_else_is_not_explained() -> None:
    """An error that has nothing to do with a GPU gets no diagnosis, also with the same numbers."""
    others = (FIXTURES / "other-errors.txt").read_text("utf-8").splitlines()
    assert len(others) > 800
    assert {text: found for text in others if (found := ids(text))} == {}


def test_every_row_is_used() -> None:
    """Each row of the data explains one of the pastes; none is hidden by another row."""
    assert {row["id"] for row in ROWS} - {row for row, _ in PASTES} == set()


def test_rows_are_well_formed() -> None:
    """Rows have known keys and values, their groups exist, and commands of nvgraft exist."""
    required = {"id", "stage", "says", "cause", "next"}
    keys = required | {"failure", "fixed_by", "pattern", "cuda", "nvml", "symptom", "otherwise"}
    keys |= {"hides", "hints", "on", "passing", "unless", "last", "rarer"}
    shared = DATA["host"]["steps"]
    names = {row["id"] for row in ROWS}
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert required <= set(row) <= keys
        assert row["stage"] in STAGES
        assert row.get("passing", "note") in ("note", "warning")
        assert set(row.get("hides", ())) <= names - {row["id"]}
        assert row.get("failure", "rootless") in {failure.id for failure in FAILURES}
        assert row.get("fixed_by", "node") in errors.FIXED_BY
        assert all(
            phrase == phrase.lower().strip() or phrase.endswith(" ") for phrase in row["says"]
        )
        steps = [shared[step[1:]] if step.startswith("=") else step for step in row["next"]]
        others = [
            other if isinstance(other, str) else other["text"] for other in row.get("otherwise", ())
        ]
        assert not [other for other in others if other.startswith("=") and other != "=surroundings"]
        told = [other for other in row.get("otherwise", ()) if not isinstance(other, str)]
        on = {other["on"] for other in told if "on" in other}
        assert all(other.keys() in ({"on", "text"}, {"says", "text"}) for other in told)
        on |= {row.get("on", "slurm"), *row.get("unless", ())}
        assert on <= set(DATA["tables"]["contexts"])
        last = row in DATA["parts"]["error"]
        assert row.get("last", False) == last
        assert not (last and "failure" in row), "which failure it is, its words do not tell"
        rarer = row.get("rarer", ())
        assert len(rarer) <= 4 and all(len(each) <= 140 and ";" not in each for each in rarer)
        texts = (row["cause"], *others, *rarer, *steps)
        groups = re.compile(row["pattern"]).groups if "pattern" in row else 0
        used = [each for text in texts for each in re.findall(r"\{(\d)(?::(\w+))?\}", text)]
        assert max((int(group) for group, _ in used), default=0) <= groups
        assert {table for _, table in used} - {""} <= set(DATA["tables"]["tables"])
        commands = re.findall(r"`nvgraft ([\w-]+)", " ".join(texts))
        assert set(commands) <= {name for group in GROUPS.values() for name in group}
        assert all(text.count("`") % 2 == 0 for text in texts)


def test_no_two_rows_say_the_same() -> None:
    """No two rows have nearly the same causes, and no phrase alone decides for two rows."""
    said = [
        (row["id"], set(re.findall(r"\w+", f"{row['cause']} {row.get('otherwise', '')}")))
        for row in ROWS
    ]
    alike = [
        (one, other)
        for (one, words), (other, others) in combinations(said, 2)
        if len(words & others) > 0.8 * len(words | others)
    ]
    assert alike == []
    alone = [phrase for row in ROWS if "pattern" not in row for phrase in row["says"]]
    assert [phrase for phrase, times in Counter(alone).items() if times > 1] == []


#: What programs call the parts of the stack, and in which words they say that one failed.
PARTS = [
    "the CUDA driver",
    "libcuda.so.1",
    "NVML",
    "the NVIDIA driver",
    "/dev/nvidia-uvm",
    "nvidia-smi",
    "MIG device",
    "NVENC",
    "Vulkan",
    "EGL",
    "OpenCL",
    "OptiX",
    "NCCL",
    "cuBLAS",
    "nvidia-container-cli",
    "the runtime nvidia",
    "DCGM",
    "NVIDIA device plugin",
    "nvidia-persistenced",
    "NVLink",
]
FAILED = [
    "failed to initialize {}",
    "{} initialization failed",
    "could not load {}",
    "{} not found",
    "cannot open {}",
    "{} could not be initialized",
    "{} is not installed",
    "unable to find {}",
    "{} is unavailable",
    "{} returned an error",
    "failed to start {}",
    "error while creating {}",
]


def test_a_part_that_failed_is_explained_in_whatever_words() -> None:
    """Where no row knows the words, the part that failed tells the candidates."""
    said = [words.format(part) for part in PARTS for words in FAILED]
    assert [text for text in said if not ids(text)] == []


def test_what_knows_a_part_alone_is_told_last() -> None:
    """Any row that knows the words says more than one that knows a part; of two such the innermost
    is told.
    """
    part = "failed to create NVIDIA device plugin"
    assert ids(part) == ["cluster-words"]
    assert ids(f"{part}: {MISMATCH}") == ids(MISMATCH)
    assert ids(f"{MISMATCH}\n{part}") == ids(MISMATCH)
    assert ids(f"{part}: NVLink is not supported") == ["fabric-words"]
    assert ids(f"make: *** {part}\nexited") == []


WRAPPINGS = {
    "docker and runc": (
        "docker: Error response from daemon: failed to create task for container: "
        "failed to create shim task: OCI runtime create failed: runc create failed: "
        "unable to start container process: error during container init: "
        "error running prestart hook #0: exit status 1, stdout: , "
        "stderr: Auto-detected mode as 'legacy'\n{}: unknown."
    ),
    "old docker": (
        "docker: Error response from daemon: OCI runtime create failed: container_linux.go:345: "
        'starting container process caused "process_linux.go:430: container init caused '
        '\\"process_linux.go:413: running prestart hook 0 caused '
        '\\\\\\"error running hook: exit status 1, stdout: , stderr: {}\\\\n\\\\\\"\\"": unknown.'
    ),
    "crun with stderr": (
        "Error: OCI runtime error: crun: error executing hook "
        "`/usr/bin/nvidia-container-runtime-hook` (exit code: 1)\n{}"
    ),
    "enroot": "{}\n[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
    "pyxis": "slurmstepd: error: pyxis:     {}\nslurmstepd: error: pyxis: couldn't start container",
    "kubelet": (
        "  Warning  Failed  3s (x2 over 5s)  kubelet  Error: failed to create containerd task: "
        "failed to create shim task: OCI runtime create failed: runc create failed: {}: unknown"
    ),
    "a log of docker": '{"log":"stderr: {}\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}',
    "a log of an engine": (
        '{"level":"error","msg":"\\u001b[31mstderr: {}\\u001b[0m\\n","error":"exit status 1"}'
    ),
    "a terminal": "\x1b[31m{}\x1b[0m",
    "a copied terminal": "[0;31mERROR[0m {}",
    "compose": "ERROR: for web  Cannot start service web: {}",
    "a frame": "╭─ Error ─────╮\n│ {} │\n╰─────╯",
    "a web page": "<pre>{}</pre>",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS)
@pytest.mark.parametrize(
    "paste", [MISMATCH, "nvidia-container-cli: device error: 2: unknown device", PASTES[24][1]]
)
def test_a_wrapped_error_is_recognised(wrapping: str, paste: str) -> None:
    """A wrapped error has the meanings and the stage of the bare error.

    Causes that only the wrapping's engine has may be told before them, and in place of the last.
    """
    bare, wrapped = analyse(paste), analyse(wrapping.replace("{}", paste))
    (one,), (other,) = bare.meanings, wrapped.meanings
    assert (other.id, other.cause, other.next) == (one.id, one.cause, one.next)
    kept = [cause for cause in other.otherwise if cause in one.otherwise]
    assert kept == list(one.otherwise[: len(kept)])
    assert len(kept) == len(one.otherwise) or len(other.otherwise) == 2
    assert wrapped.stage == bare.stage != ""


LINE_ENDS: dict[str, Callable[[str], str]] = {
    "cut": lambda text: "\n".join(text[at : at + 80] for at in range(0, len(text), 80)),
    "between words": lambda text: fill(text, 80),
    "indented": lambda text: fill(text, 72, subsequent_indent="    "),
    "quoted": lambda text: indent(fill(text, 78), "> "),
    "Windows": lambda text: f"C:\\>docker run\r\n{text}\r\n",
    "journald": lambda text: (
        "Jan 01 10:00:00 node7 dockerd[812]: level=error"
        f' msg="Handler for POST /start returned error: {json.dumps(text)[1:-1]}"'
    ),
    "kubelet in docker's JSON": lambda text: json.dumps(
        {
            "log": f'E0101 10:00:00.1 12 pod.go:98] "Error" err="failed: {json.dumps(text)}" pod="a"',
            "stream": "stderr",
        }
    ),
    "containerd's files": lambda text: f"2026-01-01T10:00:00.123456789Z stderr F {text}",
    "a part and the rest in containerd's files": lambda text: (
        f"2026-01-01T10:00:00.1Z stderr P {text[:31]}\n2026-01-01T10:00:00.2Z stderr F {text[31:]}"
    ),
    "journalctl's JSON of a colored message": lambda text: json.dumps(
        {"PRIORITY": "3", "MESSAGE": list(f"\x1b[31m{text}\x1b[0m".encode()), "_PID": "7"}
    ),
    "the source of a web page": lambda text: (
        "<pre>" + re.sub(r"[\"'/=:<>]", lambda match: f"&#x{ord(match[0]):X};", text) + "</pre>"
    ),
}


@pytest.mark.parametrize("lines", LINE_ENDS.values(), ids=LINE_ENDS)
def test_the_lines_of_a_terminal_or_a_log_do_not_matter(
    lines: Callable[[str], str], fuzz_examples: int
) -> None:
    """An error is recognised where its lines were wrapped, and where a log quotes it.

    Three of the sample may be missed; of all it is less than one in fifty.
    """
    sample = spread(PASTES, 4 * fuzz_examples)
    missed = [row for row, text in sample if ids(lines(text)) != [row]]
    assert len(missed) <= 3


def curled(text: str) -> str:
    """Return ``text`` as a word processor or a blog shows it."""
    text = re.sub(r'"([^"]*)"', "\u201c\\1\u201d", text)
    text = re.sub(r"'([^']*)'", "\u2018\\1\u2019", text)
    text = text.replace("--", "\u2013").replace("...", "\u2026").replace("'", "\u2019")
    return text.replace(" ", "\u00a0")


MARKS: dict[str, Callable[[str], str]] = {
    "no quotation marks": lambda text: re.sub("[\"'`]", "", text),
    "no brackets": lambda text: re.sub(r"[\[\]]", "", text),
    "no underscores": lambda text: text.replace("_", ""),
    "italics in place of underscores": lambda text: re.sub(r"_([^_\s]+)_", r"\1", text),
    "other quotation marks": lambda text: text.replace('"', "`"),
    "curled": curled,
    "curled in JSON": lambda text: json.dumps(curled(text)),
    "German": lambda text: re.sub(r'"([^"]*)"', "\u201e\\1\u201c", text),
    "of a PDF": lambda text: (
        text.replace("fi", "\ufb01").replace("-", "\u2010").replace("/", "/\u200b")
    ),
    "escaped for Markdown": lambda text: re.sub(r"([_*\[\]`<>#|])", r"\\\1", text),
    "percent": quote,
    "a search": lambda text: f"https://example.com/search?hl=en&q={quote_plus(text)}",
}


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_the_marks_that_get_lost_do_not_matter(
    marks: Callable[[str], str], fuzz_examples: int
) -> None:
    """An error is recognised where a chat, a page or an address has changed its quotation marks,
    brackets, underscores, dashes and spaces, or has lost them. One in thirty may be missed.
    """
    changed = [(row, marks(text)) for row, text in PASTES if marks(text) != text]
    sample = spread(changed, 5 * fuzz_examples)
    missed = [row for row, text in sample if ids(text) != [row]]
    assert len(missed) <= 2 + len(sample) // 30


@pytest.mark.parametrize("marks", ["no quotation marks", "no underscores"])
def test_what_an_error_of_something_else_is_without_its_marks(marks: str) -> None:
    """An error of something else is not explained where its marks are lost."""
    others = (FIXTURES / "other-errors.txt").read_text("utf-8").splitlines()
    bare = MARKS[marks]
    assert {text: found for text in others[::2] if (found := ids(bare(text)))} == {}


@pytest.mark.parametrize("name", (FIXTURES / "names-of-parts.txt").read_text().split())
def test_the_name_of_a_part_in_an_error_of_something_else(name: str) -> None:
    """An error of git, tar, make, Kubernetes and others is not explained as one of a GPU because a
    file, host, volume or target in it has the name of a part of the stack.
    """
    frames = (FIXTURES / "other-frames.txt").read_text("utf-8").splitlines()
    texts = [frame.replace("{N}", name).replace("\\n", "\n") for frame in frames]
    assert {text: found for text in texts if (found := ids(text))} == {}


def test_a_message_that_a_narrow_window_has_cut_is_read_whole() -> None:
    """The lines of a phone, or of a chat beside other windows, are joined as those of a terminal."""
    for text in (
        MISMATCH,
        "libcuda.so.1: cannot open shared object file: No such file or directory",
    ):
        for width in (30, 37):
            cut = [text[at : at + width] for at in range(0, len(text), width)]
            assert ids("\n".join(cut)) == ids(text) != []
    assert ids(fill(MISMATCH, 37)) == ids(MISMATCH)


def test_indented_lines_go_on_with_the_one_before() -> None:
    """A wrapped line whose rest is indented is read whole, also of a command's or a log's line."""
    for row, wrapped in (
        (
            "operator-validator",
            'level=info msg="GPU resources are not\n    yet discovered by the node, retry: 4"',
        ),
        (
            "entrypoint-architecture",
            "kubectl logs gpu-job-7k2pz\\nexec /usr/local/bin/python: exec\n    format error",
        ),
        (
            "entrypoint-architecture",
            "kubectl logs gpu-job-7k2pz\\nexec /usr/local/bin/python: exec\nformat error",
        ),
    ):
        assert ids(wrapped) == [row]


def test_an_error_with_one_cause_a_line_is_read_whole() -> None:
    """A chain of errors that was broken behind its colons is one message; other lines are not."""
    chain = (
        "failed to construct OCI spec modifier: failed to construct discoverer: "
        "failed to create mounts discoverer: failed to construct library locator: "
        "error loading ldcache: open /etc/ld.so.cache: no such file or directory: unknown"
    )
    for end in (": \n", ":\n  ", ":\\n"):
        assert ids(chain.replace(": ", end)) == ids(chain) != []
    keys = "nvidia:\nruntime:\ntoolkit:\nfork/exec: no such file or directory"
    assert ids(keys) == []


def test_a_message_of_the_loader_needs_no_end() -> None:
    """A library that cannot be loaded is recognised in a title, which has no reason behind it."""
    start = "tensorflow_model_server: error while loading shared libraries: "
    assert (
        ids(f"{start}libcuda.so.1") == ids(f"{start}libcuda.so.1.\nexited") == ["libcuda-missing"]
    )
    assert ids(f"{start}libpq.so.5") == []


def test_lines_of_several_messages_are_not_joined() -> None:
    """Two messages, the first of which is the longer, are not read as a wrapped one."""
    first = "fatal: unable to access 'https://example.org/NVIDIA/cuda-samples.git/': no such host"
    assert ids(f"ready\n{first}\nunknown error: 999\nexited") == []
    for line in (
        "$ docker run --rm --gpus all nvidia/cuda:12.4.1-base-ubuntu22.04 nvidia-smi",
        "NVIDIA-SMI 550.54.14  Driver Version: 550.54.14  CUDA Version: 12.4",
        "ii  nvidia-container-toolkit 1.17.4-1 amd64 NVIDIA Container toolkit",
        'time="2025-01-01T10:00:00Z" level=info msg="started" runtime=nvidia-container-runtime',
        "a program that speaks of nvidia-container-runtime, and nvidia-smi, in its one line",
    ):
        for error in ("bash: foo: No such file or directory", "ValueError: no such colour"):
            assert ids(f"{line}\n{error}") == []
    number = "CacheManager Init Failed. Error: -17"
    assert ids(f"{number}\nERRO[0003] exited") == ids(number) == ["dcgm-privileges"]


def test_a_cause_is_not_lost_where_lines_are_joined() -> None:
    """A cause on its own line counts, also where the lines joined show a symptom only."""
    note = "Unable to initialize backend 'rocm': NOT_FOUND: Could not find a platform named rocm"
    assert ids(f"{note}\nCould not load library libcudnn_cnn_infer.so.8") == ["tf-cuda-libraries"]


def test_wrappers_are_listed_from_the_outermost() -> None:
    """Wrappers are listed from the outermost, so that a reader sees which program started which."""
    text = WRAPPINGS["docker and runc"].replace("{}", MISMATCH)
    names = [wrapper.name for wrapper in analyse(text).wrappers]
    assert names == ["docker", "containerd", "runc", "prestart hook", "nvidia-container-cli"]


def test_nvgrafts_own_line_is_recognised_too() -> None:
    """nvgraft's own line is recognised, because it begins with the reference's words."""
    analysis = analyse("nvgraft: device error: 9: unknown device | the host has GPU 0,1")
    assert analysis.stage == "device"
    assert [meaning.failure for meaning in analysis.meanings] == ["unknown-device"]


def _text(node: ast.expr) -> str:
    """Return the text of an expression, with a name for what only a start knows."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "/some/thing"


def test_every_refusal_of_the_hook_is_explained() -> None:
    """Each error that the hook's code can raise at a stage has a meaning, with the hook's own cause
    and fix where no row knows more. The words of its fix never decide.
    """
    calls = [
        node
        for path in Path(nvgraft.__file__).parent.rglob("*.py")
        for node in nodes(path.read_text("utf-8"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "Refusal" and isinstance(node.args[0], ast.Constant) and node.args[2:]
    ]
    lines = [Refusal(*map(_text, call.args)) for call in calls]
    assert len(lines) > 100
    unknown, swayed = [], []
    for refusal in filter(lambda line: line.stage, lines):
        rows = ids(refusal.line())
        unknown += [refusal.line()] * (rows == [])
        if rows != ["nvgraft-refusal"]:
            sway = "run ldconfig: libEGL_nvidia.so.0 cannot open libcuda.so.1, unknown error 999"
            other = Refusal(refusal.stage, refusal.text, sway)
            swayed += [other.line()] * (ids(other.line()) != rows)
    assert (unknown, swayed) == ([], [])


@pytest.mark.parametrize(
    "spelling",
    [
        "cudaGetDeviceCount returned {}",
        "cudaGetDeviceCount() call failed with error {}",
        "RuntimeError: cuda runtime error ({}) : some words at /pytorch/a.cpp:51",
        "CUDA error {}",
        "CUDA failure {}: some words ; GPU=0",
        "cuInit(0) returned {}",
        "cuInit failed:{}",
        'error="cuda driver library init failure: {}"',
        "CudaSupportError: Error at driver init: [{}] Call to cuInit results in X",
        "Call to cuInit results in CUDA_ERROR_X ({}):",
        "failed call to cuInit: UNKNOWN ERROR ({})",
        "Check failed: error == cudaSuccess ({} vs. 0)",
        "CUDA error at a.cu:7 code={}(cudaErrorX)",
        "[TRT] CUDA initialization failure with error: {}",
        "returned {}\n-> some words",
        (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
            "calling NumCudaDevices() that might have already set an error? Error {}: some words"
        ),
    ],
)
def test_a_number_of_cuda_is_recognised_in_every_spelling(spelling: str) -> None:
    """A number alone tells the error, in the spelling of each program; other numbers tell no more.

    Where the words themselves are those of an error of CUDA, a general row answers.
    """
    for row in ROWS:
        for number in row.get("cuda", ()):
            if number > 0:
                assert ids(spelling.format(number)) == [row["id"]]
    assert ids(spelling.format(996)) in ([], ["cuda-other"], ["cuda-words"])


@pytest.mark.parametrize(
    "spelling",
    [
        "RuntimeError: CUDA error: {}",
        "mytool_cuda_init:failed to initialize CUDA:{}",
        "CUDA failed with error {}",
        "Cuda failure '{}'",
        "cudaSafeCall() Runtime API error: {}.",
        "GPUassert: {} main.cu 34",
        "thrust::system_error: {}",
        "Fatal error: {} (main.cu:12)",
    ],
)
def test_the_words_of_an_error_of_cuda_are_recognised_in_every_spelling(spelling: str) -> None:
    """Words that also others have are CUDA's where it or its source says them, and only there."""
    for words, row in (
        ("initialization error", "cuda-initialization"),
        ("operation not permitted", "cuda-not-permitted"),
        ("unknown error", "cuda-unknown"),
        ("invalid surface reference", "cuda-other"),
    ):
        assert ids(spelling.format(words)) == [row]
        assert ids(f"error: {words}") == []


@pytest.mark.parametrize(
    ("paste", "row"),
    [
        ("bash: nvidia-smi: Kommando nicht gefunden.", "smi-not-found"),
        ("bash: /usr/bin/nvidia-smi: Aucun fichier ou dossier de ce type", "smi-file-missing"),
        ("bash: /usr/bin/nvidia-smi: 没有那个文件或目录", "smi-file-missing"),
        ("bash: nvidia-smi\uff1a未找到命令", "smi-not-found"),
        (
            (
                "nvidia-smi: ошибка при загрузке разделяемых библиотек: libnvidia-ml.so.1: "
                "невозможно открыть разделяемый объектный файл: Нет такого файла или каталога"
            ),
            "libcuda-missing",
        ),
        (
            (
                "nvidia-container-cli: initialization error: load library failed: "
                "libnvidia-ml.so.1: no se puede abrir el fichero del objeto compartido: "
                "Permiso denegado"
            ),
            "load-library-denied",
        ),
    ],
)
def test_an_error_in_another_language_is_recognised(paste: str, row: str) -> None:
    """What glibc and the shell print in another language is read as English."""
    assert ids(paste) == [row]


def test_the_words_of_each_language_are_read() -> None:
    """Whatever glibc or bash prints in another language for a word of a row becomes that word, in
    the middle of a line as well.
    """
    said = [
        (other, row["english"]) for row in DATA["languages"]["words"] for other in row["others"]
    ]
    assert len(said) > 1_000
    wrong = [other for other, english in said if plain(f"a: {other}: b") != f"a: {english}: b"]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "said", "by", "place"),
    [
        (
            WRAPPINGS["docker and runc"].replace("{}", "foo failed"),
            "foo failed",
            "prestart hook",
            "start",
        ),
        (
            '{"level":"error","msg":"failed","error":"crun: no bar: invalid argument"}',
            "no bar: invalid argument",
            "crun",
            "start",
        ),
        (
            "tensorflow/core/foo.cc:12] Internal: something failed",
            "tensorflow/core/foo.cc:12] Internal: something failed",
            "TensorFlow",
            "inside",
        ),
        (
            "RuntimeError: sizes must match at /pytorch/aten/src/TH/THTensor.cpp:689",
            "RuntimeError: sizes must match at /pytorch/aten/src/TH/THTensor.cpp:689",
            "PyTorch",
            "inside",
        ),
        ("one\nValueError: no such colour\ntwo", "ValueError: no such colour", "", ""),
        ("hello\nfoo: undefined symbol: drmGet", "foo: undefined symbol: drmGet", "", ""),
        (
            "ERROR: No matching distribution found for jaxlib==0.4",
            "ERROR: No matching distribution found for jaxlib==0.4",
            "JAX",
            "inside",
        ),
        ("ValueError: no GPU in that colour", "ValueError: no GPU in that colour", "", "inside"),
        ("docker: Error response from daemon: no such image", "no such image", "docker", ""),
        ("error: amdgpu reset failed", "error: amdgpu reset failed", "", ""),
        (
            "ld: no space left on device\nERROR: process make did not complete successfully",
            "ld: no space left on device",
            "",
            "",
        ),
        (
            "foo: Error: no bar\nIt looks like MPI_INIT failed for some reason; it is\nlikely to abort.",
            "foo: Error: no bar",
            "",
            "",
        ),
        (
            "ERROR: for api: /app/run: permission denied\nERROR: Encountered errors while bringing up",
            "ERROR: for api: /app/run: permission denied",
            "",
            "",
        ),
        ("hello", "hello", "", ""),
        ("step 3 of 4\ntar: file truncated", "tar: file truncated", "", ""),
        ("a line\n" * 20, "", "", ""),
        ("E: no package foo (error 100)", "E: no package foo (error 100)", "", ""),
        ("level=error msg=\"no module named 'bar'\"", "no module named 'bar'", "", ""),
        ('error: cannot say "foo".', 'error: cannot say "foo"', "", ""),
    ],
)
def test_the_innermost_message_of_an_unknown_error_is_told(
    text: str, said: str, by: str, place: str
) -> None:
    """The answer to an unknown error: the innermost message, who said it, and two checks.

    Checks of GPUs are left out where neither the text nor the program has to do with GPUs.
    """
    analysis = analyse(text)
    assert analysis.meanings == ()
    assert (analysis.innermost, analysis.said_by) == (said, by)
    assert analysis.checks == known().checks.get(place, ())


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ('conmon bytes "": readObjectStart: expect { or n, but found', "ended without a word"),
        ("worker exited with code 137", "killed"),
        ("sh: 1: /opt/run: Exec format error", "architecture"),
        ("foo: cannot open bar: Keine Berechtigung", "EACCES"),
        ("write /data/x: no space left on device", "quota"),
        ("ImportError: libGL.so.1: cannot open shared object file", "libgl1"),
        ("sh: error while loading: libzzz.so.3: cannot open shared object file", "apt-file"),
        ("cannot allocate unhealthy devices amd.com/gpu", "NVIDIA's tools do not know"),
        ("rocminfo: hsa_init failed", "ROCm"),
        ("sh: fork: Argument list too long", "E2BIG"),
        ("exec /app/server: exec format error", "uname -m"),
        ("cannot create sandbox: cannot read client sync file", "gVisor"),
        ("FATAL: exec /.singularity.d/actions/run failed", "/bin/sh"),
        ("tkinter: cannot open display", "xvfb-run"),
        ("gpu_process_host.cc: error: GPU process exited", "browser"),
    ],
)
def test_the_words_of_the_system_are_explained(text: str, means: str, capsys: Captured) -> None:
    """Of an unknown error, errno words, exit codes and libraries of others are explained."""
    (said,) = analyse(text).general
    assert means in said
    assert main(["explain-error", text]) == 1
    assert f"means    {said[:60]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("foo.c:3:10: fatal error: rpc/rpc.h: No such file or directory", "libtirpc"),
        ("ERROR  : Failed to set securebits: Invalid argument", "WSL 1"),
    ],
)
def test_what_a_word_of_the_system_means_here_is_told_first(text: str, means: str) -> None:
    """Where more is known than what the errno says, that comes before the errno."""
    special, errno = analyse(text).general
    assert means in special
    assert "(E" in errno


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "exit status 1",
        "docker: Error response from daemon: no such image",
        "\x00\xff" * 100,
        "{0}{1}",
    ],
)
def test_an_unknown_error_is_not_guessed(text: str, capsys: Captured) -> None:
    """An unknown error exits with 1 and advice on where to look."""
    assert main(["explain-error", text]) == 1
    out = capsys.readouterr().out
    assert "this text contains no known error of GPU containers" in out
    assert "nothing in it names a GPU or its driver: look at the program that said it" in out
    assert main(["explain-error", f"a GPU, and then {text}"]) == 1
    assert "two checks that separate the most causes" in capsys.readouterr().out


def test_a_table_tells_what_a_group_is() -> None:
    """Numbers and names that a message contains are explained one by one."""
    (xid,) = analyse("NVRM: Xid (PCI:0000:01:00): 79, pid=7").meanings
    assert "fallen off the bus" in xid.cause
    for name, packages in (
        ("libnvrtc.so.13", "pip: nvidia-cuda-nvrtc;"),
        ("libcublas.so.12", "pip: nvidia-cublas-cu12;"),
        ("libcudnn_ops_infer.so.8", "apt: libcudnn8;"),
    ):
        (library,) = analyse(f"ImportError: {name}: cannot open shared object file").meanings
        assert packages in library.cause


def test_a_cause_of_the_surroundings_is_told_where_the_paste_names_them() -> None:
    """A cause that only Jetsons have comes first where the paste is of one, and nowhere else."""
    line = "ImportError: libcurand.so.10: cannot open shared object file: No such file"
    assert ids(line) == ["cuda-toolkit-library"]
    assert ids(f"docker run --runtime nvidia l4t-ml:r32\n{line}") == ["jetson-cuda-library"]
    line = "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    (plain,) = analyse(line).meanings
    (slurm,) = analyse(f"srun --gres=gpu:1 a.out\n{line}").meanings
    assert "ConstrainDevices" not in "".join(plain.otherwise)
    assert "ConstrainDevices" in slurm.otherwise[0]
    assert "--gres" not in "".join(slurm.otherwise)
    (pod,) = analyse(f"kubectl logs train-0\n{line}").meanings
    assert "nvidia.com/gpu" in pod.otherwise[0]


def test_a_cause_that_the_message_shows_is_told_where_it_says_so() -> None:
    """A cause of which the message itself tells comes first where it does, and nowhere else."""
    (missing,) = analyse(
        "Error selecting MIG config: selected mig-config not present: all-2g"
    ).meanings
    (full,) = analyse(
        "Unable to create a GPU instance on GPU 0 using profile 19: Insufficient Resources"
    ).meanings
    assert missing.id == full.id == "mig-manage"
    assert "ConfigMap" in missing.otherwise[0]
    assert "ConfigMap" not in "".join(full.otherwise)


def test_a_kubelet_that_does_not_answer_may_be_too_old() -> None:
    """Where only the time ran out, the feature that old kubelets switch off is a cause."""
    (late,) = analyse("Could not register device plugin: context deadline exceeded").meanings
    (other,) = analyse(
        "Could not register device plugin: rpc error: unknown service deviceplugin.Registration"
    ).meanings
    assert "DevicePlugins=true" in "".join(late.otherwise)
    assert "different versions" in other.otherwise[0]


def test_few_causes_are_told_of_any_error() -> None:
    """Of the causes that a message does not tell apart, a row names three at most."""
    many = {
        row["id"]: len(told)
        for row in ROWS
        if len(
            told := [
                other
                for other in row.get("otherwise", ())
                if isinstance(other, str) and other[0] != "="
            ]
        )
        > 2
    }
    assert many == {}


def test_rare_causes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What few people meet is named behind the causes, on one line; who has no such causes has no
    line.
    """
    assert main(["explain-error", "Unknown runtime specified nvidia"]) == 0
    out = capsys.readouterr().out
    assert out.index("  or ") < out.index("  rarer ") < out.index("  fixed by ")
    assert out.count("  rarer ") == 1
    assert "; " in out.partition("  rarer ")[2].partition("  fixed by ")[0]
    main(["explain-error", "unknown flag: --gpus"])
    assert "rarer" not in capsys.readouterr().out


def test_at_most_three_causes_are_told() -> None:
    """Where a paste names its surroundings, their cause stands in place of the last one."""
    line = "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    (bare,) = analyse(line).meanings
    (compose,) = analyse(f"docker compose up\n{line}").meanings
    assert len(bare.otherwise) == 2
    assert "compose file" in compose.otherwise[0]
    assert compose.otherwise[1:] == bare.otherwise[:1]


def test_what_says_less_of_the_same_error_is_left_out() -> None:
    """The errno of a neighbouring line decides, and the row that it excludes is not shown."""
    line = "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1"
    assert ids(line) == ["shm-size"]
    assert ids(f"NCCL WARN Call to shm_open failed : Permission denied\n{line}") == ["shm-denied"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("services.ollama.deploy.resources: missing property 'image' error", ["docker compose"]),
        ("enroot: [ERROR] no such image", ["enroot"]),
        ("starting with docker compose up\nValueError: no such colour", []),
        ("see https://pytorch.org/get-started\nconnection refused", []),
        (
            'level=error msg="failed to start container" container=09f error="no such file"',
            ["docker"],
        ),
        ('Error: failed to start container "web": no such file', ["kubelet"]),
    ],
)
def test_only_programs_that_passed_an_error_on_are_listed(text: str, names: list[str]) -> None:
    """A name in another line, in an address or of a service does not make a layer."""
    assert [wrapper.name for wrapper in analyse(text).wrappers] == names


def test_causes_come_before_their_symptoms(capsys: Captured) -> None:
    """A symptom is left out beside its cause, and is explained where it stands alone."""
    symptom = 'level=INFO source=gpu.go:392 msg="no compatible GPUs were discovered"'
    assert ids(symptom) == ["ollama-no-gpu"]
    assert ids(f"{symptom}\ncuda driver library init failure: 999") == ["cuda-unknown"]


def test_what_ended_a_program_comes_before_what_it_only_warned_of() -> None:
    """A program that found no GPU and went on is explained only where nothing else ended it."""
    warning = "I cudart_stub.cc:28] Could not find cuda drivers on your machine, GPU is not used"
    assert ids(warning) == ["torch-no-driver"]
    for consequence in (
        "RuntimeError: no device to run on",
        "AssertionError",
        "npm ERR! code ELIFECYCLE",
        "exited with code 1",
    ):
        assert ids(f"{warning}\n{consequence}") == ["torch-no-driver"]
    for end in (
        "AssertionError: batch size mismatch",
        "panic: runtime error: index out of range [5] with length 3",
        "nginx: [emerg] bind() to 0.0.0.0:80 failed (13: Permission denied)",
        "yaml.scanner.ScannerError: mapping values are not allowed here",
    ):
        assert ids(f"{warning}\n{end}") == []
    for end in (
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "PermissionError: [Errno 13] Permission denied: '/data/models'",
        "Max retries exceeded with url: /models",
        "ModuleNotFoundError: No module named 'pandas'",
        "OSError: [Errno 28] No space left on device: '/models/a'",
        "OSError: [Errno 98] Address already in use",
        'FATAL: password authentication failed for user "app"',
        "Killed",
    ):
        analysis = analyse(f"{warning}\n{end}")
        assert analysis.meanings == ()
        assert analysis.general
    assert "cuda-unknown" in ids(f"{warning}\ncuInit failed: 999\nAddress already in use")


def test_a_note_is_told_only_where_it_is_what_the_paste_is_about() -> None:
    """A note is explained where it stands alone, not beside a complaint or in a long log."""
    note = "TF-TRT Warning: Could not find TensorRT"
    twice = f"E cuda_blas.cc] Unable to register cuBLAS factory: registered already\n{note}"
    assert ids(note) == ids(twice) == ["frameworks-note"]
    assert ids(f"{note}\nValueError: no such optimizer") == []
    assert ids(note + "\na line that says nothing" * 20) == []


def test_several_errors_are_ranked_and_few(capsys: Captured) -> None:
    """The first error of a paste comes first, each failure once, and not more than a few."""
    text = "\n".join(paste for _, paste in PASTES)
    assert len(ids(text)) == MOST
    two = "CUDA error 802\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=12"
    assert ids(two) == ["cuda-system-not-ready", "requirement-unmet"]
    assert main(["explain-error", two]) == 0
    assert "several errors are known here, the likeliest cause first" in capsys.readouterr().out


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Without an argument standard input is read; bytes that are not UTF-8 do no harm."""
    stdin = SimpleNamespace(buffer=io.BytesIO(b"\xff\n" + MISMATCH.encode()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["explain-error"]) == 0
    out = capsys.readouterr().out
    assert "driver-library-mismatch: the driver was upgraded while its old kernel module" in out
    assert "failed at the stage: initialization" in out
    assert "fixed by the administrator of the node" in out


def test_what_is_too_long_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A paste is read up to its limit, and a line on stderr says so."""
    monkeypatch.setattr("nvgraft_cli.explain_error.paste.LIMIT", 1 << 20)
    stdin = SimpleNamespace(
        buffer=io.BytesIO(MISMATCH.encode() + b"\n" * (1 << 20)), isatty=lambda: False
    )
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["explain-error"]) == 0
    assert capsys.readouterr().err == "nvgraft explain-error: only the first 1 MiB are read\n"
    assert LIMIT >= 10 << 20


def test_json_has_stage_and_meanings(capsys: Captured) -> None:
    """The JSON document holds the stage and the meanings that the text shows."""
    assert main(["explain-error", "--format", "json", MISMATCH]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stage"] == "initialization"
    assert document["meanings"][0]["failure"] == "driver-library-mismatch"
    assert document["meanings"][0]["id"] == "driver-upgraded"


def test_no_text_is_an_input_error(capsys: Captured) -> None:
    """An empty text is one line and exit 2."""
    assert main(["explain-error", "  "]) == 2
    assert (
        capsys.readouterr().err
        == "nvgraft explain-error: no text | pass the error as an argument, or on standard input\n"
    )


def test_a_paste_cannot_steer_the_terminal(capsys: Captured) -> None:
    """Quoted words are printed without control characters."""
    main(["explain-error", "device error: \x1b]0;x\x07\x1b[2J9\x9b: unknown device"])
    main(["explain-error", "docker: error: \x1b]0;x\x07\x1b[2J9\x9b\\u001b[2J is broken"])
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_of_windows_is_read(encoding: str) -> None:
    """UTF-16, as Windows programs write it, is read like UTF-8."""
    assert ids(decode(f"C:\\> docker run\r\n{MISMATCH}\r\n".encode(encoding))) == [
        "driver-upgraded"
    ]


def counted(piece: str, length: int) -> str:
    """Return ``piece`` over and over, with a number now and then: not the same all along."""
    several = piece * (2000 // len(piece) + 1)
    return "".join(f"{several}{number:x} " for number in range(length // len(several) + 1))


def test_long_hostile_text_takes_no_time() -> None:
    """Patterns are linear in a block of near misses; one that backtracks would take minutes."""
    phrases = [phrase for row in ROWS for phrase in row["says"]]
    for piece in (
        *("\\", "\x1b[0", "\x1b]", "[0", "\\u00", "&quot", "cu", "cuda error ", "error ("),
        *("nvml error ", "cudagetdevicecount()", "datei oder verzeichnis nicht gefunden "),
        " ".join(phrases),
        "nvidia " + " ".join(reversed(phrases)),
    ):
        analyse(counted(piece, 1 << 17))


class _Counting:
    """A pattern that matches whole texts only, and the characters that were searched for it."""

    read = 0

    def search(self, text: str, start: int = 0, end: int | None = None) -> bool | None:
        self.read += (len(text) if end is None else end) - start
        return end is None or None


def test_a_long_line_is_searched_for_a_complaint_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a long line names programs, it is searched once for words of an error."""
    phrases = " ".join(phrase for layer in known().layers for phrase in layer.says)
    for line in (counted("nvgraft: ", 180_000), counted(f"{phrases} ", 240_000)):
        counting = _Counting()
        monkeypatch.setattr("nvgraft_cli.explain_error.analysis._COMPLAINT", counting)
        analyse(line)
        assert len(line) < counting.read <= 5 * len(line)


def test_no_pattern_begins_with_any_text() -> None:
    """No alternative of a pattern begins with a run of any characters, which would be tried from
    each place of a long line: what stands before the telling word does not matter.
    """
    free = re.compile(r"(?:^|\|)(?:\((?:\?:)?)*\[\^\\n\]\{0,\d+\}")
    inner = re.compile(r"(?<=[^|(:])\((?:[^()\\[]|\\.|\[(?:[^]\\]|\\.)*\])*\)")
    found = []
    for row in ROWS:
        pattern, before = row.get("pattern", ""), ""
        while pattern != before:
            pattern, before = inner.sub("_", pattern), pattern
        found += [row["id"]] * bool(free.search(pattern))
    assert found == []


def test_a_message_anywhere_in_a_long_log_is_found() -> None:
    """A message in the middle of a long log is found, also where a block ends."""
    for before in (0, (1 << 18) - 40, 1 << 19):
        text = "y" * before + f"\n{MISMATCH}\n" + "a line that says nothing\n" * 30_000
        assert ids(text) == ["driver-upgraded"]
    assert max(map(len, blocks("z" * (1 << 20)))) < 1 << 19


@pytest.mark.parametrize("piece", ["y", "cuda error: ", "permission denied\n", "x" * 1900 + "\n"])
def test_of_a_piece_that_is_repeated_only_some_are_read(piece: str) -> None:
    """Of a text that says the same over and over only a little is read, in whole pieces, and what
    stands between and behind is found.
    """
    many = piece * ((5 << 20) // len(piece))
    (block,) = blocks(f"{many}\n{MISMATCH}\n{many}\nexit status 1")
    assert len(block) < 1 << 15
    assert MISMATCH in block
    assert block.endswith("exit status 1")
    left = block.replace(MISMATCH, "").removesuffix("exit status 1").replace("\n", "")
    assert left.replace(piece.strip(), "").strip() == ""
    assert ids(f"{many}\n{MISMATCH}\n{many}") == ["driver-upgraded"]


def test_of_lines_that_differ_in_numbers_only_some_are_read() -> None:
    """Of a long log with a counter in each line only a little is read; an error in its middle is
    found with the lines around it, and its last line is read.
    """
    steps = [f"{number} step {number}: loss {number * 7}" for number in range(200_000)]
    steps[100_000:100_000] = [MISMATCH, "exit status 1"]
    text = "\n".join(steps)
    read = "\n".join(blocks(text))
    assert len(read) < len(text) // 5
    assert f"\n{steps[99_999]}\n{MISMATCH}\nexit status 1\n{steps[100_002]}\n" in read
    assert read.endswith(steps[-1])
    assert ids(text) == ["driver-upgraded"]


def test_a_block_of_a_long_log_begins_with_a_line() -> None:
    """What a block repeats of the one before begins with a whole line: a part of a line could have
    another meaning.
    """
    lines = [f"{'abcdefg'[number % 7] * (number % 50 + 20)} {number}" for number in range(20_000)]
    first, *others = blocks("\n".join(lines))
    assert len(others) > 2
    assert {block.split("\n")[0] for block in (first, *others)} <= set(lines)


def test_a_phrase_may_be_a_part_of_longer_words() -> None:
    """The word that saves the search for a phrase is found wherever the phrase is."""
    known_errors._any_word.cache_clear()  # until a long text needs it, each word is looked for
    for phrase, word in (pair for row in known().rows[::4] for pair in row.phrases):
        for text in (phrase, f"x{phrase}x", f"1{phrase}1", f"-{phrase}-"):
            assert word in words_in(text)
    assert "driver" not in words_in("a text without it")


def many_words(number: int) -> str:
    """Return so many words that are in no error."""
    return " ".join(map("".join, islice(product("bfjkqvwz", repeat=6), number)))


def test_words_are_found_among_many_others() -> None:
    """Among so many other words that one expression looks for all, the same words are found."""
    many = many_words(1_000)
    assert words_in(many) == words_in("")
    for phrase, word in (pair for row in known().rows[::8] for pair in row.phrases):
        assert words_in(f"{many} x{phrase}x") >= words_in(f"x{phrase}x") >= {word}


def test_an_error_among_many_words_is_found() -> None:
    """An error is found in a long text of other words, with the same meaning as alone."""
    many = many_words(60_000)
    for paste in (MISMATCH, "cuInit failed: 999", PASTES[24][1]):
        assert ids(f"{many}\n{paste}\n{many}") == ids(paste) != []


def test_the_end_of_what_is_searched_is_not_the_end_of_a_line() -> None:
    """A text is searched near the phrases of a row; where that ends, no line and no number ends."""
    line = "unable to find any nvidia gpu"
    assert ids(line) == ["gpu-not-found"]
    assert ids(f"{line} graph") == []
    for length in range(560, 580):
        assert ids(f"the gpu {'x' * length} {line} graph") == []
        assert ids(f"the cuda {'x' * length} cuinit failed: 999") == ["cuda-unknown"]


def test_a_plain_text_has_one_space_for_many() -> None:
    """Escapes, frames, quoting, entities and prefixes of compose are gone from a plain text."""
    raw = 'web-1  | │ cuda\\u003e=9.0 &quot;a&quot; \\\\\\"b\\\\\\"\\n\tc │\r\n> \n> d\x00e'
    assert plain(raw).split("\n") == ['cuda>=9.0 "a" "b"', "c", "d e"]


@pytest.mark.parametrize("written", ["`{}`", "```{}```", "**{}**"])
def test_a_message_in_markdown_is_the_message(written: str) -> None:
    """What a forum shows as code or bold means what it means without the marks."""
    for paste in ("Could not find a CUDA device", "hwaccel initialisation returned error"):
        assert ids(written.format(paste)) == ids(paste) != []


def test_full_width_punctuation_is_punctuation() -> None:
    """A translator's full-width colon and comma stand for a colon and a comma with their space."""
    assert ids(MISMATCH.replace(": ", "\uff1a")) == ids(MISMATCH) != []
