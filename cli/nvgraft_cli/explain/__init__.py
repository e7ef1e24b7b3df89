"""``nvgraft explain``: tell the whole decision about one container as a story, step by step.

``steps`` turns a case into the values of ``story``, ``text`` and ``page`` show them,
``directories`` lists the container's files before and after. Decisions are made by the planner,
and which files programs load is answered by ``prove``; questions about one file or device belong to
``why``.
"""
