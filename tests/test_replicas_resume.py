"""Training of replicas that goes on: schedules, backups, weights loaded."""

import keras
import numpy as np
import pytest
from cases import slow
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas


def rate_of(method):
    """What the last step's learning rate was."""
    own = [*method.centre.optimizers, method.replicas[0].optimizer]
    return float(own[0].learning_rate)


@pytest.mark.parametrize("kind", ["SyncEASGD", "AsyncSGD"])
def test_a_schedule_of_the_learning_rate(kind):
    x, y = data()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [8, 16], [0.05, 0.02, 0.01]
    )
    model = network(keras.optimizers.SGD(schedule))
    method = getattr(replicas, kind)(model, devices=DEVICES)
    per_epoch = 24 if kind == "AsyncSGD" else 8
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert int(model.optimizer.iterations) == per_epoch
    # On a busy machine the last to arrive may have set out under the first
    # rate, so an asynchronous method's is certain in the second epoch only.
    if kind == "SyncEASGD":
        assert rate_of(method) == pytest.approx(0.05)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert rate_of(method) == pytest.approx(0.01 if per_epoch > 8 else 0.02)


@pytest.mark.parametrize("kind", ["SyncEASGD", "AsyncEASGD"])
def test_weights_loaded_between_two_calls_are_everyones(kind, tmp_path):
    x, y = data()
    model = network()
    model.save_weights(tmp_path / "first.weights.h5")
    first = model.get_weights()
    method = getattr(replicas, kind)(model, devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert np.abs(model.get_weights()[0] - first[0]).max() > 1e-3
    model.load_weights(tmp_path / "first.weights.h5")
    model.optimizer.learning_rate.assign(1e-12)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    for own, loaded in zip(model.get_weights(), first, strict=True):
        np.testing.assert_allclose(own, loaded, atol=1e-5)
    vector = method.centre.value().numpy()
    for replica in method.replicas:
        np.testing.assert_allclose(replica.weights.numpy(), vector, atol=1e-5)


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise InterruptedError


@pytest.mark.parametrize("kind", ["SyncEASGD", slow("AsyncSGD")])
def test_backup_and_restore(kind, tmp_path):
    x, y = data()

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    model = network()
    with pytest.raises(InterruptedError):
        getattr(replicas, kind)(model, devices=DEVICES).fit(
            x, y, 8, 4, verbose=0, callbacks=[backup(), Dies()]
        )
    reached = model.evaluate(x, y, verbose=0)[0]
    again = network()
    begun = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(epoch)
    )
    method = getattr(replicas, kind)(again, devices=DEVICES)
    history = method.fit(
        x, y, 8, 4, verbose=0, callbacks=[backup(), watch]
    ).history
    assert begun == [2, 3]
    assert history["loss"][0] < 1.05 * reached
    fresh = network().evaluate(x, y, verbose=0)[0]
    assert reached < 0.9 * fresh
