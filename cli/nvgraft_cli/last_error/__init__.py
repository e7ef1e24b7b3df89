"""``nvgraft last-error``: what the hook last said about a container."""
