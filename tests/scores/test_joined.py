import pytest
import torch

from fedgen.scores import KernelReference, ManifoldReference, WassersteinReference
from fedgen.scores.aggregate import joined


def storage(features):
    return features.untyped_storage().data_ptr()


FEATURES = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))


def test_consecutive_rows_of_one_tensor_are_a_view_of_it() -> None:
    for parts in (FEATURES.split([7, 1, 22]), FEATURES[3:20].split(5), [FEATURES]):
        whole = joined(parts)
        assert torch.equal(whole, torch.cat(list(parts)))
        assert storage(whole) == storage(FEATURES)


@pytest.mark.parametrize(
    "parts",
    [
        [FEATURES[10:], FEATURES[:10]],  # in another order
        [FEATURES[:10], FEATURES[11:]],  # with a gap
        [FEATURES[:10], FEATURES[5:]],  # overlapping
        [FEATURES[:10], FEATURES[10:].clone()],
        [FEATURES[:10], FEATURES[10:].double()],
        [FEATURES[:10, :2], FEATURES[10:, 2:]],  # other columns
        [FEATURES[0:10:2], FEATURES[10:]],  # every second row
    ],
    ids=["order", "gap", "overlap", "copy", "dtype", "columns", "stride"],
)
def test_other_parts_are_copied(parts) -> None:
    whole = joined(parts)
    assert torch.equal(whole, torch.cat(parts))
    assert storage(whole) != storage(FEATURES)


def test_some_columns_and_transposed_rows_are_views_too() -> None:
    for source in (FEATURES[:, 1:3], torch.randn(4, 30).T, FEATURES[::2]):
        whole = joined(source.split(4))
        assert torch.equal(whole, source)
        assert storage(whole) == storage(source)


def test_references_do_not_copy_features_that_are_split_from_one_tensor() -> None:
    parts = FEATURES.split([12, 18])
    for reference in (KernelReference.from_features(parts), WassersteinReference.from_features(parts)):
        assert storage(reference.features) == storage(FEATURES)
    assert storage(ManifoldReference.from_features(parts)._points.features) == storage(FEATURES)
