"""What is known of a shell script of an image without running it."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvgraft.formats.tree import open_tree_at
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.run import ScriptOutcome, run_script
from nvgraft_cli.prove.script.state import Dialect


def found(name: str, _variables: Mapping[str, str], _directory: str) -> str | None:
    """Return the path of a program; one that is called missing does not exist."""
    return None if name == "missing" else f"/bin/{name}"


def follow(
    root: Path,
    text: str,
    *arguments: str,
    uid: int = 0,
    dialect: Dialect = "bash",
    **variables: str,
) -> ScriptOutcome | None:
    """Follow a script in a directory with one more."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/more.sh").write_text('export X=more\n[ -z "$1" ] || return 1\nexport Y=$1\n')
    (root / "lib").mkdir(exist_ok=True)
    (root / "etc/plain.env").write_text("# text\nX=plain\n")
    (root / "etc/odd.sh").write_text("fi ) done\n")
    (root / "dev").mkdir(exist_ok=True)
    if not (root / "dev/fd").is_symlink():
        (root / "dev/fd").symlink_to("/proc/self/fd")
    tree = open_tree_at(str(root), "")
    words = ["/entry.sh", *arguments]
    try:
        own = {"-": "hB"}
        return run_script(
            text,
            words,
            variables,
            "/work",
            tree,
            uid,
            found,
            own=own,
            machine="riscv64",
            dialect=dialect,
        )
    finally:
        tree.close()


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("echo 'X=1' > /tmp/a; . /tmp/a", "1"),
        ("echo X=1 >/tmp/a; echo X=2 >> /tmp/a; . /tmp/a", "2"),
        ("printf 'X=%s\\n' 1 2 | tee -a /tmp/a >/dev/null; . /tmp/a", "2"),
        ("cat > /tmp/a <<E\nX=$Y/1\nE\nY=3; . /tmp/a", "2/1"),
        ("cat > /tmp/a <<'E'\nX=$Y/1\nE\nY=3; . /tmp/a", "3/1"),
        ("cat <<-E | cat > /tmp/a\n\tX=\\$Y\n\tE\nY=3; . /tmp/a", "3"),
        ("{ echo X=1; echo X=2; } > /tmp/a; . /tmp/a", "2"),
        ("f() { echo X=1; }; f > /tmp/a; . /tmp/a", "1"),
        ("(cd /tmp; echo X=1 > a); cd /tmp; . ./a", "1"),
        ("cp /etc/plain.env /tmp/a; . /tmp/a", "plain"),
        ("ln -s plain.env /etc/new; . /etc/new", "plain"),
        ("mv /etc/plain.env /tmp/; [ -e /etc/plain.env ] || . /tmp/plain.env", "plain"),
        ("rm /etc/plain.env; [ -f /etc/plain.env ] && X=there", None),
        ("mkdir -p /tmp/a/b; [ -d /tmp/a ] && X=there", "there"),
        ("touch /tmp/a; if [ -f /tmp/a ]; then X=there; fi", "there"),
        ("echo X=1 > /etc/z.sh; for f in /etc/z*.sh; do . $f; done", "1"),
        ("export $(cat /etc/plain.env | grep -v '^#' | xargs)", "plain"),
        ("while IFS== read -r k v; do [ $k = X ] && export $k=$v; done < /etc/plain.env", "plain"),
        ("read a b <<< 'x y z'; X=$b", "y z"),
        ("X=$(< /etc/plain.env)", "# text\nX=plain"),
        ("X=$(echo out; echo err >&2)", "out"),
        ("X=$(cat /etc/none)", UNKNOWN),
        ("date > /tmp/a; X=$(cat /tmp/a)", UNKNOWN),
        ("read X", UNKNOWN),
        ("sed 's#plain#new#g' /etc/plain.env > /tmp/a; . /tmp/a", "new"),
        ("echo X=aa | sed -e s/a/b/ > /tmp/a; . /tmp/a", "ba"),
        ("X=$(echo a | sed s/./b/)", UNKNOWN),
        ("echo 'X=$Y' > /tmp/a; X=$(envsubst < /tmp/a)", "X=2"),
        ('set -- a b; X="$*"', "a b"),
        ('L=(a b); X=$(IFS=:; echo "${L[*]}")', "a:b"),
        ('L=(a b); IFS=,; X="${L[@]}"', "a b"),
        ("curl -o /tmp/a host; [ -f /tmp/a ] && X=there", UNKNOWN),
        ("X=$(dirname $(find / -maxdepth 2 -type f -name plain.env -print))", "/etc"),
        ("X=$(find / -name 'p*.env' | head -n1)", "/etc/plain.env"),
        ("X=$(find /etc -type d -name plain.env)", UNKNOWN),
        ("cd /etc; X=$(find -name plain.env)", "./plain.env"),
        ("ln -s /etc/plain.env /lib/a; X=$(find /lib -type l)", "/lib/a"),
        ("ln -s /etc/plain.env /lib/a; X=$(find /lib -follow -type f)", "/lib/a"),
        ("touch /lib/a9 /lib/a10; X=$(find /lib -type f | sort -V | head -1)", "/lib/a9"),
        ("touch /lib/a9 /lib/a10; X=$(find /lib -type f | sort -ur | tail -n 1)", "/lib/a10"),
        ("touch /lib/a /lib/b; X=$(find /lib -type f | head -1)", UNKNOWN),
        ("X=$(find /etc -name plain.env -newer /x)", UNKNOWN),
        ("X=$(find /etc $(date) -name plain.env)", UNKNOWN),
        ("echo b >> /tmp/a; echo a >> /tmp/a; X=$(sort /tmp/a)", UNKNOWN),
        ("X=$(echo a | head -c 1)", UNKNOWN),
        ("if grep -q a /b; then echo X=1 > /tmp/a; fi; [ -f /tmp/a ] && X=there", UNKNOWN),
    ],
)
def test_files_that_a_script_writes_and_reads(
    script: str, value: str | None, tmp_path: Path
) -> None:
    """What a script writes, copies, links and removes counts where it reads files again."""
    outcome = follow(tmp_path, f"{script}\nexport X\nexec app", Y="2")
    assert outcome is not None
    assert outcome.environment.get("X") == value


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("X=$((1 + 2 * $Y))", "5"),
        ("Y=a; X=$(( (3 > 2) && !0 ? 1 : 0 ))", UNKNOWN),
        ("X=$(( 7 / 2 - 010 % 4 ))", "1"),
        ("X=$((1 / 0))", UNKNOWN),
        ("X=$((NONE + 1))", "1"),
        ("X=$((2 ** 99999))", UNKNOWN),
        ("(( $# >= 1 )) && X=some", "some"),
        ("(( Y == 3 )) || X=other", "other"),
        ("((Y++)); X=$Y", UNKNOWN),
        ("set -- -a 1 -b z; while getopts 'a:b' o; do X=$X$o$OPTARG; done", "a1b"),
        ("set -- -b -- z; while getopts b o; do :; done; shift $((OPTIND - 1)); X=$1", "z"),
        ("set -- -a -b; while getopts ':ax' o; do X=$X$o; done", "a?"),
        ("getopts 'a' o; shift $((OPTIND-1)); X=$1", UNKNOWN),
        ("Y=a:b:c; X=${Y//:/ }", "a b c"),
        ('Y=a/b/c; X="${Y/\\//$Y}"', "aa/b/cb/c"),
        ("Y=a.b; X=${Y//.}", "ab"),
        ("Y=Ab; X=${Y,,}${Y^^}", "abAB"),
        ("Y=Z; Z=1; X=${!Y}", "1"),
        ("Y=Z; X=${!Y:-none}", "none"),
        ("Y=$(date); X=${!Y}", UNKNOWN),
        ("X=${Y//[0-9]/n}", UNKNOWN),
        ('Y=--a=b; X="${Y#*=}"', "b"),
        ("[[ $1 =~ ^-a ]] && X=yes", "yes"),
        ("[[ $1 =~ b$ ]] || X=no", "no"),
        ("[[ $1 =~ [a-z]+ ]] && X=yes", UNKNOWN),
        ("[ -x /etc/more.sh ] || X=no", "no"),
        ("chmod +x /etc; [ -x /etc ] && X=yes", "yes"),
        ("[ -s /etc/more.sh ] && X=yes", "yes"),
        ("X=$(uname -m)/$(uname)", "riscv64/Linux"),
        ("case $- in *i*) X=interactive;; *) X=not;; esac", "not"),
        ("shift $(date); X=$1", UNKNOWN),
        ("export X=1; export -n X; exec app", None),
        ("declare -x X=1; declare +x X; exec app", None),
    ],
)
def test_what_a_shell_computes(script: str, value: str | None, tmp_path: Path) -> None:
    """Arithmetic, options, replaced texts and plain patterns are computed; more is not known."""
    outcome = follow(tmp_path, f"{script}\nexport X\nexec app", "-a1", Y="2")
    assert outcome is not None
    assert outcome.environment.get("X") == value


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("env > /tmp/a; . /tmp/a", "what /tmp/a sets, which a script reads"),
        ("sed -i s/a/b/ /etc/plain.env; . /etc/plain.env", "what /etc/plain.env sets, which a"),
        ("echo export $(env) > /tmp/a; . /tmp/a", "what /tmp/a sets, which a script reads"),
        ("export $(env)", "what `export` of a command's output sets"),
        ("if grep -q a /b; then echo X=1 > /tmp/a; fi; . /tmp/a", "what /tmp/a sets, which a"),
    ],
)
def test_a_file_of_which_not_all_is_known(script: str, fact: str, tmp_path: Path) -> None:
    """What a script reads and exports without its being known is told."""
    outcome = follow(tmp_path, f"{script}\nexec app")
    assert outcome is not None
    assert any(told.startswith(fact) for told in outcome.unknown)


