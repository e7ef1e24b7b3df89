"""Container images as files: an archive's layers as one tree (``tree``), which layers and which configuration (``archive``)."""
