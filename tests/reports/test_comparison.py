"""Several runs side by side, paired by their seeds."""

from dataclasses import replace
from pathlib import Path

from fedgen.reports.contents import Contents, read_contents
from fedgen.reports.side_by_side import arms_of, axes_of, best_table, chart_rows, settings_table, side_by_side
from tests.reports.folders import make_records, write_run


def change(folder, old, new):
    path = folder / "recipe.yaml"
    path.write_text(path.read_text().replace(old, new))


def four_runs(tmp_path):
    """Two recipes of two seeds; the second's last fid_all is 0.5 and 1.5 more than the first's 3."""
    runs = []
    for name, lr, more in (("a", "0.1", (0.0, 0.0)), ("b", "0.2", (0.5, 1.5))):
        for seed in (0, 1):
            folder = write_run(tmp_path / f"{name}{seed}", seed=seed, pictures=False)
            change(folder, "lr: 0.1", f"lr: {lr}")
            contents = read_contents(folder)
            contents.records = [
                type(r)(**{**vars(r), "value": r.value + more[seed]}) if r.is_model else r for r in make_records()
            ]
            runs.append(contents)
    return runs


def test_runs_of_one_recipe_are_an_arm_named_by_what_differs(tmp_path):
    arms = arms_of(four_runs(tmp_path))
    assert arms == [("lr=0.1", {0: 0, 1: 1}), ("lr=0.2", {0: 2, 1: 3})]


def compared(runs):
    return side_by_side(runs, axes_of(runs))


def pairs_of(runs):
    headings, rows = compared(runs)["pairs"]
    return headings, {row[0]: row[1:] for row in rows}


def test_differences_are_paired_over_seeds_with_students_interval(tmp_path):
    runs = four_runs(tmp_path)
    headings, rows = pairs_of(runs)
    assert headings == ["column", "lr=0.2 minus lr=0.1 (2 seeds)"]
    # mean 1, deviation 1 / sqrt(2), Student's 12.706 of one degree: 12.706 * 0.7071 / sqrt(2) = 6.353
    assert rows["fid_all"] == ["+1.0 (-5.4 to +7.4)"]
    assert compared(runs)["sentences"] == [
        "lr=0.2 and lr=0.1 cannot be told apart: kid_all 4 and 3, difference +1.0 (95 %: -5.4 to +7.4)."
    ]


def test_of_one_seed_the_interval_is_of_the_generated_images(tmp_path):
    runs = four_runs(tmp_path)
    headings, rows = pairs_of([runs[0], runs[2]])
    assert headings == ["column", "b0 minus a0 (1 seed)"]
    assert rows["fid_all"] == ["+0.50 (-0.05 to +1.05)"]  # 1.96 * sqrt(0.2² + 0.2²) = 0.554
    assert compared([runs[0], runs[2]])["sentences"][-1].startswith("One seed:")
    runs[3].settings["seed_everything"] = 0
    assert compared([runs[0], runs[3]])["sentences"][0] == (
        "b1 is worse than a0: kid_all 4.5 and 3, difference +1.50 (95 %: +0.95 to +2.05)."
    )


def test_a_column_that_says_the_opposite_is_named(tmp_path):
    runs = four_runs(tmp_path)
    runs[2].records = [replace(r, value=r.value - 3) if r.score == "kid" and r.is_model else r for r in runs[2].records]
    said = compared([runs[0], runs[2]])["sentences"][0]
    assert said.startswith("b0 is better than a0: kid_all 0.5 and 3, difference -2.50")
    assert said.endswith(").")
    runs[2].records = [replace(r, value=r.value + 3) if r.score == "fid" and r.is_model else r for r in runs[2].records]
    assert compared([runs[0], runs[2]])["sentences"][0] == f"{said} By fid_all b0 is worse."


