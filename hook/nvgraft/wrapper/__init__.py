"""What the runtime wrapper does to config.json before the low-level runtime reads it, and its log.

Host files and devices that the hook does not bring, and the insertion of the hook itself.
Becoming the low-level runtime is the door's (``nvgraft.runtime``); mounting anything does not belong here.
"""
