#!/usr/bin/env python3
"""A training run of GPT-2 in PyTorch, in the manner of nanoGPT: model and loop on two screens, for dev/neighbours.py to
put beside the trainer of this repository. It reads the same token shards in the same order (--shuffle 0 there) and
prints the same lines.

    pip install torch numpy
    python3 dev/torch_train.py -i TRAIN.bin -j VAL.bin --shape 4,128,4,257 -b 12 -t 64 -x 300
"""
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
import argparse
import math
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("-i", metavar="TRAIN", required=True)
parser.add_argument("-j", metavar="VAL", required=True)
parser.add_argument("--shape", default="4,128,4,257", help="L,C,NH,V")
parser.add_argument("-b", type=int, default=12)
parser.add_argument("-t", type=int, default=64)
parser.add_argument("-x", type=int, default=300, help="steps")
parser.add_argument("-l", type=float, default=1e-3)
parser.add_argument("-v", type=int, default=100, help="validate every so many steps")
parser.add_argument("-m", type=int, default=20, help="batches of a validation")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--compile", type=int, default=0, choices=[0, 1])
args = parser.parse_args()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

L, C, H, V = map(int, args.shape.split(","))
torch.manual_seed(args.seed)
if args.threads:
    torch.set_num_threads(args.threads)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attention_out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B, T, _ = x.shape
        heads = [part.view(B, T, H, C // H).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(C, 2)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions, self.norm = nn.Embedding(V, C), nn.Embedding(args.t, C), nn.LayerNorm(C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * L) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x, y):
        h = self.tokens(x) + self.positions.weight[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy((self.norm(h) @ self.tokens.weight.T).view(-1, V), y.reshape(-1))


def batches(path):
    """batch(i): x and y of windows i B to i B + B - 1, from the beginning again after the last."""
    tokens = np.fromfile(path, "<u2")[512:].astype(np.int64)  # behind the header of 1024 bytes
    count = (len(tokens) - 1) // args.t

    def batch(i):
        rows = np.stack([tokens[(i * args.b + b) % count * args.t:][:args.t + 1] for b in range(args.b)])
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]
    return batch


def rate_at(step):
    """Rises over a tenth of the steps, then falls to a tenth along a cosine."""
    warmup = max(1, args.x // 10)
    if step < warmup:
        return args.l * (step + 1) / warmup
    return args.l * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, args.x - warmup)))


model, train, held_out = GPT(), batches(args.i), batches(args.j)
matrices, vectors = ([p for p in model.parameters() if (p.dim() == 2) == two] for two in (True, False))
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.l, betas=(0.9, 0.95), eps=1e-8, fused=True)
loss_of = torch.compile(model) if args.compile else model
for step in range(args.x + 1):
    if step % args.v == 0 or step == args.x:
        with torch.no_grad():
            print(f"val loss {sum(model(*held_out(i)).item() for i in range(args.m)) / args.m:.6f}", flush=True)
    if step == args.x:
        break
    begin = time.perf_counter()
    loss = loss_of(*train(step))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    ms = 1e3 * (time.perf_counter() - begin)
    print(f"step {step + 1}/{args.x} | loss {loss.item():.6f} | norm {norm:.4f} | {ms:.2f} ms", flush=True)
