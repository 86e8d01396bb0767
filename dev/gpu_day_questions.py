"""What only a GPU can decide, and what each answer changes: the end of the report of scripts/gpu_day.sh. A question is
answered from what parts of the day have found; until they are done it is open."""
import collections
import pathlib
import re
import statistics
import sys

from gpu_day_parts import fastest_of
from readme import MEASURED

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "dev" / folder) for folder in ("cuda", "cusim")]
from chips import CHIPS  # noqa: E402
from kernel_time import product_seconds  # noqa: E402
from step_time import in_range, moves  # noqa: E402

LEAST_GAIN = 1.01  # what is faster by less does not become a default
LIBRARY = 1.3  # so much slower than a library may attention be before it is written anew

# parts: those that it needs. answer(found): found is part -> its record; whether, and the figures that say so. yes, no:
# what follows.
Question = collections.namedtuple("Question", "text parts answer yes no")


class Unknown(Exception):
    """The day cannot answer this, and why."""


def chip_of(gpu):
    chip = next((c for c in CHIPS if c.peak_name in gpu), None)
    if not chip:
        raise Unknown(f"{gpu} is not in dev/cuda/chips.py")
    return chip


def as_modelled(found):
    """A step at B 64 beside its row on the page."""
    ms = min(row["min_ms"] for row in found["steps_64"]["steps"] if row["who"].startswith("this trainer"))
    name = chip_of(found["machine"]["gpu"]).name
    row = re.search(rf"^\| {name} \| 124M \| 64 \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", (ROOT / MEASURED).read_text(),
                    re.M)
    if not row:
        raise Unknown(f"{MEASURED} has no row of it")
    low, expected, high = map(float, row.groups())
    return low <= ms <= high, f"{ms:.1f} ms, modelled {low} to {high}, {expected} expected"


def near_libraries(found):
    """Attention of one of 12 layers, forward and backward, beside the best back end of PyTorch, which has B 16."""
    who, times = min(found["torch_attention"]["attention"].items(), key=lambda item: sum(item[1]))
    ours = sum(ms for name, ms in found["kernels"]["kernels"].items() if name.startswith("attention_"))
    ours *= 16 / 12 / found["kernels"]["B"]
    return ours <= LIBRARY * sum(times), f"{ours:.2f} ms a layer at B 16, {who} {sum(times):.2f} ms"


def gelu_as_by_default(found):
    """By the mean of the ratios at all batch sizes, as single ones vary by a percent."""
    sizes = found["gelu_fusion"]["ms"]
    ratio = {name: statistics.geometric_mean(ms["-ge 0"] / ms[name] for ms in sizes.values())
             for name in next(iter(sizes.values()))}
    best = max(ratio, key=ratio.get)
    return ratio[best] <= LEAST_GAIN, "; ".join(f"B {B}: {best} has {ms[best]:.2f} ms, -ge 0 {ms['-ge 0']:.2f} ms"
                                                for B, ms in sizes.items())


def timing_algorithms(found):
    before, after = found["products"]["before_ms"], found["products"]["after_ms"]
    return after * LEAST_GAIN < before, f"{after:.2f} ms, with the library's first {before:.2f} ms"


def embedding_gradient(found):
    """The one with the longest sums, as it was timed: without what it adds to."""
    matches = [(re.match(r"768 x 50304 x (\d+), .* to fp32", row["product"]), row["ms"])
               for row in found["products"]["products"]]
    rows, chip = [(int(match[1]), ms) for match, ms in matches if match], chip_of(found["machine"]["gpu"])
    if not rows:
        raise Unknown("it was not timed")
    k, ms = max(rows)
    tflops = lambda seconds: 2e-12 * 768 * 50304 * k / seconds
    modelled = in_range(*moves(chip, None, lambda machine: product_seconds(machine, 768, 50304, k, 4, False, 0)[0]))
    high, expected, low = map(tflops, modelled)
    return tflops(1e-3 * ms) >= low, (f"768 x 50304 x {k} with {tflops(1e-3 * ms):.0f} TFLOP/s, modelled {low:.0f} to "
                                      f"{high:.0f}, {expected:.0f} expected")


