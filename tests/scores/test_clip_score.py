"""CLIPScore: angles counted by hand, and evaluations of a model beside the cosines of transformers' CLIP."""

import pytest
import torch
from transformers import CLIPModel, CLIPProcessor, CLIPTokenizer

from fedgen.embeddings import load_embedding
from fedgen.evaluation import Evaluator, draw_images, evaluate, sampler_of
from fedgen.evaluation.image_sampling import drawn_labels
from fedgen.evaluation.splits import Split, StandIn
from fedgen.scores import ClientSide, GeneratedSet
from fedgen.scores.of_model.conditional import ClipScore
from tests.evaluation.conditional import CLIENTS, HELD_OUT, TRAINED, Conditional
from tests.evaluation.samples import CLIENTS as UNLABELLED
from tests.tiny_clip import save_clip_of_texts

PROMPTS = ["a cat", "a dog", "a bee"]
EAST, NORTH = [1.0, 0.0], [0.0, 1.0]
LABELS = [torch.tensor([0, 0, 1, 0]), torch.tensor([1, 1])]


def by_hand(labels=LABELS, weights="examples"):
    """Two clients; the texts of the two classes lie in the east and in the north."""
    parts = [torch.zeros(len(own), 2) for own in labels]
    texts = lambda given: torch.tensor([[2.0, 0.0], [0.0, 5.0]][: len(given)])  # noqa: E731
    clients = ClientSide(parts, weights, labels=labels, num_classes=2, texts=texts)
    return ClipScore(PROMPTS[:2]).fit(clients)


def score(rows, asked, errors=False, **options):
    made = GeneratedSet(torch.tensor(rows), labels=torch.tensor(asked))
    return by_hand(**options).score(made, errors)["clip_score"]


def test_it_is_the_cosine_of_images_and_their_classs_text_as_often_as_a_client_has_the_class():
    found = score([EAST, [3.0, 4.0], [3.0, 4.0]], [0, 0, 1])  # class 0: 1 and 0.6; class 1: 0.8
    assert found.per_client.tolist() == pytest.approx([(3 * 80 + 80) / 4, 80])
    without = score([EAST, NORTH], [0, 0], labels=[LABELS[0]])  # 100 and 0; class 1 was not drawn, and class 0 counts
    assert without.per_client.tolist() == [50]


def test_it_is_linear_in_the_client_so_all_is_avg_at_any_weights():
    found = score([[4.0, 3.0], NORTH], [0, 1])  # 80 and 100
    assert found.per_client.tolist() == pytest.approx([(3 * 80 + 100) / 4, 100])
    assert found.values["all"] == found.values["avg"] == pytest.approx((3 * 80 + 3 * 100) / 6)
    assert found.values["worst"] == pytest.approx(85)
    uniform = score([[4.0, 3.0], NORTH], [0, 1], weights="uniform")
    assert uniform.values["all"] == uniform.values["avg"] == pytest.approx(92.5)
    assert found.higher_is_better


def test_an_image_that_points_away_counts_nothing():
    assert score([[-1.0, 0.0], EAST, NORTH], [0, 0, 1]).per_client[1] == 100
    assert score([[-1.0, 0.0], EAST, NORTH], [0, 0, 1]).per_client[0] == pytest.approx((3 * 50 + 100) / 4)


def test_errors_are_those_of_the_classes_means_and_of_the_clients_own_classes():
    rows, asked = [EAST, [3.0, 4.0], [4.0, 3.0], NORTH, [4.0, 3.0]], [0, 0, 0, 1, 1]  # 100, 60, 80; 100, 60
    found = score(rows, asked, errors=True)
    of_class = [20**2 / 3, (2 * 20**2) / 2]  # variances over images of a class, over their number
    own = [(0.75**2 * of_class[0] + 0.25**2 * of_class[1]) ** 0.5, of_class[1] ** 0.5]
    assert found.client_error_parts["generated"].tolist() == pytest.approx(own)
    assert found.error_parts["generated"]["all"] == pytest.approx((0.5**2 * sum(of_class)) ** 0.5)
    assert found.error_parts["generated"]["worst"] == pytest.approx(own[0])
    assert found.error_parts["real"]["all"] == 0  # both classes are drawn as well: 80 and 80
    assert found.errors["all"] == pytest.approx(found.error_parts["generated"]["all"])


def test_errors_cover_the_spread_over_draws_of_both_sides():
    draws = torch.Generator().manual_seed(0)
    values, told = [], []
    for _ in range(250):
        labels = [torch.randint(2, (30,), generator=draws), torch.randint(2, (20,), generator=draws)]
        asked = torch.randint(2, (50,), generator=draws)
        angles = 0.3 + 0.2 * torch.rand(50, generator=draws) + asked * 0.5  # classes differ in their fit
        made = GeneratedSet(torch.stack([angles.cos(), angles.sin()], 1), labels=asked)
        found = by_hand(labels).score(made, True)["clip_score"]
        values.append(found.values["all"])
        told.append(found.errors["all"])
    spread = torch.tensor(values).std()
    assert torch.tensor(told).square().mean().sqrt() == pytest.approx(float(spread), rel=0.12)


def test_a_client_of_whose_classes_no_image_was_generated_is_named():
    with pytest.raises(ValueError, match="generated"):
        score([EAST], [0], labels=[torch.tensor([0]), torch.tensor([1])])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip_of_texts(tmp_path_factory.mktemp("clips") / "clip")


SCORE = {"name": "clip_score", "prompts": PROMPTS}
OPTIONS = {"num_images": 60, "seed": 3, "chunk": 50}


