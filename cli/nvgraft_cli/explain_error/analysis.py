"""Analyse a pasted error: who passed it on, which stage failed, the likeliest causes, what to do.

Engines quote the runtime's message and runtimes quote the hook's, each with a prefix of its own,
and some escape it once more. The known errors are data: :mod:`nvgraft_specs.errors`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from nvgraft_cli.explain_error.known import (
    QUOTE,
    KnownError,
    Layer,
    Spelling,
    Word,
    filled,
    known,
    rows_with,
    without_marks,
    words_in,
)
from nvgraft_cli.explain_error.paste import SHORT, blocks, lower, readings
from nvgraft_specs.checks import FAILURES

#: The reference's stages in their order: the stages before the failing one have succeeded.
STAGES = (
    "engine",
    "hook",
    "input",
    "permission",
    "initialization",
    "container",
    "detection",
    "device",
    "mig-config",
    "mig-monitor",
    "requirement",
    "mount",
    "ldcache",
    "inside the container",
)

#: Explanations of one paste; more would not be read.
MOST = 3

#: Causes told beside the likeliest one, those first that the paste itself shows.
_OTHERS = 2

#: Characters around a phrase in which a pattern has to match.
_REACH = 600
#: Characters of a word on each side of a phrase.
_PATH = 120
#: Places of one phrase, and numbers, that are looked at in a block.
_TRIES = 20
_NUMBERS = 200
#: Lines of a paste that may be about a note; a longer one is about something else.
_FEW = 12
#: Characters of an unknown message that are quoted, and general meanings that are told of it.
_QUOTED = 300
_GENERAL = 2

_STAGE = re.compile(r"(?:nvidia-container-cli(?:\.real)?|nvgraft): ([a-z-]+) error: ?([^\n]*)")
#: What begins an error of nvgraft, and its words: cause and fix stand behind the bar.
_OWN = re.compile(
    r"nvgraft: |\b(?:input|permission|initialization|container|detection|device|requirement"
    r"|mount|ldcache) error: "
)
_BAR = " | "
#: In a text in small letters: a search in any case takes five times as long.
_COMPLAINT = re.compile(
    r"error|fail|fatal|cannot|can't|could ?n[o']t|unable|denied|not found|no such|refused|invalid"
    r"|panic|exception|unsupported|missing|timed? ?out|abort|not permitted|exited with|killed"
    r"|segmentation|signal|no space|too (?:many|long)|exceed|rejected|insufficient"
    r"|not (?:support|avail|allow)|undefined symbol"
)
#: What names a GPU or its driver: without it, checks of GPUs lead away from the cause.
_OF_GPUS = (
    *("nvidia", "nvgraft", "cuda", "gpu", "nvml", "cudnn", "nccl", "tensorrt", "/dev/dri", "dxg"),
    *("nvenc", "nvdec", "vulkan", "eglinit", "libegl", "libglx", "opengl", "optix"),
)
#: A word that has the name of a part in it and is something else: an address, an option, a file
#: that is none of the driver's, a service, volume or package beside the part.
_OTHER_NAME = re.compile(
    r"://|@|^--?[a-z]|^/?(?:home|root|srv|data|src|tmp|mnt|app|workspace|var/log|var/lib)/"
    r"|\.(?:conf|cfg|ini|ya?ml|json|py|ipynb|go|rs|[jt]sx?|md|rst|txt|log|html?|sh|git|list|repo|csv"
    r"|png|jpe?g|tar|t?gz|zip|whl|com|org|io|net|local|internal)(?:$|[:/.#?-])"
    r"|-(?:redis|db|svc|data|pull|sys|web|api|server|default|metrics|tests?|node\d*)(?:$|[:.])"
)
#: What stands before the name of something else.
_OTHER_THING = re.compile(
    r"\b(?:user|container|object|attribute|branch|image|crate|snap|flatpak|log group|network"
    r"|endpoint|chart|role|page(?: about)?|table|column|field|key|tag|namespace|secret|database"
    r"|bucket|topic|queue|target|job|workflow|volume|project|workspace|directory|folder|theme"
    r"|locale|session|token|variable)[ :=]{0,2}[\"'`(]{0,2}$"
)
#: What stands between words.
_WORD_ENDS = " \n\t\"'`()<>[]{},;|"
#: GPUs of other makers, and the GPU process of browsers.
_OF_OTHERS = re.compile(
    r"\b(?:amd|intel)\.com/gpu|\bamd ?(?:gpu|kfd)\w*|\w*gpu_info\w*|--disable-gpu\w*"
    r"|\bgpu[ _](?:process|channel)\w*"
)
#: What a program ends with: an exception, a panic, an error in words at the beginning of the line.
_ENDS = re.compile(
    r"^\W{0,3}(?!error: ?\d+$)(?:[\w.]{1,80}\.)?\w{0,60}(?:Error|Exception|Interrupt)\b(?!:? *$)"
    r"|^(?:\S{1,40}> )?(?:panic|fatal|error|E|curl|tar|thread \S{1,40} panicked)\b"
    r".{0,40}?[^\W\d_]{2}|\[emerg\]",
    re.IGNORECASE,
)
#: What may be the consequence of a GPU that was not found.
_OF_DEVICES = re.compile(
    r"gpu|cuda|nvidia|nvml|device|driver|accelerat|backend|platform|\bcpus?\b|torch|\btensor|kernel"
    r"|\bnone|vulkan|opengl|display|render|encod|decod|codec|video|memory|engine|worker|processor"
    r"|library|\.so\b|runtime\b(?! error: )|values to unpack|child|subprocess|launch|init|core\b"
    r"|segmentation|signal|abort"
)
#: Lines that say only that something failed which another line explains.
_CONSEQUENCE = re.compile(
    r"did not complete successfully|returned (?:a )?non-zero|exited with"
    r"|exit(?:ed)? (?:code|status)"
    r"|has no installation candidate|unable to locate package|failed to build|failed to solve"
    r"|build failed|calledprocesserror|\*\*\* \[|^make|^error: subprocess|aborting|giving up"
    r"|failed building wheel|could not build wheels|command errored out"
    r"|encountered errors while bringing up"
)
#: A line of make: its number is the exit code of a command, whatever the target is called.
_MAKE = re.compile(r"\bg?make(?:\[?\d+\]?)?: \*\*\* ")
#: Lines that follow an error and do not tell more.
_NOISE = re.compile(
    r"error waiting for container|see '?docker run --help|run 'docker run --help'"
    r"|during handling of the above exception|the above exception was the direct cause"
    r"|mpi_init failed for some reason|^likely to abort\b"
)
#: The message in a line of a JSON or logfmt log, the innermost key first.
_LOGGED = re.compile(r"[\"']?\b(?:error|err|msg|message|log)[\"']?[=:] ?\"([^\"]{3,})\"")
_TAIL = re.compile(r"(?:: unknown)?[\s.\"'}\])]*$")
#: What opens that which a mark closes.
_OPENING = {'"': '"', "'": "'", "}": "{", "]": "[", ")": "("}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that passed on another program's error."""

    name: str
    says: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """One recognised error.

    :ivar id: the id of the row of :mod:`nvgraft_specs.errors`.
    :ivar failure: the id that ``nvgraft doctor`` uses, or "".
    :ivar stage: the stage that prints the error.
    :ivar words: the recognised part of the paste.
    :ivar fixed_by: who can fix it.
    :ivar cause: the likeliest cause.
    :ivar otherwise: other causes, each with what tells it apart.
    :ivar rarer: causes that few people meet, in a few words each.
    :ivar next: what to do next.
    """

    id: str
    failure: str
    title: str
    stage: str
    words: str
    fixed_by: str
    cause: str
    otherwise: tuple[str, ...]
    rarer: tuple[str, ...]
    next: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a paste.

    :ivar wrappers: the programs that passed the error on, the outermost first.
    :ivar stage: the failing program's own name of the stage, or "".
    :ivar detail: the failing program's own message, or "".
    :ivar meanings: the recognised errors, the likeliest cause first.
    :ivar innermost: the innermost message of a paste in which nothing is recognised, or "".
    :ivar said_by: the program that said it, or "".
    :ivar general: what words of the innermost message mean in any error.
    :ivar checks: the checks that separate the most causes where nothing is recognised.
    """

    wrappers: tuple[Wrapper, ...]
    stage: str
    detail: str
    meanings: tuple[Meaning, ...]
    innermost: str
    said_by: str
    general: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """What the blocks of a paste have shown so far.

    :ivar marked: whether the blocks have their quotation marks, brackets and underscores.
    :ivar complaint: the last block with words of an error.
    :ivar last: the last block, if it is short.
    :ivar of_gpus: whether any block names a GPU or its driver.
    :ivar lines: the lines of all blocks.
    """

    marked: bool
    meanings: dict[str, tuple[KnownError, Meaning]] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    stage: str = ""
    detail: str = ""
    complaint: str = ""
    last: str = ""
    of_gpus: bool = False
    lines: int = 0

    @property
    def knows_words(self) -> bool:
        """Whether a row was found that knows more than a part of the stack."""
        return any(not row.last for row, _ in self.meanings.values())

    @property
    def found(self) -> list[tuple[KnownError, Meaning]]:
        """The rows to tell: of those that know only a part of the stack the innermost, if no other
        row was found.
        """
        pairs = list(self.meanings.values())
        return [pair for pair in pairs if not pair[0].last] or pairs[-1:]


@dataclass(frozen=True, slots=True)
class _Hit:
    """Where a row matches a block."""

    start: int
    end: int
    groups: tuple[str, ...]


class _Text:
    """A block, the same in small letters on one line, and which words of phrases are in it.

    The words save the search for most phrases.

    :ivar marked: whether it has its quotation marks, brackets and underscores.
    """

    def __init__(self, block: str, *, marked: bool) -> None:
        self.block = block
        self.small = lower(block).replace("\n", " ")
        self.words = words_in(self.small, marked=marked)
        self.marked = marked


def analyse(text: str) -> Analysis:
    """Analyse a paste. Errors that are not known are not guessed."""
    reading = min(map(_reading, readings(text)), key=_place)
    if len(text) <= SHORT and not (reading.knows_words and QUOTE.search(text)):
        reading = min(reading, _reading(text, marked=False), key=_place)
    meanings = () if _in_passing(reading) else _ranked(reading.found)
    innermost, speaker = ("", None) if meanings else _innermost(_to_quote(reading))
    return Analysis(
        tuple(
            Wrapper(layer.name, layer.passes)
            for layer in known().layers
            if layer.name in reading.layers
        ),
        reading.stage,
        reading.detail,
        meanings,
        innermost,
        speaker.name if speaker else "",
        () if meanings else _in_general(innermost),
        () if meanings else _checks(speaker, of_gpus=reading.of_gpus),
    )


def _to_quote(reading: _Reading) -> str:
    """Return the block to quote if nothing is known: one that complains, or a few lines at all."""
    return reading.complaint or (reading.last if reading.lines <= _FEW else "")


def _reading(text: str, *, marked: bool = True) -> _Reading:
    reading = _Reading(marked)
    for block in blocks(text):
        _read(block if marked else without_marks(block), reading)
    return reading


def _in_passing(reading: _Reading) -> bool:
    """Return whether the rows that were found are lines after which a program goes on, and the
    paste is about something else: another line says what ended the program, or it is a long log.
    """
    kinds = {row.passing for row, _ in reading.found}
    if not kinds or "" in kinds:
        return False
    notes = kinds == {"note"}
    if notes and reading.lines > _FEW:
        return True
    line = _last_telling(_complaints(reading.complaint))
    text = _Text(line, marked=reading.marked)
    said = any(line in meaning.words for _, meaning in reading.meanings.values())
    if said or any(_hits(text, cache(lambda: _contexts(text.small)))):
        return False
    small = lower(line)
    ends = _ENDS.search(line) and not _OF_DEVICES.search(small) and not _CONSEQUENCE.search(small)
    return notes or bool(ends) or any(word.ends for word, _ in _words_of(line))


def _checks(speaker: Layer | None, *, of_gpus: bool) -> tuple[str, ...]:
    """Return the checks that separate the most causes; none where nothing speaks of a GPU."""
    place = speaker.place if speaker else ""
    if not of_gpus and place in ("", "engine"):
        return ()
    return known().checks["start" if place in ("engine", "start") else "inside"]


def _place(reading: _Reading) -> tuple[bool, int, int]:
    """Return whether only symptoms were found, the place of the first row, and how many rows:
    causes say more than symptoms, and earlier rows know more.
    """
    found = [row for row, _ in reading.found]
    causes = [row for row in found if not row.symptom]
    places = (row.place for row in causes or found)
    return not causes, min(places, default=len(known().rows)), len(causes or found)


def _read(block: str, reading: _Reading) -> None:
    """Add what ``block`` shows to ``reading``."""
    text = _Text(block, marked=reading.marked)
    small = text.small
    reading.lines += block.count("\n") + 1
    reading.last = block if len(block) <= SHORT else ""
    causes = [pair for pair in reading.meanings.values() if not pair[0].symptom]
    if len(_ranked(causes)) < MOST:
        _read_rows(text, reading)
    if _COMPLAINT.search(small):
        reading.complaint = block
        _read_layers(text, reading)
    if not reading.stage and (stage := _STAGE.search(block)):
        reading.stage, reading.detail = stage[1], stage[2].strip()
    if not reading.of_gpus and any(word in small for word in _OF_GPUS):
        others = _OF_OTHERS.sub("", small)
        reading.of_gpus = any(word in others for word in _OF_GPUS)


def _read_rows(text: _Text, reading: _Reading) -> None:
    """Add the rows that match a text to ``reading``."""
    contexts = cache(lambda: _contexts(text.small))
    for row, hit in sorted(_hits(text, contexts), key=lambda pair: pair[1].start):
        if row.id not in reading.meanings:
            reading.meanings[row.id] = (row, _meaning(row, text, hit, contexts))


def _read_layers(text: _Text, reading: _Reading) -> None:
    """Add the programs that stand in lines that complain to ``reading``."""
    complains = cache(lambda start, end: _COMPLAINT.search(text.small, start, end) is not None)
    for layer in known().layers:
        if layer.name not in reading.layers and any(
            any(complains(*line) for line in _lines_with(phrase, text))
            for phrase, word in layer.phrases
            if word in text.words
        ):
            reading.layers.add(layer.name)


def _lines_with(phrase: str, text: _Text) -> Iterator[tuple[int, int]]:
    """Yield where the first lines with ``phrase`` begin and end, each line once."""
    at = text.small.find(phrase)
    for _ in range(_TRIES):
        if at < 0:
            return
        start = text.block.rfind("\n", 0, at) + 1
        end = text.block.find("\n", at)
        if end < 0:
            end = len(text.block)
        yield start, end
        at = text.small.find(phrase, end)


def _contexts(small: str) -> frozenset[str]:
    """Return the surroundings that a block names: the engine, the machine, the step."""
    return frozenset(name for name, regex in known().contexts.items() if regex.search(small))


def _line(text: _Text, hit: _Hit) -> str:
    """Return the lines that a hit is in, in small letters."""
    start = text.block.rfind("\n", 0, hit.start) + 1
    end = text.block.find("\n", hit.end)
    return text.small[start : end if end >= 0 else None]


def _hits(
    whole: _Text, contexts: Callable[[], frozenset[str]]
) -> Iterator[tuple[KnownError, _Hit]]:
    """Yield each row that matches, if no row before it has matched the same words.

    A row that hides those rows is yielded all the same.
    """
    said = _without_hints(whole)
    spelled = _numbers(said)
    spans: list[tuple[int, int, str]] = []
    for row in rows_with(whole.words, spelled.keys()):
        hit = _phrase(row, whole if row.hints else said)
        if hit is None and spelled:
            hit = next((spelled[number] for number in row.numbers if number in spelled), None)
        if hit is None or any(
            start < hit.end and hit.start < end and name not in row.hides
            for start, end, name in spans
        ):
            continue
        if row.on and row.on not in contexts():
            continue
        if row.unless and not row.unless.isdisjoint(_contexts(_line(whole, hit))):
            continue
        spans.append((hit.start, hit.end, row.id))
        yield row, hit


def _without_hints(text: _Text) -> _Text:
    """Return a text with spaces for what nvgraft adds to errors: the words before it tell the
    error.
    """
    if _BAR not in text.block:
        return text
    lines = text.block.split("\n")
    for number, line in enumerate(lines):
        own = _OWN.search(line) if _BAR in line else None
        at = line.find(_BAR, own.end()) if own else -1
        if at >= 0:
            lines[number] = line[:at].ljust(len(line))
    block = "\n".join(lines)
    return _Text(block, marked=text.marked)


def _phrase(row: KnownError, text: _Text) -> _Hit | None:
    """Return where a phrase of ``row`` stands, and its pattern matches around it."""
    for phrase, word in row.phrases if text.marked else row.bare_phrases:
        if word not in text.words:
            continue
        at = text.small.find(phrase)
        for _ in range(_TRIES):
            if at < 0:
                break
            end = at + len(phrase)
            if row.names_part and _in_other_name(text.small, at, end):
                at = text.small.find(phrase, end)
                continue
            if not row.pattern:
                return _Hit(at, end, ())
            regex = row.regex if text.marked else row.bare_regex
            match = _search(regex, text.block, max(0, at - _REACH), end + _REACH)
            if match:
                # Of alternatives, only the one that matched has groups: {1} is its first.
                groups = tuple(group for group in match.groups() if group)
                return _Hit(match.start(), match.end(), groups)
            at = text.small.find(phrase, end)
    return None


def _in_other_name(small: str, start: int, end: int) -> bool:
    """Return whether a phrase is a piece of a word that names something else."""
    first, last = start, end
    while first > max(0, start - _PATH) and small[first - 1] not in _WORD_ENDS:
        first -= 1
    while last < min(len(small), end + _PATH) and small[last] not in _WORD_ENDS:
        last += 1
    before, after = small[first:start], small[end:last].rstrip(".:")
    return (
        _OTHER_NAME.search(f"{before}\0{after}") is not None
        or _OTHER_THING.search(small, max(0, first - _PATH), first) is not None
    )


def _search(regex: re.Pattern[str], block: str, start: int, end: int) -> re.Match[str] | None:
    """Return the first match that begins between two places, and is one in the whole block too: a
    pattern would take the second place for the end of a line.
    """
    match = regex.search(block, start, end)
    return regex.match(block, match.start()) if match and end < len(block) else match


def _numbers(text: _Text) -> dict[tuple[str, int], _Hit]:
    """Return the error numbers in a text, each at its first place."""
    found: dict[tuple[str, int], _Hit] = {}
    for spelling in known().spellings:
        for match in islice(_spelled(spelling, text), _NUMBERS):
            said = next(group for group in match.groups() if group)
            hit = _Hit(match.start(), match.end(), (said,))
            if not _MAKE.search(_line(text, hit)):
                found.setdefault((spelling.of, spelling.number(said)), hit)
    return found


def _spelled(spelling: Spelling, text: _Text) -> Iterator[re.Match[str]]:
    """Yield the error numbers of one spelling."""
    says = spelling.says if text.marked else spelling.bare_says
    regex = spelling.regex if text.marked else spelling.bare_regex
    for start, end in _near(says, text.small):
        match = _search(regex, text.block, start, end)
        while match:
            yield match
            match = _search(regex, text.block, match.end(), end)


def _near(phrases: tuple[str, ...], small: str) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text that are near one of the phrases."""
    start = end = 0
    for at in sorted(at for phrase in phrases for at in _places(phrase, small)):
        if at - _REACH > end:
            yield start, end
            start = at - _REACH
        end = at + _REACH
    yield start, end


