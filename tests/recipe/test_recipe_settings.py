"""What a run keeps of its recipe is read back to the same values, whatever annotations other people's classes have."""

import datetime
import enum
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from torchvision.transforms import InterpolationMode

from fedgen.recipe.recipe_objects import plain_settings


class Flip:
    def __call__(self, image):
        return image


class Colour(enum.Enum):
    RED = 1


class Holder:
    def __init__(self, x):
        self.x = x


class Numbers(Holder):
    def __init__(self, x: numbers.Number):
        super().__init__(x)


class NumberOrSequence(Holder):
    def __init__(self, x: numbers.Number | Sequence):
        super().__init__(x)


class ManyNumbers(Holder):
    def __init__(self, x: list[numbers.Number]):
        super().__init__(x)


class NumbersByName(Holder):
    def __init__(self, x: Mapping[str, numbers.Real]):
        super().__init__(x)


class Typed(Holder):
    def __init__(
        self,
        x: torch.dtype,
        pair: tuple[int, ...] = (1, 2),
        colour: Colour = Colour.RED,
        mode: InterpolationMode | int = InterpolationMode.NEAREST,
        activation: Callable = torch.relu,
        network: type[torch.nn.Module] = torch.nn.ReLU,
        path: Path = Path("here"),
        length: datetime.timedelta = datetime.timedelta(hours=1),
        word: Literal["a", 1] = "a",
        number: float = float("nan"),
        size: int | np.int64 = 3,
    ):
        super().__init__(x)


FLIP, HALF, CLAMP = Flip(), np.float64(0.5), partial(torch.clamp, min=0)


class Defaults(Holder):
    """Arguments without annotation, or with one that allows anything."""

    def __init__(
        self,
        x=3,
        flip=FLIP,
        half=HALF,
        single=np.float32,
        negate=lambda x: -x,
        clamp=CLAMP,
        pair: Any = (1, 2),
        activation: Any = torch.relu,
        colour: object = Colour.RED,
        several: Any = frozenset({1}),
        dtype: Any = torch.float16,
        unknown: "Nowhere" = np.float32,  # noqa: F821
        path: Any = Path("here"),
        network: Any = torch.nn.ReLU,
        colours: list = [Colour.RED],  # noqa: B006
        by_name: dict[str, Any] = {"number": 1, "function": torch.relu},  # noqa: B006
    ):
        super().__init__(x)


def parsed(kind, **arguments):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Holder, "k", fail_untyped=False)
    given = {"k": {"class_path": f"{__name__}.{kind.__name__}", "init_args": arguments}}
    return parser, parser.parse_object(given)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Numbers, 5),
        (Numbers, 0.5),
        (NumberOrSequence, 5),
        (NumberOrSequence, [1, 2.5]),
        (ManyNumbers, [1, 2.5]),
        (NumbersByName, {"a": 0.5}),
        (Holder, {"a": [1, "b", None, True]}),
        (Typed, "torch.float16"),
    ],
)
def test_what_was_written_is_kept(kind, value):
    parser, config = parsed(kind, x=value)
    kept = plain_settings(parser, config)
    assert kept["k"]["init_args"]["x"] == value
    again = parser.parse_object(kept)
    assert repr(again) == repr(config)
    assert plain_settings(parser, again) == kept


def test_values_with_a_text_are_kept_beside_those_of_defaults_that_have_none():
    parser, config = parsed(Typed, x="torch.float16", network="torch.nn.SELU")
    own = plain_settings(parser, config)["k"]["init_args"]
    assert (own["network"], own["colour"], own["pair"]) == ("torch.nn.SELU", "RED", [1, 2])
    assert len(own) == 11


def test_a_default_without_a_text_is_left_out_and_is_the_default_again():
    parser, config = parsed(Defaults, x=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = plain_settings(parser, config)
    assert "Unable" not in str(kept)
    assert {"negate", "clamp", "pair", "colour", "colours", "by_name"}.isdisjoint(kept["k"]["init_args"])
    again = parser.parse_object(yaml.safe_load(yaml.safe_dump(kept)))
    assert repr(again) == repr(config)
    made = parser.instantiate(again)
    assert made.k.x == 4
    assert yaml.SafeDumper.yaml_representers.get(None) is yaml.SafeDumper.represent_undefined
