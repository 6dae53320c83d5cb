"""The GAN without its critic and the flow with FID, beside their controls: runs, scores, table and figure."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fedgen.experiments.engine.scored_arms import HELD_OUT, TITLES, ScoredArms
from fedgen.experiments.paired import fid_loss_artifacts as module
from fedgen.experiments.paired.fid_loss_artifacts import (
    FAMILIES,
    FLOW,
    FLOW_FID,
    GAN,
    REMOVED,
    ArtifactChoice,
    Lengths,
    bits_of,
    key_of,
    outcomes,
    scored,
)
from tests.experiments.tiny_runs import settings_of

RECIPES = Path(__file__).parents[3] / "recipes"
JUDGE = "judge"
TINY = Lengths(before=4, after=4, gan_every=4, removed_every=2, flow=4, flow_every=2, images=30)


@pytest.fixture
def arms(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "USUAL", TINY)
    return ArtifactChoice(runs=tmp_path / "runs", recipes=RECIPES, seed=5)


def test_every_recipe_is_there_and_the_arms_of_a_family_differ_by_what_is_studied(arms):
    gan, removed = (arms.training(arm, 0) for arm in (GAN, REMOVED))
    plain, fid = (arms.training(arm, 0) for arm in (FLOW, FLOW_FID))
    assert all(training.recipe.exists() for training in (gan, removed, plain, fid))
    assert settings_of(removed)["--model.init_args.generator"] == str(gan.folder / "round=00003.ckpt")
    assert settings_of(plain).items() - settings_of(fid).items() == {("--model.init_args.generator_losses", "null")}
    assert {settings_of(one)["--data.init_args.seed"] for one in (gan, removed, plain, fid)} == {"5"}
    recipes = [yaml.safe_load(one.recipe.read_text()) for one in (gan, removed)]
    assert recipes[0]["data"] == recipes[1]["data"]
    losses = [recipe["model"]["init_args"]["generator_losses"][0]["init_args"] for recipe in recipes]
    assert losses[0]["loss"] == losses[1]["loss"]
    assert losses[0]["embeddings"] == losses[1]["embeddings"]
    settings = [recipe["model"]["init_args"] for recipe in recipes]
    assert settings[0]["lr"] == settings[1]["lr"]
    assert settings[0]["betas"] == settings[1]["betas"]
    assert settings[1]["batch_statistics"]  # as a GAN's generator has them


def test_a_round_is_one_step_of_the_generator_with_and_without_its_critic(arms):
    gan, removed = (yaml.safe_load(arms.training(arm, 0).recipe.read_text()) for arm in (GAN, REMOVED))
    interval = gan["trainer"]["strategy"]["init_args"]["communication_interval"]
    assert interval / gan["model"]["init_args"]["n_critic"] == 1
    assert removed["trainer"]["strategy"]["init_args"]["communication_interval"] == 1
    assert (arms.steps(GAN, 7), arms.steps(REMOVED, 3)) == (8, 8)


def test_checkpoints_are_found_by_arm_and_seed_in_the_order_of_their_rounds():
    name, seeds = "WGAN-GP + FID", (1, 10)
    keys = [(GAN, 1, 12), (GAN, 1, 4), (GAN, 10, 4), (GAN, 10, 12), (REMOVED, 1, 8), (REMOVED, 10, 8)]
    numbers = {name: {key_of(*key): key for key in keys}, f"floor of {name}": {"scores": {}}}
    found = scored(numbers, name, SimpleNamespace(seed=1, seeds_of=seeds)).states
    assert found[GAN] == {steps: [(GAN, seed, steps) for seed in seeds] for steps in (4, 12)}
    assert list(found[GAN]) == [4, 12]
    assert list(found[REMOVED]) == [8]


def test_a_fid_that_may_have_risen_is_not_said_to_be_no_higher():
    def row(fid):
        return {"fid": fid, HELD_OUT: fid, "recall": 0.5, "coverage": 0.5, "trace": 1}

    def first_line(fids):
        found = {}
        for name, (control, treated) in FAMILIES.items():
            states = {
                arm: {1: [{"pixels": row(fid), JUDGE: row(1)} for fid in values]}
                for arm, values in ((control, (4, 4, 4)), (treated, fids))
            }
            found[name] = ScoredArms(states, [], TITLES, beside={treated: (control, None)})
        bits = bits_of({f"{arm}, seed {seed}": 3.0 for arm in (FLOW, FLOW_FID) for seed in range(3)})
        return outcomes(found, bits, JUDGE)[0]

    text = ": WGAN-GP + FID, critic removed: FID in pixels, which is optimised, is not above that of critic stays: "
    # differences 0, 2 and 4: deviation 2, half width 4.303 * 2 / sqrt(3)
    assert first_line((4, 6, 8)) == f"cannot be told from these 3 seeds{text}+2 (-2.97 to +6.97)"
    assert first_line((5, 5, 5)) == f"not seen{text}+1 (+1 to +1)"
    assert first_line((3, 3, 3)) == f"as expected{text}-1 (-1 to -1)"


def test_runs_are_named_by_their_lengths_and_that_without_the_critic_by_its_start(arms, tmp_path, monkeypatch):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    own = replace(arms, recipes=tmp_path / "recipes")
    assert own.run_folder(FLOW, 1).name == "glow_digits_fid-likelihood-split5-rounds4-seed1"
    before = own.run_folder(REMOVED, 0)
    recipe = tmp_path / "recipes" / "wgan_gp_digits_fid.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 1.0e-3", "lr: 5.0e-4"))
    assert own.run_folder(REMOVED, 0) != before
    monkeypatch.setattr(module, "USUAL", replace(TINY, before=8))
    assert arms.run_folder(REMOVED, 0) != before
