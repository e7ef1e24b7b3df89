"""The installer of ``./dev install``: commands go to PREFIX/bin, all that they need to
PREFIX/lib/nvgraft.

It runs on the Python that it installs for, before anything of the project is installed, so it uses
the standard library alone. Registering the hook with a container engine does not belong here.

What the hook may load and what only the CLI may load lie in two directories: ``hook`` holds the
engine, its tables, python-prctl, pynvml and PyYAML, and is the one directory that the hook's
launcher adds to ``sys.path``; ``cli`` holds the rest, so that no package of somebody else's is
importable in a process that configures containers.
"""

import argparse
import importlib.machinery
import importlib.util
import os
import posixpath
import re
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

from nvgraft_cli.install import launcher, pack

if TYPE_CHECKING:
    from importlib.metadata import Distribution

#: The most bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE, Linux 5.1 and
#: newer).
SHEBANG_LIMIT = 255

#: Distribution -> its modules that the hook loads. All other requirements are the CLI's.
HOOK_MODULES = {
    "python-prctl": ("prctl", "_prctl"),
    "nvidia-ml-py": ("pynvml",),
    "pyyaml": ("yaml",),
}
_UNFINISHED = "pip installs it into .venv: remove an unfinished .venv, and try again"
#: Distribution -> the fix if it is missing.
_MISSING = {
    "python-prctl": "run apt-get install python3-prctl, or use PYTHON=/usr/bin/python3",
    "nvidia-ml-py": _UNFINISHED,
    "pyyaml": _UNFINISHED,
}

_PACKAGE = "/__init__.py"

HOOK = "nvgraft-hook"
CDI_HOOK = "nvgraft-cdi-hook"

#: The program of ``--device-plugin``, and the distributions that it alone requires.
DEVICE_PLUGIN = "nvgraft-device-plugin"
PLUGIN_REQUIREMENTS = ("grpcio", "prometheus-client", "protobuf")

#: Links of ``--names``: programs of the original stack, which ``docker --gpus`` and others search
#: in PATH -> our programs.
NAMES = {
    "nvidia-container-runtime-hook": HOOK,
    "nvidia-container-cli": "nvgraft",
    "nvidia-container-runtime": "nvgraft-runtime",
    "nvidia-cdi-hook": CDI_HOOK,
    "nvidia-ctk": CDI_HOOK,
}

#: Directories of a prefix for manual pages and completions, which root's shells read.
PAGES = (
    "share/man/man1",
    "share/bash-completion/completions",
    "share/zsh/site-functions",
    "share/fish/vendor_completions.d",
)

#: The units of systemd, beside this module and below a prefix. @PREFIX@ in them is the prefix.
UNITS = ("nvgraft-cdi-refresh.service",)
UNIT_DIRECTORY = "lib/systemd/system"

#: ``-I``: Python ignores its variables, the user's directory and the working directory. ``-S``: it
#: runs no .pth files. ``-B``: root writes no byte code at run time; the installer has written it.
LAUNCHER = """\
#!{python} -ISB
import sys

sys.path.{extend}
{load}from {module} import {function}

{call}
"""

#: What the engine's programs do with ``sys.path``: their directory comes before those of the
#: standard library, which need not be searched for the engine.
FIRST = 'insert(0, "{directory}")'

#: The first lines of the engine's programs; see nvgraft.startup. The garbage collector would
#: examine all loaded objects again and again, which stay until the process ends anyway
#: (docs/decisions/0002).
LOAD = """\
import gc

from nvgraft.startup import load

gc.disable()
load("{group}")
"""


class CannotInstall(Exception):
    """The reason why nothing was changed, and the fix; together they are one line for the user."""

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(f"{cause} | {fix}" if fix else cause)
        self.cause = cause
        self.fix = fix


