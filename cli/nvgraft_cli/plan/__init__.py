"""``nvgraft plan``: print a container's plan as text, as a document, or as a CDI specification."""
