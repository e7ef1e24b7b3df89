"""The program that the container runs, behind programs and scripts that start it."""

from pathlib import Path

import pytest

from bundles import put
from loaders import ELF, LOADER, Captured, run_prove, starters_bundle

PYTHON = """#!/usr/bin/python3
import os, sys
os.environ["LD_LIBRARY_PATH"] = "/opt/x"
os.execvp(sys.argv[1], sys.argv[1:])
"""

RUN = "#!/usr/bin/sh\nexport LD_LIBRARY_PATH=/opt/x\nexec app\n"

EXECLINE = """#!/usr/bin/execlineb -P
# a service
foreground { echo { x } }
export LD_LIBRARY_PATH /opt/x
app -x
"""

CONDA: dict[str, str | bytes] = {
    "usr/bin/conda": ELF,
    "opt/conda/envs/ml/bin/other": ELF,
    "opt/conda/envs/ml/etc/conda/activate.d/a.sh": "export LD_LIBRARY_PATH=/opt/x\n",
    "opt/conda/envs/new/conda-meta/history": "",
    "opt/conda/envs/new/etc/conda/activate.d/a.sh": "export LD_LIBRARY_PATH=/opt/x\n",
}
#: An installation whose program is elsewhere, as micromamba's images have it.
BASE: dict[str, str | bytes] = {
    "opt/conda/conda-meta/history": "",
    "opt/conda/etc/conda/activate.d/a.sh": "export LD_LIBRARY_PATH=/opt/x\n",
}

SUPERVISED = "[program:one]\ncommand=app -x\n"


@pytest.mark.parametrize(
    ("args", "program"),
    [
        (["app"], "/usr/bin/app"),
        (["tini", "-g", "-p", "SIGTERM", "--", "app", "-x"], "/usr/bin/app"),
        (["env", "-u", "HOME", "A=1", "app"], "/usr/bin/app"),
        (["env"], "/usr/bin/env"),
        (["timeout", "-s", "KILL", "5", "app"], "/usr/bin/app"),
        (["gosu", "user", "nice", "app"], "/usr/bin/app"),
        (["sh", "-c", 'exec app --all "$@"', "sh"], "/usr/bin/app"),
        (["sh", "-ec", "A=1 tini app"], "/usr/bin/app"),
        (["sh", "-c", "cd /opt && app"], "/usr/bin/app"),
        (["bash", "-euo", "pipefail", "-c", "cd /opt && exec app"], "/usr/bin/app"),
        (["bash", "-eo", "pipefail", "-o", "errtrace", "-c", "app"], "/usr/bin/app"),
        (["bash", "-euxoc", "pipefail", "app"], "/usr/bin/app"),
        (["sh", "-c", "mkdir -p /x; ./bin/own & wait"], "/opt/app/bin/own"),
        (["sh", "-c", "none; "], "/usr/bin/sh"),
        (["sh", "/entry.sh", "app"], "/usr/bin/app"),
        (["sh", "-c", "$PROGRAM"], "/usr/bin/sh"),
        (["sh", "-c"], "/usr/bin/sh"),
        (["sh"], "/usr/bin/sh"),
        (["/entry.sh", "app"], "/usr/bin/app"),
        (["/entry.sh"], "/bin/sh"),
        (["/start.sh", "app"], "/usr/bin/app"),
        (["/run.py"], "/usr/bin/app"),
        (["./bin/own"], "/opt/app/bin/own"),
        ([LOADER, "--argv0", "x", "/usr/bin/app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "nice", "app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "sh", "-c", "exec app"], "/usr/bin/app"),
        (["/usr/bin/busybox", "httpd"], "/usr/bin/busybox"),
        (["/opt/busybox-1.36", "nice", "app"], "/usr/bin/app"),
        (["s6-notifyoncheck", "-d", "-n", "300", "-c", "nc host", "nice", "app"], "/usr/bin/app"),
        (["bash", "-e", "in_path", "app"], "/usr/bin/app"),
        (["unknown", "--wait", "x", "--", "nice", "app", "-x"], "/usr/bin/app"),
        (["unknown", "--", "none"], "/usr/bin/unknown"),
        (["script", "-qec", "nice app", "/dev/null"], "/usr/bin/app"),
        (["find", "/x", "-exec", "app", "{}", ";"], "/usr/bin/app"),
        (["start-stop-daemon", "-S", "-x", "/usr/bin/env", "--", "A=1", "app"], "/usr/bin/app"),
        (["start-stop-daemon", "--start", "--exec=/usr/bin/app"], "/usr/bin/app"),
        (["chroot", "--userspec=1:1", "/", "app"], "/usr/bin/app"),
        (["chroot", "/jail", "app"], "/usr/bin/chroot"),
    ],
)
def test_the_program_that_the_container_runs(
    args: list[str], program: str, tmp_path: Path, capsys: Captured
) -> None:
    """Programs that become their argument are passed over; of a shell's commands, the last one that
    does more than prepare a start is the program. A shell is it where that is not known.
    """
    path = starters_bundle(tmp_path / "b", args=args, cwd="/opt/app")
    (tmp_path / "b/rootfs/bin").symlink_to("usr/bin")
    names = ("s6-notifyoncheck", "unknown", "script", "find", "start-stop-daemon", "chroot")
    for name in ("opt/busybox-1.36", *(f"usr/bin/{name}" for name in names)):
        put(tmp_path / "b/rootfs" / name, ELF)
    put(tmp_path / "b/rootfs/usr/bin/in_path", 'exec "$@"\n')
    _, (proof,) = run_prove(capsys, "--bundle", path)
    assert proof["program"] == program


