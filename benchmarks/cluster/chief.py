"""Times a parallel model as the chief of a cluster of `convpar worker`s.

Prints one line of JSON: how long a step took, what it moved, and how long it
was predicted to take.
"""

import argparse
import json
import os
import sys
import time

import models
import steps


def planned(name, model, strategy, options):
    """The plan for `parallelize`, and the seconds that it predicts, or None."""
    if name == "equal" or os.path.exists(name):
        return name, None
    if name == "auto":
        from tf_convpar import planner

        planner.calibrate(
            model,
            strategy,
            options.batch,
            algorithm=options.algorithm,
            fresh=not options.cached,
            report=steps.say,
        )
        plan = strategy.planner().model(
            model,
            options.batch,
            options.wire_dtype,
            options.algorithm,
            options.moments,
        )
        steps.say(plan.reason)
        return plan, plan.prediction.step_s
    try:
        return json.loads(name), None
    except json.JSONDecodeError:
        raise ValueError(
            "Expected a plan: 'equal', 'auto', the path of one, "
            "or JSON that maps names of layers, or regular expressions, to "
            f'kernels per device, such as {{".*": [3, 1]}}. Received: {name!r}.'
        ) from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps.add_arguments(parser)
    parser.add_argument("--plan", default="equal")
    parser.add_argument("--algorithm")
    parser.add_argument("--wire-dtype")
    parser.add_argument("--moments", default="all")
    parser.add_argument("--cached", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    import tf_convpar as convpar
    from tf_convpar.sharding import step_traffic

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = convpar.ConvParallelStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = models.build(options.model, options.pixels, options.classes)
        models.compiled(model)
        begin = time.perf_counter()
        plan, predicted = planned(options.plan, model, strategy, options)
        model = convpar.parallelize(
            model,
            plan,
            algorithm=options.algorithm,
            wire_dtype=options.wire_dtype,
            moments=options.moments,
        )
        planning = time.perf_counter() - begin
    traffic = step_traffic(model, options.batch)
    step = models.trainer(model, *steps.data(options))
    steps.report(
        {
            **steps.measure(step, options),
            "received_theory_mb": traffic.received / 1e6,
            "sent_theory_mb": traffic.sent / 1e6,
            "predicted_s": predicted,
            "planning_s": planning,
            "reason": getattr(plan, "reason", None),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
