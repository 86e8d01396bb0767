#!/usr/bin/env python3
"""Pairs of answers for preference tuning as token shards: of lines {"prompt", "chosen", "rejected"}.

    dev/data/pairs.py PAIRS.jsonl -o PREFIX [--val-every 10] [flags of tokenize, such as --tokenizer FILE or --bytes 1]

Writes PREFIX_train.bin and PREFIX_val.bin, with the masks that say which tokens are of the answers, and
PREFIX_tokenizer.bin. Every tenth pair validates. The two answers of a pair are documents beside each other, the chosen
one first: `prefer` reads them so. They are encoded apart from the prompt, so an answer usually begins with a space or a
line of its own. Needs ./tokenize: make tokenize
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]
import children  # noqa: E402
import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402

from files import fail, wrong_use  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("prompt", "chosen", "rejected")


def pairs_of(path):
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no UTF-8'}")
    pairs = []
    for number, line in enumerate(lines, 1):
        try:
            pair = json.loads(line)
        except ValueError:
            pair = None
        if not isinstance(pair, dict) or not all(isinstance(pair.get(field), str) for field in FIELDS):
            fail(f"{path}:{number} is no object with texts as {', '.join(FIELDS)}")
        if not pair["chosen"] or not pair["rejected"]:
            fail(f"{path}:{number} has an empty answer")
        pairs.append(pair)
    return pairs


def write_shard(pairs, prefix, end, flags):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = [json.dumps({"prompt": pair["prompt"], "completion": pair[answer]})
                 for pair in pairs for answer in ("chosen", "rejected")]
        (folder / "answers.jsonl").write_text("\n".join(lines) + "\n")
        children.run(["./tokenize", folder / "answers.jsonl", "-o", folder / "all", "--val-fraction", 0, *flags],
                     cwd=ROOT)
        for kind in ".bin", ".mask":
            prefix.with_name(f"{prefix.name}_{end}{kind}").write_bytes((folder / f"all_train{kind}").read_bytes())
        vocabulary = folder / "all_tokenizer.bin"
        if vocabulary.exists():
            prefix.with_name(f"{prefix.name}_tokenizer.bin").write_bytes(vocabulary.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=pathlib.Path)
    parser.add_argument("-o", type=pathlib.Path, required=True, dest="prefix")
    parser.add_argument("--val-every", type=int, default=10, help="every so many pairs one validates")
    parser.error = wrong_use
    args, flags = parser.parse_known_args()
    if args.val_every < 2:
        wrong_use(f"--val-every {args.val_every}: 2 or more is accepted")
    pairs = pairs_of(args.pairs)
    if len(pairs) < args.val_every:
        fail(f"{args.pairs} has {len(pairs)} pairs; {args.val_every} or more are accepted, so that one validates")
    every = args.val_every
    write_shard([pair for i, pair in enumerate(pairs) if (i + 1) % every], args.prefix.resolve(), "train", flags)
    write_shard(pairs[every - 1::every], args.prefix.resolve(), "val", flags)
    print(f"{args.prefix}: {len(pairs) - len(pairs) // every} pairs to train on, {len(pairs) // every} to validate")


if __name__ == "__main__":
    main()
