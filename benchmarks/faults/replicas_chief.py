"""The training that `replicas.py` disturbs: the chief's program."""

import contextlib
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Of a replica: samples of a step.
BATCH = 32
# Tasks with which a chief begins, if others are away.
FEWEST, WAIT_S = 4, 20
# Evaluated are so many rounds' weights, evenly spread.
EVALUATED = 40


def data():
    """Training and test: each digit also moved by two pixels, to each side."""
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    import digits
    import numpy as np

    moves = [(0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)]
    return [
        (
            np.concatenate([np.roll(x, move, (1, 2)) for move in moves]),
            np.tile(y, len(moves)),
        )
        for x, y in digits.load()
    ]


def network():
    """LeNet, compiled."""
    sys.path.insert(0, str(HERE.parent / "replicas"))
    import keras
    from networks import lenet

    keras.utils.set_random_seed(0)
    model = lenet()
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def program(folder, steps):
    """The chief's: it notes each round, with weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_convpar as convpar

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = convpar.ConvParallelStrategy(
        min_workers=FEWEST, connect_timeout=WAIT_S
    )
    folder = pathlib.Path(folder)

    class Rounds(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.begun, self.before = time.time(), self.learned()

        def learned(self):
            members = method._members.items()
            return {replica: own.samples for replica, own in members}

        def on_epoch_end(self, epoch, logs=None):
            samples = sum(
                learned - self.before.get(replica, 0)
                for replica, learned in self.learned().items()
            )
            note(
                folder / "rounds.jsonl",
                {
                    "round": epoch,
                    "begun": self.begun,
                    "at": time.time(),
                    "replicas": len(method.replicas),
                    "samples": samples,
                },
            )
            np.save(folder / f"{epoch}.npy", flat(self.model))

    method = convpar.replicas.DiLoCo(
        network(),
        every=steps,
        shares=[1.0] * len(strategy.devices),
        backup_dir="backups",
        # Who is slower in one round, as who traces, makes fewer steps of it.
        patience=0.25,
    )
    method.fit(
        *data()[0],
        batch_size=BATCH,
        epochs=100_000,
        steps_per_epoch=steps,
        callbacks=[Rounds()],
        verbose=0,
    )


def flat(model):
    import numpy as np

    return np.concatenate([w.ravel() for w in model.get_weights()])


def accuracies(folder, rounds):
    """Held-out accuracy of some rounds' weights."""
    import numpy as np

    model = network()
    test = data()[1]
    for which in rounds[:: max(1, len(rounds) // EVALUATED)]:
        vector, begin, weights = np.load(folder / f"{which}.npy"), 0, []
        for old in model.get_weights():
            weights.append(vector[begin : begin + old.size].reshape(old.shape))
            begin += old.size
        model.set_weights(weights)
        accuracy = model.evaluate(*test, batch_size=500, verbose=0)[1]
        yield {"round": which, "accuracy": round(accuracy, 4)}


def note(file, row):
    with open(file, "a") as lines:
        lines.write(json.dumps(row) + "\n")


def read(file):
    with contextlib.suppress(FileNotFoundError):
        lines = pathlib.Path(file).read_text().split("\n")[:-1]
        return list(map(json.loads, lines))
    return []


if __name__ == "__main__":
    program(sys.argv[1], int(sys.argv[2]))
