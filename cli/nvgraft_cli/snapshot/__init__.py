"""``nvgraft snapshot``: record a host (``recording``) or a driver that is not installed
(``package``).
"""
