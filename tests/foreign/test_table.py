"""The page about modules by others names every one that is tested."""

from tests.foreign.table import GROUPS, PAGE, row

CASES = [case for cases in GROUPS.values() for case in cases]


def test_the_page_has_a_line_for_every_case_as_it_is() -> None:
    written = [line.rsplit(" | ", 1)[0] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    expected = [row(case, 0.0).rsplit(" | ", 1)[0] for case in CASES]
    assert [line for line in written if not line.startswith("| Module")] == expected, "python -m tests.foreign.table"


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25
