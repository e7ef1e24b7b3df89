"""``nvgraft explain-error``: say what a pasted error of a GPU container means."""
