#!/usr/bin/env python3
"""Makes dev/data/hellaswag/hellaswag_val.bin from the validation split of HellaSwag (Zellers et al. 2019; MIT licence).

    make tokenize && python3 dev/data/hellaswag.py [hellaswag_val.jsonl]      # without a file it is downloaded

Layout: see llmc/hellaswag.h. Each completion is tokenized with a space before it, as in the original evaluation of
GPT-2.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import urllib.request  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "dev/data/hellaswag/hellaswag_val.bin"
URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
BATCH = 200  # texts per call of ./tokenize, separated by MARK, which no example contains
MARK = "\n\x00\n"


def tokens_of(texts):
    tokenize = lambda text: children.run([ROOT / "tokenize", "--ids"], text, cwd=ROOT)[0].split()
    ids, mark = tokenize(MARK.join(texts)), tokenize(MARK)
    out, at = [[]], 0
    while at < len(ids):
        if ids[at:at + len(mark)] == mark:
            out.append([])
            at += len(mark)
        else:
            out[-1].append(int(ids[at]))
            at += 1
    assert len(out) == len(texts), "a text contains the mark"
    return out


def main():
    if len(sys.argv) > 1:
        lines = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    else:
        try:
            with urllib.request.urlopen(URL) as response:
                lines = response.read().decode("utf-8").splitlines()
        except OSError as error:
            sys.exit(f"{URL} cannot be read: {error}; the file's name is accepted as an argument")
    examples = [json.loads(line) for line in lines]
    records = []
    for first in range(0, len(examples), BATCH):
        batch = examples[first:first + BATCH]
        texts = [text for e in batch for text in [e["ctx"]] + [" " + ending for ending in e["endings"]]]
        tokens = tokens_of(texts)
        for i, example in enumerate(batch):
            parts = tokens[5 * i:5 * i + 5]
            completions = [v for part in parts for v in [len(part)] + part]
            body = [65535, 0, (first + i) % 65536, example["label"], 4] + completions
            body[1] = 2 * len(body)
            records.append(struct.pack(f"<{len(body)}H", *body))
    OUT.parent.mkdir(exist_ok=True)
    header = [20240522, 1, len(records), max(map(len, records))] + [0] * 252
    OUT.write_bytes(struct.pack("<256i", *header) + b"".join(records))
    print(f"{len(records)} examples in {OUT}")


if __name__ == "__main__":
    main()
