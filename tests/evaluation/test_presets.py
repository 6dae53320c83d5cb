"""Against the published formulas on random features and random weights; the published weights are not at hand."""

import numpy as np
import pytest
import torch
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric

from fedgen.embeddings import embed
from fedgen.embeddings.registry import load_embedding
from fedgen.evaluation import PRESETS, find_preset
from fedgen.scores import FrechetReference, RBFKernel, mmd2


def features(count, dim, seed, shift=0.0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) + shift


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def plain_cmmd(x, y):
    """The paper's formula, a kernel at a time: 1000 (mean k(x, x') + mean k(y, y') - 2 mean k(x, y)), sigma = 10."""

    def mean_kernel(a, b):
        return float(np.mean([[np.exp(-np.sum((i - j) ** 2) / (2 * 10**2)) for j in b] for i in a]))

    x, y = x.double().numpy(), y.double().numpy()
    return 1000 * (mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y))


def test_cmmd_is_the_papers_formula_for_each_client_and_the_pool():
    clients = [unit(features(20, 8, 0)), unit(features(30, 8, 1, 0.5))]
    generated = unit(features(25, 8, 2, 1.0))
    score = find_preset("cmmd").reference(clients).score(generated)
    assert score.name == "cmmd"
    assert score.per_client.tolist() == pytest.approx([plain_cmmd(generated, part) for part in clients], rel=1e-8)
    assert score.values["all"] == pytest.approx(plain_cmmd(generated, torch.cat(clients)), rel=1e-8)
    assert score.values["all"] <= score.values["avg"]


def test_cmmds_errors_are_in_its_unit_too():
    clients, generated = [unit(features(40, 8, 0))], unit(features(50, 8, 1, 0.5))
    preset = find_preset("cmmd")
    score = preset.reference(clients).score(generated)
    # the same distance from kernel values a thousand times larger
    scale = score.values["all"] / mmd2(clients[0], generated, RBFKernel(10.0), "v")
    assert scale == pytest.approx(1000, rel=1e-9)
    others = [torch.cat([generated[:i], generated[i + 1 :]]) for i in range(50)]
    left_out = [mmd2(clients[0], rest, RBFKernel(10.0), "v") for rest in others]
    jackknife = 1000 * (49 * np.var(left_out)) ** 0.5
    assert score.error_parts["generated"]["all"] == pytest.approx(jackknife, rel=1e-6)
    assert float(score.client_errors[0]) == pytest.approx(score.errors["all"], rel=1e-9)


@pytest.mark.parametrize("name", ["fid", "fd-dinov2"])
def test_frechet_presets_are_torch_fidelitys_distance_on_the_same_features(name):
    clients, generated = [features(60, 6, 0), features(40, 6, 1, 0.5)], features(80, 6, 2, 0.3)
    score = find_preset(name).reference(clients).score(generated)
    sides = [fid_features_to_statistics(side) for side in (torch.cat(clients), generated)]
    theirs = fid_statistics_to_metric(*sides, verbose=False)["frechet_inception_distance"]
    assert score.name == name
    assert score.values["all"] == pytest.approx(theirs, rel=1e-5)
    assert score.terms == FrechetReference.from_features(clients).score(generated).terms


def test_kid_is_the_unbiased_cubic_kernel_distance_of_all_images():
    x, y = features(12, 5, 0), features(15, 5, 1, 1.0)
    a, b = x.double(), y.double()
    within = [((s @ s.T / 5 + 1) ** 3).fill_diagonal_(0).sum() / (len(s) * (len(s) - 1)) for s in (a, b)]
    expected = float(sum(within) - 2 * ((a @ b.T / 5 + 1) ** 3).mean())
    assert find_preset("kid").reference([x]).score(y).values["all"] == pytest.approx(expected, rel=1e-10)


def test_presets_name_networks_and_options_that_exist():
    for preset in PRESETS.values():
        with pytest.raises(FileNotFoundError, match="nowhere"):  # every option is accepted, then weights are read
            preset.load_embedding(weights="nowhere.pth")


def test_cmmds_embedding_loads_with_its_resize_and_length(clip_weights):
    preset = find_preset("cmmd")
    embedding = preset.load_embedding(weights=clip_weights)  # a smaller network of the same family
    assert embedding.name == "clip-vit-l-14-336px-cmmd-unit"
    images = torch.randint(0, 256, (4, 3, 20, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = embed(embedding, images)
    assert found.norm(dim=1).tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    plain = load_embedding("clip-vit-b-32", weights=clip_weights)
    assert (found - unit(embed(plain, images))).abs().max() > 1e-3  # another resize, other features


def test_options_that_a_preset_fixes_are_refused():
    preset = find_preset("fd-dinov2")
    with pytest.raises(ValueError, match="dinov2"):
        preset.load_embedding(resize="tensorflow-1")
    with pytest.raises(ValueError, match="dinov2"):
        find_preset("fdd")
