"""Train in shards, serve anywhere TensorFlow runs.

    python examples/export_and_serve.py

The second half runs in a process of its own, which imports TensorFlow and
numpy alone: the export holds plain convolutions with merged kernels.
"""

import subprocess
import sys
import tempfile

import digits
import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)

SERVE = """
import sys
import numpy as np
import tensorflow as tf

served = tf.saved_model.load(sys.argv[1])
images = np.load(sys.argv[2])
np.save(sys.argv[3], served.serve(images))
"""

with convpar.ConvParallelStrategy().scope():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            convpar.ConvParallel2D(16, 5, activation="relu", shards=(3, 1)),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )

(x, y), (images, labels) = digits.load()
model.fit(x, y, batch_size=50, epochs=2, verbose=2)

with tempfile.TemporaryDirectory() as folder:
    convpar.export(model, f"{folder}/digits")
    np.save(f"{folder}/images.npy", images)
    subprocess.run(
        [
            sys.executable,
            *("-c", SERVE, f"{folder}/digits"),
            *(f"{folder}/images.npy", f"{folder}/scores.npy"),
        ],
        check=True,
    )
    served = np.load(f"{folder}/scores.npy")

own = model.predict(images, verbose=0)
print(f"largest difference of the scores: {np.max(np.abs(served - own)):.1e}")
print(f"accuracy served: {np.mean(served.argmax(-1) == labels):.2f}")
