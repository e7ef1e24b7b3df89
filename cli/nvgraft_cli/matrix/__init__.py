"""``nvgraft matrix``: many hosts against many containers. One module computes, one writes, one is the command."""
