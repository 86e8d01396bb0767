#!/usr/bin/env python3
"""Causal attention by the back ends of PyTorch, forward and backward, in bf16: what the kernels of
llmc/cuda/attention.cuh are compared with. A back end that does not run here is left out."""
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
import argparse
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--device", default="cuda")
parser.add_argument("--runs", type=int, default=20)
parser.add_argument("-b", type=int, default=16)
parser.add_argument("-t", type=int, default=1024)
args = parser.parse_args()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

HEADS, HEAD_SIZE = 12, 64
BACK_ENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def milliseconds(run):
    """The shortest of several runs."""
    times = []
    for _ in range(args.runs + 2):
        if args.device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(), run(), end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
    return min(times[2:])


torch.manual_seed(0)
shape = (args.b, HEADS, args.t, HEAD_SIZE)
q, k, v = (torch.randn(shape, device=args.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
dout = torch.randn(shape, device=args.device, dtype=torch.bfloat16)
for name, back_end in BACK_ENDS.items():
    try:
        with sdpa_kernel(back_end):
            forward = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    except RuntimeError as problem:
        print(f"{name} does not run here: {str(problem).splitlines()[0]}")
        continue
    print(f"{name}: forward {forward:.3f} ms, backward {backward:.3f} ms")
