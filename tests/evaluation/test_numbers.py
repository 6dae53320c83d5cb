"""Numbers by one rule: an error to two digits, the value to the error's last, nothing scientific of usual size."""

import pytest

from fedgen.evaluation.records import say_error, say_interval, say_number

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
    (2.84e-14, 1.23e-14, "2.8e-14±1.2e-14"),
    (-6.66e-05, 3.61e-05, "-6.7e-05±3.6e-05"),
    (9.27e-05, 4.4e-07, "9.270e-05±4.4e-07"),
    (1.2e-06, 3.6e-05, "1e-06±3.6e-05"),
    (0.0, 7.4e-08, "0±7.4e-08"),
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


def test_an_error_alone_has_two_digits():
    assert [say_error(one) for one in (2.0, 0.5, 0.0499, 0.0003, 31.4, 5e-05, 0.0)] == [
        "2.0", "0.50", "0.050", "0.00030", "31", "5.0e-05", "0"
    ]  # fmt: skip


def test_an_interval_has_two_digits_of_its_half():
    assert say_interval(1.8, 2.2) == "1.80 to 2.20"
    assert say_interval(-0.00108, -0.0000004, sign="+") == "-0.00108 to -0.00000"  # 0 is not inside
    assert say_interval(-0.00108, 0.0000004, sign="+") == "-0.00108 to +0.00000"
    assert say_interval(1234.56781, 1234.56789) == "1234.567810 to 1234.567890"
    assert say_interval(1e-6, 3e-6) == "1e-06 to 3e-06"
