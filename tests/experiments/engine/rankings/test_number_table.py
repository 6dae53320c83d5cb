"""Tables of numbers."""

from fedgen.experiments.engine.rankings.number_table import number_table


def test_cells_are_shown_by_what_they_are():
    table = number_table("a [b]", ("score", "x"), [["FID", 1.23456], None, ["KID", None], ["n", 12345]], digits=3)
    assert list(table.columns[1].cells) == ["1.23", "-", "12345"]
    assert [column.justify for column in table.columns] == ["left", "right"]
    assert table.rows[0].end_section
    assert table.title == "a \\[b]"
