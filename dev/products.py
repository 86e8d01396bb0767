#!/usr/bin/env python3
"""Times the matrix products of a training step in other libraries, as dev/cpu/products.cpp does in this trainer: the
products with the four weights of a layer and that of the classifier, forward and both backward, in the order of a step.
Each layer has weights and gradients of its own. Prints one line of JSON per pass and library: the milliseconds of each
product.

--library torch   PyTorch's products in fp32 (MKL) and bf16 (oneDNN), and oneDNN's in fp32, in turn in one process
--library numpy   OpenBLAS in fp32 (OPENBLAS_CORETYPE chooses its kernels)
"""
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="torch", choices=("torch", "numpy"))
    parser.add_argument("--without-bf16", action="store_true", help="where PyTorch has no kernels, it takes minutes")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", default="12,768,50304", help="L,C,Vp")
    return parser.parse_args()


class Weight:
    """The arrays of the products with one weight: the weight and its gradient for each layer, inputs and outputs."""
    def __init__(self, name, C, OC, layers, rows, new):
        self.name, self.layers = name, layers
        self.weight, self.dweight = ([new(OC, C) for _ in range(layers)] for _ in range(2))
        self.inp, self.dinp, self.out, self.dout = new(rows, C), new(rows, C), new(rows, OC), new(rows, OC)


class Library:
    """The products in one library, whose multiply(to, a, b) writes the product of matrices a and b to a third."""
    def __init__(self, args, new, multiply):
        L, C, Vp = map(int, args.shape.split(","))
        layers = [("qkv", C, 3 * C), ("proj", C, C), ("fc", C, 4 * C), ("out", 4 * C, C)]
        shapes = [(*layer, L) for layer in layers] + [("head", C, Vp, 1)]
        self.weights = [Weight(*shape, args.rows, new) for shape in shapes]
        self.multiply = multiply

    def forward(self, w, layer):
        self.multiply(w.out, w.inp, w.weight[layer].T)

    def dinp(self, w, layer):
        self.multiply(w.dinp, w.dout, w.weight[layer])

    def dweight(self, w, layer):
        self.multiply(w.dweight[layer], w.dout.T, w.inp)

    def one_pass(self):
        """Runs all products once. Returns the milliseconds of each, summed over layers."""
        ms = {f"{w.name} {d}": 0.0 for w in self.weights for d in ("forward", "dinp", "dweight")}

        def run(w, direction, layer):
            begin = time.perf_counter()
            getattr(self, direction)(w, layer)
            ms[f"{w.name} {direction}"] += 1e3 * (time.perf_counter() - begin)
        *layers, head = self.weights
        for layer in range(layers[0].layers):
            for w in layers:
                run(w, "forward", layer)
        for direction in ("forward", "dinp", "dweight"):
            run(head, direction, 0)
        for layer in reversed(range(layers[0].layers)):
            for w in reversed(layers):
                run(w, "dinp", layer), run(w, "dweight", layer)
        return ms


class OneDnn(Library):
    """The linear layer of oneDNN, forward and backward. Activations are tensors of oneDNN; results are new memory."""
    def __init__(self, args, new):
        import torch
        super().__init__(args, new, None)
        for w in self.weights:
            w.inp, w.dout = w.inp.to_mkldnn(), w.dout.to_mkldnn()
        self.linear = torch._C._nn.mkldnn_linear
        self.backward_input = torch.ops.aten.mkldnn_linear_backward_input
        self.backward_weights = torch.ops.aten.mkldnn_linear_backward_weights

    def forward(self, w, layer):
        self.linear(w.inp, w.weight[layer], None)

    def dinp(self, w, layer):
        self.backward_input(w.inp.shape, w.dout, w.weight[layer])

    def dweight(self, w, layer):
        self.backward_weights(w.dout, w.inp, w.weight[layer], False)


def torch_libraries(args):
    import torch
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    fp32 = lambda *shape: torch.rand(*shape) - 0.5
    bf16 = lambda *shape: fp32(*shape).to(torch.bfloat16)
    multiply = lambda to, a, b: torch.mm(a, b, out=to)
    libraries = {"PyTorch, fp32": Library(args, fp32, multiply), "oneDNN, fp32": OneDnn(args, fp32)}
    if not args.without_bf16:
        libraries["PyTorch, bf16"] = Library(args, bf16, multiply)
    return libraries


def numpy_libraries(args):
    import numpy as np
    new = lambda *shape: np.random.default_rng(0).random(shape, dtype=np.float32) - np.float32(0.5)
    return {"OpenBLAS, fp32": Library(args, new, lambda to, a, b: np.matmul(a, b, out=to))}


def main():
    args = parse()
    libraries = torch_libraries(args) if args.library == "torch" else numpy_libraries(args)
    for i in range(args.passes + 1):  # the first one warms up
        for name, library in libraries.items():
            ms = library.one_pass()
            if i > 0:
                print(json.dumps({"library": name, "ms": ms}), flush=True)


main()