@pytest.mark.parametrize(
    ("args", "env", "others"),
    [
        (["env", "LD_LIBRARY_PATH=/opt/x", "app"], [], True),
        (["env", "-i", "/usr/bin/app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        (["env", "-u", "LD_LIBRARY_PATH", "app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        (["sh", "-c", "LD_LIBRARY_PATH=/opt/x exec app"], [], True),
        ([LOADER, "--library-path", "/opt/x", "/usr/bin/app"], [], True),
        (["env", "-C", "/opt", "app"], ["LD_LIBRARY_PATH=x"], True),
        (["env", "-u", "LD_LIBRARY_PATH", "-C", "/", "app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        ([LOADER, "--library-path=/none", "/usr/bin/app"], ["LD_LIBRARY_PATH=/opt/x"], False),
        ([LOADER, "--preload", "/opt/x/libcuda.so.1", "/usr/bin/app"], [], True),
    ],
)
def test_what_starts_a_program_gives_it_variables(
    args: list[str], env: list[str], others: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Variables on the way count, and options of a loader in their place."""
    path = starters_bundle(tmp_path / "b", *env, args=args)
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert code == (4 if others else 0)
    assert (proof["file"]["path"] == "/opt/x/libcuda.so.1") is others
    assert f"the container starts it through {Path(args[0]).name}" in proof["notes"]


@pytest.mark.parametrize(
    ("args", "files", "code", "unknown"),
    [
        (["/run.py", "app"], {"run.py": PYTHON}, 4, ""),
        (["python3", "-u", "/run.py", "app"], {"run.py": PYTHON}, 4, ""),
        (["python3", "-c", PYTHON, "app"], {}, 4, ""),
        (
            ["python3", "/run.py", "app"],
            {
                "run.py": "import random\n"
                + PYTHON.replace("os.exec", "random.random() and os.exec")
            },
            0,
            "what the script becomes by os.execvp in line 5 (/run.py)",
        ),
        (
            ["perl", "/run.pl", "app"],
            {"run.pl": "$ENV{LD_LIBRARY_PATH} = '/opt/x';\nexec @ARGV;"},
            4,
            "",
        ),
        (["flock", "-n", "/x", "env", "LD_LIBRARY_PATH=/opt/x", "app"], {}, 4, ""),
        (["flock", "/x", "-c", "LD_LIBRARY_PATH=/opt/x app"], {}, 4, ""),
        (["s6-envdir", "/env", "app"], {"env/LD_LIBRARY_PATH": "/opt/x\nmore"}, 4, ""),
        (["chpst", "-u", "nobody", "-e/env", "app"], {"env/LD_LIBRARY_PATH": "/opt/x"}, 4, ""),
        (["envdir", "/env", "app"], {"env/PLACE": ""}, 0, ""),
        (
            ["capsh", "--drop=all", "--", "-c", "LD_LIBRARY_PATH=/opt/x app"],
            {"bin/bash": ELF},
            4,
            "",
        ),
        (["capsh", "--print"], {}, 0, ""),
        (["sh", "-c", "/plain"], {"plain": "LD_LIBRARY_PATH=/opt/x app\n", "bin/sh": ELF}, 4, ""),
        (["env", "/plain"], {"plain": "LD_LIBRARY_PATH=/opt/x app\n", "bin/sh": ELF}, 4, ""),
        (["/run.el"], {"run.el": EXECLINE}, 4, ""),
        (["execlineb", "-P", "-c", "unexport PLACE cd /x fdmove -c 2 1 app"], {}, 0, ""),
        (
            ["execlineb", "-c", "importas A B export LD_LIBRARY_PATH $A app"],
            {},
            0,
            "which of the programs that /usr/bin/execlineb starts opens the library",
        ),
        (
            ["supervisord", "-c", "/s.conf"],
            {"s.conf": SUPERVISED + 'environment=A="1",LD_LIBRARY_PATH="%(ENV_PLACE)s"\n'},
            4,
            "",
        ),
        (
            ["supervisord"],
            {
                "etc/supervisord.conf": "[include]\nfiles = s/*.conf\n[supervisord]\nenvironment=LD_LIBRARY_PATH=/opt/x",
                "etc/s/a.conf": SUPERVISED,
                "etc/s/b.conf": SUPERVISED.replace("one", "two").replace("app", "/bin/sleep"),
                "etc/s/c.conf": SUPERVISED.replace("one", "three") + "autostart=false\n",
            },
            4,
            "",
        ),
        (
            ["supervisord", "--configuration=/s.conf"],
            {"s.conf": SUPERVISED + SUPERVISED.replace("one", "two")},
            0,
            "which of the programs that /usr/bin/supervisord starts opens the library",
        ),
        (
            ["s6-svscan", "/s"],
            {"s/a/run": RUN, "s/.x/run": RUN, "s/b/run": RUN, "s/b/down": ""},
            4,
            "",
        ),
        (["/init"], {"init": ELF, "etc/s6/x": "", "etc/services.d/a/run": RUN}, 4, ""),
        (["/init", "env", "LD_LIBRARY_PATH=/opt/x", "app"], {"init": ELF, "etc/s6/x": ""}, 4, ""),
        (
            ["systemd"],
            {},
            0,
            "which of the programs that /usr/bin/systemd starts opens the library",
        ),
        (["conda", "run", "-n", "ml", "--no-capture-output", "app"], CONDA, 4, ""),
        (["micromamba", "run", "-p", "/opt/conda/envs/ml", "app"], CONDA, 4, ""),
        (["conda", "run", "-n", "new", "app"], CONDA, 4, ""),
        (["conda", "run", "-n", "none", "app"], CONDA, 0, "what `conda run -n none app` starts"),
        (["bash", "-c", "conda activate ml && exec app"], CONDA, 4, ""),
        (
            ["bash", "-c", "conda activate none; exec app"],
            CONDA,
            0,
            "what `conda activate none` sets",
        ),
        (["bash", "-c", "micromamba activate base && exec app"], BASE, 4, ""),
        (["bash", "-c", "echo 'export LD_LIBRARY_PATH=/opt/x; app' >/r; bash /r"], {}, 4, ""),
        (["bash", "-c", "echo 'LD_LIBRARY_PATH=/opt/x' >/r; set -a; . /r; app"], {}, 4, ""),
    ],
)
def test_programs_that_start_the_program(
    args: list[str],
    files: dict[str, str | bytes],
    code: int,
    unknown: str,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """Scripts of Python and Perl, supervisors and conda are followed where that is plain, and it is
    told where it is not.
    """
    path = starters_bundle(tmp_path / "b", "PLACE=/opt/x", args=args)
    names = (
        "envdir",
        "s6-envdir",
        "chpst",
        "capsh",
        "execlineb",
        "python3",
        "perl",
        "flock",
        "supervisord",
        "s6-svscan",
        "systemd",
        "micromamba",
    )
    for name in names:
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    for name, content in files.items():
        put(tmp_path / "b/rootfs" / name, content)
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    told = [text for text in proof["unknown"] if not text.startswith("the search directories")]
    assert all(text.startswith(unknown) for text in told)
    assert bool(told) is bool(unknown)


def test_a_script_that_is_called_like_a_starter_is_followed(
    tmp_path: Path, capsys: Captured
) -> None:
    """What such a script sets counts: s6 images have a with-contenv of their own."""
    path = starters_bundle(tmp_path / "b", args=["nice", "app"])
    script = tmp_path / "b/rootfs/usr/bin/nice"
    script.write_text('#!/usr/bin/sh\nexport LD_LIBRARY_PATH=/opt/x\nexec "$@"\n')
    assert run_prove(capsys, "--bundle", path)[0] == 4


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (["make", "run"], "what `make run` starts, with which variables"),
        (["/x.csh"], "what `/usr/bin/tcsh /x.csh` starts, with which variables"),
        (["sh", "-c", ") app"], "what the script starts, with which variables"),
        (["sh", "/x.csh"], "what the script /x.csh starts, with which variables"),
        (["sh", "-c", 'shift $(date); exec "$@"'], "what the script starts, with which variables"),
        (["make"], ""),
    ],
)
def test_a_starter_that_is_not_followed(
    args: list[str], fact: str, tmp_path: Path, capsys: Captured
) -> None:
    """What starts other programs by files in a language that is not read here is told."""
    path = starters_bundle(tmp_path / "b", args=args)
    for name in ("make", "tcsh"):
        put(tmp_path / "b/rootfs/usr/bin" / name, ELF)
    put(tmp_path / "b/rootfs/x.csh", "#!/usr/bin/tcsh\nsetenv LD_LIBRARY_PATH /opt/x\n) app\n")
    _, (proof,) = run_prove(capsys, "--bundle", path)
    assert [text for text in proof["unknown"] if text.startswith("what ")] == [fact] * bool(fact)
