"""Hugging Face's tokenizer files from our tokenizer file (llmc/data/tokenizer.h), which lists the bytes of each token,
and back.

Our tokenizer merges the two neighbours that together are the token with the lowest id. Hugging Face's has a list of
merges instead, one pair for each token of more than one byte. The pair is what remains when the token's bytes are
merged with all lower ids. So a list that has exactly these pairs, in the order of the ids, gives the tokens that ours
gives; any other is refused, and so is what changes or cuts a text before it is merged, unless it is what GPT-2 does.
"""
import json
import pathlib
import struct

from files import fail
from model_files import read_json

MAGIC, VERSION, HEADER_BYTES = 20240328, 2, 1024
FEWEST, MOST = 257, 1 << 20  # tokens of a tokenizer file
LARGEST_FILE = HEADER_BYTES + MOST * 256
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
# What tokenizer.json and tokenizer_config.json may say of how a text becomes tokens; None: nothing, which is allowed.
CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
OF_MODEL = {"type": (None, "BPE"), "dropout": (None, 0), "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""), "byte_fallback": (None, False), "ignore_merges": (None, False)}
OF_CONFIG = {"tokenizer_class": CLASSES, "add_prefix_space": (None, False), "add_bos_token": (None, False),
             "add_eos_token": (None, False), "do_lower_case": (None, False)}


def read_tokenizer(path):
    """The bytes of each token, and the end-of-text id."""
    if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():  # a device need not end, a FIFO not begin
        fail(f"{path} is no file; a tokenizer file is expected")
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
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


# ---- in


def refused(path, what):
    fail(f"{path}: {what}, which our tokenizer cannot do exactly; --no-tokenizer imports the weights alone")


def check_steps(path, tokenizer):
    """What tokenizer.json does to a text besides merging is GPT-2's: its pattern, on bytes."""
    pieces, after = tokenizer.get("pre_tokenizer") or {}, tokenizer.get("post_processor") or {}
    if tokenizer.get("normalizer"):
        refused(path, f"the normalizer is {tokenizer['normalizer']['type']}")
    if pieces.get("type") != "ByteLevel":
        refused(path, f"the pre_tokenizer is {pieces.get('type', 'none')}")
    if pieces.get("add_prefix_space", True) or not pieces.get("use_regex", True):
        refused(path, "the pre_tokenizer has add_prefix_space true or use_regex false")
    adds = after.get("type") == "TemplateProcessing" and any("Sequence" not in part for part in after["single"])
    if after.get("type", "ByteLevel") not in ("ByteLevel", "TemplateProcessing") or adds:
        refused(path, f"the post_processor is {after['type']}{' and adds tokens' if adds else ''}")
    if (tokenizer.get("decoder") or {"type": "ByteLevel"})["type"] != "ByteLevel":
        refused(path, f"the decoder is {tokenizer['decoder']['type']}")
    check_values(path, tokenizer["model"], OF_MODEL)


def check_values(path, settings, accepted):
    for name, values in accepted.items():
        if settings.get(name) not in values:
            refused(path, f"{name} is {settings[name]!r}")


def content(token):
    return token["content"] if isinstance(token, dict) else token


def named_tokens(*settings):
    """The special tokens that tokenizer_config.json and special_tokens_map.json name: eos_token and others."""
    found = {}
    for part in settings:
        found.update({key: content(token) for key, token in part.items() if key.endswith("_token") and token
                      and not isinstance(token, bool)})
        found.update({text: content(text) for text in map(content, part.get("additional_special_tokens") or [])})
    return found


def added_tokens(folder, config, special):
    """{id: text} of the tokens beside a vocab.json."""
    added = {}
    if (folder / "added_tokens.json").is_file():
        added = {id: (text, text in special.values()) for text, id in read_json(folder / "added_tokens.json").items()}
    for id, token in (config.get("added_tokens_decoder") or {}).items():
        added[int(id)] = token["content"], token.get("special", False)
    return added


def stored_tokenizer(folder, config, special):
    """The file that has the vocabulary; {text: id}, the merges, and {id: (text, whether it is special)} of the tokens
    that no merge makes."""
    whole, vocabulary, list_of_merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if whole.is_file():
        tokenizer = read_json(whole)
        check_steps(whole, tokenizer)
        pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in tokenizer["model"]["merges"]]
        added = {token["id"]: (token["content"], token["special"]) for token in tokenizer.get("added_tokens") or []}
        return whole, tokenizer["model"]["vocab"], pairs, added
    lines = list_of_merges.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines[lines[0].startswith("#version"):] if line]
    return vocabulary, read_json(vocabulary), pairs, added_tokens(folder, config, special)


