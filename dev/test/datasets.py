#!/usr/bin/env python3
"""Tests dev/data/get.py and hellaswag.py: token files equal those of a writer that uses tiktoken, as llm.c's do; runs
that are killed go on; downloads resume and are checked; all that is refused.

    pip install numpy pyarrow tiktoken
    make tokenize && dev/test/datasets.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy", "pyarrow", "tiktoken")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import contextlib  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402

import numpy as np  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402

import file_server  # noqa: E402
import get as get_script  # noqa: E402
from run_script import run, script  # noqa: E402
from tokenizer_file import gpt2_encoder  # noqa: E402

END_OF_TEXT = 50256
encoder = gpt2_encoder()
SHAKESPEARE = (ROOT / "dev/data/shakespeare/hamlet.txt").read_text()
NASTY = ["\n", "\n\n", " ", "\u00e9\u2603\U0001f600", "\u2028\x7f\x85", "\x00\x01\x1f", "\"\\/", "<|endoftext|>",
         "\t\r\n"]


# ---- what a test needs


def some_documents(count, seed, longest=3000):
    """Pieces of Shakespeare, some with all that could break a line of JSON."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        begin = draw.randrange(len(SHAKESPEARE) - longest)
        text = SHAKESPEARE[begin:begin + draw.randrange(1, longest)]
        texts.append(text + "".join(draw.sample(NASTY, draw.randrange(3))))
    return texts


def write_parquet(path, texts, rows=100, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"id": list(range(len(texts))), "text": texts, **columns}
    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=rows)


def fineweb_sample(folder, seed=1, files=3, documents=300):
    """Documents, and the folder with .parquet files of them."""
    texts = [some_documents(documents, seed + i) for i in range(files)]
    for i, part in enumerate(texts):
        write_parquet(folder / f"sample/10BT/{i:03}_00000.parquet", part)
    return sum(texts, [])


def tokens_of(texts):
    """What llm.c writes: each document after <|endoftext|>."""
    return np.array([t for text in texts for t in [END_OF_TEXT, *encoder.encode_ordinary(text)]], "<u2")


def write_as_llmc(path, tokens):
    header = np.zeros(256, "<i4")
    header[:3] = [20240520, 1, len(tokens)]
    path.write_bytes(header.tobytes() + tokens.tobytes())


def expect_shards(folder, name, tokens, shard_tokens):
    """Exactly the files that llm.c's fineweb.py writes are in the folder, to the byte, and PREFIX.json."""
    expected = {f"{name}.json"}
    for index, at in enumerate(range(0, len(tokens), shard_tokens)):
        shard = f"{name}_{'train' if index else 'val'}_{index:06}.bin"
        expected.add(shard)
        write_as_llmc(folder / "expected", tokens[at:at + shard_tokens])
        assert (folder / shard).read_bytes() == (folder / "expected").read_bytes(), f"{shard} differs"
        (folder / "expected").unlink()
    assert set(os.listdir(folder)) == expected, set(os.listdir(folder)) ^ expected


def get(*arguments, **keywords):
    """What get.py prints."""
    return script(get_script, *arguments, **keywords)


def refused(expected, *arguments, status=1):
    output = get(*arguments, status=status)
    errors = [line for line in output.splitlines() if not line.startswith("disk: ")]
    assert len(errors) == 1 and expected in errors[0], (expected, output)


# ---- the datasets


def fineweb(folder):
    """Parquet files of several row groups, in parts that are neither files nor shards."""
    texts = fineweb_sample(folder / "local")
    tokens = tokens_of(texts)
    for name, shard_tokens, part_bytes in [("a", 50_000, 150_000), ("b", len(tokens) // 3 + 1, 10_000_000)]:
        output = get("fineweb10B", "--from", folder / "local", "-o", folder / name / "fineweb", "--shard-tokens",
                     shard_tokens, "--part-bytes", part_bytes)
        assert "disk: " in output and f"val: {shard_tokens:,} tokens" in output, output
        expect_shards(folder / name, "fineweb", tokens, shard_tokens)
    before = {path: path.stat().st_mtime_ns for path in (folder / "a").iterdir()}
    again = get("fineweb10B", "--from", folder / "local", "-o", folder / "a/fineweb", "--shard-tokens", 50_000,
                "--part-bytes", 150_000)
    assert "disk" not in again and "50,000 tokens" in again, again
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "a").iterdir()}


