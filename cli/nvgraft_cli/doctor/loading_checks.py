"""Checks of what will load in the container: results of ``nvgraft prove`` as findings."""

import posixpath
from collections.abc import Iterator
from dataclasses import replace

from nvgraft.formats.tree import PathError
from nvgraft_cli.doctor.cuda_runtimes import (
    CudaRuntime,
    find_cupy,
    find_runtimes,
    numbers,
    search_runtimes,
)
from nvgraft_cli.doctor.patient import Diagnosis, NotChecked, Patient
from nvgraft_cli.prove.loader.final_file import FinalFile
from nvgraft_cli.prove.loader.loading import Failure
from nvgraft_cli.prove.loader.search import LoadFault
from nvgraft_cli.prove.opened import is_incidental, opened_for, opened_libraries
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.prove.pythons import resolve
from nvgraft_cli.prove.start.architecture import exec_format_error
from nvgraft_specs import names
from nvgraft_specs.cuda_versions import CUDA_VERSIONS

_SMI = "/usr/bin/nvidia-smi"

#: The kernel's names of architectures -> those of images.
_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}

#: The loaders of 32-bit programs.
_LOADERS_32 = {"/lib/ld-linux.so.2", "/lib/ld-linux-armhf.so.3"}


def _prove_cuda(patient: Patient) -> Proof:
    requested = set(patient.injected.request.capabilities)
    if not requested & {"compute", "video"}:
        raise NotChecked(
            "libcuda.so.1 is not mounted: the container requests neither compute nor video"
        )
    return patient.proof("libcuda.so.1")


def _opened(patient: Patient) -> Iterator[str]:
    """Return the SONAMEs that programs open with the capabilities of the container."""
    return opened_libraries(patient.capabilities)


def _check_no_other_failure(proof: Proof) -> None:
    """Give up the calling check if libcuda.so.1 fails to load for a reason of another check.

    :raises NotChecked: libcuda.so.1 fails so, and the calling check has no result.
    """
    if proof.verdict == "no" and proof.load.failures:
        raise NotChecked(
            f"libcuda.so.1 does not load for another reason: {proof.load.failures[0].words}"
        )


