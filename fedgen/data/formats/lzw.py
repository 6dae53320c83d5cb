"""Decompression of LZW streams as `compress` writes them (Welch 1984), which Python's own modules do not read."""

CLEAR = 256  # the code that empties the table
FIRST_BITS = 9


def decompress_lzw(data: bytes, max_bits: int = 16, limit: int | None = None) -> bytes:
    """The bytes that a stream stands for.

    Codes are packed from the lowest bit on, in groups of eight of one width; the width grows from 9 bits as the table
    does, and a group that it ends is filled up. The three bytes that a `.Z` file begins with are not part of a stream.

    Args:
        data: the stream.
        max_bits: the largest width of a code.
        limit: bytes after which the stream must end; none by default.

    Raises:
        ValueError: for a code that no stream can have there, or a longer result than `limit`.
    """
    singles = [bytes([value]) for value in range(256)] + [b""]
    table, found, size = list(singles), [], 0
    bits, group, place = FIRST_BITS, 0, 0  # width of codes; bit at which codes of this width begin; bit of the next
    before = b""
    while place + bits <= 8 * len(data):
        code = int.from_bytes(data[place >> 3 : (place >> 3) + 4], "little") >> (place & 7) & ((1 << bits) - 1)
        place += bits
        if code == CLEAR:
            place = group = _end_of_group(place, group, bits)
            table, bits, before = list(singles), FIRST_BITS, b""
            continue
        if code > len(table) or (code == len(table) and not before):
            raise ValueError(f"a damaged LZW stream: code {code} in bit {place - bits}, and {len(table)} are known")
        text = table[code] if code < len(table) else before + before[:1]
        found.append(text)
        size += len(text)
        if limit is not None and size > limit:
            raise ValueError(f"a damaged LZW stream: it is longer than {limit} bytes")
        if before and len(table) < 1 << max_bits:
            table.append(before + text[:1])
        before = text
        if len(table) >= 1 << bits and bits < max_bits:
            place = group = _end_of_group(place, group, bits)
            bits += 1
    return b"".join(found)


def _end_of_group(place: int, start: int, bits: int) -> int:
    """The bit at which the group of eight codes ends that a bit lies in."""
    return start + -(-(place - start) // (8 * bits)) * 8 * bits
