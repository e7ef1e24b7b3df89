"""Container images in archives: the configuration and layers of an image, and its files as one
tree.

Archives may come from strangers: sizes, counts and names are bounded, and nothing is unpacked.
What a plan makes of an image does not belong here.
"""
