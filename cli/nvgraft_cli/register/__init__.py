"""Registering nvgraft with a container engine, and taking the registration back.

One module for each kind of file (an OCI bundle, a hooks directory, containerd's and Docker's configuration) decides what
a file should read afterwards, as text from text. What they share: :mod:`.change` reads, shows and writes files,
:mod:`.jsonfile` edits JSON without touching what is around the edit, :mod:`.installation` knows the programs that are
registered. Installing them does not belong here: that is :mod:`nvgraft_cli.install.install`.
"""
