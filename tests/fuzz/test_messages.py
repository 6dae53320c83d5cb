"""Damaged messages of clients. Their transport compares checksums, they have none: what is read has its form."""

from collections.abc import Mapping
from dataclasses import is_dataclass

import pytest
import torch
from safetensors.torch import save

from fedgen.flower.wire.answer_forms import WEIGHT, check_form, form_of
from fedgen.scores import KernelReference
from fedgen.scores.frechet.frechet import fid_from_messages, fid_message
from fedgen.scores.kernel.federated_kid import kid_from_messages, kid_message
from fedgen.scores.kernel.kernels import PolynomialKernel, RBFKernel
from fedgen.statistics import (
    CubicSketch,
    FourierSketch,
    Privacy,
    gaussian_from_message,
    gaussian_to_message,
    gaussian_to_sums,
    private_sums,
    summarize,
)
from fedgen.statistics.fixed_point import FixedPoint
from fedgen.statistics.private import private_gaussian
from fedgen.statistics.statistic_messages import KINDS, Message, MessageError, add
from tests.fuzz.damage import fuzz

FEATURES = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
CODE = FixedPoint(clients=3)
MESSAGES = {
    "dense": lambda: gaussian_to_message(summarize(FEATURES), embedding="pixels"),
    "of few images": lambda: gaussian_to_message(summarize(FEATURES[:3]), embedding="pixels"),
    "sums": lambda: gaussian_to_sums(summarize(FEATURES), embedding="pixels"),
    "whole numbers": lambda: CODE.encode(gaussian_to_sums(summarize(FEATURES), embedding="pixels")),
}


def read(path):
    """What a server makes of the bytes that arrived; errors name the file for the sake of the tests."""
    try:
        message = Message.from_bytes(path.read_bytes())
        message = CODE.decode(message) if message.kind == "fixed-point" else message
        return message, gaussian_from_message(message)
    except MessageError as error:
        raise ValueError(f"{path.name}: {error}") from error


def is_summary(found, _):
    message, gaussian = found
    numbers = [value.isfinite().all() for value in message.tensors.values()]
    axes = [message.tensors[name].ndim == count for name, count in KINDS[message.kind].items()]
    return all(numbers) and all(axes) and gaussian.count >= 1 and gaussian.mean.shape == (gaussian.dim,)


@pytest.mark.parametrize("kind", MESSAGES)
def test_damaged_messages_are_refused_or_have_their_form(kind, tmp_path, copies):
    path = tmp_path / "message"
    path.write_bytes(MESSAGES[kind]().to_bytes())
    fuzz(read, path, is_summary, copies=copies, least=300)


# ---- of scores, sketches, sums with noise and losses ----

GENERATED = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
CENTRE = FEATURES.double().mean(0)
CUBIC, FOURIER, POOLED = CubicSketch(5, 16, centre=CENTRE), FourierSketch(5, 16), summarize(FEATURES)
PRIVACY = Privacy(1.0, 1e-5, 3.0, "replace", "public")
QUESTIONS = {
    "terms": Message("features", {"features": GENERATED}, {"gradient": "yes"}),
    "kernel-means": Message("landmarks", {"landmarks": GENERATED[:7]}),
    "sums": Message("moments", {}),
    "cubic": Message("sketch", {"centre": CENTRE}, {"number": "16", "seed": "0"}),
}


def filled(kind):
    """An answer to a loss of 40 images, which weighs 40."""
    form = form_of(QUESTIONS[kind], 5)
    return Message(
        kind, {n: torch.full_like(t, 40.0 if n in WEIGHT else 0.5) for n, t in form.tensors.items()}, form.meta
    )


def checked(message):
    """An answer to a loss, as the server takes it in."""
    check_form(message, form_of(QUESTIONS[message.kind], 5), 40.0)
    return add(message, message).tensors


def of(client):
    return KernelReference.from_features([FEATURES], client, "u")


