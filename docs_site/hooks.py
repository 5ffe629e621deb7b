"""What MkDocs is told while it builds the site (`mkdocs.yml` names it)."""

from __future__ import annotations

import posixpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.files import Files
from mkdocs.structure.files import InclusionLevel
from pymdownx.slugs import slugify

from docs_site import diagrams
from docs_site import notebooks
from docs_site import pages


def on_config(config: MkDocsConfig) -> None:
    """Anchors are those of GitHub, and diagrams are drawn now."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [
            {"name": "mermaid", "class": "mermaid", "format": diagrams.drawn}
        ]
    }


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Takes the pages of docs/, and with them all that they link to."""
    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
    waiting = [*pages.in_docs(), *pages.PAGES]
    seen = {pages.address(path) for path in waiting}
    while waiting:
        path = waiting.pop()
        if path.endswith(".ipynb"):
            # Examples may need what is beside them.
            text, pictures = notebooks.markdown(
                pages.ROOT / path, execute=path.startswith(pages.DOCS)
            )
            folder = posixpath.dirname(pages.address(path))
            for name, content in pictures.items():
                place = posixpath.join(folder, name)
                files.append(File.generated(config, place, content=content))
        else:
            text = pages.without_comments(pages.text_of(path))
        for target in pages.targets(text, path):
            address = pages.address(target)
            if address not in seen and not files.get_file_from_path(address):
                seen.add(address)
                waiting.append(target)
        _put(files, config, path, pages.with_links_of_the_site(text, path))


def _put(files: Files, config: MkDocsConfig, path: str, text: str) -> None:
    address = pages.address(path)
    page = files.get_file_from_path(address)
    if page is None:
        page = File.generated(config, address, content=text)
        files.append(page)
    page.content_string = text
    if address.startswith("source/"):
        page.inclusion = InclusionLevel.NOT_IN_NAV
