"""The fenced blocks of a page, each by its heading and its number there, and how one is run.

What a block leaves to its reader is filled in by `filled`, by its place; nothing else of it is
changed but for paths.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$|^#+ ([^\n]+)$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the first under a heading has number 1."""

    page: str
    heading: str
    number: int
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """List a page's blocks in their order."""
    found: list[Block] = []
    heading, number = "", 0
    for match in FENCED.finditer((REPOSITORY / page).read_text("utf-8")):
        if match[3] is not None:
            heading, number = match[3], 0
            continue
        number += 1
        found.append(Block(page, heading, number, match[1], match[2]))
    return found


def block(page: str, heading: str, number: int = 1) -> str:
    """Give the text of one block."""
    (found,) = (
        each.text for each in blocks(page) if (each.heading, each.number) == (heading, number)
    )
    return found


def patched(text: str, diff: str) -> str:
    """Apply the hunks of a diff, each found by its own lines."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def filled(text: str, names: dict[str, Any], **paths: str) -> None:
    """Run a block in `names`, which hold what it leaves to its reader.

    A function of which only the docstring stands is the reader's: `names` has it. `call(...)` gets
    `**given`, `call(key=...)` the reader's `key`, and a line `...` is the reader's `go_on()`.
    """
    for path, real in paths.items():
        assert path in text, path
        text = text.replace(path, real)
    tree = _Filled().visit(ast.parse(text))
    exec(compile(ast.fix_missing_locations(tree), "a block", "exec"), names)


def _left_open(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


class _Filled(ast.NodeTransformer):
    """Puts the reader's names where a block has `...`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        """Leave a function away that is only described."""
        described = len(node.body) == 1 and ast.get_docstring(node) is not None
        return None if described else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Go on where a line is left open."""
        return ast.parse("go_on()").body[0] if _left_open(node.value) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Give what is left open in a call."""
        if any(map(_left_open, node.args)):
            node.args = [each for each in node.args if not _left_open(each)]
            node.keywords.insert(0, ast.keyword(None, ast.Name("given", ast.Load())))
        for each in node.keywords:
            if each.arg and _left_open(each.value):
                each.value = ast.Name(each.arg, ast.Load())
        return self.generic_visit(node)
