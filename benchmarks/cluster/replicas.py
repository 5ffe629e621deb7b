"""Times the steps of replicas, as the chief of a cluster of `convpar worker`s.

Prints one line of JSON: how long a step of all replicas took in `fit`, with
its part of the exchange, and what it moved.
"""

import argparse
import os
import sys
import time

import models
import steps

# Local steps of a round, where replicas meet seldom.
EVERY = 50


def theory(method, wire):
    """MB into and out of the chief in a step of SyncSGD, by its messages."""
    from tf_convpar import placement

    chief, centre = method.devices[0], method.centre
    nbytes = [placement.wire_bytes(wire, size) for size in centre.sizes]
    legs = placement.exchange_messages(method.devices, centre.devices, nbytes)
    ends = [ends for leg in legs for ends in leg.items()]
    return {
        "received_theory_mb": sum(n for (_, at), n in ends if at == chief)
        / 1e6,
        "sent_theory_mb": sum(n for (at, _), n in ends if at == chief) / 1e6,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps.add_arguments(parser)
    parser.add_argument("--method", required=True, help="SyncSGD or DiLoCo")
    parser.add_argument("--algorithm")
    parser.add_argument("--wire", default="float32")
    parser.add_argument(
        "--unequal",
        choices=("batches", "steps"),
        help="shares are measured: faster nodes have more of these",
    )
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    import tf_convpar as convpar

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = convpar.ConvParallelStrategy()
    keras.utils.set_random_seed(1)
    model = models.build(options.model, options.pixels, options.classes)
    models.compiled(model)
    seldom = options.method == "DiLoCo"
    more = {"every": EVERY, "unequal": options.unequal or "batches"}
    method = getattr(convpar.replicas, options.method)(
        model,
        algorithm=options.algorithm,
        wire=options.wire,
        shares="auto" if options.unequal else [1.0] * len(strategy.devices),
        **(more if seldom else {}),
    )
    times = []

    class Clock(keras.callbacks.Callback):
        """Seconds of each step, from epoch to epoch."""

        def on_epoch_begin(self, epoch, logs=None):
            times.clear()
            self.begin, self.done = time.perf_counter(), -1
            self.before = steps.network_bytes()
            self.learned = learned() if seldom else 0

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            made = batch - self.done
            times.extend([(now - self.begin) / made] * made)
            self.begin, self.done = now, batch
            self.after = steps.network_bytes()
            steps.say(f"step {batch + 1}: {times[-1]:.3f} s")

    def learned():
        return sum(replica.samples for replica in method.report())

    clock = Clock()
    count = EVERY if seldom else options.steps
    history = method.fit(
        *steps.data(options),
        batch_size=options.batch // len(strategy.devices),
        epochs=2,
        steps_per_epoch=count,
        callbacks=[clock],
        verbose=0,
    )
    low, middle, high = steps.quartiles(times)
    if seldom:
        # Steps of a round and its exchange.
        middle = sum(times) / len(times)
    # A step has fewer samples than were asked for where machines are left out,
    # and where one that is late ends its steps of a round.
    batches = [replica.batch for replica in method.replicas]
    made = sum(batches)
    if seldom:
        made = (learned() - clock.learned) / count
    whole = options.batch / made
    received, sent = (
        (b - a) / count / 1e6
        for a, b in zip(clock.before, clock.after, strict=True)
    )
    steps.report(
        {
            "step_s": middle * whole,
            "quartiles_s": [low * whole, high * whole],
            "reason": f"samples: {', '.join(map(str, batches))}, "
            f"{made / sum(batches):.0%} of them in time",
            "steps": count,
            "losses": history.history["loss"],
            "received_mb": received,
            "sent_mb": sent,
            **({} if seldom else theory(method, options.wire)),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
