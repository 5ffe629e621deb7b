"""Variables of TensorFlow, held in shards.

To Keras a sharded kernel is *one* variable of the merged shape, named, saved,
loaded and counted like the kernel of a plain layer; only its storage is cut.
So files need no translation: a file written on three devices loads on one,
on five, or into a plain `Conv2D`, with the optimizer's slots.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar._compat.tensorflow import CompositeTensor
from tf_convpar._compat.tensorflow import CompositeTensorGradient
from tf_convpar._compat.tensorflow import ResourceVariable
from tf_convpar._compat.tensorflow import Tensor
from tf_convpar._compat.tensorflow import unique_id
from tf_convpar.placement._cutting import split
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._operators import forward_operators
from tf_convpar.placement._sharded_tensor import ShardedTensor
from tf_convpar.placement._tracing import IdentityTraceType


class Shard:
    """Stands in for sharded variables while one of their shards is updated.

    Args:
        index: Number of the shard.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and self._index == other._index

    def __hash__(self) -> int:
        return self._index

    def of(self, variable: ShardedVariable) -> tf.Variable:
        """The shard of a variable."""
        return variable.shards[self._index]

    def shape(self, variable: ShardedVariable) -> tf.TensorShape:
        """The shape that a variable has."""
        return self.of(variable).shape

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        """The value that a variable has."""
        return self.of(variable).read_value()

    def write(self, variable: ShardedVariable, method: str, value: Any) -> None:
        """Does what an assigning method of a variable does."""
        getattr(self.of(variable), method)(value)


# While set, it has the value of every sharded variable. So an optimizer's
# elementwise update runs shard by shard, kernel and slots alike.
_stand_in: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "instead", default=None
)


@contextlib.contextmanager
def standing_for(values: Any) -> Iterator[None]:
    """A context in which sharded variables have other values, as of `Shard`."""
    token = _stand_in.set(values)
    try:
        yield
    finally:
        _stand_in.reset(token)


def shard_scope(index: int) -> contextlib.AbstractContextManager[None]:
    """A context in which sharded variables stand for their shard `index`."""
    return standing_for(Shard(index))


class ShardedVariable(Tensor):
    """A variable in shards, which Keras holds in place of a `tf.Variable`.

    ```python
    variable = ShardedVariable(np.ones([3, 3, 8, 32], "float32"), layout)
    variable.shards[1].device  # "/job:worker/replica:0/task:0/device:GPU:0"
    variable.numpy().shape  # (3, 3, 8, 32)
    ```

    Args:
        initial_value: A value of the merged shape, or a function that makes
            one. It is made once, on the owner, so that a seed gives the same
            kernel whatever the layout.
        layout: Layout that says which device holds how much.
        dtype: Dtype of the variable; None for the initial value's.
        trainable: Whether gradient tapes watch it.
        name: Name of the variable.
    """

    def __init__(
        self,
        initial_value: Any,
        layout: Layout,
        dtype: Any = None,
        trainable: bool = True,
        name: str = "sharded",
    ) -> None:
        self.layout = layout
        self._name = name
        self._trainable = trainable
        # The strategy whose optimizers update it, as a `tf.Variable` has it.
        self._distribute_strategy = tf.distribute.get_strategy()
        # The scope leaves any graph being traced, in which a layer may be
        # built. `tf.Variable` would let the strategy in scope choose the
        # device, so the variables are made directly.
        with tf.init_scope():
            with tf.device(layout.owner):
                value = (
                    initial_value()
                    if callable(initial_value)
                    else (initial_value)
                )
                value = tf.convert_to_tensor(value, dtype)
            # The shape of all shards, whatever the variable stands for.
            self.merged_shape: tf.TensorShape = value.shape
            shards = []
            for index, piece in enumerate(_pieces(value, layout)):
                with tf.device(layout.devices[index]):
                    shards.append(
                        ResourceVariable(
                            initial_value=piece,
                            trainable=trainable,
                            name=f"{name}_shard_{index}",
                        )
                    )
        self.shards: tuple[tf.Variable, ...] = tuple(shards)
        self._unique_id = f"sharded_{unique_id(self.shards[0])}"

    # Properties of a `tf.Variable`.

    aggregation = tf.VariableAggregation.NONE
    synchronization = tf.VariableSynchronization.AUTO
    constraint = None

    @property
    def name(self) -> str:
        """The variable's name."""
        return self._name

    @property
    def dtype(self) -> tf.DType:
        """The dtype of every shard."""
        return self.shards[0].dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The merged shape; inside a `shard_scope`, that of the shard."""
        values = _stand_in.get()
        return self.merged_shape if values is None else values.shape(self)

    def get_shape(self) -> tf.TensorShape:
        """As `shape`."""
        return self.shape

    @property
    def device(self) -> str:
        """The device on which the merged value would be."""
        return self.layout.owner

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch it."""
        return self._trainable

    def updated_now(self) -> tf.Variable | None:
        """The shard that this stands for, while one is updated by itself."""
        shard = _stand_in.get()
        return shard.of(self) if isinstance(shard, Shard) else None

    @property
    def handle(self) -> _Handles:
        """The source by which `tf.GradientTape.gradient` differentiates."""
        return _Handles(self)

    @property
    def _shared_name(self) -> str:
        return self._name

    # Reading.

    def sharded_value(self) -> ShardedTensor:
        """The current value, each shard read on its own device."""
        values = []
        for shard, device in zip(self.shards, self.layout.devices, strict=True):
            with tf.device(device):
                values.append(shard.read_value())
        return ShardedTensor(values, self.layout)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        values = _stand_in.get()
        if values is None:
            value = tf.convert_to_tensor(self.sharded_value())
        else:
            value = values.read(self)
        return tf.cast(value, dtype) if dtype else value

    def __tf_tracing_type__(self, context: Any) -> IdentityTraceType:
        return IdentityTraceType(self, _stand_in.get())

    def value(self) -> tf.Tensor:
        """The merged value, on the owner."""
        return tf.convert_to_tensor(self)

    read_value = value

    def numpy(self) -> np.ndarray:
        """The merged value as an array."""
        if _stand_in.get() is not None:
            raise NotImplementedError("An update is traced: no value is there.")
        shards = [shard.numpy() for shard in self.shards]
        if self.layout.blocks > 1:
            return np.asarray(self.value().numpy())
        return np.concatenate(shards, self.layout.axis)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # `numpy()` returns a fresh array, so a copy is never needed.
        return np.asarray(self.numpy(), dtype=dtype)

    # Writing.

    def assign(self, value: Any, **kwargs: Any) -> ShardedVariable:
        """Sets the value; a merged one is cut on the owner first."""
        return self._write("assign", value)

    def assign_add(self, value: Any, **kwargs: Any) -> ShardedVariable:
        """Adds to the value."""
        return self._write("assign_add", value)

    def assign_sub(self, value: Any, **kwargs: Any) -> ShardedVariable:
        """Subtracts from the value."""
        return self._write("assign_sub", value)

    def _write(self, method: str, value: Any) -> ShardedVariable:
        values = _stand_in.get()
        if values is not None:
            values.write(self, method, value)
            return self
        if isinstance(value, ShardedVariable):
            value = value.sharded_value()
        if not isinstance(value, ShardedTensor) or value.layout != self.layout:
            value = ShardedTensor(
                _pieces(tf.convert_to_tensor(value, self.dtype), self.layout),
                self.layout,
            )
        for shard, piece, device in zip(
            self.shards, value.shards, self.layout.devices, strict=True
        ):
            with tf.device(device):
                getattr(shard, method)(piece)
        return self

    # Saving: checkpoints hold the merged value, like that of any variable.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": self.value()}

    def _restore_from_tensors(self, tensors: dict[str, tf.Tensor]) -> Any:
        return self.assign(tensors["VARIABLE_VALUE"])

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "Expected `model.export(path)` or `convpar.export(model, path)`, "
            "which write merged kernels. Received a `tf.saved_model.save` of "
            f"the shards of '{self.name}' (sizes={self.layout.sizes}), which "
            "would bind the file to this cluster's devices."
        )

    _copy_trackable_to_cpu = _export_to_saved_model_graph

    def __repr__(self) -> str:
        return (
            f"<ShardedVariable name={self.name} shape={tuple(self.shape)} "
            f"dtype={self.dtype.name} sizes={self.layout.sizes}>"
        )


