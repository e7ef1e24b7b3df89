"""The parts that pages for a browser share: the template, the policy and the style of a document.

A page loads nothing, and is readable without its script. What a page shows belongs to the command
that writes it.
"""
