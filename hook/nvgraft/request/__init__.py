"""What a container asks for: config.toml, the OCI state and config.json, and the request or refusal
they lead to.

The rules are those of the reference hook, in its order, up to the arguments that it gives
nvidia-container-cli. Modules that read the host's driver or the container's root file system do not
belong here.
"""
