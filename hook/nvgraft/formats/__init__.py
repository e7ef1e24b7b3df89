"""File formats that others define: ELF, ld.so.cache, ld.so.conf, and the file trees that such files
are read from.

Readers are bounded and the same for a live host, a recorded one and an image.
Which files are looked for, and what follows from them, does not belong here.
"""
