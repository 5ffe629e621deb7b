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
    "DenseParallel",
    "DepthwiseConvParallel1D",
    "DepthwiseConvParallel2D",
    "SeparableConvParallel1D",
    "SeparableConvParallel2D",
)
__all__ = [
    *_LAYERS,
    "ConvParallelStrategy",
    "Geometry",
    "calibrate",
    "callbacks",
    "choose",
    "compare",
    "export",
    "local_workers",
    "merge",
    "parallelize",
    "plan",
    "replicas",
    "simulate",
    "step_traffic",
]


def __getattr__(name: str) -> Any:
    """Loads the public names when the first is needed.

    So the command line imports TensorFlow only where it needs it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def _load() -> None:
    # Their imports set the attributes.
    import tf_convpar.callbacks
    import tf_convpar.replicas  # noqa: F401
    from tf_convpar import layers
    from tf_convpar.algorithms import Geometry
    from tf_convpar.algorithms import choose
    from tf_convpar.cluster.own_workers import local_workers
    from tf_convpar.export import export

    # This module hands itself over to strategies when it is imported.
    from tf_convpar.planner import automatic  # noqa: F401
    from tf_convpar.planner import calibrate
    from tf_convpar.planner import compare
    from tf_convpar.planner import plan
    from tf_convpar.planner import simulate
    from tf_convpar.sharding import merge
    from tf_convpar.sharding import parallelize
    from tf_convpar.sharding import step_traffic
    from tf_convpar.strategy.strategy import ConvParallelStrategy

    globals().update(
        **{name: getattr(layers, name) for name in _LAYERS},
        ConvParallelStrategy=ConvParallelStrategy,
        Geometry=Geometry,
        calibrate=calibrate,
        choose=choose,
        compare=compare,
        export=export,
        local_workers=local_workers,
        merge=merge,
        parallelize=parallelize,
        plan=plan,
        simulate=simulate,
        step_traffic=step_traffic,
    )


# Keras finds the layers of a file it loads only if they have been registered.
# The command line has no such files before it loads the package itself.
if "tf_convpar_cli" not in sys.modules:
    _load()