def owned_by_root(path: str, links_left: int = 40) -> None:
    """Check that only root can replace ``path``, its existing parents, and the targets of links in
    it.

    :raises CannotInstall: naming the first directory, link or file that somebody else owns or may
        write to.
    """
    place = "/"
    for part in ("", *filter(None, path.split("/"))):
        place = posixpath.join(place, part)
        if not os.path.lexists(place):
            return
        info = os.lstat(place)
        # A directory of somebody else's, such as a home or /tmp, is not to be changed for nvgraft.
        elsewhere = (
            "choose a place below directories that only root can write to, such as /usr/local"
        )
        if info.st_uid != 0:
            fix = elsewhere if stat.S_ISDIR(info.st_mode) else f"run chown -h root {place}"
            raise CannotInstall(
                f"{place}: owned by user {info.st_uid}",
                f"root must own what the hook loads: {fix}",
            )
        if stat.S_ISLNK(info.st_mode):
            if not links_left:
                raise CannotInstall(f"{path}: too many symbolic links")
            owned_by_root(
                posixpath.join(posixpath.dirname(place), os.readlink(place)), links_left - 1
            )
        elif info.st_mode & 0o022:
            chmod = "" if info.st_mode & stat.S_ISVTX else f"run chmod go-w {place}, or "
            cause = f"{place}: group or others may write to it"
            raise CannotInstall(cause, f"{chmod}{elsewhere}")


def closure(packages: str, names: list[str]) -> "list[Distribution]":
    """Return the distributions ``names`` and their requirements that are installed in
    ``packages``.
    """
    from importlib.metadata import (
        # not at the top: all commands know the installer, and this is a tenth of their start
        distributions,
    )

    installed = {
        canonical(found.metadata["Name"]): found for found in distributions(path=[packages])
    }
    found: dict[str, Distribution] = {}
    wanted = [canonical(name) for name in names]
    while wanted:
        name = wanted.pop()
        if name in found or name not in installed:
            continue
        found[name] = installed[name]
        wanted += requirements(installed[name])
    return [found[name] for name in sorted(found)]


def canonical(name: str) -> str:
    """Return the normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(distribution: "Distribution") -> list[str]:
    """Return the names of the requirements of ``distribution``, without those of its extras."""
    rows = [row for row in distribution.requires or () if not re.search(r";.*\bextra\s*==", row)]
    return [
        canonical(match[0])
        for match in (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", row) for row in rows)
        if match
    ]


def module_file(packages: str, module: str) -> str | None:
    """Return the file of a top-level ``module``, from ``packages`` or else from this Python; of a
    package its ``__init__.py``.
    """
    endings = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES)
    for suffix in (*endings, _PACKAGE):
        path = f"{packages}/{module}{suffix}"
        if os.path.exists(path):
            return path
    spec = importlib.util.find_spec(module)
    return spec.origin if spec else None


def copy_file(source: str, target: str) -> None:
    """Copy the content of a file, without owner and mode."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)


def copy_package(source: str, target: str) -> None:
    """Copy a package directory without its byte code."""
    shutil.copytree(
        source, target, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("__pycache__")
    )


def fill_hook(stage: str, checkout: str, packages: str) -> None:
    """Copy to ``stage`` what the hook may load."""
    copy_package(f"{checkout}/hook/nvgraft", f"{stage}/nvgraft")
    copy_package(f"{checkout}/specs/nvgraft_specs", f"{stage}/nvgraft_specs")
    for distribution, modules in HOOK_MODULES.items():
        for module in modules:
            path = module_file(packages, module)
            if path is None:
                raise CannotInstall(
                    f"no {distribution} for {sys.executable}", _MISSING[distribution]
                )
            if path.endswith(_PACKAGE):
                copy_package(path.removesuffix(_PACKAGE), f"{stage}/{module}")
            else:
                copy_file(path, f"{stage}/{os.path.basename(path)}")


def fill_cli(stage: str, checkout: str, packages: str) -> None:
    """Copy to ``stage`` what only the CLI may load, and the device plugin, whose decisions it
    shares.
    """
    copy_package(f"{checkout}/cli/nvgraft_cli", f"{stage}/nvgraft_cli")
    copy_package(f"{checkout}/plugin/nvgraft_device_plugin", f"{stage}/nvgraft_device_plugin")
    from importlib.metadata import Distribution

    project = Distribution.discover(name="nvgraft", path=[packages])
    names = [
        name
        for distribution in project
        for name in requirements(distribution)
        if name not in HOOK_MODULES
    ]
    copy_distributions(stage, packages, names)


