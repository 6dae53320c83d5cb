"""Optional attributes of other people's objects: declared with a default and a meaning, asked for by these names."""

import pytest

from fedgen.callbacks.score_logging import Monitoring
from fedgen.data.formats.huggingface import DescribedPartitioner
from fedgen.data.optional_attributes import DescribedDataset, optional
from fedgen.embeddings.backbones import ImageProcessor
from fedgen.evaluation.image_sampling import DescribedSampler
from fedgen.models import optional_hooks

KINDS = [
    DescribedDataset,
    DescribedPartitioner,
    DescribedSampler,
    ImageProcessor,
    Monitoring,
    optional_hooks.FederatedData,
    optional_hooks.FederatedModule,
    optional_hooks.GenerativeModel,
    optional_hooks.ImageNetwork,
    optional_hooks.ModulePart,
    optional_hooks.PrecisionPlugin,
    optional_hooks.ScoringCallback,
    optional_hooks.TurnTakingStrategy,
]


class Named:
    name = "mine"


def test_an_object_speaks_for_itself_and_the_class_for_what_it_lacks():
    assert (optional(Named(), DescribedDataset, "name"), optional(Named(), DescribedDataset, "owners")) == (
        "mine",
        None,
    )


def test_what_no_class_declares_is_an_error_even_if_the_object_lacks_it_too():
    with pytest.raises(AttributeError, match="nmae"):
        optional(Named(), DescribedDataset, "nmae")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_declared_attribute_has_a_default_and_a_meaning(kind):
    declared = set(kind.__annotations__)
    assert declared
    assert {name for name in declared if name not in vars(kind)} == set()
    assert {name for name in declared if f"        {name}: " not in kind.__doc__} == set()
