"""What every metric takes, what calling and plotting it gives, and that merges are right."""

import matplotlib as mpl
import pytest
import torch
from torch import nn

from fedgen.embeddings import ModuleEmbedding, load_embedding
from fedgen.images import from_uint8, to_uint8
from fedgen.metrics import FrechetDistance, KernelDistance
from tests.metrics.sets import DIM, FEDERATED, METRICS, assert_equal, batches, filled

EVERY = pytest.mark.parametrize("name", METRICS)
IMAGES = torch.randint(0, 256, (12, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def images_metric(**arguments):
    return KernelDistance("pixels", dim=48, **arguments)


def scored(metric, images):
    metric.update(images[:5], real=True)
    metric.update(images[5:], real=False)
    return metric.compute()


def test_images_are_embedded_and_floats_score_as_the_grey_levels_they_stand_for():
    assert torch.equal(scored(images_metric(), IMAGES), scored(images_metric(), from_uint8(IMAGES)))
    features = load_embedding("pixels")(IMAGES)
    assert torch.equal(scored(images_metric(), IMAGES), scored(KernelDistance(dim=48), features))


def test_images_of_a_generator_that_overshoots_are_clipped_as_everywhere():
    images = (torch.rand(12, 3, 4, 4, generator=torch.Generator().manual_seed(2)) - 0.5) * 60
    assert torch.equal(scored(images_metric(), images), scored(images_metric(), to_uint8(images)))


def test_normalized_images_are_cut_down_to_grey_levels_as_torchmetrics_does():
    unit = torch.rand(12, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    unit[0, 0, 0, 0], unit[0, 0, 0, 1] = 0, 1
    assert torch.equal(scored(images_metric(normalize=True), unit), scored(images_metric(), (unit * 255).byte()))


@pytest.mark.parametrize(
    ("arguments", "images", "message"),
    [
        ({}, IMAGES.float(), "float images reach 255 and look like grey levels"),
        ({}, torch.zeros(3, 3, 0, 4), "images of at least one pixel"),
        ({"normalize": True}, from_uint8(IMAGES), r"floats in \[0, 1\], got torch.float32 from -1 to 1"),
        ({"normalize": True}, IMAGES, r"floats in \[0, 1\], got torch.uint8"),
        ({"normalize": True}, IMAGES.float() * torch.nan, r"floats in \[0, 1\]"),
        ({}, from_uint8(IMAGES) * torch.nan, "12 of 12 rows hold NaN"),
        ({}, IMAGES[:, :, :2], r"has dim 48, got features \[12, 24\]"),
    ],
)
def test_unusable_images_are_an_error_that_says_what_was_given(arguments, images, message):
    with pytest.raises(ValueError, match=message):
        images_metric(**arguments).update(images, real=True)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(3, DIM + 1), rf"has dim {DIM}, got features \[3, {DIM + 1}\]"),
        (torch.zeros(3, DIM, dtype=torch.int64), "floating"),
        (torch.zeros(DIM), "floating"),
        (torch.full((3, DIM), torch.inf), "3 of 3 rows hold NaN or infinity"),
    ],
)
@EVERY
def test_unusable_features_are_an_error(name, features, message):
    side = {"client": 0} if name in FEDERATED else {"real": True}
    with pytest.raises(ValueError, match=message):
        METRICS[name]().update(features, **side)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "at least 1, got 0"),
        ({"dim": 3, "normalize": True}, "normalize=True is for images"),
        ({"embedding": "identity", "dim": 3, "normalize": True}, "normalize=True is for images"),
    ],
)
def test_a_metric_that_cannot_work_is_an_error_when_it_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        FrechetDistance(**arguments)


def test_the_embeddings_own_dim_is_used_and_another_one_is_an_error():
    embedding = ModuleEmbedding(nn.Flatten(), image_shape=(3, 4, 4))
    assert FrechetDistance(embedding).dim == 48
    with pytest.raises(ValueError, match="embedding"):
        FrechetDistance(embedding, dim=47)


@EVERY
def test_calling_it_adds_the_batch_and_gives_none_since_a_batch_has_no_score(name):
    metric = METRICS[name]()
    assert [metric(**batch) for batch in batches(name in FEDERATED)] == [None] * 7
    assert metric.update_count == 7
    assert_equal(metric, filled(name))


@EVERY
def test_results_are_plotted_now_and_over_time(name):
    mpl.use("Agg")
    metric = filled(name)
    _, axes = metric.plot()
    assert len(axes.get_lines()) == (3 if name in FEDERATED else 1)
    _, axes = metric.plot([metric.compute(), metric.compute()])
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [2] * (3 if name in FEDERATED else 1)
    if name in FEDERATED:
        key = "fid" if "frechet" in name else "kid"
        _, axes = metric.plot(metric.compute()[f"{key}_per_client"])
        assert len(axes.get_lines()) == 3
    mpl.pyplot.close("all")


