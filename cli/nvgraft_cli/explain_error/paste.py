"""Read a paste: what was copied from a terminal, a log or a web page, as plain blocks of text."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import compress, pairwise

from nvgraft_cli.explain_error.known import foreign

#: Bytes of a paste that are read.
LIMIT = 1 << 24

#: Characters of a paste that is read in several ways, and the widths at which lines are wrapped.
SHORT = 1 << 15
_WIDTHS = range(28, 400)
#: What an indentation takes from the width of lines that were wrapped between words.
_INDENTED = 8
_CONTINUED = re.compile(r"[a-z]\w*(?: |$)")
#: A command, the output of a program, a line of a list of packages or of a log that tells no error:
#: the next line is not its end.
_WHOLE = re.compile(
    r"\S{0,60}[$#%] |(?:sudo )?(?:docker|podman|nerdctl|kubectl|apt|apt-get|pip3?|python3?) [a-z-]"
    r"|NVIDIA-SMI \d.*CUDA (?:UMD )?Version: \d|GPU \d+: |(?:ii|rc)  ?\S+ "
    r"|(?!.*level=(?:err|fat|warn)).{0,80}(?:level=(?:info|debug)|\b(?:INFO|DEBUG))\b"
)
#: The beginning of a message, which is not the end of the line before.
_BEGINS = re.compile(
    r"Traceback|File \"|time=|level=|\[ *\d+\.\d|\d{4}[-/]\d\d|[EW]: |[\w.-]+\[\d+\]: "
    r"|(?:DEBU|INFO|WARN|ERRO|FATA|PANI)\[\d"
    r"|(?:bash|sh|zsh|curl|wget|git|make|modprobe|panic|fatal|sudo|ls|cat|cp|mv|rm|ld|gcc|cc1?): "
    r"|(?:Error|ERROR|FATAL|WARNING|Warning|docker|podman): |\w+(?:\.\w+)*(?:Error|Exception): "
)
#: A message that Markdown shows as code or bold.
_MARKED = re.compile(
    r"^(?:(`{1,3})([^`]{1,2000})\1|\*\*([^*\n][^`\n]{,2000}?)(?<!\*)\*\*)$", re.MULTILINE
)
#: The end of a line, also one that JSON or a log has escaped.
_LINE_END = re.compile(r"\n|(?<!\\)\\+n")
_QUOTING = re.compile(r"^(?:[>│|] ?)+", re.MULTILINE)

#: Characters of one piece of text that is repeated, and of the repetitions that are read.
_PIECE = 1 << 11
_REPEATED = 1 << 13

#: Characters of a block, and those that a block repeats of the one before.
_BLOCK = 1 << 18
_OVERLAP = 1 << 12

#: Lines of one kind that are read, wherever they stand, and the lines around each.
_ALIKE = 100
_AROUND = 10
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))

_ESCAPED_ESCAPE = re.compile(r"(?<!\\)\\+(?:u001b|x1b|033)|#033", re.IGNORECASE)
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z]")
_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m|\[m(?![a-z])")
# The lookbehind makes a long row of backslashes match once, not at each backslash.
_ESCAPED_UNICODE = re.compile(r"(?<!\\)\\+u((?!d[89a-f])[0-9a-f]{4})", re.IGNORECASE)
_ESCAPED_SPACE = re.compile(r"(?<!\\)\\+([nrt])")
#: What JSON, a shell, or Markdown puts a backslash before.
_ESCAPED_MARK = re.compile(r"(?<!\\)\\+([\"'`/_*<>|~]|#(?!033)|[\[\]](?!\d+m))")
#: Blocks of a web page, each of which begins and ends a line.
_BLOCK_TAG = re.compile(r"</?(?:pre|p|div|li|td|br)(?: [^<>\n]{0,200})?/?>")
_ENTITY = re.compile(r"&(?:[a-zA-Z]{2,6}|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});")
#: What a pasted address asks for, and the bytes that characters are in it.
_QUERY = re.compile(r"(?<=[?&])\w{1,20}=[^\s&#?]*")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
#: A line of a log that containerd or CRI-O writes (kubelet-cri-logging.md in Kubernetes): F is
#: a full line or its end, P a part that the next line continues.
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT\S{8,40} std(?:out|err) ([PF])(?: (.*))?(\n?)", re.MULTILINE)
#: journalctl -o json writes a message that has control characters, such as colors, as bytes.
_JOURNAL_BYTES = re.compile(r'"MESSAGE"\s{0,9}:\s{0,9}\[([\d,\s]{1,65536})\]')
#: What docker compose puts before each line; nvidia-docker 1 writes its own name so.
_COMPOSE = re.compile(r"^(?!nvidia-docker(?:-plugin)? \| \d)[\w.-]{1,64} +\| ?", re.MULTILINE)
#: Control characters, frames that programs draw around messages, and all spaces but " ".
_BLANK = r"\x00-\x09\x0b-\x1f\x7f-\xa0\u2000-\u200a\u2500-\u259f\u3000\ufffd"
_SPACE = re.compile(rf"[ {_BLANK}]{{2,}}|[{_BLANK}]")
#: French has a space before a colon that does not end a line, or what a paste made of it.
_FRENCH_COLON = re.compile(r"[\xa0\u202f]:| :(?= commande introuvable)")
_NEWLINES = re.compile(r" ?\n[ \n]*")
#: The loader's message without its end, as in the title of a report.
_LOADER = re.compile(
    r"(error while loading shared libraries: \S+\.so[\w.]*?)[.\"']?$", re.MULTILINE
)
#: What word processors, chat programs and web pages make of plain characters.
_TYPOGRAPHY = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u2039\u203a\u00b4\uff07", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\u300c\u300d\uff02", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2028\u2029\u202f\u205f", " "),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufe0f\ufeff", ""),
    "\u2026": "...",
    "\u2192": "->",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u2260": "!=",
    "\ufb00": "ff",
    "\ufb01": "fi",
    "\ufb02": "fl",
    "\ufb03": "ffi",
    "\ufb04": "ffl",
    "\uff1a": ": ",
    "\uff0c": ", ",
}
#: The same, and a dash that was the two hyphens of an option.
_TYPOGRAPHIC = re.compile(
    "(?<![^\\s\"'`(=\u2018\u201c\u201e])([\u2013\u2014])(?=[a-zA-Z])"
    rf"|[{''.join(_TYPOGRAPHY)}]"
)


def decode(data: bytes) -> str:
    """Decode a paste: UTF-8, or UTF-16 as Windows programs write it. Other bytes do no harm."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    sample = data[:4096]
    if len(sample) > 8 and sample[1::2].count(0) > len(sample) * 0.4:
        return data.decode("utf-16-le", "replace")
    if len(sample) > 8 and sample[::2].count(0) > len(sample) * 0.4:
        return data.decode("utf-16-be", "replace")
    return data.decode("utf-8", "replace")


