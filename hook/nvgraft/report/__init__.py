"""What a run tells people afterwards: the debug log, and the last error of a container.

Both are best effort: a start never fails because nobody can be told of it.
The words of refusals and findings are written where they arise, not here.
"""
