"""What experiments leave."""

import json

import pytest

from fedgen.experiments.engine.study import make_table, read_results, save_results


def test_numbers_are_stored_with_settings_and_versions_and_found_by_settings(tmp_path):
    path = save_results(tmp_path, "toy", {"seed": 1, "sizes": (1, 2)}, {"value": [1.5]})
    stored = json.loads(path.read_text())
    assert stored["experiment"] == "toy"
    assert {"python", "torch", "fedgen"} <= set(stored["versions"])
    assert read_results(tmp_path, {"seed": 1, "sizes": (1, 2)}) == {"value": [1.5]}
    assert read_results(tmp_path / "elsewhere", {"seed": 1}) is None


def test_results_of_other_settings_are_kept_and_the_difference_named(tmp_path):
    save_results(tmp_path, "toy", {"seed": 1, "k": 5}, {"value": 1})
    with pytest.raises(ValueError, match="settings"):
        read_results(tmp_path, {"seed": 2, "k": 5})


def test_an_option_that_came_later_counts_as_off(tmp_path):
    save_results(tmp_path, "toy", {"k": 0}, {"value": 1})
    assert read_results(tmp_path, {"k": 0, "seed": 0, "quick": False, "weights": None}) == {"value": 1}
    for now in ({"k": 0, "quick": True}, {"k": None}):
        with pytest.raises(ValueError, match="settings"):
            read_results(tmp_path, now)


def test_a_table_has_rows_sections_and_notes():
    table = make_table("title", ("name", "value"), [("a", "1"), (), ("b", "2")], ["one", "two"])
    assert [list(column.cells) for column in table.columns] == [["a", "b"], ["1", "2"]]
    assert [row.end_section for row in table.rows] == [True, False]
    assert (table.title, table.caption) == ("title", "one\ntwo")
    assert [column.justify for column in table.columns] == ["left", "right"]


def test_a_long_setting_is_named_in_short(tmp_path):
    save_results(tmp_path, "toy", {"table": {"fid": [str(row) for row in range(100)]}}, {})
    with pytest.raises(ValueError, match="table") as error:
        read_results(tmp_path, {"table": None})
    assert len(str(error.value).splitlines()[-1]) < 120


@pytest.mark.parametrize(
    "text",
    ["{", '{"settings": {}}', "[]", "\udcff", '{"settings": [], "numbers": {}}', '{"settings": {}, "numbers": 1}'],
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "results.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match="results"):
        read_results(tmp_path, {})
