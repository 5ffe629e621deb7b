"""What a plan that somebody else made would take."""

import dataclasses

import pytest
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of
from test_planner_model import choices
from test_planner_model import names

from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.planner import Costs
from tf_convpar.planner import balancing
from tf_convpar.planner import step
from tf_convpar.sharding import calls_of


@pytest.fixture
def planned():
    """A model, its calibration, and a plan that splits it both ways."""
    model = MODELS["chain"]()
    calibration = calibration_of(model, names(3), seed=1, rate=3e6)
    plan = planner.plan(model, calibration)
    assert set(map(plan.way, plan)) == {"samples", "filters"}
    return model, calibration, plan


def edited(plan, **changes):
    """With other numbers, or another split, of some layers."""
    allocation, splits = dict(plan.allocation), dict(plan.splits)
    for name, (split, shards) in changes.items():
        allocation[name], splits[name] = shards, split
    return dataclasses.replace(
        plan, allocation=allocation, splits=splits, prediction=None
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_of_the_planner_is_predicted_alike(name):
    model = MODELS[name]()
    calibration = calibration_of(model, names(3), seed=2, rate=1e7)
    plan = planner.plan(model, calibration)
    assert len(plan.used) > 1
    assert planner.plan_of(model, calibration, plan) == plan


@pytest.mark.parametrize("name", ["chain", "residual"])
def test_any_choice_is_predicted_as_its_step(name):
    model = MODELS[name]()
    graph = calls_of(model)
    calibration = calibration_of(model, names(2), speeds=[1, 0.6])
    *_, cut = balancing.cuts(graph, calibration)
    costs = Costs(graph, calibration, cut)
    plan = planner.plan(model, calibration)
    for choice in list(choices(costs))[::5]:
        if set(choice.values()) == {"chief"}:
            continue  # Nobody waits for anybody then.
        changes = {}
        for call in graph.convolutions:
            way = choice[call.name]
            filters = call.layer.filters
            shards = {
                "samples": cut.shares,
                "filters": cut.counts[filters],
                "chief": (filters, 0),
            }[way]
            split = "samples" if way == "samples" else "filters"
            changes[call.name] = split, shards
        found = planner.plan_of(model, calibration, edited(plan, **changes))
        assert found.prediction == step.predict(costs, choice)
        assert found.reason.startswith("As given: ")


def test_an_edited_file(planned, tmp_path):
    model, calibration, plan = planned
    layers = {name: plan.splits[name] for name in plan}
    shares = {
        name: (
            split,
            (2, 3, 7) if split == "samples" else plan.allocation[name],
        )
        for name, split in layers.items()
    }
    edited(plan, **shares).save(tmp_path / "plan.json")
    read = plans.load(tmp_path / "plan.json")
    found = planner.plan_of(model, calibration, read)
    assert found.prediction.step_s > plan.prediction.step_s
    assert found.allocation == read.allocation
    assert found.best_single == plan.best_single


def test_another_split_is_another_plan(planned, tmp_path):
    """Numbers alone do not say whether a prediction still holds."""
    _, _, plan = planned
    name = next(n for n in plan if sum(plan.allocation[n]) == 16)
    other = "samples" if plan.splits[name] == "filters" else "filters"
    splits = dict(plan.splits) | {name: other}
    dataclasses.replace(plan, splits=splits).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    plan.save(tmp_path / "plan.json")
    kept = (tmp_path / "plan.json").read_text()
    of = text[text.index('"of": "') :][:30], kept[kept.index('"of": "') :][:30]
    assert of[0] != of[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "conv2d": ("samples", (6, 6, 0)),
                "conv2d_1": ("samples", (5, 7, 0)),
            },
            r"\[6, 6, 0\] for 'conv2d', \[5, 7, 0\] for 'conv2d_1'",
        ),
        (
            {
                "conv2d_1": ("filters", (8, 8, 0)),
                "conv2d_2": ("filters", (9, 7, 0)),
            },
            r"16 kernels to be cut alike.*\[8, 8, 0\].*\[9, 7, 0\]",
        ),
        (
            {"conv2d": ("samples", (6, 6, 6))},
            r"12 samples in layer 'conv2d'. Received: \[6, 6, 6\], which sum",
        ),
        (
            {"conv2d": ("filters", (6, 6, 6))},
            "8 kernels in layer 'conv2d'",
        ),
    ],
)
def test_numbers_that_cannot_be(planned, changes, message):
    model, calibration, plan = planned
    with pytest.raises(ValueError, match=message):
        planner.plan_of(model, calibration, edited(plan, **changes))


def test_all_on_the_chief_is_one_device(planned):
    model, calibration, plan = planned
    changes = {
        name: ("filters", (call.layer.filters, 0, 0))
        for call in calls_of(model).convolutions
        for name in [call.name]
    }
    found = planner.plan_of(model, calibration, edited(plan, **changes))
    alone = found.single_s[names(3)[0]]
    assert found.prediction.step_s == pytest.approx(alone)


def test_plans_of_something_else(planned):
    model, calibration, plan = planned
    other = MODELS["residual"]()
    with pytest.raises(ValueError, match="Expected a calibration of"):
        planner.plan_of(other, calibration, plan)
    with pytest.raises(ValueError, match="Expected a plan of"):
        planner.plan_of(
            model, calibration, dataclasses.replace(plan, fingerprint="x")
        )
    with pytest.raises(ValueError, match="the calibration's devices"):
        planner.plan_of(
            model,
            calibration,
            dataclasses.replace(plan, devices=("a", "b", "c")),
        )
    allocation = dict(list(plan.allocation.items())[1:])
    with pytest.raises(ValueError, match=r"without \['conv2d'\]"):
        planner.plan_of(
            model, calibration, dataclasses.replace(plan, allocation=allocation)
        )


def test_a_plan_that_does_not_fit(planned):
    model, calibration, plan = planned
    chief, worker, last = calibration.devices
    small = dataclasses.replace(worker, memory_bytes=1000)
    calibration = dataclasses.replace(calibration, devices=(chief, small, last))
    with pytest.raises(ValueError, match="has 1000 bytes, and would need"):
        planner.plan_of(model, calibration, plan)
