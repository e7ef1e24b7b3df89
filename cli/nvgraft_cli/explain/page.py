"""Show a story as one page that needs no network and no framework, and is readable without script.

All text is escaped on its way into the page, and the page's policy forbids every connection.
Reasons and directories are native disclosure elements, which keyboards and screen readers support;
the script only filters entries and opens reasons.
"""

import base64
import hashlib
import html
import json
from importlib import resources

from nvgraft import __version__
from nvgraft.base.errors import printable
from nvgraft_cli.explain.directories import TreeNode
from nvgraft_cli.explain.story import Fact, PodLayer, Step, Story, StoryEntry, groups
from nvgraft_cli.shell.text import size

_VERDICTS = {"inject": "GPU container", "skip": "No GPU container", "refuse": "Refused"}
_STATES = {"new": "new", "over": "over the image's", "changed": "rewritten", "image": ""}


class _Html(str):
    """HTML; every other str is text to escape."""

    __slots__ = ()


def _tag(name: str, /, *children: str, **attributes: str | bool) -> _Html:
    """Return an element.

    :param attributes: ``class_`` is class and ``data_x`` is data-x; True is an attribute without a
        value, and False no attribute.
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not False:
            words.append(f'{key}="{html.escape(printable(str(value)))}"')
    opening = f"<{' '.join(words)}>"
    if name in {"meta", "link", "input"}:
        return _Html(opening)
    return _Html(f"{opening}{_join(*children)}</{name}>")


def _join(*children: str) -> _Html:
    return _Html(
        "".join(
            child if isinstance(child, _Html) else html.escape(printable(child))
            for child in children
        )
    )


def render(story: Story, trees: tuple[TreeNode, TreeNode] | None, docs: str | None) -> str:
    """Return the page.

    :param trees: the container's files before and after; None where nothing is mounted.
    :param docs: the address of the documentation, absolute or relative to the page; None if it is
        not known: sections are then named without links.
    """
    style, script = _package_text("page.css"), _package_text("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    head = _tag(
        "head",
        _tag("meta", charset="utf-8"),
        _Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("meta", name="color-scheme", content="light dark"),
        _tag("meta", name="referrer", content="no-referrer"),
        _tag("link", rel="icon", href="data:,"),
        _tag("title", f"{_VERDICTS[story.decision]}: {story.container} on {story.host}"),
        _Html(f"<style>{style}</style>"),
    )
    sections = [_step(number, step, docs) for number, step in enumerate(story.steps, 1)]
    if trees is not None:
        sections.append(_trees(len(sections) + 1, *trees))
    body = _tag(
        "body",
        _tag("a", "Skip to the story", class_="jump", href="#story"),
        _header(story),
        _tag(
            "div",
            _aside(story, trees is not None),
            _tag("main", *sections, id="story", tabindex="-1"),
            class_="columns",
        ),
        _tag(
            "footer",
            _tag(
                "p",
                f"Written by nvgraft {__version__} from files alone. This page loads nothing.",
            ),
        ),
        _tag("script", _Html(_data(story)), id="data", type="application/json"),
        _Html(f"<script>{script}</script>"),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _package_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(story: Story) -> str:
    """Return the story as JSON without HTML's special characters, so that no name can end it."""
    text = json.dumps(story.document(), separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# ---- the frame


def _header(story: Story) -> _Html:
    return _tag(
        "header",
        _tag("p", _tag("strong", _VERDICTS[story.decision], class_=f"verdict {story.decision}")),
        _tag("h1", story.headline),
        _tag("p", _tag("code", story.container), " on ", _tag("code", story.host), class_="case"),
    )


def _aside(story: Story, trees: bool) -> _Html:
    items = [_tag("li", _tag("a", step.title, href=f"#{step.id}")) for step in story.steps]
    if trees:
        items.append(_tag("li", _tag("a", "The container's files, before and after", href="#tree")))
    parts = [
        _tag(
            "nav",
            _tag("h2", "The story", id="contents"),
            _tag("ol", *items),
            aria_labelledby="contents",
        )
    ]
    capabilities = list(
        dict.fromkeys(
            entry.capability
            for step in story.steps
            if step.id in _FILTERED
            for entry in step.entries
        )
    )
    if trees:
        choices = [
            _choice("", "everything", chosen=True),
            *(_choice(name, name, chosen=False) for name in capabilities),
        ]
        parts.append(
            _tag(
                "form",
                _tag("fieldset", _tag("legend", "Show by capability"), *choices),
                _tag("p", role="status", id="status"),
                _tag(
                    "p",
                    _tag(
                        "button",
                        "Open all reasons",
                        type="button",
                        id="reasons",
                        aria_pressed="false",
                    ),
                ),
                id="controls",
                hidden=True,
                aria_label="Filter",
            )
        )
    return _tag("div", *parts, class_="side")


def _choice(value: str, label: str, *, chosen: bool) -> _Html:
    return _tag(
        "label",
        _tag("input", type="radio", name="capability", value=value, checked=chosen),
        " ",
        label,
    )


# ---- steps

#: Steps whose entries belong to capabilities.
_FILTERED = ("files", "kernel", "loader")


def _step(number: int, step: Step, docs: str | None) -> _Html:
    parts = [
        _tag(
            "h2", _tag("span", str(number), class_="number"), " ", step.title, id=f"{step.id}-title"
        ),
        _tag("p", step.text, class_="lead"),
    ]
    if step.layers:
        parts.append(_sandwich(step.layers))
    elif step.facts:
        parts.append(_tag("dl", *(_fact(fact) for fact in step.facts)))
    filtered = step.id in _FILTERED
    if step.grouped:
        for capability, entries in groups(step.entries):
            total = sum(entry.size or 0 for entry in entries)
            amount = f"{len(entries)}, {size(total)}" if total else str(len(entries))
            title = _tag("h3", capability, " ", _tag("small", amount))
            parts.append(
                _tag("div", title, _entries(entries, filtered=True), data_capability=capability)
            )
    elif step.entries:
        parts.append(_entries(step.entries, filtered=filtered, ordered=step.id == "kernel"))
    page, _, anchor = step.doc.partition("#")
    place = f"docs/{page}: {anchor.replace('-', ' ')}"
    link = _tag("cite", place) if docs is None else _tag("a", place, href=f"{docs}/{step.doc}")
    parts.append(_tag("p", "Read more: ", link, class_="more"))
    return _tag("section", *parts, id=step.id, aria_labelledby=f"{step.id}-title")


def _sandwich(layers: tuple[PodLayer, ...]) -> _Html:
    """Return the picture of the layers, one above the other with arrows between them."""
    slices = []
    for layer in layers:
        facts = [_tag("dl", *(_fact(fact) for fact in layer.facts))] if layer.facts else []
        if layer.fault:
            facts.append(_tag("p", _tag("strong", "Broken here: "), layer.fault, class_="fault"))
        state = "broken" if layer.fault else "reached" if layer.facts else "idle"
        if state == "idle":
            facts.append(_tag("p", "Nothing happens here.", class_="why"))
        slices.append(_tag("li", _tag("h3", layer.title), *facts, class_=f"slice {state}"))
    caption = _tag("figcaption", "What each layer sees and hands on, from the pod downward.")
    return _tag("figure", _tag("ol", *slices), caption, class_="sandwich")


def _fact(fact: Fact) -> _Html:
    why = _tag("span", fact.why, class_="why") if fact.why else _Html("")
    return _tag("div", _tag("dt", fact.name), _tag("dd", _tag("code", fact.value), " ", why))


def _entries(
    entries: "list[StoryEntry] | tuple[StoryEntry, ...]", *, filtered: bool, ordered: bool = False
) -> _Html:
    items = []
    for entry in entries:
        summary = [_tag("code", entry.what)]
        if entry.size is not None:
            summary.append(_join(" ", _tag("span", size(entry.size), class_="size")))
        facts = [
            _pair("How", entry.how),
            _pair("Why", entry.why),
            _pair("Capability", entry.capability),
        ]
        if not filtered:
            summary.append(_join(" ", entry.how))
            facts = [_pair("What to do", entry.why)]
        item = _tag("details", _tag("summary", *summary), _tag("dl", *facts), class_="entry")
        items.append(_tag("li", item, data_capability=entry.capability if filtered else False))
    return _tag("ol" if ordered else "ul", *items, class_="entries")


def _pair(name: str, value: str) -> _Html:
    return _tag("div", _tag("dt", name), _tag("dd", value)) if value else _Html("")


# ---- the tree


def _trees(number: int, before: TreeNode, after: TreeNode) -> _Html:
    return _tag(
        "section",
        _tag(
            "h2",
            _tag("span", str(number), class_="number"),
            " The container's files, before and after",
            id="tree-title",
        ),
        _tag(
            "p",
            "Only the driver's files and the directories above them are listed; other names of "
            "the image are counted. Open a name to see why it is there.",
            class_="lead",
        ),
        _tag(
            "div",
            _tag("div", _tag("h3", "Before: the image"), _tag("ul", _node(before), class_="tree")),
            _tag(
                "div",
                _tag("h3", "After: with the driver"),
                _tag("ul", _node(after), class_="tree"),
                id="after",
            ),
            class_="trees",
        ),
        id="tree",
        aria_labelledby="tree-title",
    )


def _node(node: TreeNode) -> _Html:
    directory = bool(node.children) or node.kind in {"dir", "tmpfs"}
    name = node.name if node.path == "/" or not directory else f"{node.name}/"
    marks = [_STATES[node.state]]
    if node.kind not in {"dir", "file"}:
        marks.append({"char": "device", "symlink": "link"}.get(node.kind, node.kind))
    label = [
        _tag("code", name),
        *(_join(" ", _tag("span", mark, class_=f"mark {node.state}")) for mark in marks if mark),
    ]
    if node.size is not None:
        label.append(_join(" ", _tag("span", size(node.size), class_="size")))
    facts = [_pair("How", node.how), _pair("Why", node.why)]
    if node.how:
        facts.append(_pair("Capability", node.capability))
    reasons = _tag("dl", *facts) if node.how else _Html("")
    if node.children or node.others != 0:
        children = [_node(child) for child in node.children]
        if node.others != 0:
            children.append(_tag("li", _others(node), class_="others"))
        if node.how:
            reasons = _tag(
                "details", _tag("summary", f"why {name} is here"), reasons, class_="entry own"
            )
        return _tag(
            "li",
            _tag(
                "details",
                _tag("summary", *label),
                reasons,
                _tag("ul", *children),
                open=True,
                class_="directory",
            ),
        )
    if not node.how:
        return _tag("li", *label, class_="leaf")
    return _tag(
        "li",
        _tag("details", _tag("summary", *label), reasons, class_="entry"),
        data_capability=node.capability,
    )


def _others(node: TreeNode) -> str:
    if node.others is None:
        return "other names here cannot be read"
    return f"{node.others} other name{'' if node.others == 1 else 's'}"
