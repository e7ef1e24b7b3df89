"""Write a matrix as text or as CSV."""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator

from nvgraft.base.errors import printable
from nvgraft_specs.models.matrix import Cell, Hosts, Matrix

_COLOURS = {"runs": "32", "skipped": "2", "refused": "31"}

#: How many host names to list; further ones are counted.
_NAMES = 6


def text(matrix: Matrix, *, colour: bool) -> str:
    """Return a block for each container: where it runs, where it is refused and why, warnings.

    Hosts with equal results are grouped, so that a host that differs stands out.
    """
    return "\n".join(_lines(matrix, colour=colour)) + "\n"


def _lines(matrix: Matrix, *, colour: bool) -> Iterator[str]:
    hosts = sum(len(row.names) for row in matrix.hosts)
    counts = Counter[str]()
    for row in matrix.hosts:
        for cell in row.cells:
            counts[cell.outcome] += len(row.names)
            counts["warned"] += len(row.names) if cell.warnings else 0
    folded = f" ({len(matrix.hosts)} different)" if len(matrix.hosts) < hosts else ""
    yield (
        f"{_count(hosts, 'host')}{folded} x {_count(len(matrix.bundles), 'container')}: "
        + ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in (*_COLOURS, "warned"))
    )
    for index, bundle in enumerate(matrix.bundles):
        yield ""
        yield _paint("1", printable(bundle), colour=colour)
        yield from _container(matrix, index, colour=colour)


def _container(matrix: Matrix, index: int, *, colour: bool) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Hosts]] = {}
    warned: dict[tuple[str, str], list[Hosts]] = {}
    for row in matrix.hosts:
        cell = row.cells[index]
        groups.setdefault((cell.outcome, cell.reason), []).append(row)
        for warning in cell.warnings:
            warned.setdefault((warning.id, warning.message), []).append(row)
    for (outcome, reason), rows in sorted(
        groups.items(), key=lambda item: list(_COLOURS).index(item[0][0])
    ):
        word = _paint(_COLOURS[outcome], f"{outcome:<8}", colour=colour)
        yield f"  {word} on {_host_names(rows, matrix)}"
        if reason:
            yield f"           {printable(reason)}"
    for (identifier, message), rows in warned.items():
        word = _paint("33", "warning ", colour=colour)
        yield f"  {word} {identifier} on {_host_names(rows, matrix)}"
        yield f"           {printable(message)}"


def _host_names(rows: list[Hosts], matrix: Matrix) -> str:
    names = [os.path.basename(name).removesuffix(".json") for row in rows for name in row.names]
    total = sum(len(row.names) for row in matrix.hosts)
    if len(names) == total > 1:
        return f"all {total:,} hosts"
    listed = ", ".join(map(printable, names[:_NAMES]))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{_count(len(names), 'host')}: {listed}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _paint(code: str, text: str, *, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def table(matrix: Matrix) -> str:
    """Return CSV with a line for each pair of a host and a container."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["host", "driver", "cuda", "container", "outcome", "mounts", "warnings", "reason"]
    )
    for row in matrix.hosts:
        for name in row.names:
            for bundle, cell in zip(matrix.bundles, row.cells, strict=True):
                writer.writerow(_record(row, name, bundle, cell))
    return out.getvalue()


def _record(row: Hosts, name: str, bundle: str, cell: Cell) -> list[str | int]:
    warnings = " ".join(warning.id for warning in cell.warnings)
    texts = [
        name,
        row.driver_version,
        row.cuda_version,
        bundle,
        cell.outcome,
        str(cell.mounts),
        warnings,
        cell.reason,
    ]
    # A spreadsheet would evaluate a text that starts like a formula; images choose some of these.
    return [
        "'" + text if text[:1] in {"=", "+", "-", "@"} else text for text in map(printable, texts)
    ]
