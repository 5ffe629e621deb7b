"""Calibrations of whole models as JSON files."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest

from tf_convpar import planner
from tf_convpar.planner import Calibration
from tf_convpar.planner import Link
from tf_convpar.planner import MeasuredDevice
from tf_convpar.planner import Work

# As it was written before its form was that of the dataclass.
TEXT = """{
 "kind": "calibration",
 "format": 4,
 "model": "f00d",
 "batch": 16,
 "devices": [
  {
   "name": "a",
   "update_s": 1e-09,
   "byte_s": 2e-10,
   "message_s": 0.0,
   "memory_bytes": 1000000,
   "works": {
    "3f0c": {
     "samples": [4, 16],
     "forward": [0.1, 0.4],
     "backward": [0.2, 0.8],
     "filters": [0.5, 1.0],
     "forward_of": [0.6, 1.0],
     "backward_of": [0.7, 1.0],
     "on_shards": [0.9, 0.8]
    }
   }
  },
  {
   "name": "b",
   "update_s": 0.0,
   "byte_s": 0.0,
   "message_s": 1e-05,
   "memory_bytes": null,
   "works": {
    "3f0c": {
     "samples": [16],
     "forward": [1],
     "backward": [2],
     "filters": [1.0],
     "forward_of": [1.0],
     "backward_of": [1.0],
     "on_shards": [1.0, 1.0]
    }
   }
  }
 ],
 "links": [
  {"source": "a", "target": "b", "bytes_per_s": 1e8, "latency_s": 0.001},
  {"source": "b", "target": "a", "bytes_per_s": 2e8, "latency_s": 0.0}
 ],
 "slots": 2,
 "facts": {"tensorflow": "2.21.0"}
}
"""
CALIBRATION = Calibration(
    "f00d",
    16,
    (
        MeasuredDevice(
            "a",
            {
                "3f0c": Work(
                    (4, 16),
                    (0.1, 0.4),
                    (0.2, 0.8),
                    (0.5, 1.0),
                    (0.6, 1.0),
                    (0.7, 1.0),
                    (0.9, 0.8),
                )
            },
            1e-9,
            2e-10,
            0.0,
            1000000,
        ),
        MeasuredDevice(
            "b", {"3f0c": Work((16,), (1.0,), (2.0,))}, 0.0, 0.0, 1e-5
        ),
    ),
    (Link("a", "b", 1e8, 0.001), Link("b", "a", 2e8, 0.0)),
    2,
    {"tensorflow": "2.21.0"},
)


def test_files_that_are_already_written(tmp_path):
    file = tmp_path / "cluster.json"
    file.write_text(TEXT)
    assert planner.load(file) == CALIBRATION
    CALIBRATION.save(file)
    assert json.loads(file.read_text()) == json.loads(TEXT)
    assert planner.load(file) == CALIBRATION


def test_numbers_of_numpy(tmp_path):
    file = tmp_path / "cluster.json"
    of_numpy = {"batch": np.int64(16), "slots": np.int32(2)}
    dataclasses.replace(CALIBRATION, **of_numpy).save(file)
    assert planner.load(file) == CALIBRATION


def test_what_cannot_be_read_is_not_written(tmp_path):
    first, second = CALIBRATION.devices
    for wrong, message in (
        (dataclasses.replace(first, update_s=math.nan), "NaN"),
        (dataclasses.replace(first, works={}), "the same layers for every"),
    ):
        wrong = dataclasses.replace(CALIBRATION, devices=(second, wrong))
        with pytest.raises(ValueError, match=message):
            wrong.save(tmp_path / "cluster.json")
    assert not list(tmp_path.iterdir())


def edit(content, path, value):
    *way, last = path
    for step in way:
        content = content[step]
    if value is None:
        del content[last]
    else:
        content[last] = value


WORK = ("devices", 0, "works", "3f0c")
PLACE = r"devices\[0\].works.3f0c"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("kind",), "plan", 'Expected a calibration: a file of .*"plan"'),
        (("format",), 3, "Received: format 3, .* Measure again"),
        (("model",), "", "a name at model"),
        (("batch",), 0, "a whole number, at least 1, at batch"),
        (("batch",), 2**63, "a whole number, at most 92.* at batch"),
        (("slots",), 10**30, "a whole number, at most 92.* at slots"),
        (("batch",), True, "a whole number at batch .* Received: true"),
        (("slots",), None, "no 'slots'"),
        (("facts", "tensorflow"), 2, "a string at facts.tensorflow"),
        (("devices",), [], "an array of at least 1 at devices"),
        (("devices", 0, "watts"), 5, r"devices\[0\] .* an unknown 'watts'"),
        (("devices", 1, "memory_bytes"), -1, r"devices\[1\].memory_bytes"),
        (("devices", 1, "memory_bytes"), None, "no 'memory_bytes'"),
        (("devices", 1, "works", "beef"), {}, r"at devices\[1\].works.beef"),
        ((*WORK, "on_shards"), None, f"{PLACE} .* no 'on_shards'"),
        ((*WORK, "on_shards"), [1.0], f"one backward at {PLACE}.on_shards"),
        ((*WORK, "samples"), [16, 4], f"more than .* at {PLACE}.samples"),
        ((*WORK, "samples"), [4, 4], f"more than .* at {PLACE}.samples"),
        ((*WORK, "samples", 0), 0.5, rf"whole .* at {PLACE}.samples\[0\]"),
        ((*WORK, "filters"), [], f"more than .* at {PLACE}.filters"),
        ((*WORK, "backward"), [1], f"2 numbers, .* at {PLACE}.backward"),
        ((*WORK, "forward_of"), [1], f"2 numbers, .* at {PLACE}.forward_of"),
        ((*WORK, "forward", 1), -1, rf"at least 0, at {PLACE}.forward\[1\]"),
        (("links", 0, "bytes_per_s"), 0, r"above 0, at links\[0\].bytes_per_s"),
        (("links", 0), None, "a link from a to b at links"),
    ],
)
def test_edited_file(path, value, message, tmp_path):
    content = copy.deepcopy(json.loads(TEXT))
    edit(content, path, value)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        planner.load(file)


def test_devices_have_the_same_layers(tmp_path):
    content = json.loads(TEXT)
    works = content["devices"][1]["works"]
    works["beef"] = works["3f0c"]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"same layers .* at devices\[1\]"):
        planner.load(file)
