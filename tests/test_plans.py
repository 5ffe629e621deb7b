"""Tables and pictures of plans of whole models."""

import dataclasses
import functools
import io
import json
import operator

import pytest
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of
from rich.console import Console
from test_planner_model import choices
from test_planner_model import names

from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.planner import Costs
from tf_convpar.planner import balancing
from tf_convpar.planner import step
from tf_convpar.plans import _picture
from tf_convpar.sharding import calls_of


@pytest.fixture(scope="module")
def plan():
    """By samples and by filters, on three devices."""
    model = MODELS["chain"]()
    calibration = calibration_of(model, names(3), seed=1, rate=3e6)
    found = planner.plan(model, calibration)
    assert set(map(found.way, found)) == {"samples", "filters"}
    return found


# As it was written before its form was that of dataclasses.
TEXT = """{
 "kind": "plan",
 "format": 2,
 "fingerprint": "f00d",
 "reason": "It is faster.",
 "devices": [
  {"name": "a", "memory_bytes": 1000, "single_s": 2.5},
  {"name": "b", "memory_bytes": null, "single_s": null}
 ],
 "layers": [
  {
   "name": "one",
   "split": "samples",
   "of": 4,
   "shards": [3, 1],
   "bytes": 100,
   "bytes_per_shard": 300
  },
  {
   "name": "two",
   "split": "filters",
   "of": 16,
   "shards": [0, 16],
   "bytes": 5000,
   "bytes_per_shard": 0
  }
 ],
 "equal_s": null,
 "prediction": {
  "of": "ac5fe003ba0b7918",
  "step_s": 1,
  "sent_bytes": {"a -> b": 64},
  "spans": [
   {
    "where": "a -> b",
    "what": "send",
    "layer": "two",
    "phase": "forward",
    "start": 0.0,
    "end": 0.25
   }
  ]
 }
}
"""
PLAN = plans.Plan(
    allocation={"one": (3, 1), "two": (0, 16)},
    devices=("a", "b"),
    prediction=plans.Prediction(
        1.0,
        (plans.PredictedSpan("a -> b", "send", "two", "forward", 0.0, 0.25),),
        {"a -> b": 64},
    ),
    single_s={"a": 2.5},
    equal_s=None,
    reason="It is faster.",
    fingerprint="f00d",
    memory_bytes=(1000, None),
    layer_bytes={"one": (100, 300), "two": (5000, 0)},
    splits={"one": "samples", "two": "filters"},
)


def test_files_that_are_already_written(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(TEXT)
    assert plans.load(file) == PLAN
    PLAN.save(file)
    assert json.loads(file.read_text()) == json.loads(TEXT) == PLAN.to_dict()
    assert plans.load(file) == PLAN


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("layers", 0, "split"), "rows", r"'samples' at layers\[0\].split"),
        (("layers", 0, "of"), 0, r"at least 1, at layers\[0\].of"),
        (("layers", 0, "shards"), [1, 1], "2 numbers of samples"),
        (("layers", 1, "shards"), [1, 15], "a has 1000 bytes, .* need 6000"),
        (("devices",), [], "an array of at least 1 at devices"),
        (("devices", 1, "name"), "a", r"distinct .* at devices\[1\].name"),
        (("devices", 0, "single_s"), -1, r"devices\[0\].single_s"),
        (("equal_s",), "1", "a number at equal_s"),
        (("prediction", "spans", 0, "start"), 1, r"spans\[0\].end .*: 0.25"),
        (("prediction", "sent_bytes", "a -> b"), 0.5,
         r'sent_bytes\["a -> b"\] of'),
        (("prediction", "more"), 1, "at prediction of .* unknown 'more'"),
    ],
)  # fmt: skip
def test_edited_file(path, value, message, tmp_path):
    content = json.loads(TEXT)
    *way, last = path
    functools.reduce(operator.getitem, way, content)[last] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        plans.load(file)


def test_plan_of_no_convolutions(tmp_path):
    """Models without any are planned, and their plans kept, like others."""
    plan = dataclasses.replace(PLAN, allocation={}, layer_bytes={}, splits={})
    plan.save(tmp_path / "plan.json")
    assert plans.load(tmp_path / "plan.json") == plan


def test_what_cannot_be_read_is_not_written(tmp_path):
    wrong = dataclasses.replace(PLAN, equal_s=float("nan"))
    with pytest.raises(ValueError, match="at equal_s of the plan"):
        wrong.save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def show(plan):
    console = Console(file=io.StringIO(), width=120)
    console.print(plans.table(plan))
    return console.file.getvalue()


