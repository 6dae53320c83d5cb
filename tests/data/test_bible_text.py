"""The King James Version, from the file that Debian's package brings."""

import pytest

from fedgen.clients.partitions import Natural
from fedgen.data import BibleKJV
from fedgen.data.text import PATH, SECTION_OF, decode, read_books
from tests.data.bible_file import some_verses, write_bible


def test_books_are_owners_and_sections_classes(tmp_path):
    verses = some_verses()
    data = BibleKJV(32, write_bible(tmp_path / "bible.data", verses)).load()
    assert data.name == "bible_kjv-32/train"
    assert data.owner_names == ("Ge", "Exo", "Psa", "3Jn")
    assert data.classes == ("law", "wisdom", "letters")
    assert data.inputs.shape[1:] == (33,)
    exodus = "".join(f"{text}\n" for reference, text in verses if reference.startswith("Exo"))
    own = data.inputs[data.owners == 1]
    assert decode(own.flatten()) == exodus[: len(exodus) // 33 * 33]
    assert {data.classes[label] for label in data.labels[data.owners == 3]} == {"letters"}
    assert Natural().names(data) == list(data.owner_names)


def test_verses_lose_their_numbers_and_keep_their_breaks(tmp_path):
    file = write_bible(
        tmp_path / "bible.data", [("Ge1:1", "In the beginning"), ("Ge1:2", "And"), ("2Jn1:1", "The elder")]
    )
    assert read_books(file) == {"Ge": "In the beginning\nAnd\n", "2Jn": "The elder\n"}


def test_sections_have_all_66_books():
    assert len(SECTION_OF) == 66


def test_a_file_that_is_not_there_names_the_package(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        BibleKJV(path=tmp_path / "nowhere").load()
    with pytest.raises(ValueError, match="length"):
        BibleKJV(0)
    with pytest.raises(ValueError, match="split"):
        BibleKJV().load("test")


def test_a_file_that_changed_is_read_again(tmp_path):
    file = write_bible(tmp_path / "bible.data", [("Ge1:1", "In the beginning")])
    assert set(read_books(file)) == {"Ge"}
    write_bible(file, [("Exo1:1", "Now these are the names")])
    assert set(read_books(file)) == {"Exo"}


def damage(kind, data):
    at = 0x54 + 8
    changes = {
        "another file": b"PK\3\4" + data[4:],
        "cut": data[:-40],
        "header alone": data[:40],
        "no windows": data[:0x58] + bytes(4) + data[0x5C:],
        "places outside": data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :],
        "other codes": data[:-60] + b"\xff" * 60,
    }
    return changes[kind]


@pytest.mark.parametrize("kind", ["another file", "cut", "header alone", "no windows", "places outside", "other codes"])
def test_a_damaged_file_is_refused_with_the_remedy(tmp_path, kind):
    file = write_bible(tmp_path / "bible.data", some_verses())
    file.write_bytes(damage(kind, file.read_bytes()))
    with pytest.raises(ValueError, match="install"):
        BibleKJV(path=file).load()


@pytest.mark.parametrize("verse", [("Xyz1:1", "No such book"), ("Ge", "no verse")])
def test_lines_that_are_no_verses_are_refused(tmp_path, verse):
    file = write_bible(tmp_path / "bible.data", [("Ge1:1", "In the beginning"), verse])
    with pytest.raises(ValueError, match="verse"):
        read_books(file)


@pytest.mark.slow
@pytest.mark.skipif(not PATH.exists(), reason="the package bible-kjv-text is not installed")
def test_the_installed_text_is_whole():
    books = read_books(PATH)
    assert list(books) == list(SECTION_OF)
    assert sum(text.count("\n") for text in books.values()) == 31_102
    assert books["Ge"].startswith("In the beginning God created the heaven and the earth.\n")
    assert books["Rev"].endswith("The grace of our Lord Jesus Christ be with you all. Amen.\n")
