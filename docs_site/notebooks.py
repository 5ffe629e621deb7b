"""Notebooks, executed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

# Who else is on this machine reads nothing of what kernel and client say.
_ENCRYPTED = Config({"AsyncKernelManager": {"transport_encryption": "auto"}})


def run(path: Path, timeout_s: int = 300) -> nbformat.NotebookNode:
    """Executes a notebook in a kernel of its own, and in an empty folder.

    Args:
        path: The notebook's file, which stays as it is.
        timeout_s: Seconds that one cell may take.

    Returns:
        The notebook with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed; the message
            shows the cell and its error.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=timeout_s,
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
            config=_ENCRYPTED,
        ).execute()
    return notebook


def markdown(path: Path, execute: bool) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, with its outputs, and the pictures in it."""
    from nbconvert import MarkdownExporter

    notebook = run(path) if execute else nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        # TensorFlow's own remarks, of the machine that builds the site.
        cell.outputs = [
            output
            for output in cell.get("outputs", [])
            if output.get("name") != "stderr"
        ]
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, {"unique_key": path.stem}
    )
    return text, resources["outputs"]
