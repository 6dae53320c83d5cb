"""What the changes of a federated flow are compared by."""

from pathlib import Path

from fedgen.experiments.paired.cost_curves import CONTROL, FlowChoice, flow_lines, flow_table

RECIPES = Path(__file__).parents[3] / "recipes"


def scores(*values):
    return [{"fid_all": [value], "fid_avg": [value + 10.0]} for value in values]


CURVES = {
    CONTROL: scores(100.0, 110.0, 105.0),
    "interval 1": scores(90.0, 99.0, 95.0),
    "BatchNorm": scores(130.0, 139.0, 135.0),
    "optimizer kept": scores(99.0, 113.0, 104.0),
}


def test_lines_say_what_changed_and_what_cannot_be_told():
    first, second, third, last = flow_lines(CURVES)
    assert first.startswith(f"interval 1: FID-all, beside {CONTROL}, differs: -10.3")
    assert second.startswith(f"as expected: BatchNorm: FID-all is higher than {CONTROL}'s")
    assert "+29.7" in second
    assert third.startswith("cannot be told")
    assert last.startswith("each of these 3 intervals")


def test_the_table_has_paired_differences():
    cells = [list(column.cells) for column in flow_table(CURVES).columns]
    assert cells[0] == list(CURVES)
    assert cells[1][0] == "105 ± 5"
    assert cells[3][0] == ""
    assert cells[3][2].startswith("+29.7 (+28.2 to +31.1)")


def test_all_arms_take_as_many_local_iterations(monkeypatch):
    monkeypatch.chdir(RECIPES.parent)
    arms = FlowChoice(iterations=500).arms()
    assert {"the recipe", "interval 1", "interval 50", "cohort of 5"} <= {arm.name for arm in arms}
    strategy = "trainer.strategy.init_args"
    for arm in arms:
        turn = arm.settings[f"{strategy}.communication_interval"] * arm.settings[f"{strategy}.cohort_size"]
        assert arm.settings["trainer.max_epochs"] * turn == 500
        assert arm.settings["model.init_args.network.init_args.widths"] == [16, 32, 32]
        assert arm.settings["trainer.callbacks.init_args.every_n_rounds"] == arm.settings["trainer.max_epochs"]
