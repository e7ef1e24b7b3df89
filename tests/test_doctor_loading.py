"""``nvgraft doctor`` foretells which libraries load, and from which file."""

import json
from pathlib import Path

import pytest

from bundles import put
from loaders import LOADER, X86, Captured, library, loader, starters_bundle
from nvgraft_cli.case.symbols import Symbols
from nvgraft_cli.prove.loader import loading
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from patients import ALL, Setup, doctor, older_library, run_doctor, without_loader


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ("LD_PRELOAD", "remove /opt/old/libcuda.so.1 from LD_PRELOAD"),
        ("/etc/ld.so.preload", "remove /opt/old/libcuda.so.1 from /etc/ld.so.preload"),
        ("RUNPATH", "or build /usr/bin/app without the path"),
    ],
)
def test_the_way_out_names_why_the_images_library_comes_first(
    how: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """A library of the image that comes before the host's is named with its rule and the fix."""
    older_library(setup)
    setup.env.pop()
    if how == "LD_PRELOAD":
        setup.env.append("LD_PRELOAD=/opt/old/libcuda.so.1")
    elif how == "RUNPATH":
        loading = Loading(runpath="/opt/old")
        setup.files["usr/bin/app"] = executable(X86, "x", ["libc.so.6"], None, LOADER, loading)
    else:
        setup.files["etc/ld.so.preload"] = b"/opt/old/libcuda.so.1\n"
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert how in finding["message"]
    assert fix in finding["fix"]
    assert "error 803" in finding["cause"]


def test_an_older_compat_library_is_named_wherever_its_path_is_set(
    setup: Setup, capsys: Captured
) -> None:
    """LD_LIBRARY_PATH of the image is one way to CUDA's compatibility library: scripts and files
    of the loader are others.
    """
    compat = "usr/local/cuda/compat/libcuda.so.530.30"
    setup.files[compat] = shared_object(64, X86, "libcuda.so.1", [], None)
    _, results = run_doctor(setup, capsys)
    assert results["compat-libraries"]["findings"] == []
    setup.files["etc/ld.so.preload"] = f"/{compat}\n".encode()
    code, results = run_doctor(setup, capsys)
    (finding,) = results["compat-libraries"]["findings"]
    assert (code, finding["level"]) == (1, "error")
    assert finding["message"].startswith(
        "the container's program loads the compat libcuda 530.30 of the image (/etc/ld.so.preload)"
    )
    assert finding["message"].endswith("expect CUDA error 803")


@pytest.mark.parametrize("directory", ["/usr/local/cuda/compat", "/usr/local/cuda-12.9/compat"])
def test_a_compat_library_on_a_card_for_desktops_is_error_804(
    directory: str, setup: Setup, capsys: Captured
) -> None:
    """Forward compatibility does not serve GeForce RTX cards, in whichever directory the program
    finds the library.
    """
    library = f"{directory}/libcuda.so.999.10"[1:]
    setup.files[library] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links[f"{directory}/libcuda.so.1"[1:]] = "libcuda.so.999.10"
    setup.env.append(f"LD_LIBRARY_PATH={directory}")
    for gpu in setup.host["nvml"]["gpus"]:
        gpu |= {"brand": 15, "model": "NVIDIA GeForce RTX 4090"}
    found, verdict = doctor(setup, capsys)
    assert [finding["level"] for finding in found["compat-libraries"]] == ["error"]
    assert "error 804" in found["compat-libraries"][0]["message"]
    assert found["compat-libraries"][0]["fix"].endswith(
        f"or take {directory} out of what leads the program there: LD_LIBRARY_PATH"
    )
    assert "CUDA fails with error 804 because NVIDIA GeForce RTX 4090" in verdict


def test_users_see_the_words_of_what_they_load(setup: Setup, capsys: Captured) -> None:
    """What users see of a stub, of another libnvidia-ml, of a library of which the kernel complains,
    and of a container without compute.
    """
    stub = "opt/cuda/lib64/stubs/libcuda.so.1"
    setup.files[stub] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64/stubs:/opt/old")
    old = shared_object(64, X86, "libnvidia-ml.so.1", [], None)
    setup.files["opt/old/libnvidia-ml.so.1"] = old
    encode = shared_object(64, X86, "libnvidia-encode.so.1", [], None)
    setup.files["opt/old/libnvidia-encode.so.1"] = encode
    shadowed = doctor(setup, capsys)[0]["library-shadowed"]
    assert {finding["message"].partition(":")[0]: finding["phrase"] for finding in shadowed} == {
        "libcuda.so.1": "CUDA driver is a stub library",
        "libnvidia-ml.so.1": "Failed to initialize NVML: Driver/library version mismatch",
        "libnvidia-encode.so.1": "NVRM: API mismatch: the client has the version",
    }
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=utility"]
    (finding,) = doctor(setup, capsys)[0]["capability-not-requested"]
    assert finding["phrase"] == "Found no NVIDIA driver on your system"


def test_a_file_at_which_the_loader_stops_is_named(setup: Setup, capsys: Captured) -> None:
    """A linker script under the library's name stops the loader, and the library is not loaded."""
    older_library(setup)
    setup.files["opt/old/libcuda.so.1"] = b"INPUT(/usr/lib/libcuda.so)" * 9
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"] == "/opt/old/libcuda.so.1: invalid ELF header"
    assert finding["fix"] == "remove /opt/old/libcuda.so.1 from the image"


def test_a_library_that_the_image_lacks_is_named(setup: Setup, capsys: Captured) -> None:
    """A driver's library that needs a library which no image directory has does not load."""
    (path,) = (name for name in setup.host["files"] if name.endswith("/lib/libcuda.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libm.so.6"]
    code, results = run_doctor(setup, capsys)
    assert code == 1
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"].endswith("/libcuda.so.1 needs libm.so.6, which the image lacks")
    assert finding["fix"] == "add the package that contains libm.so.6 to the image"


@pytest.mark.parametrize(("capabilities", "level"), [("all", "warning"), ("graphics", "error")])
def test_graphics_that_only_all_has_requested_is_a_warning(
    capabilities: str, level: str, setup: Setup, capsys: Captured
) -> None:
    """A graphics library that does not load is an error only where graphics is requested by its
    name: images for computing request all capabilities and have no X11.
    """
    (path,) = (name for name in setup.host["files"] if name.endswith("/libGLX_nvidia.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libX11.so.6"]
    setup.env = [ALL, f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    (finding,) = doctor(setup, capsys)[0]["library-shadowed"]
    assert finding["message"].endswith("needs libX11.so.6, which the image lacks")
    assert finding["level"] == level


@pytest.mark.parametrize("of_program", [True, False])
def test_a_library_that_the_program_lacks_is_named_once(
    of_program: bool, setup: Setup, capsys: Captured
) -> None:
    """A program that needs a missing library, itself or by another, opens no library at all."""
    needed = "libnone.so.1" if of_program else "libown.so.1"
    own = shared_object(64, X86, "libown.so.1", ["libnone.so.1"], None)
    setup.files["usr/lib/x86_64-linux-gnu/libown.so.1"] = own
    setup.files["usr/bin/app"] = executable(X86, "x", [needed, "libc.so.6"], None, LOADER)
    code, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert code == 1
    by = "/usr/bin/app" if of_program else "/usr/lib/x86_64-linux-gnu/libown.so.1"
    assert finding["message"] == (
        "the container's program ends at its start, before it opens libcuda.so.1: "
        f"{by} needs libnone.so.1, which the image lacks"
    )
    assert finding["fix"] == "add the package that contains libnone.so.1 to the image"


@pytest.mark.parametrize("beside_loader", [True, False])
def test_a_program_with_another_glibc(
    beside_loader: bool, setup: Setup, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of glibc that the driver needs have to come from where the program's glibc is."""
    own, name = "/opt/glibc/lib", b"__libc_siglongjmp"
    needs = Symbols(frozenset(), (name,), (), 0, frozenset({name}))

    def read(_tree: object, file: str) -> Symbols | None:
        return needs if file.endswith("/lib/libm.so.6") else Symbols(frozenset(), (), (), 0)

    monkeypatch.setattr(loading, "read_symbols", read)
    (path,) = (file for file in setup.host["files"] if file.endswith("/lib/libcuda.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libm.so.6"]
    setup.files[f"{own}/ld-linux-x86-64.so.2"[1:]] = setup.files[LOADER.lstrip("/")]
    setup.files["usr/bin/app"] = executable(X86, "x", [], None, f"{own}/ld-linux-x86-64.so.2")
    setup.files["lib/libm.so.6"] = shared_object(64, X86, "libm.so.6", [], None)
    if beside_loader:
        setup.files[f"{own}/libm.so.6"[1:]] = setup.files["lib/libm.so.6"]
    (finding,) = doctor(setup, capsys)[0]["library-shadowed"]
    assert finding["message"].endswith("__libc_siglongjmp, version GLIBC_PRIVATE")
    sets = f"set LD_LIBRARY_PATH={own} in the container's environment"
    other = "start a program that is built for the image's glibc"
    assert finding["fix"] == (sets if beside_loader else other)


def test_a_program_of_musl_beside_glibc(setup: Setup, capsys: Captured) -> None:
    """nvidia-smi starts with glibc's loader, and the container's own program loads no driver."""
    musl = "/lib/ld-musl-x86_64.so.1"
    setup.files["usr/bin/app"] = executable(X86, "x", ["libc.musl-x86_64.so.1"], None, musl)
    setup.files[musl[1:]] = shared_object(64, X86, "libc.musl-x86_64.so.1", [], None)
    code, results = run_doctor(setup, capsys)
    (finding,) = results["loader-missing"]["findings"]
    assert (code, finding["level"]) == (1, "error")
    assert finding["message"].startswith(
        "libcuda.so.1, libnvidia-ml.so.1 do not load: Error loading"
    )


def test_a_program_of_glibc_in_alpine(setup: Setup, capsys: Captured) -> None:
    """gcompat starts musl's loader, which searches neither the driver's directory nor a cache."""
    musl = "lib/ld-musl-x86_64.so.1"
    setup.files = {
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, LOADER),
        musl: shared_object(64, X86, "libc.musl-x86_64.so.1", [], None),
        LOADER.lstrip("/"): executable(X86, "x") + f"\0/{musl}\0/lib/libgcompat.so.0\0".encode(),
        "lib/libgcompat.so.0": shared_object(64, X86, "libgcompat.so.0", [], None),
    }
    code, results = run_doctor(setup, capsys)
    (finding,) = results["library-path"]["findings"]
    assert (code, finding["level"]) == (1, "error")
    assert "mounted in /usr/lib64, and the loader searches /lib, " in finding["message"]
    assert finding["fix"] == "set LD_LIBRARY_PATH=/usr/lib64 in the container's environment"
    setup.env.append("LD_LIBRARY_PATH=/usr/lib64")
    assert doctor(setup, capsys)[1].endswith(
        "; not known is whether gcompat has all symbols of glibc that the driver needs."
    )


def of_32_bits(setup: Setup) -> None:
    """Make the image a 32-bit one."""
    loader = "/lib/ld-linux.so.2"
    setup.files["usr/bin/app"] = shared_object(32, "EM_386", "app", ["libc.so.6"], None, loader)
    setup.files[loader.lstrip("/")] = (
        shared_object(32, "EM_386", "ld-linux.so.2", [], None)
        + b"\0/lib/i386-linux-gnu/\0/usr/lib/i386-linux-gnu/\0/etc/ld.so.cache\0"
    )
    setup.files["lib/i386-linux-gnu/libc.so.6"] = shared_object(32, "EM_386", "libc.so.6", [], None)


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ([], "set NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"),
        (
            ["LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu"],
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32",
        ),
        (
            ["NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"],
            "install all 32-bit libraries of the driver on the host",
        ),
    ],
)
def test_a_32_bit_program_needs_compat32(
    variable: list[str], advice: str, setup: Setup, capsys: Captured
) -> None:
    """A 32-bit image is told to ask for compat32, not to search the 64-bit directory; where it has
    asked, the host lacks the libraries.
    """
    of_32_bits(setup)
    setup.env += variable
    _, results = run_doctor(setup, capsys)
    fixes = {
        finding["fix"]
        for name in ("library-path", "library-shadowed")
        for finding in results[name]["findings"]
    }
    (fix,) = fixes
    assert fix.startswith(advice)


LIBS = "usr/lib/x86_64-linux-gnu"
_FOREIGN = shared_object(64, "EM_AARCH64", "libcuda.so.1", [], None)
_OF_32_BITS = shared_object(32, "EM_386", "libcuda.so.1", [], None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_FOREIGN, "for another machine: EM_AARCH64, 64 bits"),
        (_OF_32_BITS, "for another machine: EM_386, 32 bits"),
        (None, "the container's user may not read it"),
    ],
    ids=["other-machine", "32-bit", "not-readable"],
)
def test_a_file_in_the_place_of_the_link_that_cannot_be_used_is_to_be_removed(
    data: bytes | None, reason: str, setup: Setup, capsys: Captured
) -> None:
    """Such a file keeps the host's library from being found: another search path does not help."""
    setup.files[f"{LIBS}/libcuda.so.1"] = data or shared_object(64, X86, "libcuda.so.1", [], None)
    if data is None:
        (setup.place / "b/rootfs" / LIBS).mkdir(parents=True)
        file = setup.place / "b/rootfs" / LIBS / "libcuda.so.1"
        file.write_bytes(setup.files.pop(f"{LIBS}/libcuda.so.1"))
        file.chmod(0o200)
        user = {"uid": 12345, "gid": 12345}
        setup.config = {"process": {"user": user, "capabilities": {"effective": []}}}
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert f"passes over /{LIBS}/libcuda.so.1 of the image: {reason}" in finding["message"]
    assert finding["cause"].startswith("it is in the place of the link to the host's libcuda.so.")
    assert finding["fix"] == f"remove /{LIBS}/libcuda.so.1 from the image"
    assert not results["library-path"]["findings"]


def test_a_file_of_a_32_bit_image_at_which_the_loader_stops_is_named(
    setup: Setup, capsys: Captured
) -> None:
    """An empty file stops the loader of a 32-bit program as well. nvidia-smi has no loader there,
    and the 32-bit one cannot start it.
    """
    of_32_bits(setup)
    setup.env += ["LD_LIBRARY_PATH=/opt/old", "NVIDIA_DRIVER_CAPABILITIES=compute,compat32,utility"]
    setup.files["opt/old/libcuda.so.1"] = b""
    _, results = run_doctor(setup, capsys)
    findings = results["library-shadowed"]["findings"]
    assert "/opt/old/libcuda.so.1: file too short" in {found["message"] for found in findings}
    for finding in results["loader-missing"]["findings"]:
        assert "start it as" not in finding["fix"]


def test_an_image_library_that_lacks_another_is_not_taken_for_the_hosts(
    setup: Setup, capsys: Captured
) -> None:
    """A libcuda.so.1 of the image whose own library is missing is to be removed."""
    older_library(setup)
    needs = shared_object(64, X86, "libcuda.so.1", ["libnone.so.2"], None)
    setup.files["opt/old/libcuda.so.1"] = needs
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"].endswith(
        "/opt/old/libcuda.so.1 needs libnone.so.2, which the image lacks"
    )
    assert (
        finding["cause"] == "the loader takes a file of the image for the host's (LD_LIBRARY_PATH)"
    )
    assert finding["fix"].startswith("remove /opt/old from LD_LIBRARY_PATH, or ")


