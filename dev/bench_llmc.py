"""The CPU trainer of llm.c, from a clone of the user's own, beside this one (dev/bench.py --llmc DIR). It is built
there by its own Makefile, and trains as it was written: GPT-2 124M in fp32, 4 sequences of 64 tokens, 40 steps."""
import re

from bench_tasks import Task, child

B, T = 4, 64
NEEDED = {"train_gpt2.c": "it is no clone of llm.c", "Makefile": "it is no clone of llm.c",
          "gpt2_124M.bin": "llm.c's script for its starter pack makes it, and so does `./train_gpt2_cpu -e d12 -x 1`, "
                           "whose model file has its layout"}


def problem_of(folder):
    """Why llm.c cannot run there; "" if nothing is missing."""
    return next((f"{folder / name} is not there: {why}" for name, why in NEEDED.items()
                 if not (folder / name).exists()), "")


class LlmC:
    """Its steps, beside those of ours that have as many tokens, if these were measured."""

    def __init__(self, args, report):
        self.args, self.report, self.times, self.memory = args, report, [], 0

    def tasks(self):
        build = Task("llm.c, make train_gpt2", 20, lambda: child(["make", "-C", self.args.llmc, "train_gpt2"]))
        runs = [Task(f"step ({B},{T}), llm.c", 60, self.run) for _ in range(self.args.rounds)]
        return [build, *runs, Task("", 0, self.row)]

    def run(self):
        command = f"cd '{self.args.llmc}' && exec ./train_gpt2"
        output, rss = child(["sh", "-c", command], {"OMP_NUM_THREADS": str(self.args.threads)})
        times = [float(ms) for ms in re.findall(r"^step \d+: train loss [\d.]+ \(took ([\d.]+) ms\)", output, re.M)]
        if len(times) < 2:
            raise SystemExit(f"llm.c in {self.args.llmc} printed no steps that are known, such as \"step 1: train loss "
                             f"4.5 (took 900.0 ms)\":\n{output[-500:]}")
        self.times += times[1:]
        self.memory = max(self.memory, rss)

    def row(self):
        times = sorted(self.times)
        ours = self.report.steps.get((B * T, "fp32"))
        note = f"{times[0] / ours[0]:.2f} times ours, fp32" if ours else "ours at this shape was not measured"
        self.report.row("steps", f"step ({B},{T})", "llm.c, fp32", times, note, MiB=self.memory)
