"""Changes of a valid file, drawn by a random.Random: of binary files with a header of int32, and of text."""
import re
import struct

NUMBERS = [0, 1, -1, 2, 7, 255, 256, 65535, 65536, 1 << 20, (1 << 30) + 1, (1 << 31) - 1, -(1 << 31)]
TEXTS = [b"-1", b"0", b"1e999", b"nan", b"99999999999999999999", b"2147483648", b"9223372036854775807", b"0.5", b""]
BYTES = [b"\0", b"\xff\xfe", b'"', b"\\", b"{", b"[" * 3000, b"\n", b"\r\n", b",", b"%s%n", b"\xed\xa0\x80",
         b"A" * 100000]
HEADER_INTS, LIKELY_INTS = 256, 10  # few fields of a header are used


def header_number(data, draw):
    at = 4 * draw.randrange(min(len(data) // 4, draw.choice([LIKELY_INTS, HEADER_INTS])))
    value = struct.unpack_from("<i", data, at)[0]
    near = [value + 1, value - 1, 2 * value, -value, value ^ (1 << draw.randrange(31))]
    struct.pack_into("<I", data, at, draw.choice(NUMBERS + near) & 0xffffffff)


def body_value(data, draw):
    """A byte, a 16-bit value or a float in the body: NaN, infinity, the largest, a flipped bit."""
    at = draw.randrange(min(4 * HEADER_INTS, len(data) - 1), len(data))
    flipped = bytes([data[at] ^ (1 << draw.randrange(8))])
    new = draw.choice([b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\xff", b"\0", flipped])
    data[at:at + len(new)] = new[:len(data) - at]


def cut(data, draw):
    del data[draw.choice([0, 1, 4 * HEADER_INTS - 1, 4 * HEADER_INTS, len(data) // 2, len(data) - 1,
                          draw.randrange(len(data))]):]


def extend(data, draw):
    data.extend(draw.choice([b"\0", b"\xff" * 7, bytes(data[-64:]), bytes(5000)]))


def remove_piece(data, draw):
    at = draw.randrange(len(data))
    del data[at:at + draw.choice([1, 2, 4, 64, 1024])]


def repeat_piece(data, draw):
    at = draw.randrange(len(data))
    data[at:at] = data[at:at + draw.choice([1, 2, 4, 64, 1024])]


def mutate_binary(content, draw):
    data = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        if len(data) > 8:
            draw.choice([header_number, header_number, header_number, body_value, body_value, cut, extend, remove_piece,
                         repeat_piece])(data, draw)
    return bytes(data)


def other_number(data, draw):
    found = list(re.finditer(rb"-?[0-9][0-9.]*", data))
    if found:
        number = draw.choice(found)
        data[number.start():number.end()] = draw.choice(TEXTS)


def insert_bytes(data, draw):
    at = draw.randint(0, len(data))
    data[at:at] = draw.choice(BYTES)


def lines_changed(data, draw):
    lines = bytes(data).split(b"\n")
    at = draw.randrange(len(lines))
    change = draw.choice(["drop", "twice", "swap"])
    if change == "drop":
        del lines[at]
    elif change == "twice":
        lines.insert(at, lines[at])
    else:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    data[:] = b"\n".join(lines)


def mutate_text(content, draw):
    data = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        if data:
            kinds = [other_number, other_number, insert_bytes, insert_bytes, lines_changed, cut, remove_piece]
            draw.choice(kinds)(data, draw)
        else:
            insert_bytes(data, draw)
    return bytes(data)
