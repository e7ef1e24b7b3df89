"""``nvgraft diff`` of a plan and the container that was just started from it."""

import pytest

from containers import Bundle

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "gcc")

RUNC = "runc --root /run/runc-test"


@pytest.mark.parametrize("host", ["runfile-a10x2", "mig-h100"])
def test_a_plan_is_equal_to_the_container_that_it_made(bundle: Bundle, host: str) -> None:
    """A container that was just started equals the plan that was made on its node, and the plan
    for the recorded host.
    """
    cli = bundle.installed.cli
    bundle.set_program("exec sleep 1000")
    plan = f"{cli} plan --container {bundle.path} --format json"
    start = f"{RUNC} run -d --pid-file /run/pid --bundle {bundle.path} {bundle.name}"
    compare = f'{cli} diff /run/$plan pid:$(cat /run/pid); echo "exit $?"'
    done = bundle.on_host(
        f"{plan} > /run/live && {plan} --host {host} > /run/recorded && "
        f"{start} < /dev/null > /run/out 2>&1 && "
        f"{{ for plan in live recorded; do {compare}; done; "
        f"{RUNC} delete -f {bundle.name}; }}",
        host,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nequal\nexit 0\n") == 2, done.stdout
