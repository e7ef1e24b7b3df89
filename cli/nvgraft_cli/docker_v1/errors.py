"""The error of ``nvgraft docker-v1``."""


class DockerTrouble(Exception):
    """What keeps a container from starting: the reference's words, then ``|``, cause and fix."""
