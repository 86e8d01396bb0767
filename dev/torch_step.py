#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch, for the benches to compare with. Prints the milliseconds of each step and, on a
GPU, the peak of its memory in MiB.

--mode eager | compile | tuned (compile, the loss inside the graph, vocabulary padded to 50304)
--precision fp32 | bf16 (autocast, fp32 weights) | all-bf16 (weights, gradients and AdamW's state too)
"""
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
import argparse
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--mode", default="eager")
parser.add_argument("--precision", default="fp32")
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("-b", type=int, default=4)
parser.add_argument("-t", type=int, default=64)
parser.add_argument("--shape", default="12,768,12,50257", help="L,C,NH,V")
args = parser.parse_args()

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

L, C, H, V = map(int, args.shape.split(","))
if args.mode == "tuned":
    V = (V + 127) // 128 * 128
if args.threads:
    torch.set_num_threads(args.threads)
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it, as this trainer's default


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.ln1, s.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        s.qkv, s.proj, s.fc, s.out = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(s, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in s.qkv(s.ln1(x)).split(C, 2))
        x = x + s.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))
        return x + s.out(F.gelu(s.fc(s.ln2(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte, s.wpe, s.lnf = nn.Embedding(V, C), nn.Embedding(max(1024, args.t), C), nn.LayerNorm(C)
        s.blocks = nn.ModuleList(Block() for _ in range(L))

    def forward(s, x, y):
        h = s.wte(x) + s.wpe(torch.arange(x.shape[1], device=x.device))
        for b in s.blocks:
            h = b(h)
        return F.cross_entropy((s.lnf(h) @ s.wte.weight.T).view(-1, V), y.view(-1))


net = Net().to(args.device)
for p in net.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, 0, 0.02)
if args.precision == "all-bf16":
    net.to(torch.bfloat16)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
step_net = net if args.mode == "eager" else torch.compile(net)
x, y = torch.randint(0, min(V, 50257), (2, args.b, args.t), device=args.device).unbind(0)
synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
times = []
for i in range(args.steps + 2):
    synchronize()
    begin = time.perf_counter()
    opt.zero_grad(set_to_none=True)
    with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
        loss = step_net(x, y)
    loss.backward()
    opt.step()
    synchronize()
    times.append(1e3 * (time.perf_counter() - begin))
print("MS", *times[2:])
if args.device == "cuda":
    print("MIB", torch.cuda.max_memory_allocated() / 2**20)
    print("GPU", torch.cuda.get_device_name())
