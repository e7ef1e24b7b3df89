"""``nvgraft snapshot``: a host as a document. What was looked at (``recording``), a driver that is not installed (``package``)."""
