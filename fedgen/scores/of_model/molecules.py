"""Scores of generated molecules, as SMILES: those of MOSES (Polykovskiy et al. 2020, arXiv 1811.12823, section 4).

Molecules are compared in RDKit's canonical form; what RDKit cannot read is no molecule. More is better in all four.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgen.data.text import decode_all
from fedgen.extras import need, need_rdkit
from fedgen.scores.aggregate import FederatedScore, combine, jackknife_variance, resolve_weights, worst_place
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition

BITS, RADIUS = 1024, 2  # of the Morgan fingerprints, MOSES' own
OWNER = "a score of molecules"  # in the message that RDKit is missing
BLOCK = 1024  # molecules whose similarities to all others are held at once
Found = tuple[float, float]
"""A value and its standard error."""


def canonical_molecules(texts: Sequence[str]) -> list[str]:
    """The canonical SMILES of the texts that are molecules, in their order; MissingExtraError without RDKit."""
    chem = need_rdkit(OWNER)
    found = (chem.MolFromSmiles(text) if text else None for text in texts)
    return [str(chem.MolToSmiles(molecule)) for molecule in found if molecule is not None]


def uniqueness(molecules: Sequence[str]) -> Found:
    """The share of different ones among molecules, and its error (jackknife that leaves out one at a time)."""
    count, times = len(molecules), Counter(molecules)
    if count < 2:
        return float(count), 0.0
    alone = sum(number == 1 for number in times.values())
    left_out = torch.tensor([len(times) - 1.0] * alone + [float(len(times))] * (count - alone)) / (count - 1)
    return len(times) / count, float(jackknife_variance(left_out).sqrt())


def internal_diversity(molecules: Sequence[str]) -> Found:
    """1 less the mean Tanimoto similarity of all pairs of molecules, each with itself among them, and its error.

    Of Morgan fingerprints: MOSES' IntDiv with p = 1. The error takes pairs of different molecules.

    Examples:
        >>> from fedgen.scores.of_model.molecules import internal_diversity
        >>> internal_diversity(["C", "c1ccccc1"])[0]  # nothing in common
        0.5
    """
    if not molecules:
        return 0.0, 0.0
    chem, generators = need_rdkit(OWNER), need("rdkit.Chem.rdFingerprintGenerator", "molecules", OWNER)
    made = generators.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    rows = [made.GetFingerprintAsNumPy(chem.MolFromSmiles(text)) for text in molecules]
    prints = torch.from_numpy(np.stack(rows).astype(np.float32))
    sizes = prints.sum(1)
    means = []
    for part, own in zip(prints.split(BLOCK), sizes.split(BLOCK)):
        shared = part @ prints.T
        means.append((shared / (own[:, None] + sizes - shared)).double().mean(1))
    each = torch.cat(means)
    error = 2 * float(each.std()) / len(each) ** 0.5 if len(each) > 1 else 0.0
    return 1 - float(each.mean()), error


def _share(count: int, of: int) -> Found:
    value = count / of if of else 0.0
    return value, (value * (1 - value) / of) ** 0.5 if of else 0.0


@dataclass(frozen=True, eq=False)
class _Clients:
    known: list[set[str]]  # canonical molecules of each
    weights: Tensor
    asked: tuple[str, ...]


@dataclass(frozen=True)
class _Molecules(ScoreDefinition):
    needs: ClassVar[Needs] = "texts"
    family: ClassVar[str] = "molecules"
    has_distribution: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True

    def prepare(self, clients: ClientSide) -> _Clients:
        asked = clients.asked or tuple(kind.name for kind in _Molecules.__subclasses__())
        parts = clients.features if Novelty.name in asked else []
        known = [set(canonical_molecules(decode_all(part))) for part in parts]
        return _Clients(known, resolve_weights(clients.weights, clients.counts), asked)

    def compare(self, prepared: _Clients, generated: GeneratedSet, errors: bool) -> dict[str, FederatedScore]:
        texts = decode_all(generated.rows)
        molecules = canonical_molecules(texts)
        alike = {
            Validity.name: lambda: _share(len(molecules), len(texts)),
            Uniqueness.name: lambda: uniqueness(molecules),
            InternalDiversity.name: lambda: internal_diversity(molecules),
        }
        found: dict[str, FederatedScore] = {}
        for name in prepared.asked:
            if name in alike:  # of the generated ones alone: the same for every client
                one = alike[name]()
                each, pooled = [one] * len(prepared.weights), one
            else:
                made, pool = set(molecules), set[str]().union(*prepared.known)
                each = [_share(len(made - own), len(made)) for own in prepared.known]
                pooled = _share(len(made - pool), len(made))
            found[name] = _combined(name, each, pooled, prepared.weights, errors)
        return found


def _combined(name: str, each: Sequence[Found], pooled: Found, weights: Tensor, errors: bool) -> FederatedScore:
    values, own = torch.tensor(each, dtype=torch.float64).T
    options: dict[str, Any] = {}
    if errors:  # clients meet the same generated molecules, so their errors are taken as one
        worst = worst_place(values, weights, higher_is_better=True)
        ends = {"avg": float(weights @ own), "all": pooled[1], "worst": float(own[worst])}
        options = {"error_parts": {"generated": ends}, "client_error_parts": {"generated": own}}
    return combine(name, values, pooled[0], weights, higher_is_better=True, **options)


@dataclass(frozen=True)
class Validity(_Molecules):
    """The share of generated texts that are molecules."""

    name: ClassVar[str] = "validity"


@dataclass(frozen=True)
class Uniqueness(_Molecules):
    """The share of different ones among the generated molecules: it falls as more are drawn."""

    name: ClassVar[str] = "uniqueness"


@dataclass(frozen=True)
class Novelty(_Molecules):
    """The share of different generated molecules that a client does not hold in the split: all, that none holds.

    MOSES' novelty, where the split is all that the model has trained on.
    """

    name: ClassVar[str] = "novelty"
    has_distribution: ClassVar[bool] = True


@dataclass(frozen=True)
class InternalDiversity(_Molecules):
    """1 less the mean similarity of two generated molecules: see `internal_diversity`."""

    name: ClassVar[str] = "internal_diversity"
