"""Values of every form that travels, and messages of every form that JSON has: read as written, or refused."""

import json

import pytest
import torch
from safetensors.torch import save

from fedgen.flower.wire.messages import VERSION, Answer, unpack
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.statistics.statistic_messages import MessageError

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
pytestmark = pytest.mark.slow

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
TYPES += [torch.complex64, torch.complex128]
SHAPES = st.lists(st.integers(0, 3), max_size=3)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(27)[: torch.Size(shape).numel()].reshape(shape).to(dtype),
    SHAPES,
    st.sampled_from(TYPES),
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
KEYS = TEXTS | WHOLE | st.tuples(WHOLE, TEXTS) | st.booleans()
LEAVES = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | TEXTS | st.binary(max_size=9) | TENSORS
VALUES = st.recursive(
    LEAVES,
    lambda part: (
        st.lists(part, max_size=4)
        | st.lists(part, max_size=4).map(tuple)
        | st.dictionaries(KEYS, part, max_size=4)
        | st.sets(KEYS, max_size=4)
    ),
    max_leaves=30,
)
TAGS = st.sampled_from(["float", "tuple", "set", "dict", "counter", "tensor", "complex", "bytes", "code"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from(["nan", "inf"])
TREES = st.recursive(
    PLAIN | st.dictionaries(TAGS, st.integers(0, 3), min_size=1, max_size=1),
    lambda part: (
        st.lists(part, max_size=4)
        | st.lists(st.lists(part, min_size=2, max_size=2), max_size=4)
        | st.dictionaries(TAGS, part, max_size=2)
    ),
    max_leaves=30,
)
FIELDS = st.sampled_from(["examples", "iterations", "told", "metrics", "failure", "moved", "steps", "counts", "colour"])
settings = hypothesis.settings(max_examples=100, deadline=None, derandomize=True)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings
@hypothesis.given(VALUES, st.booleans())
def test_what_travels_is_read_as_it_was_written(value, sealed):
    assert same(from_bytes(to_bytes(value, sealed), "it", sealed), value)


@settings
@hypothesis.given(TREES, st.lists(TENSORS, max_size=3))
def test_what_nobody_wrote_is_refused_or_is_a_value_that_travels(tree, tensors):
    parts = [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
    data = save({str(i): one.clone() for i, one in enumerate(parts)}, metadata={"fedgen": json.dumps(tree)})
    try:
        found = from_bytes(data, "it")
    except MessageError:
        return
    assert same(from_bytes(to_bytes(found), "it"), found) or found != found


@settings
@hypothesis.given(st.lists(st.tuples(FIELDS, VALUES), max_size=5))
def test_fields_of_an_answer_are_of_their_types_or_it_is_refused(fields):
    try:
        found = unpack(Answer, {}, to_bytes({"version": VERSION, **dict(fields)}))
    except MessageError:
        return
    assert type(found) is Answer
    assert all(type(number) is int and number >= 0 for number in (found.examples, found.iterations, found.steps))
    assert all(type(name) is str and type(value) in (int, float) for name, value in found.metrics.items())
