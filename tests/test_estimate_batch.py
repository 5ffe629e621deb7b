"""The largest and the best mini-batch."""

import itertools
import json

import keras
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tf_convpar.papers import estimate
from tf_convpar.papers.estimate import Option
from tf_convpar.papers.estimate import best_batch
from tf_convpar.papers.estimate import choose_algorithms
from tf_convpar.papers.estimate import largest_batch
from tf_convpar.papers.estimate.memory import Step

MIB = 2**20


@st.composite
def options(draw):
    """Passes with algorithms; whole times, so that ties are common."""
    passes = draw(st.integers(1, 4))
    return [
        [
            Option(f"{k}/{i}", time * 1e-3, size)
            for i, (time, size) in enumerate(
                draw(
                    st.lists(
                        st.tuples(st.integers(0, 30), st.integers(0, 2000)),
                        min_size=1,
                        max_size=4,
                    )
                )
            )
        ]
        for k in range(passes)
    ]


def time_of(chosen):
    return sum(option.time_s for option in chosen)


def size_of(chosen, shared):
    sizes = [option.workspace_bytes for option in chosen]
    return max(sizes) if shared else sum(sizes)


@settings(max_examples=400, deadline=None)
@given(options(), st.integers(0, 5000), st.booleans())
def test_no_choice_is_faster(candidates, budget, shared):
    fitting = [
        chosen
        for chosen in itertools.product(*candidates)
        if size_of(chosen, shared) <= budget
    ]
    if not fitting:
        with pytest.raises(ValueError, match=f"Received: {budget}"):
            choose_algorithms(candidates, budget, shared)
        return
    found = choose_algorithms(candidates, budget, shared)
    for option, of in zip(found, candidates, strict=True):
        assert option in of
    assert size_of(found, shared) <= budget
    best = min(map(time_of, fitting))
    assert time_of(found) == pytest.approx(best, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(10**9, 10**11),
    st.integers(2, 6),
    st.integers(1, 3),
)
def test_not_one_byte_over_a_large_budget(budget, passes, over):
    # All but one byte fits; solvers have tolerances of a millionth.
    share = budget // passes
    slow = [Option("direct", 2e-3, 0)] * passes
    fast = [Option("fft", 1e-3, share)] * (passes - 1)
    fast.append(Option("fft", 1e-3, budget - share * (passes - 1) + over))
    candidates = [list(pair) for pair in zip(slow, fast, strict=True)]
    found = choose_algorithms(candidates, budget, shared=False)
    assert size_of(found, shared=False) <= budget
    assert [option.name for option in found].count("fft") == passes - 1


def test_literal_and_shared():
    direct, fft = Option("direct", 2e-3, 0), Option("fft:10", 1e-3, 40 * MIB)
    candidates = [[direct, fft]] * 2
    assert choose_algorithms(candidates, 64 * MIB) == [fft, fft]
    chosen = choose_algorithms(candidates, 64 * MIB, shared=False)
    assert sorted(o.name for o in chosen) == ["direct", "fft:10"]
    assert choose_algorithms([], 0) == []


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([[Option("a", 1.0, 1)], []], "none for pass 1"),
        ([[Option("a", float("nan"), 1)]], "nan"),
        ([[Option("a", -1.0, 1)]], "-1.0"),
        ([[Option("a", 1.0, -1)]], "workspace_bytes=-1"),
    ],
)
def test_candidates_that_are_none(candidates, message):
    with pytest.raises(ValueError, match=f"Expected .*Received.*{message}"):
        choose_algorithms(candidates, 100)


