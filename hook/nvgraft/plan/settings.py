"""The caller's settings for a plan, besides the container's request.

The planner is loaded late. This module is not part of it, so that a caller can make the settings
before.
"""

from __future__ import annotations

from nvgraft.base.values import Value
from nvgraft.plan.compat import MODES
from nvgraft.request.config import compat_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.request.config import Config


class Settings(Value):
    """Settings of config.toml, or of the command line of ``nvgraft configure``.

    Without ``cgroups`` no device rule is planned. Without ``devbind`` no device node is mounted,
    but its rule is planned. ``cuda_compat`` is the mode for CUDA libraries of the image
    (:data:`nvgraft.plan.compat.MODES`). On a ``simulated`` host there may be no kernel module.
    """

    def __init__(
        self, *, cgroups: bool, simulated: bool, cuda_compat: str = "disabled", devbind: bool = True
    ) -> None:
        self.cgroups = cgroups
        self.cuda_compat = cuda_compat
        self.devbind = devbind
        self.simulated = simulated

    @classmethod
    def from_config(cls, config: Config) -> Settings:
        """Return the settings of the hook."""
        # If the reference hook passes no mode, its CLI uses its default.
        return cls(
            cgroups=not config.cli_no_cgroups,
            simulated=config.simulated_host,
            cuda_compat=compat_mode(config) or MODES[0],
        )