def test_a_volume_without_the_right_to_execute_stops_the_loader(
    setup: Setup, capsys: Captured
) -> None:
    """The volume and its option noexec are named, not the image."""
    own = setup.place / "own"
    own.mkdir()
    (own / "libcuda.so.1").write_bytes(shared_object(64, X86, "libcuda.so.1", [], None))
    options = ["rbind", "ro", "noexec"]
    mount = {"destination": "/opt/own", "type": "bind", "source": str(own), "options": options}
    setup.config = {"mounts": [mount]}
    setup.env.append("LD_LIBRARY_PATH=/opt/own")
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["cause"] == "the volume /opt/own is mounted with the option noexec"
    assert finding["fix"].startswith("mount it without noexec")


def test_the_entry_of_the_search_path_is_named(setup: Setup, capsys: Captured) -> None:
    """Behind a link the entry of LD_LIBRARY_PATH is to be removed, not the directory of the file."""
    stub = "opt/cuda/lib64/stubs/libcuda.so"
    setup.files[stub] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links = {"opt/cuda/lib64/libcuda.so.1": "stubs/libcuda.so"}
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64")
    (finding,) = doctor(setup, capsys)[0]["library-shadowed"]
    assert (
        finding["fix"] == f"remove /opt/cuda/lib64 from LD_LIBRARY_PATH, or /{stub} from the image"
    )


