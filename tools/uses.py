"""What a test uses: modules, helpers, fixtures, programs and other files.

Read from the sources, which are not imported. A name is followed through the
`__init__.py` that hands it on to the module that has it: `convpar.parallelize`
is of `sharding/_parallelize.py`, and not of all that `tf_convpar` imports. What
code does with names that it makes, or with hooks, is not seen.
"""

from __future__ import annotations

import ast
import functools
import heapq
import pathlib
import re
from collections.abc import Iterable

PACKAGE = "tf_convpar"
TESTS = "tests"
CONFTEST = f"{TESTS}/conftest.py"
COMMANDS = f"{PACKAGE}/cli"
# Who imports one of these runs commands: `convpar`, in a process or in this.
RUNNERS = ("processes.CONVPAR", f"{PACKAGE}.cli.main.main")
# What `import` finds, in this order; tests have their own folder before it.
FOLDERS = (f"{TESTS}/", "", "tools/")
DOTTED = re.compile(r"(?<!from )(?<!\w)(?:tf_)?convpar((?:\.\w+)+)")
FROM = re.compile(r"\bfrom (tf_convpar[\w.]*) import (\w+)")
FILE = re.compile(r"[\w./-]+\.\w+")


class Uses:
    """Who uses what among the files of a repository.

    A node is a file, as `tests/models.py`, and in tests also one definition,
    as `tests/models.py::small_cnn`: who needs one helper does not need all.

    Args:
        root: The repository.
        files: Its files, relative to it.
    """

    def __init__(self, root: pathlib.Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = set(files)
        self.levels = levels(root)
        # For who uses a file only because all do, or its whole folder.
        self.beyond = max(self.levels.values()) + 1
        self._named: dict[str, set[str]] = {}
        for file in self.files:
            name = pathlib.PurePath(file).name
            if room_of(file) is None and name != "__init__.py":
                self._named.setdefault(name, set()).add(file)
        self.folders = {f.partition("/")[0] for f in self.files if "/" in f}

    def tests(self) -> list[str]:
        """The files whose tests `make test` runs."""
        return sorted(
            f for f in self.files if re.fullmatch(rf"{TESTS}/test_\w+\.py", f)
        )

    def nearest(self, changed: Iterable[str]) -> dict[str, tuple[int, int]]:
        """How far each test that uses one of these files is from it.

        Returns:
            For each such test file, layers of the import contract that are
            between, and then steps from file to file; `way` says which.
        """
        changed = set(changed)
        users = {file: set(self._users.get(file, ())) for file in changed}
        for file in changed:
            folder = file.partition("/")[0] + "/"
            users[file] |= self._users.get(folder, set())
            if file == CONFTEST:
                # Its fixtures for all are no arguments of theirs.
                users[file] |= {(test, self.beyond) for test in self.tests()}
        self._next: dict[str, str] = {}
        far: dict[str, tuple[int, int]] = {}
        queue = [
            (0, 0, node, "")
            for node in {*self._users, *self.tests(), *changed}
            if node.partition("::")[0] in changed
        ]
        heapq.heapify(queue)
        while queue:
            layers, steps, node, after = heapq.heappop(queue)
            if node in far:
                continue
            far[node] = layers, steps
            self._next[node] = after
            for user, climbed in users.get(node) or self._users.get(node, ()):
                heapq.heappush(queue, (layers + climbed, steps + 1, user, node))
        return {test: far[test] for test in self.tests() if test in far}

    @functools.cached_property
    def _users(self) -> dict[str, set[tuple[str, int]]]:
        """Who uses each node directly, and how many layers are between."""
        found: dict[str, set[tuple[str, int]]] = {}
        waiting, seen = self.tests(), set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            for used in self.of(node):
                climbed = max(0, self._level(node) - self._level(used))
                if used.endswith("/"):
                    climbed = self.beyond
                found.setdefault(used, set()).add((node, climbed))
                waiting.append(used)
        return found

    def way(self, test: str) -> list[str]:
        """From a test of the last `nearest` to what has changed, by files."""
        files, node = [], test
        while node:
            file = node.partition("::")[0]
            if not files or files[-1] != file:
                files.append(file)
            node = self._next[node]
        return files

    def _level(self, node: str) -> int:
        room = room_of(node)
        # Tests are of no layer: nothing is climbed from or to them.
        return 0 if room is None else self.levels.get(room, 0)

    @functools.cache  # noqa: B019 (as long as the program)
    def of(self, node: str) -> frozenset[str]:
        """What a node uses directly."""
        file, _, name = node.partition("::")
        tree = self._tree(file)
        if tree is None:
            return frozenset()
        if name and room_of(file) is not None:
            return self._effects(file)
        visitor = _Visitor(self, node)
        for statement in tree.body:
            if not name or name in _defines(statement):
                visitor.visit(statement)
        if not name:
            visitor.only_imported()
        return frozenset(visitor.found - {node})

    def _effects(self, file: str) -> frozenset[str]:
        """What an `__init__.py` imports whole: it does something by that."""
        modules = {
            self._module(d.replace(".", "/"))
            for d in self.names(file).values()
            if "._" in d
        }
        return frozenset(modules - {None, file})

    @functools.cache  # noqa: B019
    def _tree(self, file: str) -> ast.Module | None:
        if not file.endswith(".py") or not (self.root / file).is_file():
            return None
        try:
            return ast.parse((self.root / file).read_text())
        except SyntaxError:
            return None

    @functools.cache  # noqa: B019
    def names(self, file: str) -> dict[str, str]:
        """Names that a file imports, those in functions too, and from where."""
        tree, found = self._tree(file), {}
        module = file.removesuffix(".py").removesuffix("/__init__")
        here = module.replace("/", ".")
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = (
                        alias.name if alias.asname else first
                    )
            elif isinstance(node, ast.ImportFrom):
                above = file.split("/")[: -node.level] if node.level else []
                for alias in node.names:
                    parts = [*above, node.module, alias.name]
                    name = ".".join(part for part in parts if part)
                    found[alias.asname or alias.name] = name
            elif isinstance(node, ast.Assign) and _is_later(node):
                for name, where in ast.literal_eval(node.value).items():
                    found[name] = f"{here}.{where}.{name}"
        return found

    @functools.cache  # noqa: B019
    def own(self, file: str) -> frozenset[str]:
        """Names that a file defines at its top."""
        tree = self._tree(file)
        body = tree.body if tree else ()
        return frozenset(name for node in body for name in _defines(node))

    @functools.cache  # noqa: B019
    def find(self, dotted: str) -> tuple[str, ...]:
        """The nodes that a dotted name means; none for other libraries.

        Those that only hand it on are `package/__init__.py::name`.
        """
        parts, between = dotted.split("."), []
        for _ in range(9):
            for count in range(len(parts), 0, -1):
                file = self._module("/".join(parts[:count]))
                if file is not None:
                    break
            else:
                break
            rest = parts[count:]
            handed = self._handed_on(file, rest[0]) if rest else None
            if handed is None:
                own = rest and file.startswith(f"{TESTS}/")
                return *between, f"{file}::{rest[0]}" if own else file
            between.append(f"{file}::{rest[0]}")
            parts = [*handed.split("."), *rest[1:]]
        return tuple(between)

    def _module(self, path: str) -> str | None:
        for folder in FOLDERS:
            for file in (f"{folder}{path}.py", f"{folder}{path}/__init__.py"):
                if file in self.files:
                    return file
        return None

    def _handed_on(self, file: str, name: str) -> str | None:
        """From where a file has a name that it does not define."""
        names = self.names(file)
        if name in names:
            return names[name]
        if name in self.own(file) or not file.endswith("/__init__.py"):
            return None
        # `tf_convpar` takes the layers' names from a list.
        for dotted in names.values():
            module = self._module(dotted.replace(".", "/"))
            if module and module != file and name in self.names(module):
                return f"{dotted}.{name}"
        return None

    def files_named(self, text: str) -> set[str]:
        """Files that are none of the package, by the end of their path."""
        found = set()
        for token in FILE.findall(text):
            for file in self._named.get(pathlib.PurePath(token).name, ()):
                if f"/{file}".endswith(f"/{token.lstrip('./')}"):
                    found.add(file)
        return found

    def fixture(self, file: str, name: str) -> set[str]:
        """What an argument of a test means, where `conftest.py` has it."""
        if not file.startswith(f"{TESTS}/") or name in self.own(file):
            return set()
        return {f"{CONFTEST}::{name}"} & {
            f"{CONFTEST}::{own}" for own in self.own(CONFTEST)
        }

    def command(self, file: str, name: str) -> set[str]:
        """The sub-command of this name, in a file that runs commands."""
        module = f"{COMMANDS}/{name.replace('-', '_')}.py"
        runs = set(RUNNERS) & set(self.names(file).values())
        return {module} & self.files if runs else set()


class _Visitor(ast.NodeVisitor):
    """Collects what a part of a file uses."""

    def __init__(self, uses: Uses, node: str) -> None:
        self.uses = uses
        file, self.of_a_part, _ = node.partition("::")
        self.file = file
        self.names, self.own = uses.names(file), uses.own(file)
        self.found: set[str] = set()
        self.met: set[str] = set()

    def only_imported(self) -> None:
        """Of what is imported and not used, that it is."""
        for name in set(self.names) - self.met:
            self.found.update(self.uses.find(self.names[name]))

    def visit_Expr(self, node: ast.Expr) -> None:
        # Docstrings tell of other files.
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self.names:
            self.met.add(inner.id)
            dotted = [self.names[inner.id], *reversed(parts)]
            self.found.update(self.uses.find(".".join(dotted)))
        else:
            self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.names:
            self.met.add(node.id)
            self.found.update(self.uses.find(self.names[node.id]))
        elif self.of_a_part and node.id in self.own:
            self.found.add(f"{self.file}::{node.id}")

    def visit_arg(self, node: ast.arg) -> None:
        self.found |= self.uses.fixture(self.file, node.arg)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # ROOT / "docs" / "rules.md"
        parts, inner = [], node
        while isinstance(inner, ast.BinOp) and _is_text(inner.right):
            parts.append(inner.right.value)
            inner = inner.left
        if not parts or not isinstance(node.op, ast.Div):
            self.generic_visit(node)
            return
        path = "/".join(reversed(parts))
        if path in self.uses.folders:
            self.found.add(f"{path}/")
        self._read(path)
        self.visit(inner)

    def visit_Constant(self, node: ast.Constant) -> None:
        if _is_text(node):
            self._read(node.value)

    def _read(self, text: str) -> None:
        """A program, a path, a fixture or a command."""
        if room_of(self.file) is not None:
            return
        for rest in DOTTED.findall(text):
            self.found.update(self.uses.find(f"{PACKAGE}{rest}"))
        for module, name in FROM.findall(text):
            self.found.update(self.uses.find(f"{module}.{name}"))
        self.found |= self.uses.files_named(text)
        self.found |= self.uses.fixture(self.file, text)
        self.found |= self.uses.command(self.file, text)


def room_of(node: str) -> str | None:
    """The package of the import contract that a file is in."""
    parts = node.partition("::")[0].split("/")
    if parts[0] != PACKAGE or len(parts) < 2:
        return None
    return parts[1].removesuffix(".py")


def levels(root: pathlib.Path) -> dict[str, int]:
    """The layers of the import contract: 0 is what imports no other."""
    text = (root / "pyproject.toml").read_text()
    found = re.search(r"^layers = (\[.*?^\])", text, re.M | re.S)
    lines = ast.literal_eval(found[1]) if found else []
    rooms = {
        room.strip(): level
        for level, line in enumerate(reversed(lines))
        for room in line.split("|")
    }
    # The public names are above all.
    return {**rooms, "__init__": len(lines), "__main__": len(lines)}


def _is_later(node: ast.Assign) -> bool:
    """The table of names that a package imports when they are needed."""
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id == "_LATER"


def _defines(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return [n.id for n in ast.walk(node) if _is_stored(n)]
    return []


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
