"""The installed hook against every recorded case of the reference, with real mounts and device
rules.

The rig builds each case's rootfs on the recorded host, starts the hook, and compares its changes
with the record.
"""

from pathlib import Path

import pytest

from containers import CONFIG_TOML
from harness import REFERENCE, Installed, assert_agrees_with_records

pytestmark = pytest.mark.requires("root", "gcc", "overlayfs", "cgroup-v1", "x86_64")


#: A shell program that sets `ldcache` in a case's config.toml and then becomes the hook.
CHOOSE = f'printf "\\n[nvgraft]\\nldcache = \\"$0\\"\\n" >> {CONFIG_TOML}; exec "$@"'


@pytest.mark.parametrize("mode", ["native", "ldconfig"])
@pytest.mark.parametrize("host", ["al460", "d470", "d535", "d535x32", "mig570", "run560"])
def test_the_hook_does_what_the_reference_did(
    host: str, mode: str, installed: Installed, tmp_path: Path
) -> None:
    """The hook changes what the reference changed, and leaves nothing after a failure."""
    cases = REFERENCE / "mounts" / f"{host}.jsonl"
    hook = ["/bin/sh", "-c", CHOOSE, mode, str(installed.hook), "prestart"]
    assert_agrees_with_records(host, cases, tmp_path / "answers.jsonl", hook)