def test_an_empty_entry_of_the_search_path_is_named(setup: Setup, capsys: Captured) -> None:
    """An empty entry of LD_LIBRARY_PATH is the working directory."""
    setup.files["srv/libcuda.so.1"] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64:")
    setup.config = {"process": {"cwd": "/srv"}}
    (finding,) = doctor(setup, capsys)[0]["library-shadowed"]
    assert finding["fix"].startswith("remove the empty entry from LD_LIBRARY_PATH, or /srv/libcuda")


def test_a_stub_of_nvml_has_words_of_its_own(setup: Setup, capsys: Captured) -> None:
    """NVML's stub fails otherwise than CUDA's. It is found also where the container gets none of
    the host, for which it needs another capability.
    """
    stub = "opt/cuda/lib64/stubs/libnvidia-ml.so.1"
    setup.files[stub] = shared_object(64, X86, "libnvidia-ml.so.1", [], None)
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64/stubs")
    (finding,) = doctor(setup, capsys)[0]["library-shadowed"]
    assert finding["level"] == "error"
    assert finding["cause"] == "it is a stub for linking, not a driver: NVML does not start"
    assert finding["phrase"].startswith("You should always run with libnvidia-ml.so")
    setup.env.append("NVIDIA_DRIVER_CAPABILITIES=compute")
    findings = doctor(setup, capsys)[0]
    (finding,) = findings["library-shadowed"]
    assert finding["level"] == "warning"
    assert f"/{stub}" in finding["message"]
    assert "libnvidia-ml.so.1" in findings["capability-not-requested"][0]["message"]