def image_architecture(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``image-architecture``: the kernel of the host does not run the image's programs.

    Reported in NVIDIA/nvidia-docker#1116, #1519; NVIDIA/nvidia-container-toolkit#303;
    xorbitsai/inference#4256.
    """
    if patient.foreign_program is None:
        return
    path, architecture = patient.foreign_program
    machine = patient.host.facts.machine
    yield Diagnosis(
        exec_format_error(path, architecture, machine),
        "the image was built or pulled for another architecture; an emulator (binfmt_misc) starts"
        " its programs, which cannot load the libraries of the host's driver",
        f"use an image for {machine}: docker pull --platform linux/"
        f"{_PLATFORMS.get(machine, machine)}, or build it on this host",
        stops=True,
    )


def loader_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``loader-missing``: the image lacks the dynamic linker of the driver's programs.

    Reported in NVIDIA/nvidia-container-toolkit#243, #128; NVIDIA/nvidia-docker#809.
    """
    broken = [name for name in _opened(patient) if _of_no_loader(patient.proof(name))]
    libraries = f"{', '.join(broken)} {'does' if len(broken) == 1 else 'do'} not load"
    if patient.missing_loader and broken:
        words = f"{patient.missing_loader}; {libraries} either"
        yield _needs_glibc(words, patient.proof(broken[0]), stops=True)
        return
    if all(bind.target != _SMI for bind in patient.binds()):
        if not broken:
            raise NotChecked("nvidia-smi is not mounted")
        yield _of_musl(libraries, patient.proof(broken[0]))
        return
    proof = patient.proof(_SMI)
    failure = next(iter(proof.load.failures), None)
    if failure is None or failure.name != proof.loader:
        if broken:  # nvidia-smi has a loader, or musl's in the place of one
            yield _of_musl(libraries, patient.proof(broken[0]))
        return
    message = (
        f"nvidia-smi needs the ELF interpreter {proof.loader}, which the image lacks: its start "
        'fails with "no such file or directory"'
    )
    own = patient.proof("libc.so.6").loader
    if own != proof.loader and patient.in_image(own) and "musl" not in own:
        if own in _LOADERS_32 or own == patient.program:
            yield _no_own_loader(message, own)
            return
        yield Diagnosis(
            f"{message}; the container's own program has the loader {own}",
            "nvidia-smi names the usual loader, and the image brings its own (Nix, Guix)",
            f"start it as {own} {_SMI}, or make {proof.loader} a link to {own} in the image",
            "warning",
        )
        return
    yield _needs_glibc(message + (f"; {libraries} either" if broken else ""), proof)


def _no_own_loader(message: str, own: str) -> Diagnosis:
    """Report an image whose own program runs, and that cannot start nvidia-smi at all."""
    kind = "a 32-bit program" if own in _LOADERS_32 else "statically linked"
    return Diagnosis(
        f"{message}; the container's own program is {kind} and starts",
        "nvidia-smi is a dynamic 64-bit program, and the image has no C library for it",
        "use an image with the host's glibc (debian, ubuntu, ubi, distroless/cc), or do not call "
        "nvidia-smi in this container",
        "warning",
    )


def _of_no_loader(proof: Proof) -> bool:
    """Tell whether a library does not load because the image has no loader of glibc."""
    failures = proof.load.failures
    return bool(failures) and ("ld-musl" in proof.loader or failures[0].name == proof.loader)


def _of_musl(message: str, proof: Proof) -> Diagnosis:
    """Report libraries that a program of musl does not load."""
    return _needs_glibc(f"{message}: {proof.load.failures[0].words}", proof)


def _needs_glibc(message: str, proof: Proof, *, stops: bool = False) -> Diagnosis:
    musl = next((note for note in proof.notes if "musl" in note), "")
    return Diagnosis(
        message + (f"; {musl}" if musl else ""),
        "the driver's programs and libraries are built for glibc",
        "use an image with glibc (debian, ubuntu, ubi, distroless/cc)",
        stops=stops,
    )


def library_shadowed(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``library-shadowed``: a file of the image comes before the host's library.

    Reported in NVIDIA/nvidia-docker#1256, #1488, #1307 (a driver in the image); NVIDIA/warp#219,
    fboulnois/stable-diffusion-docker#23 (CUDA's stub).
    """
    opened = list(_opened(patient))
    # Of what the container does not get, the image may have files that a program then loads.
    absent = [name for name in opened_libraries(names.CAPABILITIES) if name not in opened]
    if "libcuda.so.1" in opened:
        opened.insert(1, "libcuda.so")
    reported: set[str] = set()
    for name in [*opened, *absent]:
        proof = patient.proof(name)
        # Most programs open libcuda.so.1 only, and none needs what the container does not get.
        needed = name != "libcuda.so" and name not in absent
        if proof.verdict == "no":
            found = list(_unloadable(name, proof, patient)) if needed else []
            if is_incidental(name, patient.case) and not proof.program_ends:
                found = [replace(one, level="warning") for one in found]
            yield from (one for one in found if one.message not in reported)
            reported |= {one.message for one in found}
            continue
        final = proof.final
        if needed:
            yield from _perhaps_shadowed(name, proof)
        # Forward compatibility is the subject of compat-libraries.
        if not final.foreign or final.is_compat or final.path in reported:
            continue
        reported.add(final.path)
        scripted = proof.load.scripted
        yield Diagnosis(
            f"{name}: the container's program loads {final.path} of {final.origin}, not the host's "
            f"({final.how})" + (f"; not known is {scripted}" if scripted else ""),
            final.consequence,
            _way_out(final),
            "error" if needed and not scripted else "warning",
            phrase=_words_of(name, final),
        )


def _perhaps_shadowed(name: str, proof: Proof) -> Iterator[Diagnosis]:
    """Report files that are loaded in place of the result if a fact holds that is not known."""
    if proof.load.scripted and not proof.final.foreign:
        yield Diagnosis(
            f"{name}: which file the container's program loads is not known: it depends on "
            f"{proof.load.scripted}",
            "commands of a script are not run, and what they do to files is not foretold",
            "start the container, and run in it: ldconfig -p | grep " + name,
            "warning",
        )
    for path, fact in proof.load.perhaps.items():
        yield Diagnosis(
            f"{name}: the container's program may load {path}; not known is {fact}",
            "the loader searches directories for processors (glibc-hwcaps) before others",
            f"run this on the node, or remove {path} from the image",
            "warning",
        )
    for path, fact in proof.load.perhaps_opened.items():
        yield Diagnosis(
            f"{name}: the container's program may load {path or 'another file'}; not known is "
            f"{fact}",
            "a library that Python's code has opened answers for its SONAME when it is asked for "
            "again, wherever it is",
            f"start the container, and look for {name.partition('.')[0]} in /proc/PID/maps of its "
            "program",
            "warning",
        )


def _words_of(name: str, final: FinalFile) -> str:
    """Return what users see of a file that is loaded in place of the host's; "" for the usual."""
    if final.is_stub and name.startswith("libcuda."):
        return "CUDA driver is a stub library"
    if final.is_stub and name.startswith("libnvidia-ml"):
        return "You should always run with libnvidia-ml.so that is installed with your"
    if name.startswith("libnvidia-ml"):
        return "Failed to initialize NVML: Driver/library version mismatch"
    if not name.startswith("libcuda."):
        return "NVRM: API mismatch: the client has the version"  # in the log of the kernel
    return ""


def _unloadable(name: str, proof: Proof, patient: Patient) -> Iterator[Diagnosis]:
    """Report a file of the image at which the loader stops, or that it lacks."""
    failure = proof.load.failures[0]
    if _of_no_loader(proof):
        return  # loader-missing reports it
    if failure.fault is LoadFault.OTHER_GLIBC:
        beside, part = posixpath.dirname(proof.loader), posixpath.basename(failure.file)
        own = patient.in_image(posixpath.join(beside, part))
        yield Diagnosis(
            f"{name} is not loaded: {failure.words}",
            f"the program has another glibc, with the loader {proof.loader}, than {failure.file}",
            _set_library_path(patient, beside)
            if own and beside != posixpath.dirname(failure.file)
            else "start a program that is built for the image's glibc",
            phrase=failure.words,
        )
        return
    if failure.fault is LoadFault.RELOCATION:
        yield Diagnosis(
            f"{name} is not loaded: {failure.words}",
            f"{failure.file} does not fit the other libraries that the program has loaded",
            f"remove {failure.file}, or replace it with one of the same version as the others",
            phrase=failure.words,
        )
        return
    if failure.name != name:
        if failure.fault is LoadFault.NOT_FOUND:
            yield _lacks_needed(name, failure, proof, patient)
        return  # glibc-too-old reports versions
    if failure.fault is LoadFault.NO_DLOPEN:
        yield Diagnosis(
            f"{name}: {failure.needed_by} is linked statically with musl: {failure.words}",
            "the dlopen() of such a program always fails",
            f"link {failure.needed_by} dynamically with glibc, and use an image with glibc",
        )
        return
    unusable = _in_place_of_link(name, failure, patient)
    if unusable is not None:
        yield unusable
        return
    if failure.fault is LoadFault.NOT_FOUND:
        return  # library-path reports it
    if proof.loader in _LOADERS_32 and failure.fault is LoadFault.WRONG_CLASS:
        yield _lacks_compat32(failure.words, patient)
        return
    covering = patient.planned.volumes.over(failure.file)
    origin = "the image" if covering is None else f"the volume {covering.path}"
    if failure.fault is LoadFault.NOT_MAPPED:
        yield Diagnosis(
            failure.words,
            f"{origin} is mounted with the option noexec",
            f"mount it without noexec, or remove {failure.file} from it: the host's is loaded then",
            phrase=failure.words,
        )
        return
    yield Diagnosis(
        failure.words,
        f"the loader stops at a file of {origin} that is not a library",
        f"remove {failure.file} from {origin}",
        phrase=failure.words,
    )


def _in_place_of_link(name: str, failure: Failure, patient: Patient) -> Diagnosis | None:
    """Report a file in the place of the link to the host's library that the loader passes over."""
    tree = patient.planned
    mounted = {
        library.directory: library.name
        for library in patient.mounted_libraries
        if library.soname == name
    }
    for tried in failure.tried:
        file = tree.resolve(tried.path) if tried.there and tried.path.startswith("/") else ""
        directory = tree.resolve(posixpath.dirname(tried.path)) if file else ""
        if directory in mounted and not tree.from_host(file):
            leads = "" if file == tried.path else f", which leads to {file},"
            return Diagnosis(
                f"{name} does not load: the loader passes over {tried.path}{leads} of the image: "
                f"{tried.reason}",
                f"it is in the place of the link to the host's {mounted[directory]}",
                f"remove {file} from the image",
                phrase=failure.words,
            )
    return None


def _lacks_needed(name: str, failure: Failure, proof: Proof, patient: Patient) -> Diagnosis:
    lacks = f"{failure.needed_by} needs {failure.name}, which the image lacks"
    cause = "a library of the driver needs a library that the image has to bring"
    fix = f"add the package that contains {failure.name} to the image"
    final, ends = proof.final, proof.program_ends
    if final.foreign and failure.needed_by == final.found and not ends:
        cause = f"the loader takes a file of {final.origin} for the host's ({final.how})"
        fix = _way_out(final)
    beside = posixpath.dirname(resolve(patient.planned, proof.loader))
    if not final.foreign and patient.in_image(posixpath.join(beside, failure.name)):
        lacks = f"{failure.needed_by} needs {failure.name}, which the loader does not find"
        cause = f"the image has it in {beside}, where the loader looks for the program's own only"
        fix = _set_library_path(patient, beside)
    if ends:
        cause = f"the loader starts {patient.program} only with all libraries that it needs"
    capabilities = opened_for(failure.name)
    if capabilities and not set(capabilities) & set(patient.capabilities):
        given = ",".join([*patient.injected.request.capabilities, capabilities[0]])
        fix = f"set NVIDIA_DRIVER_CAPABILITIES={given}: {failure.name} is the driver's"
    message = f"{name} does not load"
    if ends:  # the same of all that it would open
        first = next(_opened(patient))
        message = f"the container's program ends at its start, before it opens {first}"
    return Diagnosis(f"{message}: {lacks}", cause, fix, phrase=failure.words)


def _lacks_compat32(words: str, patient: Patient) -> Diagnosis:
    requested = patient.injected.request.capabilities
    if "compat32" in requested:
        return Diagnosis(
            f"{words}: the container's program is a 32-bit one, and the host has no 32-bit files of"
            " these libraries",
            "the driver's 32-bit libraries are in packages of their own",
            "install all 32-bit libraries of the driver on the host",
            "error" if "libcuda.so.1" in words else "warning",
        )
    capabilities = ",".join([*requested, "compat32"])
    return Diagnosis(
        f"{words}: the container's program is a 32-bit one, and the driver's 32-bit libraries are "
        "not mounted",
        "32-bit libraries of the driver need capability compat32",
        f"set NVIDIA_DRIVER_CAPABILITIES={capabilities}, on a host with the driver's 32-bit "
        "libraries",
    )


def _way_out(final: FinalFile) -> str:
    """Return how to make the loader take the host's file."""
    path, rule = final.path, final.rule
    directory = path.rpartition("/")[0]
    if final.precedence.by_code and not rule.startswith(("RPATH", "RUNPATH")):
        return f"let this code open {posixpath.basename(path)} by its name alone, without {path}"
    if final.precedence.by_code or not final.precedence.words:
        if rule == "LD_LIBRARY_PATH":
            entry = posixpath.dirname(final.found) or "the empty entry"
            return f"remove {entry} from LD_LIBRARY_PATH, or {path} from {final.origin}"
        if rule == "LD_PRELOAD" or rule.startswith("/etc/"):
            return f"remove {path} from {rule}"
        if rule.startswith(("RPATH", "RUNPATH")):
            program = rule.partition(" of ")[2]
            return f"remove {path} from {final.origin}, or build {program} without the path"
    return f"remove the driver libraries in {directory} from {final.origin}"


def library_path(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``library-path``: the image's loader does not search the driver's directory.

    Reported in NVIDIA/nvidia-container-toolkit#128, #944. Nix and distroless images have such a
    loader.
    """
    mounted = {library.soname for library in patient.mounted_libraries}
    proofs = {name: patient.proof(name) for name in _opened(patient) if name in mounted}
    missing = {
        name: failure
        for name, proof in proofs.items()
        for failure in proof.load.failures
        if failure.name == name
        and failure.fault is LoadFault.NOT_FOUND
        and not _of_no_loader(proof)
        and _in_place_of_link(name, failure, patient) is None
    }
    if not missing:
        _check_no_other_failure(_prove_cuda(patient))
        return
    seen = f"{', '.join(missing)}: cannot open shared object file"
    loader = next(iter(proofs.values())).loader
    if loader in _LOADERS_32:
        yield _lacks_compat32(seen, patient)
        return
    mounts = patient.mounted_libraries
    libs_dir = next(library.directory for library in mounts if library.soname in missing)
    tried = next(iter(missing.values())).tried
    searched = ", ".join(dict.fromkeys(one.path.rpartition("/")[0] for one in tried))
    # A library that the program opens is not looked for by the RUNPATH of the program.
    lasting = {posixpath.dirname(one.path) for one in tried if not one.how.startswith("RUNPATH")}
    if libs_dir in lasting:
        yield Diagnosis(
            f"{seen}: no link of that name in {libs_dir} leads to the mounted library",
            "a script that the container starts removes the link, which the hook makes",
            f"let the script leave {libs_dir} as it is",
        )
        return
    beside = posixpath.dirname(resolve(patient.planned, loader))
    own = [beside] if beside not in lasting and patient.in_image(f"{beside}/libc.so.6") else []
    yield Diagnosis(
        f"{seen}: {'it is' if len(missing) == 1 else 'they are'} mounted in {libs_dir}, and the "
        f"loader searches {searched}",
        "the image's loader was built for other directories, and does not read /etc/ld.so.cache",
        _set_library_path(patient, libs_dir, *own),
    )


def _set_library_path(patient: Patient, *directories: str) -> str:
    """Return how to have these directories searched, beside those of the container."""
    present = patient.environment.get("LD_LIBRARY_PATH", "")
    value = ":".join([*filter(None, [present]), *directories])
    return f"set LD_LIBRARY_PATH={value} in the container's environment"


def soname_links_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``soname-links-missing``: libraries are mounted, but no SONAME link leads to them.

    Where a program opens such a library, ``library-shadowed`` says which file it gets.

    Reported in NVIDIA/nvidia-docker#1399, #1301; NVIDIA/nvidia-container-toolkit#1099, #944;
    kata-containers/kata-containers#12582.
    """
    tree = patient.planned
    if patient.by_edits and not patient.mounted_libraries:
        raise NotChecked("the CDI edits have no hook that makes SONAME links")
    links = {path for path, _ in patient.injected.links}
    reported = [name for name in _opened(patient) if patient.proof(name).exit_code]
    roots = (patient.proof(name).load.root for name in _opened(patient))
    opens = {root.facts.bits for root in roots if root is not None and root.facts is not None}
    wrong = []  # (path of the SONAME link, name of the library that it should lead to)
    level = "warning"
    for bind in patient.binds():
        if ".so." not in bind.target or bind.kind != "file":
            continue
        try:
            facts = tree.elf(bind.target, sections=False)
        except (OSError, ValueError):
            continue
        directory, _, name = bind.target.rpartition("/")
        link = f"{directory}/{facts.soname}"
        if facts.soname in {None, name, *reported} or link in links:
            continue
        try:
            leads_to = tree.find(link)[0]
        except (PathError, OSError):
            leads_to = ""
        if leads_to != bind.target:
            wrong.append((link, name))
            if not opens or facts.bits in opens:
                level = "error"  # libraries of other bits are those of other programs
    if wrong:
        link, name = wrong[0]
        others = f"; {len(wrong) - 1} more libraries have the same problem" if wrong[1:] else ""
        yield Diagnosis(
            f"{link} will not lead to {name}{others}",
            "the image has another file of that name, or a greater version of the library",
            f"remove {', '.join(path for path, _ in wrong)} and libraries of the same name from "
            "the image",
            level,
        )


def glibc_too_old(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``glibc-too-old``: a library needs a newer glibc than the image has.

    Reported in apptainer/apptainer#945, #598, #1080, #2421.
    """
    proof = _prove_cuda(patient)
    failures: list[Failure] = [
        failure for failure in proof.load.failures if failure.fault is LoadFault.VERSION
    ]
    if any("versions" in text for text in proof.load.unknown) and not failures:
        raise NotChecked("the snapshot does not record which glibc versions the driver needs")
    if not failures:
        _check_no_other_failure(proof)
    for failure in failures[:1]:
        needs = failure.needed_by
        if patient.planned.from_host(resolve(patient.planned, needs)):
            cause = "a library of the host needs a newer glibc than the image has"
            fix = "use a newer base image"
        else:
            cause = f"{needs} of the image needs a newer glibc than the one that is loaded"
            fix = f"use a newer base image, or {needs} of one that has the image's glibc"
        if proof.program_ends:
            cause = f"the container's program ends at its start: {cause}"
        yield Diagnosis(failure.words, cause, fix)


def cuda_too_new(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cuda-too-new``: the image's CUDA is newer than the driver can run.

    Reported in NVIDIA/nvidia-docker#399, #317, #781; IEIT-Yuan/Yuan-2.0#65;
    guqiong96/Lvllmds4#46 (error 35); NVIDIA/nvbandwidth#61, openmm/openmm#3585 (PTX).
    """
    proof = _prove_cuda(patient)
    _check_no_other_failure(proof)
    runtimes = find_runtimes(patient)
    driver, cuda = _driver_loaded(patient, proof)
    if not runtimes:
        yield from _too_new_elsewhere(search_runtimes(patient), driver, cuda)
        return
    fitting = [runtime for runtime in runtimes if runtime.runs_on(driver, cuda)]
    newer = [runtime for runtime in runtimes if runtime not in fitting]
    if newer:
        yield _too_new(min(newer, key=lambda runtime: runtime.major), fitting, driver, cuda)
        return
    for runtime in fitting:
        toolkit = runtime.path.partition("/lib64/")[0].partition("/targets/")[0]
        compiler = patient.in_image(f"{toolkit}/bin/nvcc")
        if runtime.newer_than(cuda) and compiler:
            yield Diagnosis(
                f"the image compiles with CUDA {runtime.version} ({compiler}), and driver {driver} "
                f"has CUDA {cuda}: programs that contain PTX only fail with error 222 (the "
                "provided PTX was compiled with an unsupported toolchain)",
                "minor-version compatibility runs machine code of a newer CUDA, and the driver "
                "cannot compile its PTX",
                "compile for the GPU of the host (nvcc -arch=native or sm_NN), update the host's "
                f"driver, or use an image with CUDA {cuda}",
                "warning",
            )
            return


def simulated_driver(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``simulated-driver``: the libraries of a simulated host have no functions.

    The hook of such a host reads the GPUs from a document, as config.toml says.
    """
    if not _is_silent(patient):
        return
    seen = "libcuda.so.1 and libnvidia-ml.so.1 of this simulated host have no functions"
    yield Diagnosis(
        f"{seen}: CUDA programs find no driver, and nvidia-smi prints one line",
        "it was started without a C compiler, with --no-nvml, for another architecture, or beside a"
        " real driver: the hook then reads the GPUs from the host's document",
        "install a C compiler (gcc), and simulate a host of this machine's architecture without "
        "--no-nvml",
        sentence=f"CUDA finds no driver because {seen}",
    )


def _is_silent(patient: Patient) -> bool:
    """Tell whether the libraries of a simulated host have no functions, though it has GPUs."""
    config = patient.host.config
    from_document = config.simulated_host and config.host_snapshot != ""
    return from_document and bool(patient.host.facts.report.gpus)


def simulated_runtime(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``simulated-runtime``: NVIDIA's CUDA runtime beside a simulated driver.

    Runtimes that are linked into something are found in the container's program and in cupy.
    """
    if not patient.host.config.simulated_host or _is_silent(patient):
        return
    _check_no_other_failure(_prove_cuda(patient))
    preloaded = patient.container.spec.env.get("LD_PRELOAD", "").replace(":", " ").split()
    replaced = any(posixpath.basename(path) == names.STANDIN_RUNTIME for path in preloaded)
    runtimes = [runtime for runtime in find_runtimes(patient) if runtime.inside or not replaced]
    cupy = find_cupy(patient)
    error = "error 500 (named symbol not found) or 103 (integrity checks failed)"
    cause = "the driver of a simulated host is a stand-in that answers the public driver API alone"
    if runtimes:
        inside = runtimes[0].inside
        file = f"the CUDA runtime inside {runtimes[0].path}" if inside else runtimes[0].path
        why = f"the host is simulated, and {file} starts beside NVIDIA's driver alone"
        yield Diagnosis(
            f"{why}: {'it fails' if inside else 'programs that use it fail'} with {error}",
            cause,
            "build the program with nvcc -cudart shared, or try one that links libcudart"
            " dynamically, such as PyTorch"
            if inside
            else f"put the file of nvgraft simulate --cuda-runtime {names.STANDIN_RUNTIME} into the"
            " image, and name it in LD_PRELOAD",
            sentence=f"CUDA fails with {error} because {why}",
        )
    if cupy is not None:
        yield Diagnosis(
            f"{cupy} has NVIDIA's CUDA runtime inside: on a simulated host it fails with {error}",
            cause,
            "try a program that links libcudart dynamically, such as PyTorch, or one that asks the"
            " driver, such as numba",
            "warning",
        )


def _driver_loaded(patient: Patient, proof: Proof) -> tuple[str, str]:
    """Return the versions of the driver and of its CUDA that the container's programs load.

    These are the host's, or those of the image's forward compatibility libraries if these load.
    """
    report = patient.host.facts.report
    if proof.final.is_compat:
        version = posixpath.basename(proof.final.path).partition(".so.")[2]
        branch = next(iter(numbers(version)), 0)
        if branch in CUDA_VERSIONS:
            return version, CUDA_VERSIONS[branch]
    return report.driver_version, report.cuda_version


def _too_new_elsewhere(runtimes: list[CudaRuntime], driver: str, cuda: str) -> Iterator[Diagnosis]:
    """Report a CUDA runtime in no usual place, if the driver can run none of them: it may belong
    to a part of the image that is not used.

    :raises NotChecked: there is none.
    """
    if not runtimes:
        raise NotChecked("no CUDA runtime (libcudart) was found in the image")
    if not any(runtime.runs_on(driver, cuda) for runtime in runtimes):
        oldest = min(runtimes, key=lambda runtime: runtime.major)
        yield replace(_too_new(oldest, [], driver, cuda), level="warning", sentence="")


def _too_new(runtime: CudaRuntime, fitting: list[CudaRuntime], driver: str, cuda: str) -> Diagnosis:
    """Report a CUDA runtime that the driver cannot run.

    :param fitting: other runtimes of the image that it can run: which one programs use is unknown.
    """
    seen = (
        f"{runtime.path} has the CUDA runtime {runtime.version} inside"
        if runtime.inside
        else f"the image's CUDA runtime is {runtime.version} ({runtime.path})"
    )
    has = f"driver {driver} has CUDA {cuda}"
    error = "error 35 (CUDA driver version is insufficient for CUDA runtime version)"
    least = (
        f"needs driver {runtime.minimum_driver} or newer"
        if runtime.minimum_driver
        else "needs a newer driver"
    )
    other = f"; programs that use {fitting[0].path} work" if fitting else ""
    return Diagnosis(
        f"{seen}, and {has}: {'it fails' if runtime.inside else 'programs that use it fail'} with"
        f" {error}{other}",
        f"CUDA {runtime.version} {least}; minor-version compatibility begins with CUDA 11, and "
        "ends with the major version",
        f"update the host's driver, or use an image with CUDA {cuda} or older; on data center GPUs "
        "NVIDIA's package cuda-compat in the image helps as well",
        "warning" if fitting else "error",
        "" if fitting else f"CUDA fails with {error} because {seen}, and {has}",
    )
