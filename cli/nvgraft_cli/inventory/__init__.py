"""``nvgraft inventory`` and ``nvgraft watch``: the inventory that the hook keeps between
containers.
"""
