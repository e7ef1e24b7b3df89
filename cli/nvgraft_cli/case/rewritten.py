"""Recognise a config.json that has CDI edits of NVIDIA devices already: an engine or
nvidia-container-runtime added them before it was recorded.
"""

import posixpath
from collections.abc import Iterator

from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_specs import cdi_hooks, names

#: Steps that no runtime adds in mode legacy: there links and compat alone are made by CDI hooks.
_OF_EDITS = frozenset(cdi_hooks.STEP_NAMES) - {
    cdi_hooks.CREATE_SYMLINKS,
    cdi_hooks.ENABLE_CUDA_COMPAT,
}


def edits_in(container: ContainerSide) -> str:
    """Return what tells that config.json has CDI edits already, or "" if nothing does.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
    """
    signs = list(dict.fromkeys([*_programs(container), *_variables(container)]))
    return f"CDI edits are in this config.json already: {', '.join(signs)}" if signs else ""


def is_cdi_hook(hook: object) -> bool:
    """Tell whether an entry of a list of hooks calls nvgraft-cdi-hook, or NVIDIA's program."""
    return bool(_program(hook))


def _program(hook: object) -> str:
    """Return how an entry calls the program, "" if it calls another one."""
    path = hook.get("path") if isinstance(hook, dict) else None
    name = posixpath.basename(path) if isinstance(path, str) else ""
    if name in (cdi_hooks.PROGRAM, cdi_hooks.REFERENCE_PROGRAM):
        return name
    is_ctk = name == cdi_hooks.CTK_PROGRAM and _words(hook)[1:2] == [cdi_hooks.CTK_WORD]
    return f"{name} {cdi_hooks.CTK_WORD}" if is_ctk else ""


def _words(hook: object) -> list[object]:
    args = hook.get("args") if isinstance(hook, dict) else None
    return args if isinstance(args, list) else []


def _programs(container: ContainerSide) -> Iterator[str]:
    """Yield the programs of hooks that only CDI edits have."""
    stages = container.member("hooks")
    for hooks in stages.values() if isinstance(stages, dict) else ():
        for hook in hooks if isinstance(hooks, list) else ():
            words = {word for word in _words(hook) if isinstance(word, str)}
            if (program := _program(hook)) and words & _OF_EDITS:
                yield program


def _variables(container: ContainerSide) -> Iterator[str]:
    """Yield variables that only CDI edits set."""
    if names.LIBCUDA_DIR in container.spec.env:
        yield names.LIBCUDA_DIR
