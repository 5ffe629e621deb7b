"""Run as the chief of a cluster: what a Keras user does, in one program.

Prints one JSON object with what came of it; argument: a folder to write to.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

keras.utils.set_random_seed(1)  # Before the cluster, as programs do.
strategy = convpar.ConvParallelStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver()
)

from sklearn.datasets import load_digits  # noqa: E402

folder = Path(sys.argv[1])
digits = load_digits()
x = tf.image.resize(digits.images[:300, :, :, None] / 16, (16, 16)).numpy()
y = digits.target[:300]


def network():
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            convpar.ConvParallel2D(12, 3, shards=(6, 4, 2), padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.1),
            convpar.ConvParallel2D(16, 3, shards=(0.0, 1.0, 1.0)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )


with strategy.scope():
    model = network()
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(2)
history = model.fit(
    data,
    epochs=3,
    verbose=0,
    validation_data=(x, y),
    callbacks=[
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        keras.callbacks.ModelCheckpoint(str(folder / "epoch{epoch}.keras")),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
    ],
)
scores = model.predict(x, verbose=0)
evaluated = model.evaluate(x, y, verbose=0)
model.save(folder / "model.keras")
with strategy.scope():
    again = keras.models.load_model(folder / "model.keras")
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
path = checkpoint.save(str(folder / "checkpoint"))
kernel = model.layers[0].kernel
before = kernel.numpy()
kernel.assign(before * 0)
checkpoint.restore(path)
convpar.export(model, folder / "served")
export = tf.saved_model.load(str(folder / "served"))
served = export.serve(x)
print(
    json.dumps(
        {
            "losses": history.history["loss"],
            "accuracy": history.history["accuracy"][-1],
            "evaluated": evaluated[1],
            "predicted": float(np.mean(scores.argmax(-1) == y)),
            "reloaded": float(
                np.max(np.abs(again.predict(x, verbose=0) - scores))
            ),
            "restored": float(np.max(np.abs(kernel.numpy() - before))),
            "served": float(np.max(np.abs(served - scores))),
            "files": sorted(p.name for p in folder.glob("*.keras")),
            "devices": [
                [shard.device for shard in layer.kernel.shards]
                for layer in model.layers
                if isinstance(layer, convpar.ConvParallel2D)
            ],
        }
    )
)
