"""Small models at random, each with a random way of splitting it.

Strategies of hypothesis: what fails is made as small as it still fails.
"""

import functools

import hypothesis.strategies as st
import keras

L = keras.layers
DEVICES = 3


def convolution(draw, x):
    filters = draw(st.integers(1, 6))
    groups = 1
    if x.shape[-1] % 2 == 0 and filters % 2 == 0:
        groups = draw(st.sampled_from([1, 1, 2]))
    # TensorFlow's own gradient of single pixels with strides and few channels
    # fails in oneDNN, or ends the process (2.21).
    window, strides = draw(st.sampled_from([(1, 1), (3, 1), (3, 1), (3, 2)]))
    return L.Conv2D(
        filters,
        window,
        strides=strides,
        padding=draw(st.sampled_from(["same", "valid"])),
        use_bias=draw(st.booleans()),
        activation=draw(st.sampled_from([None, None, "relu", "gelu"])),
        groups=groups,
    )(x)


def transposed(draw, x):
    stride = draw(st.sampled_from([1, 2]))
    return L.Conv2DTranspose(
        draw(st.integers(1, 4)), 3, strides=stride, padding="same"
    )(x)


def depthwise(draw, x):
    return L.DepthwiseConv2D(
        3, padding="same", depth_multiplier=draw(st.sampled_from([1, 1, 2]))
    )(x)


def separable(draw, x):
    return L.SeparableConv2D(draw(st.integers(1, 5)), 3, padding="same")(x)


def shared(draw, x):
    """One convolution that is called twice."""
    layer = L.Conv2D(x.shape[-1], 3, padding="same")
    return L.Add()([layer(x), layer(L.ReLU()(x))])


def residual(draw, x):
    y = L.Conv2D(x.shape[-1], 3, padding="same", use_bias=False)(x)
    y = L.Add()([L.BatchNormalization()(y), x])
    return draw(
        st.sampled_from([L.ReLU(), L.Identity(), L.Activation("silu")])
    )(y)


def branches(draw, x):
    y = L.Conv2D(draw(st.integers(1, 4)), 1)(x)
    return L.Concatenate()(draw(st.permutations([x, y])))


def pooled(draw, x):
    kinds = L.MaxPooling2D, L.AveragePooling2D
    return draw(st.sampled_from(kinds))(
        2, padding=draw(st.sampled_from(["same", "valid"]))
    )(x)


def normalized(draw, x):
    kinds = L.BatchNormalization, L.LayerNormalization
    return draw(st.sampled_from(kinds))()(x)


def activated(draw, x):
    names = "relu", "sigmoid", "gelu", "softmax"
    return L.Activation(draw(st.sampled_from(names)))(x)


def padded(draw, x):
    return L.ZeroPadding2D(draw(st.sampled_from([1, (0, 1)])))(x)


def gated(draw, x):
    """Each channel of each image times a factor."""
    means = L.GlobalAveragePooling2D(keepdims=True)(x)
    return L.Multiply()([x, L.Dense(x.shape[-1], activation="sigmoid")(means)])


def by_a_number(draw, x):
    """A number for all images: it has no samples, and no axis."""
    largest = keras.ops.max(keras.ops.absolute(x))
    return x / (largest + 1)


def broadcast(draw, x):
    means = keras.ops.mean(
        x, axis=draw(st.sampled_from([1, -1])), keepdims=True
    )
    return x - means


STEPS = (
    *(convolution, convolution, convolution, transposed, depthwise, separable),
    *(shared, residual, branches, pooled, normalized, activated, padded),
    *(gated, by_a_number, broadcast),
)


@st.composite
def models(draw):
    """A functional model, and what is to be split of it, and how.

    Returns:
        The model; a plan; the number of images of two batches; an algorithm.
    """
    size, channels = draw(st.sampled_from([(6, 3), (7, 2), (5, 4)]))
    keras.utils.clear_session(free_memory=False)
    x = keras.Input((size, size, channels))
    y = x
    steps = draw(st.lists(st.sampled_from(STEPS), max_size=4))
    steps.insert(draw(st.integers(0, len(steps))), convolution)
    for step in steps:
        if min(y.shape[1:3]) < 3:
            break
        y = step(draw, y)
    y = L.Dense(2)(L.GlobalAveragePooling2D()(y))
    model = keras.Model(x, y)
    plan = {}
    for layer in model.layers:
        how = draw(st.sampled_from(["samples", "samples", "filters", "whole"]))
        filters = getattr(layer, "filters", None)
        if type(layer) in (L.Conv2D, L.Conv2DTranspose, L.SeparableConv2D):
            plan[layer.name] = draw(split_by(how, filters))
        elif type(layer) is L.DepthwiseConv2D:
            plan[layer.name] = draw(
                split_by(how if how != "filters" else "whole", None)
            )
    batches = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    return model, plan, batches, draw(st.sampled_from([None, "auto"]))


@functools.cache
def split_by(how, filters):
    """Strategies of shares of samples, of filters, or of nothing."""
    if how == "whole":
        return st.none()
    if how == "filters":
        cuts = st.tuples(*[st.integers(0, filters)] * (DEVICES - 1))
        return cuts.map(lambda at: parts(sorted(at), filters))
    shares = st.tuples(*[st.integers(0, 3)] * DEVICES).filter(any)
    return shares.map(lambda s: {"split": "samples", "shards": s})


def parts(cuts, whole):
    ends = [0, *cuts, whole]
    return tuple(b - a for a, b in zip(ends, ends[1:], strict=False))