forward_operators(ShardedVariable, excluded=("len",))


def _pieces(value: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Cuts a merged value; a uniform one is made on each device instead.

    Otherwise the zeros that slots start from, and to which accumulators
    return, would cross the wire. They are as large as the kernels.
    """
    static_value = tf.get_static_value(value)
    if (
        static_value is None
        or static_value.size == 0
        or (static_value != static_value.flat[0]).any()
    ):
        return split(value, layout)
    pieces = []
    for index, device in enumerate(layout.devices):
        with tf.device(device):
            shape = layout.shard_shape(value.shape, index)
            pieces.append(tf.fill(shape, tf.constant(static_value.flat[0])))
    return pieces


class _HandlesSpec(tf.TypeSpec):
    """The type of `_Handles`, which never leave a call of `tape.gradient`."""

    value_type = property(lambda self: _Handles)

    def _serialize(self) -> tuple:
        return ()

    @property
    def _component_specs(self) -> tuple:
        return ()

    def _to_components(self, value: Any) -> tuple:
        return ()

    def _from_components(self, components: Any) -> Any:
        raise NotImplementedError("Handles cannot be rebuilt from components.")


class _ShardGradients(CompositeTensorGradient):
    """Lets a tape differentiate by a sharded variable: by its shards."""

    def get_gradient_components(self, value: _Handles) -> list[Any]:
        return [shard.handle for shard in value.variable.shards]

    def replace_gradient_components(
        self, value: _Handles, component_grads: Sequence[Any]
    ) -> ShardedTensor | None:
        if all(grad is None for grad in component_grads):
            return None
        variable = value.variable
        grads = []
        for grad, shard, device in zip(
            component_grads,
            variable.shards,
            variable.layout.devices,
            strict=True,
        ):
            if grad is None:
                with tf.device(device):
                    grad = tf.zeros(shard.shape, shard.dtype)  # noqa: PLW2901
            grads.append(grad)
        return ShardedTensor(grads, variable.layout)


class _Handles(CompositeTensor):
    """The handles of all shards, as one source of a gradient."""

    __composite_gradient__ = _ShardGradients()

    def __init__(self, variable: ShardedVariable) -> None:
        self.variable = variable
        self.dtype = variable.dtype

    @property
    def _type_spec(self) -> _HandlesSpec:
        return _HandlesSpec()


def sharded_like(
    reference: ShardedVariable,
    initial_value: Callable[[], Any] | Any,
    **kwargs: Any,
) -> ShardedVariable:
    """A new variable cut like `reference`, such as a slot beside its kernel."""
    kwargs = {
        key: kwargs[key]
        for key in ("dtype", "trainable", "name")
        if key in kwargs
    }
    return ShardedVariable(initial_value, reference.layout, **kwargs)
