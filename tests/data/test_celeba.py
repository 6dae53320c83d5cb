import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from fedgen.clients.partitions import Natural
from fedgen.data import CelebA
from fedgen.data.sets.listed_images import read_face

FACES = {"000001.jpg": 0, "000002.jpg": 2, "000003.jpg": 1, "000004.jpg": 0}
ATTRIBUTES = """4
Bald Smiling Young
000001.jpg -1  1 -1
000002.jpg  1 -1 -1
000003.jpg  1  1  1
000004.jpg  1 -1  1
"""


def write_face(path, value, size=(178, 218)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value,) * 3).save(path)


def write_celeba(root, images="img_align_celeba", lists=".", attributes="."):
    """A tiny folder in the published form: face k has the grey level 10 k throughout."""
    for value, name in enumerate(FACES, 1):
        write_face(root / images / name, 10 * value)
    for folder in (lists, attributes):
        (root / folder).mkdir(exist_ok=True)
    (root / lists / "list_eval_partition.txt").write_text("".join(f"{name} {code}\n" for name, code in FACES.items()))
    (root / attributes / "list_attr_celeba.txt").write_text(ATTRIBUTES)
    return root


@pytest.mark.parametrize("place", [".", "celeba"])
@pytest.mark.parametrize("folders", [("img_align_celeba", ".", "."), ("Img/img_align_celeba", "Eval", "Anno")])
def test_the_list_of_partitions_says_which_faces_belong_to_a_split(tmp_path, place, folders):
    write_celeba(tmp_path / place, *folders)
    train, test = CelebA(tmp_path).load(), CelebA(tmp_path).load("test")
    assert train.inputs.shape == (2, 3, 64, 64)
    assert train.inputs[:, :, 30, 30].tolist() == [[10, 10, 10], [40, 40, 40]]
    assert test.inputs[:, :, 30, 30].tolist() == [[20, 20, 20]]
    assert (train.name, test.name, train.is_labelled) == ("celeba-64/train", "celeba-64/test", False)


def test_an_attribute_makes_two_classes(tmp_path):
    data = CelebA(write_celeba(tmp_path), size=8, attribute="Smiling")
    train = data.load()
    assert train.labels.tolist() == [1, 0]
    assert train.classes == ("not Smiling", "Smiling")
    assert train.name == "celeba-8-Smiling/train"
    assert data.load("test").labels.tolist() == [0]


def test_people_are_owners_where_they_are_asked_for(tmp_path):
    root = write_celeba(tmp_path, attributes="Anno")
    with pytest.raises(FileNotFoundError, match="identity_CelebA"):
        CelebA(root, size=8, identities=True).load()
    (root / "Anno" / "identity_CelebA.txt").write_text("000001.jpg 2880\n000002.jpg 7\n000003.jpg 7\n000004.jpg 12\n")
    train = CelebA(root, size=8, identities=True).load()
    assert train.owner_names == ("person 12", "person 2880")
    assert train.owners.tolist() == [1, 0]
    assert Natural().names(train) == ["person 12", "person 2880"]
    assert CelebA(root, size=8).load().owners is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("000001.jpg 1\n", "no line for 1 images, e.g. 000004.jpg"), ("000001.jpg x\n", "line 1: '000001.jpg x'")],
)
def test_damaged_lists_of_people_are_refused(tmp_path, text, said):
    root = write_celeba(tmp_path)
    (root / "identity_CelebA.txt").write_text(text)
    with pytest.raises(ValueError, match=said):
        CelebA(root, size=8, identities=True).load()


