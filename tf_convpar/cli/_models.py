"""Options and arguments of commands for models, and how these are loaded."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import without_chatter

if TYPE_CHECKING:
    from tf_convpar.planner import Calibration

_MODULES = "tf_convpar.modules"
_NEAREST = 3


class Model(click.ParamType):
    """A .keras file that is there, or the name of an application of Keras.

    Both are checked before anything is imported that takes seconds.
    """

    name = "model"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        text = str(value)
        if text.endswith(".keras"):
            if not pathlib.Path(text).is_file():
                self.fail(
                    f"Expected MODEL to be a file. Received: {text}, which is "
                    "not there.",
                    param,
                    ctx,
                )
            return text
        offered = applications()
        if offered and text not in offered:
            self.fail(
                "Expected MODEL to be a .keras file or one of "
                f"keras.applications. Received: {text}. {_nearest(text)}",
                param,
                ctx,
            )
        return text


class _Module(click.ParamType):
    """The name of a module that can be imported from the current folder."""

    name = "module"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        text = str(value)
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)
        top = text.partition(".")[0]
        if text.endswith(".py") or importlib.util.find_spec(top) is None:
            hint = text.removesuffix(".py").strip("./").replace("/", ".")
            self.fail(
                "Expected a module that can be imported from this folder, "
                f"{here}, such as my_package.layers. Received: {text}."
                + (f" Is it {hint}?" if hint != text else ""),
                param,
                ctx,
            )
        return text


def _keep(ctx: click.Context, param: Any, modules: tuple[str, ...]) -> None:
    ctx.meta[_MODULES] = modules


# Its value is kept in the context for `load`: no command has to pass it.
imported = click.option(
    "--import",
    "modules",
    type=_Module(),
    multiple=True,
    metavar="MODULE",
    expose_value=False,
    callback=_keep,
    help="A module to import first, which has layers of your own that the "
    ".keras file names, such as my_package.layers; may be given several times.",
)


def argument(function: Callable[..., None]) -> Callable[..., None]:
    """The argument MODEL of a command, with `--import`."""
    return click.argument("model", type=Model())(imported(function))


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
moments = click.option(
    "--moments",
    type=click.Choice(["all", "own"]),
    help="Whose samples' moments a batch normalization takes that is split by "
    "samples: those of all devices, by default, or of each its own.",
)


@functools.cache
def applications() -> tuple[str, ...]:
    """Names of the models of keras.applications, read and not imported."""
    keras = importlib.util.find_spec("keras")
    for folder in (keras and keras.submodule_search_locations) or ():
        file = pathlib.Path(folder, "applications", "__init__.py")
        if file.is_file():
            tree = ast.parse(file.read_text())
            return tuple(
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
                if alias.name[0].isupper()
            )
    return ()


def measured(
    calibration: pathlib.Path, model: str | None, wire_dtype: str | None
) -> tuple[Any, Calibration, str | None]:
    """The model, its calibration, and the dtype in which tensors travel.

    Args:
        calibration: The calibration's file.
        model: The model that was measured; None for the one in the calibration.
        wire_dtype: The dtype; None for the one in the calibration.
    """
    from tf_convpar import planner

    measured = planner.load(calibration)
    facts = measured.facts
    image = facts.get("image")
    if model is None and "model" not in facts:
        raise ValueError(
            "Expected --model, such as --model ResNet50 or --model "
            f"model.keras. Received none, and {calibration} does not name one."
        )
    # The size of images is that of the model that was measured.
    same = model is None or model == facts.get("model")
    loaded = load(
        model or facts["model"], int(image) if image and same else None
    )
    return loaded, measured, wire_dtype or facts.get("wire_dtype")


def _nearest(name: str) -> str:
    """A sentence with applications of similar names, else with all."""
    by_lower = {known.lower(): known for known in applications()}
    near = difflib.get_close_matches(name.lower(), by_lower, _NEAREST, 0.5)
    if near:
        return f"Is it {' or '.join(by_lower[one] for one in near)}?"
    return f"These are {', '.join(applications())}."


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
        click.ClickException: There is no such model, or `image` does not go
            with it.
    """
    with without_chatter(), messages_only():
        return _loaded(model, image, compiled)


def _loaded(model: str, image: int | None, compiled: bool) -> Any:
    import keras

    from tf_convpar import layers  # noqa: F401 (registers them, for files)

    Model().convert(model, None, None)
    if model.endswith(".keras"):
        if image is not None:
            raise ValueError(
                "Expected --image with a model of keras.applications only. "
                f"Received: --image {image} with {model}."
            )
        return _from_file(model, compiled)
    shape = {} if image is None else {"input_shape": (image, image, 3)}
    application = getattr(keras.applications, model)(weights=None, **shape)
    if None in application.input_shape[1:]:
        raise ValueError(
            f"Expected --image, such as --image 224: {model} takes images of "
            f"any size. Received none, and inputs of {application.input_shape}."
        )
    return application


def _from_file(file: str, compiled: bool) -> Any:
    import zipfile

    import keras

    if not zipfile.is_zipfile(file):
        raise ValueError(
            f"Expected {file} to be a file of model.save(), for Keras 3. "
            "Received another kind of file, or a part of one."
        )
    custom_objects = _custom_objects()
    try:
        return keras.models.load_model(
            file, custom_objects=custom_objects, compile=compiled
        )
    except TypeError as error:
        # Keras tells of the innermost problem first.
        missing = _missing(error)
        if missing is None:
            raise ValueError(
                f"Expected a model that can be loaded from {file}. Received: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
        raise ValueError(
            f"Expected to find what {file} names. Received: {missing}, which "
            "is not of Keras. Say where it is, as in --import "
            "my_package.layers."
        ) from error


def _custom_objects() -> dict[str, Any]:
    """Classes and functions of the modules that `--import` names."""
    context = click.get_current_context(silent=True)
    custom_objects: dict[str, Any] = {}
    for name in context.meta.get(_MODULES, ()) if context else ():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise ValueError(
                f"Expected to import {name}, for --import. Received: {error}."
            ) from error
        for key, value in vars(module).items():
            if inspect.isclass(value) or inspect.isfunction(value):
                custom_objects[key] = value
    return custom_objects


def _missing(error: BaseException | None) -> str | None:
    """The class that Keras did not find, by its errors; None if it is not."""
    while error is not None:
        match = re.search(r"Could not locate (\w+ '[^']+')", str(error))
        if match:
            return match[1]
        error = error.__cause__ or error.__context__
    return None
