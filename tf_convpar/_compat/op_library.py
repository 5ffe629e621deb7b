"""Where the compiled ops are, and whether this TensorFlow may load them."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

# Where the library and its record are; `make asan` has others.
FOLDER = "TF_CONVPAR_OPS_FOLDER"
DIRECTORY = pathlib.Path(
    os.environ.get(FOLDER) or pathlib.Path(__file__).parents[1] / "ops"
)
LIBRARY = "_convpar_ops.so"
RECORD = "_build_info.json"
PY_OPS = "TF_CONVPAR_PY_OPS"
REBUILD = (
    "Run `make clean setup` in the source folder of tf_convpar, or "
    "`pip install --force-reinstall --no-deps --no-build-isolation .` there."
)


def path() -> pathlib.Path:
    """The path of the library, whether there is one or not."""
    return DIRECTORY / LIBRARY


def twin_is_chosen() -> bool:
    """Whether the user asked for the pure-TensorFlow twin of the ops."""
    return os.environ.get(PY_OPS) == "1"


def problem(version: str, cxx11_abi: int) -> str | None:
    """Why the library cannot be loaded, and what to do; None if it can be.

    Args:
        version: Version of the TensorFlow of this process.
        cxx11_abi: CXX11 ABI flag of that TensorFlow.
    """
    if not path().is_file():
        return not_in_use(f"there is no {path()}")
    record = read_record()
    built = (record.get("tensorflow"), record.get("cxx11_abi"))
    running = (version, cxx11_abi)
    if built == running:
        return None
    # Loading it all the same might end this process.
    return not_in_use(
        f"{path()} was built with {_describe(*built)}, but this process "
        f"runs {_describe(*running)}",
        f"Either install that one (`pip install tensorflow=={built[0]}`), "
        f"or build the ops for this one. {REBUILD}"
        if built[0]
        else REBUILD,
    )


def not_in_use(cause: str, cure: str = REBUILD) -> str:
    """Says that the ops are not in use, and why."""
    return (
        "The compiled ops of tf_convpar are not in use, their slower "
        f"pure-TensorFlow twin serves: {cause}. {cure}"
    )


def read_record() -> dict[str, Any]:
    """The record that setup.py wrote with the library, {} if unreadable."""
    try:
        record = json.loads((DIRECTORY / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _describe(version: Any, abi: Any) -> str:
    if version is None:
        return f"an unknown TensorFlow (no readable {RECORD} beside it)"
    return f"TensorFlow {version} and CXX11 ABI flag {abi}"