def test_libraries_without_their_capability_are_named(setup: Setup, capsys: Captured) -> None:
    """Where the image needs a capability, the libraries that are not mounted are named."""
    setup.files["usr/bin/ffmpeg"] = b"x"
    (finding,) = doctor(setup, capsys)[0]["capability-not-requested"]
    assert finding["cause"].endswith("not mounted: libnvidia-encode.so.1, libnvcuvid.so.1")


def test_a_program_linked_statically_with_musl_loads_nothing(
    setup: Setup, capsys: Captured
) -> None:
    """Its dlopen() always fails, and says so in words that are in the program."""
    setup.files["usr/bin/app"] = executable(X86, "x") + b"\0Dynamic loading not supported\0"
    found = doctor(setup, capsys)[0]["library-shadowed"]
    assert found[0]["message"] == (
        "libcuda.so.1: /usr/bin/app is linked statically with musl: Dynamic loading not supported"
    )


def test_the_c_library_of_a_loader_of_its_own_is_searched_too(
    setup: Setup, capsys: Captured
) -> None:
    """A program finds its C library by its RUNPATH, which does not count for what it opens: the
    driver's libraries need that directory in LD_LIBRARY_PATH too.
    """
    store = "nix/store/x-glibc/lib"
    own = f"/{store}/ld-linux-x86-64.so.2"
    loading = Loading(runpath=f"/{store}")
    setup.files = {
        "tmp/.keep": b"",
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, own, loading),
        own.lstrip("/"): loader(b"/none/lib/\0/none/usr/lib/\0", "/none/ld.so.cache"),
        **{f"{store}/{name}": library(name) for name in ("libc.so.6", "libm.so.6")},
    }
    (path,) = (name for name in setup.host["files"] if name.endswith("/lib/libcuda.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libm.so.6"]
    (finding,) = doctor(setup, capsys)[0]["library-path"]
    assert finding["fix"].startswith("set LD_LIBRARY_PATH=/usr/lib64:/nix/store/x-glibc/lib in ")
    setup.env.append("LD_LIBRARY_PATH=/usr/lib64")
    finding = doctor(setup, capsys)[0]["library-shadowed"][0]
    assert finding["message"].endswith(
        "/libcuda.so.1 needs libm.so.6, which the loader does not find"
    )
    assert finding["fix"].startswith("set LD_LIBRARY_PATH=/usr/lib64:/nix/store/x-glibc/lib in ")


def test_a_greater_version_beside_the_hosts_is_to_be_removed(
    setup: Setup, capsys: Captured
) -> None:
    """Where a directory of LD_LIBRARY_PATH is the driver's own, it is not to be removed from it."""
    libs = "usr/lib/x86_64-linux-gnu"
    setup.env.append(f"LD_LIBRARY_PATH=/{libs}")
    setup.files[f"{libs}/libcuda.so.999.1"] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links = {f"{libs}/libcuda.so.1": "libcuda.so.999.1"}
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert (
        "the link libcuda.so.1 leads to the greater version, libcuda.so.999.1"
        in (finding["message"])
    )
    assert finding["fix"] == f"remove the driver libraries in /{libs} from the image"
    assert not results["soname-links-missing"]["findings"]  # one report for one library


def test_musl_is_named(setup: Setup, capsys: Captured) -> None:
    """The message names musl's loader where the image has no other."""
    without_loader(setup)
    setup.files["lib/ld-musl-x86_64.so.1"] = b"musl"
    _, results = run_doctor(setup, capsys)
    assert (
        "musl's loader /lib/ld-musl-x86_64.so.1"
        in results["loader-missing"]["findings"][0]["message"]
    )


def test_a_library_in_the_place_of_a_link_for_programs_of_other_bits(
    tmp_path: Path, capsys: Captured
) -> None:
    """A 32-bit library of the image that is not the driver's is no error of a 64-bit program."""
    path = starters_bundle(tmp_path / "b")
    place = "usr/lib/i386-linux-gnu/libcuda.so.1"
    put(tmp_path / "b/rootfs" / place, shared_object(32, "EM_386", "libcuda.so.1", [], None))
    main(["doctor", "--bundle", path, "--host", "debian-compat32", "--format", "json"])
    results = {result["id"]: result for result in json.loads(capsys.readouterr().out)["results"]}
    (finding,) = results["soname-links-missing"]["findings"]
    assert (finding["level"], place in finding["fix"]) == ("warning", True)
