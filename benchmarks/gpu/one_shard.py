"""Times a layer of one shard on a card beside Conv2D, and Conv2D once more."""

import card
import keras

import tf_convpar as convpar


def network(filters, parallel, channels_first):
    keras.utils.set_random_seed(1)
    order = "channels_first" if channels_first else "channels_last"

    def conv(count):
        if parallel:
            return convpar.ConvParallel2D(
                count, 5, data_format=order, shards=(count,)
            )
        return keras.layers.Conv2D(count, 5, data_format=order)

    model = keras.Sequential(
        [
            keras.Input((3, 32, 32) if channels_first else (32, 32, 3)),
            conv(filters[0]),
            conv(filters[1]),
            keras.layers.GlobalAveragePooling2D(data_format=order),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def row(filters, order, policy, device, batch, repeats):
    keras.mixed_precision.set_dtype_policy(policy)
    first = order == "channels_first"
    strategy = convpar.ConvParallelStrategy(devices=[device])
    with strategy.scope():
        models = [network(filters, p, first) for p in (False, True, False)]
    x, y = card.images(device, batch, models[0].input_shape[1:], 10)

    def step(model):
        return lambda: model.train_on_batch(x, y)

    (plain, *_), (_, one, noise) = card.turns(list(map(step, models)), repeats)
    keras.mixed_precision.set_dtype_policy("float32")
    return {
        "kernels": f"{filters[0]}:{filters[1]}",
        "data": order,
        "policy": policy,
        "Conv2D, ms": 1e3 * plain,
        "one shard": one,
        "Conv2D again": noise,
    }


def main():
    given = card.options(__doc__)
    device = card.wanted(given)
    networks = [(8, 16)] if given.small else [(50, 500), (500, 1500)]
    orders = ["channels_last", "channels_first"]
    if device.endswith("CPU:0"):
        orders = orders[:1]  # TensorFlow has no other convolutions there.
    rows = [
        card.told(
            row(
                n,
                order,
                policy,
                device,
                4 if given.small else 64,
                given.repeats,
            )
        )
        for n in networks
        for order in orders
        for policy in ("float32", "mixed_float16", "mixed_bfloat16")
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
