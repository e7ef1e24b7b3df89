"""What is known of a shell script of an image without running it."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvgraft.formats.tree import open_tree_at
from nvgraft_cli.prove.shell_run import ScriptOutcome, run_script
from nvgraft_cli.prove.shell_state import UNKNOWN


def found(name: str, _variables: Mapping[str, str], _directory: str) -> str | None:
    """Return the path of a program; one that is called missing does not exist."""
    return None if name == "missing" else f"/bin/{name}"


def follow(
    root: Path, text: str, *arguments: str, uid: int = 0, **variables: str
) -> ScriptOutcome | None:
    """Follow a script in a directory with one more."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/more.sh").write_text('export X=more\n[ -z "$1" ] || return 1\nexport Y=$1\n')
    (root / "etc/plain.env").write_text("# text\nX=plain\n")
    (root / "etc/odd.sh").write_text("fi ) done\n")
    tree = open_tree_at(str(root), "")
    words = ["/entry.sh", *arguments]
    try:
        return run_script(text, words, variables, "/work", tree, uid, found)
    finally:
        tree.close()


@pytest.mark.parametrize(
    ("script", "changes", "unknown"),
    [
        (
            "mkdir /x; chmod +x /app; /sbin/ldconfig; exec app",
            ["chmod +x /app", "/sbin/ldconfig"],
            [],
        ),
        ("conda activate y; module load x; app", [], ["conda activate y", "module load x"]),
        (". /none.sh; . /etc/odd.sh; exec app", [], ["/none.sh", "/etc/odd.sh"]),
        ('eval "$(cat /x)"; exec app', [], ["eval"]),
    ],
)
def test_what_a_script_changes_and_sets_is_told(
    script: str, changes: list[str], unknown: list[str], tmp_path: Path
) -> None:
    """Commands that change files are listed, and those that may set any variable are named."""
    outcome = follow(tmp_path, script)
    assert outcome is not None
    assert [" ".join(words) for words in outcome.changes] == changes
    assert len(outcome.unknown) == len(unknown)
    assert all(word in fact for word, fact in zip(unknown, outcome.unknown, strict=True))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('exec "$@"', "app -x"),
        ('run=("$@"); run+=(more); exec "${run[@]}"', "app -x more"),
        ('#!/bin/sh\nset -euo pipefail\nexec tini -- "$@"', "tini -- app -x"),
        ("first; second --all $1; echo done", "second --all app"),
        ("serve | tee /var/log/x", "serve"),
        ("echo x | xargs -n 1 app -y", "app -y"),
        ("app; find /x | xargs rm", "app"),
        ("serve &\npid=$!\nwait $pid", "serve"),
        ('(cd /x; exec "$0")', "/entry.sh"),
        ("f() { local a=$1; exec app $a; }; f y", "app y"),
        ("function f { app; }\nf", "app"),
        ('if [ "$1" = app ]; then shift; exec a "$@"; fi; exec b', "a -x"),
        ('if [ "$1" = x ] || [[ $# -gt 5 ]]; then exec a; else exec b; fi', "b"),
        ("if grep -q x /y; then exec a; fi; exec b", "b"),  # not known: the way that goes on
        ("if grep -q x /y; then exec a; fi", "a"),
        (
            'if [ "$(id -u)" = 0 ]; then exec gosu x "$0" "$@"; fi; exec b',
            "gosu x /entry.sh app -x",
        ),
        ("case $1 in a|b) exec a;; ap*) exec c;; *) exec d;; esac", "c"),
        ('[ "${1#-}" != "$1" ] && set -- app "$@"\nexec "$@"', "app -x"),
        ('[ "${1:0:1}" = - ] && set -- other "$@"\nexec "$@"', "app -x"),
        ("command -v missing >/dev/null && exec a\nexec b", "b"),
        ("for x in a b; do run $x; done", "run b"),
        ("for ((i=0; i<3; i++)); do :; done; app", "app"),
        ("for x; do last=$x; done; run $last", "run -x"),
        ("while [ $# -gt 1 ]; do shift; done; run $1", "run -x"),
        ("while true; do app; sleep 1; done", "app"),
        ('cat <<EOF > /x\n(text; "odd\nEOF\nexec app', "app"),
        ("cat <<-'A' <<B\n\tA\nB\nexec app", "app"),
        ('A=(x\n "y z" ) ; exec app ${A[@]}', "app x y z"),
        ("exec -a name app # comment", "app"),
        ("eval exec app", "app"),
        ("exec 2>&1 >/x; app \\\n  more", "app more"),
        ("exec `which app`", "/bin/app"),
        ("for f in /etc/*.sh; do exec cat $f; done", "cat /etc/more.sh"),
    ],
)
def test_the_command_that_a_script_becomes(script: str, words: str, tmp_path: Path) -> None:
    """It is what the script executes in its place, or the last command that does not prepare."""
    outcome = follow(tmp_path, script, "app", "-x")
    assert outcome is not None
    assert " ".join(outcome.words) == words


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("export X=a", "a"),
        ("X=a", "a"),  # it is exported already
        ("X=a exec app", "a"),
        ("unset X", None),
        ("export X=a:$X", "a:old"),
        ("export X=${NONE:-b}${X:+:$X}", "b:old"),
        ("X+=:more", "old:more"),
        ("unset X; set -a; X=a", "a"),
        ("unset X; set -a; set +a; X=a", None),
        ("unset X; set -a; . /etc/plain.env", "plain"),
        ('P=(/etc/p*@(.txt|.env)); for p in "${P[@]}"; do X=$p; done', "/etc/plain.env"),
        ("case a.env in *@(.sh|.env)) X=a;; esac", "a"),
        ("[[ abab == +(ab) ]] && X=a", "a"),
        ("declare -x X='a b'", "a b"),
        (". /etc/more.sh", "more"),
        ("source /etc/more.sh y; X=$X$Y", "more"),
        ('here="$(cd "$(dirname "$0")/lib" && pwd)"; X=$here', "/lib"),
        ("export X=$(uname):$X", f"{UNKNOWN}:old"),
        ("if lspci; then X=new:$X; fi", f"{UNKNOWN}:old"),
        ("if lspci; then X=a; else X=a; fi", "a"),
        ("if lspci; then X=a; exit 1; fi", "old"),
        ("lspci && X=a:$X", f"{UNKNOWN}:old"),
        ("(X=a)", "old"),
        ("X=$NONE/lib", "/lib"),
        (". /etc/none.sh; X=$NONE/lib", f"{UNKNOWN}/lib"),
        (". /etc/odd.sh; X=$NONE/lib", f"{UNKNOWN}/lib"),
        ("conda activate y; X=$CONDA_PREFIX/lib", f"{UNKNOWN}/lib"),
        ("local_() { X=a; return 0; }; local_ && X=b", "b"),
        ("X=${X%l*}", "o"),
        ("X='$Y'\"'$X'\"", "$Y'old'"),
    ],
)
def test_variables_that_a_script_sets(script: str, value: str | None, tmp_path: Path) -> None:
    """Variables reach the program if they are exported; what is not known of them is marked."""
    outcome = follow(tmp_path, f"{script}\nexec app", X="old")
    assert outcome is not None
    assert outcome.environment.get("X") == value


@pytest.mark.parametrize(
    "script", ["if x", "a )", "'", "$(", "f() {", "exec $(date)", "", "echo hi"]
)
def test_a_script_of_which_nothing_is_known(script: str, tmp_path: Path) -> None:
    """A damaged script, one that only prepares, or one that computes its command has no answer."""
    assert follow(tmp_path, script) is None


@pytest.mark.parametrize(
    "script",
    [
        "a;" * 9999,
        "(" * 100000,
        "${a:-" * 20000,
        "`" * 9999,
        "<<A " * 20000,
        "X=aaaaaaaaaaaaaaaa\n" + "X=$X$X\n" * 60 + "exec app",
        "f() { f; f; }; f",
        ". /etc/more.sh\n" * 999,
        "for a in 1 2 3 4 5 6 7 8 9; do " * 30 + ":; " + "done; " * 30,
        "if $(x); then " * 30 + "X=1; " + "fi; " * 30,
        "eval 'eval $X'",
    ],
)
def test_a_hostile_script_costs_little(script: str, tmp_path: Path) -> None:
    """Nothing of an image may take long to follow."""
    began = time.process_time()
    follow(tmp_path, script, X="eval $X")
    assert time.process_time() - began < 10
