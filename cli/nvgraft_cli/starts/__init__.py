"""``nvgraft watch --starts``: the container starts of this node, and what the hook did for each.

The events of the kernel, and what is made of them. Refreshing the kept inventory does not belong
here.
"""
