"""Finds, checks and loads the compiled op library, once and lazily."""

import ctypes
import dataclasses
import functools
import threading
import warnings
from typing import Any

import tensorflow as tf

from tf_convpar._compat import op_library

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
    record = op_library.read_record()
    library = op_library.path()
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
    if op_library.twin_is_chosen():
        return _Attempt(
            problem=f"{op_library.PY_OPS}=1: the pure-TensorFlow twin serves.",
            chosen=True,
        )
    library = str(op_library.path())
    problem = op_library.problem(
        tf.__version__, int(tf.sysconfig.CXX11_ABI_FLAG)
    )
    if problem is not None:
        return _Attempt(problem=problem)
    try:
        return _Attempt(
            module=tf.load_op_library(library),
            functions=ctypes.CDLL(library),
        )
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        cause = f"{library} does not load: {error}"
        return _Attempt(problem=op_library.not_in_use(cause))


@functools.cache
def _warn_once(problem: str) -> None:
    # The stack level points at about the caller of the public function.
    warnings.warn(problem, RuntimeWarning, stacklevel=4)
