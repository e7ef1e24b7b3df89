"""``nvgraft plan``: print what the hook would do, as text or as a ``nvgraft.plan/1`` document."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import Plan
from nvgraft.plan.document import plan_document
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.cdi.arguments import add_hook_path
from nvgraft_cli.shell import logs, refusals, terminal, text
from nvgraft_cli.shell.arguments import add_answer, add_case

if TYPE_CHECKING:
    from nvgraft_cli.case.planning import Case

_EXAMPLES = """\
examples:
  nvgraft plan --container /run/bundles/web --host eks-t4
  nvgraft plan --container image.tar --env NVIDIA_VISIBLE_DEVICES=all --host eks-t4
  nvgraft plan --host node17.json --format json | jq '.actions[] | select(.op == "mount") | .target'

exit code: 0 planned, or nothing to do; 1 the hook would refuse, with its error on stderr;
2 bad usage or input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``plan``."""
    parser.description = (
        "Plan a container on this host or on a recorded one. Needs no root privileges and no GPU."
    )
    parser.epilog = _EXAMPLES
    add_case(parser)
    help_text = "default: text; cdi: a CDI specification (JSON) with the edits of the plan"
    add_answer(parser, "text", "json", "cdi", text=help_text)
    add_hook_path(parser)
    parser.set_defaults(run=run, looks_only=True, open_first=ask_first)


def run(args: argparse.Namespace) -> int:
    """Print the plan; return the exit code."""
    plan, refusal, case = _planned(args)
    if args.format == "json":
        document = plan_document(plan)
        if case is not None and case.handover is not None:
            document["pod"] = {
                "allocated": list(case.handover.allocated),
                "chain": [link._asdict() for link in case.chain],
            }
        if refusal is not None:
            document["refusal"] = refusals.describe(refusal)
        # In ASCII: names in an image need not be UTF-8.
        print(json.dumps(document, indent=2))
    elif args.format == "cdi":
        _print_cdi(plan, args.nvidia_cdi_hook_path)
    elif refusal is None:
        steps = [(link.step, link.how) for link in case.chain] if case is not None else []
        chain = [*text.columns(steps, ""), ""] if steps else []
        terminal.show("\n".join([*chain, text.render(plan, colour=terminal.colour())]))
    if refusal is not None:
        print(refusal.line(), file=sys.stderr)
        return 1
    return 0


def _planned(args: argparse.Namespace) -> tuple[Plan, Refusal | None, "Case | None"]:
    """Return the plan, the refusal if there is one, and the case if it could be opened."""
    from nvgraft_cli.pods.opening import opened_case

    try:
        with opened_case(args, edits_known=False) as case:
            return (*case.outcome, case)
    except Refusal as refusal:
        return Plan("refuse", refusal.reference_line()), refusal, None


def _print_cdi(plan: Plan, hook_path: str | None) -> None:
    """Print the specification; list on stderr the parts of the plan that it lacks."""
    if plan.decision != "inject":
        if plan.decision == "skip":
            logs.get().info(f"no CDI specification: {plan.reason}")
        return
    from nvgraft_cli.cdi import spec
    from nvgraft_cli.cdi.planned import planned_spec

    planned = planned_spec(plan, hook_path)
    for line in planned.left_out:
        logs.get().info(f"not in the CDI specification: {line}")
    sys.stdout.write(spec.text(planned.document, "json"))
