"""Stand-ins for the programs and libraries of a driver that answer: C sources, the data that they
answer from, and their compilation for one simulated host.

``driver.h`` describes the data, ``data`` writes it from a host document, ``build`` compiles.
"""
