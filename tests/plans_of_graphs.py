"""Small models, and what devices that nobody has take for their layers."""

import keras
import numpy as np

from tf_convpar.planner import Calibration
from tf_convpar.planner import Link
from tf_convpar.planner import MeasuredDevice
from tf_convpar.planner import Work
from tf_convpar.planner import work_keys
from tf_convpar.planner.call_ways import has_filters
from tf_convpar.sharding import calls_of

L = keras.layers


def conv(filters, **kwargs):
    return L.Conv2D(filters, 3, padding="same", **kwargs)


def chain():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            conv(8, activation="relu"),
            L.MaxPooling2D(),
            conv(16),
            L.BatchNormalization(),
            L.ReLU(),
            conv(16),
            L.Flatten(),
            L.Dense(10),
        ]
    )


def residual():
    """Two convolutions whose feature maps are added, and one on the way."""
    x = keras.Input((8, 8, 3))
    y = conv(8, use_bias=False)(x)
    z = L.BatchNormalization()(conv(8)(y))
    y = L.ReLU()(L.Add()([z, L.Conv2D(8, 1)(y)]))
    y = conv(16, strides=2)(y)
    return keras.Model(x, L.Dense(4)(L.GlobalAveragePooling2D()(y)))


def dense_block():
    x = keras.Input((8, 8, 3))
    y = conv(8)(x)
    y = L.Concatenate()([y, conv(4)(y)])
    y = L.Concatenate()([y, conv(4)(L.BatchNormalization()(y))])
    return keras.Model(x, L.Softmax()(L.Conv2D(4, 1)(y)))


def separable():
    """Depthwise, separable, transposed, and a squeeze and excitation."""
    x = keras.Input((8, 8, 3))
    y = conv(8, activation="silu")(x)
    y = L.DepthwiseConv2D(3, padding="same")(y)
    gate = L.GlobalAveragePooling2D(keepdims=True)(y)
    gate = L.Conv2D(8, 1, activation="sigmoid")(L.Conv2D(4, 1)(gate))
    y = L.Multiply()([y, gate])
    y = L.SeparableConv2D(8, 3, padding="same")(y)
    return keras.Model(x, L.Conv2DTranspose(4, 2, strides=2)(y))


def within():
    """A model in the model, a layer without any rule, and two outputs."""
    x = keras.Input((8, 8, 3))
    inner = keras.Sequential([keras.Input((8, 8, 8)), conv(8), conv(8)])
    y = inner(conv(8)(x))
    y = L.Lambda(lambda t: t[:, ::-1])(y)
    return keras.Model(x, [conv(4)(y), L.GlobalMaxPooling2D()(y)])


def preprocessed():
    """Layers before the first convolution, which can go with its samples."""
    x = keras.Input((8, 8, 3))
    y = L.Normalization(mean=0.5, variance=2.0)(L.Rescaling(1 / 255)(x))
    y = conv(8, activation="relu")(L.ZeroPadding2D()(y))
    return keras.Model(x, conv(4)(y))


MODELS = {
    f.__name__: f
    for f in (chain, residual, dense_block, separable, within, preprocessed)
}


def calibration_of(
    model, devices, batch=12, seed=0, rate=1e6, latency=1e-4, speeds=None
):
    """Devices of these speeds, with times of their own for each layer."""
    rng = np.random.default_rng(seed)
    graph = calls_of(model)
    keys = {
        work_keys.key(graph, c): c for c in graph.calls if c.layer is not None
    }
    base = {key: rng.uniform(0.001, 0.02, 2) for key in keys}

    def work(key, speed):
        forward, backward = base[key] * rng.uniform(0.8, 1.2) / speed
        points = (batch // 4, batch // 2, batch)
        parts = ((0.25, 0.5, 1.0), (0.3, 0.55, 1.0), (0.2, 0.45, 1.0))
        split = has_filters(keys[key])
        return Work(
            points,
            tuple(forward * (0.1 + n / batch) for n in points),
            tuple(backward * (0.1 + n / batch) for n in points),
            *(parts if split else ()),
        )

    speeds = speeds or [1.0] * len(devices)
    return Calibration(
        work_keys.fingerprint(graph),
        batch,
        tuple(
            MeasuredDevice(
                name, {key: work(key, speed) for key in keys}, 1e-7, 1e-9, 1e-5
            )
            for name, speed in zip(devices, speeds, strict=True)
        ),
        tuple(
            Link(a, b, rate * rng.uniform(0.5, 2), latency)
            for a in devices
            for b in devices
            if a != b
        ),
    )


def steps_as_predicted(model, strategy, plans, *others, longer=1.0):
    """In the place of `_whole_steps._timed`, for devices that nobody has.

    Split steps take `longer` times what was predicted.
    """
    return [
        plan.prediction.step_s * (longer if any_split(plan) else 1.0)
        for plan in plans
    ]


def any_split(plan):
    return any(plan.way(layer) != "chief" for layer in plan)