def small_shards(folder):
    """Shards that are smaller than a document; a last one that is exactly full is not followed by an empty one."""
    texts = ["one two", "three four", "five six seven eight nine ten eleven"]
    write_parquet(folder / "x.parquet", texts)
    get("fineweb10B", "--from", folder / "x.parquet", "-o", folder / "out/fineweb", "--shard-tokens", 3)
    assert len(tokens_of(texts)) % 3 == 2
    expect_shards(folder / "out", "fineweb", tokens_of(texts), 3)
    write_parquet(folder / "y.parquet", texts[:2])
    get("fineweb10B", "--from", folder / "y.parquet", "-o", folder / "full/fineweb", "--shard-tokens", 3)
    expect_shards(folder / "full", "fineweb", tokens_of(texts[:2]), 3)


def tinyshakespeare(folder):
    text = SHAKESPEARE.replace("\n\n", "\n\n\n", 3)
    (folder / "copy.txt").write_text(text)
    get("tinyshakespeare", "--from", folder / "copy.txt", "-o", folder / "out/tiny")
    assert (folder / "out/tiny.txt").read_text() == text
    marked = "<|endoftext|>" + text.replace("\n\n", "\n\n<|endoftext|>")
    tokens = np.array(encoder.encode(marked, allowed_special={"<|endoftext|>"}), "<u2")
    for split, part in ("val", tokens[:32768]), ("train", tokens[32768:]):
        write_as_llmc(folder / "expected", part)
        assert (folder / f"out/tiny_{split}.bin").read_bytes() == (folder / "expected").read_bytes(), split


def tinystories(folder):
    """From the archive and from a folder: a file validates, stories are stripped and shuffled as llm.c does."""
    files = [[{"story": "\n\n" + text, "summary": "x"} for text in some_documents(60, seed)] for seed in range(4)]
    (folder / "json").mkdir()
    for i, stories in enumerate(files):
        (folder / f"json/data{i:02}.json").write_text(json.dumps(stories))
    with tarfile.open(folder / "all.tar.gz", "w:gz") as tar:
        for i in 2, 0, 3, 1:
            tar.add(folder / f"json/data{i:02}.json", f"./data{i:02}.json")
    expected = {}
    for split, part in ("val", files[:1]), ("train", files[1:]):
        texts = []
        for index, stories in enumerate(part):
            stories = list(stories)
            random.Random(1337 + index).shuffle(stories)
            texts += [story["story"].strip() for story in stories]
        expected[split] = tokens_of(texts)
    for source in "json", "all.tar.gz":
        out = folder / f"from_{source}"
        get("tinystories", "--from", folder / source, "-o", out / "T", "--part-bytes", 50_000)
        for split in expected:
            write_as_llmc(folder / "expected", expected[split])
            assert (out / f"T_{split}.bin").read_bytes() == (folder / "expected").read_bytes()


def documents_in(paths):
    """The documents of token files, as texts."""
    tokens = np.concatenate([np.fromfile(path, "<u2", offset=1024) for path in sorted(paths)])
    starts = np.flatnonzero(tokens == END_OF_TEXT)
    assert starts[0] == 0
    return [encoder.decode(part[1:].tolist()) for part in np.split(tokens, starts[1:])]


def own_folder(folder):
    """.parquet, .jsonl and .txt together: each document is once in train or val, in order, and about the share that
    was asked for validates. The number of workers changes nothing, another seed draws others."""
    texts = [f"{i}. {text}" for i, text in enumerate(some_documents(600, 5, 600))]
    texts[17] += "\u20ac" * 2000
    source = folder / "mine"
    write_parquet(source / "a.parquet", texts[:200], rows=30)
    lines = [json.dumps({"id": 1, "text": text}, ensure_ascii=bool(i % 2)) for i, text in enumerate(texts[200:400])]
    (source / "b.jsonl").write_text("\n\n".join(lines))
    (source / "c").mkdir()
    for i, text in enumerate(texts[400:]):
        (source / f"c/{i:04}.txt").write_text(text, newline="")
    (source / "notes.md").write_text("left out")
    results = []
    for workers, seed in (1, 42), (3, 42), (2, 7):
        out = folder / f"{workers}/mine"
        get(source, "-o", out, "--workers", workers, "--seed", seed, "--part-bytes", 40_000, "--shard-tokens", 20_000)
        results.append([documents_in(out.parent.glob(f"mine_{split}_*.bin")) for split in ("train", "val")])
        train, val = results[-1]
        assert sorted(train + val) == sorted(texts) and train == [t for t in texts if t in set(train)]
        assert val == [t for t in texts if t in set(val)] and 30 < len(val) < 90, len(val)
    assert results[0] == results[1] != results[2]


