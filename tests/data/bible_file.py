"""A small file in the form of Debian's bible.data, made from verses."""

import struct

TITLE = "Holy Bible, Authorized (King James) Version.  Textfile 930105."


def compress_lzw(data, max_bits=16, clear_after=None):
    """The LZW stream of some bytes, as `compress` packs it; with the code that empties the table after so many."""
    table, codes, before = {bytes([value]): value for value in range(256)}, [], b""
    free = 257
    for value in data:
        longer = before + bytes([value])
        if longer in table:
            before = longer
            continue
        codes.append(table[before])
        if free < 1 << max_bits:
            table[longer] = free
            free += 1
        before = bytes([value])
        if clear_after is not None and len(codes) == clear_after:
            codes += [table[before], 256]
            table, free, before = {bytes([value]): value for value in range(256)}, 257, b""
    return pack([*codes, table[before]] if before else codes, max_bits)


def pack(codes, max_bits=16):
    """Codes in groups of eight of one width, from the lowest bit on; the reader's table grows from the second code."""
    found, group, bits, known = bytearray(), [], 9, 256
    for code in codes:
        group.append(code)
        known += 1  # the first code of a table adds no entry
        full = known >= 1 << bits and bits < max_bits
        if code == 256 or full or len(group) == 8:
            size = bits if code == 256 or full or len(group) == 8 else 0
            found += sum(one << (bits * place) for place, one in enumerate(group)).to_bytes(size, "little")
            group = []
        if code == 256:
            bits, known = 9, 256
        elif full:
            bits += 1
    whole = sum(one << (bits * place) for place, one in enumerate(group))
    return bytes(found) + whole.to_bytes(-(-bits * len(group) // 8), "little")


def write_bible(path, verses, window=4096, title=TITLE):
    """Writes verses ("Ge1:1", text) as such a file; returns its path."""
    text = "\n".join([title, *(f"{reference} {verse}" for reference, verse in verses)]) + "\n"
    data = text.encode()
    windows = [compress_lzw(data[start : start + window]) for start in range(0, len(data), window)]
    start = 0x54 + 8 + 4 * (len(windows) + 1) + 3
    ends = [start + sum(map(len, windows[:count])) for count in range(len(windows) + 1)]
    header = b"EC02" + b"Compressed Data File".ljust(0x50, b"\0") + struct.pack(">2I", window, len(windows))
    path.write_bytes(header + struct.pack(f">{len(ends)}I", *ends) + b"\x1f\x9d\x90" + b"".join(windows))
    return path


def some_verses(books=("Ge", "Exo", "Psa", "3Jn"), count=40):
    """Verses of some books, of words that each book has more of than others."""
    return [
        (f"{book}1:{number + 1}", f"And {book.lower()} said unto {number * 37 % 11} men, Go forth; and they went.")
        for book in books
        for number in range(count)
    ]