def small(size=24, filters=16):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((size, size, 3)),
            layers.Conv2D(filters, 3, activation="relu", name="first"),
            layers.Conv2D(filters, 3, activation="relu", name="second"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


@pytest.fixture(scope="module")
def step():
    return Step(small())


@settings(max_examples=30, deadline=None)
@given(memory=st.integers(2 * MIB, 500 * MIB))
def test_one_image_more_does_not_fit(step, memory):
    batch = largest_batch(step, memory)
    assert step.memory(batch).peak_bytes <= memory
    assert step.memory(batch + 1).peak_bytes > memory


def test_a_workspace_leaves_less_for_images():
    model = small()
    step = Step(model)
    direct = largest_batch(step, 64 * MIB)
    gemm = largest_batch(step, 64 * MIB, algorithm="gemm")
    assert 1 < gemm < direct
    assert step.memory(gemm, "gemm").peak_bytes <= 64 * MIB
    assert step.memory(gemm + 1, "gemm").peak_bytes > 64 * MIB


def test_slots_leave_less_for_images():
    model = small()
    plain, adam = Step(model), Step(model, "adam")
    assert largest_batch(adam, 8 * MIB) < largest_batch(plain, 8 * MIB)


def test_memory_that_is_none(step):
    with pytest.raises(ValueError, match="at least .* bytes, for a batch of"):
        largest_batch(step, 1000)
    with pytest.raises(ValueError, match="`memory_bytes` .*Received: -1"):
        largest_batch(step, -1)
    with pytest.raises(ValueError, match="'auto' for layer"):
        largest_batch(step, MIB, algorithm="auto")


def test_best_batch_of_recorded_times(tmp_path, monkeypatch):
    """Times come from the cache's file, and so from no clock."""
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    model = small(32, 32)
    step = Step(model)
    memory = step.peak_bytes(8) + 8 * MIB
    rows = best_batch(step, memory, (2, 8, 8, 64))
    assert {row.batch for row in rows} == {2, 8, 64}
    # A second time everything is known; then we decide what is.
    file = tmp_path / "algorithms.json"
    content = json.loads(file.read_text())
    for key, record in content["records"].items():
        batch = int(key.partition("batch ")[2].partition(" ")[0])
        for candidate in record["candidates"]:
            if candidate["dropped"] is None and candidate["time_ms"]:
                # An algorithm's time is a tenth of direct's.
                direct = candidate["name"] == "direct"
                candidate["time_ms"] = batch**1.5 * (1.0 if direct else 0.1)
    file.write_text(json.dumps(content))
    _forget()
    by_time = best_batch(step, memory, (2, 8, 64))
    # Time grows faster than the batch: the smallest is the best.
    assert [row.batch for row in by_time] == [2, 8, 64]
    best, second, last = by_time
    assert last.step_s is None and last.left_bytes < 0
    assert best.memory_bytes == step.peak_bytes(2)
    assert best.left_bytes == memory - best.memory_bytes
    assert set(best.choices) == {"second"}
    for row in (best, second):
        names = [n for c in row.choices.values() for n in c.values()]
        assert names and "direct" not in names
        assert row.step_s == pytest.approx(len(names) * row.batch**1.5 * 0.1e-3)
        assert 0 < row.workspace_bytes <= row.left_bytes
    # Of whole steps the choice saves what it saves of the convolutions.
    whole = best_batch(step, memory, (2, 8), direct_step_s=lambda n: 10.0 / n)
    assert whole[0].batch == 8
    passes = len([n for c in second.choices.values() for n in c])
    saved = passes * 0.9e-3 * 8**1.5
    assert whole[0].step_s == pytest.approx(10.0 / 8 - saved)
    # Without room for a workspace only direct is left.
    exact = best_batch(step, step.peak_bytes(8), (8,))[0]
    assert exact.left_bytes == exact.workspace_bytes == 0
    names = [n for c in exact.choices.values() for n in c.values()]
    assert set(names) == {"direct"}


def _forget():
    from tf_convpar.algorithms import cache

    cache.forget()


def test_no_batch_fits(step):
    with pytest.raises(ValueError, match="smallest of the batches .*4, 8"):
        best_batch(step, 1000, (8, 4))
    with pytest.raises(ValueError, match="`batch` .*Received: 0"):
        best_batch(step, MIB, (0,))
    assert max(estimate.BATCHES) == 256
