"""Models that are given to commands."""

from __future__ import annotations

import pathlib
from typing import Any

import click

image = click.option(
    "--image",
    type=click.IntRange(min=1),
    help="Height and width for a model of keras.applications; its own by "
    "default.",
)
wire_dtype = click.option(
    "--wire-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="The dtype in which feature maps and kernels travel.",
)


def load(model: str, image: int | None, compiled: bool = False) -> Any:
    """Loads the model of a file, or makes one of keras.applications.

    ```python
    load("ResNet50", image=112)
    ```

    Args:
        model: Path of a .keras file, or the name of an application.
        image: Height and width of an application's images in pixels; None for
            its own.
        compiled: Whether a file's model comes with its optimizer and loss.

    Raises:
        ValueError: There is no such model, or `image` does not go with it.
    """
    import keras

    from tf_convpar import layers  # noqa: F401 (registers them, for files)

    if model.endswith(".keras"):
        if not pathlib.Path(model).is_file():
            raise ValueError(
                f"Expected MODEL to be a file. Received: {model}, which is "
                "not there."
            )
        if image is not None:
            raise ValueError(
                "Expected --image with a model of keras.applications only. "
                f"Received: --image {image} with {model}."
            )
        return keras.models.load_model(model, compile=compiled)
    offered = [
        name
        for name in dir(keras.applications)
        if name[0].isupper() and callable(getattr(keras.applications, name))
    ]
    if model not in offered:
        raise ValueError(
            "Expected MODEL to be a .keras file or one of "
            f"{', '.join(offered)}. Received: {model}."
        )
    shape = {} if image is None else {"input_shape": (image, image, 3)}
    made = getattr(keras.applications, model)(weights=None, **shape)
    if None in made.input_shape[1:]:
        raise ValueError(
            f"Expected --image, such as --image 224: {model} takes images of "
            f"any size. Received none, and inputs of {made.input_shape}."
        )
    return made
