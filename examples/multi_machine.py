"""Several machines, or several processes of this one, through TF_CONFIG.

On this machine, with two workers beside the program itself:

    convpar launch -n 3 examples/multi_machine.py

On several machines, print the command for each (--ssh runs them over ssh):

    convpar launch --hosts a:2222,b:2222,c:2222 examples/multi_machine.py

By hand: every machine gets its own TF_CONFIG. The chief runs this program, and
every other machine runs `convpar worker`.
"""

import digits
import keras

import tf_convpar as convpar

# This comes first: variables made before the cluster is joined would be lost.
strategy = convpar.ConvParallelStrategy()

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            # Without `shards=` the kernels are cut equally.
            convpar.ConvParallel2D(16, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            convpar.ConvParallel2D(64, 5, activation="relu"),
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
for shard in model.layers[2].kernel.shards:
    print(f"{shard.shape[-1]} of 64 kernels on {shard.device}")
