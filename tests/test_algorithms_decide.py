"""What a race decides by its times, and how long it is worth."""

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import named
from tf_convpar.algorithms import race

GEOMETRY = Geometry((14, 14), 32, 64, window=(3, 3), padding="same", batch=3)
CPU = "/device:CPU:0"

TIMES = st.lists(st.floats(1e-6, 10), min_size=3, max_size=9)


@st.composite
def raced(draw):
    """Times of direct and of others, some of which were left behind."""
    direct = draw(TIMES)
    others = draw(
        st.lists(
            st.lists(
                st.floats(0.3, 2), min_size=len(direct), max_size=len(direct)
            ).flatmap(
                lambda ratios: st.integers(1, len(direct)).map(
                    lambda n: ratios[:n]
                )
            ),
            max_size=4,
        )
    )
    times = {"direct": direct}
    for i, ratios in enumerate(others):
        times[f"fft:{i}"] = [
            a * b for a, b in zip(ratios, direct, strict=False)
        ]
    return times


@hypothesis.given(raced())
def test_decided_only_with_the_margin(times):
    chosen = algorithms.decide(times)
    if chosen == "direct":
        return
    own = times[chosen]
    ratios = sorted(algorithms.round_ratios(own, times["direct"]))
    assert len(own) >= 3
    assert race.median(ratios) <= 1 - algorithms.MARGIN
    # Slower than direct in fewer than a quarter of the rounds.
    assert sum(r >= 1 for r in ratios) < max(1, len(ratios) / 4)


@hypothesis.given(raced(), st.randoms())
def test_decision_knows_no_order_of_candidates(times, random):
    shuffled = list(times)
    random.shuffle(shuffled)
    a = algorithms.decide(times)
    b = algorithms.decide({name: times[name] for name in shuffled})

    def ratio(name):
        return race.median(
            algorithms.round_ratios(times[name], times["direct"])
        )

    assert ratio(a) == pytest.approx(ratio(b))


@hypothesis.given(raced(), st.integers(-9, 9))
def test_decision_knows_no_unit(times, power):
    # Powers of two change no digit of a ratio.
    scaled = {k: [t * 2.0**power for t in v] for k, v in times.items()}
    assert algorithms.decide(scaled) == algorithms.decide(times)


@hypothesis.given(TIMES)
def test_a_clear_winner_wins(times):
    halved = [t / 2 for t in times]
    assert algorithms.decide({"direct": times, "fft:8": halved}) == "fft:8"
    assert algorithms.decide({"direct": halved, "fft:8": times}) == "direct"


def test_direct_does_not_lose_to_itself():
    direct = named("direct", GEOMETRY)
    times = race.race(
        [direct, direct],
        GEOMETRY,
        FORWARD,
        CPU,
        0.2,
        lambda text: None,
        lambda times: True,
    )
    decided = algorithms.decide({"direct": times[0], "same": times[1]})
    assert decided == "direct"


@pytest.mark.parametrize(
    ("own", "budgets"),
    [
        # Far ahead in five rounds, or in four; farther in three, or in two.
        ([0.6] * 5, 0.0),
        ([0.6] * 4, 1.0),
        ([0.5] * 3, 0.0),
        ([0.5] * 2, 1.0),
        # Nowhere near: there is nothing to find out.
        ([1.0, 1.0, 0.95, 1.0, 1.0], 0.0),
        ([0.95] * 5, 0.0),
        # Near in one round, where others may have been held up.
        ([1.0, 1.0, 0.6, 1.0, 1.0], 1.0),
        ([1.0] * 4, 1.0),
        # Ahead in some, or surely ahead by a little.
        ([0.9, 0.9, 1.0, 1.0, 1.0], 1.0),
        ([0.9] * 5, 1.0),
        # By the median, and not surely.
        ([0.9, 0.9, 0.9, 1.2, 1.2], 3.0),
    ],
)
def test_how_long_a_race_is_worth(own, budgets):
    assert algorithms.budget_factor([[1.0] * len(own), own]) == budgets
    # One that was left behind in the second round says nothing more.
    if budgets:
        assert (
            algorithms.budget_factor([[1.0] * len(own), own, [2.5, 2.5]])
            == budgets
        )
