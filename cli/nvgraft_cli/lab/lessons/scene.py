"""The node and the containers of a lesson: made whole first, then broken as the lesson says."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from nvgraft.base.files import reason
from nvgraft.system import syscalls
from nvgraft_cli.install import install
from nvgraft_cli.lab.ground import node
from nvgraft_cli.lab.lessons import modules
from nvgraft_cli.lab.lessons.reality import Originals
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.simulate import cuda_runtime, demo, recipe, running
from nvgraft_cli.simulate.standins.build import CannotCompile
from nvgraft_specs import gallery
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models.host import Host, parse_host
from nvgraft_specs.models.lesson import DIRECTORY, Lesson, LessonChange, LessonContainer

HOOK, CDI_HOOK, RUNTIME = install.HOOK, install.CDI_HOOK, "nvgraft-runtime"

#: Programs of the engine -> module, its function, and the call.
_ENGINE = {
    HOOK: ("nvgraft.hook", "run", "run(sys.argv)"),
    RUNTIME: ("nvgraft.runtime", "main", "raise SystemExit(main(sys.argv))"),
    CDI_HOOK: ("nvgraft.cdi_hook", "run", "run(sys.argv)"),
}
#: The program that `nvgraft cdi generate` names, as NVIDIA's does.
_CDI_HOOK_OF_SPECIFICATIONS = Path("/usr/bin/nvidia-cdi-hook")
#: Each container's config.json as the lesson has made it.
MADE = f"{node.WORK}/made"
#: Programs of busybox that the images have, besides those of the demonstration.
_APPLETS = (
    *("chmod", "env", "head", "id", "mkdir", "mount", "ps", "rm", "sleep", "stat", "tail", "touch"),
)
_CHECK, _BUSYBOX = "usr/bin/cuda-check", "/bin/busybox"
#: The cache that the loader of a Nix image reads: a path of the same length.
_ETC_CACHE, _NIX_CACHE = b"/etc/ld.so.cache", b"/nix/ld.so.cache"
#: CUDA's error where the compatibility libraries do not serve the GPU (GeForce).
_COMPAT = 804
_SYSTEM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


def read_node(name: str) -> tuple[bytes, Host]:
    """Return the document of the node of a lesson, as text and as its model.

    :param name: a name of the gallery, or a line of ``nvgraft simulate --make``.
    :raises InputError: it names none.
    """
    try:
        if name in gallery.names():
            _, text, host = running.read_host(name)
            return text, host
        text = json.dumps(recipe.make_document(name, "node")).encode()
        return text, parse_host(text, name)
    except (recipe.WrongRecipe, DocumentError) as error:
        raise InputError(f"node {name!r}: {error}") from error


class LessonScene:
    """The directory of a lesson on the node.

    :ivar originals: the programs of its images, and of the driver.
    """

    def __init__(self, lesson: Lesson, host: Host, cgroup: str) -> None:
        """Make it. The caller is on the simulated node.

        :param cgroup: the name of the cgroup that containers are in.
        :raises InputError: a change cannot be made, or this machine lacks something.
        """
        self.lesson = lesson
        self._cgroup = cgroup
        for name, program in _ENGINE.items():
            _add_program(name, *program)
        _CDI_HOOK_OF_SPECIFICATIONS.unlink(missing_ok=True)
        _CDI_HOOK_OF_SPECIFICATIONS.symlink_to(f"{node.PROGRAMS}/{CDI_HOOK}")
        _replace_module_programs()
        modules.prepare(host, lesson.failures)
        os.mkdir(DIRECTORY)
        # The containers' root file systems are layers: on memory of their own they can be stacked.
        syscalls.mount("tmpfs", DIRECTORY, "tmpfs", 0, "mode=0755")
        try:
            for name, container in lesson.containers.items():
                self._make_bundle(name, container)
        except (CannotCompile, demo.DemoFailed) as error:
            raise InputError(f"{error} | install what is missing", 1) from error
        except OSError as error:
            raise InputError(f"the lesson's containers: {error} | correct the lesson", 1) from error
        for change in lesson.changes:
            try:
                _make(change)
            except OSError as error:
                cause = f"{reason(error)} | correct the lesson"
                raise InputError(f"the lesson's change of {change.path}: {cause}", 1) from error
            except (DocumentError, ValueError) as error:
                raise InputError(f"the lesson's change of {change.path}: {error}", 1) from error
        images = [f"{DIRECTORY}/{name}/rootfs" for name in lesson.containers]
        own = [
            change.path.removeprefix(image)
            for change in lesson.changes
            for image in images
            if change.path.startswith(f"{image}/") and os.access(change.path, os.X_OK)
        ]
        self.originals = Originals(host, images, [_BUSYBOX, f"/{_CHECK}", *own])

    def _make_bundle(self, name: str, container: LessonContainer) -> None:
        bundle = f"{DIRECTORY}/{name}"
        _make_image(f"{bundle}/rootfs", container)
        demo.run("runc", "spec", "--bundle", bundle)
        path = Path(bundle, "config.json")
        config: dict[str, Any] = json.loads(path.read_bytes())
        config["process"] |= {
            "terminal": False,
            "args": container.program,
            "env": [demo.PATH, *container.env],
        }
        config["root"]["readonly"] = False
        config["mounts"] += [
            {**mount.model_dump(), "type": "bind", "options": ["rbind", "ro"]}
            for mount in container.mounts
        ]
        # As engines with systemd's driver write it, or those with cgroupfs.
        config["linux"]["cgroupsPath"] = (
            f"system.slice:{self._cgroup}:{name}"
            if container.cgroups == "systemd"
            else f"/{self._cgroup}/{name}"
        )
        if container.starts_with == "hook":
            program = f"{node.PROGRAMS}/{HOOK}"
            # Without an environment of its own the hook would inherit the runtime's.
            hook = {"path": program, "args": [HOOK, "prestart"], "env": [demo.PATH]}
            config["hooks"] = {"prestart": [hook]}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        config["root"]["path"] = f"{bundle}/rootfs"
        config["linux"]["cgroupsPath"] = f"/{self._cgroup}/{name}"
        made = Path(MADE, name)
        made.mkdir(parents=True)
        Path(made, "config.json").write_text(json.dumps(config), encoding="utf-8")


def _make_image(rootfs: str, container: LessonContainer) -> None:
    demo.make_rootfs(rootfs)
    for applet in _APPLETS:
        os.symlink("busybox", f"{rootfs}/bin/{applet}")
    program = Path(rootfs, _CHECK)
    program.write_bytes(cuda_runtime.program(demo.LOADER))
    program.chmod(0o755)
    if container.image == "static":
        shutil.rmtree(f"{rootfs}/lib64")
        shutil.rmtree(f"{rootfs}{demo.LIBRARIES}")
    elif container.image == "nix":
        loader = Path(f"{rootfs}{demo.LOADER}")
        loader.write_bytes(loader.read_bytes().replace(_ETC_CACHE, _NIX_CACHE))
        # The hook takes the layout of other distributions, whose directory the loader does not
        # search by itself.
        os.unlink(f"{rootfs}/etc/debian_version")
    for directory, kind in container.adds.items():
        place = Path(rootfs + directory)
        place.mkdir(parents=True, exist_ok=True)
        if kind == "cuda-stub":
            (place / "libcuda.so.1").write_bytes(cuda_runtime.stub())
        else:
            version, content = cuda_runtime.other_driver(_COMPAT if kind == "cuda-compat" else 0)
            (place / f"libcuda.so.{version}").write_bytes(content)
            (place / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")


def _add_program(name: str, module: str, function: str, call: str) -> str:
    """Add a program to the node as the installer writes it, and return its path."""
    path = Path(node.PROGRAMS, name)
    places = [place for place in sys.path if place]
    script = install.LAUNCHER.format(
        python=sys.executable,
        extend=f"extend({places!r})",
        load="",
        module=module,
        function=function,
        call=call,
    )
    path.unlink(missing_ok=True)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def _replace_module_programs() -> None:
    """Put the stand-ins in the places of this machine's programs, which would change its kernel."""
    for name in modules.NAMES:
        path = _add_program(
            name, "nvgraft_cli.lab.lessons.modules", "main", "raise SystemExit(main(sys.argv))"
        )
        for directory in _SYSTEM_DIRECTORIES:
            own = Path(directory, name)
            if own.is_file() or own.is_symlink():
                own.unlink()
                own.symlink_to(path)


