"""The container that is being started: its process, its mounts, and where things go in its root file system.

Everything is held by descriptors and only looked at.
What is put there, and putting it there, does not belong here.
"""