# name: message, and what a server makes of it
OTHERS = {
    "kid": (lambda: kid_message(of(PolynomialKernel()), GENERATED), lambda m: kid_from_messages(m, CUBIC_MOMENTS)),
    "kid-rbf": (lambda: kid_message(of(RBFKernel()), GENERATED), lambda m: kid_from_messages(m, FOURIER_MOMENTS)),
    "fid": (lambda: fid_message(FEATURES, summarize(GENERATED)), fid_from_messages),
    "cubic": (lambda: CUBIC.message(FEATURES), lambda m: CUBIC.read(m, POOLED)),
    "fourier": (lambda: FOURIER.message(FEATURES), FOURIER.read),
    "private sums": (lambda: private_sums(FEATURES, PRIVACY, seed=0), lambda m: private_gaussian(m, PRIVACY)),
    **{f"loss: {kind}": (lambda kind=kind: filled(kind), checked) for kind in QUESTIONS},
}
CUBIC_MOMENTS, FOURIER_MOMENTS = CUBIC.read(CUBIC.message(FEATURES), POOLED), FOURIER.read(FOURIER.message(FEATURES))


def shape_of(found):
    """What something is made of, without its numbers and remarks."""
    if isinstance(found, torch.Tensor):
        return found.shape, found.dtype
    if isinstance(found, Mapping):
        return {key: shape_of(value) for key, value in found.items()}
    if isinstance(found, tuple):
        return [shape_of(value) for value in found]
    return shape_of(vars(found)) if is_dataclass(found) else type(found)


@pytest.mark.parametrize("name", OTHERS)
def test_damaged_messages_of_scores_are_refused_or_have_their_form(name, tmp_path, copies):
    make, use = OTHERS[name]
    path = tmp_path / "message"
    whole = make()
    path.write_bytes(whole.to_bytes())

    def read_one(path):
        try:
            return use(Message.from_bytes(path.read_bytes(), whole.kind))
        except MessageError as error:
            raise ValueError(f"{path.name}: {error}") from error

    fuzz(read_one, path, lambda found, expected: shape_of(found) == shape_of(expected), copies=copies, least=300)


NAN, SUMS = float("nan"), {"count": torch.tensor(3.0), "sum": torch.zeros(2), "outer": torch.zeros(3)}
HEADER = {"fedgen": "1", "kind": "sums", "meta": "{}"}


WRONG: list[tuple[dict, dict]] = [
    *[({name: None}, {}) for name in SUMS],
    *[({"count": torch.tensor(count)}, {}) for count in (NAN, -1.0, 0.0, 0.5, [3.0], 3, True)],
    *[({"sum": value}, {}) for value in (torch.zeros(0), torch.zeros(3), torch.zeros(1, 2), torch.full((2,), NAN))],
    *[({"sum": value}, {}) for value in (torch.zeros(2).long(), torch.zeros(2) > 0)],
    *[({"outer": value}, {}) for value in (torch.zeros(4), torch.full((3,), float("inf")), torch.zeros(3, 1))],
    *[({"more": value}, {}) for value in (torch.zeros(2).long(), torch.full((2,), NAN))],
    *[({}, {"fedgen": version}) for version in (None, "0", "2", "one", "")],
    *[({}, {"kind": kind}) for kind in (None, "gaussian", "os.system", "", "private-sums", "fixed-point")],
    *[({}, {"meta": meta}) for meta in ("", "[]", "3", '{"a": 1}', "[" * 10**5, "null")],
]


def test_messages_of_wrong_content_are_refused():
    for tensors, header in WRONG:
        sent = {name: tensor for name, tensor in (SUMS | tensors).items() if tensor is not None}
        said = {key: text for key, text in (HEADER | header).items() if text is not None}
        content = save(sent, said)
        with pytest.raises(MessageError):
            gaussian_from_message(Message.from_bytes(content))


def test_the_message_that_those_are_made_of_is_read():
    assert gaussian_from_message(Message.from_bytes(save(SUMS, HEADER))).count == 3