def bytes_of_tokens(path, vocabulary, added):
    """The bytes of each token, by id."""
    byte = {text: number for number, text in characters().items()}
    found = {id: text.encode() for id, (text, _) in added.items()}
    for text, id in vocabulary.items():
        if id in added and added[id][0] == text:
            continue
        if id in found:
            refused(path, f"id {id} stands for two tokens")
        if not all(letter in byte for letter in text):
            refused(path, f"token {id} ({text!r}) has characters that stand for no byte")
        found[id] = bytes(byte[letter] for letter in text)
    tokens = [found.get(id) for id in range(min(max(found, default=-1), MOST) + 1)]
    if None in tokens or len(found) != len(tokens) or not FEWEST <= len(tokens) <= MOST:
        refused(path, f"its {len(found)} ids are not 0, 1, 2, ... of {FEWEST} to {MOST} tokens")
    if len(set(tokens)) < len(tokens) or not {bytes([number]) for number in range(256)} <= set(tokens):
        refused(path, "two tokens have the same bytes, or a byte has no token")
    if not all(0 < len(token) < 256 for token in tokens):
        refused(path, "a token has no byte, or more than 255")
    return tokens


def check_merges(path, tokens, end_of_text, added, pairs):
    """Ends the script unless the list of merges follows from the tokens and their ids."""
    byte = {text: number for number, text in characters().items()}
    listed = [tuple(bytes(byte[letter] for letter in part) for part in pair) for pair in pairs]
    rank, wanted = {token: i for i, token in enumerate(tokens) if len(token) > 1 and i != end_of_text}, []
    for token, own_rank in rank.items():
        parts = tuple(last_merge(token, rank, own_rank))
        text, special = added.get(own_rank, ("", True))
        if not special:
            refused(path, f"the added token {own_rank} ({text!r}) is cut out of any text before all else")
        if text and len(parts) == 2:
            refused(path, f"the special token {own_rank} ({text!r}) has two parts that are tokens and not merged")
        if len(parts) == 2:
            wanted.append(parts)
    if listed != wanted:
        at = next((i for i, (a, b) in enumerate(zip(listed, wanted)) if a != b), min(len(listed), len(wanted)))
        refused(path, f"merge {at + 1} of {len(listed)} does not follow from the ids of the tokens")


def end_of_text_id(path, tokens, special, config):
    """The token that ends a text: the tokenizer's eos_token, else the model's eos_token_id, else <|endoftext|>."""
    text, id = special.get("eos_token"), config.get("eos_token_id")
    if text is None and type(id) is int and 0 <= id < len(tokens):
        return id
    text = "<|endoftext|>" if text is None else text
    if text.encode() not in tokens:
        refused(path, f"its end of text, {text!r}, is not among the tokens")
    return tokens.index(text.encode())


def imported_tokenizer(folder, config):
    """The tokens of a model's folder and the end-of-text id; None if it has no tokenizer. Ends the script if it has
    another than ours."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return None
    path = folder / "tokenizer_config.json"
    settings = [read_json(file) if file.is_file() else {} for file in (folder / "special_tokens_map.json", path)]
    try:
        check_values(path, settings[1], OF_CONFIG)
        special = named_tokens(*settings)
        path, vocabulary, pairs, added = stored_tokenizer(folder, settings[1], special)
        tokens = bytes_of_tokens(path, vocabulary, added)
        end_of_text = end_of_text_id(path, tokens, special, config)
        check_merges(path, tokens, end_of_text, added, pairs)
    except OSError as error:
        fail(f"cannot read {error.filename}: {error.strerror}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        fail(f"{path} is damaged: it does not describe a tokenizer; --no-tokenizer imports the weights alone")
    return tokens, end_of_text


def tokenizer_text(tokens, end_of_text):
    """What our tokenizer file holds."""
    header = struct.pack("<4I", MAGIC, VERSION, len(tokens), end_of_text).ljust(HEADER_BYTES, b"\0")
    return header + b"".join(bytes([len(token)]) + token for token in tokens)