def _places(phrase: str, small: str) -> Iterator[int]:
    """Yield where a phrase stands."""
    at = small.find(phrase)
    while at >= 0:
        yield at
        at = small.find(phrase, at + len(phrase))


def _meaning(
    row: KnownError, text: _Text, hit: _Hit, contexts: Callable[[], frozenset[str]]
) -> Meaning:
    def fill(said: str) -> str:
        return filled(said, hit.groups)

    return Meaning(
        row.id,
        row.failure,
        next((failure.title for failure in FAILURES if failure.id == row.failure), ""),
        row.stage,
        text.block[hit.start : hit.end].replace("\n", " ")[:_QUOTED],
        row.fixed_by,
        fill(row.cause),
        tuple(
            islice(
                (
                    fill(other.text)
                    for other in row.otherwise
                    if other.told(text.small, contexts() if other.on else frozenset())
                ),
                _OTHERS,
            )
        ),
        tuple(map(fill, row.rarer)),
        tuple(map(fill, row.next)),
    )


def _ranked(found: list[tuple[KnownError, Meaning]]) -> tuple[Meaning, ...]:
    """Return the meanings to show: causes without their symptoms, one for each failure."""
    hidden = {name for row, _ in found for name in row.hides}
    found = [pair for pair in found if pair[0].id not in hidden] or found
    causes = [pair for pair in found if not pair[0].symptom] or found
    kept: dict[str, Meaning] = {}
    for row, meaning in causes:
        kept.setdefault(row.failure or row.id, meaning)
    return tuple(kept.values())[:MOST]


