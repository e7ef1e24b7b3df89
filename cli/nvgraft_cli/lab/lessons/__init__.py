"""Lessons of the lab: a broken node or container, which the learner mends.

A lesson is a file (``data``, docs/lessons.md). Here are the node and the containers that it asks
for, the shell of the learner, and the check, which starts the containers for real.
"""
