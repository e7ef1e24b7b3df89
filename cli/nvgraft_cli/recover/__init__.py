"""``nvgraft recover``: take away what hooks that were killed have left behind."""