def decoded(folder, name, split):
    """The documents of a split with a vocabulary of its own, as bytes."""
    raw = (folder / f"{name}_tokenizer.bin").read_bytes()
    vocabulary, at = [], 1024
    while at < len(raw):
        vocabulary.append(raw[at + 1:at + 1 + raw[at]])
        at += 1 + raw[at]
    end_of_text = int.from_bytes(raw[12:16], "little")
    texts = []
    for token in np.fromfile(folder / f"{name}_{split}.bin", "<u2", offset=1024):
        if token == end_of_text:
            texts.append(b"")
        else:
            texts[-1] += vocabulary[token]
    return len(vocabulary), texts


def vocabularies(folder):
    """Vocabularies that are learned, of bytes, and of a file; one shard has no number; what is there is found again."""
    texts = [f"{i}. {text}" for i, text in enumerate(some_documents(200, 6, 600))]
    (folder / "in").mkdir()
    (folder / "in/x.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    splits = []
    for flags, size in (["--train-vocab", 400], 400), (["--bytes", 1], 257), \
            (["--tokenizer", folder / "--train-vocab/mine_tokenizer.bin"], 400):
        out = folder / flags[0]
        for workers in 1, 3:
            arguments = [folder / "in", "-o", out / "mine", "--workers", workers, "--part-bytes", 20_000, *flags]
            assert f"in {out}/mine_train.bin" in get(*arguments)
            made = {path: path.read_bytes() for path in out.iterdir()}
            assert {path.name for path in made} == {"mine.json", "mine_train.bin", "mine_val.bin", "mine_tokenizer.bin"}
            if workers == 1:
                before = made
                assert f"vocabulary: {out}/mine_tokenizer.bin" in get(*arguments)
                refused("made of other data or with other flags", *arguments[:-2], status=2)
                shutil.rmtree(out)
        assert made == before
        if flags[0] == "--train-vocab":
            get(*arguments)
        train, val = (decoded(out, "mine", split) for split in ("train", "val"))
        assert train[0] == val[0] == size, (train[0], size)
        assert sorted(train[1] + val[1]) == sorted(text.encode() for text in texts) and val[1]
        splits.append((train, val))
    assert splits[0] == splits[2]
    for source in "fineweb10B", "tinyshakespeare":
        if source == "fineweb10B":
            fineweb_sample(folder / "local")
        else:
            (folder / "local.txt").write_text(SHAKESPEARE)
        local = folder / ("local" if source == "fineweb10B" else "local.txt")
        small = ["--shard-tokens", 100_000, "--part-bytes", 100_000] if source == "fineweb10B" else []
        get(source, "--from", local, "-o", folder / source / "x", "--train-vocab", 300, *small)
        assert (folder / source / "x_tokenizer.bin").stat().st_size > 1024 + 300
    out = ["-o", folder / "no/mine"]
    refused("--tokenizer and --bytes both say", folder / "in", *out, "--tokenizer", "x", "--bytes", 1, status=2)
    refused("--train-vocab 256", folder / "in", *out, "--train-vocab", 256, status=2)
    refused("--bytes 2", folder / "in", *out, "--bytes", 2, status=2)
    refused("nothing.bin is not there", folder / "in", *out, "--tokenizer", folder / "nothing.bin")
    assert "are left to merge" in get(folder / "in", *out, "--train-vocab", 60000, status=1)
    assert not (folder / "no").exists()


def little_memory(folder):
    """Of a large row group only a part is in memory."""
    texts = 60 * some_documents(1000, 8, 6000)  # 175 MB
    write_parquet(folder / "x.parquet", texts, rows=len(texts))
    program = ("import sys, documents, pyarrow.parquet\n"
               "def most_kib():\n"
               "    return next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
               "before = most_kib()\n"
               "print(sum(map(len, documents.parquet_documents(sys.argv[1], 0, 1, 'text'))), before, most_kib())")
    output = run(sys.executable, "-c", program, folder / "x.parquet",
                 env={**os.environ, "PYTHONPATH": f"{ROOT}/dev:{ROOT}/dev/data"})
    count, before_kib, peak_kib = map(int, output.split())
    assert count == sum(map(len, texts)) > 170e6 and peak_kib - before_kib < 120 << 10, output


# ---- runs that end early


def killed(folder):
    """A run that is killed again and again ends with the same shards, and does no part twice."""
    tokens, draw = tokens_of(fineweb_sample(folder / "local", documents=500)), random.Random(3)
    command = [sys.executable, get_script.__file__, "fineweb10B", "--from", folder / "local", "-o",
               folder / "out/fineweb", "--shard-tokens", 60_000, "--part-bytes", 100_000, "--workers", 2]
    parts = folder / "out/fineweb_parts"

    def complete():
        """What is complete, by its name: a shard has another inode if it is written again, a part another folder."""
        found = [*parts.glob("*.bin"), *parts.glob("p??????")]
        return {path: path.stat().st_ino for path in found}

    before = {}
    for _ in range(6):
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   cwd=ROOT)
        while not complete().keys() - before.keys():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.2))
        process.kill()
        process.wait()
        assert not list((folder / "out").glob("*.bin")), "shards have their names before all are complete"
        now = complete()
        again = [path for path in before if now.get(path) != before[path]]
        assert len(again) <= 1, f"made twice: {again}"  # a shard that was complete when its position was not written
        before = now
    get(*command[2:])
    expect_shards(folder / "out", "fineweb", tokens, 60_000)


