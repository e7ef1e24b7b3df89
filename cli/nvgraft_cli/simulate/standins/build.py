"""Compile the stand-ins of a simulated host with the C compiler of this machine.

What is built loads wherever a program of this architecture runs with glibc 2.17 or newer: the
functions that newer versions moved or changed are taken in their oldest version (``glibc.h``), and
the libraries that had them are named as needed.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent

#: The symbol by which programs recognise a stand-in (access.h).
MARKER = "nvgraft_standin"

_LIBC = "libc.so.6"
#: Libraries of glibc before 2.34, which are parts of libc.so.6 now.
_FORMER_LIBRARIES = ("libdl.so.2", "libpthread.so.0")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OPTIONS = (
    "-std=gnu99",
    "-O0",
    "-w",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
    "-Wl,--hash-style=both",
    "-Wl,--no-as-needed",
)


class CannotCompile(Exception):
    """There is no compiler, or it failed; the text is one line that says what then works."""


class Exports(NamedTuple):
    """The functions that a library exports, whether its source has them or not."""

    names: Sequence[str]
    #: The function of the source that answers for a name that the source does not have. It takes
    #: no arguments and returns an int.
    otherwise: str


class Compiler:
    """The C compiler of this machine, with the data of one host."""

    def __init__(self, data: str, empty_library: Callable[[str], bytes]) -> None:
        """Look for the compiler.

        :param data: the C definitions of the host, from :func:`.data.c_source`.
        :param empty_library: makes a library of this architecture without symbols, by its SONAME.
        :raises CannotCompile: there is none.
        """
        found = shutil.which("cc", path=_PATH)
        if found is None:
            raise CannotCompile(
                "there is no C compiler: the hook reads the GPUs from the snapshot; NVML, CUDA and"
                " nvidia-smi do not answer | install one, such as gcc"
            )
        self._compiler = found
        self._data = data
        self._empty_library = empty_library

    @property
    def fingerprint(self) -> str:
        """A hash of the sources, of the host's data and of the compiler: what is made depends on
        nothing else but the arguments.
        """
        status = os.stat(self._compiler)
        hashed = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {self._data}".encode())
        for path in sorted(SOURCES.rglob("*.*")):
            if path.suffix in {".c", ".h", ".def"}:
                hashed.update(path.read_bytes())
        return hashed.hexdigest()

    def library(
        self,
        source: Path,
        soname: str,
        needed: Sequence[str] = (),
        exports: Exports | None = None,
        versions: Path | None = None,
    ) -> bytes:
        """Return the shared object of a C source.

        :param needed: the libraries that it names as needed besides libc.so.6, in this order.
        :param exports: what it exports; None: what the source marks as visible.
        :param versions: a linker's version script.
        :raises CannotCompile: the compiler failed.
        """
        options = ["-shared", *_linker("-soname", soname)]
        options += _linker("--version-script", str(versions)) if versions else []
        return self._compile(source, options, needed, exports)

    def program(self, source: Path, interp: str, needed: Sequence[str] = ()) -> bytes:
        """Return the dynamically linked program of a C source.

        :param interp: the path of its dynamic linker.
        :param needed: as for :meth:`library`.
        :raises CannotCompile: the compiler failed.
        """
        # The start files of glibc 2.34 name a version of __libc_start_main that older ones lack.
        options = ["-pie", "-nostartfiles", *_linker("--dynamic-linker", interp)]
        return self._compile(source, options, needed)

    def _compile(
        self,
        source: Path,
        options: Sequence[str],
        needed: Sequence[str],
        exports: Exports | None = None,
    ) -> bytes:
        names = [name for name in dict.fromkeys((*needed, *_FORMER_LIBRARIES)) if name != _LIBC]
        with tempfile.TemporaryDirectory(prefix="nvgraft-build.") as directory:
            data, output = f"{directory}/data.h", f"{directory}/output"
            Path(data).write_text(self._data, encoding="ascii")
            parts = self._empty_libraries(directory, names)
            if exports is not None:
                parts += self._compile_exports(directory, exports, source.name)
            includes = [f"-I{SOURCES}", "-include", "glibc.h", "-include", data]
            arguments = [*includes, str(source), "-o", output, *options, *parts]
            self._run(arguments, directory, source.name)
            return Path(output).read_bytes()

    def _run(self, arguments: Sequence[str], directory: str, name: str) -> None:
        """Run the compiler for the stand-in ``name``.

        :raises CannotCompile: it failed.
        """
        result = subprocess.run(
            [self._compiler, *_OPTIONS, *arguments],
            capture_output=True,
            env={"PATH": _PATH, "LC_ALL": "C", "TMPDIR": directory},
            check=False,
        )
        if result.returncode:
            reason = result.stderr.decode(errors="replace").strip().splitlines() or [
                f"exit code {result.returncode}"
            ]
            raise CannotCompile(
                f"the stand-in {name} did not compile ({reason[0]}): the GPUs are served"
                " from the snapshot"
            )

    def _compile_exports(self, directory: str, exports: Exports, name: str) -> list[str]:
        """Compile all exported functions, and write a version script that exports only them.

        The functions are weak, so that those of the stand-in's own source take their places.

        :returns: arguments for the linker.
        """
        source, script = f"{directory}/exports.c", f"{directory}/exports.map"
        attributes = '__attribute__((weak, visibility("default"), alias("otherwise")))'
        lines = [
            f"int {exports.otherwise}(void);",
            f"static int otherwise(void) {{ return {exports.otherwise}(); }}",
            *(f"{attributes} int {entry_point}(void);" for entry_point in exports.names),
        ]
        Path(source).write_text("\n".join(lines) + "\n", encoding="ascii")
        symbols = "".join(f"  {symbol};\n" for symbol in (*exports.names, MARKER))
        Path(script).write_text(f"{{ global:\n{symbols}  local: *;\n}};\n", encoding="ascii")
        compiled = f"{directory}/exports.o"
        self._run(["-c", source, "-o", compiled], directory, name)
        return [compiled, *_linker("--version-script", script)]

    def _empty_libraries(self, directory: str, names: Sequence[str]) -> list[str]:
        """Make a library without symbols for each SONAME, and return their paths.

        The linker then writes the SONAMEs as needed, whether this machine has them or not.
        """
        paths = []
        for number, name in enumerate(names):
            path = f"{directory}/{number}.so"
            Path(path).write_bytes(self._empty_library(name))
            paths.append(path)
        return paths


def _linker(option: str, value: str) -> list[str]:
    """Return a linker option whose value may have commas, which -Wl would take apart."""
    return ["-Xlinker", option, "-Xlinker", value]
