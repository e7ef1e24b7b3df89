"""Known errors of GPU containers, as data that ``nvgraft explain-error`` matches with a paste.

Files are read in the order of ``FILES``. Where the matches of two rows overlap, the row that comes
first counts: put the special before the general.

Keys of an ``[[error]]``:

- ``id``: a name that does not change.
- ``failure``: an id of :mod:`nvgraft_specs.checks`, where ``nvgraft doctor`` has a check.
- ``stage``: the stage that prints the error.
- ``fixed_by``: ``node``, ``image``, ``user`` or ``cluster``: who can fix it (default: ``node``).
- ``says``: plain phrases in lower case, one of which is in every paste that the row explains.
  White space in a paste counts as one space.
- ``pattern``: a regular expression that has to match around the phrase, in any case; without it,
  the phrase alone is the match. {NAME} in it stands for the piece NAME of tables.toml. ``cause``,
  ``otherwise`` and ``next`` refer to its groups ({1}), or to what a table of tables.toml says of
  one ({1:library}).
  Quotation marks, brackets (``\\[``) and underscores of phrases and patterns need not be in a
  paste; write ``\\x5b`` for a bracket, ``\\x5f`` for an underscore without which the words mean
  something else.
- ``cuda``, ``nvml``: error numbers of CUDA and of NVML that the row explains, however a program
  spells them (cuda.toml).
- ``symptom``: true where another error in the same paste explains more.
- ``passing``: ``note`` for a line that stops nothing, ``warning`` for one after which a program
  goes on without a GPU. Such a row is left out where another line says what ended the program
  (``ends`` in words.toml), and a note also in a long log and beside any other complaint.
- ``on``: the context (tables.toml) that the paste has to name for this row.
- ``unless``: contexts that the line must not name in which this row is found.
- ``last``: true where the row knows only the part of the stack that failed (parts.toml): it is told
  where no other row was found.
- ``hints``: true where the pattern also reads what nvgraft adds to its own errors behind `` | ``.
  Other rows do not see it.
- ``hides``: rows that say less of the same error, and are left out where this one is found.
- ``cause``: the likeliest cause.
- ``otherwise``: other causes, each with the observation that tells it apart. One with a key ``on``
  is told, before the others, where the paste names that context (tables.toml), one with a key
  ``says`` where its regular expression matches the paste in small letters. At most two others are
  told, and a row has at most two without a key: a cause that the message itself shows has one.
  ``=surroundings`` stands for the texts of that table, save for contexts that the row itself
  names.
- ``rarer``: causes that few people meet, in a few words each, with the fix where it is not plain.
  They are told on one line behind the others.
- ``next``: what to do next; ``=NAME`` is the step NAME of host.toml. Commands stand in backticks,
  which are not printed.
"""

FILES = (
    *("toolkit", "engine", "kubernetes", "cuda", "driver", "host"),
    *("frameworks", "inside", "general", "parts", "layers", "words", "languages", "tables"),
)

#: Who can fix an error, by the value of ``fixed_by``.
FIXED_BY = {
    "node": "the administrator of the node",
    "image": "the author of the image",
    "user": "whoever starts the container",
    "cluster": "the operator of the cluster",
}
