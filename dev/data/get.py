#!/usr/bin/env python3
"""Makes token shards of a dataset, which it downloads, or of a folder of .parquet, .jsonl and .txt files.

    make tokenize
    python3 dev/data/get.py tinyshakespeare                     # 1 MB
    python3 dev/data/get.py tinystories                         # 1.6 GB
    python3 dev/data/get.py fineweb10B                          # needs pyarrow: pip install pyarrow
    python3 dev/data/get.py fineweb10B --from FOLDER            # the same files, from a local copy
    python3 dev/data/get.py FOLDER -o dev/data/mine
    python3 dev/data/get.py tinystories -o dev/data/stories4096 --train-vocab 4096

Datasets: {names}.
Documents, order and shards are those of llm.c's scripts, but for the order of TinyStories' files, which is that of
their names. Run again, get.py goes on where it stopped.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import argparse  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402

import hub  # noqa: E402
import part_vocabulary  # noqa: E402
from dataset_files import DOWNLOADS_AHEAD, HubFiles, LocalFiles, files_in, identity, unpack  # noqa: E402
from files import ROOT, fail, wrong_use, write_whole  # noqa: E402
from token_parts import TokenParts, read_json, write_json  # noqa: E402

FINEWEB = {"val": "first", "kinds": (".parquet",)}
DATASETS = {
    "tinyshakespeare": {
        "prefix": "dev/data/tiny_shakespeare", "val": "first", "val_tokens": 32768, "shard_tokens": 0,
        "kinds": (".txt",), "speech": True,
        "url": "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/"
               "tinyshakespeare/input.txt",
        "file": (1_115_394, "sha256", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
    "tinystories": {
        "prefix": "dev/data/tinystories/TinyStories", "val": "file", "shard_tokens": 0, "kinds": (".json",),
        "column": "story", "workers": 4,  # each holds the stories of a file in memory
        "url": "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/"
               "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStories_all_data.tar.gz",
        "file": (1_608_001_638, "sha256", "26cf7605aca15bc4ea6fa637256400d9d01317b28ed296172b2d1dd160cd7699")},
    "fineweb10B": {**FINEWEB, "prefix": "dev/data/fineweb10B/fineweb", "hub": ("HuggingFaceFW/fineweb", "sample/10BT")},
    "fineweb100B": {**FINEWEB, "prefix": "dev/data/fineweb100B/fineweb",
                    "hub": ("HuggingFaceFW/fineweb", "sample/100BT")},
    "edu_fineweb10B": {**FINEWEB, "prefix": "dev/data/edu_fineweb10B/edu_fineweb",
                       "hub": ("HuggingFaceFW/fineweb-edu", "sample/10BT")},
    "edu_fineweb100B": {**FINEWEB, "prefix": "dev/data/edu_fineweb100B/edu_fineweb",
                        "hub": ("HuggingFaceFW/fineweb-edu", "sample/100BT")},
}
OWN = {"val": "drawn", "kinds": (".parquet", ".jsonl", ".txt")}
SHARD_TOKENS = 100_000_000
UNPACKED = 5            # times the size of the archive, about
TOKENS_PER_BYTE = 0.25  # of text, about; .parquet files hold text in half of its bytes, about


# ---- where the files come from


def listed_files(data, name, options, folder):
    """The files of a dataset of the hub: of the revision that the run began with."""
    repository, subfolder = data["hub"]
    listing = read_json(folder / "listing.json")
    if listing is None:
        listing = hub.listed_dataset(repository, subfolder, options.hub)
        if not listing[1]:
            fail(f"{subfolder} of {repository} at {options.hub} holds no .parquet file")
        write_json(folder / "listing.json", listing)
    revision, listed = listing
    files = HubFiles(repository, revision, listed, options.download_dir / name, options.hub, options.keep_downloads)
    print(f"{name} is {repository}, {subfolder}, revision {revision[:12]}, from {options.hub}: {len(listed)} files, "
          f"{sum(files.sizes) / 1e6:,.0f} MB, into {files.folder}, "
          + ("kept there" if options.keep_downloads else f"at most {DOWNLOADS_AHEAD + 1} at a time"), flush=True)
    return files


# ---- the run


def say_disk_use(files, parts, keeps_all):
    """Says how much disk the run takes, and warns if there is less."""
    text = sum(size * (2 if name.endswith(".parquet") else 1) for name, size in zip(files.names, files.sizes))
    tokens = 2 * TOKENS_PER_BYTE * text
    other = min(parts.workers * parts.recipe["part_bytes"] * 2 * TOKENS_PER_BYTE, tokens)
    if not parts.recipe["shard_tokens"]:
        other = tokens
    if isinstance(files, HubFiles):
        other += sum(files.sizes) if keeps_all else sum(sorted(files.sizes)[-DOWNLOADS_AHEAD - 1:])
    free = shutil.disk_usage(parts.folder).free
    print(f"disk: about {tokens / 1e6:,.0f} MB for the tokens, {other / 1e6:,.0f} MB until they are complete; "
          f"{free / 1e6:,.0f} MB are free in {parts.folder.parent}", flush=True)
    if free < tokens + other:
        print("warning: that may be too little; what is done stays, and the same command goes on", file=sys.stderr)


def parse_flags():
    described = __doc__.replace("{names}", ", ".join(DATASETS))
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.error = wrong_use
    flag = parser.add_argument
    flag("name", metavar="NAME", help="a dataset, or a folder or file of one's own")
    flag("--from", dest="source", metavar="LOCAL", type=pathlib.Path, help="a local copy, used in place of a download")
    flag("-o", dest="prefix", metavar="PREFIX", type=pathlib.Path, help="writes PREFIX_train*.bin and PREFIX_val*.bin")
    flag("--shard-tokens", metavar="N", type=int, help=f"tokens in a file ({SHARD_TOKENS}); where it is not given, a "
         "split of a folder of one's own that fits into one file is PREFIX_train.bin or PREFIX_val.bin")
    flag("--tokenizer", metavar="FILE", type=pathlib.Path, help="the vocabulary (GPT-2's)")
    flag("--train-vocab", metavar="N", type=int, help="learn a vocabulary of so many tokens from the first training "
         "documents, about --part-bytes of them")
    flag("--bytes", metavar="0, 1", type=int, default=0, help="1: every byte is a token")
    flag("--column", metavar="NAME", help="of a folder of one's own: the column or field with the text (text)")
    flag("--val-fraction", metavar="F", type=float, help="of a folder of one's own: the chance of each document to be "
         "for validation (0.1)")
    flag("--seed", metavar="N", type=int, help="of that draw (42)")
    flag("--workers", metavar="N", type=int,
         help="parts that are tokenized at the same time (one per core; tinystories: at most 4)")
    flag("--part-bytes", metavar="N", type=int, default=128_000_000, help="of text in a part, about (%(default)s)")
    flag("--hub", metavar="URL", default=os.environ.get("HF_ENDPOINT", hub.URL), help="the hub (%(default)s)")
    flag("--download-dir", metavar="FOLDER", default=hub.FOLDER, type=pathlib.Path,
         help="where downloads are put (dev/data/downloads)")
    flag("--keep-downloads", action="store_true", help="do not remove a .parquet file when it is tokenized")
    options = parser.parse_args()
    options.hub = options.hub.rstrip("/")
    return options


def check_flags(options):
    own = options.name not in DATASETS
    if own and not pathlib.Path(options.name).exists():
        wrong_use(f"{options.name} is no dataset and no folder or file here; datasets: {', '.join(DATASETS)}")
    if own and not options.prefix:
        wrong_use("-o is missing; it gives the prefix of the files to write")
    if options.prefix and not options.prefix.name:
        wrong_use(f"-o {options.prefix}: a name is accepted, to which _train and _val are appended")
    if own and options.source:
        wrong_use(f"--from is for a dataset; {options.name} is a local copy itself")
    for name in "column", "val_fraction", "seed":
        if not own and getattr(options, name) is not None:
            wrong_use(f"--{name.replace('_', '-')} is for a folder of one's own; that of {options.name} is fixed")
    if options.shard_tokens is not None and "shard_tokens" in DATASETS.get(options.name, OWN):
        wrong_use(f"--shard-tokens: {options.name} is one file for each split, as llm.c has it")
    for name in "shard_tokens", "workers", "part_bytes":
        if getattr(options, name) is not None and not 1 <= getattr(options, name) < 2**31:
            wrong_use(f"--{name.replace('_', '-')} {getattr(options, name)}: 1 to {2**31 - 1} is accepted")
    part_vocabulary.check_flags(options)
    if not 0 < (0.1 if options.val_fraction is None else options.val_fraction) < 1:
        wrong_use(f"--val-fraction {options.val_fraction}: a number between 0 and 1 is accepted")
    if not (ROOT / "tokenize").exists():
        fail(f"{ROOT}/tokenize is not built; make tokenize")
    return own


def single_file(data, options):
    return hub.single_file(data["url"].replace(hub.URL, options.hub), options.download_dir, *data["file"])


def sources(data, options, own, folder):
    """The files with the documents."""
    source = pathlib.Path(options.name) if own else options.source
    if "hub" in data and not source:
        return listed_files(data, options.name, options, folder)
    if options.name == "tinystories" and not (source and source.is_dir()):
        texts = folder / "texts"
        if not texts.is_dir():
            size = source.stat().st_size if source else data["file"][0]
            print(f"disk: about {UNPACKED * size / 1e6:,.0f} MB for the unpacked archive until the tokens are complete")
            unpack(source or single_file(data, options), texts)
        source = texts
    elif not source:
        source = single_file(data, options)
    return LocalFiles(files_in(source, data["kinds"]))


def recipe_of(data, options, own):
    """What the shards are made of, and how."""
    shard_tokens = data.get("shard_tokens", options.shard_tokens or SHARD_TOKENS)
    recipe = {"dataset": None if own else options.name, "val": data["val"], "shard_tokens": shard_tokens,
              "val_tokens": data.get("val_tokens", shard_tokens), "part_bytes": options.part_bytes,
              "column": options.column or data.get("column", "text"), "speech": data.get("speech", False),
              "val_fraction": options.val_fraction or 0.1, "seed": 42 if options.seed is None else options.seed,
              **({"plain": True} if own and not options.shard_tokens else {}), **part_vocabulary.recipe_of(options)}
    if own or options.source:
        source = pathlib.Path(options.name) if own else options.source
        kinds = (".gz", ".json") if options.name == "tinystories" else data["kinds"]
        recipe.update(identity(files_in(source, kinds)))
    return recipe


def make_shards(data, options, own, parts):
    """(name, bytes) of all shards."""
    if "hub" in data:
        children.need("pyarrow")  # before the first download, not after it
    parts.open()
    files = sources(data, options, own, parts.folder)
    say_disk_use(files, parts, options.keep_downloads)
    first = parts.resume()
    if first:
        print(f"goes on with file {first + 1} of {len(files.names)}", flush=True)
    if isinstance(files, HubFiles):
        files.start(first)
    return parts.run(options.name, files, lambda _: part_vocabulary.make(parts, options))


def main():
    options = parse_flags()
    own = check_flags(options)
    data = OWN if own else DATASETS[options.name]
    prefix = options.prefix or ROOT / data["prefix"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = options.workers or min(cores, data.get("workers", cores))
    parts = TokenParts(prefix, recipe_of(data, options, own), workers)
    shards, text = parts.complete_shards(), prefix.with_name(f"{prefix.name}.txt")
    if options.name == "tinyshakespeare" and (shards is None or not text.is_file()):
        content = (options.source or single_file(data, options)).read_bytes()
        prefix.parent.mkdir(parents=True, exist_ok=True)
        write_whole({text: lambda file: file.write(content)})
    if shards is None:
        try:
            shards = make_shards(data, options, own, parts)
        except (SystemExit, OSError):
            parts.leave_nothing()
            raise
    if parts.empty:
        print(f"warning: left out: {parts.empty:,} empty documents", file=sys.stderr)
    if parts.tokenizer():
        print(f"vocabulary: {prefix.with_name(prefix.name + '_tokenizer.bin')}")
    for split in "train", "val":
        tokens = sum((size - 1024) // 2 for name, size in shards if name.startswith(f"{prefix.name}_{split}"))
        names = [name for name, _ in shards if name.startswith(f"{prefix.name}_{split}")]
        pattern = prefix.with_name(names[0] if len(names) == 1 else f"{prefix.name}_{split}_*.bin")
        print(f"{split}: {tokens:,} tokens in {pattern}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
