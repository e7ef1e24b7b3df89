"""Pages for an installation: manual pages, and completions for bash, zsh and fish.

They are made from the parser when nvgraft is built or installed, and never when it runs.
``completions`` and ``manual`` make the texts; ``python -m nvgraft_cli.pages DIRECTORY`` writes
them, in the layout of a prefix's ``share`` directory.
"""
