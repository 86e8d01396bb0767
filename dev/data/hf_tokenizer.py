"""Hugging Face's tokenizer files from our tokenizer file (llmc/data/tokenizer.h), which lists the bytes of each token.

Our tokenizer merges the two neighbours that together are the token with the lowest id. Hugging Face's has a list of
merges instead, one pair for each token of more than one byte. The pair is what remains when the token's bytes are
merged with all lower ids.
"""
import json
import pathlib
import struct

from files import fail

MAGIC, VERSION, HEADER_BYTES = 20240328, 2, 1024
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


def read_tokenizer(path):
    """The bytes of each token, and the end-of-text id."""
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    magic, version, size, end_of_text = struct.unpack("<4I", data[:16].ljust(16, b"\0"))
    if len(data) < HEADER_BYTES or magic != MAGIC or version != VERSION:
        fail(f"{path} is no tokenizer file of version {VERSION}")
    tokens, at = [], HEADER_BYTES
    while at < len(data) and len(tokens) < size:
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    if len(tokens) != size or at != len(data) or end_of_text >= size:
        fail(f"{path} is damaged: it does not hold exactly the {size} tokens that its header promises")
    if len(set(tokens)) < size or not {bytes([byte]) for byte in range(256)} <= set(tokens):
        fail(f"{path} is damaged: two tokens have the same bytes, or a byte has no token")
    return tokens, end_of_text


def characters():
    """The character that stands for each byte in vocab.json and merges.txt: itself where it is printable in Latin-1."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def last_merge(token, rank, own_rank):
    """The parts of a token after all merges with ranks below its own."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 1:
        ranks = [rank.get(a + b, own_rank) for a, b in zip(parts, parts[1:])]
        lowest = min(ranks)
        if lowest >= own_rank:
            break
        at = ranks.index(lowest)
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def merges(tokens, end_of_text):
    """The pairs whose merges make the tokens, in the order of their ids."""
    rank = {token: i for i, token in enumerate(tokens) if len(token) > 1 and i != end_of_text}
    for token, own_rank in rank.items():
        parts = last_merge(token, rank, own_rank)
        if len(parts) != 2:
            fail(f"token {own_rank} ({token!r}) is no merge of two tokens with lower ids, as Hugging Face requires")
        yield parts


def tokenizer_files(path, tokens, end_of_text, context):
    """{name: text} of the files that AutoTokenizer reads."""
    character = characters()

    def text(token):
        return "".join(character[byte] for byte in token)

    end = text(tokens[end_of_text])
    settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": context, "add_prefix_space": False,
                "clean_up_tokenization_spaces": False, "bos_token": end, "eos_token": end, "unk_token": end}
    lines = ["#version: 0.2", *(f"{text(a)} {text(b)}" for a, b in merges(tokens, end_of_text))]
    vocabulary = {text(token): i for i, token in enumerate(tokens)}
    contents = (json.dumps(vocabulary), "\n".join(lines) + "\n", json.dumps(settings, indent=2) + "\n")
    return dict(zip(TOKENIZER_FILES, contents))
