"""The command line of nvgraft-cdi-hook, for the program itself and for all that write it into CDI
edits.

The reference's edits name one createContainer hook for each step; the program takes those command
lines as they are. nvgraft's own edits name one hook for all steps::

    nvgraft-cdi-hook [--config FILE] steps STEP [ARGUMENT...] [-- STEP [ARGUMENT...]]...

where STEP is one of the sub-commands below with its options. No argument of a step is ``--``. The
steps are taken in this order, all or nothing.

Source: reference behaviour 10.3 and the rules of nvidia-cdi-hook. Data only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The installed program, and the reference's, which takes the same sub-commands.
PROGRAM = "nvgraft-cdi-hook"
REFERENCE_PROGRAM = "nvidia-cdi-hook"
#: Another program of the reference, and the word that it has before a sub-command.
CTK_PROGRAM, CTK_WORD = "nvidia-ctk", "hook"

CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
UPDATE_LDCACHE = "update-ldcache"
DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE = "update-application-profile"
CHMOD = "chmod"
STEP_NAMES = (
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
    CHMOD,
)
#: All of them but chmod, which no edit names any more.
ALL_STEPS = (
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
)

#: The sub-command for several steps in one process, and the word between two steps.
STEPS = "steps"
NEXT = "--"

#: The option before a sub-command that names config.toml. Without it the program reads the default
#: file: no variable leads to another one, because a hook may be started with the container's
#: environment.
CONFIG_OPTION = "--config"

#: The environment of every hook in an edit. It must not be empty: runtimes start a hook that has no
#: variables with the container's (SECURITY R1). It is the reference's, and the program reads
#: no variable.
ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)


def steps_of(args: Sequence[str]) -> list[list[str]]:
    """Return the steps of a hook's arguments, which begin with argv[0], each as its words."""
    words = list(args[1:])
    if words[:1] == [CTK_WORD]:
        del words[0]
    while words[:1] == [CONFIG_OPTION]:
        del words[:2]
    if words[:1] != [STEPS]:
        return [words] if words else []
    steps: list[list[str]] = [[]]
    for word in words[1:]:
        if word == NEXT:
            steps.append([])
        else:
            steps[-1].append(word)
    return [step for step in steps if step]


def in_one(steps: list[list[str]], config: str = "") -> list[str]:
    """Return the arguments, without argv[0], of one hook that takes all ``steps``.

    :param steps: for each step the sub-command and its arguments.
    :param config: the config.toml to use; by default the default file.
    """
    words = [CONFIG_OPTION, config] if config else []
    for index, step in enumerate(steps):
        words += [NEXT if index else STEPS, *step]
    return words
