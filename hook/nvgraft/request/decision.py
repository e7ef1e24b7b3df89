"""The hook's decision about one container, made from documents alone.

The checks have the reference's order: config.json, the request, the mode, the rootfs path
(reference behaviour 3.2). Checks of the host and of the container's files are part of planning and
applying.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.request.oci import parse_config, path_problem
from nvgraft.request.request import Request, Skip, check_mode, resolve_mode, resolve_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.request.config import Config

INJECT, SKIP, REFUSE = "inject", "skip", "refuse"


class Decision(Value):
    """The decision; ``verdict`` is inject, skip or refuse.

    ``reason`` is one line for each verdict. ``log`` has the lines for stderr that are printed
    before all others. ``request`` and ``rootfs`` (absolute) are set for inject, ``refusal`` for
    refuse.
    """

    def __init__(
        self,
        verdict: str,
        reason: str,
        log: tuple[str, ...] = (),
        request: Request | None = None,
        rootfs: str = "",
        refusal: Refusal | None = None,
    ) -> None:
        self.verdict = verdict
        self.reason = reason
        self.log = log
        self.request = request
        self.rootfs = rootfs
        self.refusal = refusal


def decide(config_json: bytes, config: Config, cwd: str) -> Decision:
    """Decide what the hook does for the container of ``config_json``.

    :param cwd: the directory that a relative root.path is relative to: the hook's working
        directory.
    """
    log: list[str] = []
    try:
        container = parse_config(config_json)
        outcome = resolve_request(container, config)
        if isinstance(outcome, Skip):
            return Decision(SKIP, outcome.reason, (outcome.warning,) if outcome.warning else ())
        log += outcome.warnings
        if not config.hook_skip_mode_detection:
            mode, line = resolve_mode(config.runtime_mode, outcome.devices)
            log.append(line)
            check_mode(mode)
        rootfs = absolute_rootfs(container.root_path, cwd)
    except Refusal as refusal:
        return Decision(REFUSE, refusal.line(), tuple(log), refusal=refusal)
    return Decision(INJECT, f"devices from {outcome.devices_from}", tuple(log), outcome, rootfs)


def absolute_rootfs(root_path: str, cwd: str) -> str:
    """Return root.path as the reference passes it on: absolute, with symbolic links not followed.

    :raises Refusal: the path is not accepted (SECURITY R10).
    """
    path = paths.clean(paths.join(cwd, root_path))
    problem = path_problem(path)
    if problem:
        raise Refusal("input", "invalid rootfs directory", f"root.path in config.json: {problem}")
    return path