def _innermost(block: str) -> tuple[str, Layer | None]:
    """Return the innermost message of the last line that tells a cause, and who said it."""
    lines = _complaints(block)
    line = _last_telling(lines or block.split("\n"))
    end, layer = _last_layer(line)
    if layer is None:
        layer = next((found for found in map(_speaker, reversed(lines)) if found), None)
    message = line if _in_path(line, end) else line[end:].strip() or line
    if logged := _LOGGED.findall(message):
        message = logged[-1]
    return (_without_tail(message) or line)[-_QUOTED:], layer


def _without_tail(message: str) -> str:
    """Return a message without the end of what it was quoted in; a mark that closes what the
    message itself opens belongs to it.
    """
    kept = _TAIL.sub("", message)
    for mark in message[len(kept) :]:
        opening = _OPENING.get(mark)
        closed = kept.count(mark)
        if opening is None or (
            closed % 2 == 0 if opening == mark else kept.count(opening) <= closed
        ):
            break
        kept += mark
    return kept


def _in_path(line: str, end: int) -> bool:
    """Return whether the phrase that ends at ``end`` is a part of the path of a file, or the name
    of a package with its version.
    """
    return line[end - 1 : end] == "/" or line[end : end + 1] in ("/", ".", "_", "=")


def _complaints(block: str) -> list[str]:
    """Return the lines that complain of something."""
    return [
        line
        for line in block.split("\n")
        if _COMPLAINT.search(small := lower(line)) and not _NOISE.search(small)
    ]