def _make(change: LessonChange) -> None:
    """Make a change of the node.

    :raises OSError: a file or directory cannot be changed.
    :raises ValueError: the file has no such text, or is one of the kernel.
    """
    path = change.path
    real = os.path.realpath(os.path.dirname(path))
    if f"{real}/".startswith(("/sys/", "/proc/")) and not f"{real}/".startswith("/proc/driver/"):
        raise ValueError("it is a file of this machine's kernel | name another path")
    if change.remove:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return
    text = change.text
    if change.replace is not None:
        old, new = change.replace
        before = Path(path).read_text(encoding="utf-8")
        if old not in before:
            raise ValueError(f"the file does not have {old!r} | correct the lesson")
        text = before.replace(old, new)
    elif change.cdi_of is not None:
        text = _cdi_specification(change.cdi_of)
    os.makedirs(real, exist_ok=True)
    Path(path).write_text(text or "", encoding="utf-8")
    if change.replace is None:
        os.chmod(path, int(change.mode, 8))


def _cdi_specification(name: str) -> str:
    """Return the CDI specification of a host, as `nvgraft cdi generate` writes it."""
    text, _ = read_node(name)
    path = Path(node.WORK, "other-host.json")
    path.write_bytes(text)
    return demo.run(
        f"{node.PROGRAMS}/nvgraft", "cdi", "generate", "--host", str(path), "--format", "yaml"
    )
