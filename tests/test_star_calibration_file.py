"""The star's calibrations as JSON files.

`test_calibration_file.py` has what is the same for those of whole models, and
`test_files.py` for all files.
"""

import json

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from star_cases import CHIEF
from star_cases import cluster
from star_cases import device_name

from tf_convpar.planner import Link
from tf_convpar.planner import star as planner
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarConvolution
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import Times

WORKER = device_name(1)
NAMES = st.text(min_size=1, max_size=8)
COUNTS = st.integers(1, 10**12)
NUMBERS = st.floats(0, allow_nan=False, allow_infinity=False)
RATES = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)


@st.composite
def convolutions(draw, name):
    axes = draw(st.integers(1, 3))
    shape = st.tuples(*[COUNTS] * axes)
    groups = draw(st.integers(1, 4))
    return StarConvolution(
        name,
        draw(shape),
        draw(shape),
        groups * draw(COUNTS),
        groups * draw(COUNTS),
        draw(shape),
        groups,
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def times(draw):
    widths = sorted(draw(st.sets(COUNTS, min_size=1, max_size=4)))
    row = st.tuples(*[NUMBERS] * len(widths))
    return Times(tuple(widths), draw(row), draw(row), draw(row))


@st.composite
def calibrations(draw):
    layers = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    network = Network(
        tuple(draw(convolutions(layer)) for layer in layers),
        draw(COUNTS),
        draw(st.sampled_from([2, 4])),
        draw(st.integers(0, 3)),
    )
    devices = tuple(
        StarDevice(
            name,
            {layer: draw(times()) for layer in layers},
            draw(NUMBERS),
            draw(st.none() | st.integers(0, 2**60)),
            draw(st.none() | NUMBERS),
            draw(NUMBERS),
        )
        for name in names
    )
    links = tuple(
        Link(a, b, draw(RATES), draw(NUMBERS))
        for a in names
        for b in names
        if a != b and (names[0] in (a, b) or draw(st.booleans()))
    )
    return StarCalibration(
        network,
        devices,
        links,
        draw(NUMBERS),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(COUNTS),
        draw(st.dictionaries(NAMES, st.text(max_size=5), max_size=2)),
    )


@settings(deadline=None)
@given(calibrations())
def test_round_trip_is_exact(calibration):
    content = json.loads(json.dumps(planner.to_json(calibration)))
    assert planner.from_json(content) == calibration


def test_file(tmp_path):
    calibration = cluster([1e11, 5e10, 2e11])
    path = tmp_path / "cluster.json"
    path.write_text("old")
    calibration.save(path)
    assert planner.load(path) == calibration
    assert [p.name for p in tmp_path.iterdir()] == ["cluster.json"]
    content = json.loads(path.read_text())
    assert (content["kind"], content["format"]) == ("star calibration", 1)


def put(content, path, value):
    """Sets one value deep in a file's content."""
    *way, last = path
    for step in way:
        content = content[step]
    content[last] = value


TIMES = ("devices", 1, "times", "conv2d")
LAYER = ("network", "convolutions", 0)
EDITS = [
    (("format",), 0, "format 1 of {file}. Received: format 0, of another"),
    (
        (*TIMES, "forward", 3),
        -0.5,
        r"at devices\[1\].times.conv2d.forward\[3\] of {file}. "
        r"Received: -0.5\.",
    ),
    ((*TIMES, "forward"), [1.0], "6 numbers, .*Received: 1"),
    ((*TIMES, "filters"), [1, 2, 3, 3, 4, 5], "each more than the one before"),
    ((*TIMES, "filters"), [0, 1, 2, 3, 4, 5], r"at least 1.*filters\[0\]"),
    ((*TIMES, "filters"), [], "each more than the one before"),
    (("devices", 1, "times"), {}, "no 'conv2d', no 'conv2d_1'"),
    (("devices", 1, "times", "more"), {}, r"no 'filters', no 'forward'"),
    (("devices", 1, "name"), CHIEF, "distinct names of devices"),
    (("devices", 1, "memory_bytes"), 1.5, "memory_bytes"),
    (("devices", 1, "watts"), -1, r"devices\[1\].watts"),
    (("devices",), [], "an array of at least 1"),
    (("links", 0, "bytes_per_s"), 0, "above 0, at"),
    (("links", 0, "target"), "elsewhere", "one of the devices"),
    (("links", 0, "target"), CHIEF, "another device"),
    (("links",), [], f"a link from {CHIEF} to {WORKER}"),
    ((*LAYER, "name"), "conv2d_1", "conv2d"),
    ((*LAYER, "image"), [32], r"output of {file}"),
    ((*LAYER, "window"), [5, 5, 5], "2 numbers, one for each axis"),
    ((*LAYER, "groups"), 2, "a multiple of groups, 2"),
    ((*LAYER, "bias"), 1, "true or false"),
    ((*LAYER, "padding"), "same", "an unknown 'padding'"),
    (("network", "batch"), 0, "at network.batch"),
    (("network", "convolutions"), [], "an array of at least 1"),
    (("quantum",), 0, "at least 1, at quantum"),
]


@pytest.mark.parametrize(("path", "value", "message"), EDITS)
def test_edited_file(tmp_path, path, value, message):
    content = planner.to_json(cluster([1e11, 5e10]))
    put(content, path, value)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message.format(file=file)):
        planner.load(file)


def test_layer_that_is_there_twice(tmp_path):
    content = planner.to_json(cluster([1e11, 5e10]))
    layers = content["network"]["convolutions"]
    layers.append(layers[0])
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="distinct names of layers"):
        planner.load(file)


@pytest.mark.parametrize("index", [0, 1])
def test_each_direction_of_a_link_is_needed_once(index):
    content = planner.to_json(cluster([1e11, 5e10]))
    twice = dict(content, links=[*content["links"], content["links"][index]])
    with pytest.raises(ValueError, match="each link once"):
        planner.from_json(twice)
    del content["links"][index]
    with pytest.raises(ValueError, match="Expected a link .* without it"):
        planner.from_json(content)


def test_times_of_a_layer_that_is_not_there():
    content = planner.to_json(cluster([1e11, 5e10]))
    times = content["devices"][1]["times"]
    times["more"] = times["conv2d"]
    with pytest.raises(ValueError, match="an unknown 'more'"):
        planner.from_json(content)
