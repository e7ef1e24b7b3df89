"""The tables of the stand-ins for libcuda and the CUDA runtime agree with NVIDIA's public headers, as
its packages bring them.
"""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from harness import CUDA_PACKAGES
from nvgraft_cli.simulate.standins import build

pytestmark = pytest.mark.requires("cuda-packages")

#: Major version of CUDA -> the layouts of cudaDeviceProp that its runtime has (runtime/properties.c).
LAYOUT = {"11": 11, "12": 12, "13": 13}


def rows(table: str, macro: str) -> list[list[str]]:
    """Return the arguments of each row of a table."""
    found = re.findall(rf"^(?:{macro})\((.*)\)$", (build.SOURCES / table).read_text(), re.MULTILINE)
    assert found
    return [row.split(", ") for row in found]


def headers(major: str, pattern: str) -> str:
    """Return the text of the headers of one package."""
    files = sorted((CUDA_PACKAGES / major).glob(f"nvidia/*/include/{pattern}"))
    assert files
    return "\n".join(file.read_text(errors="replace") for file in files)


@pytest.mark.parametrize("major", LAYOUT)
def test_each_function_of_the_driver_has_its_versions(major: str) -> None:
    """Each typedef PFN_name_vNNNN is one row with that version and stream; the symbols of a name
    are numbered in the order of the versions.
    """
    text = headers(major, "cuda*Typedefs.h")
    typedefs = {
        (name, since, "PER_THREAD" if suffix else "LEGACY")
        for name, since, suffix in re.findall(r"\*PFN_(cu[A-Z]\w*?)_v(\d+)(_pt[ds][sz])?\)", text)
        if not name.startswith("cuWGL")  # Windows
    }
    table = rows("cuda/functions.def", "ANSWERS|REFUSES")
    known = {(name, since, streams) for _, name, since, streams in table}
    assert len(typedefs) > 500
    assert sorted(typedefs - known) == []


def test_the_symbols_of_a_name_are_numbered() -> None:
    """The first variant has no number, the second one is _v2; a per-thread variant has the number of
    the one that it belongs to.
    """
    variants = defaultdict(list)
    for symbol, name, since, streams in rows("cuda/functions.def", "ANSWERS|REFUSES"):
        plain, suffix = re.fullmatch(r"(\w+?)((?:_pt[ds][sz])?)", symbol).groups()  # type: ignore[union-attr]
        assert bool(suffix) == (streams == "PER_THREAD")
        variants[name, bool(suffix)].append((int(since), plain))
    for (name, per_thread), found in variants.items():
        numbered = [name, *(f"{name}_v{number}" for number in range(2, 9))]
        symbols = [symbol for _, symbol in sorted(found)]
        last = len(variants[name, False])
        assert symbols == numbered[last - len(found) : last], (name, per_thread)


@pytest.mark.parametrize("major", LAYOUT)
def test_each_error_has_its_number(major: str) -> None:
    """Each value of the enumeration CUresult is a row."""
    declared = re.findall(
        r"^\s+(CUDA_(?:ERROR_\w+|SUCCESS))\s*=\s*(\d+)", headers(major, "cuda.h"), re.MULTILINE
    )
    known = {(name, number) for number, name, *_ in rows("cuda/errors.def", "ERROR")}
    assert len(declared) > 80
    assert set(declared) - known == set()


def declared_members(major: str) -> list[tuple[str, str, int]]:
    """Return kind, name and number of elements of each member of struct cudaDeviceProp."""
    kinds = {"size_t": "SIZE", "char": "BYTES", "cudaUUID_t": "BYTES"}
    text = headers(major, "driver_types.h")
    body = re.search(r"struct\s+(?:\w+\s+)?cudaDeviceProp\s*\{(.*?)\n\};", text, re.DOTALL)
    assert body
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", body[1], flags=re.DOTALL)
    members = re.findall(r"([\w ]+?)\s+(\w+)\s*(?:\[(\d+)\])?;", plain)
    return [
        (kinds.get(kind.strip(), "INT"), name, 16 if name == "uuid" else int(count or 1))
        for kind, name, count in members
    ]


@pytest.mark.parametrize("major", LAYOUT)
def test_the_properties_of_a_device_have_the_declared_layout(major: str) -> None:
    """The members of cudaDeviceProp have the order, kinds and sizes of each version's header."""
    layout = LAYOUT[major]
    expected = [
        (kind, name, int(count))
        for name, kind, count, first, last, *_ in rows("runtime/device_prop.def", "PROPERTY")
        if int(first) <= layout <= int(last)
    ]
    assert declared_members(major) == expected


def test_members_are_filled_from_attributes_of_their_meaning() -> None:
    """Each number is one of CUdevice_attribute, and no attribute serves two members."""
    text = headers("13", "cuda.h")
    numbers = {int(number) for number in re.findall(r"CU_DEVICE_ATTRIBUTE_\w+\s*=\s*(\d+)", text)}
    used = [
        int(source)
        for row in rows("runtime/device_prop.def", "PROPERTY")
        for source in row[5:]
        if source.isdecimal()
    ]
    assert set(used) <= numbers
    assert len(used) == len(set(used))


@pytest.mark.parametrize("major", LAYOUT)
def test_each_function_of_the_runtime_is_served(major: str) -> None:
    """Each name cuda* of libcudart's dynamic symbols is a row, except the two texts of errors."""
    (library,) = (CUDA_PACKAGES / major).glob("nvidia/*/lib/libcudart.so.*")
    command = ["nm", "--dynamic", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    public = {name for name in symbols if name.startswith(("cuda", "__cudaLaunchKernel"))}
    known = {name for (name,) in rows("runtime/functions.def", "ANSWERS|REFUSES")}
    assert len(public) > 380
    assert public - known == {"cudaGetErrorName", "cudaGetErrorString"}


def test_nothing_of_nvidias_is_in_the_tables() -> None:
    """The tables have names and numbers: no line of a header stands in them."""
    lines = {
        line.strip()
        for major in LAYOUT
        for line in headers(major, "cuda*.h").splitlines()
        if len(line.strip()) > 30
    }
    for path in [*build.SOURCES.glob("cuda/*"), *build.SOURCES.glob("runtime/*")]:
        ours = {line.strip() for line in Path(path).read_text().splitlines()}
        assert ours & lines == set(), path
