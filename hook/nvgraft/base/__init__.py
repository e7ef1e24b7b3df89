"""Values and helpers that know nothing of hosts, containers or plans: errors, findings, bounded
reads, text formats, paths.

Everything here is free of decisions and of system calls beyond reading a file.
A rule of the NVIDIA stack, or a call that changes something, does not belong here.
"""
