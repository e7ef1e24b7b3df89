"""The loader cache step: the container's /etc/ld.so.cache and SONAME links, written here or by the host's confined ldconfig.

The rest of apply knows only the interface of both ways, ``nvgraft.apply.cache_step``.
Which directories and libraries are meant is the plan's decision and does not belong here.
"""
