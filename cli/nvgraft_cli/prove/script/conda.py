"""What conda, mamba and micromamba do when they activate an environment of an image."""

import posixpath
import shlex
from collections.abc import Callable, Mapping

#: The programs that have environments.
PROGRAMS = {"conda", "mamba", "micromamba"}
#: Where installations are, beside those that variables name.
_ROOTS = (
    "/opt/conda",
    "/opt/miniconda3",
    "/opt/miniforge3",
    "/root/miniconda3",
    "/root/miniforge3",
)
#: Options of `conda run` that take a value, and those of them that name the environment.
_NAMING = {"-n", "--name", "-p", "--prefix"}
_VALUES = {*_NAMING, "--cwd", "-r", "--root-prefix", "-a", "--attach", "-e", "--env"}


def activation(
    environment: str, program: str, variables: Mapping[str, str], is_there: Callable[[str], bool]
) -> str | None:
    """Return the commands of a shell that stand for the activation of an environment.

    It is None for an environment that is not found.

    :param environment: its name or path; "" for the one of the installation itself.
    :param program: the path of the program, "" if that is not known.
    """
    prefix = _prefix(environment, program, variables, is_there)
    if prefix is None:
        return None
    quoted = shlex.quote(prefix)
    return (
        f"export CONDA_PREFIX={quoted}\n"
        f"export CONDA_DEFAULT_ENV={shlex.quote(environment or 'base')}\n"
        f'export PATH={quoted}/bin:"$PATH"\n'
        f"for _script in {quoted}/etc/conda/activate.d/*.sh; do\n"
        '  if [ -e "$_script" ]; then . "$_script"; fi\n'
        "done\n"
    )


def run_by(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the environment and the command of `conda run`; None for other commands."""
    if words[1:2] != ["run"]:
        return None
    rest, environment = list(words[2:]), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in _VALUES and not equals and rest:
            value = rest.pop(0)
        environment = value if option in _NAMING else environment
    return environment, rest


def _prefix(
    environment: str, program: str, variables: Mapping[str, str], is_there: Callable[[str], bool]
) -> str | None:
    if "/" in environment:
        return environment if is_there(environment) else None
    exe = program or variables.get("CONDA_EXE", "")
    named = (variables.get(name, "") for name in ("MAMBA_ROOT_PREFIX", "CONDA_DIR"))
    roots = [posixpath.dirname(posixpath.dirname(exe)) if exe else "", *named, *_ROOTS]
    base = environment in {"", "base"}
    prefixes = [
        root if base else posixpath.join(root, "envs", environment) for root in filter(None, roots)
    ]
    # The program may be outside of the installation: /usr has a bin too, but no conda-meta.
    marked = (
        prefix
        for mark in ("conda-meta", "bin")
        for prefix in prefixes
        if is_there(posixpath.join(prefix, mark))
    )
    return next(marked, None)
