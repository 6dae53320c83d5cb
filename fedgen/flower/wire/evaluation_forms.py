"""The form of a client's answer to an evaluation's question: one of another form ends no evaluation of the others."""

import json

import torch
from torch import Tensor

from fedgen.evaluation.panels import Panel
from fedgen.flower.client.client_statistics import meta_of, sketch_of
from fedgen.flower.wire.answer_forms import WEIGHT, check_form
from fedgen.flower.wire.messages import Item
from fedgen.flower.wire.ranges import RANGES, Largest, name_of, range_key
from fedgen.scores.kernel.federated_kid import kernel_label
from fedgen.statistics import Privacy, private_sums
from fedgen.statistics.gaussian import is_covariance
from fedgen.statistics.statistic_messages import KINDS, Message, MessageError, gaussian_from_message

ROUNDING = 1e-6  # by which sums may exceed their bound


def form_of_answer(item: Item, panel: Panel, dim: int, sent: Tensor | None) -> Message | None:
    """An answer of nothing to "sketch", "kid" or "private-sums"; None for "statistics", which has two forms.

    Args:
        item: what is asked.
        panel: the embedding and its scores.
        dim: features D of the embedding.
        sent: with the question: a sketch's centre [D], or features [m, D] of generated images.
    """
    if item.ask == "statistics":
        return None
    if item.ask == "private-sums":
        privacy = Privacy(**json.loads(item.promise))
        return private_sums(torch.zeros(1, dim), privacy, seed=0, split=item.split, embedding=item.fingerprint)
    choice = next(one for one in panel.choices if one.name == item.score)
    if item.ask == "sketch":
        return sketch_of(choice, dim, sent).message(torch.zeros(1, dim), **meta_of(item))
    assert sent is not None
    made = {"kernel": kernel_label(choice.kernel, dim), "dim": str(dim), "generated": str(len(sent))}
    meta = {**meta_of(item), **made, "estimator": choice.options["estimator"]}
    return Message("kid", {name: torch.zeros((), dtype=torch.float64) for name in KINDS["kid"]}, meta)


def check_answer(answer: Message, item: Item, form: Message | None, dim: int, count: int, largest: Largest) -> None:
    """Refuses an answer that is of other images, features or settings than were asked for, or of absurd numbers.

    Args:
        answer: of one client.
        item: what it was asked.
        form: of `form_of_answer`.
        dim: features D of the embedding.
        count: images that the client has in the item's split.
        largest: entries of such an answer that are believed, of all its tensors.

    Raises:
        MessageError: saying what is wrong with it.
    """
    if form is not None:
        check_form(answer, form, float(answer.tensors.get("count", torch.zeros(()))))
    elif dict(answer.meta) != meta_of(item):
        raise MessageError(f"it answers of {dict(answer.meta)}, not of {meta_of(item)}")
    else:
        _check_summary(answer, dim, count)
    if abs(float(answer.tensors["count"]) - count) > 0.5:
        raise MessageError(f"it tells of {float(answer.tensors['count']):g} images and has {count}")
    if (clients := float(answer.tensors.get("clients", torch.ones(())))) != 1:
        raise MessageError(f"it tells of {clients:g} clients and is one")
    _check_size(answer, item, largest)


def _check_summary(answer: Message, dim: int, count: int) -> None:
    """Refuses what is no summary of so many images' features."""
    found = gaussian_from_message(answer)
    if found.dim != dim:
        raise MessageError(f"it tells of {found.dim} features, and the embedding has {dim}")
    if answer.kind == "sums":
        raise MessageError("it tells sums where its summary was asked for")
    if found.deviations is not None and len(found.deviations) > count:
        raise MessageError(f"it tells the deviations of {len(found.deviations)} images and has {count}")
    if found.scatter is not None and not is_covariance(found.scatter, slack=ROUNDING):
        raise MessageError("its scatter is not symmetric, or has a negative variance")


def _check_size(answer: Message, item: Item, largest: Largest) -> None:
    for name, tensor in answer.tensors.items():
        if name not in largest:
            raise MessageError(f"it answers with {name!r}, which nobody asked for")
        found = float(tensor.abs().max()) if tensor.numel() and name not in WEIGHT else 0.0
        if found > largest[name] * (1 + ROUNDING):
            statistic = name_of(item.ask, name)
            remedy = (
                f"; if it is right, raise {range_key(statistic)} in the run's config" if statistic in RANGES else ""
            )
            raise MessageError(f"its {name} reaches {found:g}, and no more than {largest[name]:g} is believed{remedy}")
