#!/usr/bin/env python3
"""Compares the vocabulary that `tokenize --train-vocab` learns with that of Hugging Face's `tokenizers` on the same
texts: the tokens in their order, and how many tokens the texts become.

    pip install numpy tokenizers
    make tokenize && python3 dev/data/compare_bpe.py [--vocab 4096] [TEXT...]     # TEXT: files; default: Shakespeare
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy", "tokenizers")
import argparse  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

import hf_tokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ours(texts, vocab):
    """The tokens that `tokenize` learns, in the order of their ids, how many it makes of the texts, and seconds."""
    with tempfile.TemporaryDirectory() as tmp:
        begin = time.monotonic()
        children.run([ROOT / "tokenize", "--train-vocab", str(vocab), "--val-fraction", "0", "--val-split", "tail",
                      *texts, "-o", f"{tmp}/x"])
        seconds = time.monotonic() - begin
        tokens, _ = hf_tokenizer.read_tokenizer(f"{tmp}/x_tokenizer.bin")
        count = struct.unpack("<3i", pathlib.Path(f"{tmp}/x_train.bin").read_bytes()[:12])[2]
    return tokens[:-1], count - len(texts), seconds  # without <|endoftext|>


def theirs(texts, vocab):
    """The same of Hugging Face's, and its number of merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  max_token_length=255, show_progress=False)
    begin = time.monotonic()
    tokenizer.train_from_iterator(texts, trainer)
    seconds = time.monotonic() - begin
    byte_of = {char: byte for byte, char in hf_tokenizer.characters().items()}
    ids = tokenizer.get_vocab()
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(ids, key=ids.get)]
    count = sum(len(e.ids) for e in tokenizer.encode_batch(texts))
    merges = len(json.loads(tokenizer.to_str())["model"]["merges"])
    return tokens, count, seconds, merges


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=sorted((ROOT / "dev/data/shakespeare").glob("*.txt")))
    parser.add_argument("--vocab", type=int, default=4096)
    args = parser.parse_args()
    texts = [pathlib.Path(path).read_bytes().decode() for path in args.texts]
    mine, my_count, my_seconds = ours(args.texts, args.vocab)
    peer, peer_count, peer_seconds, peer_merges = theirs(texts, args.vocab)
    same = next((i for i, (a, b) in enumerate(zip(mine, peer)) if a != b), min(len(mine), len(peer)))
    print(f"tokenize: {len(mine)} tokens in {my_seconds:.2f} s, the texts in {my_count} tokens")
    print(f"tokenizers: {len(peer)} tokens in {peer_seconds:.2f} s with {peer_merges} merges, "
          f"the texts in {peer_count} tokens ({100 * (my_count / peer_count - 1):+.3f}% here)")
    if mine == peer:
        print("all tokens are the same, in the same order")
    else:
        print(f"the first {same} tokens are the same; then {mine[same:same + 3]} here, {peer[same:same + 3]} there; "
              f"{len(set(mine) & set(peer))} tokens are in both")
    sys.exit(abs(my_count / peer_count - 1) > 0.001)


if __name__ == "__main__":
    main()
