"""The runtime wrapper's changes of config.json, before the low-level runtime reads it, and its log.

It inserts the hook, and adds host files and devices that the hook does not mount.
``nvgraft.runtime`` starts the low-level runtime. Code that mounts something does not belong here.
"""
