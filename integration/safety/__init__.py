"""The attacks that are measured: races, faults, kills, fuzzing. Each module has ``figures(size, seed)``; ``./dev safety`` runs them all.

What a test of one behaviour can show belongs to the test modules beside; here is what needs a count to mean anything.
"""
