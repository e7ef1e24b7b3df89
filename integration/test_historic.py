"""Known vulnerabilities of container programs, replayed on the hook."""

import pytest

from safety.historic import REPLAYS, Replay, replay

pytestmark = pytest.mark.requires("root", "gcc", "ldconfig")

INSIDE = "everything lands inside"
#: The vulnerability -> the start of the hook's answer.
ANSWERS = {
    "NCT 2024-0132, buildah 2024-1753": INSIDE,
    "NCT 2024-0133": INSIDE,
    "NCT 2024-0134": INSIDE,
    "NCT 2024-0135, runc 2019-5736": "refused by the kernel: what runs is a sealed copy in memory",
    "NCT 2024-0136, 2024-0137": INSIDE,
    "NCT 2025-23359": "refused: mount error: file creation failed: ROOTFS/usr/lib/x86_64-linux-gnu",
    "NCT 2025-23266": (
        "registered with an environment of its own; without: refused: initialization error: "
        "environment variable LD_PRELOAD"
    ),
    "NCT 2025-23267": INSIDE,
    "NCT 2026-24260": "refused: mount error: file creation failed: ROOTFS/usr/lib/x86_64-linux-gnu",
    "NCT mount leaks": (
        "refused: mount error: mount operation failed: /tmp/nvidia-mps: shared mount"
    ),
    "runc 2021-30465, buildah 2024-11218": (
        "refused: mount error: file creation failed: ROOTFS/usr/bin"
    ),
    "runc 2023-28642, 2023-27561, 2019-19921": (
        "refused: mount error: mount operation failed: ROOTFS/proc/driver/nvidia: not a directory"
    ),
    "runc 2024-21626": "closed at the start",
    "runc 2024-45310, moby GHSA-vp62": "refused: mount error: file creation failed: ROOTFS/etc",
    "runc 2025-31133, 2025-52565": (
        "refused: mount error: unexpected source file mode 120777 for /dev/nvidia0"
    ),
    "runc 2025-52881": "the undo takes back its own mount",
    "runc 2026-41579": "refused: mount error: path error: /dev/nvidiactl resolves to",
    "podman 2024-9407": "refused: device error: mode=0777: unknown device",
    "podman 2024-9675, 2024-9676": "refused: ldcache error: ",
    "Singularity 2020-25039, 2020-25040": "makes none",
}


@pytest.mark.parametrize("case", REPLAYS, ids=lambda case: case.holes)
def test_the_hook_withstands_a_known_vulnerability(case: Replay) -> None:
    """The attack works on a naive program; the hook answers as known, and nothing escapes."""
    result = replay(case)
    assert result.reproduced, "the attack does not work on a naive program: it shows nothing"
    assert not result.escaped
    assert result.answer.startswith(ANSWERS[case.holes])
