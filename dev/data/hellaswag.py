#!/usr/bin/env python3
"""Makes dev/data/hellaswag/hellaswag_val.bin from the validation split of HellaSwag (Zellers et al. 2019; MIT licence).

    make tokenize && python3 dev/data/hellaswag.py [hellaswag_val.jsonl]      # without a file it is downloaded

Layout: see llmc/data/hellaswag.h. Each completion is tokenized with a space before it, as in the original evaluation of
GPT-2.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import argparse  # noqa: E402
import array  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402

import hub  # noqa: E402
from documents import TOKENS_HEADER_BYTES, Tokens  # noqa: E402
from files import ROOT, fail, wrong_use, write_whole  # noqa: E402

OUT = ROOT / "dev/data/hellaswag/hellaswag_val.bin"
URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
FILE = (12_246_618, "sha256", "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588")
START, CHOICES, END_OF_TEXT, LONGEST_BYTES = 65535, 4, 50256, 65535


def read_examples(path):
    """Of each example: the texts (the context and the four completions) and which completion is right."""
    examples = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path} is no UTF-8 text: the byte at {error.start:,} is not")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = json.loads(line)
            texts = [example["ctx"], *(" " + ending for ending in example["endings"])]
            if len(texts) != 1 + CHOICES or example["label"] not in range(CHOICES) or not example["ctx"]:
                raise ValueError
            "".join(texts).encode()
        except (KeyError, TypeError, ValueError, RecursionError):
            fail(f"{path}, line {number}: an example of HellaSwag is expected, with ctx, {CHOICES} endings and label")
        examples.append((texts, example["label"]))
    if not examples or len(examples) > 65536:
        fail(f"{path} holds {len(examples)} examples; 1 to 65536 are accepted")
    return examples


def tokens_of(texts):
    """The tokens of each text."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Tokens(f"{folder}/hellaswag")
        for text in texts:
            tokenizer.add(text)
        tokenizer.finish()
        tokens = array.array("H", pathlib.Path(f"{folder}/hellaswag.bin").read_bytes()[TOKENS_HEADER_BYTES:])
    if sys.byteorder == "big":
        tokens.byteswap()
    found = []
    for token in tokens:
        if token == END_OF_TEXT:
            found.append([])
        else:
            found[-1].append(token)
    return found


def records(examples):
    tokens = iter(tokens_of([text for texts, _ in examples for text in texts]))
    for index, (texts, label) in enumerate(examples):
        parts = [next(tokens) for _ in texts]
        body = [START, 0, index, label, CHOICES, *(v for part in parts for v in [len(part), *part])]
        body[1] = 2 * len(body)
        if body[1] > LONGEST_BYTES:
            fail(f"example {index} takes {body[1]:,} bytes; the layout counts {LONGEST_BYTES:,}")
        yield struct.pack(f"<{len(body)}H", *body)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="a local copy of hellaswag_val.jsonl")
    parser.add_argument("-o", dest="out", metavar="FILE", type=pathlib.Path, default=OUT, help="(%(default)s)")
    parser.add_argument("--download-dir", metavar="FOLDER", default=hub.FOLDER, type=pathlib.Path,
                        help="where the download is put (dev/data/downloads)")
    options = parser.parse_args()
    examples = read_examples(options.file or hub.single_file(URL, options.download_dir, *FILE))
    made = list(records(examples))
    header = [20240522, 1, len(made), max(map(len, made))] + [0] * 252
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole({options.out: lambda file: file.write(struct.pack("<256i", *header) + b"".join(made))})
    print(f"{len(made):,} examples in {options.out}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
