"""All that an open run hears of its clients, byte by byte: weights, statistics and scores, and nothing else."""

from dataclasses import fields

import pytest
from flwr.common.serde import message_to_proto

from fedgen.data import ImageFolder
from fedgen.flower.wire.flower_records import EXAMPLES, METRICS, REST, WEIGHTS, from_records
from fedgen.flower.wire.messages import Answer, Hello, Told
from fedgen.flower.wire.serialization import from_bytes
from fedgen.io.tensor_files import tensors_in
from fedgen.statistics.statistic_messages import Message
from tests.flower.loopback import keep_replies
from tests.flower.runs import deploy, recipe, write_images

SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", "kid", "kid-rbf"]}
SIZES = {"a": 12, "b": 25}
KINDS = {"query": Hello, "train": Answer, "evaluate": Told}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The clients' images, what they keep, and every reply of a run with personal tensors, kept optimizers, scores."""
    folder = tmp_path_factory.mktemp("run")
    images = write_images(folder / "clients", SIZES)
    with pytest.MonkeyPatch.context() as patch:
        heard = keep_replies(patch)
        deploy(recipe(2, SCORES, personal=["critic.*"], optimizer_state="keep"), images, folder / "run")
    return images, [folder / f"run-{name}" for name in SIZES], heard


@pytest.mark.slow
def test_replies_have_the_parts_that_the_docs_name_and_no_others(run):
    _, _, heard = run
    kinds = [reply.metadata.message_type for reply in heard]
    # met once, two rounds, and asked for summaries, sketches and, of each round, KIDs
    assert {kind: kinds.count(kind) for kind in KINDS} == {"query": 2, "train": 4, "evaluate": 2 * 4}
    for reply in heard:
        numbers = {METRICS} if reply.metadata.message_type == "train" else set()
        assert reply.content.keys() == {WEIGHTS, REST} | numbers
        said = from_records(KINDS[reply.metadata.message_type], reply)
        rest = from_bytes(reply.content[REST]["rest"], "it")
        assert rest.keys() == {"version"} | {one.name for one in fields(said)} - {"weights"}
        if isinstance(said, Hello):
            assert {one.name for one in fields(said)} == {"name", "examples", "shape", "classes", "release", "kind"}
        elif isinstance(said, Answer):
            assert reply.content[METRICS].keys() == {EXAMPLES}
            assert said.weights
            assert all(name.startswith("generator.") for name in said.weights)
            assert list(tensors_in(said.told)) == []  # of kept optimizers nothing travels
            assert said.metrics.keys() == {"critic_loss", "critic_gap", "generator_loss"}  # what its steps logged
        else:
            found = {Message.from_bytes(data).kind for data in said.messages}
            assert found in ({"gaussian-images"}, {"cubic", "fourier"}, {"kid"})


@pytest.mark.slow
def test_no_image_no_feature_and_no_personal_tensor_is_among_the_bytes(run):
    images, kept, heard = run
    sent = b"".join(message_to_proto(reply).SerializeToString() for reply in heard)
    for name in SIZES:
        levels = ImageFolder(images / name, channels=1).load("train").inputs
        for one in levels:
            for form in (one, one.float() / 255, one.double() / 255, one.float() / 127.5 - 1):
                assert form.numpy().tobytes() not in sent
    own = 0
    for folder in kept:
        for path in folder.rglob("round=*.safetensors"):
            for tensor in tensors_in(from_bytes(path.read_bytes(), "it", sealed=True)):
                if tensor.numel() > 8 and bool(tensor.any()):
                    own += 1
                    assert tensor.numpy().tobytes() not in sent
    assert own > 8 * len(SIZES)
    answer = next(from_records(Answer, reply) for reply in heard if reply.metadata.message_type == "train")
    assert all(tensor.numpy().tobytes() in sent for tensor in answer.weights.values())  # what is sent would be found
