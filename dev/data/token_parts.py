"""Tokenizes a dataset in parts, many at the same time, and makes shards of them. A run that was interrupted, at any
moment and by anything, goes on where it stopped, and the shards are the same.

The folder PREFIX_parts holds everything until the shards are complete:
    recipe.json       what the shards are made of, and how; a run with another recipe is refused
    plan.json         the pieces (documents.py) of every part
    tokenizer.bin     the vocabulary, where it is not GPT-2's
    p000007/          a part: train.bin, val.bin and counts.json; it gets this name when it is complete
    train_000003.bin  a complete shard
    position.json     of each split: how many shards are complete, and at which token of which part the next one begins
Then the shards get their names, PREFIX.json says what they were made of, and the folder is removed.
"""
import fcntl
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import children
import documents
from files import ROOT, Progress, fail, flush_folder, wrong_use, write_whole

MOST_TOKENS = 2**31 - 1  # that the header can count
COPY_BYTES = 1 << 22
GPT2_TOKENIZER = ROOT / "dev/data/gpt2_tokenizer.bin"


def write_shard(file, sources):
    """Writes a token file from (path, first token, count) of each source."""
    file.write(documents.tokens_header(sum(count for *_, count in sources)))
    for path, first, count in sources:
        left = 2 * count
        with open(path, "rb") as tokens:
            tokens.seek(documents.TOKENS_HEADER_BYTES + 2 * first)
            while left > 0 and (block := tokens.read(min(left, COPY_BYTES))):
                file.write(block)
                left -= len(block)
        if left:
            fail(f"{path} has changed while it was read")


def write_json(path, value):
    write_whole({path: lambda file: file.write(json.dumps(value, indent=1).encode())})


def read_json(path, otherwise=None):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as error:
        fail(f"cannot read {path}: {error}")


