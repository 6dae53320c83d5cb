"""Fine-tuning on FID alone: which runs are asked for, what is compared, and the whole from untrained weights."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

from fedgen.evaluation.names import checkpoint_name
from fedgen.experiments.engine.scored_arms import TITLES, ScoredArms, require_unrelated
from fedgen.experiments.paired.fid_finetune import (
    ALL,
    ARMS,
    BOTH,
    FIRST,
    NETWORK,
    PIXELS,
    START,
    TUNINGS,
    TuningChoice,
    images_of,
    outcomes,
    table_of,
    tracked,
)
from fedgen.models import FineTuning
from fedgen.models.networks import SmallGenerator
from fedgen.models.networks.network import describe
from tests.experiments.tiny_runs import settings_of, write_recipe

JUDGE = "judge"


def arms_of(folder, **options):
    write_recipe(folder / "recipes")
    (folder / "recipes" / "finetune_digits.yaml").write_text("model: {}")
    return TuningChoice(seeds=2, runs=folder / "runs", recipes=folder / "recipes", **options)


def save_generator(path, seed, width=4):
    """A checkpoint as a fine-tuning leaves it, of random weights."""
    torch.manual_seed(seed)
    network = SmallGenerator(width=width)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {f"generator.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": {"generator": describe(network)}}, path)
    return network


# ---- runs ----


def test_an_arm_starts_from_the_last_checkpoint_of_its_gan_and_trains_its_layers_on_its_embeddings(tmp_path):
    arms = arms_of(tmp_path)
    base = arms.bases[1]
    asked = {arm: settings_of(arms.training(arm, base)) for arm in ARMS}
    for given in asked.values():
        assert given["--model.init_args.generator"] == str(base.folder / "last.ckpt")
        assert (given["--data.init_args.held_out"], given["--data.init_args.seed"]) == ("0.5", "0")
    assert {arm: json.loads(given["--model.init_args.layers"]) for arm, given in asked.items()} == {
        ALL: ["*"], FIRST: ["body.0.*", "body.1.*"], BOTH: ["*"],
    }  # fmt: skip
    losses = {arm: json.loads(given["--model.init_args.generator_losses"]) for arm, given in asked.items()}
    assert {arm: own[0]["init_args"]["embeddings"] for arm, own in losses.items()} == {
        ALL: [PIXELS], FIRST: [PIXELS], BOTH: [PIXELS, NETWORK],
    }  # fmt: skip
    assert len({arms.training(arm, one).folder for arm in ARMS for one in arms.bases}) == 6
    assert {arms.training(arm, base).seed for arm in ARMS} == {1}


def test_steps_are_spread_over_eight_checkpoints_and_the_start_is_the_gans(tmp_path):
    arms = arms_of(tmp_path, steps=81)
    base = arms.bases[0]
    given = settings_of(arms.training(ALL, base))
    assert (given["--trainer.max_epochs"], given["--data.init_args.iterations"]) == ("8", "10")
    states = arms.states(ALL, base)
    assert list(states) == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert states[0] == base.folder / "last.ckpt"
    assert states[20].name == checkpoint_name(1)


def test_a_precision_and_the_recipe_of_the_gan_make_another_run(tmp_path):
    plain, half = arms_of(tmp_path), arms_of(tmp_path, precision="bf16-mixed")
    base = plain.bases[0]
    assert "--trainer.precision" not in settings_of(plain.training(ALL, base))
    assert settings_of(half.training(ALL, base))["--trainer.precision"] == "bf16-mixed"
    before = plain.training(ALL, base).folder
    assert before != half.training(ALL, base).folder
    recipe = tmp_path / "recipes" / "quickstart.yaml"
    recipe.write_text(f"# as before\n{recipe.read_text()}")
    assert plain.training(ALL, base).folder == before
    recipe.write_text(recipe.read_text().replace("width: 4", "width: 8"))
    assert plain.training(ALL, base).folder != before
    assert replace(plain).bases[0].folder == base.folder


def test_every_data_set_has_a_judge_of_another_network_that_has_not_seen_its_images():
    for data, tuning in TUNINGS.items():
        require_unrelated(tuning.judge, (PIXELS, NETWORK), data)


def test_the_first_layers_patterns_match_the_generators_that_are_tuned():
    from fedgen.models.networks import DCGANGenerator

    for data, network in (("digits", SmallGenerator()), ("mnist5k", DCGANGenerator(channels=1, width=2))):
        module = FineTuning(network, layers=TUNINGS[data].first)
        trained = [name for name, parameter in module.generator.named_parameters() if parameter.requires_grad]
        assert trained == [name for name, _ in network.named_parameters()][:3]  # weight, gain, bias


# ---- images ----


def test_images_are_of_the_same_latents_whatever_the_checkpoint(tmp_path):
    networks = [save_generator(tmp_path / f"{seed}.ckpt", seed) for seed in (1, 2)]
    few, many = (images_of(tmp_path / "1.ckpt", count, seed=5) for count in (3, 10))
    assert few.dtype == torch.uint8
    assert torch.equal(few, many[:3])
    assert not torch.equal(few, images_of(tmp_path / "2.ckpt", 3, seed=5))
    assert not torch.equal(few, images_of(tmp_path / "1.ckpt", 3, seed=6))
    assert networks[0].latent_dim == 32


def test_tracked_states_are_the_first_the_last_and_evenly_between(tmp_path):
    states = {}
    for k in range(9):
        save_generator(tmp_path / f"{k}.ckpt", k)
        states[10 * k] = tmp_path / f"{k}.ckpt"
    assert list(tracked(states, rows=5, columns=2, seed=0)) == ["0", "20", "40", "60", "80"]
    assert list(tracked(dict(list(states.items())[:3]), rows=5, columns=2, seed=0)) == ["0", "10", "20"]


# ---- what comes out ----


def row(fid, held_out, trace=0.9):
    return {"fid": fid, "fid, held out": held_out, "recall": 0.5, "coverage": 0.4, "trace": trace}


def rows_with(own, unrelated, trace=(0.9, 0.9, 0.9)):
    """Every arm with the same two seeds, from lists of FID by state: where it was trained on, and elsewhere."""
    states = {
        10 * k: [{PIXELS: row(a + s, a + s), NETWORK: row(1, 1), JUDGE: row(b, b + s, t + s / 10)} for s in (0, 1)]
        for k, (a, b, t) in enumerate(zip(own, unrelated, trace))
    }
    arms = {START: {0: states[0]}, **dict.fromkeys(ARMS, states)}
    return ScoredArms(arms, [FLOOR], TITLES, ARMS, dict.fromkeys(ARMS, (START, None)))


FLOOR = {PIXELS: row(1.5, 1.5), NETWORK: row(1, 1), JUDGE: row(1, 1)}


def test_an_arm_that_games_its_embedding_is_told_from_one_that_does_not():
    games = outcomes(rows_with((9, 5, 0.5), (9, 4, 6)), JUDGE)
    said = ["as expected", "cannot be told from these 2 seeds", "as expected", "as expected", "not seen"]
    assert [line.startswith(start) for line, start in zip(games, said)] == [True] * 5
    assert games[1].endswith("all layers: to 1, below the 1.5 of held-out real images: -0.5 (-6.85 to +5.85)")
    assert games[3].endswith("from step 10 on FID to held-out images in judge rises: +2 (+2 to +2)")
    honest = outcomes(rows_with((9, 5, 2), (9, 4, 3)), JUDGE)
    assert honest[3].startswith("not seen: all layers: from step 10 on FID to held-out images in judge rises: -1 (")


def test_spread_is_judged_beside_the_start_and_not_beside_one():
    """A generator that drops modes has a trace below 1 before it is tuned."""
    same, less = (rows_with((9, 5, 2), (9, 4, 3), trace=trace) for trace in ((0.8, 0.8, 0.8), (0.8, 0.7, 0.6)))
    for rows, said in ((same, "not seen"), (less, "as expected")):
        line = outcomes(rows, JUDGE)[4]
        assert line.startswith(f"{said}: all layers: images spread less than at the start, trace in judge ")


def test_a_flat_curve_that_ends_higher_by_chance_is_no_rise():
    rows = rows_with((9, 5, 2), (4, 4, 4))
    for seed, shift in ((0, 0.3), (1, -0.1)):  # the arms' rows are one
        rows.states[ALL][20][seed][JUDGE]["fid, held out"] += shift
    assert outcomes(rows, JUDGE)[3].startswith("cannot be told from these 2 seeds")


def test_changes_are_paired_and_tables_mark_what_was_trained_on():
    rows = rows_with((9, 5, 0.5), (9, 4, 6))
    assert rows.row(ALL, JUDGE, "fid, held out")["interval"] == [-3, -3]
    tables = {name: table_of(rows, name) for name in FLOOR}
    columns = {name: [str(cell) for cell in table.columns[2].cells] for name, table in tables.items()}
    assert columns[JUDGE] == ["1", "9.5", *["6.5\n-3, 2/2\n-3 to -3"] * 3]
    assert [cell.split("\n")[0][2:] for cell in columns[PIXELS]] == ["5", "5", "(*)", "(*)", "(*)"]
    training = [str(cell).split("\n")[0] for cell in tables[NETWORK].columns[1].cells]
    assert training == ["1", "1", "1", "1", "1 *"]
    assert "proves little" in tables[PIXELS].caption
    assert "proves little" not in tables[JUDGE].caption


@pytest.mark.slow
def test_the_recipe_fine_tunes_a_generator_from_the_command_line(tmp_path, monkeypatch):
    from pathlib import Path

    from fedgen.__main__ import main
    from fedgen.evaluation import Run

    recipe = Path("recipes/finetune_digits.yaml").absolute()
    save_generator(tmp_path / "checkpoints" / "quickstart" / "last.ckpt", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedgen"])
    evaluation = yaml.safe_load(recipe.read_text())["trainer"]["callbacks"]
    evaluation[0]["init_args"] |= {"embeddings": ["pixels"], "num_images": 100, "every_n_rounds": 1}
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": evaluation, "max_epochs": 2}}))
    arguments = ["fit", "--config", str(recipe), "--config", "smaller.yaml", "--data.init_args.iterations", "10"]
    assert main(arguments) == 0
    records = [one for one in Run("checkpoints/finetune_digits").records if not one.is_floor]
    assert {one.round for one in records} == {0, 1}
    assert all(one.is_optimised for one in records)
    first, last = (one.value for one in records if one.name == "fid_all" and one.split == "train")
    assert last < first
