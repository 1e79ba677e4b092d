"""No test judges a page by a single look.

A page answers in its own time. A test that reads it the moment after something was done passes on a quick machine and
fails on a slow one, and none of that is a fault of the page.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
READS = {
    "all",
    "all_inner_texts",
    "all_text_contents",
    "bounding_box",
    "check",
    "content",
    "count",
    "evaluate",
    "evaluate_all",
    "get_attribute",
    "inner_html",
    "inner_text",
    "input_value",
    "is_checked",
    "is_disabled",
    "is_editable",
    "is_enabled",
    "is_hidden",
    "is_visible",
    "query_selector",
    "query_selector_all",
    "set_checked",
    "text_content",
    "title",
    "uncheck",
}
"""What Playwright answers at once, or as soon as there is anything at all. Whether what it checks is checked, it looks
at once too; but a page shows what is set, and that is as before until the warden has answered: such things are clicked.
"""


def single_looks(tree: ast.AST, readers: frozenset[str], *, looked_at_again: bool = False) -> Iterator[ast.Call]:
    """Calls that read a page, outside of what is looked at again and again: a lambda, or a function given by name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and not looked_at_again and is_a_read(node, readers):
            yield node
        yield from single_looks(node, readers, looked_at_again=looked_at_again or isinstance(node, ast.Lambda))


def is_a_read(call: ast.Call, readers: frozenset[str]) -> bool:
    """Of a page, or of something that a function of this file read from one."""
    if isinstance(call.func, ast.Name):
        return call.func.id in readers
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS:
        return False
    script = call.args[0] if call.args else None
    return not (isinstance(script, ast.Constant) and str(script.value).startswith("() => { "))


def faults(source: str) -> list[str]:
    """Tests with a single look, as ``name:line``."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    helpers = [function for function in functions if not function.name.startswith("test_")]
    readers = frozenset(helper.name for helper in helpers if any(single_looks(helper, frozenset())))
    return [
        f"{function.name}:{look.lineno}"
        for function in functions
        if function.name not in readers
        for look in single_looks(function, readers)
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_*.py")), ids=lambda path: path.stem)
def test_no_test_judges_a_page_by_a_single_look(path: Path) -> None:
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "body",
    [
        "assert page.locator('tr').count() == 3",
        "rows = page.locator('tr').all_inner_texts()",
        "assert reader(page) == 3",
        "page.get_by_label('Off').check()",
    ],
)
def test_a_single_look_is_found(body: str) -> None:
    helper = "def reader(page):\n    return page.evaluate('() => 3')\n"
    assert faults(f"{helper}def test_it(page):\n    {body}\n") == ["test_it:4"]


@pytest.mark.parametrize(
    "body",
    [
        "until_seen(page, lambda: page.locator('tr').count(), lambda count: count == 3)",
        "until_seen(page, lambda: reader(page), bool)",
        "page.evaluate('() => { box.scrollTop = 3; }')",
        "expect(page.locator('tr')).to_have_count(3)",
    ],
)
def test_what_is_looked_at_again_is_none(body: str) -> None:
    helper = "def reader(page):\n    return page.evaluate('() => 3')\n"
    assert faults(f"{helper}def test_it(page):\n    {body}\n") == []
