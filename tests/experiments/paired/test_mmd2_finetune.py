"""Fine-tuning towards clients around chosen styles: the choice, its clients, what follows from scores, and a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgen.data import Examples
from fedgen.experiments.paired import mmd2_finetune as experiment
from fedgen.experiments.paired.mmd2_finetune import (
    ARMS,
    CONTROL,
    FID_SERVER,
    FORMS,
    KID_ALL,
    KID_AVG,
    LOCAL,
    MESSAGE,
    Mmd2Choice,
    Mmd2Runs,
    find_centres,
    images_of,
    latent,
    write_clients,
)
from fedgen.experiments.ranking.truncation import TruncatedStyles, read_styles
from tests.experiments.paired.tiny_network import write_network

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def styles_of(path):
    return read_styles(path, "cpu")


def known_by_brightness(styles):
    """The network's own images as the server's: the brighter half is one class, the darker another."""
    draws = torch.Generator().manual_seed(1)
    images = styles.make(styles.mean, 1.0, styles.latents(200, draws), draws)
    bright = images.float().mean(dim=(1, 2, 3))
    labels = (bright > bright.median()).long()
    return Examples(images, labels, "own", ("dark", "bright")), float(bright.median())


# ---- choice and clients ----


def test_centres_are_the_first_that_show_the_attribute():
    styles = styles_of(write_network())
    known, middle = known_by_brightness(styles)
    choice = Mmd2Choice(clients=5, attribute="bright", embedding="pixels")
    centres = find_centres(choice, styles, known, 3)
    assert len(centres) == 5
    assert centres == sorted(set(centres))
    assert centres == find_centres(choice, styles, known, 3)
    assert centres != find_centres(choice, styles, known, 4)
    images = styles.make(styles.mean, 1.0, torch.cat([latent(styles, 3, k) for k in centres]), torch.Generator())
    assert (images.float().mean(dim=(1, 2, 3)) > middle - 5).all()
    assert find_centres(replace(choice, centres=(9, 1, 2, 3, 4)), styles, known, 3) == [9, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="bright"):
        find_centres(replace(choice, attribute="red"), styles, known, 3)


def test_too_few_centres_are_counted(monkeypatch):
    monkeypatch.setattr("fedgen.experiments.paired.mmd2_finetune.SEARCHED", 64)
    styles = styles_of(write_network())
    known, _ = known_by_brightness(styles)
    with pytest.raises(ValueError, match="bright"):
        find_centres(Mmd2Choice(clients=64, attribute="bright", embedding="pixels"), styles, known, 0)


def test_clients_are_folders_of_images_around_their_centres_and_made_once(tmp_path):
    styles, choice = styles_of(write_network()), Mmd2Choice(clients=2, client_images=24)
    root = write_clients(choice, styles, [4, 7], 0, tmp_path / "clients")
    files = sorted(root.glob("*/*.png"))
    assert [file.parent.name for file in files] == ["client-00"] * 24 + ["client-01"] * 24
    first = [file.read_bytes() for file in files]
    times = [file.stat().st_mtime_ns for file in files]
    write_clients(choice, styles, [4, 7], 0, root)
    assert [file.stat().st_mtime_ns for file in files] == times
    files[0].unlink()
    (root / ".made").unlink()  # what was cut short is made again
    write_clients(choice, styles, [4, 7], 0, root)
    assert [file.read_bytes() for file in files] == first
    write_clients(replace(choice, client_truncation=0.0), styles, [4, 7], 0, root)
    assert [file.read_bytes() for file in files] != first


def test_arms_differ_in_form_and_weight_alone(tmp_path):
    network = write_network()
    runs = Mmd2Runs(Mmd2Choice(network=network, recipes=RECIPES), (1, 8, 8), tmp_path, "0123456789")
    given = {arm: runs.training(arm, 0).settings for arm in ARMS}
    assert all("exact" in given[arm] for arm in (CONTROL, "(a) exact"))
    assert "message" in given[MESSAGE]
    assert "local" in given[LOCAL]
    assert sum("fedgen.federated.FedAvgStrategy" in " ".join(settings) for settings in given.values()) == 1
    assert len({runs.training(arm, seed).folder for arm in ARMS for seed in (0, 1)}) == 8
    assert list(runs.states(CONTROL, 0)) == [0, 2560, 5120, 7680, 10240]
    assert runs.states(CONTROL, 0)[10240].name == "round=00007.ckpt"


def test_images_are_of_the_same_latents_for_all():
    network = write_network()
    images = images_of(network, 3, 0, "cpu")
    assert torch.equal(images, images_of(network, 3, 0, "cpu"))
    assert not torch.equal(images, images_of(network, 3, 1, "cpu"))
    styles = styles_of(network)
    expected = next(iter(TruncatedStyles(styles.network).batches(styles.mean, 1.0, 3, 0, "generated")))
    assert torch.equal(images, expected)


# ---- what follows from scores ----


def rows_with(fall, seeds=5):
    """Scores in which every form's KID is lower by `fall` than the control's, and its FID by half of the way."""

    def state(kid, fid, seed):
        noise = 0.01 * seed
        own = {KID_AVG: kid + noise + 1.0, KID_ALL: kid + noise, "recall": 0.5, "coverage": 0.5, FID_SERVER: fid}
        return dict.fromkeys(("classifier-mnist5k", "efficientnet-lite0"), own)

    last = {arm: 2.0 if arm == CONTROL else 2.0 - fall for arm in ARMS}
    scores = {
        str(k): {
            "floor": state(0.0, 110.0, k),
            "start, 0 images": state(2.0, 10.0, k),
            **{f"{arm}, 64 images": state(kid - 0.01 * k * (arm != CONTROL), 10.0, k) for arm, kid in last.items()},
        }
        for k in range(seeds)
    }
    return experiment.scored(scores, dict.fromkeys(ARMS, (0, 64)), Mmd2Choice())


def test_outcomes_are_told_from_paired_seeds():
    lines = experiment.outcomes(rows_with(fall=0.5), Mmd2Choice())
    assert len(lines) == 5 * len(FORMS) + 2
    assert all(line.startswith("as expected") for line in lines[:-1])
    lines = experiment.outcomes(rows_with(fall=-0.5), Mmd2Choice())
    assert sum("KID-avg" in line and line.startswith("not seen") for line in lines) == 2 * len(FORMS)


def test_a_generator_that_has_gone_over_to_the_clients_is_told():
    rows = rows_with(fall=0.5)
    for state in rows.states[MESSAGE][64]:
        for scores in state.values():
            scores[FID_SERVER] = 70.0
    (line,) = [one for one in experiment.outcomes(rows, Mmd2Choice()) if "60.0%" in one]
    assert line.startswith("not seen: (c) one message")


def test_a_gap_between_the_aggregates_that_moves_is_told():
    rows = rows_with(fall=0.5)
    rows.states[LOCAL][64][2]["classifier-mnist5k"][KID_ALL] += 1e-6
    lines = experiment.outcomes(rows, Mmd2Choice())
    assert any(line.startswith("not seen: KID-avg - KID-all") for line in lines)
