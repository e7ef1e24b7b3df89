"""``nvgraft-device-plugin``: gives the GPUs of a node to pods, as NVIDIA's device plugin 0.20 does.

It serves for as long as the node runs. A container's start never loads it.
"""
