"""The kernel: system calls, processes and their confinement, mount tables, namespaces, private
directories under /run.

Every module takes what it needs as arguments and serves any caller.
What a container asks for, what a host has, or what a plan says does not belong here.
"""
