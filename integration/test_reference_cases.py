"""The installed hook on every recorded case of the reference: mounts, links, device rules, loader
cache.

The rig builds each case's rootfs on the recorded host, starts the hook, and compares what changed
with the record.
"""

from pathlib import Path

import pytest

from containers import CONFIG_TOML
from harness import REFERENCE, Installed, assert_agrees_with_records

pytestmark = pytest.mark.requires("root", "gcc", "overlayfs", "cgroup-v1", "x86_64")


#: Sets ``ldcache`` in a case's config.toml, and becomes the hook.
CHOOSE = f'printf "\\n[nvgraft]\\nldcache = \\"$0\\"\\n" >> {CONFIG_TOML}; exec "$@"'


@pytest.mark.parametrize("mode", ["native", "ldconfig"])
@pytest.mark.parametrize("host", ["al460", "d470", "d535", "d535x32", "mig570", "run560"])
def test_the_hook_does_what_the_reference_did(
    host: str, mode: str, installed: Installed, tmp_path: Path
) -> None:
    """Every case agrees in both modes of the loader cache, and after a failure nothing of ours is
    left.
    """
    cases = REFERENCE / "mounts" / f"{host}.jsonl"
    hook = ["/bin/sh", "-c", CHOOSE, mode, str(installed.hook), "prestart"]
    assert_agrees_with_records(host, cases, tmp_path / "answers.jsonl", hook)
