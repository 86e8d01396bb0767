#!/usr/bin/env python3
"""Token shards for a model that was imported from Hugging Face, by its own tokenizer; and back to text.

    pip install numpy tokenizers
    dev/modern/tokens.py FOLDER/tokenizer.json TEXT... -o PREFIX [--val-fraction 0.1] [--end-of-text '</s>']
    dev/modern/tokens.py FOLDER/tokenizer.json --text 1724 331 253          what these numbers say
    dev/modern/tokens.py FOLDER/tokenizer.json --numbers 'Once upon'        for build/modern --prompt

Each TEXT is a document, with the end-of-text token before it. The last tokens of all are PREFIX_val.bin, the others
PREFIX_train.bin: of 32 bits each where the vocabulary has more than 65,536, else of 16 (llmc/data/tokens_file.h).
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / part) for part in (".", "data")]
import children  # noqa: E402
import argparse  # noqa: E402

import documents  # noqa: E402
from files import Progress, fail, write_whole, wrong_use  # noqa: E402

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>")  # of GPT-2, SmolLM2 and Qwen3; of Llama 3; of Llama 2


def open_tokenizer(path):
    children.need("numpy", "tokenizers")
    import tokenizers
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        fail(f"{path} is no tokenizer.json: {str(error).splitlines()[0]}")


def end_of(tokenizer, wanted):
    """The id of the end-of-text token."""
    for name in [wanted] if wanted else ENDS:
        if tokenizer.token_to_id(name) is not None:
            return tokenizer.token_to_id(name)
    wrong_use(f"--end-of-text {wanted}: the tokenizer has no such token" if wanted else
              f"the tokenizer has none of {', '.join(ENDS)}; --end-of-text names the token before each document")


def ids_of(tokenizer, paths, end):
    """All tokens, document by document."""
    import numpy as np
    parts, progress, done = [], Progress("tokenizing", sum(path.stat().st_size for path in paths), "MB", 10**6), 0
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            fail(f"{path} is no UTF-8 text: byte {error.start} is not")
        parts.append(np.array([end, *tokenizer.encode(text, add_special_tokens=False).ids], "<u4"))
        done += path.stat().st_size
        progress.reach(done)
    progress.done()
    return np.concatenate(parts)


def writer_of(ids, token_bytes):
    """Writes a shard of these tokens to an open file."""
    stored = ids.astype(f"<u{token_bytes}").tobytes()
    return lambda file: (file.write(documents.tokens_header(len(ids), token_bytes)), file.write(stored))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("texts", nargs="*", type=pathlib.Path, metavar="TEXT")
    parser.add_argument("-o", "--prefix")
    parser.add_argument("--val-fraction", type=float, default=0.1)
    parser.add_argument("--end-of-text")
    parser.add_argument("--text", nargs="+", type=int, metavar="NUMBER")
    parser.add_argument("--numbers", metavar="TEXT")
    args = parser.parse_args()
    if (bool(args.texts and args.prefix), args.text is not None, args.numbers is not None).count(True) != 1:
        wrong_use("TEXT... with -o PREFIX, --text, or --numbers is expected, one of them")
    if not 0 <= args.val_fraction <= 1:
        wrong_use(f"--val-fraction {args.val_fraction}: 0 to 1 is accepted")
    for path in (args.tokenizer, *args.texts):
        if not path.is_file():
            fail(f"{path} is not there, or is no file")
    tokenizer = open_tokenizer(args.tokenizer)
    if args.text is not None:
        known = range(tokenizer.get_vocab_size())
        unknown = [number for number in args.text if number not in known]
        return fail(f"--text: {unknown[0]} is no token") if unknown else print(tokenizer.decode(args.text))
    if args.numbers is not None:
        return print(*tokenizer.encode(args.numbers, add_special_tokens=False).ids)
    ids = ids_of(tokenizer, args.texts, end_of(tokenizer, args.end_of_text))
    token_bytes = 4 if tokenizer.get_vocab_size() > 65536 else 2
    cut = len(ids) - round(len(ids) * args.val_fraction)
    if max(cut, len(ids) - cut) > 2**31 - 1:
        fail("more tokens than the layout counts, 2147483647; fewer texts at once are accepted")
    pathlib.Path(args.prefix).parent.mkdir(parents=True, exist_ok=True)
    write_whole({f"{args.prefix}_{split}.bin": writer_of(part, token_bytes)
                 for split, part in (("train", ids[:cut]), ("val", ids[cut:]))})
    print(f"{len(args.texts)} texts, {len(ids)} tokens of {tokenizer.get_vocab_size()}: {cut} in "
          f"{args.prefix}_train.bin, {len(ids) - cut} in {args.prefix}_val.bin")


if __name__ == "__main__":
    main()
