"""``nvgraft prove``: whether a library or a program will load in the container, and from where.

``dynamic`` reads what the loader reads of an ELF file, ``search`` knows where a loader looks, ``loading`` walks from one
object to the next as it does, ``command`` says what came out.
"""
