"""``nvgraft explain-error``: what a pasted error means. What is known about errors, how a paste is taken apart, the command."""
