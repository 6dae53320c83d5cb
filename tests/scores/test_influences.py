import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from fedgen.scores import (
    AuthenticityReference,
    FederatedScore,
    KernelReference,
    ManifoldReference,
    RBFKernel,
    SlicedReference,
    memorisation,
)
from fedgen.scores.aggregate import SharedVariances, client_blocks

SCORES: dict[str, Callable[[list[Tensor], Tensor, bool], FederatedScore | Mapping[str, FederatedScore]]] = {
    "kid": lambda parts, made, errors: KernelReference.from_features(parts).score(made, errors),
    "kid-rbf": lambda parts, made, errors: KernelReference.from_features(parts, RBFKernel(), "v").score(made, errors),
    "prdc": lambda parts, made, errors: ManifoldReference.from_features(parts, 2).score(made, errors),
    "authenticity": lambda parts, made, errors: AuthenticityReference.from_features(parts).score(made, errors),
    "sw1": lambda parts, made, errors: SlicedReference.from_features(parts, 1, 20).score(made, errors),
    "sw2": lambda parts, made, errors: SlicedReference.from_features(parts, 2, 20).score(made, errors),
    "memorisation": lambda parts, made, _: memorisation(parts, [part[:2] + 0.1 for part in parts], made),
}
# of a client and a generated image there are 8 million pairs; each score in a fork, as a process has but one peak
MEASURED = """
import os, resource, sys, torch
from fedgen.scores import AuthenticityReference, KernelReference, ManifoldReference, SlicedReference
torch.set_num_threads(1)
sys.modules["fedgen.scores.aggregate"].PAIRS = 2**18
features = torch.randn(8_000, 4, generator=torch.Generator().manual_seed(0))
clients, made = list(features[:4_000].split(2)), features[4_000:]
references = {
    "kid": lambda: KernelReference.from_features(clients),
    "prdc": lambda: ManifoldReference.from_features(clients, k=1),
    "authenticity": lambda: AuthenticityReference.from_features(clients),
    "sw1": lambda: SlicedReference.from_features(clients, projections=2),
}
for name, make in references.items():
    if not os.fork():
        reference = make()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reference.score(made)
        print(name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        os._exit(0)
    os.wait()
"""


def draw(count: int, seed: int) -> Tensor:
    return torch.randn(count, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(found: FederatedScore | Mapping[str, FederatedScore]) -> dict[str, Tensor]:
    """All that a score or several say, by name."""
    if not isinstance(found, FederatedScore):
        return {f"{name} {key}": value for name, score in found.items() for key, value in numbers(score).items()}
    own = {"per client": found.per_client, **found.client_error_parts}
    sides = {"": found.values, "error": found.errors, **found.error_parts, "over clients": found.errors_over_clients}
    return own | {side: torch.tensor(list(values.values())) for side, values in sides.items()}


def test_a_block_holds_whole_clients_and_at_most_so_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fedgen.scores.aggregate"], "PAIRS", 20)
    blocks = [(slice(0, 2), slice(0, 7)), (slice(2, 4), slice(7, 11)), (slice(4, 5), slice(11, 14))]
    assert list(client_blocks([3, 4, 1, 3, 3], 10)) == blocks
    assert list(client_blocks([3, 4], 100)) == [(slice(0, 1), slice(0, 3)), (slice(1, 2), slice(3, 7))]


@pytest.mark.parametrize("errors", [True, False])
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_errors_are_the_same_in_blocks_of_clients(
    name: str, errors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, made = [draw(count, count) for count in (3, 9, 4, 5, 12)], draw(30, 1)
    made[:2] = clients[3][:2]
    expected = numbers(SCORES[name](clients, made, errors))
    for pairs in (1, 60):
        monkeypatch.setattr(sys.modules["fedgen.scores.aggregate"], "PAIRS", pairs)
        found = numbers(SCORES[name](clients, made, errors))
        assert found.keys() == expected.keys()
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-11, atol=1e-13, msg=f"{name} {key} {pairs}")


def test_shared_variances_by_hand() -> None:
    shared = SharedVariances(torch.tensor([0.5, 0.5]).double())
    shared.add(slice(0, 1), torch.tensor([[0.0, 2.0]]).double())  # variance of the mean: 2 / 2
    shared.add(slice(1, 2), torch.tensor([[0.0, 4.0]]).double())
    assert shared.of_clients.tolist() == [1, 4]
    assert shared.errors(1) == {"avg": 1.5, "all": 1.5, "worst": 2}  # the mean of both is 0 and 3
    assert shared.errors(0, torch.tensor([1.0, 1.0]))["all"] == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_clients_times_generated_images() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED], stdout=subprocess.PIPE, text=True, check=True)
    found = {name: int(grown) for name, grown in map(str.split, done.stdout.splitlines())}
    # kilobytes; all pairs at once take 100,000 (authenticity) to 600,000 (prdc)
    assert max(found.values()) < 70_000, found
    assert len(found) == 4
