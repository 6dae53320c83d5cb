"""Tables of numbers."""

from fedgen.experiments.engine.study import make_table


def test_cells_are_shown_by_what_they_are():
    table = make_table(
        "a [b]", ("score", "x"), [["FID", 1.23456], None, ["KID", None], ["n", 12345]], digits=3, names=("score",)
    )
    assert list(table.columns[1].cells) == ["1.23", "-", "12345"]
    assert [column.justify for column in table.columns] == ["left", "right"]
    assert table.rows[0].end_section
    assert table.title == "a \\[b]"
