"""TensorFlow's runtime without its Python, for a process that only serves.

What a worker runs for its chief is C++. `import tensorflow` takes 3 to 4 s of a
processor, most of it for Keras and for what makes graphs; the runtime by itself
takes half a second.
"""

from __future__ import annotations

import importlib.machinery
import os
import pathlib
import site
import sys
import types
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar._compat import op_library
from tf_convpar._compat.tensorflow import NAMES

# Where other packages put devices and kernels, which TensorFlow's own Python
# looks for.
_PLUGINS = "tensorflow-plugins"
_PLUGIN = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
# Ops with a library of their own, which the package loads when it is imported.
_LIBRARIES = (
    "lite/experimental/microfrontend/python/ops/_audio_microfrontend_op.so",
)


class Runtime:
    """The runtime of this process.

    ```python
    runtime = Runtime()
    runtime.load_ops()
    runtime.server({"worker": ["b:2222"]}, job_name="worker", task_index=0)
    ```

    Where this process has imported TensorFlow, or has plugins of it, the
    runtime is that of the imported package.
    """

    def __init__(self) -> None:
        alone = "tensorflow" not in sys.modules and not _has_plugins()
        if alone:
            # As TensorFlow's own Python says it to its C++.
            os.environ["TF2_BEHAVIOR"] = "1"
            sys.modules["tensorflow"] = _without_python()
        self._session = NAMES["pywrap_tf_session"].found()
        # The runtime raises these, and crashes where they are not there.
        self.Error: Any = NAMES["OpError"].found()
        for library in _LIBRARIES if alone else ():
            for folder in sys.modules["tensorflow"].__path__:
                if pathlib.Path(folder, library).exists():
                    self._session.TF_LoadLibrary(f"{folder}/{library}")

    def load_ops(self) -> bool:
        """Loads the compiled ops, so that functions of a chief may have them.

        Returns:
            Whether they are in use. If not, a warning says why.
        """
        if op_library.twin_is_chosen():
            return False
        session = self._session
        problem = op_library.problem(
            session.get_version(), int(session.get_cxx11_abi_flag())
        )
        if problem is None:
            try:
                session.TF_LoadLibrary(str(op_library.path()))
                return True
            except (self.Error, OSError, RuntimeError) as error:
                problem = op_library.not_in_use(
                    f"{op_library.path()} does not load: {error}"
                )
        warnings.warn(problem, RuntimeWarning, stacklevel=2)
        return False

    def server(self, tasks: Mapping[str, Sequence[str]], **options: Any) -> Any:
        """A `tf.distribute.Server` of this process's devices.

        Args:
            tasks: Addresses `host:port` of the tasks of each job.
            **options: As for `tf.distribute.Server`.

        Raises:
            Error: It cannot listen at its address.
        """
        return NAMES["Server"].found()(dict(tasks), **options)


def _without_python() -> types.ModuleType:
    """The package without what it does when it is imported."""
    spec = importlib.machinery.PathFinder.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(
            "Expected TensorFlow to be installed. Received: no module named "
            "'tensorflow'. `pip install tensorflow` installs it."
        )
    package = types.ModuleType("tensorflow", "TensorFlow, its runtime alone.")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    package.__file__ = spec.origin
    return package


def _has_plugins() -> bool:
    """Whether TensorFlow would load devices or kernels of other packages."""
    folders = {*sys.path, *site.getsitepackages(), site.getusersitepackages()}
    return bool(os.environ.get(_PLUGIN)) or any(
        pathlib.Path(folder, _PLUGINS).exists() for folder in folders
    )
