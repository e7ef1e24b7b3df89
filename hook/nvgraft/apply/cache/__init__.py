"""The loader cache step: write the container's /etc/ld.so.cache and SONAME links.

The work is done here, or by the host's ldconfig in a jail. The rest of apply knows only the
interface of both, ``nvgraft.apply.cache_step``. The plan decides which directories and libraries
are covered; that does not belong here.
"""
