"""What a program is, and what it is given besides Keras."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import keras

import tf_convpar as convpar
from tf_convpar.placement import ShardedVariable

MODES = ("plain", "exchanged", "parallelize")
# Uneven, and not in order: equal halves hide an exchanged index.
SHARDS = (3.0, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Program:
    """A Keras program, and what is to be expected of it.

    Attributes:
        name: Its function's.
        run: The program: takes a `Kit`, returns `losses`, a list of floats,
            and `predictions`, arrays and floats in any structure.
        dtype: Keras' policy.
        tolerance: Largest relative difference to plain Keras. In float64
            there is no room for anything but another order of sums.
        falls: Whether the last loss must be below the first. Those of two
            networks against each other need not.
        split: The modes in which a convolution is there to be cut.
        quick: Whether `make test` runs it.
    """

    name: str
    run: Callable
    dtype: str = "float64"
    tolerance: float = 1e-9
    falls: bool = True
    split: tuple[str, ...] = ("exchanged", "parallelize")
    quick: bool = False


PROGRAMS: dict[str, Program] = {}


def program(**options):
    """Registers a function as a program."""

    def register(run):
        name = run.__name__
        if name in PROGRAMS:
            raise ValueError(f"Two programs are called {name}.")
        PROGRAMS[name] = Program(name, run, **options)
        return run

    return register


class Kit:
    """What a program uses in place of Keras' own.

    `kit.Conv2D` and its like make Keras' layers, or those of this package
    where they are to be exchanged.

    Attributes:
        folder: Fresh for each run.
    """

    def __init__(self, mode, folder):
        self.folder = Path(folder)
        self._mode = mode
        self._made = []

    def parallelize(self, model):
        """The one line that a user adds."""
        if self._mode == "parallelize":
            model = convpar.parallelize(model, "equal")
        self._made.append(model)
        return model

    def _make(self, name, /, *args, **kwargs):
        if self._mode != "exchanged":
            return getattr(keras.layers, name)(*args, **kwargs)
        # DepthwiseConv2D -> DepthwiseConvParallel2D
        ours = getattr(convpar, name.replace("Conv", "ConvParallel"))
        layer = ours(*args, **{"shards": SHARDS, **kwargs})
        self._made.append(layer)
        return layer

    def devices(self):
        """Of the variable that is spread over most: how many devices."""
        return max(
            (
                len({shard.device for shard in variable._value.shards})
                for made in self._made
                for variable in made.variables
                if isinstance(variable._value, ShardedVariable)
            ),
            default=1,
        )


for _name in (
    *("Conv1D", "Conv2D", "Conv3D"),
    *("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
    *("DepthwiseConv1D", "DepthwiseConv2D"),
    *("SeparableConv1D", "SeparableConv2D"),
):
    setattr(Kit, _name, functools.partialmethod(Kit._make, _name))
