"""Networks that nobody has trained, like those of paper 1."""

from __future__ import annotations

from collections.abc import Sequence

from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution


def network(
    kernels: Sequence[int] = (500, 1500),
    batch: int = 64,
    image: Sequence[int] = (32, 32, 3),
    window: int = 5,
) -> Network:
    """A network of convolutions, each followed by 2x2 pooling.

    ```python
    network((500, 1500)).convolutions[1].output  # (10, 10)
    ```

    The default has the size of paper 1 (Marques et al., 2018): two
    convolutions of 500 and 1500 kernels on images of CIFAR-10. The paper's
    window, padding and pooling are not known to us. Windows of 5x5 without
    padding, and pooling of 2x2, are our choice.

    Args:
        kernels: Number of kernels of each convolution.
        batch: Images in a step.
        image: Height, width and channels of an image.
        window: Height and width of a kernel.

    Returns:
        The network. Its layers have the names that Keras gives: `conv2d`,
        `conv2d_1`.

    Raises:
        ValueError: A number is below 1, or an image becomes smaller than the
            window.
    """
    if not kernels or min(*kernels, batch, window, 1) < 1:
        raise ValueError(
            "Expected kernels, batch and window of at least 1. Received: "
            f"kernels={tuple(kernels)}, batch={batch}, window={window}."
        )
    *pixels, channels = image
    convolutions = []
    for i, filters in enumerate(kernels):
        output = tuple(n - window + 1 for n in pixels)
        if min(output) < 1:
            raise ValueError(
                f"Expected images of at least {window} pixels for a window "
                f"of {window}. Received: {pixels} pixels at convolution "
                f"{i + 1} of {len(kernels)}."
            )
        convolutions.append(
            StarConvolution(
                f"conv2d_{i}" if i else "conv2d",
                tuple(pixels),
                output,
                channels,
                filters,
                (window,) * len(pixels),
                input_gradient=i > 0,
            )
        )
        pixels, channels = [n // 2 for n in output], filters
    return Network(tuple(convolutions), batch)
