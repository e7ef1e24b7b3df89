"""What people run: the program ``nvgraft``, one package for each command.

Commands share a case (``case``) and the command line (``shell``). Rules of the NVIDIA stack belong
to the engine, ``nvgraft``; contracts (tables, document models) belong to ``nvgraft_specs``.
"""
