"""The vocabulary of a dataset that token_parts.py tokenizes, where it is not GPT-2's: a file that the user names, the
256 bytes, or tokens that `tokenize` learns from the first training documents.

It is learned from as much text as a part has, so that a dataset that is still being downloaded needs no second pass.
What is for validation is left out. Where the first tokens validate, as in llm.c's datasets, nobody knows how long they
are in bytes before there is a vocabulary: BYTES_PER_TOKEN of each are passed over, more than a token has.
"""
import hashlib
import os
import shutil
import time

import children
import documents
from files import ROOT, fail, wrong_use

BYTES_PER_TOKEN = 6


def recipe_of(options):
    """What goes into the recipe of the shards; nothing for GPT-2's vocabulary."""
    if options.tokenizer:
        if not options.tokenizer.is_file():
            fail(f"--tokenizer {options.tokenizer} is not there")
        return {"tokenizer": hashlib.sha256(options.tokenizer.read_bytes()).hexdigest()}
    if options.train_vocab:
        return {"train_vocab": options.train_vocab}
    return {"bytes": 1} if options.bytes else {}


def check_flags(options):
    given = [name for name in ("tokenizer", "train_vocab", "bytes") if getattr(options, name)]
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
        wrong_use(f"{first} and {second} both say what the vocabulary is; one of them is accepted")
    if options.train_vocab is not None and not 257 <= options.train_vocab <= 65535:
        wrong_use(f"--train-vocab {options.train_vocab}: 257 to 65535 is accepted")
    if options.bytes not in (0, 1):
        wrong_use(f"--bytes {options.bytes}: 0 and 1 are accepted")


def training_documents(parts):
    """The first training documents, about as much text as a part has."""
    recipe, left, number = parts.recipe, parts.recipe["part_bytes"], 0
    passed_over = BYTES_PER_TOKEN * recipe["val_tokens"] if recipe["val"] == "first" else 0
    while left > 0:
        while number == len(parts.plan["parts"]) and not parts.all_planned():
            parts.plan_more()
            time.sleep(0.02)
        if number == len(parts.plan["parts"]):
            return
        part = parts.part(number)
        if max(index for _, _, _, index in part["pieces"]) >= parts.files.at_once:
            return  # a file that is not downloaded before these are tokenized
        for _, split, document in documents.documents_of_part(part):
            passed_over -= len(document.encode(errors="replace"))
            if split == "train" and passed_over < 0 and left > 0:
                left -= len(document)
                yield document
        number += 1


def all_documents(parts):
    """The documents of the first part: where so little text is there that all of it was passed over."""
    return (document for _, split, document in documents.documents_of_part(parts.part(0)) if split)


def make(parts, options):
    """Makes the tokenizer file of the parts, if it is not there yet."""
    path = parts.tokenizer()
    if path is None or path.exists():
        return
    temporary = parts.folder / "vocabulary"
    if options.tokenizer:
        shutil.copyfile(options.tokenizer, f"{temporary}_tokenizer.bin")
    else:
        print("learning the vocabulary" if options.train_vocab else "a token for each byte", flush=True)
        sample = parts.folder / "vocabulary.jsonl"
        for source in training_documents, all_documents:
            with open(sample, "w") as file:
                for document in source(parts) if options.train_vocab else ["one"]:
                    file.write('{"text":%s}\n' % documents.json_string(document))
            if sample.stat().st_size:
                break
        flags = ["--train-vocab", options.train_vocab] if options.train_vocab else ["--bytes", 1]
        run_tokenize([sample, *flags, "--val-fraction", 0, "-o", temporary])
    os.replace(f"{temporary}_tokenizer.bin", path)


def run_tokenize(arguments):
    command = [str(word) for word in (ROOT / "tokenize", *arguments)]
    log = open(f"{arguments[-1]}.log", "w+")
    process = children.start(command, stdin=children.subprocess.DEVNULL, stdout=log, stderr=log)
    status = process.wait()
    children.running.discard(process)
    if status:
        log.seek(0)
        said = log.read().strip().splitlines() or ["tokenize was killed"]
        fail(said[-1].removeprefix("error: "))
