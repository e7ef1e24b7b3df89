"""CDI devices (Container Device Interface): what a host has for them, and their edits as plain
values.

``discovery`` finds what this host's devices need, ``specification`` turns that into edits, and
``edits`` has the types. ``reader`` and ``registry`` read specifications of files, and ``checking``
says what is wrong with one; YAML is converted in a child. Code that writes a config.json, or that
knows a container's request, does not belong here. Source of the rules: reference behaviour 10.
"""
