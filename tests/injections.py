"""What a plan has and what it is made of, for the tests of the planner."""

import pytest

import hosts
from hosts import binds, plan
from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import AllowDevice, Plan, WriteFile
from nvgraft_specs import names

LIBS = "/usr/lib/x86_64-linux-gnu"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
ALL = ",".join(names.CAPABILITIES)


def refused(*args: object, **request: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        plan(*args, **request)  # type: ignore[arg-type]
    return caught.value


def without(document: hosts.Document, *paths: str) -> hosts.Document:
    """Return the host without these files."""
    for path in paths:
        del document["files"][path]
    return document


def allowed(injection: Plan) -> list[str]:
    return [
        f"{action.major}:{action.minor}"
        for action in injection.actions
        if isinstance(action, AllowDevice)
    ]


def written(injection: Plan) -> dict[str, str]:
    return {
        action.path: action.content for action in injection.actions if isinstance(action, WriteFile)
    }


def devices(injection: Plan) -> list[str]:
    return [target for target, action in binds(injection).items() if action.kind == "device"]
