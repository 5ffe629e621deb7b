"""Train Keras CNNs across unequal machines.

```python
import tf_convpar as convpar

strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    layer = convpar.ConvParallel2D(500, 5, shards=(3, 1, 1))
```

The names below are public; nothing else is.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"
_LAYERS = (
    "ConvParallel1D",
    "ConvParallel1DTranspose",
    "ConvParallel2D",
    "ConvParallel2DTranspose",
    "ConvParallel3D",
    "ConvParallel3DTranspose",
    "DepthwiseConvParallel1D",
    "DepthwiseConvParallel2D",
    "SeparableConvParallel1D",
    "SeparableConvParallel2D",
)
__all__ = [
    *_LAYERS,
    "ConvParallelStrategy",
    "calibrate",
    "export",
    "merge",
    "parallelize",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """The command line imports TensorFlow when it is first needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def _load() -> None:
    from tf_convpar import layers
    from tf_convpar.export import export

    # Hands itself over to strategies.
    from tf_convpar.planner import _automatic  # noqa: F401
    from tf_convpar.planner._plan import plan
    from tf_convpar.planner._simulate import simulate
    from tf_convpar.planner.measure._calibrate import calibrate
    from tf_convpar.sharding import merge
    from tf_convpar.sharding import parallelize
    from tf_convpar.strategy.strategy import ConvParallelStrategy

    globals().update(
        **{name: getattr(layers, name) for name in _LAYERS},
        ConvParallelStrategy=ConvParallelStrategy,
        calibrate=calibrate,
        export=export,
        merge=merge,
        parallelize=parallelize,
        plan=plan,
        simulate=simulate,
    )


def _is_command_line() -> bool:
    """Whether this is `convpar ...` or `python -m tf_convpar ...`."""
    words = sys.orig_argv
    as_module = any(
        pair == ("-m", __name__) for pair in zip(words, words[1:], strict=False)
    )
    return as_module or sys.argv[0].rpartition("/")[2] == "convpar"


# Keras finds the layers of a file it loads only if they have been registered.
if not _is_command_line():
    _load()
