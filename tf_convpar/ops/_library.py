"""Finds, checks and loads the compiled op library, once and lazily."""

import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import threading
import warnings
from typing import Any

import tensorflow as tf

# Where the library and its record are; `make asan` has others.
FOLDER = "TF_CONVPAR_OPS_FOLDER"
DIRECTORY = pathlib.Path(
    os.environ.get(FOLDER) or pathlib.Path(__file__).parent
)
LIBRARY = "_convpar_ops.so"
RECORD = "_build_info.json"
PY_OPS = "TF_CONVPAR_PY_OPS"
REBUILD = (
    "Run `make clean setup` in the source folder of tf_convpar, or "
    "`pip install --force-reinstall --no-deps --no-build-isolation .` there."
)

_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class BuildReport:
    """Facts about the compiled op: what it was built with, what it runs in.

    Attributes:
        library: path of the compiled library.
        exists: whether there is a file at that path.
        in_use: whether the compiled op is used; if not, its twin is.
        built_tensorflow: TensorFlow version that the library was built with,
            None if unknown.
        built_cxx11_abi: C++11 ABI flag that the library was built with, None
            if unknown.
        compiler: the compiler that built the library, None if unknown.
        cuda: the compiler of its kernels for GPUs and what they are for,
            "none" if it has none, None if unknown.
        running_tensorflow: version of the TensorFlow of this process.
        running_cxx11_abi: C++11 ABI flag of the TensorFlow of this process.
        verdict: one sentence for a reader, with the command that helps if
            something is wrong.
    """

    library: str
    exists: bool
    in_use: bool
    built_tensorflow: str | None
    built_cxx11_abi: int | None
    compiler: str | None
    cuda: str | None
    running_tensorflow: str
    running_cxx11_abi: int
    verdict: str


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """The result of loading: a module of ops, or the reason for none."""

    module: Any = None
    functions: Any = None
    problem: str | None = None
    # True if the user asked for the twin, so that no warning is due.
    chosen: bool = False


def load() -> bool:
    """Loads the compiled ops if that has not been tried yet.

    ```python
    if not tf_convpar.ops.load():
        print(tf_convpar.ops.build_report().verdict)
    ```

    A call is needed only where a graph with the ops arrives from elsewhere: in
    a worker process before it serves, or before `tf.saved_model.load`. It is
    thread-safe.

    Returns:
        True if the compiled ops are in use. False if the pure-TensorFlow twin
        serves: the library is missing or was built for another TensorFlow (one
        warning says which, and what to run), or `TF_CONVPAR_PY_OPS=1` is set.
    """
    with _lock:
        attempt = _attempt()
        if attempt.problem is not None and not attempt.chosen:
            _warn_once(attempt.problem)
        return attempt.module is not None


def module() -> Any:
    """The generated functions of the compiled ops; `load()` must be True.

    Raises:
        RuntimeError: the compiled ops are not in use.
    """
    return _loaded().module


def functions() -> Any:
    """The same library by ctypes, for its functions that are no ops.

    Raises:
        RuntimeError: the compiled ops are not in use.
    """
    return _loaded().functions


def build_report() -> BuildReport:
    """Says what the compiled op was built with and whether it is in use.

    ```python
    print(tf_convpar.ops.build_report().verdict)
    ```

    It tries to load the library. A failure is told in the verdict, without a
    warning.

    Returns:
        A `BuildReport`; `dataclasses.asdict` makes a plain dict of it.
    """
    with _lock:
        attempt = _attempt()
    record = _read_record()
    library = DIRECTORY / LIBRARY
    return BuildReport(
        library=str(library),
        exists=library.is_file(),
        in_use=attempt.module is not None,
        built_tensorflow=record.get("tensorflow"),
        built_cxx11_abi=record.get("cxx11_abi"),
        compiler=record.get("compiler"),
        cuda=record.get("cuda"),
        running_tensorflow=tf.__version__,
        running_cxx11_abi=int(tf.sysconfig.CXX11_ABI_FLAG),
        verdict=attempt.problem
        or f"The compiled ops are in use, with TensorFlow {tf.__version__}.",
    )


def _loaded() -> _Attempt:
    if not load():
        raise RuntimeError(
            "Expected the compiled ops to be in use. "
            f"Received: {_attempt().problem}"
        )
    return _attempt()


@functools.cache
def _attempt() -> _Attempt:
    if os.environ.get(PY_OPS) == "1":
        return _Attempt(
            problem=f"{PY_OPS}=1: the pure-TensorFlow twin serves.",
            chosen=True,
        )
    library = DIRECTORY / LIBRARY
    if not library.is_file():
        return _failure(f"there is no {library}")
    record = _read_record()
    built = (record.get("tensorflow"), record.get("cxx11_abi"))
    running = (tf.__version__, int(tf.sysconfig.CXX11_ABI_FLAG))
    if built != running:
        # Loading it all the same might end this process.
        return _failure(
            f"{library} was built with {_describe(*built)}, but this process "
            f"runs {_describe(*running)}",
            f"Either install that one (`pip install tensorflow=={built[0]}`), "
            f"or build the ops for this one. {REBUILD}"
            if built[0]
            else REBUILD,
        )
    try:
        return _Attempt(
            module=tf.load_op_library(str(library)),
            functions=ctypes.CDLL(str(library)),
        )
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        return _failure(f"{library} does not load: {error}")


def _failure(cause: str, cure: str = REBUILD) -> _Attempt:
    return _Attempt(
        problem="The compiled ops of tf_convpar are not in use, their slower "
        f"pure-TensorFlow twin serves: {cause}. {cure}"
    )


@functools.cache
def _warn_once(problem: str) -> None:
    # The stack level points at about the caller of the public function.
    warnings.warn(problem, RuntimeWarning, stacklevel=4)


def _describe(version: Any, abi: Any) -> str:
    if version is None:
        return f"an unknown TensorFlow (no readable {RECORD} beside it)"
    return f"TensorFlow {version} and CXX11 ABI flag {abi}"


def _read_record() -> dict[str, Any]:
    """The record that setup.py wrote with the library, {} if unreadable."""
    try:
        record = json.loads((DIRECTORY / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
