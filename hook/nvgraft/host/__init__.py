"""What a host has: driver libraries, programs, sockets, device nodes and GPUs, as an inventory.

One reader for a live host and for a recorded one, and the inventory that is kept between starts.
What a container asks for plays no part, and nothing is decided here.
"""
