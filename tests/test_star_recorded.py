"""Steps and plans of the star are what they were."""

import json
import numbers

import pytest
import star_recorded

RECORDED = json.loads(star_recorded.FILE.read_text())


def check(found, expected, where):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            check(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            check(found[i], value, f"{where}[{i}]")
    elif isinstance(expected, numbers.Real):
        assert found == pytest.approx(expected, rel=1e-9, abs=0), where
    else:
        assert found == expected, where


@pytest.mark.parametrize("seed", star_recorded.SEEDS)
def test_random_calibrations(seed):
    check(star_recorded.of_seed(seed), RECORDED["seeds"][seed], seed)


@pytest.mark.parametrize("name", star_recorded.PAPERS)
def test_clusters_of_the_papers(name):
    check(star_recorded.of_papers(name), RECORDED["papers"][name], name)
