"""`ConvParallel2D`."""

from __future__ import annotations

import keras

from tf_convpar.layers._base import ConvParallel


@keras.saving.register_keras_serializable("tf_convpar", "ConvParallel2D")
class Conv2D(ConvParallel, keras.layers.Conv2D):
    """`keras.layers.Conv2D` with its kernels spread over devices.

    ```python
    with convpar.ConvParallelStrategy().scope():
        layer = convpar.ConvParallel2D(500, 5, shards=(300, 200))
    ```

    Every argument of `keras.layers.Conv2D`, in its order and with its
    meaning, then three of its own. From the same seed it starts from the same
    kernel as `Conv2D`, and gives the same feature maps, whatever the shards.
    Kernel and bias stay on the device of their shard, and so do their
    optimizer's slots in a model made in the strategy's scope.
    `.keras` and `.weights.h5` files and checkpoints hold the merged kernel,
    under the names that `Conv2D` gives it: a file loads with any number of
    shards, and into a plain `Conv2D`.

    Args:
        shards: Kernels per device, in the order of the strategy's `devices`:
            integers that sum to `filters` (counts) or to a divisor of it
            (ratios such as `(3, 1)`), or floats (weights, rounded to whole
            kernels). A device may get 0; with fewer numbers than devices the
            others get none. None: the strategy's plan, else equal shards.
            Outside a `ConvParallelStrategy` they refer to this machine's
            devices, and None means that nothing is split.
        wire_dtype: The dtype in which feature maps and gradients of this
            layer travel: `"float32"`, `"bfloat16"`, `"float16"`; None: the
            strategy's, else that of the computation.
        algorithm: How each device computes its kernels' convolution and its
            gradients. `"direct"`, as does None: as plain Keras, to the last
            digit. `"auto"`: the fastest for the forward pass and for each
            gradient, measured on the device the first time and remembered on
            disk; faster, and other in the last digits. `"winograd"`, `"fft"`,
            `"gemm"`: that one; a tile size may follow a colon,
            `"winograd:4"`. Direct where that does not apply: strides,
            dilation, kernels of one pixel, GPUs. Saved in the layer's config
            only: exports are plain.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: As `Conv2D`; `shards` do not fit `filters`; an unknown
            `wire_dtype` or `algorithm`.
    """
