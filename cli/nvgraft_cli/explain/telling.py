"""Tell the story of a case: of the hook, or of CDI edits."""

from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain import edit_steps, steps
from nvgraft_cli.explain.story import Story
from nvgraft_cli.prove.opened import CaseProofs


def tell(case: Case) -> Story:
    """Return the story of a case.

    :raises nvgraft_cli.shell.errors.InputError: when the container cannot be read.
    """
    plan, refusal = case.outcome
    proofs = steps.driver_proofs(CaseProofs(case), plan)
    if edit_steps.tells_edits(case):
        told = tuple(edit_steps.edit_steps(case, plan, refusal, proofs))
        headline = edit_steps.headline(case, plan, refusal, proofs)
    else:
        told = tuple(steps.hook_steps(case, plan, refusal, proofs))
        headline = steps.headline(case, plan, refusal, proofs)
    return Story(plan.decision, headline, case.host.label, case.container.label, told)
