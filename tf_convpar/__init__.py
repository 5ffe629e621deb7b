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
__all__ = ["ConvParallel2D", "ConvParallelStrategy", "export"]


def __getattr__(name: str) -> Any:
    """Imports TensorFlow when it is first needed: `convpar --help` is not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def _load() -> None:
    from tf_convpar.export import export
    from tf_convpar.layers import ConvParallel2D
    from tf_convpar.strategy.strategy import ConvParallelStrategy

    globals().update(
        ConvParallel2D=ConvParallel2D,
        ConvParallelStrategy=ConvParallelStrategy,
        export=export,
    )


# Where Keras is in use already, files may be loaded next: know the layers.
if "keras" in sys.modules:
    _load()
