"""Validity, uniqueness, novelty and internal diversity of molecules, by hand and beside RDKit's own similarities."""

import pytest
import torch

from fedgen.data import Examples
from fedgen.data.text import encode_all
from fedgen.embeddings.text_bytes import TextBytes
from fedgen.evaluation import evaluate
from fedgen.evaluation.panels import check_embedding
from fedgen.evaluation.score_choice import choose_scores
from fedgen.scores import ClientSide, GeneratedSet
from fedgen.scores.definitions import definitions
from fedgen.scores.of_model.molecules import internal_diversity, uniqueness

pytest.importorskip("rdkit")

MADE = ["CCO", "OCC", "C(C)O", "CCN", "c1ccccc1", "C1", "", "not one"]  # ethanol three times; five are molecules
HELD = [["CCO", "CCC"], ["c1ccccc1", "CCO", "CCBr", "CCCl"]]
NAMES = ("validity", "uniqueness", "novelty", "internal_diversity")


def score(made, asked=NAMES):
    rows = TextBytes()
    clients = ClientSide([rows(part) for part in HELD], "examples", asked=asked)
    return definitions()[asked[0]]().fit(clients).score(GeneratedSet(rows(made)), errors=True)


def test_values_are_those_counted_by_hand():
    found = score(MADE)
    assert set(found) == set(NAMES)
    assert found["validity"].values == {"avg": 5 / 8, "all": 5 / 8, "worst": 5 / 8}
    assert found["uniqueness"].values["all"] == 3 / 5
    assert found["novelty"].per_client.tolist() == [2 / 3, 1 / 3]  # of ethanol, ethylamine and benzene
    assert found["novelty"].values["avg"] == pytest.approx((2 * 2 / 3 + 4 * 1 / 3) / 6)
    assert found["novelty"].values["all"] == pytest.approx(1 / 3)
    assert found["novelty"].values["worst"] == pytest.approx(1 / 3)
    assert found["validity"].errors["all"] == pytest.approx((5 / 8 * 3 / 8 / 8) ** 0.5)


def test_one_alone_and_none_at_all():
    assert set(score(MADE, ("validity",))) == {"validity"}
    assert {name: one.values["all"] for name, one in score(["x", "C1"]).items()} == dict.fromkeys(NAMES, 0.0)


def test_internal_diversity_is_one_less_rdkits_mean_similarity():
    from rdkit import Chem, DataStructs
    from rdkit.Chem.AllChem import GetMorganFingerprintAsBitVect

    texts = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "Cn1cnc2c1c(=O)n(C)c(=O)n2C", "c1ccccc1", "CC(=O)Nc1ccc(O)cc1"]
    prints = [GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(text), 2, nBits=1024) for text in texts]
    mean = sum(DataStructs.TanimotoSimilarity(a, b) for a in prints for b in prints) / len(texts) ** 2
    assert internal_diversity(texts)[0] == pytest.approx(1 - mean, abs=1e-6)


def test_errors_cover_what_draws_differ_by():
    draws = torch.Generator().manual_seed(0)
    pool = [f"{'C' * a}O{'C' * b}" for a in range(1, 12) for b in range(1, 12)]
    found = []
    for _ in range(200):
        drawn = [pool[place] for place in torch.randint(len(pool), (100,), generator=draws).tolist()]
        found.append(uniqueness(drawn))
    values, errors = torch.tensor(found, dtype=torch.float64).T
    assert 0.8 < float(errors.mean() / values.std()) < 1.8  # of shares that rarely repeat the jackknife is too large


class Writer(torch.nn.Module):
    """A model that writes the same texts at every call."""

    def sample(self, number, generator=None):
        return (MADE * number)[:number]


def test_an_evaluation_needs_no_embedding_for_them():
    rows = [encode_all(part) for part in HELD]
    clients = {"train": [Examples(part, torch.zeros(len(part), dtype=torch.int64), "texts", ("all",)) for part in rows]}
    records = evaluate(Writer(), clients, scores=["validity", "novelty"], num_images=8)
    found = {one.name: one.value for one in records if one.generator == "model"}
    assert found["validity_all"] == 5 / 8
    assert found["novelty_all"] == pytest.approx(1 / 3)
    assert {one.embedding for one in records} == {"bytes"}


@pytest.mark.parametrize("embedding", ["chemnet", "pixels"])
def test_of_another_embedding_than_bytes_they_are_refused(embedding):
    with pytest.raises(ValueError, match="bytes"):
        check_embedding(choose_scores(["validity"])[0], embedding)
