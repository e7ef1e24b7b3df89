"""The lab: the start of a container, stopped between the phases of the hook.

Here are the phases and the way to observe them, the container that waits, what a learner can do at
a stop, and the experiment of a container built by hand. Nothing here decides what a container gets:
the engine's own functions do, in a process of the lab (docs/decisions/0069).
"""