@pytest.mark.parametrize("crop", [178, 148, 140, 108, 63])
def test_faces_are_cut_and_resized_as_torchvision_does(tmp_path, crop):
    pixels = np.random.default_rng(0).integers(0, 256, (218, 178, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "face.png")
    pipeline = transforms.Compose(
        [transforms.CenterCrop(crop), transforms.Resize(32, transforms.InterpolationMode.BICUBIC), np.array]
    )
    expected = torch.from_numpy(pipeline(Image.fromarray(pixels))).permute(2, 0, 1)
    assert torch.equal(read_face(tmp_path / "face.png", crop, 32), expected)


def test_another_crop_shows_in_the_name(tmp_path):
    assert CelebA(tmp_path, size=32, crop=140).name == "celeba-32-crop140"


def test_an_unknown_attribute_is_refused_with_the_list_of_known_ones_before_images_are_read(tmp_path):
    write_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000001.jpg").unlink()
    with pytest.raises(ValueError, match="list_attr_celeba"):
        CelebA(tmp_path, attribute="Happy").load()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("000001.jpg 0\n000002.jpg 3\n", "line 2: '000002.jpg 3' is not an image and 0, 1 or 2"),
        ("000001.jpg 0\n000002\n", "line 2: '000002' is not an image"),
        ("000001.jpg 2\n", "gives no image the code 0"),
        ("", "gives no image the code 0"),
    ],
)
def test_a_damaged_list_of_partitions_is_named(tmp_path, lines, message):
    write_celeba(tmp_path)
    (tmp_path / "list_eval_partition.txt").write_text(lines)
    with pytest.raises(ValueError, match=rf"list_eval_partition\.txt.* {message}"):
        CelebA(tmp_path).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "attribute 'Bald' is not in .* it has none"),
        ("1\nBald Young\n000001.jpg 1\n", "line 3: not an image and 2 times 1 or -1"),
        ("1\nBald Young\n000001.jpg 0 1\n", "line 3: not an image and 2 times 1 or -1"),
        ("1\nBald Young\n000001.jpg 1 1\n", "has no line for 1 images, e.g. 000004.jpg"),
    ],
)
def test_a_damaged_list_of_attributes_is_named(tmp_path, text, message):
    write_celeba(tmp_path)
    (tmp_path / "list_attr_celeba.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        CelebA(tmp_path, attribute="Bald").load()


@pytest.mark.parametrize("content", [b"\xff\xfe0\x000\x00", "000001.jpg 0 \u0660".encode()])
def test_a_list_that_is_no_plain_text_is_named(tmp_path, content):
    (write_celeba(tmp_path) / "list_eval_partition.txt").write_bytes(content)
    with pytest.raises(ValueError, match="list_eval_partition"):
        CelebA(tmp_path).load()


def test_images_that_are_listed_but_missing_are_counted(tmp_path):
    write_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000004.jpg").unlink()
    with pytest.raises(FileNotFoundError, match="unpack"):
        CelebA(tmp_path).load()


def test_images_that_cannot_be_read_are_all_named(tmp_path):
    write_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000001.jpg").write_bytes(b"no image")
    write_face(tmp_path / "img_align_celeba" / "000004.jpg", 1, size=(100, 100))
    with pytest.raises(ValueError, match="celeba") as caught:
        CelebA(tmp_path).load()
    assert "000001.jpg (no image of PNG, " in str(caught.value)
    assert "000004.jpg (it is 100 x 100 pixels, not 178 x 218" in str(caught.value)


@pytest.mark.parametrize("name", ["img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"])
def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, name):
    (write_celeba(tmp_path) / name).rename(tmp_path / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=rf"^{name} of CelebA was not found in .*celeba, .*mmlab\.ie\.cuhk"
    ) as error:
        CelebA(tmp_path, attribute="Bald").load()
    assert f"unpack them into {tmp_path / 'celeba'}" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "size must be"), ({"crop": 179}, "crop must be 1 to 178")]
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CelebA(**options)


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("list_eval_partition.txt", "000001.jpg 2\n", r"list_eval_partition\.txt, line 5: '000001.jpg' is in line 1"),
        ("list_attr_celeba.txt", "000001.jpg 1 -1 1\n", r"list_attr_celeba\.txt, line 7: '000001.jpg' is in line 3"),
        ("identity_CelebA.txt", "a 1\n000001.jpg 3\na 2\n", r"identity_CelebA\.txt, line 3: 'a' is in line 1 already"),
    ],
)
def test_a_list_that_names_an_image_twice_is_refused_with_both_lines(tmp_path, file, line, words):
    root = write_celeba(tmp_path)
    with (root / file).open("a") as opened:
        opened.write(line)
    with pytest.raises(ValueError, match=words):
        CelebA(root, size=8, attribute="Smiling", identities=True).load()
