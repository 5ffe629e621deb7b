"""Mermaid diagrams as pictures, drawn when the site is built.

Material would have each reader's browser fetch Mermaid from a server.
"""

from __future__ import annotations

import base64
from typing import Any

import mermaidx


def drawn(source: str, *_: Any, **__: Any) -> str:
    """The picture of a diagram, as HTML; for `pymdownx.superfences`."""
    svg = mermaidx.render(source).svg()
    data = base64.b64encode(svg.encode()).decode()
    return (
        '<p class="diagram"><img alt="Diagram" '
        f'src="data:image/svg+xml;base64,{data}"></p>'
    )
