"""Where the site has what the repository has.

Pages link to one another and to code by places in the repository, so that the
links work in a checkout too. The site has the same pages under other names,
and a page of its own for each file of code that a page links to.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
# What has no folder in docs/, and yet is read as a page.
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("benchmarks/*/*.md")
    ),
)
_FENCE = re.compile(r"^(```+).*?^\1[ ]*$", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_ELSEWHERE = re.compile(r"[a-z]+:|#")
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_LANGUAGES = {".py": "python", ".cc": "cpp", ".h": "cpp", ".sh": "sh"}


def in_docs() -> list[str]:
    """The pages and notebooks in docs/, by their places in the repository."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.md", "*.ipynb")
        for path in (ROOT / DOCS).rglob(pattern)
        if ".ipynb_checkpoints" not in path.parts
    )


def address(path: str) -> str:
    """The page of the site that shows a file or folder of the repository.

    ```python
    address("docs/cluster.md")  # "cluster.md"
    address("benchmarks/cluster/README.md")  # "benchmarks/cluster.md"
    address("tf_convpar/ops")  # "source/tf_convpar/ops/index.md"
    ```
    """
    if path == "README.md":
        # MkDocs takes every readme.md for an index.
        return "overview.md"
    if path.startswith(DOCS):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix(DOCS))
    if path in PAGES:
        return path.replace("/README.md", ".md").lower()
    is_folder = (ROOT / path).is_dir()
    return f"source/{path}/index.md" if is_folder else f"source/{path}.md"


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Changes a page's text, and leaves its blocks of code as they are."""
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def without_comments(text: str) -> str:
    """Drops HTML comments: they tell tests what to do with a block."""
    return outside_of_code(
        text, lambda part: re.sub(r"<!--.*?-->\n*", "", part, flags=re.S)
    )


def targets(text: str, path: str) -> set[str]:
    """What the page at `path` links to: paths in the repository that exist."""
    found = set()

    def note(link: str, target: str) -> str:
        found.add(target)
        return link

    _with_links(text, path, note)
    return found


def with_links_of_the_site(text: str, path: str) -> str:
    """The text of the page at `path`, with links as they are in the site."""
    folder = posixpath.dirname(address(path))

    def lead(link: str, target: str) -> str:
        _, hash_, anchor = link.partition("#")
        return (
            posixpath.relpath(address(target), folder or ".") + hash_ + anchor
        )

    return _with_links(text, path, lead)


def _with_links(text: str, path: str, change: Callable[[str, str], str]) -> str:
    folder = posixpath.dirname(path)

    def changed(match: re.Match[str]) -> str:
        link = match[1]
        target = posixpath.normpath(
            posixpath.join(folder, link.partition("#")[0])
        )
        if _ELSEWHERE.match(link) or not (ROOT / target).exists():
            # What leads nowhere is for MkDocs to say.
            return link
        return change(link, target)

    return outside_of_code(text, lambda part: _LINK.sub(changed, part))


def text_of(path: str) -> str:
    """A page's Markdown: its own, or one that shows code or lists a folder."""
    place = ROOT / path
    if place.suffix == ".md":
        return place.read_text()
    head = (
        f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    )
    if place.is_dir():
        return head + "".join(map(_in_a_list, _children(place)))
    # Docstrings have fences too, of three.
    language = _LANGUAGES.get(place.suffix, "")
    return f"{head}`````{language}\n{place.read_text()}\n`````\n"


def _children(folder: Path) -> list[Path]:
    return [
        child
        for child in sorted(folder.iterdir())
        if child.suffix in (*_LANGUAGES, ".ipynb")
        or (child.is_dir() and any(child.glob("*.py")))
    ]


def _in_a_list(child: Path) -> str:
    """A file or folder, linked, with what its docstring begins with."""
    module = child / "__init__.py" if child.is_dir() else child
    said = None
    if module.suffix == ".py" and module.exists():
        said = ast.get_docstring(ast.parse(module.read_text()))
    told = f": {said.splitlines()[0]}" if said else ""
    return f"- [`{child.name}`]({child.parent.name}/{child.name}){told}\n"
