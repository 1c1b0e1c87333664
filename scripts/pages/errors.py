"""docs/reference/errors.md: the tree of errors, grouped by what an operator does next."""

from collections.abc import Iterator

from scripts.pages.markdown import block, code, docstring, page, table
from wattmesh import errors
from wattmesh.errors import WattmeshError

INTRODUCTION = """Every failure that wattmesh raises on purpose is a `WattmeshError`. Its message
says what happened, with the numbers, and what to do next; the class says which kind of act that is.
A command prints the message to standard error and exits 1."""


def classes(root: type[WattmeshError] = WattmeshError) -> Iterator[type[WattmeshError]]:
    """Give every class of `wattmesh.errors`, each before its children."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def render() -> str:
    """Write the page."""
    # The module's own picture of the tree, between its title and its last paragraph.
    tree = docstring(errors).partition("\n\n")[2].rpartition("\n\n")[0]
    rows = (
        (code(each.__name__), code(each.__bases__[0].__name__), docstring(each).split("\n\n")[0])
        for each in classes()
    )
    listed = table(("error", "is a", "meaning"), rows)
    return page("Errors", INTRODUCTION, block(tree), listed)
