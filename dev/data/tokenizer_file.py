#!/usr/bin/env python3
"""Makes dev/data/gpt2_tokenizer.bin from the GPT-2 merge ranks that the PyPI source package `openai-whisper` carries
(whisper/assets/gpt2.tiktoken, MIT licence, copyright OpenAI).

Layout: 256 uint32 header (20240328, version 2, vocabulary size, end-of-text id), then for each id a length byte and the
bytes.

    python3 dev/data/tokenizer_file.py       # downloads the package with pip, writes the file
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import base64  # noqa: E402
import struct  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402

OUT = pathlib.Path(__file__).parent / "gpt2_tokenizer.bin"
WHISPER = "openai-whisper==20250625"


def merge_ranks():
    """{token bytes: id} of GPT-2, without the special token."""
    with tempfile.TemporaryDirectory() as tmp:
        children.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
                      "-d", tmp, WHISPER])
        archive = next(pathlib.Path(tmp).glob("openai_whisper-*.tar.gz"))
        with tarfile.open(archive) as tar:
            member = next(m for m in tar.getmembers() if m.name.endswith("whisper/assets/gpt2.tiktoken"))
            lines = tar.extractfile(member).read().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


def gpt2_encoder():
    """tiktoken's own, from the ranks in our tokenizer file. Tests and fixtures compare with it."""
    import tiktoken
    data, at, ranks = OUT.read_bytes(), 1024, {}
    for i in range(50256):
        ranks[data[at + 1:at + 1 + data[at]]] = i
        at += 1 + data[at]
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def main():
    ranks = merge_ranks()
    tokens = sorted(ranks, key=ranks.get)
    assert [ranks[t] for t in tokens] == list(range(50256)), "the ranks are not 0..50255"
    tokens.append(b"<|endoftext|>")
    header = [20240328, 2, len(tokens), len(tokens) - 1] + [0] * 252
    with open(OUT, "wb") as f:
        f.write(struct.pack("<256I", *header))
        for token in tokens:
            f.write(struct.pack("B", len(token)) + token)
    print(f"{len(tokens)} tokens, {OUT.stat().st_size} bytes in {OUT}")


if __name__ == "__main__":
    main()