CRASHES = ["mkdir", "open", "remove", "rename", "replace", "rmdir", "unlink"]  # of os: what changes a folder


def crashing_run(arguments, at):
    """Runs get.py in a process that dies, without any cleaning up, before its change of a folder number `at`. Returns
    whether it died."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 99
    left = [at]

    def dying(function):
        def changed(*arguments, **keywords):
            left[0] -= 1
            if left[0] == 0:
                os._exit(99)
            return function(*arguments, **keywords)
        return changed

    status = 1
    try:
        for name in CRASHES:
            setattr(os, name, dying(getattr(os, name)))
        get(*arguments)
        status = 0
    finally:
        os._exit(status)


def crashes(folder):
    """A run that dies before any of its changes of a folder goes on to the same shards."""
    source, texts = folder / "mine", some_documents(40, 7, 300)
    source.mkdir()
    (source / "x.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))

    def arguments(name):
        return [source, "-o", folder / name / "mine", "--shard-tokens", 700, "--part-bytes", 4500, "--workers", 2]

    get(*arguments("whole"))
    expected = {path.name: path.read_bytes() for path in (folder / "whole").iterdir()}
    assert len(expected) > 4
    at = deaths = 0
    while True:
        at += 1 + at // 4
        if not crashing_run(arguments("out"), at):
            break
        deaths += 1
        get(*arguments("out"))
        assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == expected, at
        shutil.rmtree(folder / "out")
    assert deaths > 8, deaths


# ---- downloads


class Hub(file_server.Handler):
    """A stand-in for the hub, with one dataset of .parquet files, which it lists on pages of one file; and a server of
    single files."""
    folder, false_checksum, singles = None, False, {}
    RESOLVE = "/datasets/HuggingFaceFW/fineweb/resolve/0123456789abcdef/"
    LISTING = "/api/datasets/HuggingFaceFW/fineweb/tree/0123456789abcdef/sample/10BT"

    def do_GET(self):
        Hub.asked.append((self.path, self.headers.get("Range")))
        paths = sorted(path for path in self.folder.rglob("*.parquet"))
        if self.path == "/api/datasets/HuggingFaceFW/fineweb/refs":
            return self.answer_json({"branches": [{"name": "convert", "targetCommit": "f" * 16},
                                                  {"name": "main", "targetCommit": "0123456789abcdef"}]})
        if self.path.partition("?")[0] == self.LISTING:
            page = int(self.path.partition("?page=")[2] or 0)
            data, name = paths[page].read_bytes(), str(paths[page].relative_to(self.folder))
            sha256 = "0" * 64 if self.false_checksum else hashlib.sha256(data).hexdigest()
            file = {"type": "file", "path": name, "size": len(data), "oid": "a" * 40,
                    "lfs": {"oid": sha256, "size": len(data), "pointerSize": 134}}
            address = f"http://{self.headers['Host']}{self.LISTING}?page={page + 1}"
            more = {"Link": f'<{address}>; rel="next"'} if page + 1 < len(paths) else {}
            other = {"type": "file", "path": "sample/10BT/README.md", "size": 3, "oid": "b" * 40}
            return self.answer_json([{"type": "directory", "path": "sample/10BT/x", "oid": "c" * 40}, other, file],
                                    **more)
        if self.path.startswith(self.RESOLVE):
            return self.answer(302, b"", Location="/large/" + self.path[len(self.RESOLVE):])
        if self.path.startswith("/large/") and (self.folder / self.path[7:]).is_file():
            return self.answer_file((self.folder / self.path[7:]).read_bytes())
        if self.path in self.singles:
            return self.answer_file(self.singles[self.path])
        return self.answer(404, b"")

    @classmethod
    def fresh(cls, **settings):
        for name, value in {"most_bytes": 1 << 30, "ranges": True, "false_checksum": False, "stalls": False,
                            **settings}.items():
            setattr(cls, name, value)
        cls.asked.clear()


@contextlib.contextmanager
def hub_of(folder):
    Hub.folder = folder
    server, address = file_server.serve(Hub)
    try:
        yield server, address
    finally:
        server.stalled.set()
        server.shutdown()
        server.server_close()


def from_the_hub(folder):
    """Downloads resume, are checked, and are removed when they are tokenized; a run that goes on downloads no file
    again of which the tokens are there."""
    tokens = tokens_of(fineweb_sample(folder / "hub", files=4, documents=100))
    downloads, large = folder / "downloads/fineweb10B", "/large/sample/10BT/000_00000.parquet"

    def flags(name):
        return ["fineweb10B", "-o", folder / name / "fineweb", "--shard-tokens", 25_000, "--part-bytes", 150_000,
                "--hub", address, "--download-dir", folder / "downloads"]

    with hub_of(folder / "hub") as (server, address):
        Hub.fresh(most_bytes=30_000)
        output = get(*flags("a"))
        assert f"from {address}" in output and "revision 0123456789ab" in output and "4 files" in output, output
        expect_shards(folder / "a", "fineweb", tokens, 25_000)
        asked = [wanted for path, wanted in Hub.asked if path == large]
        assert asked[:2] == [None, "bytes=30000-"], asked
        assert not list(downloads.iterdir()), "downloads are kept"
        Hub.fresh()
        get(*flags("a"))
        assert not Hub.asked, "what is complete was asked for again"

        Hub.fresh(ranges=False)
        get(*flags("b"), "--keep-downloads")
        expect_shards(folder / "b", "fineweb", tokens, 25_000)
        assert len(list(downloads.iterdir())) == 4
        shutil.rmtree(downloads)

        Hub.fresh(false_checksum=True)
        output = get(*flags("c"), status=1)
        assert "checksum of sample--10BT--000_00000.parquet is wrong" in output, output
        assert not list(downloads.iterdir()) and not (folder / "c").exists()

        Hub.fresh(most_bytes=sorted(path.stat().st_size for path in (folder / "hub").rglob("*.parquet"))[-1] // 2,
                  stalls=True)
        for number in signal.SIGINT, signal.SIGKILL:
            process = subprocess.Popen([sys.executable, get_script.__file__, *map(str, flags("d"))], text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)
            while not any(path.startswith("/large/") for path, _ in Hub.asked) and process.poll() is None:
                time.sleep(0.02)
            time.sleep(0.3)
            process.send_signal(number)
            output, _ = process.communicate(timeout=60)
            assert process.returncode == -number and "Traceback" not in output, output
            server.stalled.set()
            server.stalled.clear()
            Hub.asked.clear()
        server.stalled.set()
        Hub.fresh()
        assert "goes on from byte" in get(*flags("d"))
        assert any(path.startswith("/large/") and wanted for path, wanted in Hub.asked), Hub.asked
        expect_shards(folder / "d", "fineweb", tokens, 25_000)

        Hub.fresh()
        process = subprocess.Popen([sys.executable, get_script.__file__, *map(str, flags("e"))], cwd=ROOT,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (folder / "e/fineweb_parts/train_000002.bin").exists():
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        process.wait()
        Hub.asked.clear()
        assert "goes on with file" in get(*flags("e"))
        again = {path for path, _ in Hub.asked if path.startswith("/large/")}
        assert large not in again and not any(path.endswith("refs") for path, _ in Hub.asked), Hub.asked
        expect_shards(folder / "e", "fineweb", tokens, 25_000)
    output = get(*flags("f"), status=1)
    assert "cannot be read" in output, output


def single_files(folder):
    """A download of a single file: resumed, checked, kept."""
    data = get_script.DATASETS["tinyshakespeare"]
    text = SHAKESPEARE.encode()
    Hub.singles = {"/input.txt": text}
    known = (len(text), "sha256", hashlib.sha256(text).hexdigest())
    with hub_of(folder) as (_, address):
        before = dict(data)
        data.update(url=f"{address}/input.txt", file=known)
        flags = ["-o", folder / "out/tiny", "--download-dir", folder / "downloads"]
        try:
            Hub.fresh(most_bytes=70_000)
            output = get("tinyshakespeare", *flags)
            assert f"{address}/input.txt (0.2 MB) into" in output, output
            assert [wanted for _, wanted in Hub.asked] == [None, "bytes=70000-", "bytes=140000-"], Hub.asked
            assert (folder / "out/tiny.txt").read_bytes() == text
            Hub.fresh()
            shutil.rmtree(folder / "out")
            get("tinyshakespeare", *flags)
            assert not Hub.asked, "what is there was downloaded again"
            Hub.singles = {"/input.txt": text[:-1] + b"x"}
            shutil.rmtree(folder / "out")
            shutil.rmtree(folder / "downloads")
            assert "checksum of input.txt is wrong" in get("tinyshakespeare", *flags, status=1)
            assert not (folder / "out").exists() and not list((folder / "downloads").iterdir())
        finally:
            data.clear()
            data.update(before)


# ---- what is refused


def refusals(folder):
    """One sentence, exit 1 or 2, and no shard."""
    texts = some_documents(40, 9)
    good = folder / "good/x.parquet"
    write_parquet(good, texts, rows=10)
    out = ["-o", folder / "out/mine"]

    refused("fineweb11B is no dataset and no folder or file here; datasets: tinyshakespeare", "fineweb11B", status=2)
    refused("-o is missing", good.parent, status=2)
    refused("--from is for a dataset", good.parent, "--from", good, *out, status=2)
    refused("--seed is for a folder", "fineweb10B", "--seed", 1, "--from", good, *out, status=2)
    refused("--shard-tokens 0", "fineweb10B", "--shard-tokens", 0, "--from", good, *out, status=2)
    refused("--val-fraction 1.0", good.parent, "--val-fraction", 1, *out, status=2)
    refused("unrecognized arguments: --val", "fineweb10B", "--val", 1, status=2)
    refused("is not there", "fineweb10B", "--from", folder / "nothing", *out)
    (folder / "empty").mkdir()
    refused(f"the folder {folder}/empty holds no .parquet or .jsonl or .txt file", folder / "empty", *out)
    refused(f"the folder {folder}/empty holds no .parquet file", "fineweb10B", "--from", folder / "empty", *out)
    assert not (folder / "out").exists()

    def refused_file(expected, name, content, *flags, dataset=()):
        source = folder / "bad"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        (source / name).write_bytes(content)
        arguments = [*dataset, "--from", source] if dataset else [source]
        refused(expected.replace("FILE", str(source / name)), *arguments, *out, *flags)
        assert not (folder / "out").exists(), "a start that is refused leaves something behind"

    whole = good.read_bytes()
    for cut in 0, 3, 1000, len(whole) - 1:
        refused_file("FILE is no .parquet file, or is cut short", "x.parquet", whole[:cut])
    middle = pyarrow.parquet.ParquetFile(good).metadata.row_group(2).column(1).data_page_offset
    refused_file("FILE is damaged: ", "x.parquet", whole[:middle] + b"\xff" * 30 + whole[middle + 30:])
    refused_file("FILE has no column 'body' but id, text", "x.parquet", whole, "--column", "body")
    refused_file("FILE: the column 'id' holds int64 and no text", "x.parquet", whole, "--column", "id")
    for text in b'{"text": "a"}\n{"body": "b"}\n', b'{"text": "a"}\n{"text": 1}\n', b'{"text": "a"}\n["text"]\n', \
            b'{"text": "a"}\n{"text": "b\n':
        refused_file("FILE, the line at byte 14: a JSON object with a string 'text' is expected", "x.jsonl", text)
    refused_file("FILE has text that is no UTF-8", "x.jsonl", b'{"text": "\\ud800"}\n')
    refused_file("FILE is no UTF-8 text: the byte at 2", "x.txt", b"ab\xff")
    refused_file("no text in FILE", "x.txt", b"")
    refused_file("FILE: a JSON list of objects with a string 'story'", "x.json", b'[{"text": 1}]',
                 dataset=["tinystories"])
    refused_file("no tokens are left for val", "x.txt", b"abc", "--val-fraction", "1e-9")
    refused_file("no tokens are left for train", "x.parquet", whole, dataset=["fineweb10B"])
    (folder / "x.tar.gz").write_bytes(b"x" * 5000)
    output = get("tinystories", "--from", folder / "x.tar.gz", *out, status=1)
    assert "x.tar.gz is damaged" in output and not (folder / "out").exists(), output

    output = run(sys.executable, "-S", get_script.__file__, good.parent, *out, status=1)
    assert output.endswith("\nmissing: pyarrow (pip install pyarrow)\n"), output
    output = run(sys.executable, "-S", get_script.__file__, "edu_fineweb10B", *out, status=1)
    assert output == "missing: pyarrow (pip install pyarrow)\n", output


def refusals_of_what_is_there(folder):
    """Nothing that is there is overwritten, nor mixed with what is made of other data or with other flags."""
    write_parquet(folder / "in/x.parquet", some_documents(60, 9))
    flags = [folder / "in", "-o", folder / "out/mine", "--shard-tokens", 5000]
    (folder / "out").mkdir()
    (folder / "out/mine_train_000004.bin").write_bytes(b"")
    refused("mine_train_000004.bin is there already", *flags, status=2)
    (folder / "out/mine_train_000004.bin").rename(folder / "out/mine_tokenizer.bin")
    refused("mine_tokenizer.bin is there already", *flags, status=2)
    (folder / "out/mine_tokenizer.bin").unlink()
    refused("no column 'body'", *flags, "--column", "body")
    get(*flags)
    before = {path: path.read_bytes() for path in (folder / "out").iterdir()}
    refused("were made of other data or with other flags", *flags, "--seed", 1, status=2)
    write_parquet(folder / "in/y.parquet", some_documents(60, 10))
    refused("were made of other data or with other flags", *flags, status=2)
    (folder / "in/y.parquet").unlink()
    get(*flags)
    assert before == {path: path.read_bytes() for path in (folder / "out").iterdir()}
    (folder / "out/mine_val_000000.bin").unlink()
    refused("mine_val_000000.bin is not as", *flags)


def full_disk(folder):
    """A write that fails ends the run with a sentence; when there is room, it goes on."""
    tokens = tokens_of(fineweb_sample(folder / "local"))
    flags = ["fineweb10B", "--from", folder / "local", "-o", folder / "out/fineweb", "--shard-tokens", 50_000]
    for most_bytes, expected in (100, "recipe.json"), (60_000, "train_train.bin"), (700_000, ""):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        output = get(*flags, "--part-bytes", 400_000, status=1 if expected else 0, preexec_fn=limit)
        errors = [line for line in output.splitlines() if "error" in line]
        assert len(errors) == (expected != "") and expected in output, output
        if expected:
            assert "cannot write" in output and not list((folder / "out").glob("*.bin")), output
    expect_shards(folder / "out", "fineweb", tokens, 50_000)


def interrupted(folder):
    """Ctrl-C: no traceback, nothing that was started goes on, and the run can be continued."""
    tokens = tokens_of(fineweb_sample(folder / "local"))
    command = [sys.executable, get_script.__file__, "fineweb10B", "--from", folder / "local", "-o",
               folder / "out/fineweb", "--shard-tokens", 50_000, "--part-bytes", 50_000]
    for number in signal.SIGINT, signal.SIGTERM:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, cwd=ROOT)
        while not list((folder / "out/fineweb_parts").glob("p*.tmp/train*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -number and "Traceback" not in output, output
        assert not [path for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if str(folder) in contents(path)]
    get(*command[2:])
    expect_shards(folder / "out", "fineweb", tokens, 50_000)


def contents(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def a_part_is_killed(folder):
    """The run ends with a sentence, as where memory ran out, and goes on when started again."""
    tokens = tokens_of(fineweb_sample(folder / "local"))
    flags = ["fineweb10B", "--from", folder / "local", "-o", folder / "out/fineweb", "--shard-tokens", 50_000]
    process = subprocess.Popen([sys.executable, get_script.__file__, *map(str, flags)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    workers = []
    while not workers:
        assert process.poll() is None, process.communicate()
        workers = [path.parent.name for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                   if f"documents.py\0{folder}" in contents(path)]
    os.kill(int(workers[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "was not tokenized" in output and "Traceback" not in output, output
    get(*flags)
    expect_shards(folder / "out", "fineweb", tokens, 50_000)


def two_at_once(folder):
    """A second run in the same folder is refused while the first is at work."""
    fineweb_sample(folder / "local")
    flags = ["fineweb10B", "--from", folder / "local", "-o", folder / "out/fineweb", "--shard-tokens", 50_000]
    process = subprocess.Popen([sys.executable, get_script.__file__, *map(str, flags)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    while not (folder / "out/fineweb_parts/plan.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    refused("another run is at work", *flags)
    assert process.wait(60) == 0, process.communicate()


# ---- HellaSwag


def hellaswag(folder):
    """Every token equals tiktoken's, in the layout that llm.c's readers know."""
    draw = random.Random(2)
    texts = [text for text in some_documents(200, 4, 200) if text]
    examples = [{"ind": i, "ctx": texts[5 * i], "endings": texts[5 * i + 1:5 * i + 5], "label": draw.randrange(4)}
                for i in range(40)]
    examples[3]["ctx"] += " \n "
    lines = [json.dumps(example, ensure_ascii=bool(i % 2)) for i, example in enumerate(examples)]
    (folder / "val.jsonl").write_text("\n".join(lines) + "\n")
    hellaswag_script = [sys.executable, ROOT / "dev/data/hellaswag.py"]
    assert "40 examples" in run(*hellaswag_script, folder / "val.jsonl", "-o", folder / "out/val.bin")
    expected, longest = [], 0
    for i, example in enumerate(examples):
        parts = [encoder.encode_ordinary(text) for text in
                 [example["ctx"], *(" " + ending for ending in example["endings"])]]
        record = [65535, 0, i, example["label"], 4, *(v for part in parts for v in [len(part), *part])]
        record[1] = 2 * len(record)
        longest = max(longest, record[1])
        expected += record
    header = np.zeros(256, "<i4")
    header[:4] = [20240522, 1, 40, longest]
    whole = (folder / "out/val.bin").read_bytes()
    assert whole == header.tobytes() + np.array(expected, "<u2").tobytes()
    for bad in "", "x", '{"ctx": "a", "endings": ["b"], "label": 0}', json.dumps({**examples[0], "label": 4}), \
            json.dumps({**examples[0], "ctx": "\ud800"}):
        (folder / "bad.jsonl").write_text("\n".join([lines[0], bad] if bad else []))
        output = run(*hellaswag_script, folder / "bad.jsonl", "-o", folder / "out/val.bin", status=1)
        assert ("bad.jsonl, line 2" if bad else "holds 0 examples") in output and output.count("\n") == 1, output
    output = run(*hellaswag_script, folder / "none.jsonl", "-o", folder / "out/val.bin", status=1)
    assert "cannot read" in output and (folder / "out/val.bin").read_bytes() == whole


def main():
    tests = [fineweb, small_shards, tinyshakespeare, tinystories, own_folder, vocabularies, little_memory, killed,
             crashes, from_the_hub, single_files, refusals, refusals_of_what_is_there, full_disk, interrupted,
             a_part_is_killed, two_at_once, hellaswag]
    chosen = [test for test in tests if test.__name__ in sys.argv[1:]] or tests
    failed = 0
    for test in chosen:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            try:
                test(pathlib.Path(folder))
            except AssertionError:
                failed += 1
                print(f"FAILED {test.__name__}: {traceback.format_exc()}")
            if "--times" in sys.argv:
                print(f"{test.__name__}: {time.monotonic() - begin:.1f} s")
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
