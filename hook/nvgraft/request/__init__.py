"""What a container asks for: config.toml, the OCI state and config.json, and the request or refusal that follows from them.

The rules are those of the reference hook, in its order, up to the arguments that it would give nvidia-container-cli.
Nothing here looks at the host's driver or at the container's root file system.
"""
