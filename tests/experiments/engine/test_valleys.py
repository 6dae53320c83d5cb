"""Where curves are least."""

import pytest

from fedgen.experiments.engine.rankings import valley, valley_line

AT = (0.1, 0.5, 1.0)


def found(*values):
    return valley(values, AT, lambda end, place: (values[end] - values[place], 0.14))


def test_a_valley_lies_inside_if_both_ends_are_higher_beyond_their_errors():
    inside = found(2.0, 1.0, 3.0)
    assert (inside["least at"], inside["place"], inside["least"], inside["inside"]) == (0.5, 1, 1.0, True)
    assert inside["right"] == [2.0, 0.14]
    rising = found(1.0, 2.0, 3.0)
    assert (rising["least at"], rising["left"][0], rising["inside"]) == (0.1, 0.0, False)
    assert not found(1.2, 1.0, 3.0)["inside"]  # within 1.96 errors of 0.14


@pytest.mark.parametrize(("values", "said"), [((2.0, 1.0, 3.0), "as expected"), ((1.0, 2.0, 3.0), "not seen")])
def test_it_is_said_with_the_ends(values, said):
    line = valley_line("FID: avg", found(*values), "tau", "!")
    assert line.startswith(f"{said}: FID: avg falls and rises, least at tau = 0.")
    assert line.endswith(f"its ends {values[0] - 1:.4g} ± 0.14 and 2 ± 0.14 above!")
