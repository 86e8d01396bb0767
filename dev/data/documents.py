"""Reads documents from .parquet, .jsonl, .json and .txt files, in pieces that several programs can read at the same
time. As a program it tokenizes one part of a dataset: token_parts.py starts it, many times.

    python3 dev/data/documents.py FOLDER     # reads FOLDER/part.json, writes FOLDER/train.bin and FOLDER/val.bin

A piece is [path, begin, end]: row groups of a .parquet file, bytes of a .jsonl file (a line belongs to the piece in
which it begins), 0 and 1 for a whole file of another kind.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import atexit  # noqa: E402
import children  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import struct  # noqa: E402
import subprocess  # noqa: E402
from json.encoder import encode_basestring as json_string  # noqa: E402

from files import ROOT, fail, write_whole  # noqa: E402

TOKENS_HEADER_BYTES, TOKEN_LAYOUTS = 1024, {2: (20240520, 1), 4: (20240801, 7)}  # bytes a token: magic, version
LONGEST_LINE = 256 << 20  # of .jsonl, in bytes; what ./tokenize accepts
STORY_SEED = 1337         # llm.c shuffles the stories of each file


def tokens_header(count, token_bytes=2):
    """The header of a token file (llmc/data/tokens_file.h)."""
    return struct.pack("<256i", *TOKEN_LAYOUTS[token_bytes], count, *[0] * 253)


# ---- .parquet


def open_parquet(path, column):
    """The file, opened to be read in little memory, after a check that it has the column."""
    children.need("pyarrow")
    import pyarrow
    import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (OSError, pyarrow.ArrowException) as error:
        fail(f"{path} is no .parquet file, or is cut short: {first_line(error)}")
    schema = file.schema_arrow
    if schema.get_field_index(column) < 0:
        fail(f"{path} has no column {column!r} but {', '.join(schema.names[:20])}; --column NAME names the text's")
    kind = schema.field(column).type
    stored = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(stored) or pyarrow.types.is_large_string(stored)):
        fail(f"{path}: the column {column!r} holds {kind} and no text; --column NAME names another")
    return file


def parquet_pieces(path, column, most_bytes):
    file = open_parquet(path, column)
    index = next(i for i in range(file.metadata.num_columns) if file.schema.column(i).path == column)
    begin = size = 0
    for group in range(file.num_row_groups):
        size += file.metadata.row_group(group).column(index).total_uncompressed_size
        if size >= most_bytes or group + 1 == file.num_row_groups:
            yield begin, group + 1, size
            begin, size = group + 1, 0


def parquet_documents(path, begin, end, column):
    import pyarrow
    file = open_parquet(path, column)
    try:
        for batch in file.iter_batches(100, row_groups=range(begin, end), columns=[column]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)
    except (OSError, pyarrow.ArrowException) as error:
        fail(f"{path} is damaged: {first_line(error)}")


def first_line(error):
    return str(error).strip().partition("\n")[0]


# ---- .jsonl and .json


def jsonl_documents(path, begin, end, column):
    with open(path, "rb") as file:
        at = max(begin - 1, 0)
        file.seek(at)
        if begin > 0:
            at += len(file.readline(LONGEST_LINE))
        while at < end and (line := file.readline(LONGEST_LINE)):
            if line.strip():
                yield text_of(line, column, f"{path}, the line at byte {at:,}")
            at += len(line)


def text_of(line, column, where):
    try:
        text = json.loads(line)[column]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        text = None
    if not isinstance(text, str):
        fail(f"{where}: a JSON object with a string {column!r} is expected; --column NAME names another")
    return text


def stories(path, column, index):
    """The stories of a file of TinyStories, in the order in which llm.c shuffles them."""
    try:
        listed = json.loads(pathlib.Path(path).read_bytes())
        texts = [story[column].strip() for story in listed]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        fail(f"{path}: a JSON list of objects with a string {column!r} is expected")
    random.Random(STORY_SEED + index).shuffle(texts)
    return texts


# ---- .txt


def whole_text(path):
    try:
        return pathlib.Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        fail(f"{path} is no UTF-8 text: the byte at {error.start:,} is not")


def speeches(path):
    """The documents that llm.c makes of tiny Shakespeare: an empty line ends each, and is part of it."""
    parts = whole_text(path).split("\n\n")
    return [part + "\n\n" for part in parts[:-1]] + parts[-1:]


# ---- all of them


def pieces(path, column, most_bytes):
    """The pieces of a file: (begin, end, about how many bytes of text) of each. A row group, and a file that is neither
    .parquet nor .jsonl, are not divided."""
    if path.endswith(".parquet"):
        return list(parquet_pieces(path, column, most_bytes))
    size = os.stat(path).st_size
    if path.endswith(".jsonl"):
        return [(at, min(at + most_bytes, size), min(most_bytes, size - at)) for at in range(0, size, most_bytes)]
    return [(0, 1, size)]


def documents(path, begin, end, column, index, speech):
    if path.endswith(".parquet"):
        return parquet_documents(path, begin, end, column)
    if path.endswith(".jsonl"):
        return jsonl_documents(path, begin, end, column)
    if path.endswith(".json"):
        return stories(path, column, index)
    return speeches(path) if speech else [whole_text(path)]


# ---- the program


class Tokens:
    """A running ./tokenize, to which documents are sent as .jsonl. It writes PREFIX_train.bin."""

    def __init__(self, prefix, tokenizer=None):
        self.prefix, self.log = prefix, open(f"{prefix}.log", "w+")
        command = [ROOT / "tokenize", "-", "--jsonl", "text", "--val-fraction", "0", "--threads", "1", "-o", prefix]
        command += ["--tokenizer", tokenizer] if tokenizer else []
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.log,
                                            bufsize=1 << 20)
        except OSError as error:
            fail(f"{command[0]} does not start: {error.strerror}; make tokenize builds it")

    def add(self, document):
        line = b'{"text":%s}\n' % json_string(document).encode()
        if len(line) >= LONGEST_LINE:
            fail(f"a document of {len(line) >> 20:,} MiB, which begins with {document[:40]!r}, is too long; "
                 f"{LONGEST_LINE >> 20} MiB are accepted, and by ./tokenize texts of any length")
        self.process.stdin.write(line)

    def stop(self):
        """Ends the program, if it still runs: it writes nothing any more."""
        self.process.kill()
        self.process.wait()

    def finish(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        if self.process.wait():
            self.log.seek(0)
            fail((self.log.read().strip().splitlines() or ["error: tokenize was killed"])[-1].removeprefix("error: "))
        os.rename(f"{self.prefix}_train.bin", f"{self.prefix}.bin")
        return (os.stat(f"{self.prefix}.bin").st_size - TOKENS_HEADER_BYTES) // 2


def documents_of_part(part):
    """(path, split, document) of each document of a part; an empty one is for no split."""
    draw = random.Random(f"{part['seed']} {part['number']}")
    for path, begin, end, index in part["pieces"]:
        for document in documents(path, begin, end, part["column"], index, part["speech"]):
            drawn = document and not part["split"] and draw.random() < part["val_fraction"]
            yield path, (part["split"] or ("val" if drawn else "train")) if document else None, document


def tokenize_part(folder):
    part = json.loads((folder / "part.json").read_text())
    outputs, empty, path = {}, 0, None
    atexit.register(lambda: [output.stop() for output in outputs.values()])
    try:
        for path, split, document in documents_of_part(part):
            if not document:
                empty += 1
                continue
            if split not in outputs:
                outputs[split] = Tokens(f"{folder}/{split}", part["tokenizer"])
            outputs[split].add(document)
            if os.getppid() != part["parent"]:
                sys.exit()  # the run was killed; nobody will take this part
    except UnicodeError as error:
        fail(f"{path} has text that is no UTF-8: {first_line(error)}")
    except BrokenPipeError:
        pass  # finish() says why
    except OSError as error:
        fail(f"cannot read {error.filename or path}: {error.strerror}")
    counts = {"empty": empty, **{split: output.finish() for split, output in outputs.items()}}
    write_whole({folder / "counts.json": lambda file: file.write(json.dumps(counts).encode())})


if __name__ == "__main__":
    tokenize_part(pathlib.Path(sys.argv[1]))
