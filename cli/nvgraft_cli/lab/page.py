"""The record of a lab run as one page: each stop with its before and after, without a network."""

import base64
import hashlib
import html
from collections.abc import Iterable

from nvgraft import __version__
from nvgraft.base.errors import printable
from nvgraft_cli.lab import text
from nvgraft_cli.lab.run import LabRun

_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
section { border-top: 1px solid #888; }
pre { overflow-x: auto; padding: .5rem; border: 1px solid #888; white-space: pre-wrap;
  overflow-wrap: anywhere; }
@media print { pre { border: 0; } }
"""


def render(run: LabRun, host: str) -> str:
    """Return the page of ``run``.

    :param host: the name of the simulated host.
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none';"
        " form-action 'none'"
    )
    sections = []
    for place, stop in enumerate(run.stops):
        title = text.heading(stop.number)
        body = ""
        if stop.done is not None:
            body += f"<h3>Before this stop</h3>{_lines(text.did(stop, None))}"
        body += f"<h3>What comes next</h3>{_lines(text.ahead(stop, run.container, None))}"
        sections.append(f'<section id="stop-{place}"><h2>{_escaped(title)}</h2>{body}</section>')
    links = "".join(
        f'<li><a href="#stop-{place}">{_escaped(text.heading(stop.number))}</a></li>'
        for place, stop in enumerate(run.stops)
    )
    failed = f"<p>The start has failed: {_escaped(run.failure)}</p>" if run.failure else ""
    title = f"A start on {host}, phase by phase"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{_escaped(title)}</h1>{failed}</header>"
        f'<nav aria-label="Stops"><ol>{links}</ol></nav><main>{"".join(sections)}</main>'
        f"<footer><p>Recorded by nvgraft {__version__}. The host is simulated. This page loads"
        " nothing.</p></footer></body></html>\n"
    )


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{_escaped(chr(10).join(lines), keep=chr(10))}</pre>"


def _escaped(value: str, keep: str = "") -> str:
    lines = value.split(keep) if keep else [value]
    return html.escape(keep.join(printable(line) for line in lines))
