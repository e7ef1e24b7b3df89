"""The plan: from request, inventory and target to an ordered list of inert actions, each with its
reason.

Everything is pure: equal input gives an equal plan, for a live host and for a recorded one.
Code that reads a host or a container, or applies a plan, does not belong here.
"""
