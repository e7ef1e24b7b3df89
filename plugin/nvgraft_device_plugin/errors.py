"""The errors of the device plugin."""


class ConfigurationError(Exception):
    """Flags, variables or the config file cannot be used; the text has the reference's words."""


class NodeError(Exception):
    """The node cannot be served as it is configured; the text has the reference's words."""


class RequestError(Exception):
    """A request of the kubelet that cannot be answered; the text has the reference's words."""
