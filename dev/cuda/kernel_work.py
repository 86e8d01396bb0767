"""What each kernel of a step reads, writes and computes, in bytes and FLOPs, by the shapes: the one place where
step_model.py learns how much work a launch is. How often the loops of its machine code run follows from it.

    read, written   bytes that must come from and go to memory: every operand once
    loaded          bytes that all threads load, if that is not `read`: what they read again is in a cache
    copied          bytes of cp.async
    flops           of mma.sync; with causal attention those of whole tiles
    rare            the share of tiles on the diagonal
    tiles           attention: which rows of what its blocks copy, for the replay through the second-level cache
    rows_twice      rows that are read twice, and the bytes of one
"""
import re

from cache_replay import Tiles

X = 2  # bytes of bf16


class Shape:
    """A step: B sequences of T tokens per micro-step, of a model; vocabularies as in llmc/gpt2/config.h."""
    def __init__(self, L, C, NH, B, T, V=50257, maxT=1024):
        self.L, self.C, self.NH, self.B, self.T, self.V, self.maxT = L, C, NH, B, T, V, maxT
        self.Vp = -(-V // 128) * 128
        self.n = B * T
        self.parameters = L * (12 * C * C + 13 * C) + (self.Vp + maxT) * C + 2 * C


class Launch:
    def __init__(self, words):
        self.name, self.symbol = words[0], words[1].replace("4bf16", "13__nv_bfloat16")
        self.grid, self.block, self.shared = tuple(map(int, words[2:5])), tuple(map(int, words[5:8])), int(words[8])
        self.blocks = self.grid[0] * self.grid[1] * self.grid[2]
        self.threads = self.block[0] * self.block[1] * self.block[2]
        self.warps = self.blocks * -(-self.threads // 32)
        self.packs = self.blocks * self.threads * 16 // X  # elements of an elementwise kernel


def norm(residual):
    def work(s, k):
        passes = s.n * s.C * X
        return dict(read=(2 if residual else 1) * passes, written=(2 if residual else 1) * passes,
                    loaded=(6 if residual else 5) * passes)  # three passes over the row, weight and bias
    return work


ATTENTION_PARTS = 512  # as in llmc/cuda/attention.cuh


def attention(products, operands, results, transposed, backward=True, loaded=0):
    """Tiles of causal attention: a block copies all columns that its rows see; each of its warps multiplies its rows
    by those that they see. Where columns are queries, lse and delta are copied with them. The backward pass leaves the
    sums over the rows of its results, if they have not too many parts. `loaded` operands do not come by cp.async."""
    def work(s, k):
        head_size, columns, M = map(int, re.search(r"ILi(\d+)ELi(\d+)ELi(\d+)E", k.symbol).groups())
        warp_rows, rows = 16 * M, 16 * M * k.threads // 32
        row_tiles = -(-s.T // rows)
        seen = lambda first, n: s.T - first if transposed else min(s.T, first + n)
        count = lambda n: sum(-(-seen(first, n) // columns) for first in range(0, s.T, n)) * s.B * s.NH
        diagonal = -(-s.T // warp_rows) * max(1, warp_rows // columns) * s.B * s.NH
        kept = 1 if products == 2 else 2
        stationary = kept * row_tiles * s.B * s.NH * rows * head_size * X
        tiles = Tiles(s.B * s.NH, s.T, head_size, rows, columns, transposed, kept, results, X)
        parts = s.B * row_tiles if backward and s.B * row_tiles <= ATTENTION_PARTS else 0
        return dict(read=operands * s.n * s.C * X, written=results * (s.n * X + parts * 4) * s.C,
                    rare=diagonal / count(warp_rows), tiles=tiles, partials=3 * s.C * parts * 4,
                    flops=count(warp_rows) * products * 2 * warp_rows * columns * head_size,
                    loaded=loaded * s.n * s.C * X,
                    copied=stationary + count(rows) * columns * (2 * head_size * X + (8 if transposed else 0)))
    return work


def elementwise(read, written):
    return lambda s, k: dict(read=read * k.packs, written=written * k.packs)


def partial_sums(s, k):
    """Of the kernel before: what it left is in the cache."""
    return dict(read=0, written=32 * k.grid[0] * X, loaded=k.before.get("partials", 0))


def column_sums(s, k):
    """Of a gradient of C, 3 C or 4 C columns: the one whose columns fill the grid, 256 per block."""
    columns = max((c for c in (s.C, 3 * s.C, 4 * s.C) if -(-c // 256) == k.grid[0]), default=256 * k.grid[0])
    partials = columns * k.grid[1] * 4
    return dict(read=s.n * columns * X, written=partials, partials=partials)


def gelu_backward(s, k):
    """Also leaves the sums of its 4 C columns, of each part of the rows."""
    passes, partials = s.n * 4 * s.C * X, 4 * s.C * k.grid[1] * 4
    return dict(read=2 * passes, written=passes + partials, partials=partials)


def layernorm_backward(s, k):
    """Three inputs by cp.async, and mean and rstd for each warp of a row; the weight once per block; the sums of three
    kinds, of which the next kernel adds two."""
    passes, sums, norms = s.n * s.C * X, k.blocks * s.C * 4, 8 * s.n * k.block[1]
    return dict(read=3 * passes, written=passes + 3 * sums, loaded=k.blocks * s.C * X, copied=3 * passes + norms,
                partials=2 * sums)


def weights_from_codes(s, k):
    """One thread per 8 bytes of codes: 8 weights of int8, which is format 1, else 16."""
    codes, of = 8 * k.threads * k.blocks, re.search(r"WeightFormat(\d)E", k.symbol)[1]
    weights = codes if of == "1" else 2 * codes
    scales = {"1": 4 / s.C, "2": 2 / 32, "3": 1 / 64}[of]
    return dict(read=codes + scales * weights, written=weights * X)


WORK = {
    "decode_weights": weights_from_codes,
    "coded_encoder": lambda s, k: dict(read=1.6 * s.n * s.C * X, written=s.n * s.C * X),
    "encoder_forward": lambda s, k: dict(read=s.n * s.C * X, written=s.n * s.C * X, loaded=2 * s.n * s.C * X),
    "layernorm_forward": norm(False),
    "residual_layernorm_forward": norm(True),
    "attention_forward": attention(2, 3, 1, False, backward=False),
    "attention_backward_q": attention(3, 5, 1, False, loaded=1),
    "attention_backward_kv": attention(4, 4, 2, True),
    "gelu_forward": elementwise(X, X),
    "gelu_backward": gelu_backward,
    "layernorm_backward": layernorm_backward,
    "sum_parts": partial_sums,
    "column_sums": column_sums,
    "softmax_loss": lambda s, k: dict(read=k.blocks * s.Vp * X, written=k.blocks * s.Vp * X,
                                      **(dict(loaded=0, copied=k.blocks * s.Vp * X) if k.shared else
                                         dict(loaded=2 * k.blocks * s.Vp * X, rows_twice=(k.blocks, s.Vp * X)))),
    "loss_sum": lambda s, k: dict(read=4 * s.n, written=8),
    "encoder_backward_wte": lambda s, k: dict(read=s.n * s.C * X + k.grid[0] * s.C * 4, written=k.grid[0] * s.C * 4),
    "encoder_backward_split": lambda s, k: dict(read=3 * k.grid[0] * s.C * 4, written=k.grid[0] * s.C * 4),
    "encoder_backward_wpe": lambda s, k: dict(read=s.n * s.C * X, written=s.maxT * s.C * X),
    "round_gradients": elementwise(4, X),
    "add_gradients": elementwise(4 + X, 4),
    "global_norm": lambda s, k: dict(read=s.parameters * (4 if "KernelIf" in k.symbol or "kernelIf" in k.symbol else X),
                                     written=8 * k.blocks),
    "sum_rank": lambda s, k: dict(read=8 * 1024, written=16),
    "finish_norm": lambda s, k: dict(read=16, written=40),
    "adamw": lambda s, k: dict(read=s.parameters * (12 + (4 if "16fE" in k.symbol else X)),
                               written=s.parameters * (12 + X)),
}


def work_of(shape, launch, code):
    """The work of a launch; of a kernel that is not in the table what its machine code does once per thread."""
    row = WORK.get(launch.name)
    if row:
        work = row(shape, launch)
        work.setdefault("loaded", work["read"])
        return work
    each = lambda key: launch.warps * sum(b.get(key, 0) for b in code["blocks"]) if code else 0
    return dict(read=each("loaded"), written=each("stored"), loaded=each("loaded"), flops=each("flops"),
                copied=each("copied"), guessed=True)
