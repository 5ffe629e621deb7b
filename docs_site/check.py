"""Goes through the built site: links lead somewhere, nothing is from elsewhere.

    python docs_site/check.py build/site

MkDocs checks what it knows to be links, in Markdown. This reads the pages as a
browser does, which shows them without a network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from urllib.parse import urlsplit

# What a browser fetches to show a page; all but `a` and `form`.
_FETCHED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
# A stylesheet fetches these.
_IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)")
# Material's script would fetch Mermaid for an element of this class.
_WOULD_FETCH = "mermaid"


class Page(HTMLParser):
    """What one page links to, fetches, and can be linked to at.

    Attributes:
        anchors: The names of its parts.
        links: What its reader may follow.
        fetched: What a browser loads to show it.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self._style = False
        self.feed(text)

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """Notes what the tag names."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {
            given[name] for name in ("id", "name") if name in given
        }
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if _FETCHED.get(tag) in given:
            self.fetched.append(given[_FETCHED[tag]])
        if _WOULD_FETCH in given.get("class", "").split():
            self.fetched.append(
                f"https: for an element of class {_WOULD_FETCH}"
            )
        self.fetched += _IN_STYLE.findall(given.get("style", ""))
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        """Notes what styles within the page name."""
        if self._style:
            self.fetched += _IN_STYLE.findall(data)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with a site, a line each.

    Args:
        site: The folder that MkDocs has written.
    """
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    if not pages:
        yield f"{site}: no page"
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.fetched:
            if fault := _of_fetched(site, path, address):
                yield f"{name}: {fault}"
        for address in page.links:
            if fault := _of_link(site, path, address, pages):
                yield f"{name}: {fault}"
    for path in site.rglob("*.css"):
        for address in _IN_STYLE.findall(path.read_text()):
            if fault := _of_fetched(site, path, address):
                yield f"{path.relative_to(site)}: {fault}"


def _of_fetched(site: Path, path: Path, address: str) -> str | None:
    parts = urlsplit(address)
    if parts.scheme == "data" or address.startswith("#"):
        return None
    if parts.scheme or parts.netloc:
        return f"is fetched from elsewhere: {address}"
    if not _target(site, path, parts.path).is_file():
        return f"is not there: {address}"
    return None


def _of_link(
    site: Path, path: Path, address: str, pages: dict[Path, Page]
) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    target = _target(site, path, parts.path) if parts.path else path
    if target not in pages:
        return None if target.is_file() else f"leads nowhere: {address}"
    anchor = unquote(parts.fragment)
    # Material has the top of a page, and its own buttons.
    if not anchor or anchor.startswith("__") or anchor in pages[target].anchors:
        return None
    return f"leads to no part of that page: {address}"


def _target(site: Path, path: Path, address: str) -> Path:
    start = site if address.startswith("/") else path.parent
    target = (start / unquote(address).lstrip("/")).resolve()
    return target / "index.html" if target.is_dir() else target


def main() -> int:
    """Prints what is wrong; returns the exit code."""
    (site,) = sys.argv[1:]
    found = list(faults(Path(site).resolve()))
    print(*found, f"{site}: {len(found)} faults", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