def fastest(name):
    """Whether what ships is the fastest rung of a ladder."""
    def answer(found):
        results, said, slower = found[f"ladder_{name}"]["ladders"][0]["results"], [], False
        results = [r for r in results if r["id"] != "shipped-fused"]  # -ge, which has its own question
        for shipped in (r for r in results if r["id"] == "shipped"):
            best = fastest_of(results, shipped)
            slower |= best["min_ms"] * LEAST_GAIN < shipped["min_ms"]
            ms = f"{best['min_ms']:.3f} ms, shipped {shipped['min_ms']:.3f} ms"
            said.append(f"{best['bench']}: {best['id']} has {ms}")
        return not slower, "; ".join(said)
    return answer


def graphs_pay(found):
    return found["cuda_graph"]["pays"], found["cuda_graph"]["said"].split("; graphs ")[0]


def keeps_its_speed(found):
    return not found["defaults_64"]["throttled"], found["defaults_64"]["said"].split("; it becomes")[0]


QUESTIONS = [
    Question("Is a step within the range of the model?", ["machine", "steps_64"], as_modelled, "the model stands",
             "step_model.py --kernels --measured says which kernels are off; their assumptions are mended first"),
    Question(f"Does attention take at most {LIBRARY} times what the best library takes?",
             ["torch_attention", "kernels"], near_libraries, "products come next",
             "attention by wgmma, forward and backward, comes next"),
    Question("Is -ge 0, the default, the fastest?", ["gelu_fusion"], gelu_as_by_default, "it stays",
             "the fastest may become the default on such GPUs"),
    Question("Do CUDA graphs pay?", ["cuda_graph"], graphs_pay, "--cuda-graph 1 becomes the default",
             "the default stays 0"),
    Question("Does timing cuBLASLt's algorithms shorten a step?", ["products"], timing_algorithms, "they stay timed",
             "timing goes, and with it build/algorithms"),
    Question("Is the gradient of the embedding, with sums in fp32, as fast as it is modelled?", ["machine", "products"],
             embedding_gradient, "such products stay modelled as the others are",
             "they get a share of the peak of their own in dev/cuda/chips.py"),
    *(Question(f"Is what ships the fastest rung of {name} (on Hopper beside that with wgmma)?", [f"ladder_{name}"],
               fastest(name), "nothing changes", "that rung goes to llmc/cuda, and what was there becomes a rung")
      for name in ("attention_forward", "matmul")),
    Question("Does a long run keep its speed as the GPU becomes hot?", ["defaults_64"], keeps_its_speed,
             "times at best stand for long runs", "tables say so, and show the step of the end as well"),
]


def answered(records):
    """Of each question its text, and the answer with what follows, or why it is open."""
    rows = []
    for question in QUESTIONS:
        row = {"question": question.text, "yes": question.yes, "no": question.no}
        found = {name: records.get(name) or {} for name in question.parts}
        waits = [name for name, record in found.items() if record.get("status") != "done"]
        try:
            if waits:
                raise Unknown(f"it needs {' and '.join(waits)}")
            holds, row["because"] = question.answer(found)
            row["answer"] = "yes" if holds else "no"
        except Exception as reason:  # a question that fails leaves the report of the day whole
            row["open"] = str(reason) if isinstance(reason, Unknown) else repr(reason)
        rows.append(row)
    return rows


def lines(rows):
    def said(row):
        if "answer" in row:
            return f"{row['answer']} ({row['because']}): {row[row['answer']]}"
        return f"open, {row['open']}; yes: {row['yes']}; no: {row['no']}"
    return ["what a GPU decides:", *(f"  {row['question']} {said(row)}" for row in rows)]
