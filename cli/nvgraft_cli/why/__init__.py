"""``nvgraft why``: tell why a file or device is in the container, or which rule keeps it out.

``subject`` finds out what an argument names, ``exclusion`` the first rule that keeps it out, and
``change`` the smallest change of the environment that adds it, by making plans. ``answer`` puts
them together, ``command`` prints them. The rules themselves are the planner's; which file a
program loads is answered by ``prove``.
"""
