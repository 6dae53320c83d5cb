"""ChemNet: features of molecules, beside those of fcd-torch."""

import math

import numpy as np
import pytest
import torch

from fedgen import Examples, evaluate, load_embedding
from fedgen.data.text import decode_all, encode_all
from fedgen.embeddings.chemnet import ChemNetLayers, to_symbols
from fedgen.scores import frechet_distance
from fedgen.statistics import summarize

MOLECULES = ["CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "ClC(Br)[Si](C)C", "O=C=O"]
MORE = ["CCN", "CCCC", "c1ccncc1", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C[C@@H](N)C(=O)O", "FC(F)F"]


@pytest.fixture
def theirs(monkeypatch):
    """fcd-torch, whose file of weights torch now refuses to unpickle, and whose NumPy had row_stack."""
    from fcd_torch import fcd

    load = torch.load
    monkeypatch.setattr(fcd.torch, "load", lambda path: load(path, weights_only=False))
    monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)
    return fcd.FCD(batch_size=8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The `disp` argument:DeprecationWarning")  # of SciPy, which fcd-torch calls so
def test_features_and_their_distance_are_those_of_fcd_torch(theirs):
    ours = [load_embedding("chemnet")(part) for part in (MOLECULES, MORE)]
    for part, texts in zip(ours, (MOLECULES, MORE)):
        np.testing.assert_allclose(part.numpy(), theirs.get_predictions(texts), atol=1e-5)
    many = [torch.cat([part + 0.01 * torch.randn(6, 512, generator=generator(i)) for i in range(100)]) for part in ours]
    sums = [{"mu": part.double().mean(0).numpy(), "sigma": np.cov(part.double().numpy().T)} for part in many]
    assert frechet_distance(*map(summarize, many))[0] == pytest.approx(theirs.metric(*sums), rel=1e-6)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("text", [*MOLECULES, "[Na+].[Cl-]", "C" * 400, "c1ccccc1%10CCC%10", "[Zn]"])
def test_symbols_are_those_of_fcd_torch(text):
    from fcd_torch.utils import get_one_hot

    np.testing.assert_allclose(to_symbols([text])[0].T.numpy(), get_one_hot(text, 350) / 35, rtol=1e-6)


def test_a_molecule_has_the_same_features_however_it_is_written():
    embedding = load_embedding("chemnet")
    torch.testing.assert_close(embedding(["OCC"]), embedding(["CCO"]), rtol=0, atol=0)
    torch.testing.assert_close(embedding(["CCO"]), embedding(encode_all(["CCO"])), rtol=0, atol=0)
    written = load_embedding({"name": "chemnet", "canonical": False})
    assert not torch.equal(written(["OCC"]), written(["CCO"]))
    assert embedding.fingerprint() != written.fingerprint()


def test_what_is_no_molecule_is_found_and_refused():
    embedding = load_embedding("chemnet")
    assert embedding.usable(["CCO", "C(", ""]) == [True, False, False]
    assert decode_all(embedding.usable_samples(encode_all(["CCO", "C(", "N"]))) == ["CCO", "N"]
    with pytest.raises(ValueError, match="is not a molecule"):
        embedding(["CCO", "C("])
    with pytest.raises(ValueError, match="takes texts"):
        embedding(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_weights_of_a_local_file_are_read(tmp_path):
    path = tmp_path / "own.pt"
    torch.save(ChemNetLayers().state_dict(), path)
    assert load_embedding("chemnet", weights=path).fingerprint() != load_embedding("chemnet").fingerprint()
    torch.save({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="weights of this network"):
        load_embedding("chemnet", weights=path)


def test_a_model_of_texts_is_scored_over_clients_and_what_is_no_molecule_is_left_out_and_said():
    texts = [MOLECULES * 3, MORE * 3]
    clients = [Examples(encode_all(part), torch.zeros(18, dtype=torch.int64), "molecules", ("",)) for part in texts]

    def model(wrong):
        def sample(count, draws):
            places = torch.randint(6, (count,), generator=draws).tolist()
            return [MOLECULES[place] if number % wrong else "C(" for number, place in enumerate(places)]

        return sample

    asked = {"num_images": 40, "embeddings": ["chemnet"], "scores": ["fid", "kid"]}
    records, other = (evaluate(model(wrong), clients, **asked) for wrong in (4, 8))
    found = {record.name: record for record in records}
    # of another checkpoint others are left out, and still it competes with this one
    assert [record.conditions for record in other] == [record.conditions for record in records]
    assert found["fid_all"].num_generated == 40
    assert "10 of 40 generated samples" in found["fid_all"].note
    assert found["kid_avg"].value - found["kid_all"].value > 0
    assert math.isfinite(found["fid_avg"].value)
