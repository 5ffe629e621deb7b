"""Rounds that replicas keep, and trainings that go on from them."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas
from tf_convpar.replicas.backup_record import Record

# Of 192 samples, 8 for each of three replicas.
EPOCHS, STEPS, BATCH = 3, 8, 8


class Watch(keras.callbacks.Callback):
    """Says where training is, and ends it by an error after so many steps."""

    def __init__(self, after=None):
        super().__init__()
        self.after, self.steps, self.rates = after, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == 1:
            self.model.optimizer.learning_rate.assign(0.005)

    def on_train_batch_begin(self, batch, logs=None):
        if self.after is not None and self.epoch * STEPS + batch >= self.after:
            raise InterruptedError

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(self.epoch * STEPS + batch + 1)
        self.rates.append(float(self.model.optimizer.learning_rate))


def made(optimizer=keras.optimizers.SGD, extra=(), **options):
    """A method in a program that has made nothing before."""
    keras.utils.clear_session(free_memory=False)
    model = network(optimizer(0.01), [layer() for layer in extra])
    options = {"devices": DEVICES, "shares": [1, 2, 1], "every": 4} | options
    return replicas.DiLoCo(model, **options)


def fit(method, after=None, **options):
    watch = Watch(after)
    given = {} if "x" in options else dict(zip("xy", data(), strict=True))
    options = {
        **given,
        **{"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0},
        **{"callbacks": [watch], **options},
    }
    if after is None:
        method.fit(**options)
    else:
        with pytest.raises(InterruptedError):
            method.fit(**options)
    return watch


def assert_same(method, other):
    for a, b in zip(
        method.model.get_weights(), other.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def folders(folder):
    """The files of backups, by the device that they are of, newest first."""
    found = {}
    for path in folder.glob("*/*.index"):
        found.setdefault(path.name[:5], []).append(path.with_suffix(""))
    for files in found.values():
        files.sort(key=lambda file: record_of(file).number, reverse=True)
    return found


def record_of(file):
    values = tf.raw_ops.RestoreV2(
        prefix=str(file),
        tensor_names=["record"],
        shape_and_slices=[""],
        dtypes=[tf.string],
    )
    return Record.from_text(values[0].numpy(), str(file))


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}


def data_of(file):
    return file.with_name(f"{file.name}.data-00000-of-00001")


NORMALIZED = (
    keras.layers.BatchNormalization,
    lambda: keras.layers.Dropout(0.3, seed=4),
)


@pytest.mark.parametrize(
    ("optimizer", "after", "options"),
    [
        (keras.optimizers.SGD, 19, {"every": 2}),
        slow((keras.optimizers.Adam, 8, {"every": 4})),
        (keras.optimizers.Adam, 8, {"every": 4, "algorithm": "auto"}),
        # The first part of the weights is on its way.
        slow(
            (
                keras.optimizers.Adam,
                13,
                {"every": 6, "fragments": 2, "unequal": "steps"},
            )
        ),
    ],
)
def test_going_on_is_as_if_nothing_had_been(
    optimizer, after, options, tmp_path
):
    """Slots, averages, random states, rates, the order of data."""
    options |= {"optimizer": optimizer, "extra": NORMALIZED}
    undisturbed = made(**options)
    whole = fit(undisturbed)
    fit(made(**options, backup_dir=tmp_path), after)
    # Left by who was killed while it wrote.
    cut_short = tmp_path / "localhost-0/cpu-0.0.index.tempstate1234"
    cut_short.write_bytes(bytes(1000))
    again = made(**options, backup_dir=tmp_path)
    left = fit(again)
    assert 0 < len(left.steps) < len(whole.steps)
    assert cut_short.stat().st_size == 0
    assert left.steps == whole.steps[-len(left.steps) :]
    assert left.steps[0] <= after + 2 * options["every"]
    assert left.rates == whole.rates[-len(left.rates) :]
    assert_same(again, undisturbed)


def test_a_training_that_has_ended_leaves_nothing_to_go_on_from(tmp_path):
    method = made(backup_dir=tmp_path)
    steps = fit(method).steps
    assert fit(method).steps == steps
    files = sum(folders(tmp_path).values(), [])
    assert len(files) == 6
    assert all(record_of(file).over for file in files)
    assert sum(data_of(file).stat().st_size for file in files) < 6 * 1000


@pytest.mark.slow
def test_who_was_away_at_the_end_does_not_begin_it_again(tmp_path):
    fit(made(backup_dir=tmp_path), after=12)
    away = tmp_path / "away"
    (tmp_path / "localhost-0").rename(away)
    kept = {path.name: path.read_bytes() for path in away.iterdir()}
    away.rename(tmp_path / "localhost-0")
    assert fit(made(backup_dir=tmp_path)).steps[0] == 16
    for name, content in kept.items():
        if name.startswith("cpu-1"):
            (tmp_path / "localhost-0" / name).write_bytes(content)
    assert fit(made(backup_dir=tmp_path)).steps[0] == 4


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("cut", "Read less bytes than requested."),
        slow(("record", "Checksum does not match")),
        slow(("changed", "Checksum does not match")),
        slow(("gone", "No such file or directory.")),
    ],
)
def test_a_damaged_file_is_passed_over(damage, why, tmp_path, capsys):
    """The round before is taken, where all files of the last are damaged."""
    fit(made(backup_dir=tmp_path), after=16)
    for newest, _ in folders(tmp_path).values():
        file = data_of(newest)
        content = bytearray(file.read_bytes())
        # Not in the record, which is before.
        at = content.index(b'"begun"')
        assert at < 1000 < 5000 < len(content)
        content[-100] ^= 1
        if damage == "record":
            content[at + 50] ^= 1
        cut = content[: len(content) // 2]
        file.write_bytes(cut if damage == "cut" else content)
        if damage == "gone":
            file.unlink()
    again = made(backup_dir=tmp_path)
    steps = fit(again).steps
    assert steps[0] == 16
    said = capsys.readouterr().out
    assert len(re.findall(f"passes over .*of localhost 0: .*{why}", said)) == 3
    assert "goes on from round 3 (epoch 2, step 4)" in said
    undisturbed = made()
    fit(undisturbed)
    assert_same(again, undisturbed)


@pytest.mark.slow
def test_whose_file_is_damaged_takes_anothers(tmp_path, capsys):
    fit(made(backup_dir=tmp_path), after=16)
    first, second, _ = (own[0] for own in folders(tmp_path).values())
    data_of(first).write_bytes(data_of(first).read_bytes()[:-400])
    data_of(second).unlink()
    again = made(backup_dir=tmp_path)
    assert fit(again).steps[0] == 20
    assert capsys.readouterr().out.count("passes over") == 2
    undisturbed = made()
    fit(undisturbed)
    assert_same(again, undisturbed)


def test_where_all_are_damaged_nothing_begins_anew(tmp_path):
    fit(made(backup_dir=tmp_path), after=16)
    for files in folders(tmp_path).values():
        for file in files:
            data_of(file).write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"that is whole\. Received 6 files.*Delete the folder"
    ):
        fit(made(backup_dir=tmp_path))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"extra": [lambda: keras.layers.Conv2D(5, 3)]},
            r"3\. sequential/conv2d/kernel of float32 and shape \(3, 3, 4, 5\)"
            r"\. Received .*localhost-0/cpu-.* of localhost 0: 3\. .*/kernel "
            r".*\(144, 2\)\. Give another backup_dir than .*delete that",
        ),
        slow(({"fragments": 2}, r"5\. 2 fragments\. Received.* 5\. 1 frag.*")),
        slow(
            (
                {"outer": keras.optimizers.SGD(1.0)},
                r"6\. outer SGD, 2 variables\. Received.*SGD, 3 variables\.",
            )
        ),
    ],
)
def test_backups_of_another_model_are_refused(other, message, tmp_path):
    fit(made(backup_dir=tmp_path), after=8)
    before = times(tmp_path)
    with pytest.raises(ValueError, match=message):
        fit(made(backup_dir=tmp_path, **other))
    assert times(tmp_path) == before
    # In the same program Keras counts names on.
    model = network(keras.optimizers.SGD(0.01))
    assert "_" in model.layers[0].name
    options = {"devices": DEVICES, "every": 4, "backup_dir": tmp_path}
    assert fit(replicas.DiLoCo(model, **options)).steps[0] == 12


@pytest.mark.slow
def test_another_optimizer_begins_with_slots_of_its_own(tmp_path):
    fit(made(backup_dir=tmp_path), after=8)
    method = made(backup_dir=tmp_path, optimizer=keras.optimizers.Adam)
    assert fit(method).steps[0] == 12


@pytest.mark.slow
def test_one_that_ends_after_its_last_step_is_only_brought_to_its_end(tmp_path):
    """What is on its way, and what was not yet sent, is shared."""

    class Last(Watch):
        def on_epoch_end(self, epoch, logs=None):
            if epoch + 1 == EPOCHS:
                raise InterruptedError

    options = {"every": 8, "fragments": 2}
    undisturbed = made(**options)
    fit(undisturbed)
    with pytest.raises(InterruptedError):
        fit(made(**options, backup_dir=tmp_path), callbacks=[Last()])
    again = made(**options, backup_dir=tmp_path)
    assert fit(again).steps == []
    assert_same(again, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["dataset", pytest.param("function", marks=pytest.mark.slow)]
)
def test_batches_of_the_epoch_are_passed_over(kind, tmp_path):
    """Of what is read anew by a program that is started again."""
    x, y = data(BATCH * STEPS * 3)

    def given(context=None):
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        shards = context and context.num_input_pipelines
        place = context and context.input_pipeline_id
        return batches.shard(shards, place) if context else batches

    options = {"shares": [1, 1, 1]}
    source = {"x": given() if kind == "dataset" else given, "batch_size": None}
    source["steps_per_epoch"] = STEPS
    undisturbed = made(**options)
    fit(undisturbed, **source)
    fit(made(**options, backup_dir=tmp_path), after=12, **source)
    again = made(**options, backup_dir=tmp_path)
    assert fit(again, **source).steps[0] == 16
    assert_same(again, undisturbed)


@pytest.mark.slow
def test_so_are_those_that_the_program_makes(tmp_path):
    def generator():
        for at in range(10**6):
            given.append(at)
            yield tuple(part[at % 184 :][:BATCH] for part in data())

    options = {"steps_per_epoch": STEPS, "batch_size": None}
    given = []
    fit(made(backup_dir=tmp_path), after=12, x=generator(), **options)
    assert len(given) == 3 * 12
    given.clear()
    fit(made(backup_dir=tmp_path), x=generator(), **options)
    # Four steps are passed over, and twelve made.
    assert len(given) == 3 * (4 + 12)


def test_one_replica_goes_on_for_three(tmp_path):
    """On a device that had none: from the same weights, as far in the epoch."""
    three = made(backup_dir=tmp_path)
    fit(three, after=12)
    begun = []
    one = made(devices=["CPU:3"], shares=[1], backup_dir=tmp_path)
    begins = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: begun.append(
            (batch, one.model.get_weights())
        )
    )
    fit(one, callbacks=[begins])
    # An epoch of one has 24 steps, of which a half is made.
    batches = [batch for batch, _ in begun]
    assert batches == [*range(12, 24, 4), *range(0, 24, 4)]
    for a, b in zip(begun[0][1], three.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_fewer_backups(tmp_path):
    method = made(backup_dir=tmp_path, every=2, backup_every=3)
    fit(method, after=14)
    numbers = [record_of(f).number for f in folders(tmp_path)["cpu-0"]]
    rounds = [record_of(f).place.round for f in folders(tmp_path)["cpu-0"]]
    assert (numbers, rounds) == ([2, 1], [6, 3])


@pytest.mark.parametrize("name", ["", "a[1]", "what?"])
def test_names_that_tensorflow_takes_for_others(name):
    with pytest.raises(ValueError, match="with none of .* in its name.*Rec"):
        made(backup_dir=name)


def test_options_are_checked():
    with pytest.raises(ValueError, match="at least 1 exchange.*Received: 0"):
        made(backup_dir="b", backup_every=0)


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError,
        match=r"each task can write to.*file'.*localhost 0: /.* is not a dir",
    ):
        fit(made(backup_dir=tmp_path / "file"))


@pytest.mark.slow  # Copies of a split model do as much.
def test_one_that_can_no_more_be_written_is_no_end(tmp_path, capsys):
    method = made(backup_dir=tmp_path)

    def spoil(batch, logs):
        if batch == 3:
            folder = tmp_path / "localhost-0"
            if folder.is_dir():
                folder.rename(tmp_path / "elsewhere")
                folder.touch()

    spoils = keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    fit(method, callbacks=[spoils])
    assert capsys.readouterr().out.count("could not keep a round: ") == 1