def _last_telling(lines: list[str]) -> str:
    """Return the last of these complaints that tells a cause, or the last at all, or ""."""
    return next((each for each in reversed(lines) if _tells(each)), lines[-1] if lines else "")


def _tells(line: str) -> bool:
    """Return whether ``line`` is more than the consequence of another, or has a telling word."""
    small = lower(line)
    return not _CONSEQUENCE.search(small) or any(
        phrase in small for word in known().general if word.regex is None for phrase in word.says
    )


def _in_general(message: str) -> tuple[str, ...]:
    """Return what errno words, exit codes and signals in ``message`` mean in any error."""
    found = (
        filled(word.means, tuple(group for group in groups if group))
        for word, groups in _words_of(message)
    )
    return tuple(islice(found, _GENERAL))


def _words_of(message: str) -> Iterator[tuple[Word, tuple[str, ...]]]:
    """Yield the words that mean something in any error, and their groups."""
    small = lower(message)
    for word in known().general:
        if not any(phrase in small for phrase in word.says):
            continue
        match = word.regex.search(message) if word.regex else None
        if match or not word.regex:
            yield word, match.groups() if match else ()


def _speaker(line: str) -> Layer | None:
    return _last_layer(line)[1]


def _last_layer(line: str) -> tuple[int, Layer | None]:
    """Return the end of the last phrase of a layer in ``line``, and the layer."""
    small = lower(line)
    last: tuple[int, Layer | None] = (0, None)
    for layer in known().layers:
        for phrase in layer.says:
            at = small.rfind(phrase)
            if at >= 0 and at + len(phrase) >= last[0]:
                last = (at + len(phrase), layer)
    return last
