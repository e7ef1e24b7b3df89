"""The syntax of sources, each of which is parsed once."""

import ast
from functools import cache


@cache
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source, which all tests share: nobody changes it."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a source."""
    return tuple(ast.walk(parsed(source)))