def readings(text: str) -> Iterator[str]:
    """Yield ``text``, and with the lines joined that a terminal or a program may have wrapped.

    A full line may have been cut at the width, between words, or after a hyphen. A chain of errors
    may have been broken behind its colons.
    """
    yield text
    if len(text) > SHORT:
        return
    yield from _chained(text)
    if "\n" not in text.strip():
        return
    lines = [line.rstrip() for line in _QUOTING.sub("", text).strip().split("\n")]
    width = max(map(len, lines))
    if width not in _WIDTHS:
        return
    cut, words = lines[0], lines[0].lstrip()
    joined = 0
    for line, after in pairwise(lines):
        cut += {width: "", width - 1: " "}.get(len(line), "\n") + after
        hangs = after[:1].isspace() and not lines[0][:1].isspace()
        after = after.lstrip()
        full = after and len(line) + 1 + len(after.split(" ", 1)[0]) > width - _INDENTED
        full = full and not _BEGINS.match(after)
        full = full and (hangs or not _WHOLE.match(_LINE_END.split(line)[-1]))
        hyphen = full and line.endswith("-") and not line.endswith(" -")
        words += ("" if hyphen else " " if full else "\n") + after
        if full:
            joined += 2 if len(lines) == 2 or hangs or _CONTINUED.match(after) else 1
    if joined > 1:
        yield cut
        yield words


def _chained(text: str) -> Iterator[str]:
    """Yield ``text`` with each line that ends with a colon joined with its cause, if several do."""
    lines = [line.rstrip() for line in _LINE_END.split(text)]
    chain = lines[0]
    joined = 0
    for line, after in pairwise(lines):
        cause = after.lstrip()
        broken = line.endswith(":") and _CONTINUED.match(cause)
        chain += " " + cause if broken else "\n" + after
        joined += bool(broken)
    if joined > 1:
        yield chain


def blocks(text: str) -> Iterator[str]:
    """Yield ``text`` in plain blocks that end with a line where they can."""
    text = _without_counters(_shortened(text))
    start = 0
    while start < len(text):
        end = start + _BLOCK
        if end < len(text):
            end = text.rfind("\n", end - _OVERLAP, end) + 1 or end
        before = max(0, start - _OVERLAP)
        yield plain(text[text.find("\n", before, start) + 1 or before : end])
        start = end