def copy_distributions(stage: str, packages: str, names: list[str]) -> None:
    """Copy to ``stage`` the distributions ``names`` and all that they require."""
    for found in closure(packages, names):
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                copy_file(str(found.locate_file(file)), f"{stage}/{file}")


def fill_plugin(stage: str, packages: str) -> None:
    """Copy to ``stage`` the distributions that only the running device plugin needs."""
    copy_distributions(stage, packages, list(PLUGIN_REQUIREMENTS))


def finish(stage: str, final: str) -> None:
    """Write byte code whose tracebacks name ``final``, and make all files root's and readable by
    all.
    """
    pack.compile_tree(stage, final)
    pack.pack_groups(f"{stage}/hook", f"{final}/hook")
    for directory, _, files in os.walk(stage):
        os.chown(directory, 0, 0)
        os.chmod(directory, 0o755)  # noqa: S103 - everybody may look, only root may write
        for path in (os.path.join(directory, name) for name in files):
            os.chown(path, 0, 0)
            os.chmod(path, 0o644)


def check_start(python: str, stage: str, *, with_plugin: bool = False) -> None:
    """Load all programs from ``stage`` as their launchers do, before they replace working ones.

    :raises CannotInstall: with the last line of what Python says.
    """
    for module, directories, groups in (
        ("nvgraft.hook", ["hook"], ["hook", "look", "apply"]),
        ("nvgraft.runtime", ["hook"], ["runtime"]),
        ("nvgraft.cdi_hook", ["hook"], ["cdi-hook"]),
        ("nvgraft_cli.shell.main", ["hook", "cli"], []),
        ("nvgraft_device_plugin.main", ["hook", "cli", "plugin"], []),
    )[: 5 if with_plugin else 4]:
        paths = [f"{stage}/{name}" for name in directories]
        program = (
            f"import sys; sys.path += {paths!r}; from nvgraft import startup;"
            f" [startup.load(group) for group in {groups!r}]; "
        )
        program += f"import prctl, {module}"
        done = subprocess.run(
            [python, "-ISB", "-c", program], capture_output=True, text=True, env={}, check=False
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise CannotInstall(f"{module} does not start on {python}: {said[-1]}")


def make_pages(python: str, stage: str, tools: str) -> None:
    """Make manual pages and completions in ``stage``/share, from the commands in ``stage``, and
    compile the templates of its web pages.

    :param tools: a directory with shtab and argparse-manpage.
    :raises CannotInstall: with the last line of what Python says.
    """
    program = (
        f"import sys; sys.path += {[f'{stage}/hook', f'{stage}/cli', tools]!r};"
        " from pathlib import Path; from nvgraft_cli.pages.__main__ import write;"
        f" write(Path({stage!r}));"
        " from nvgraft_cli.html.document import compile_templates; compile_templates()"
    )
    done = subprocess.run(
        [python, "-ISB", "-c", program], capture_output=True, text=True, env={}, check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CannotInstall(
            f"manual pages and completions cannot be made: {said[-1]}",
            "remove .venv, and try again",
        )


def place_pages(share: str, prefix: str) -> None:
    """Move the pages in ``share`` to the share directory of ``prefix``."""
    for directory, _, files in os.walk(share):
        target = f"{prefix}/share{directory.removeprefix(share)}"
        os.makedirs(target, exist_ok=True)
        for name in files:
            with open(f"{directory}/{name}", "rb") as file:
                write_file(f"{target}/{name}", file.read(), 0o644)
    shutil.rmtree(share)


def place_units(prefix: str) -> None:
    """Write the units of systemd below ``prefix``. None of them is enabled."""
    target = f"{prefix}/{UNIT_DIRECTORY}"
    os.makedirs(target, exist_ok=True)
    for name in UNITS:
        with open(f"{posixpath.dirname(__file__)}/{name}", encoding="ascii") as file:
            text = file.read().replace("@PREFIX@", prefix)
        write_file(f"{target}/{name}", text.encode(), 0o644)


def write_file(path: str, data: bytes, mode: int) -> None:
    """Replace a file of root's atomically."""
    draft = f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.new"
    with open(draft, "wb") as file:
        file.write(data)
    os.chown(draft, 0, 0)
    os.chmod(draft, mode)
    os.replace(draft, path)


def replace_tree(stage: str, final: str, old: str) -> None:
    """Move the ``stage`` directory to ``final``; restore the old one if that fails."""
    had_one = os.path.lexists(final)
    if had_one:
        os.rename(final, old)
    try:
        os.rename(stage, final)
    except OSError:
        if had_one:
            os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def check_places(prefix: str, python: str) -> None:
    """Check, before anything is written, paths and owners of installation and interpreter."""
    if os.geteuid() != 0:
        raise CannotInstall(
            "not root", "run this as root, who must own the files that the hook loads"
        )
    for name, path in (("PREFIX", prefix), ("PYTHON", python)):
        if not path.startswith("/") or posixpath.normpath(path) != path.rstrip("/"):
            raise CannotInstall(f"{name}={path}: not an absolute path without . and .. parts")
        if re.search(r"[\s\"\\]", path) or not path.isprintable():
            raise CannotInstall(
                f"{name}={path}: contains a character that a script's first line cannot have"
            )
    if len(f"#!{python} -ISB") > SHEBANG_LIMIT:
        raise CannotInstall(f"PYTHON={python}: too long for a script's first line")
    pages = [f"{prefix}/{directory}" for directory in (*PAGES, UNIT_DIRECTORY)]
    for path in (f"{prefix}/bin", f"{prefix}/lib", *pages, python):
        owned_by_root(path)


def check_names(directory: str) -> None:
    """Check, before anything is written, that the original names in ``directory`` are free or our
    links.
    """
    for name, ours in NAMES.items():
        path = f"{directory}/{name}"
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == ours):
            raise CannotInstall(
                f"{path}: exists and is not nvgraft's",
                "remove it or its package first, or choose another PREFIX",
            )


def link_names(directory: str, *, cdi_hook: bool = True) -> None:
    """Make the missing links from the original names to our programs.

    :param cdi_hook: false leaves out those of the CDI hook, and removes former ones: foreign
        specifications may start it without an env, which is safe only behind the static program.
    """
    for name, ours in NAMES.items():
        place = f"{directory}/{name}"
        if ours == CDI_HOOK and not cdi_hook:
            if os.path.lexists(place):
                os.unlink(place)
        elif not os.path.lexists(place):
            os.symlink(ours, place)


def static_launcher(
    python: str, script: str, variables: tuple[str, ...] = launcher.HOOK_VARIABLES
) -> bytes:
    """Return the static program that starts a hook's ``script``, assembled on this machine.

    :param variables: the variables that the hook reads.

    :raises CannotInstall: there is no source for this machine, or no assembler on it.
    """
    machine = os.uname().machine
    if machine not in launcher.MACHINES:
        known = " and ".join(launcher.MACHINES)
        raise CannotInstall(
            f"--launcher: not for {machine}, only for {known}", "install without --launcher"
        )
    missing = [name for name in launcher.TOOLS if shutil.which(name) is None]
    if missing:
        raise CannotInstall(
            f"--launcher: there is no program {' and no '.join(missing)} to assemble its source",
            "run apt-get install binutils gcc, or install without --launcher",
        )
    try:
        code = launcher.assemble(machine)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise CannotInstall(
            f"--launcher: {error.cmd[0]} failed: {said[-1]}",
            "run apt-get install --reinstall binutils, or install without --launcher",
        ) from error
    return launcher.build(launcher.LaunchedScript(python, script, variables), machine, code)


def install(
    checkout: str,
    packages: str,
    prefix: str,
    python: str,
    *,
    tools: str = "",
    names: bool = False,
    with_launcher: bool = False,
    with_plugin: bool = False,
) -> str:
    """Install below ``prefix`` for the interpreter ``python``, which must be the one that runs
    this.

    :param packages: a site-packages directory with the project's dependencies for that interpreter.
    :param tools: a directory with the packages that make manual pages; by default ``packages``.
    :param names: also link the names of the original programs.
    :param with_launcher: put a static program in front of nvgraft-hook, for registrations without
        an env. nvgraft-cdi-hook has one wherever it can be assembled.
    :param with_plugin: also install the device plugin for Kubernetes.
    :returns: why nvgraft-cdi-hook has none, and the fix; "" if it has one.
    :raises CannotInstall: and leaves what was installed before as it was.
    """
    prefix = prefix.rstrip("/")
    check_places(prefix, python)
    if names:
        check_names(f"{prefix}/bin")
    os.umask(0o022)
    behind = f"{prefix}/lib/nvgraft"
    fronts: dict[str, bytes] = {}
    lacking = ""
    if with_launcher:
        fronts[HOOK] = static_launcher(python, f"{behind}/{HOOK}")
    try:
        fronts[CDI_HOOK] = static_launcher(python, f"{behind}/{CDI_HOOK}", ())
    except CannotInstall as error:
        lacking = error.cause.removeprefix("--launcher: ")
    final, stage, old = (
        f"{prefix}/lib/{name}" for name in ("nvgraft", ".nvgraft.new", ".nvgraft.old")
    )
    for directory in (f"{prefix}/bin", f"{prefix}/lib"):
        os.makedirs(directory, exist_ok=True)
    for left_over in (stage, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        fill_hook(f"{stage}/hook", checkout, packages)
        fill_cli(f"{stage}/cli", checkout, packages)
        if with_plugin:
            fill_plugin(f"{stage}/plugin", packages)
        copy_package(f"{checkout}/docs", f"{stage}/docs")  # what `nvgraft explain` links to
        make_pages(python, stage, tools or packages)
        finish(stage, final)
        check_start(python, stage, with_plugin=with_plugin)
        replace_tree(stage, final, old)
        place_pages(f"{final}/share", prefix)
        place_units(prefix)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    hook, cli = f"{final}/hook", f"{final}/cli"
    first = FIRST.format(directory=hook)
    both = f'extend(("{hook}", "{cli}"))'
    all_three = f'extend(("{hook}", "{cli}", "{final}/plugin"))'
    called = "raise SystemExit(main())"
    plugin_program = (DEVICE_PLUGIN, all_three, "", "nvgraft_device_plugin.main", "main", called)
    for name, extend, group, module, function, call in (
        (HOOK, first, "hook", "nvgraft.hook", "run", "run(sys.argv)"),
        (
            "nvgraft-runtime",
            first,
            "runtime",
            "nvgraft.runtime",
            "main",
            "raise SystemExit(main(sys.argv))",
        ),
        (CDI_HOOK, first, "cdi-hook", "nvgraft.cdi_hook", "run", "run(sys.argv)"),
        ("nvgraft", both, "", "nvgraft_cli.shell.main", "main", called),
        *([plugin_program] if with_plugin else []),
    ):
        load = LOAD.format(group=group) if group else ""
        script = LAUNCHER.format(
            python=python, extend=extend, load=load, module=module, function=function, call=call
        ).encode()
        if name in fronts:
            write_file(f"{behind}/{name}", script, 0o755)
            script = fronts[name]
        write_file(f"{prefix}/bin/{name}", script, 0o755)
    if names:
        link_names(f"{prefix}/bin", cdi_hook=not lacking)
    return lacking


def main() -> int:
    """Install, or print in one line why that is not possible."""
    parser = argparse.ArgumentParser(prog="install", description="see ./dev help")
    for name in ("checkout", "packages", "tools", "prefix", "python"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--launcher", action="store_true")
    parser.add_argument("--device-plugin", action="store_true")
    options = parser.parse_args()
    try:
        lacking = install(
            options.checkout,
            options.packages,
            options.prefix,
            options.python,
            tools=options.tools,
            names=options.names,
            with_launcher=options.launcher,
            with_plugin=options.device_plugin,
        )
    except (CannotInstall, OSError) as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    print(
        f"installed: {options.prefix.rstrip('/')}/bin/nvgraft-hook, nvgraft-runtime,"
        f" nvgraft-cdi-hook and nvgraft, for {options.python}"
    )
    if lacking:
        print(
            f"install: nvgraft-cdi-hook has no static first program: {lacking} | use it"
            " only in specifications that give each hook an env, as nvgraft's do (the names"
            " nvidia-cdi-hook and nvidia-ctk are not linked to it), or run apt-get install binutils"
            " and install again",
            file=sys.stderr,
        )
    return 0
