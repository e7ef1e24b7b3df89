"""Charts: bars of phases and curves of growth, as SVG for the documentation and text for a
terminal.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

#: A colour for each phase in turn. Neighbours differ in lightness, too.
_COLOURS = (
    "#4e79a7", "#a0cbe8", "#f28e2b", "#ffbe7d", "#59a14f", "#8cd17d", "#b6992d", "#f1ce63",
    "#499894", "#86bcb6", "#e15759", "#ff9d9a", "#79706e", "#bab0ac", "#b07aa1", "#d4a6c8",
)  # fmt: skip
_FONT = 'font-family="sans-serif" font-size="12" fill="#222"'
_WIDTH = 900


def text_bars(bars: dict[str, dict[str, float]], width: int = 60) -> str:
    """Return a bar for each phase of each start, all at one scale."""
    longest = (
        max((value for phases in bars.values() for value in phases.values()), default=0.0) or 1.0
    )
    lines = []
    for name, phases in bars.items():
        lines.append(f"{name}, ms:")
        for phase, value in phases.items():
            if value >= 0.005:
                lines.append(f"  {phase:<20}{value:7.2f} {'#' * round(value / longest * width)}")
    return "\n".join(lines)


def svg_bars(bars: dict[str, dict[str, float]]) -> str:
    """Return one stacked bar for each start, in milliseconds by phase, with a legend."""
    names = list(dict.fromkeys(phase for phases in bars.values() for phase in phases))
    scale = (_WIDTH - 260) / max(sum(phases.values()) for phases in bars.values())
    parts = []
    y = 10
    for name, phases in bars.items():
        parts.append(f'<text x="0" y="{y + 16}" {_FONT}>{escape(name)}</text>')
        x = 200.0
        for phase, value in phases.items():
            colour = _COLOURS[names.index(phase) % len(_COLOURS)]
            title = f"<title>{escape(phase)}: {value:.2f} ms</title>"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="22" '
                f'fill="{colour}">{title}</rect>'
            )
            x += value * scale
        parts.append(
            f'<text x="{x + 4:.1f}" y="{y + 16}" {_FONT}>{sum(phases.values()):.1f}</text>'
        )
        y += 30
    for index, phase in enumerate(names):
        x, row = 200 + index % 4 * 170, y + 10 + index // 4 * 20
        parts.append(
            f'<rect x="{x}" y="{row}" width="12" height="12" '
            f'fill="{_COLOURS[index % len(_COLOURS)]}"/>'
        )
        parts.append(f'<text x="{x + 18}" y="{row + 11}" {_FONT}>{escape(phase)}</text>')
    return _document(parts, y + 20 + (len(names) + 3) // 4 * 20)


def svg_curves(curves: Sequence[tuple[str, Sequence[tuple[int, float]]]]) -> str:
    """Return a small line chart for each curve of (size, milliseconds), each with its own
    scales.
    """
    parts = []
    columns, wide, high = 2, 430, 210
    for index, (name, points) in enumerate(curves):
        left, top = index % columns * wide + 45, index // columns * high + 30
        right, bottom = left + wide - 100, top + high - 75
        largest = max(size for size, _ in points) or 1
        slowest = max(value for _, value in points)
        places = [
            (left + (right - left) * size / largest, bottom - (bottom - top) * value / slowest)
            for size, value in points
        ]
        parts.append(f'<text x="{left}" y="{top - 12}" {_FONT}>{escape(name)}</text>')
        parts.append(f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#999"/>')
        parts.append(
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" fill="none" '
            f'stroke="{_COLOURS[0]}" stroke-width="2"/>'
        )
        for (x, y), (size, value) in zip(places, points, strict=True):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLOURS[0]}"><title>{size:,}: '
                f"{value:.1f} ms</title></circle>"
            )
        parts.append(
            f'<text x="{right}" y="{bottom + 16}" text-anchor="end" {_FONT}>{largest:,}</text>'
        )
        parts.append(
            f'<text x="{left - 4}" y="{top + 10}" text-anchor="end" {_FONT}>{slowest:.0f} ms</text>'
        )
        parts.append(f'<text x="{left - 4}" y="{bottom}" text-anchor="end" {_FONT}>0</text>')
    return _document(parts, (len(curves) + columns - 1) // columns * high)


def _document(parts: Sequence[str], height: int) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 '
        f'{_WIDTH} {height}">'
    )
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]
    )
