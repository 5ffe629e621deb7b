"""What a user can give, made wrong at random: an error in words each time."""

import copy
import json
import os

import click.testing
import numpy as np
import pytest
import test_calibration_file
import test_plans
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.callbacks import snapshot_file
from tf_convpar.cli.main import main
from tf_convpar.cluster import spec

CONFIG = {
    "cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
    "task": {"type": "worker", "index": 1},
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from(["localhost:1", "b:2222", "a:99999", "-o:1", "chief"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def places(value, at=()):
    """The way to each part of plain data."""
    yield at
    inner = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        inner = dict(enumerate(value))
    for key, part in inner.items():
        yield from places(part, (*at, key))


@st.composite
def changed(draw, value):
    """Plain data of which one part is something else, or is gone."""
    value = copy.deepcopy(value)
    *way, last = draw(st.sampled_from([p for p in places(value) if p]))
    inner = value
    for key in way:
        inner = inner[key]
    if draw(st.booleans()):
        del inner[last]
    else:
        inner[last] = draw(ANYTHING)
    return value


def says(call):
    """Runs what may only raise an error for people."""
    try:
        call()
    except (ValueError, OSError) as error:
        assert "Received" in str(error) and "Expected" in str(error)


@FUZZ
@given(text=changed(CONFIG).map(json.dumps) | st.text() | ANYTHING.map(str))
def test_clusters(monkeypatch, text):
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # No environment has it.
    monkeypatch.setitem(os.environ, "TF_CONFIG", text)
    says(spec.resolve)


@FUZZ
@given(content=changed(json.loads(test_calibration_file.TEXT)))
def test_calibrations(tmp_path, content):
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(content))
    says(lambda: planner.load(file))


@FUZZ
@given(content=changed(json.loads(test_plans.TEXT)))
def test_plans_of_models(tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    says(lambda: plans.load(file))


@FUZZ
@given(data=st.data())
def test_snapshots(tmp_path, data):
    """With a bit the other way, shorter, or something else."""
    arrays = [np.arange(60, dtype="float32"), np.ones((3, 4))]
    snapshot_file.save(tmp_path, ["kernel", "bias"], arrays, (1, 2))
    (file,) = tmp_path.iterdir()
    whole = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(
            st.integers(0, 7)
        )
    else:
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    file.write_bytes(whole)

    def load():
        _, found, _ = snapshot_file.load(tmp_path)
        # What is read although a bit is wrong has the right numbers.
        for a, b in zip(found, arrays, strict=True):
            np.testing.assert_array_equal(a, b)

    says(load)


@FUZZ
@given(hosts=st.text(st.characters(codec="utf-8"), max_size=30))
def test_hosts(hosts):
    """Nothing is run: the commands are printed."""
    line = ["launch", "--hosts", hosts, "--", "train.py"]
    result = click.testing.CliRunner().invoke(main, line)
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if result.exit_code == 1:
        assert "Expected" in result.output


@pytest.mark.parametrize(
    "line",
    [
        ["launch", "-n", "0", "x.py"],
        ["launch", "-n", "2", "--restarts", "-1", "x.py"],
        ["trace", "--seconds", "nan"],
        ["trace", "--seconds", "1e9"],
        ["worker", "--threads", "many"],
    ],
)
def test_arguments(line):
    result = click.testing.CliRunner().invoke(main, line)
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output
