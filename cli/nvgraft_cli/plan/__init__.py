"""``nvgraft plan``: the plan as text or as a document."""
