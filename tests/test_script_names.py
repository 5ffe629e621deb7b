"""Benchmarks, examples and tools name what the package still has.

They are run by hand, and what was renamed would be found out years later.
"""

import ast
import importlib
import importlib.util
import types

import pytest
from processes import ROOT

SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "examples", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if "tf_convpar" in path.read_text()
)


def _is_ours(module):
    return (module or "").partition(".")[0] == "tf_convpar"


def found(module, name):
    """What `from module import name` gives, or an error."""
    if importlib.util.find_spec(module) is None:
        raise AssertionError(f"no module {module}")
    value = getattr(importlib.import_module(module), name, None)
    if value is None:
        value = importlib.import_module(f"{module}.{name}")
    return value


@pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_names_are_there(script):
    tree = ast.parse(script.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if _is_ours(each.name) and each.asname:
                    modules[each.asname] = importlib.import_module(each.name)
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            for each in node.names:
                value = found(node.module, each.name)
                if isinstance(value, types.ModuleType):
                    modules[each.asname or each.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            where = f"{script.name}:{node.lineno}"
            assert module is None or hasattr(module, node.attr), where
