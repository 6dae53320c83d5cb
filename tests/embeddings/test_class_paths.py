"""One's own embedding by its class path: in Python, in metrics and losses, in recipes and commands."""

import pytest
import torch

from fedgen.embeddings import load_embedding
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.metrics import KernelDistance
from tests.embeddings.own import Halves, MyEmbedding, of_ones

PATH = "tests.embeddings.own.MyEmbedding"
IMAGES = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given",
    [
        PATH,
        {"class_path": PATH},
        {"class_path": PATH, "init_args": {"width": 6}},
        {"class_path": "tests.embeddings.own.make_embedding", "init_args": {"width": 6}, "name": "MyEmbedding"},
        {"name": PATH},
    ],
)
def test_every_spelling_gives_features(given):
    embedding = load_embedding(given)
    assert (embedding.name, embedding(IMAGES).shape, embedding.dim) == ("MyEmbedding", (12, 6), 6)


def test_weights_that_nothing_is_loaded_into_are_the_same_in_every_process_and_move_no_generator():
    before = torch.get_rng_state()
    first = load_embedding(PATH)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert load_embedding(PATH).fingerprint() == first.fingerprint()
    other = load_embedding({"class_path": PATH, "init_args": {"width": 7}})
    assert other.fingerprint() != first.fingerprint()


def test_weights_of_a_file_are_loaded_and_named_by_their_hash(tmp_path):
    torch.save(of_ones(6), tmp_path / "mine.pth")
    embedding = load_embedding(PATH, weights=tmp_path / "mine.pth")
    assert embedding.network.filters.bias.tolist() == [1.0] * 6
    assert embedding.fingerprint() != load_embedding(PATH).fingerprint()
    given = {"class_path": PATH, "weights": str(tmp_path / "mine.pth"), "input_range": "unit"}
    assert load_embedding(given).settings["input_range"] == "unit"


def test_an_embedding_of_the_kits_own_kind_is_taken_as_it_is():
    assert isinstance(load_embedding("tests.embeddings.own.Halves"), Halves)
    assert load_embedding("tests.embeddings.own.Halves", weights="x.pth").name == "halves of x.pth"
    with pytest.raises(ValueError, match="embedding"):
        load_embedding({"class_path": "tests.embeddings.own.Halves", "input_range": "unit"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("my_kit.Embedding", "there is no module 'my_kit'"),
        ("tests.embeddings.own.MyEmbeding", r"has no 'MyEmbeding'; did you mean 'MyEmbedding'\?"),
        ("os.system", "must be a torch.nn.Module, or a function annotated as returning one; os.system is"),
        (
            {"class_path": "tests.embeddings.own.make_anything", "init_args": {"command": "x"}},
            "must be a torch.nn.Module",
        ),
        ({"class_path": PATH, "init_args": {"wide": 6}}, "unexpected keyword argument 'wide'; its init_args: width"),
        ({"class_path": PATH, "range": "unit"}, "no option 'range'; its options: input_range"),
        ({"weights": "x.pth"}, "needs its name or class_path"),
    ],
)
def test_mistakes_name_what_was_given_and_nothing_else_is_called(given, message):
    with pytest.raises(ValueError, match=message):
        load_embedding(given)


def test_metrics_and_losses_take_class_paths():
    metric = KernelDistance(embedding=PATH)
    metric.update(IMAGES[:6], real=True)
    metric.update(IMAGES[6:], real=False)
    assert metric.compute().isfinite()
    loss = EmbeddedLoss(FastFIDLoss(), embeddings=[{"class_path": PATH}]).set_references([IMAGES])
    assert loss((IMAGES / 127.5 - 1).requires_grad_()).isfinite()
    assert MyEmbedding.__name__ in loss.names
