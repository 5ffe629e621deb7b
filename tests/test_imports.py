"""Arrows of imports point one way: between packages, and in their rooms.

Import statements are read, not run: those within functions count too.
"""

import ast
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "tf_convpar"
TABLE = ROOT.parent / "CONTRIBUTING.md"
# Rooms whose modules were once in circles, and what was moved out of these.
ROOMS = ("planner", "estimate", "plans", "files")


def modules():
    """Every module of the package, by its name."""
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = file
    return found


def imported(name, file, known):
    """The modules of this package that a module names in its imports."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name(
                "." * node.level + (node.module or ""), package
            )
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names = [n if n in known else source for n in inner]
        else:
            continue
        yield from (n for n in names if n in known and n != name)


@pytest.fixture(scope="module")
def arrows():
    """From each module to those that it imports."""
    known = modules()
    found = {
        name: set(imported(name, file, known)) for name, file in known.items()
    }
    # What all tests here stand on: statements of each form are seen.
    for source, target in (
        ("planner.star._cost", "planner.star._calibration"),
        ("planner.star", "planner.star.measure"),  # Within a function.
        ("cli._calibrate_star", "planner.star"),  # For type checkers.
        ("ops._shards", "ops._library"),  # Relative.
        ("strategy.strategy", "plans"),
    ):
        assert f"tf_convpar.{target}" in found[f"tf_convpar.{source}"]
    return found


def package(name):
    """`"planner"`; empty for what is in no package."""
    return (name.split(".") + [""])[1].removeprefix("__main__")


def circle(start, arrows):
    """A way from a module back to it; empty if there is none."""
    paths = {start: (start,)}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        for after in arrows[name]:
            if after == start:
                return (*paths[name], start)
            if after not in paths:
                paths[after] = (*paths[name], after)
                waiting.append(after)
    return ()


def test_no_module_imports_itself_by_way_of_others(arrows):
    circles = {
        frozenset(way): " -> ".join(way)
        for name in arrows
        if package(name) in ROOMS and (way := circle(name, arrows))
    }
    assert not circles, "\n".join(circles.values())


def test_what_the_star_shares_imports_nothing_of_it(arrows):
    """Another planner can have it without the star."""
    room, star = "tf_convpar.planner.", "tf_convpar.planner.star"
    waiting = [name for name in arrows if name.startswith(star)]
    shared = set()
    while waiting:
        for after in arrows[waiting.pop()] - shared:
            if after.startswith(room) and not after.startswith(star):
                shared.add(after)
                waiting.append(after)
    assert {f"{room}_link", f"{room}measure._links"} <= shared
    wrong = sorted(
        f"{name} -> {after}"
        for name in shared
        for after in arrows[name]
        if after.startswith(star)
    )
    assert not wrong, "\n".join(wrong)


def table():
    """CONTRIBUTING.md's: packages from the first row on, and what they may."""
    rows = re.findall(
        r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", TABLE.read_text(), re.M
    )
    above = []
    allowed = {}
    for name, words in rows:
        said = re.findall(r"`(\w+)`", words)
        if "anything" in words:
            # But those below, which are all that may be named there.
            allowed[name] = {*above, ""}
        else:
            assert set(said) <= set(above), f"{name} is above what it imports"
            allowed[name] = set(said).union(*(allowed[n] for n in said))
        above.append(name)
    return allowed


def test_packages_import_what_is_above_them_in_the_table(arrows):
    allowed = table()
    assert {package(name) for name in arrows} - {""} <= set(allowed)
    wrong = sorted(
        f"{name} -> {after}"
        for name, afters in arrows.items()
        for after in afters
        if package(name)
        and package(after) not in allowed[package(name)] | {package(name)}
    )
    assert not wrong, "\n".join(wrong)
    # It does allow some things, and not all.
    assert {"layers", "plans", "ops"} <= allowed["planner"]
    assert not {"cli", "estimate", ""} & allowed["planner"]
    assert not {"planner", "estimate"} & allowed["strategy"]