@pytest.mark.parametrize("as_states", [False, True])
@EVERY
def test_merged_parts_equal_the_whole(name, as_states):
    parts = [METRICS[name]() for _ in range(3)]
    for number, batch in enumerate(batches(name in FEDERATED)):
        parts[number // 3].update(**batch)
    for other in parts[1:]:
        parts[0].merge_state(other.metric_state if as_states else other)
    assert_equal(parts[0], filled(name), rtol=1e-12 if "frechet" in name else 0.0)
    assert parts[0].update_count == (5 if as_states else 7)


@EVERY
def test_a_metric_that_has_computed_counts_what_is_merged_later(name):
    # torchmetrics keeps its old result here: its FID of merged clients is the first client's
    merged, other, whole = filled(name), filled(name), filled(name)
    before = merged.compute()
    merged.merge_state(other)
    for batch in batches(name in FEDERATED):
        whole.update(**batch)
    # four images twice are of rank three in six features, and rounding reaches their distance through a root
    assert_equal(merged, whole, rtol=1e-8)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(merged.compute(), before, rtol=1e-3, atol=0.0)
    assert_equal(other, filled(name))


@EVERY
def test_a_metric_that_only_merged_computes_without_a_warning(name):
    metric = METRICS[name]()
    metric.merge_state(filled(name).metric_state)
    assert_equal(metric, filled(name))


@EVERY
def test_metrics_made_differently_do_not_merge_and_stay_as_they_were(name):
    metric = filled(name)
    others = [METRICS[name](dim=DIM + 1), METRICS[name](embedding=ModuleEmbedding(nn.Flatten()))]
    others += [METRICS[name](num_clients=4), METRICS[name](aggregate="all")] if name in FEDERATED else []
    for other in others:
        with pytest.raises(ValueError, match=r"differ in embedding|must be \["):
            metric.merge_state(other)
    with pytest.raises(ValueError, match="merge_state"):
        metric.merge_state({"real_moments": torch.ones(1)})
    with pytest.raises(ValueError, match="got int"):
        metric.merge_state(3)
    assert_equal(metric, filled(name))


@EVERY
def test_metrics_that_only_take_images_or_reset_differently_merge(name):
    metric = filled(name)
    metric.merge_state(METRICS[name](reset_real_features=False))
    assert_equal(metric, filled(name))


def unit_images(count):
    """Floats in [0, 1] as `ToTensor()` gives them, and the same images in [-1, 1]."""
    images = torch.randint(0, 256, (count, 3, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    return images / 255, from_uint8(images)


@pytest.mark.parametrize("side", [True, False])
def test_floats_in_0_to_1_are_warned_of_by_side(side):
    metric = images_metric()
    unit, _ = unit_images(20)
    name = "real" if side else "generated"
    remedy = r"pass images \* 2 - 1, or uint8, or make the metric with normalize=True"
    with pytest.warns(UserWarning, match=rf"{name} images of KernelDistance: .* lie from 0 to 1, .*; {remedy}"):
        metric.update(unit, real=side)
    metric.update(unit, real=side)  # said once


def test_many_real_floats_in_0_to_1_are_refused_and_generated_ones_end_no_training():
    unit, signed = unit_images(60)
    with pytest.raises(ValueError, match="KernelDistance"):
        images_metric().update(unit, real=True)
    metric = images_metric()
    metric.update(signed, real=True)
    with pytest.warns(UserWarning, match="KernelDistance"):
        metric.update(unit, real=False)
    assert metric.compute() > 0.01  # of identical images: the wrong number that the warning is about


def test_a_set_is_judged_by_all_its_batches_and_reset_forgets_them():
    unit, signed = unit_images(60)
    metric = images_metric()
    metric.update(signed[:30], real=True)
    metric.update(unit[:30], real=True)  # a bright batch among others
    metric.update(unit[30:], real=True)
    metric.reset()
    with pytest.raises(ValueError, match="all values of 60 images"):
        metric.update(unit, real=True)


@EVERY
def test_the_number_of_features_is_that_of_the_first_images(name):
    told, inferred, empty = filled(name), filled(name, dim=None), METRICS[name](dim=None)
    assert inferred.dim == DIM
    assert_equal(inferred, told)
    inferred.merge_state(empty)
    empty.merge_state(inferred)
    assert_equal(empty, told)
    inferred.reset()
    for batch in batches(name in FEDERATED):
        inferred.update(**batch)
    assert_equal(inferred, told)
    with pytest.raises(ValueError, match=f"has dim {DIM}"):
        inferred.update(torch.zeros(3, DIM + 1), **{"client": 0} if name in FEDERATED else {"real": True})


def test_an_embedding_that_hangs_on_the_images_needs_no_dim():
    assert torch.equal(scored(KernelDistance("pixels"), IMAGES), scored(images_metric(), IMAGES))
    metric = FrechetDistance("pixels")
    metric.update(IMAGES[:0], real=True)
    with pytest.raises(ValueError, match="seen"):
        metric.compute()
