"""Numbers by one rule: an error to two digits, the value to the error's last, nothing scientific of usual size."""

import pytest

from fedgen.evaluation.records import say_number

SAID = [
    (12.3456, 0.0612, "12.346±0.061"),
    (12.3456, 0.0996, "12.35±0.10"),
    (0.64721, 0.0027, "0.6472±0.0027"),
    (0.00423, 0.00031, "0.00423±0.00031"),
    (-0.00001, 0.0031, "0.0000±0.0031"),
    (1234.4, 31.0, "1234±31"),
    (12345.6, 184.0, "12346±184"),
    (3.0, 0.0, "3"),
    (1.3, float("nan"), "1.3"),
    (0.0, 0.1, "0.00±0.10"),
    (2.84e-14, 1.23e-14, "2.84e-14±1.2e-14"),
    (12.3456, None, "12.35"),
    (0.5, None, "0.5"),
    (999.96, None, "1000"),
    (2399.4, None, "2399"),
    (123456.7, None, "123457"),
    (0.0001234, None, "0.0001234"),
    (0.0, None, "0"),
]


@pytest.mark.parametrize(("value", "error", "said"), SAID)
def test_a_value_has_the_digits_that_its_error_leaves(value, error, said):
    assert say_number(value, error) == said


def test_what_is_no_number_is_said_as_it_is():
    assert [say_number(float(text), 0.1) for text in ("inf", "-inf", "nan")] == ["inf", "-inf", "nan"]
