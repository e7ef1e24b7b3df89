"""The container that is being started: its process, its mounts, and where things go in its root
file system.

Everything is held by descriptors and only read.
Code that decides what goes into the container, or puts it there, does not belong here.
"""