def _shortened(text: str) -> str:
    """Return ``text`` without most of the repetitions of a piece that is repeated over and over.

    Only whole pieces are left out, so that what remains reads as before.
    """
    parts: list[str] = []
    done = at = 0
    while at + _REPEATED < len(text):
        piece = text.find(text[at : at + _PIECE], at + 1, at + 2 * _PIECE) - at
        run = _run(text, at, piece) if piece > 0 else 0
        if run > _REPEATED:
            parts.append(text[done : at + _REPEATED // 2 // piece * piece])
            done = at + (run - _REPEATED // 2) // piece * piece
            at += run
        else:
            at += _REPEATED // 2
    return "".join([*parts, text[done:]])


def _run(text: str, at: int, piece: int) -> int:
    """Return for how many characters from ``at`` the first ``piece`` of them are repeated."""
    run, step = piece, piece
    while step:
        end = at + run + step
        if end <= len(text) and text[at + run : end] == text[at + run - piece : end - piece]:
            run, step = run + step, step * 2
        else:
            step //= 2
    return run


def _without_counters(text: str) -> str:
    """Return ``text`` without most of the lines that differ from many before in numbers only.

    Lines near others stay, since an error may have several, and so does the end of the text.
    """
    parts: list[str] = []
    seen: Counter[str] = Counter()
    start = 0
    while start + 2 * _BLOCK < len(text):
        end = text.find("\n", start + _BLOCK)
        if end < 0:
            break
        kinds = text[start:end].translate(_NO_DIGITS).split("\n")
        stays = bytearray(len(kinds))
        for number, kind in enumerate(kinds):
            seen[kind] += 1
            if seen[kind] <= _ALIKE:
                first = max(0, number - _AROUND)
                stays[first : number + _AROUND + 1] = b"\1" * (number + _AROUND + 1 - first)
        parts += compress(text[start:end].split("\n"), stays)
        start = end + 1
    return "\n".join([*parts, text[start:]])


def _bytes(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace")


def _journal_bytes(match: re.Match[str]) -> str:
    values = [int(digits) for digits in re.findall(r"\d{1,4}", match[1])]
    if max(values, default=256) > 255:
        return match[0]
    return "\n" + bytes(values).decode("utf-8", "replace") + "\n"


def plain(text: str) -> str:
    """Return ``text`` as English, without terminal sequences, escapes, quoting and frames.

    White space is one space, or one line end.
    """
    if len(text) <= SHORT and ("%2" in text or "://" in text):
        text = _PERCENT.sub(_bytes, _QUERY.sub(lambda match: match[0].replace("+", " "), text))
    if '"MESSAGE"' in text:
        text = _JOURNAL_BYTES.sub(_journal_bytes, text)
    if " stdout " in text or " stderr " in text:
        text = _CRI.sub(lambda match: (match[2] or "") + match[3] * (match[1] == "F"), text)
    if "\\" in text or "#033" in text:
        text = _ESCAPED_ESCAPE.sub("\x1b", text)
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    if "\\" in text:
        text = _ESCAPED_UNICODE.sub(lambda match: chr(int(match[1], 16)), text)
        text = _ESCAPED_SPACE.sub(lambda match: " " if match[1] == "t" else "\n", text)
        text = _ESCAPED_MARK.sub(r"\1", text)
    if "</pre>" in text or "</p>" in text or "</div>" in text:
        text = _BLOCK_TAG.sub("\n", text)
    if "&" in text:
        from html import unescape

        text = _ENTITY.sub(lambda match: unescape(match[0]), text)
    if " commande introuvable" in text or not text.isascii():
        text = _FRENCH_COLON.sub(":", text)
    if not text.isascii():
        text = _TYPOGRAPHIC.sub(lambda match: "--" if match[1] else _TYPOGRAPHY[match[0]], text)
    text = _QUOTING.sub("", _COMPOSE.sub("", _COLOUR.sub("", text)))
    text = _NEWLINES.sub("\n", _SPACE.sub(" ", text)).strip()
    if "`" in text or "**" in text:
        text = _MARKED.sub(r"\2\3", text)
    if "error while loading shared libraries" in text:
        text = _LOADER.sub(r"\1: cannot open shared object file", text)
    return _english(text)


def lower(text: str) -> str:
    """Return ``text`` with small ASCII letters; other letters keep their number of characters."""
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def _english(text: str) -> str:
    small = lower(text)
    letters, words = frozenset(small), {"", *small.split()}
    for one in foreign(ascii_only=small.isascii()):
        if one.inner not in words or not one.letters <= letters:
            continue
        at = small.find(one.words)
        if at < 0:
            continue
        pieces, done = [], 0
        while at >= 0:
            pieces += [text[done:at], one.english]
            done = at + len(one.words)
            at = small.find(one.words, done)
        text = "".join([*pieces, text[done:]])
        small = lower(text)
    return text
