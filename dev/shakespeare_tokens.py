"""The text that comes with the repository in another vocabulary than GPT-2's, for scripts that train small models."""
import pathlib

import children

ROOT = pathlib.Path(__file__).resolve().parents[1]


def made(prefix, vocabulary=("--bytes", 1)):
    """The prefix, from the root, of tokenizer and token files; they are made by ./tokenize unless all are there."""
    if not all((ROOT / f"{prefix}{end}").exists() for end in ("_tokenizer.bin", "_train.bin", "_val.bin")):
        children.run(["./tokenize", *vocabulary, "dev/data/shakespeare", "--val-split", "tail", "-o", prefix], cwd=ROOT)
    return prefix
