"""What the code of a Python program opens before it asks for a library of the driver.

``found`` finds modules in sys.path, ``code`` follows the statements of a module, and ``program``
the program from the interpreter's start. What a loader does with what they open belongs to
``prove/loader``, and the values of statements to ``prove/script``.
"""
