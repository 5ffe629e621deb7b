"""One machine, several devices: no cluster, no TF_CONFIG.

    python examples/single_machine.py

Where there is a GPU, it shares the work with the CPU. Without one the CPU is
shown as two devices, which splits the work without making it faster.
"""

import digits
import keras
import tensorflow as tf

import tf_convpar as convpar

if not tf.config.list_physical_devices("GPU"):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )

strategy = convpar.ConvParallelStrategy()
print("devices:", *strategy.devices, sep="\n  ")

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            # Three kernels on the first device for one on the second.
            convpar.ConvParallel2D(16, 5, activation="relu", shards=(3, 1)),
            keras.layers.MaxPooling2D(),
            convpar.ConvParallel2D(64, 5, activation="relu", shards=(3, 1)),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

(x, y), test = digits.load()
model.fit(x, y, batch_size=50, epochs=3, validation_data=test, verbose=2)
for layer in model.layers:
    if isinstance(layer, convpar.ConvParallel2D):
        print(layer)
