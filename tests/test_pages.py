"""Manual pages and completions: what they have, and that man, bash, zsh and fish understand them."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from nvgraft_cli.pages import completions, manual
from nvgraft_cli.pages.__main__ import write
from nvgraft_cli.shell.commands import GROUPS

EXAMPLES = Path(__file__).parent.parent / "docs/examples"

#: A command line, and what completes its last word.
COMPLETED = {
    "nvgraft pl": {"plan"},
    "nvgraft --debug unreg": {"unregister"},
    "nvgraft inventory s": {"show"},
    "nvgraft plan --cont": {"--container"},
    "nvgraft plan --format j": {"json"},
    "nvgraft plan --host ek": {"eks-t4"},
    "nvgraft simulate mig": {"mig-h100"},
    "nvgraft diff eks-t4 mig": {"mig-h100"},
    "nvgraft plan --container one": {"one-gpu"},
    "nvgraft plan --host eks-t4 --container one": {"one-gpu"},
    "nvgraft help driver-r": {"driver-root"},
    "nvgraft help nvml-s": {"nvml-slow"},
    "nvgraft register cont": {"containerd"},
}

_BASH = """
source "$1"
while read -ra COMP_WORDS; do
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _shtab_nvgraft
  echo "${COMPREPLY[*]}"
done
"""
_FISH = """
source $argv[1]
while read -l line
    echo (complete -C $line | string replace -r '\\t.*' '')
end
"""
_ZSHRC = """
fpath=({directory} $fpath)
autoload -Uz compinit
compinit -u -D
report() {{ print -r -- "$BUFFER" >>{report}; BUFFER=; }}
zle -N report
bindkey '^G' report
unsetopt beep
PS1='READY>'
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a prefix with all pages, as an installation has them."""
    directory = tmp_path_factory.mktemp("prefix")
    write(directory)
    return directory


def lines_of(shell: list[str], place: Path) -> dict[str, set[str]]:
    """Let a shell complete every line; return what it offers for each."""
    done = subprocess.run(
        [*shell, place],
        input="".join(f"{line}\n" for line in COMPLETED),
        capture_output=True,
        text=True,
        cwd=EXAMPLES,
        env={"PATH": os.environ["PATH"], "HOME": str(place.parent)},
        timeout=60,
    )
    assert done.stderr == ""
    answers = [{word.rstrip("/") for word in line.split()} for line in done.stdout.splitlines()]
    return dict(zip(COMPLETED, answers, strict=True))


@pytest.mark.requires("bash")
def test_bash_completes(share: Path) -> None:
    """bash completes commands, options, choices, hosts, topics and files."""
    shell = ["bash", "--norc", "-c", _BASH, "bash"]
    assert lines_of(shell, share / completions.PLACES["bash"]) == COMPLETED


@pytest.mark.requires("fish")
def test_fish_completes(share: Path) -> None:
    """fish completes the same."""
    shell = ["fish", "--no-config", "-c", _FISH]
    assert lines_of(shell, share / completions.PLACES["fish"]) == COMPLETED


@pytest.mark.requires("zsh")
def test_zsh_completes(share: Path, tmp_path: Path) -> None:
    """zsh completes the same on a terminal, where Tab writes the whole word."""
    report = tmp_path / "report"
    directory = (share / completions.PLACES["zsh"]).parent
    (tmp_path / ".zshrc").write_text(_ZSHRC.format(directory=directory, report=report))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(EXAMPLES)
        environment = {"PATH": os.environ["PATH"], "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
        os.execvpe("zsh", ["zsh", "-d", "-i"], environment)
    try:
        read_until(terminal, b"READY>")
        for line in COMPLETED:
            os.write(terminal, f"{line}\t\x07".encode())
        os.write(terminal, b"echo DO''NE; exit\n")
        read_until(terminal, b"DONE")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    written = [line.split()[-1].rstrip("/") for line in report.read_text().splitlines()]
    assert [{word} for word in written] == list(COMPLETED.values())


def read_until(terminal: int, text: bytes) -> None:
    """Read what a terminal shows until ``text`` comes."""
    shown = b""
    while text not in shown:
        assert select.select([terminal], [], [], 60)[0], shown
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the shell has ended
            raise AssertionError(shown) from None


def test_every_command_has_a_page() -> None:
    """There is a page for nvgraft, and one for each command that is not nvidia-container-cli's."""
    pages = {Path(place).name.removesuffix(".1") for place in manual.texts()}
    names = [name for group in GROUPS.values() for name, (module, _) in group.items() if module]
    assert pages == {"nvgraft", *(f"nvgraft-{name}" for name in names)}


@pytest.mark.parametrize("place", manual.texts())
def test_a_page_has_the_parts_of_a_manual_page(place: str) -> None:
    """Every page has name, synopsis, description, options and examples."""
    text = manual.texts()[place]
    sections = {line for line in text.splitlines() if line.startswith(".SH ")}
    assert {".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH EXAMPLES"} <= sections
    assert ".SH EVERY COMMAND" in sections
    if place.endswith("/nvgraft.1"):
        assert ".SH COMMANDS" in sections
    else:
        assert ".SH SEE ALSO" in sections


def test_pages_do_not_depend_on_the_terminal(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages have the same text wherever they are made: no date, and no width of a terminal."""
    program = [sys.executable, "-m", "nvgraft_cli.pages", str(tmp_path)]
    environment = {"PYTHONPATH": ":".join(sys.path), "COLUMNS": "44", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run(program, env=environment, check=True, timeout=60)
    paths = [path.relative_to(share) for path in share.rglob("*") if path.is_file()]
    assert len(paths) > 20
    for path in paths:
        assert (tmp_path / path).read_text() == (share / path).read_text(), path


@pytest.mark.requires("man")
def test_man_formats_every_page_without_a_warning(share: Path) -> None:
    """man formats every page, and groff has nothing to warn about."""
    for page in sorted((share / "share/man/man1").iterdir()):
        done = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", page],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), page
        assert "NAME" in done.stdout