@pytest.mark.parametrize(
    ("script", "changes", "unknown"),
    [
        (
            "mkdir /x; chmod +x /app; /sbin/ldconfig; exec app",
            ["chmod +x /app", "/sbin/ldconfig"],
            [],
        ),
        ("conda activate y; module load x; app", [], ["conda activate y", "module load x"]),
        ("set_up; . /none.sh; . /etc/odd.sh; exec app", [], ["/none.sh", "/etc/odd.sh"]),
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
        ("export X=$(hostname):$X", f"{UNKNOWN}:old"),
        ("if lspci; then X=new:$X; fi", f"{UNKNOWN}:old"),
        ("if lspci; then X=a; else X=a; fi", "a"),
        ("if lspci; then X=a; exit 1; fi", "old"),
        ("lspci && X=a:$X", f"{UNKNOWN}:old"),
        ("(X=a)", "old"),
        ("X=$NONE/lib", "/lib"),
        ('declare -A L=([a]=/x ["b"]=/y); L["c d"]=/z; k="c d"; X=${L[$k]}${L[a]}', "/z/x"),
        ('L=(a b); L[2]=c; L[0]+=x; i=1; X="${L[*]}-${L[i+1]}"', "ax b c-c"),
        ('declare -A L=([a]=1 [b]=2); for k in "${!L[@]}"; do X=$X$k; done', "oldab"),
        ("echo 'X=${BASH_SOURCE[0]}' > /tmp/a; . /tmp/a", "/tmp/a"),
        ("touch $(mktemp)/x; [ -f $(mktemp) ]; cd $(mktemp); X=a", "a"),
        ("typeset -T X x; X=$NONE", UNKNOWN),
        ("f() { local -n v=$1; v=a; }; f X; X=$NONE", UNKNOWN),
        ("for x in a b c; do [ $x = b ] && continue; X=$X$x; done", "oldac"),
        ("for x in a b c; do [ $x = b ] && break; X=$X$x; done", "olda"),
        ("for x in a b; do for y in c d; do break 2; done; X=$x; done", "old"),
        ("for x in a b; do for y in c d; do continue 2; done; X=$x; done", "old"),
        ("while true; do X=a; break; X=b; done", "a"),
        ("for x in a b; do lspci && break; done; X=a", "a"),
        ("for x in a b; do X=$x; lspci && break; done", f"{UNKNOWN}:a"),
        (
            "for x in a b; do if lspci; then X=a; break; else X=b; continue; fi; done",
            f"{UNKNOWN}:a",
        ),
        ("printf -v X '%s:%s' a b", "a:b"),
        ('IFS=: read -ra L <<< "a:b c:d"; X="${#}${L[1]}-${L[*]}"', "0b c-a b c d"),
        ("date | { read -a L; X=$L; }; read -r -a L < <(date); X=$L", UNKNOWN),
        ('n=X; Y=b; m=Y; X="${!n:+${!n}:}${!m:+b}"', "old:b"),
        ("[ -c /etc ] || X=a", "a"),
        (
            'printf "A=1\nX=a b\n" > /tmp/e; export "$(xargs -d "\\n" < /tmp/e | sed "s/A=1 //")"',
            "a b",
        ),
        ("mapfile -t L < /etc/plain.env; X=${L[1]}", "X=plain"),
        ("mapfile -t L < <(date); X=${L[0]}", UNKNOWN),
        ("set_up; . /etc/none.sh; X=$NONE/lib", f"{UNKNOWN}/lib"),
        (". /etc/odd.sh; X=$NONE/lib", f"{UNKNOWN}/lib"),
        ("conda activate y; X=$CONDA_PREFIX/lib", f"{UNKNOWN}/lib"),
        ("local_() { X=a; return 0; }; local_ && X=b", "b"),
        ("f() { X=a; if lspci; then return; fi; X=b; }; f", f"{UNKNOWN}:a"),
        ("f() { if lspci; then return; else return; fi; X=b; }; X=a; f; Y=b", "a"),
        ("echo 'if lspci; then return; fi; X=b' > /f; X=a; . /f", f"{UNKNOWN}:a"),
        ("source <(echo X=a)", "a"),
        ("set -a; . <(grep -v '^#' /etc/plain.env); set +a", "plain"),
        ("cat <(echo a) <(echo b) > /tmp/a; mapfile -t L < /tmp/a; X=${L[*]}", "a b"),
        (". <(date); X=$NONE", UNKNOWN),
        ('set -- a b "c d"; X="${*:2}-${@:1:1}"', "b c d-a"),
        ('f() { X=$#$1; }; set -- a b "c d"; f "${@:3}"', "1c d"),
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
    ("script", "ended"),
    [
        ("set -e\nnone start\nexec app", "none: not found"),
        ("none start\nexec app", ""),
        ("none", "none: not found"),
        ("set -e; none || true; none && true; ! none; exec app", ""),
        ("set -e; if none; then :; fi; while none; do :; done; exec app", ""),
        ("set -e; f() { none; true; }; f || false; exec app", ""),
        ("set -e; f() { none; true; }; f; exec app", "none: not found"),
        ("set -e; f() { return 1; }; f; exec app", "a command of it fails, which ends it (set -e)"),
        ("set -e; set +e; none; exec app", ""),
        ("set -o errexit; X=$(none); exec app", "none: not found"),
        ("set -e; export X=$(none); exec app", ""),
        ("set -Eeuo pipefail; none | cat; exec app", "none: not found"),
        ("set -e; none | cat; exec app", ""),
        ("set -e; (exit 1); exec app", "a command of it fails, which ends it (set -e)"),
        ("set -e; cd /none; exec app", "a command of it fails, which ends it (set -e)"),
        ("set -e; sh /none.sh; exec app", "a command of it fails, which ends it (set -e)"),
        ("set -e; service ssh start; exec app", "a command of it fails, which ends it (set -e)"),
        ("set -e; sh -c 'a command'; none; exec app", ""),
        ("set -e; . /none.sh; exec app", "it reads /none.sh, which is missing"),
        (". /none.sh; exec app", "it reads /none.sh, which is missing"),
        ("BASH=; . /none.sh; exec app", ""),
        ("BASH=; set -e; . /none.sh; exec app", "a command of it fails, which ends it (set -e)"),
        ('[ -n "$NONE" ] || exit 3; exec app', "it ends by `exit 3`"),
        ("if grep -q a /b; then exit 1; fi; exec app", ""),
        ("exit", "it ends by `exit`"),
        ("cd /none && app", "its last command fails"),
    ],
)
def test_a_script_that_ends_before_it_starts_a_program(
    script: str, ended: str, tmp_path: Path
) -> None:
    """A command fails for certain if its program or file is missing. Under set -e that ends the
    script, outside of conditions. What another program may have brought is not missing.
    """
    for name in ("sh", "service"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text("/etc/init.d/$1")
    outcome = follow(tmp_path, script, PATH="/bin")
    assert outcome is not None
    assert (outcome.ended, outcome.words) == (ended, () if ended else ("app",))


@pytest.mark.parametrize(
    ("dialect", "script", "value"),
    [
        ("dash", "source /etc/plain.env; :", "old"),
        ("dash", "if [[ -d /etc ]]; then X=a; fi", "old"),
        ("dash", "[ a == a ] && X=a", "old"),
        ("dash", "[ a = a ] && X=a", "a"),
        ("dash", "X+=a", "old"),
        ("dash", "echo -e X=1 > /tmp/a; X=$(cat /tmp/a)", "-e X=1"),
        ("dash", "if none &> /dev/null; then X=a; fi", "a"),
        ("dash", "X=a$UID", "a"),
        ("dash", "L=(a)", "syntax error: dash does not know `=(`"),
        ("dash", "if true; then cat <<< a; fi", "syntax error: dash does not know `<<<`"),
        ("dash", "function f { :; }", "syntax error: dash does not know `function`"),
        ("dash", "cat <(echo a)", "syntax error: dash does not know `<(`"),
        ("dash", "a |& b", "syntax error: dash does not know `|&`"),
        ("dash", "for ((i=0; i<3; i++)); do :; done", "syntax error: dash does not know `for ((`"),
        ("dash", "X=${X^^}", "bad substitution: dash does not know it"),
        ("dash", "X=${X//o/a}", "bad substitution: dash does not know it"),
        ("dash", 'X="${@:1}"', "bad substitution: dash does not know it"),
        ("dash", "L=${L[1]}", "bad substitution: dash does not know it"),
        ("dash", "set -o pipefail", "dash has no option pipefail"),
        ("busybox", "[[ a == a ]] && source /etc/plain.env", "plain"),
        ("busybox", "function f { X=a; }; f", "a"),
        ("busybox", "set -eo pipefail; X=${X//o/a}", "ald"),
        ("busybox", "pushd /etc; X=a", "a"),
        ("busybox", "L=(a)", "syntax error: busybox does not know `=(`"),
        ("busybox", "X=${X^^}", "bad substitution: busybox does not know it"),
        ("bash", "set -u; X=$NONE", "NONE is not set (set -u)"),
        ("bash", "set -o nounset; X=${NONE:-a}$*$HOSTNAME$?", f"a{UNKNOWN}{UNKNOWN}"),
        ("bash", "set -u; X=$1", "1 is not set (set -u)"),
        ("bash", ": ${NONE:?give it}", "NONE is not set"),
        ("bash", ": ${X:?give it}; X=a", "a"),
        ("bash", "if lspci; then exit 1; fi; set -u; set +u; X=a$NONE", "a"),
    ],
)
def test_what_shells_understand(dialect: Dialect, script: str, value: str, tmp_path: Path) -> None:
    """sh of Debian and of busybox end at much that bash knows, or pass over it."""
    outcome = follow(tmp_path, f"{script}\nexec app", X="old", dialect=dialect)
    assert outcome is not None
    assert (outcome.ended or outcome.environment["X"]) == value


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
        "while true; do echo $X$X >> /tmp/a; cat /tmp/a /tmp/a > /tmp/b; done",
        "cat > /tmp/a <<E\n" + "$X" * 30000 + "\nE\n. /tmp/a",
        "for a in 1 2 3 4 5 6 7 8; do " * 4 + "ln -s $a $RANDOM; ln -s a b; . b; " + "done; " * 4,
    ],
)
def test_a_hostile_script_costs_little(script: str, tmp_path: Path) -> None:
    """Nothing of an image may take long to follow."""
    began = time.process_time()
    follow(tmp_path, script, X="eval $X")
    assert time.process_time() - began < 10
