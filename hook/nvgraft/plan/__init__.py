"""The plan: from request, inventory and target to an ordered list of inert actions, each with its reason.

Everything is pure: equal input gives an equal plan, for a live host and for a recorded one.
Reading a host or a container, and carrying a plan out, do not belong here.
"""
