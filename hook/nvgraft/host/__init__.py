"""What a host has: driver libraries, programs, sockets, device nodes and GPUs, as an inventory.

One reader serves live and recorded hosts. The inventory that is kept between starts belongs here,
too. Code that depends on a container's request does not belong here.
"""