def their_cosines(clip, images, labels):
    """The cosines of images and their classes' prompts, float [N], by transformers alone."""
    model, tokenizer = CLIPModel.from_pretrained(clip).eval(), CLIPTokenizer.from_pretrained(clip)
    levels = torch.nn.functional.interpolate(
        images.float().expand(-1, 3, -1, -1), (32, 32), mode="bicubic", antialias=True, align_corners=False
    )
    mean, std = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    tokens = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(pixel_values=(levels.clamp(0, 255) / 255 - mean) / std, **tokens)
        return (found.logits_per_image / model.logit_scale.exp())[torch.arange(len(labels)), labels]


@pytest.mark.parametrize("options", [{}, {"unit_length": True}])
def test_a_models_score_is_that_of_transformers_clip(clip, options):
    model = Conditional()
    embeddings = [{"name": f"transformers/{clip}", **options}]
    records = evaluate(model, CLIENTS, embeddings=embeddings, scores=[SCORE], round=4, **OPTIONS)
    found = {(one.split, one.aggregate): one for one in records}
    frequencies = Split.of_clients("train", TRAINED).label_frequencies
    draws = {"seed": 3, "round": 4, "stream": "train", "chunk": 50, "frequencies": frequencies}
    images = draw_images(sampler_of(model), 60, **draws)
    labels = drawn_labels(60, **draws)
    cosines = 100 * their_cosines(clip, images, labels).clamp(min=0)
    means = torch.stack([cosines[labels == c].mean() for c in range(3)])
    expected = [float(means[part.labels].mean()) for part in TRAINED]
    assert found["train", "avg"].per_client == pytest.approx(expected, abs=1e-3)
    assert found["train", "all"].value == found["train", "avg"].value
    assert found["train", "all"].standard_error > 0
    assert found["train", "avg"].score_settings == {"prompts": PROMPTS}
    assert found["train", "avg"].higher_is_better


class OlderCLIP(CLIPModel):
    """The methods as torchmetrics expects them: tensors, where newer releases of transformers give outputs."""

    def get_image_features(self, pixel_values):
        return super().get_image_features(pixel_values).pooler_output

    def get_text_features(self, input_ids, attention_mask):
        return super().get_text_features(input_ids, attention_mask).pooler_output


def test_its_texts_and_images_are_those_of_torchmetrics(clip):
    """torchmetrics takes the mean before it clips it at 0, so pairs are chosen whose cosines are above 0."""
    from torchmetrics.functional.multimodal import clip_score

    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(40) % 3
    keep = their_cosines(clip, images, labels) > 0
    images, labels = images[keep], labels[keep]
    assert len(images) > 5
    embedding = load_embedding(f"transformers/{clip}")
    loaded = lambda: (OlderCLIP.from_pretrained(clip), CLIPProcessor.from_pretrained(clip))  # noqa: E731
    texts = [PROMPTS[label] for label in labels]
    theirs = clip_score(list(images), texts, model_name_or_path=loaded)
    clients = ClientSide([embedding(images)], "examples", labels=[labels], texts=embedding.text_features, num_classes=3)
    made = GeneratedSet(embedding(images), labels=labels)
    ours = ClipScore(PROMPTS).fit(clients).score(made, errors=False)["clip_score"]
    assert ours.values["all"] == pytest.approx(float(theirs.detach()), rel=1e-5)


def test_its_floor_is_the_score_of_real_images_of_the_same_classes(clip):
    train, held_out = (Split.of_clients(name, CLIENTS[name]) for name in ("train", "report"))
    report = Split.of_clients("report", HELD_OUT, stand_ins={"floor": StandIn(train.images, train.labels)})
    floor = Evaluator([train, report], embeddings=[f"transformers/{clip}"], scores=[SCORE], **OPTIONS).floor()
    assert {record.name for record in floor} == {f"clip_score_{how}" for how in ("avg", "all", "worst")}
    assert {record.split for record in floor} == {"report"}
    assert len(held_out.images) == 90


@pytest.mark.slow
def test_what_it_cannot_be_measured_with_is_refused_when_the_evaluation_is_made(clip):
    with pytest.raises(ValueError, match="prompts"):
        Evaluator(CLIENTS, embeddings=[f"transformers/{clip}"], scores=[{**SCORE, "prompts": PROMPTS[:2]}], **OPTIONS)
    with pytest.raises(ValueError, match="CLIP"):
        Evaluator(CLIENTS, embeddings=["pixels"], scores=[SCORE], **OPTIONS)
    with pytest.raises(ValueError, match="labels"):
        Evaluator({"train": UNLABELLED}, embeddings=[f"transformers/{clip}"], scores=[SCORE], **OPTIONS)
    for prompts in ("a cat", [], [1]):
        with pytest.raises(ValueError, match="clip_score"):
            Evaluator(CLIENTS, embeddings=["pixels"], scores=[{**SCORE, "prompts": prompts}], **OPTIONS)
    judge = Evaluator(CLIENTS, embeddings=[f"transformers/{clip}"], scores=[SCORE], **OPTIONS)
    with pytest.raises(ValueError, match="num_classes"):
        judge.try_out(sampler_of(Conditional(num_classes=None)))


def test_a_tokenizer_that_is_not_there_is_named(clip, tmp_path):
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((clip / name).read_bytes())
    embedding = load_embedding(f"transformers/{tmp_path}")
    assert embedding.takes_texts
    with pytest.raises(ValueError, match="tokenizer"):
        embedding.text_features(["a"])


def test_a_folder_of_pickled_weights_is_refused(clip, tmp_path):
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((clip / name).read_bytes())
    torch.save(CLIPModel.from_pretrained(clip).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        load_embedding(f"transformers/{tmp_path}")
