#!/usr/bin/env python3
"""Runs the PyTorch twins in the chapters of the course: a few lines that compute what our functions compute.

    dev/course/twin.py                the twins of all chapters
    dev/course/twin.py layer-norm     those of one: a part of the page's name

In a page, ```python twin NAME``` begins one. It finds in `ours` the inputs and results that build/course_numbers NAME
prints, as tensors by name (without NAME: none), and compares with same(OURS, THEIRS). processes(P, f) returns f(rank)
of P processes of torch.distributed, which have met by gloo. Those of "threads" and
"fragments" come from build/course_numbers_gpu; "counts" are the simulator's counts of the kernels in
dev/cusim/test/counts.cu, by kernel. Needs: pip install torch numpy
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {"threads": "build/course_numbers_gpu", "fragments": "build/course_numbers_gpu",
            "counts": "COUNT=1 build-count/cusim_counts"}
TWIN = re.compile(r"^```python twin *(\S*)\n(.*?)^```$", re.M | re.S)
TOLERANCE = 1e-5  # of the largest value: fp32 rounds to 6e-8, the sums here have up to a thousand terms


def our_numbers(name):
    import torch
    if not name:
        return {}
    target = PROGRAMS.get(name, "build/course_numbers")
    program = ROOT / target.split()[-1]
    if not program.exists():
        sys.exit(f"{program.relative_to(ROOT)} is missing: make {target}")
    if name == "counts":
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([program], env={**os.environ, "CUSIM_COUNT": file.name}, check=True)
            return {kernel["kernel"]: kernel for kernel in map(json.loads, list(file)[1:])}
    done = subprocess.run([program, name], stdout=subprocess.PIPE, text=True, check=True)
    arrays = map(json.loads, done.stdout.splitlines())
    return {a["name"]: torch.tensor(a["values"]).reshape(a["shape"]) for a in arrays}


class Comparison:
    def __init__(self):
        self.largest, self.count = 0.0, 0

    def __call__(self, ours, theirs, tolerance=TOLERANCE):
        import torch
        ours, theirs = torch.as_tensor(ours).double(), torch.as_tensor(theirs).detach().double()
        assert ours.shape == theirs.shape, f"ours has the shape {tuple(ours.shape)}, PyTorch's {tuple(theirs.shape)}"
        assert torch.isfinite(ours).all() and torch.isfinite(theirs).all(), "not all values are finite"
        apart = ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)).item()
        assert apart <= tolerance, f"apart by {apart:.1e} of the largest value, more than {tolerance:.0e}"
        self.largest, self.count = max(self.largest, apart), self.count + 1


def processes(count, work):
    """[work(rank)] of so many processes; tensors, for they come from other processes."""
    import torch
    import torch.distributed as dist

    def run_rank(rank):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        torch.save(work(rank), f"{folder}/{rank}")
        dist.destroy_process_group()

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                try:
                    run_rank(rank)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        ends = [os.waitpid(child, 0)[1] for child in children]
        assert not any(ends), "a process has failed"
        return [torch.load(f"{folder}/{rank}") for rank in range(count)]


def run(page):
    twins = TWIN.findall(page.read_text())
    for name, code in twins:
        same = Comparison()
        try:
            exec(compile(code, f"the twin {name} in {page.name}", "exec"), {"ours": our_numbers(name), "same": same,
                                                                            "processes": processes})
        except AssertionError as error:
            sys.exit(f"{page.name}, twin {name}: {error}")
        assert same.count, f"{page.name}: the twin {name} compares nothing"
        print(f"{page.name}: {name}: {same.count} equal, apart by {same.largest:.1e} at most")
    return len(twins)


def main():
    if "--packages" in sys.argv:
        import torch  # noqa: F401
        sys.exit(0)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if not sum(run(page) for page in sorted(ROOT.glob("dev/course/*.md")) if wanted in page.name):
        sys.exit(f"no chapter with a twin has {wanted!r} in its name")


if __name__ == "__main__":
    main()
