"""The page about modules by others names every one that is tested, with a deviation that may be."""

from tests.foreign.table import GROUPS, PAGE, row

CASES = [case for cases in GROUPS.values() for case in cases]
REMEDY = "write the page anew: python -m tests.foreign.table"


def lines() -> list[list[str]]:
    """The page's rows, split off their deviations."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| Module")]
    return [line.removesuffix(" |").rsplit(" | ", 1) for line in rows]


def test_the_page_has_a_line_for_every_case_as_it_is() -> None:
    assert [line for line, _ in lines()] == [row(case, 0.0).rsplit(" | ", 1)[0] for case in CASES], REMEDY


def test_the_page_tells_of_no_deviation_beyond_rounding() -> None:
    tolerances = dict(zip((row(case, 0.0).rsplit(" | ", 1)[0] for case in CASES), (case.tolerance for case in CASES)))
    beyond = [(line, shown) for line, shown in lines() if not is_within(shown, tolerances.get(line, 0.0))]
    assert not beyond, REMEDY


def is_within(shown: str, tolerance: float) -> bool:
    """Whether a cell is a number, and small enough; a case that raised has the error's name in it."""
    try:
        return float(shown) <= tolerance
    except ValueError:
        return False


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25
