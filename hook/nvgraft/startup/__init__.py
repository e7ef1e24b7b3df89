"""What only makes a start quicker: byte code in one file, and a garbage collector that does not run.

Everything works without it, more slowly, and the gain of each measure is on record in docs/decisions.
Code that a start needs for its result does not belong here.
"""
