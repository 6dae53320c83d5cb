import pytest

from fedgen.callbacks.fresh_monitors import Monitoring
from fedgen.data.formats.flwr_datasets import DescribedPartitioner
from fedgen.data.optional_attributes import DescribedDataset, of_dataset, with_defaults
from fedgen.embeddings.backbones import ImageProcessor
from fedgen.evaluation.generation.image_sampling import DescribedSampler
from fedgen.models import optional_hooks

PROTOCOLS = [
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


def test_an_object_speaks_for_itself_and_the_protocol_for_what_it_lacks():
    described = of_dataset(Named())
    assert (described.name, described.owners) == ("mine", None)


def test_what_no_protocol_declares_is_an_error_even_if_the_object_lacks_it_too():
    with pytest.raises(AttributeError, match="nmae"):
        _ = with_defaults(Named(), DescribedDataset).nmae


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_every_declared_attribute_has_a_default_and_a_meaning(protocol):
    declared = set(protocol.__annotations__)
    assert declared
    assert {name for name in declared if name not in vars(protocol)} == set()
    assert {name for name in declared if f"        {name}: " not in protocol.__doc__} == set()
