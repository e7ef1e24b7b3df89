"""``nvgraft register`` and ``unregister``: change the configuration of container engines.

One module for each kind of file (an OCI bundle, a hooks directory, containerd's and Docker's
configuration) computes the new text of a file from the old one. :mod:`.change` reads, shows and
writes files, :mod:`.jsonfile` edits JSON, :mod:`.installation` knows the registered programs.
Installing them belongs to :mod:`nvgraft_cli.install`.
"""
