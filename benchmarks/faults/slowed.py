"""The program of a chief one of whose workers is slowed down, and let go.

Run by `rebalance.py`, with how the model is spread (filters, samples, auto), a
JSON object of its settings, and two pipes: one to ask, one for answers. Two
equal models train in turns, a few steps each; one of them has `Rebalance`.
Prints one JSON object.
"""

import json
import statistics
import sys
import time

import keras
import numpy as np

import tf_convpar as convpar

PIXELS, BATCH, STEPS = 16, 32, 8
L = keras.layers


def network(name):
    """Nine tenths of a step and more are convolutions."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 32)),
            L.Conv2D(64, 5, padding="same", activation="relu", name="first"),
            L.Conv2D(64, 5, padding="same", activation="relu", name="second"),
            L.MaxPooling2D(),
            L.Conv2D(128, 5, padding="same", activation="relu", name="third"),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ],
        name=name,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    return model


def parallel(way, name):
    """A model that is spread so."""
    if way == "auto":
        return convpar.parallelize(network(name), "auto", batch_size=BATCH)
    split = {"split": way, "shards": (1, 1, 1)}
    return convpar.parallelize(
        network(name), dict.fromkeys(("first", "second", "third"), split)
    )


def shares(model):
    """How each convolution is spread, and what each device has of it."""
    found = {}
    for name in ("first", "second", "third"):
        layer = model.get_layer(name)
        spread = getattr(layer, "split", None) or "filters"
        own = [float(share) for share in getattr(layer, "shards", None) or ()]
        found[name] = [spread if own else "chief", own]
    return found


class Times(keras.callbacks.Callback):
    """When the last step began and ended; before `Rebalance` looks."""

    def on_train_batch_begin(self, batch, logs=None):
        """Notes when."""
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Notes when."""
        self.end = time.perf_counter()


class Course(keras.callbacks.Callback):
    """After `Rebalance`: the other model's turn, and what comes next.

    Each phase lasts until shares have moved, if they are to, and then some
    turns more; only those are counted.
    """

    def __init__(self, other, batch, times, rebalance, request, settings):
        super().__init__()
        self.other, self.batch, self.times = other, batch, times
        self.rebalance, self.request = rebalance, request
        self.turns, self.most_s = settings["turns"], settings["most_s"]
        self.steps, self.own, self.looks = 0, [], []
        self.phases = iter(("calm", "slowed", "given back"))
        self.found = {}

    def on_train_begin(self, logs=None):
        """The first phase."""
        self.next()

    def next(self):
        """Another phase, or none."""
        self.phase = next(self.phases, None)
        if self.phase is None:
            self.model.stop_training = True
            return
        if self.phase != "calm":
            self.request({"slowed": "lose", "given back": "back"}[self.phase])
        self.made, self.since = len(self.rebalance.decisions), time.monotonic()
        self.left, self.after_s = self.turns, None
        self.now = self.found[self.phase] = {"with": [], "without": []}

    def on_train_batch_end(self, batch, logs=None):
        """Times one step; after some of them it is the other's turn."""
        self.own.append(self.times.end - self.times.start)
        self.looks.append(time.perf_counter() - self.times.end)
        self.steps += 1
        if self.steps % STEPS:
            return
        others = []
        for _ in range(STEPS):
            start = time.perf_counter()
            self.other.train_on_batch(*self.batch)
            others.append(time.perf_counter() - start)
        self.turn_over(self.own, others)
        self.own = []

    def turn_over(self, own, others):
        """Counts a turn, if the phase has come so far."""
        took_s = time.monotonic() - self.since
        moved = len(self.rebalance.decisions) > self.made
        if moved:
            # Maybe once more: what counts is the last.
            self.made = len(self.rebalance.decisions)
            self.after_s = self.now["after_s"] = took_s
            self.left, self.now["with"] = self.turns, []
            return  # The first steps afterwards trace.
        late = took_s > self.most_s
        if self.phase != "calm" and self.after_s is None and not late:
            # Shares have yet to move. Others can be counted already.
            self.now["without"] += others
            return
        if self.steps == STEPS:
            return
        self.now["with"] += own
        self.now["without"] += others
        self.left -= 1
        # As long as looks find out what is usual.
        known = self.phase != "calm" or took_s > 5 * self.rebalance.every_s
        if self.left <= 0 and known:
            self.now["shares"] = shares(self.model)
            self.next()


def main(way, settings, ask, answer):
    settings = json.loads(settings)
    with open(ask, "w") as asks, open(answer) as answers:

        def request(what):
            asks.write(json.dumps([what, 0.0]) + "\n")
            asks.flush()
            answers.readline()

        strategy = convpar.ConvParallelStrategy()
        with strategy.scope():
            model = parallel(way, "with")
            # Not measured and planned again, which may give another plan.
            other = convpar.parallelize(
                network("without"),
                {
                    name: {"split": how, "shards": own} if own else None
                    for name, (how, own) in shares(model).items()
                },
            )
        rng = np.random.default_rng(0)
        x = rng.normal(size=(BATCH, PIXELS, PIXELS, 32)).astype("float32")
        y = rng.integers(0, 10, BATCH)
        times = Times()
        rebalance = convpar.callbacks.Rebalance(
            every=settings["every_s"], cooldown=settings["cooldown_s"]
        )
        course = Course(other, (x, y), times, rebalance, request, settings)
        line = convpar.callbacks.Timeline(settings["timeline"], after=20)
        model.fit(
            *(x, y),
            batch_size=BATCH,
            epochs=1_000_000,
            verbose=0,
            shuffle=False,
            callbacks=[line, times, rebalance, course],
        )
    out = {"way": way, **settings, "phases": {}}
    for phase, found in course.found.items():
        out["phases"][phase] = {
            **{
                key: {
                    "median": statistics.median(found[key]),
                    "quartiles": statistics.quantiles(found[key])[::2],
                    "steps": len(found[key]),
                }
                for key in ("with", "without")
            },
            "after_s": found.get("after_s"),
            "shares": found["shares"],
        }
    out["decisions"] = [
        {
            "step": d.step,
            "slower": list(d.slower.values()),
            "saves": d.saves,
            "text": str(d),
        }
        for d in rebalance.decisions
    ]
    # What looks cost, where nothing moved.
    out["looks_s"] = statistics.quantiles(
        [s for s in course.looks if s > 0.01] or [0.0, 0.0]
    )
    out["steps"] = course.steps
    # Both models learned the same batch, as often.
    out["apart"] = float(
        max(
            np.abs(a - b).max()
            for a, b in zip(
                model.get_weights(), other.get_weights(), strict=True
            )
        )
    )
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
