"""Tensors that gradients keep for later gradients."""

import tensorflow as tf


def of_this_graph(x: tf.Tensor) -> tf.Tensor:
    """A tensor that belongs to the graph that is being built.

    ```python
    @tf.custom_gradient
    def run(x):
        return f(x), gradient  # which keeps x


    run(of_this_graph(x))
    ```

    The gradient of a function is built in a graph of its own, which takes
    tensors from the function. If `run` is called there, its gradient is built
    in a third graph, and that can take nothing but what the second one has.

    Args:
        x: A tensor of this graph, or of another one that it may use.
    """
    graph = tf.compat.v1.get_default_graph()
    # Values have no graph.
    is_here = tf.executing_eagerly() or getattr(x, "graph", graph) is graph
    return x if is_here else tf.identity(x)
