"""The device of layers that are not split."""

from __future__ import annotations

import tensorflow as tf

from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.strategy import ConvParallelStrategy


def chief() -> tuple[str, bool]:
    """The device of layers that are whole, and whether there is no cluster.

    ```python
    chief()  # ("/job:localhost/replica:0/task:0/device:GPU:0", True)
    ```
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, ConvParallelStrategy):
        return strategy.chief_device, strategy.cluster is None
    return default_devices()[0], True
