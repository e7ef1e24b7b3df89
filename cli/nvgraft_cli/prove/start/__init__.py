"""What a container starts: ``program`` finds the program that it runs, and ``starters`` takes each
step on the way, with one module for each family of programs that start another one.

``start_errors`` tells what the kernel does not start. Scripts belong to ``prove/script``.
"""
