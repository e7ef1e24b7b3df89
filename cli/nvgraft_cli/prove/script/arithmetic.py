"""Compute the arithmetic of a shell: ``$((...))`` and ``((...))``."""

import ast
import re

from nvgraft_cli.prove.script.state import ShellState

_LENGTH = 200
_NAME = re.compile(r"\$\{(\w+|#)\}|\$(\w+|#)|([A-Za-z_]\w*)")
_PLAIN = re.compile(r"[\d\s()+\-*/%<>=!&|]*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_MOST = 1 << 62


def assigned_names(text: str) -> list[str]:
    """Return the variables that an expression sets."""
    return [match[1] or match[2] for match in _ASSIGNED.finditer(text)]


def computed(text: str, state: ShellState) -> int | None:
    """Return the value of an expression of whole numbers; None if it is not known."""
    if len(text) > _LENGTH or _ASSIGNED.search(text):
        return None

    def number(match: re.Match[str]) -> str:
        value = state.value(match[1] or match[2] or match[3]) or "0"
        return value if re.fullmatch(r"-?\d{1,18}", value) else "?"

    plain = _NAME.sub(number, text)
    if not _PLAIN.fullmatch(plain) or "**" in plain or "//" in plain:
        return None
    for operator, word in (("&&", " and "), ("||", " or ")):
        plain = plain.replace(operator, word)
    plain = re.sub(r"!(?!=)", " not ", plain)
    plain = re.sub(r"\b0+(\d)", r"\1", plain)
    try:
        value = _value(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError):
        return None
    return value if value is not None and abs(value) < _MOST else None


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        if value is None:
            return None
        return int(not value) if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BoolOp):
        values = [_value(one) for one in node.values]
        if None in values:
            return None
        return int(any(values) if isinstance(node.op, ast.Or) else all(values))
    if isinstance(node, ast.BinOp):
        return _of_two(node.op, _value(node.left), _value(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node.ops[0], _value(node.left), _value(node.comparators[0]))
    return None


def _of_two(operator: ast.operator, left: int | None, right: int | None) -> int | None:
    if left is None or right is None or max(abs(left), abs(right)) > _MOST:
        return None
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div):
        return int(left / right)
    return left % right if isinstance(operator, ast.Mod) else None


def _compared(operator: ast.cmpop, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if isinstance(operator, ast.Eq | ast.NotEq):
        return int((left == right) is isinstance(operator, ast.Eq))
    if isinstance(operator, ast.Lt | ast.GtE):
        return int((left < right) is isinstance(operator, ast.Lt))
    if isinstance(operator, ast.Gt | ast.LtE):
        return int((left > right) is isinstance(operator, ast.Gt))
    return None
