"""Measured attacks: races, faults, kills, fuzzing.

``./dev safety`` runs ``figures(size, seed)`` of each module. Attacks that need a count to mean
anything are here; tests of one behaviour are in the test modules beside this package.
"""