def test_table(plan):
    text = show(plan)
    assert text.startswith("Kernels, or samples, of each device")
    for layer, counts in plan.allocation.items():
        row = next(r for r in text.splitlines() if f" {layer} " in r)
        cells = [cell.strip() for cell in row.split("│")[1:-1]]
        shown = [str(n) if n else "-" for n in counts]
        assert cells == [layer, plan.way(layer), str(sum(counts)), *shown]
    assert "Equal split" not in text


def test_table_of_many_layers(plan):
    """Neighbours that are cut alike share a row, and nobody else."""
    alike = {f"a{i}": (5, 4, 3) for i in range(20)}
    others = {"b0": (4, 5, 3), "b1": (12, 0, 0), "b2": (4, 5, 3)}
    again = {f"c{i}": (4, 5, 3) for i in range(3)}
    allocation = alike | others | again
    many = dataclasses.replace(
        plan,
        allocation=allocation,
        splits=dict.fromkeys(allocation, "samples") | {"c2": "filters"},
    )
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in show(many).splitlines()
        if "│" in line
    ]
    assert [row[:2] for row in rows] == [
        ["a0", "samples"],
        ["to a19, 20 layers", ""],
        ["b0", "samples"],
        ["b1", "chief"],
        ["b2", "samples"],
        ["to c1, 3 layers", ""],
        ["c2", "filters"],
    ]
    assert rows[0][2:] == ["12", "5", "4", "3"]


def test_rows_of_the_picture(plan):
    rows = _picture._rows(plan, plan.prediction)
    labels = [row.label for row in rows]
    assert "from worker 0 CPU:0 to worker 1 CPU:0" in labels
    assert "from worker 1 CPU:0 to worker 0 CPU:0" in labels
    # Every link on which anything is sent is there, once.
    links = [row.where for row in rows if row.link]
    assert sorted(links) == sorted(plan.prediction.sent_bytes)


def test_strip_of_the_picture(plan):
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    _picture._layers(axes, plan)
    drawn = {}
    for bars in axes.collections:
        colour = (
            to_hex(bars.get_facecolor()[0]).upper()
            if len(bars.get_paths())
            else None
        )
        for path in bars.get_paths():
            drawn[int(path.vertices[:, 0].min())] = colour
    ways = list(map(plan.way, plan))
    assert [drawn[i] for i in range(len(ways))] == [
        _picture._WAYS[way] for way in ways
    ]


@pytest.mark.parametrize("name", ["plan.png", "plan.svg"])
def test_picture(plan, name, tmp_path):
    plans.draw(plan, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


@pytest.mark.parametrize("name", MODELS)
def test_spans_are_within_the_step_and_on_links_in_use(name):
    model = MODELS[name]()
    graph = calls_of(model)
    calibration = calibration_of(model, names(3), rate=1e6)
    *_, cut = balancing.cuts(graph, calibration)
    costs = Costs(graph, calibration, cut)
    for choice in list(choices(costs))[::7]:
        found = step.predict(costs, choice)
        for span in found.spans:
            assert -1e-9 <= span.start < span.end <= found.step_s + 1e-9
        used = {s.where for s in found.spans if s.what == "send"}
        assert used == set(found.sent_bytes)
        # A device does one thing after the other.
        for device in cut.devices:
            own = sorted(
                (s.start, s.end) for s in found.spans if s.where == device
            )
            for (_, end), (start, _) in zip(own, own[1:], strict=False):
                assert end <= start + 1e-9


def test_transfers_that_hide_take_as_long_as_they_do():
    """Kernels and their gradients: all of them are drawn, in whole."""
    model = MODELS["chain"]()
    graph = calls_of(model)
    calibration = calibration_of(model, names(2), rate=1e5)
    *_, cut = balancing.cuts(graph, calibration)
    costs = Costs(graph, calibration, cut)
    choice = {call.name: "samples" for call in graph.convolutions}
    found = step.predict(costs, choice)
    for i, call in enumerate(graph.calls):
        if call.splits:
            cost = costs.of[i]["samples"]
            for phase, expected in (
                ("forward", cost.early),
                ("backward", cost.late),
            ):
                seconds = sum(
                    s.end - s.start
                    for s in found.spans
                    if (s.layer, s.phase) == (call.name, phase)
                    and s.where == " -> ".join(names(2))
                )
                # Feature maps' gradients travel beside.
                assert seconds >= expected * (1 - 1e-9) > 0
