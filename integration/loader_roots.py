"""Root file systems in which the real loader opens a library, and what ``nvgraft prove`` says of
them.

A small C program opens a library in a chroot and prints its path, or dlerror()'s words.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from harness import LDCONFIG
from nvgraft.plan.actions import Plan
from nvgraft.system import syscalls
from nvgraft_cli.case.bundle import ContainerSide, open_container
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.processor import read_isa_level
from nvgraft_cli.prove.loader.loading import Object
from nvgraft_cli.prove.proof import Proof, open_program, prove
from nvgraft_cli.simulate.stubs import Loading, shared_object

PROGRAM = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int argc, char **argv) {
    struct link_map *map, *last;
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &last);
    while (last->l_next) last = last->l_next;
    void *handle = dlopen(argv[1], RTLD_NOW);
    if (!handle) { printf("no %s\\n", dlerror()); return 1; }
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    printf("yes %s\\n", map->l_name);
    for (map = last->l_next; map; map = map->l_next) printf("new %s\\n", map->l_name);
    return 0;
}
"""

PLAN = Plan("skip", "")
LIBS = "usr/lib/x86_64-linux-gnu"
ORDINARY = Loading()
#: Names of glibc-hwcaps subdirectories.
LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


class Root:
    """A root file system with a C library, a program ``/bin/open`` and the libraries of a case.

    ``uid`` and ``gid`` are the user and group of the program.
    """

    uid = gid = 0

    def __init__(self, place: Path) -> None:
        self.path = place
        for name in ("bin", "etc", "proc", "lib64", "lib/x86_64-linux-gnu", LIBS, "opt"):
            (place / name).mkdir(parents=True)
        (place / "etc/debian_version").write_text("12\n")
        shutil.copy("/lib64/ld-linux-x86-64.so.2", place / "lib64")
        libc = next(
            path
            for path in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")
            if os.path.exists(path)
        )
        shutil.copy(libc, place / "lib/x86_64-linux-gnu")
        self.compile("bin/open", PROGRAM)

    def compile(self, target: str, source: str, *options: str, links: tuple[str, ...] = ()) -> None:
        """Build ``target`` from C; ``links`` are libraries of this root that it needs."""
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"] if ".so" in path.name else []
        libraries = [str(self.path / name) for name in links]
        # Libraries behind --no-as-needed become needed even if unused; their own needs are ignored.
        linker = ["-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all", *libraries]
        command = ["gcc", "-x", "c", "-", "-o", str(path), *shared, *options, "-x", "none", *linker]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)

    def library(self, target: str, *options: str, links: tuple[str, ...] = ()) -> None:
        self.compile(target, "int value(void) { return 1; }", *options, links=links)

    def stub(self, target: str, *needed: str, loading: Loading = ORDINARY, bits: int = 64) -> None:
        """Make a library without symbols, also with what linkers refuse to combine."""
        path = self.path / target
        path.parent.mkdir(parents=True, exist_ok=True)
        machine = {64: "EM_X86_64", 32: "EM_386"}[bits]
        path.write_bytes(shared_object(bits, machine, path.name, needed, None, None, loading))

    def ldconfig(self, *directories: str) -> None:
        subprocess.run(
            [LDCONFIG, "-r", str(self.path), *directories], check=True, capture_output=True
        )

    def _enter(self) -> None:
        # The loader reads the program's path from /proc, which a container has too.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", str(self.path / "proc"), "proc", 0)
        os.chroot(self.path)
        os.chdir("/")
        if self.gid:
            os.setgroups([])
            os.setgid(self.gid)
        os.setuid(self.uid)

    def dlopen(self, name: str, program: str = "/bin/open", **environment: str) -> str:
        """Return the real loader's answer: "yes PATH", or "no WORDS" with dlerror()'s words.

        "yes PATH" is followed by a line "new PATH" for each object that was loaded with it.
        """
        # LD_LIBRARY_PATH must not be in effect before the change of root.
        done = subprocess.run(
            [program, name],
            capture_output=True,
            text=True,
            env=environment,
            preexec_fn=self._enter,
        )
        # If the program itself does not start, its loader says why on stderr.
        return done.stdout.strip() or f"no {done.stderr.partition('shared libraries: ')[2].strip()}"

    def proof(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Return prove()'s answer for the same."""
        with self._container(**environment) as container:
            tree = PlannedTree(container.rootfs, PLAN, None)
            return prove(name, program, tree, PLAN, container, read_isa_level())

    def proofs(self, *names: str) -> list[Proof]:
        """Return the answers of one program that opens each library anew."""
        with self._container() as container:
            tree = PlannedTree(container.rootfs, PLAN, None)
            opener = open_program("/bin/open", tree, PLAN, container, read_isa_level())
            return [opener.proof(name) for name in names]

    def _container(self, **environment: str) -> ContainerSide:
        entries = [f"{key}={value}" for key, value in environment.items()]
        bundle = self.path.parent / "bundle"
        bundle.mkdir(exist_ok=True)
        rights = ["CAP_DAC_OVERRIDE"] if self.uid == 0 else []
        document = {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.path)},
            "process": {
                "user": {"uid": self.uid, "gid": self.gid},
                "capabilities": {"effective": rights},
                "cwd": "/",
            },
        }
        (bundle / "config.json").write_text(json.dumps(document))
        return open_container(str(bundle), entries)

    def agree(self, name: str, program: str = "/bin/open", **environment: str) -> Proof:
        """Assert that the loader and prove() agree; return prove()'s answer."""
        real = self.dlopen(name, program, **environment)
        ours = self.proof(name, program, **environment)
        if ours.verdict == "yes":
            assert ours.load.root is not None
            assert real.splitlines() == [
                f"yes {ours.load.root.path}",
                *(f"new {path}" for path in loaded_paths(ours.load.root)),
            ]
        else:
            assert ours.verdict == "no"
            words = ours.load.failures[0].words
            # The loader gives no reason if it has searched no directory at last.
            without_reason = words.removesuffix(": No such file or directory")
            assert real in {f"no {words}", f"no {without_reason}"}
        return ours


def loaded_paths(root: Object) -> list[str]:
    """Return the paths of the objects of a load in the loader's order: breadth first."""
    if root.already_loaded:
        return []
    paths, queue = [], [root]
    while queue:
        loaded = queue.pop(0)
        paths.append(loaded.path)
        queue += [child for child in loaded.needs if not child.already_loaded]
    return paths
