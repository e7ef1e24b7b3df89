"""``nvgraft explain``: the whole decision about one container as a story, from the request to what the kernel is told.

``story`` has the values, ``steps`` makes them of a case, ``text`` and ``page`` show them, ``directories`` is the container's file
tree before and after. What is decided, and how it is found out, belongs to the planner; questions about one thing to ``why``.
"""
