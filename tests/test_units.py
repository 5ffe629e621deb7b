"""Numbers as people read them."""

import pytest

from tf_convpar.units import seconds_text
from tf_convpar.units import three_digits


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0123456, "0.0123"),
        (45.67, "45.7"),
        (100.4, "100"),
        # Three digits of these are 1e+03 and 1.23e+04.
        (999.7, "1000"),
        (12345.6, "12346"),
    ],
)
def test_numbers_have_three_digits_or_all_before_the_point(number, text):
    assert three_digits(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.234, "1.23 s"),
        (0.9997, "1000 ms"),
        (0.0456, "45.6 ms"),
        (2e-6, "0.002 ms"),
    ],
)
def test_seconds_have_their_unit(seconds, text):
    assert seconds_text(seconds) == text
