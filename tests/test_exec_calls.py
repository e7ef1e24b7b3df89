"""What a Python or Perl script becomes, as far as its text says it plainly."""

import time

import pytest

from nvgraft_cli.prove.script.exec_calls import ScriptCommand, perl_starts, python_starts

EXEC = "os.execvp(sys.argv[1], sys.argv[1:])"


def python(text: str, **variables: str) -> ScriptCommand | str | None:
    """Follow a Python script with the arguments app and -x."""
    words = ["/entry.py", "app", "-x"]
    return python_starts(text, words, variables, lambda path: path == "/opt/x", "/usr/bin/python3")


@pytest.mark.parametrize(
    ("text", "words", "value"),
    [
        (f"os.environ['X'] = 'a' + os.environ['Y']\n{EXEC}", "app -x", "ab"),
        (f"os.environ.update(X=f'{{os.environ[\"Y\"]}}!')\n{EXEC}", "app -x", "b!"),
        (
            f"os.environ.setdefault('Y', 'c'); os.environ['X'] = os.getenv('Y')\n{EXEC}",
            "app -x",
            "b",
        ),
        (
            f"if os.path.exists('/opt/x') and len(sys.argv) > 2:\n  os.environ['X'] = '1'\n{EXEC}",
            "app -x",
            "1",
        ),
        (f"if 'Z' in os.environ:\n  os.environ['X'] = '1'\n{EXEC}", "app -x", None),
        (f"for n in ['X', 'Z']:\n  os.environ[n] = n\n{EXEC}", "app -x", "X"),
        ("os.execl('/bin/a', 'name', 'b')", "/bin/a b", None),
        (
            "os.execve('/bin/a', ['a', *sys.argv[1:]], {**os.environ, 'X': '1'})",
            "/bin/a app -x",
            "1",
        ),
        (
            "e = dict(os.environ)\ne['X'] = ':'.join(['1', '2'])\nos.execvpe('a', ['a'], e)",
            "a",
            "1:2",
        ),
        (
            "def main(first, more='y'):\n  return [first] + [more]\nos.execv('/a', main('x'))",
            "/a y",
            None,
        ),
        ("def run():\n  os.execv('/a', ['a'])\nif __name__ == '__main__':\n  run()", "/a", None),
        ("sys.exit(subprocess.run(['a', 'b'], env={'X': '1'}).returncode)", "a b", "1"),
        ("subprocess.check_call('a | b', shell=True)", "/bin/sh -c a | b", None),
        ("from subprocess import Popen as p\np(['first']); p(['second'])", "second", None),
        (
            "cmd = []\ncmd.append('a'); cmd.extend(sys.argv[2:]); cmd += ['z']\nos.execvp(cmd[0], cmd)",
            "a -x z",
            None,
        ),
        ("try:\n  os.execv('/a', ['a'])\nexcept OSError:\n  pass", "/a", None),
        ("subprocess.run(['a'], env=dict(os.environ, X='1'))", "a", "1"),
        ("m = {'X': '1'}\nsubprocess.run(['a'], env=dict(Z='2', **m))", "a", "1"),
        ("m = {'X': '1'}\nos.environ.update(**m)\nos.execv('/a', ['a'])", "/a", "1"),
        ("o = {'env': {'X': '1'}}\nsubprocess.run(['a'], **o)", "a", "1"),
        ("os.execve('/a', ['a'], os.environ | {'X': '1'})", "/a", "1"),
        ("e = os.environ.copy()\ne |= {'X': '1'}\nsubprocess.run(['a'], env=e)", "a", "1"),
        ("os.environ |= {'X': '1'}\nos.execv('/a', ['a'])", "/a", "1"),
    ],
)
def test_a_python_script_becomes_a_command(text: str, words: str, value: str | None) -> None:
    """Plain statements are followed: os.environ, sys.argv, conditions, functions, os.exec*."""
    found = python(f"import os, subprocess, sys\n{text}\n", Y="b")
    assert isinstance(found, ScriptCommand)
    assert " ".join(found.words) == words
    assert found.environment.get("X") == value


@pytest.mark.parametrize(
    "text",
    [
        f"if time.time() > 1:\n  os.environ['X'] = '1'\n  os.environ.update(Y='1')\n{EXEC}",
        "if random():\n  os.execv('/a', ['a'])",
        "os.execv(find(), ['a'])",
        "while True:\n  os.execv('/a', ['a'])",
        f"os.environ[name()] = '1'\n{EXEC}",
        "a = ['x']\nfor n in range(9):\n  a.extend(a)\n" + "a.extend(a)\n" * 99 + EXEC,
        "def f():\n  f()\nf()\n" + EXEC,
        "os.execve('/a', ['a'], dict(os.environ, **found()))",
        "os.execve('/a', ['a'], dict(zip(a, b)))",
        f"os.environ.update(**found())\n{EXEC}",
        f"os.environ |= found()\n{EXEC}",
    ],
)
def test_what_is_not_known_of_a_python_script_is_told(text: str) -> None:
    """A command or variable that is not plain is never guessed."""
    found = python(f"import os, sys, time\n{text}\n")
    assert isinstance(found, str)
    assert found.startswith("what the script becomes by os.exec")


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.run()",
        "import subprocess, torch\nsubprocess.run(['nvidia-smi'])",
        f"import os, sys\nif len(sys.argv) > 5:\n  {EXEC}\nsys.exit(0)",
        "import os, sys\nraise SystemExit\n" + EXEC,
        "not Python",
        "(" * 999,
        "-" * 99999 + "1",
    ],
)
def test_a_python_script_that_runs_itself(text: str) -> None:
    """A script that becomes nothing else, or only runs programs beside its own work, stays."""
    assert python(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "import os\nx = 'a'\n" + "x = x + x\n" * 5000 + EXEC,
        "import os\nx = " + "+".join(["'a'"] * 9000) + "\n" + EXEC,
        "import os\nfor a in [1, 2, 3, 4, 5, 6, 7, 8]:\n"
        + "".join(f"{' ' * n}for b in [1, 2, 3]:\n" for n in range(1, 15))
        + " " * 15
        + "x = 1\n"
        + EXEC,
    ],
)
def test_a_hostile_python_script_costs_little(text: str) -> None:
    """Nothing of an image may take long to follow."""
    began = time.process_time()
    python(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "words", "value"),
    [
        ("use strict;\n$ENV{X} = '1'; # text\nexec @ARGV;", "app -x", "1"),
        ("$ENV{'X'} = \"1\";\nexec('/bin/a', '-b', @ARGV);\n", "/bin/a -b app -x", "1"),
        ("exec 'a b | c';", "/bin/sh -c a b | c", None),
        ("print 'hello';\nexec 'a' or die;", None, None),
        ("if ($x) { $ENV{X} = 1 }\nexec @ARGV;", None, None),
    ],
)
def test_a_perl_script(text: str, words: str | None, value: str | None) -> None:
    """Assignments of plain texts to %ENV and an exec are followed; of others it is told."""
    found = perl_starts(f"#!/usr/bin/perl\n{text}\n", ["/entry.pl", "app", "-x"], {})
    if words is None:
        assert found == "what the script becomes by exec"
    else:
        assert isinstance(found, ScriptCommand)
        assert (" ".join(found.words), found.environment.get("X")) == (words, value)


def test_a_perl_script_that_runs_itself() -> None:
    """A script without exec is its interpreter's."""
    assert perl_starts("# exec\nprint 1;\n", ["/entry.pl"], {}) is None
