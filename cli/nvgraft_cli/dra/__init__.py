"""``nvgraft dra``: what NVIDIA's DRA driver for GPUs publishes of a host, and prepares for a claim,
as documents. Nothing is served to a kubelet here.
"""

#: The name of the driver, by which slices and claims name it.
DRIVER = "gpu.nvidia.com"
