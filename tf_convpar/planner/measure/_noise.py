"""A batch of noise for any model, whatever inputs it takes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar import sharding


def noise(model: keras.Model, batch: int) -> Any:
    """Inputs of a model: one tensor, or a tuple or mapping as it takes them.

    ```python
    x = noise(model, batch=32)
    ```

    Numbers are normally distributed, whole numbers and words are 0 or empty.
    `tf.data` takes the result, as it would not take a list: that becomes one
    tensor.
    """
    if isinstance(model, keras.Sequential):
        (inputs,) = model.inputs  # It has no `input` before it is called.
    else:
        inputs = model.input
    samples = keras.tree.map_structure(
        lambda x: _tensor(sharding.shape_for(x, batch), x.dtype), inputs
    )
    return tuple(samples) if isinstance(samples, list) else samples


def _tensor(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    if tf.as_dtype(dtype).is_floating:
        return tf.random.normal(shape, dtype=dtype)
    return tf.zeros(shape, dtype)
