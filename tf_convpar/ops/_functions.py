"""Frees parts of deleted functions that TensorFlow keeps."""

from collections.abc import Collection
from collections.abc import Sequence

import tensorflow as tf

from . import _library


def release_functions(
    names: Collection[str], devices: Sequence[str] = ("/device:CPU:0",)
) -> int:
    """Frees the remaining parts of functions that nobody can call any more.

    ```python
    release_functions({"__inference_step_123"}, ["/device:CPU:0"])
    ```

    TensorFlow 2.21 frees no part of a function that is on another task, and of
    those on this one only some. Whose name is given here must be gone from the
    runtime (`tf.function` objects and their concrete functions are).

    Call it while no other thread frees functions, as between two epochs. To
    find the parts, the name of every function is read; TensorFlow has no way
    to hold one meanwhile, and one that is freed in that moment ends the
    process.

    Args:
        names: Names of concrete functions, as the runtime has them.
        devices: CPUs to look on.

    Returns:
        How many parts there were. 0 if the compiled ops are not in use, which
        can reach the runtime; then all stays as it is.
    """
    if not names or not _library.load():
        return 0

    # A new one each time, so that it is the last that the runtime knows.
    @tf.function
    def release(
        released_names: tf.Tensor, own_name: tf.Tensor
    ) -> list[tf.Tensor]:
        counts = []
        for device in devices:
            with tf.device(device):
                counts.append(
                    _library.module().tf_convpar_release_functions(
                        names=released_names, own=own_name
                    )
                )
        return counts

    text = tf.TensorSpec([], tf.string)
    call = release.get_concrete_function(tf.TensorSpec([None], tf.string), text)
    own_name = tf.compat.as_text(call.name)
    return sum(
        int(n) for n in call(tf.constant(sorted(names)), tf.constant(own_name))
    )