class TokenParts:
    """The members of a recipe:
        val                        what validates: "first": the first val_tokens; "file": the first file; "drawn": each
                                   document with the chance val_fraction, drawn by seed
        shard_tokens, part_bytes   how much is in a shard (0: all of a split), and of text in a part, about
        column, speech             how documents.py reads
        plain                      where it is true, a split of one shard has no number in its name
        tokenizer, train_vocab, bytes   one of them where the vocabulary is not GPT-2's (part_vocabulary.py)
    and whatever else must not change when a run is resumed."""

    def __init__(self, prefix, recipe, workers):
        self.prefix, self.recipe, self.workers = prefix, recipe, workers
        self.folder, self.made = prefix.with_name(f"{prefix.name}_parts"), prefix.with_name(f"{prefix.name}.json")
        self.splits = ["train"] if recipe["val"] == "first" else ["train", "val"]
        self.opened = False   # it has the lock of its folder
        self.useless = False  # no shards can be made of what is there
        self.running = {}  # number of a part: its process, and the folder in which it works
        self.counts = {}   # number of a part: tokens of each split
        self.empty = 0     # documents that were left out by this run

    # ---- what is there

    def complete_shards(self):
        """(name, bytes) of all shards if they are complete, else None."""
        made = read_json(self.made)
        if made is None:
            return None
        if made["recipe"] != self.recipe:
            wrong_use(f"{self.prefix}_*.bin were made of other data or with other flags, as {self.made} says; another "
                      "-o is accepted, or this one when all of them are removed")
        for name, size in made["shards"]:
            shard = self.prefix.with_name(name)
            if not shard.is_file() or shard.stat().st_size != size:
                fail(f"{shard} is not as {self.made} says; remove {self.made} and the shards to make them again")
        shutil.rmtree(self.folder, ignore_errors=True)
        return made["shards"]

    def open(self):
        """Takes the folder. No two runs work in it."""
        if not self.folder.exists():
            for kind in "train", "val", "tokenizer":  # the trainers would read the shards with that vocabulary
                for path in self.prefix.parent.glob(f"{glob.escape(self.prefix.name)}_{kind}*.bin"):
                    if not (GPT2_TOKENIZER.exists() and path.samefile(GPT2_TOKENIZER)):
                        wrong_use(f"{path} is there already; another -o is accepted, or this one when it is removed")
        self.made_folders = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.folder / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail(f"another run is at work in {self.folder}")
        recipe = self.folder / "recipe.json"
        if read_json(recipe, self.recipe) != self.recipe:
            if (self.folder / "plan.json").exists():
                wrong_use(f"{self.folder} was begun with other data or with other flags; those are accepted, or others "
                          "when it is removed")
            for entry in self.folder.iterdir():  # the earlier run did not get as far as a part
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != "lock":
                    entry.unlink()
        self.opened = True
        write_json(recipe, self.recipe)

    def leave_nothing(self):
        """Removes the folder of a run that has failed, and the folders made for it, if nothing of use is in it."""
        of_use = [*self.folder.glob("p??????/*.bin"), *self.folder.glob("*_*.bin"), *self.folder.glob("texts")]
        if not self.opened or (of_use and not self.useless):
            return
        children.signal_all(signal.SIGKILL)
        for process, _ in self.running.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in self.made_folders[1:]:
            try:
                folder.rmdir()
            except OSError:  # something else is in it
                return

    def tokenizer(self):
        """The path of the vocabulary; None if it is GPT-2's."""
        own = any(self.recipe.get(name) for name in ("tokenizer", "train_vocab", "bytes"))
        return self.folder / "tokenizer.bin" if own else None

    def resume(self):
        """Finds out what an earlier run has done. Returns the first file that is still needed."""
        for unfinished in self.folder.glob("p*.tmp"):
            shutil.rmtree(unfinished, ignore_errors=True)  # a process that outlived its run may still write there
        self.plan = read_json(self.folder / "plan.json",
                              {"parts": [], "file_bytes": [], "open": [], "open_bytes": 0, "planned": 0})
        self.position = read_json(self.folder / "position.json", {split: [0, 0, 0] for split in self.splits})
        for number in range(self.first_part(), len(self.plan["parts"])):
            self.read_counts(number)
        return self.first_file()

    def part_folder(self, number):
        return self.folder / f"p{number:06}"

    def first_part(self):
        """The parts before it are in shards."""
        return min(part for _, part, _ in self.position.values())

    def first_file(self):
        """The files before it are tokenized."""
        for number in range(self.first_part(), len(self.plan["parts"])):
            if number not in self.counts:
                return self.plan["parts"][number][0][0]
        return self.plan["open"][0][0] if self.plan["open"] else self.plan["planned"]

    def read_counts(self, number):
        counts = read_json(self.part_folder(number) / "counts.json")
        if counts is None:
            return
        self.counts[number] = counts
        for split in self.splits:
            path, size = self.part_folder(number) / f"{split}.bin", counts.get(split)
            wanted = size and number >= self.position[split][1]
            if wanted and (not path.is_file() or path.stat().st_size != documents.TOKENS_HEADER_BYTES + 2 * size):
                fail(f"{path} is damaged; remove {self.part_folder(number)} to make it again")

    # ---- parts

    def plan_more(self):
        """Divides the files that are there into parts. Small files share one."""
        plan, before = self.plan, self.plan["planned"]
        while (index := plan["planned"]) < len(self.files.names) and self.files.ready(index):
            pieces = documents.pieces(self.files.path(index), self.recipe["column"], self.recipe["part_bytes"])
            text_bytes = sum(size for *_, size in pieces)
            for begin, end, size in pieces:
                plan["open"].append([index, begin, end])
                plan["open_bytes"] += self.files.sizes[index] * size / max(text_bytes, 1)
                if size >= self.recipe["part_bytes"] // 2 or plan["open_bytes"] >= self.recipe["part_bytes"]:
                    self.close_part()
            plan["planned"] += 1
            if plan["planned"] == len(self.files.names) or (self.recipe["val"] == "file" and index == 0):
                self.close_part()
        if plan["planned"] > before:
            write_json(self.folder / "plan.json", plan)

    def close_part(self):
        if self.plan["open"]:
            self.plan["parts"].append(self.plan["open"])
            self.plan["file_bytes"].append(self.plan["open_bytes"])
        self.plan["open"], self.plan["open_bytes"] = [], 0

    def waiting_parts(self):
        return [number for number in range(self.first_part(), len(self.plan["parts"]))
                if number not in self.counts and number not in self.running]

    def part(self, number):
        """What documents.py needs to know of a part."""
        pieces = self.plan["parts"][number]
        own_val_file = self.recipe["val"] == "file"
        split = {"first": "train", "drawn": None, "file": "val" if pieces[0][0] == 0 else "train"}[self.recipe["val"]]
        part = {"number": number, "parent": os.getpid(), "split": split, "pieces": [],
                "tokenizer": self.tokenizer() and str(self.tokenizer())}
        part.update((name, self.recipe[name]) for name in ("column", "speech", "val_fraction", "seed"))
        for index, begin, end in pieces:
            in_split = index - 1 if own_val_file and index > 0 else index
            part["pieces"].append([self.files.path(index), begin, end, in_split])
        return part

    def start_part(self, number):
        part = self.part(number)
        folder = pathlib.Path(tempfile.mkdtemp(".tmp", f"p{number:06}.", self.folder))
        (folder / "part.json").write_text(json.dumps(part))
        with open(folder / "log", "w") as log:
            process = children.start([sys.executable, documents.__file__, str(folder)], stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log)
        self.running[number] = process, folder

    def collect(self):
        """Takes the parts that are complete. Whether there were any."""
        ended = [number for number, (process, _) in self.running.items() if process.poll() is not None]
        for number in ended:
            process, folder = self.running.pop(number)
            children.running.discard(process)
            if process.returncode:
                said = (folder / "log").read_text().strip().splitlines()
                fail(said[-1].removeprefix("error: ") if said else
                     f"a part was not tokenized: {documents.__file__} ended with status {process.returncode}")
            os.rename(folder, self.part_folder(number))
            self.read_counts(number)
            self.empty += self.counts[number]["empty"]
        return bool(ended)

    # ---- shards

    def shard_name(self, split, index):
        if self.recipe["val"] == "first" and index == 0:
            split = "val"
        return f"{split}_{index:06}.bin" if self.recipe["shard_tokens"] else f"{split}.bin"

    def shard_limit(self, index):
        first_validates = self.recipe["val"] == "first" and index == 0
        return self.recipe["val_tokens"] if first_validates else self.recipe["shard_tokens"] or MOST_TOKENS

    def write_next_shard(self, split):
        """Writes a shard if its tokens are there: as many as it takes, or the last ones. Whether it did."""
        index, begin, first = self.position[split]
        part, limit, sources, have = begin, self.shard_limit(index), [], 0
        while have < limit and part in self.counts:
            tokens = self.counts[part].get(split, 0)
            count = min(tokens - first, limit - have)
            if count:
                sources.append((self.part_folder(part) / f"{split}.bin", first, count))
            have, first = have + count, first + count
            if first == tokens:
                part, first = part + 1, 0
        if have == 0 or (have < limit and not (self.all_planned() and part == len(self.plan["parts"]))):
            return False
        shard = self.folder / self.shard_name(split, index)
        if shard.name in (self.shard_name(split, i) for i in range(index)):
            fail(f"more tokens than one file counts, {MOST_TOKENS:,}; --shard-tokens 100000000 writes several files")
        write_whole({shard: lambda file: write_shard(file, sources)})
        self.position[split] = [index + 1, part, first]
        write_json(self.folder / "position.json", self.position)
        for number in range(begin, part):
            (self.part_folder(number) / f"{split}.bin").unlink(missing_ok=True)
        return True

    def all_planned(self):
        return self.plan["planned"] == len(self.files.names)

    # ---- all of it

    def run(self, name, files, make_vocabulary):
        """Returns (name, bytes) of all shards."""
        self.files = files
        make_vocabulary(self)
        progress = Progress(name, sum(files.sizes), "MB", 1_000_000, self.bytes_done())
        while not self.all_planned() or self.running or self.waiting_parts():
            self.plan_more()
            for number in self.waiting_parts()[:self.workers - len(self.running)]:
                self.start_part(number)
            if self.collect():
                while any([self.write_next_shard(split) for split in self.splits]):
                    pass
                files.release_before(self.first_file())
            progress.reach(self.bytes_done(), files.note())
            time.sleep(0.02)
        while any([self.write_next_shard(split) for split in self.splits]):
            pass
        progress.done()
        return self.publish()

    def bytes_done(self):
        done = [size for number, size in enumerate(self.plan["file_bytes"])
                if number < self.first_part() or number in self.counts]
        return round(sum(done))

    def published_name(self, name):
        split = name.partition("_")[0]
        alone = self.recipe.get("plain") and self.position.get(split, [0])[0] == 1
        return f"{split}.bin" if alone else name

    def publish(self):
        names = [self.shard_name(split, i) for split in self.splits for i in range(self.position[split][0])]
        self.useless = not names
        if not names:
            fail(f"no text in {', '.join(self.files.names[:3])}{', ...' if len(self.files.names) > 3 else ''}")
        missing = [split for split in ("train", "val") if not any(name.startswith(split) for name in names)]
        if missing:
            self.useless = True
            fail(f"no tokens are left for {' and '.join(missing)}: too few documents for this --val-fraction, --seed "
                 "or --shard-tokens; others are accepted")
        if self.tokenizer():
            names.append("tokenizer.bin")
        made = []
        for name in names:
            shard = self.prefix.with_name(f"{self.prefix.name}_{self.published_name(name)}")
            if (self.folder / name).exists():
                os.replace(self.folder / name, shard)
            made.append([shard.name, shard.stat().st_size])
        flush_folder(self.prefix.parent)
        write_json(self.made, {"recipe": self.recipe, "shards": sorted(made)})
        shutil.rmtree(self.folder, ignore_errors=True)
        return made
