"""Several runs side by side, paired by their seeds."""

from dataclasses import replace

from fedgen.reports.charts import arms_of, axes_of, chart_rows, paired_rows, summary_rows
from fedgen.reports.contents import read_contents
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


def test_differences_are_paired_over_seeds_with_students_interval(tmp_path):
    runs = four_runs(tmp_path)
    rows = {row[0]: row[1:] for row in paired_rows(runs)}
    # mean 1, deviation 1 / sqrt(2), Student's 12.706 of one degree: 12.706 * 0.7071 / sqrt(2) = 6.353
    assert rows["fid_all"] == ["lr=0.2 minus lr=0.1", "2", "+1", "-5.4 to +7.4; cannot be told from none"]
    one = {row[0]: row[1:] for row in paired_rows([runs[0], runs[2]])}
    # 1.96 * sqrt(0.2² + 0.2²) = 0.554
    assert one["fid_all"][1:] == [
        "1", "+0.5", "-0.05 to +1.05 (one seed: of the generated images alone); cannot be told from none",
    ]  # fmt: skip
    assert paired_rows([runs[0], runs[3]]) == []  # other seeds


def test_values_of_other_conditions_are_not_paired(tmp_path):
    runs = four_runs(tmp_path)
    runs[2].records = make_records(num_generated=99)
    assert paired_rows([runs[0], runs[2]]) == []


def test_values_that_were_measured_otherwise_have_a_column_and_a_chart_of_their_own(tmp_path):
    runs = four_runs(tmp_path)[:3]
    runs[1].records = make_records(scores=("fid",), embedding="vgg16")
    runs[2].records = make_records(scores=("fid",), num_generated=2000)
    headings, rows = summary_rows(runs)
    own, other = "embedding pixels", "embedding vgg16"
    number = next(one.num_generated for one in runs[0].records if one.is_model)
    assert [name for name in headings if name.startswith("fid_all")] == [
        f"fid_all, {own}, {number:,} generated images",
        f"fid_all, {other}, {number:,} generated images",
        f"fid_all, {own}, 2,000 generated images",
    ]
    for place, row in enumerate(rows):
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
    headings, rows = summary_rows(runs)
    assert "fid_all" in headings
    assert rows[1][headings.index("fid_all")] == "9.00±0.40"
    assert all(place == 0 for row in chart_rows(axes_of(runs)) for place, _ in row["lines"])


def test_each_run_has_a_row_with_its_best_values_and_floors(tmp_path):
    headings, rows = summary_rows(four_runs(tmp_path)[:1])
    assert headings == ["run", "seed", "last round", "fid_avg", "fid_all", "kid_avg", "kid_all"]
    assert rows[0][1:5] == ["0", "2", "25.00±0.40 at round 1; floor 2.00±0.40", "3.00±0.40 at round 2; floor 1.00±0.40"]