def test_what_does_not_compare_says_why(tmp_path):
    runs = four_runs(tmp_path)
    assert compared([runs[0], runs[3]])["sentences"] == ["b1 is not compared with a0: no common seed (1; 0)."]
    runs[2].records = make_records(num_generated=99)
    found = compared([runs[0], runs[2]])
    assert found["sentences"] == ["b0 is not compared with a0: clients, embedding or image counts differ."]
    assert found["pairs"] is None


def test_settings_that_differ_are_a_table(tmp_path):
    headings, rows = settings_table(four_runs(tmp_path)[1:3])
    assert headings == ["setting", "a1", "b0"]
    assert rows == [["seed_everything", "1", "0"], ["model.lr", "0.1", "0.2"]]
    assert settings_table(four_runs(tmp_path / "others")[:1])[1] == []


def test_settings_of_two_classes_are_not_compared_but_the_classes_are():
    runs = [Contents(n, Path(n), settings={"model": {"class_path": n, "init_args": {n: 1}}}) for n in "ab"]
    assert settings_table(runs)[1] == [["model.class_path", "a", "b"]]


def test_values_that_were_measured_otherwise_have_a_column_and_a_chart_of_their_own(tmp_path):
    runs = four_runs(tmp_path)[:3]
    runs[1].records = make_records(scores=("fid",), embedding="vgg16")
    runs[2].records = make_records(scores=("fid",), num_generated=2000)
    headings, rows = best_table(runs, axes_of(runs))
    own, other = "embedding pixels", "embedding vgg16"
    number = next(one.num_generated for one in runs[0].records if one.is_model)
    assert [name for name in headings if name.startswith("fid_all")] == [
        f"fid_all, {own}, {number:,} generated images",
        f"fid_all, {other}, {number:,} generated images",
        f"fid_all, {own}, 2,000 generated images",
    ]
    for place, row in enumerate(rows[:-1]):
        filled = [bool(cell) for name, cell in zip(headings, row) if name.startswith("fid_all")]
        assert filled == [column == place for column in range(3)]
    charts = [row for row in chart_rows(axes_of(runs)) if row["column"] == "fid_all"]
    assert [row["lines"] for row in charts] == [[[0, "fid_all"]], [[1, "fid_all"]], [[2, "fid_all"]]]


def test_a_second_embedding_of_one_run_stands_beside_the_first_of_another(tmp_path):
    """Columns are named by a run's first embedding; what compares is told by what was measured."""
    runs = four_runs(tmp_path)[:2]
    vgg16 = make_records(scores=("fid",), embedding="vgg16")
    runs[0].records = [*make_records(scores=("fid",)), *vgg16]
    runs[1].records = vgg16
    charts = {row["name"]: row["lines"] for row in chart_rows(axes_of(runs)) if row["column"] == "fid_all"}
    assert charts == {
        "fid_all, embedding pixels": [[0, "fid_all"]],
        "fid_all, embedding vgg16": [[0, "vgg16/fid_all"], [1, "fid_all"]],
    }


def test_stored_images_have_a_column_and_no_chart(tmp_path):
    runs = four_runs(tmp_path)[:2]
    runs[1].records = [replace(one, round=None, checkpoint=None) for one in make_records(rounds=(0,)) if one.is_model]
    headings, rows = best_table(runs, axes_of(runs))
    assert "fid_all" in headings
    assert rows[1][headings.index("fid_all")] == "9.00±0.40"
    assert all(place == 0 for row in chart_rows(axes_of(runs)) for place, _ in row["lines"])


def test_each_run_has_a_row_with_its_best_values_and_real_images_the_last(tmp_path):
    runs = four_runs(tmp_path)[:1]
    headings, rows = best_table(runs, axes_of(runs))
    assert headings == ["run", "seed", "last round", "fid_avg", "fid_all", "kid_avg", "kid_all"]
    assert rows[0][1:5] == ["0", "2", "25.00±0.40 (round 1)", "3.00±0.40"]
    assert rows[1][:5] == ["floor: real images", "", "", "2.00±0.40", "1.00±0.40"]
