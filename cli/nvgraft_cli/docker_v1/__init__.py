"""``nvgraft docker-v1``: what nvidia-docker 1.0 (2015 to 2017) did, for learning: a wrapper around
``docker`` that adds devices and a volume, and the plugin that makes the volume.

The driver reaches such a container from outside, without a hook (reference behaviour 12).
"""
