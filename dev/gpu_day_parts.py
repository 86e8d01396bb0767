"""The parts of scripts/gpu_day.sh, the most valuable first. A part runs programs and returns what it found; it raises
if something is wrong, and Skipped if the machine lacks what it needs."""
import glob
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import gpu_features
import shakespeare_curve
from children import have

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "dev/cuda"))
import counters  # noqa: E402
ADAPTERS = ["--lora 8", "--lora 8 --weights int8", "--lora 8 --weights nf4"]  # what trains beside weights and codes
LADDERS = ["attention_forward", "attention_backward", "matmul", "matmul_backward", "layernorm", "gelu", "classifier",
           "encoder", "adamw", "global_norm", "weight_codes"]


class Skipped(Exception):
    pass


def programs_of(args):
    return pathlib.Path(os.environ.get("GPU_DAY_PROGRAMS", "build" if args.simulate else "build/gpu_day"))


def are_built(programs):
    """Whether make gpu_day_programs has left its notes there."""
    return (ROOT / programs / "built.json").exists()


class Day:
    """Where programs, data and results are, and what sizes are measured."""
    def __init__(self, args):
        self.state, self.simulated = args.state, args.simulate
        self.programs = programs_of(args)
        self.log = open(self.state / f"{args.part}.log", "w")
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(self.libraries())}
        self.model, self.T = ("L2C64H2T64", 64) if args.simulate else ("d12", 1024)

    def libraries(self):
        """Folders with CUDA's libraries: CUDA_LIB, the toolkit's, those of Python packages."""
        named = [os.environ.get("CUDA_LIB"), os.environ.get("LD_LIBRARY_PATH"), "/usr/local/cuda/lib64"]
        packages = [p for folder in sys.path for p in sorted(glob.glob(f"{folder}/nvidia/*/lib"))]
        return [p for p in [*named, *packages] if p]

    def program(self, name, precision="BF16"):
        suffix = "sim" if self.simulated else "cu"
        path = self.programs / precision / f"{name}{suffix}"
        if not (ROOT / path).exists():
            raise Skipped(f"{path} is not there; " + ("make test_gpt2sim train_gpt2sim" if self.simulated else
                                                       "make gpu_day_programs builds it"))
        return str(path)

    def data(self, name):
        places = [ROOT / "dev/data" / name, ROOT / self.programs / name, self.state / name]
        tokenize = ROOT / "build/host/tokenize"
        if name == "bytes_train.bin" and not any(p.exists() for p in places) and tokenize.exists():
            shakespeare_curve.make_data(tokenize, self.state)
        found = [str(p) for p in places if p.exists()]
        if not found:
            raise Skipped(f"{name} is not there; make data gpu_day_programs")
        return found[0]

    def run(self, command, good=(0,)):
        """What a program prints; it ends with the part's process group."""
        command = [str(c) for c in command]
        self.log.write(f"$ {' '.join(command)}\n")
        done = subprocess.run(command, cwd=ROOT, env=self.environment, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.log.write(done.stdout)
        self.log.flush()
        if done.returncode not in good:
            lines = [line for line in done.stdout.strip().splitlines() if line]
            raise RuntimeError(f"{pathlib.Path(command[0]).name} ended with {done.returncode}: " + " ".join(lines[-3:]))
        return done.stdout

    def train(self, *flags, precision="BF16", model=None, folder=None, program=None):
        """A run of the trainer; with a folder it begins anew there."""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
            flags = (*flags, "-o", folder)
        tokens = self.data("shakespeare_train.bin")
        program = program or self.program("train_gpt2", precision)
        return self.run([program, "-e", model or self.model, "-i", tokens, "-j", tokens, "-t", self.T, "-v", 0, "-s", 0,
                         *flags])


class Part:
    def __init__(self, what, usual_s, limit_s, run):
        self.what, self.usual_s, self.limit_s, self.run = what, usual_s, limit_s, run


# ---- the machine

def misfit(driver_cuda, capability, built):
    """Why programs do not run here, in one sentence that says what to do; None if they do. driver_cuda: the newest
    CUDA that the driver knows, as "12.4"; capability: the GPU's; built: {"cuda": "13.0", "archs": "80 90a ptx"}."""
    number = lambda version: int(re.match(r"\d+", version)[0])
    if number(driver_cuda) < number(built["cuda"]):
        return (f"the driver knows CUDA {driver_cuda}, the programs were built with {built['cuda']}: install a newer "
                f"driver, or build with CUDA {number(driver_cuda)}")
    major, minor = map(int, capability.split("."))
    for arch in built["archs"].split():
        if arch == "native" or arch == "ptx" and major >= 8:
            return None
        digits, letter = re.fullmatch(r"(\d+)([af]?)", arch).groups()
        own, least = divmod(int(digits), 10)
        if own == major and (minor == least if letter == "a" else minor >= least):
            return None
    return (f"the programs were built for {built['archs']}, this GPU has compute capability {capability}: "
            f"make gpu_day_programs GPU_ARCH={major}{minor}{'a' if major >= 9 else ''}")


def capability_of_gpu(day):
    return day.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).split()[0]


def nvcc_here():
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return found if os.path.exists(found) else None


def built_programs(day):
    """What make gpu_day_programs has noted; where it has not run, what this machine's nvcc would build."""
    if are_built(day.programs):
        return json.loads((ROOT / day.programs / "built.json").read_text())
    if not nvcc_here():
        raise RuntimeError(f"{day.programs} has no programs, and nvcc is not there: make gpu_day_programs where it is")
    return {"cuda": re.search(r"release ([\d.]+)", day.run([nvcc_here(), "--version"]))[1], "archs": "native"}


def check(day):
    """Whether programs and driver and GPU fit. What does not stops the day: nothing after it could work."""
    if day.simulated:
        return {"said": "the simulator"}
    if not shutil.which("nvidia-smi"):
        raise RuntimeError("nvidia-smi is not there: no NVIDIA driver on this machine")
    capability = capability_of_gpu(day)
    driver = re.search(r"CUDA Version: ([\d.]+)", day.run(["nvidia-smi"]))
    if not driver:
        raise RuntimeError("nvidia-smi does not say which CUDA the driver knows: it fails, or the driver is not loaded")
    built = built_programs(day)
    problem = misfit(driver[1], capability, built)
    if problem:
        raise RuntimeError(problem)
    return {"capability": capability, "said": f"CUDA {driver[1]}, compute capability {capability}; programs of CUDA "
            f"{built['cuda']} for {built['archs']}"}


def build(day):
    """The programs, on all cores, where nvcc is and they are not."""
    if day.simulated or are_built(day.programs):
        raise Skipped("the programs are there")
    if not nvcc_here():
        raise Skipped("nvcc is not there")
    capability = capability_of_gpu(day).replace(".", "")
    arch = capability + ("a" if int(capability) >= 90 else "")
    day.run(["make", f"-j{os.cpu_count()}", "gpu_day_programs", f"GPU_ARCH={arch}",
             f"NVCC={nvcc_here()}"])
    return {"said": f"for sm_{arch}, on {os.cpu_count()} cores"}


def machine(day):
    if day.simulated:
        return {"gpu": "simulator", "cuda": "", "said": "the simulator"}
    asked = "name,driver_version,memory.total,clocks.max.sm,clocks.sm,clocks.mem,power.limit"
    if not shutil.which("nvidia-smi"):
        raise RuntimeError("nvidia-smi is not there: no NVIDIA driver on this machine")
    values = day.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]).splitlines()[0].split(", ")
    day.run(["nvidia-smi"])
    driver = re.search(r"CUDA Version: ([\d.]+)", day.run(["nvidia-smi"]))
    torch = importlib.metadata.version("torch") if have("torch") else "none"  # to import it may take a minute
    return {"gpu": values[0], "cuda": f"CUDA {driver[1] if driver else '?'}", "torch": torch,
            **dict(zip(asked.split(","), values)), "said": ", ".join(values) + f", PyTorch {torch}"}


# ---- correctness

def passed(text):
    """How many tests have passed, by what a test program prints; it is wrong if one has failed, or none passed."""
    counts = re.findall(r"(\d+) passed, (\d+) failed", text)
    if not counts or int(counts[-1][1]) or not int(counts[-1][0]):
        wrong = re.findall(r"^(?:FAIL|\S+:\d+:).*", text, re.M)
        raise RuntimeError(f"{counts[-1] if counts else 'no'} passed, failed; " + " | ".join(wrong[:3]))
    return f"{counts[-1][0]} passed"


def tests(precision, group):
    def run(day):
        if day.simulated and group in ("pytorch", "cpu"):
            raise Skipped("takes long in the simulator; make test-all runs it")
        group_here = "quick" if day.simulated and group == "kernels" else group
        text = day.run([day.program("test_gpt2", precision), group_here], good=(0, 1))
        return {"said": passed(text)}
    return run


def modern_tests(precision):
    def run(day):
        if day.simulated:
            raise Skipped("make test-all runs them in the simulator")
        program = day.programs / precision / "test_modern_cuda"
        if not (ROOT / program).exists():
            raise Skipped(f"{program} is not there; make gpu_day_programs")
        return {"said": passed(day.run([program], good=(0, 1)))}
    return run


def sanitizer(tool):
    def run(day):
        if day.simulated or not shutil.which("compute-sanitizer"):
            raise Skipped("compute-sanitizer is not there (CUDA toolkit)")
        # What initcheck finds is a report: libraries copy what they have not written, padding for instance.
        good = (0, 9) if tool == "initcheck" else (0,)
        text = day.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", 9, day.program("test_gpt2"), "quick"],
                       good)
        found = [line.strip("= ") for line in text.splitlines() if re.search(r"Uninitialized|Host API", line)]
        summary = re.findall(r"ERROR SUMMARY.*|RACECHECK SUMMARY.*", text)[-1]
        return {"findings": found[:50], "said": summary + "".join(f"; {line}" for line in found[:1])}
    return run


def checksum(folder, steps):
    return hashlib.sha256((pathlib.Path(folder) / f"model_{steps:08d}.bin").read_bytes()).hexdigest()


def same_bits(day):
    """20 steps twice, and at each recompute level, with GELU in kernels of its own and in epilogues: the same weights
    to the bit. (Epilogues give other bits than kernels.) Four layers, since most of the time goes into files."""
    steps, model = (2, None) if day.simulated else (20, "L4C768H12")
    for fusion, levels in (0, (0, 0, 1, 2, 3)), (2, (0, 1, 3)):
        sums = []
        for level in levels:
            folder = day.state / "same_bits"
            day.train("-b", 2 if day.simulated else 4, "-x", steps, "-n", steps, "-ge", fusion, "-r", level,
                      model=model, folder=folder)
            sums.append(checksum(folder, steps))
            shutil.rmtree(folder)
        different = [f"-r {level}" for level, value in zip(levels, sums) if value != sums[0]]
        if different:
            raise RuntimeError(f"other weights after {steps} steps with -ge {fusion}: {', '.join(different)}")
    return {"said": f"{steps} steps twice and at -r 0 to 3, with -ge 0 and 2: the same weights to the bit"}


def in_turns(day, sizes, settings, rounds=2):
    """Runs with each of the settings, name -> flags, at each batch size, in turns: the GPU is as hot for one as for
    the others. Returns {B: {name: ms of the fastest step}}, and the losses of the last round, which also exist twice
    if the same flags gave others."""
    ms, losses = {B: {} for B in sizes}, {}
    for B in sizes:
        for _ in range(1 if day.simulated else rounds):
            for name, flags in settings.items():
                text = day.train("-b", B, "-x", 4 if day.simulated else max(20, min(100, 1200 // B)), "-r", 0, *flags)
                least = min(float(x) for x in re.findall(r"\| ([\d.]+) ms \|", text)[2:])
                ms[B][name] = min(ms[B].get(name, least), least)
                found = re.findall(r"\| loss ([\d.]+)", text)
                if losses.setdefault((B, name), found) != found:
                    raise RuntimeError(f"B {B}, {name}: other losses in a second run")
    said = "; ".join(f"B {B}: " + ", ".join(f"{name} {value:.2f}" for name, value in of_size.items())
                     for B, of_size in ms.items())
    return ms, losses, "ms per step: " + said


def gelu_fusion(day):
    """-ge 0 to 2: other roundings, so losses are compared, not bits. After so few steps they agree to 1%."""
    sizes = (2,) if day.simulated else (16, 64)
    ms, losses, said = in_turns(day, sizes, {f"-ge {level}": ["-ge", level] for level in (0, 1, 2)})
    for (B, name), found in losses.items():
        for step, (a, b) in enumerate(zip(losses[B, "-ge 0"], found), 1):
            if not abs(float(a) - float(b)) <= 0.01 * float(a):
                raise RuntimeError(f"B {B}, {name}: loss {b} at step {step}, {a} with -ge 0")
    return {"ms": ms, "said": said}


def cuda_graph(day):
    """--cuda-graph 0 and 1: the same losses to the last digit, and what a step takes in small and large batches."""
    sizes = (2,) if day.simulated else (4, 16, 64)
    settings = {name: ["-ge", 0, "--cuda-graph", on] for on, name in enumerate(("without", "with"))}
    ms, losses, said = in_turns(day, sizes, settings)
    for B in sizes:
        if not losses[B, "with"] or losses[B, "with"] != losses[B, "without"]:
            raise RuntimeError(f"B {B}: losses {losses[B, 'with'][-3:]} with, {losses[B, 'without'][-3:]} without")
    pays = all(of["with"] < 1.002 * of["without"] for of in ms.values()) and any(
        of["with"] < 0.99 * of["without"] for of in ms.values())
    return {"ms": ms, "pays": pays, "said": said + ("; graphs pay: --cuda-graph 1 as the default" if pays else
                                                    "; graphs do not pay: the default stays 0")}


def curve(day):
    """300 steps on Shakespeare beside those of a CPU; then the second half again, resumed: the same bits. (The few
    steps in the simulator are all in the warmup, where the learning rate does not depend on how many there are.)"""
    data, folder = day.data("bytes_train.bin"), day.state / "curve"
    shutil.rmtree(folder, ignore_errors=True)
    steps = 4 if day.simulated else 300
    command = [day.program("train_gpt2"), *shakespeare_curve.FLAGS, "-x", steps, "-i", data, "-j", data, "-o", folder,
               "-n", steps // 2]
    day.run(command)
    losses, weights = shakespeare_curve.losses_of(folder), checksum(folder, steps)
    wrong = shakespeare_curve.wrong_step(losses, "bf16")
    if wrong:
        raise RuntimeError(wrong)
    if len(losses) != steps:
        raise RuntimeError(f"{len(losses)} losses of {steps} steps")
    for path in folder.glob(f"*_{steps:08d}*"):
        path.unlink()
    if "resum" not in day.run([*command, "-y", 1]) or checksum(folder, steps) != weights:
        raise RuntimeError(f"resumed at step {steps // 2}, the run does not end with the same weights")
    shutil.rmtree(folder)
    return {"said": f"{steps} steps, resumed in the middle, as on a CPU; the last loss is {losses[-1]:.3f}"}


def features(day):
    """Short trainings with one feature each: the losses are a CPU's. A run that ends badly leaves the others."""
    if day.simulated:
        raise Skipped("takes long in the simulator; make test-all compares each feature with the CPU trainer")
    data, program, wrong = day.data("bytes_train.bin"), day.program("train_gpt2", "FP32"), []
    run = day.state / "features"
    for name in gpu_features.FEATURES:
        try:
            text = day.run([program, "-i", data, "-j", data, "--tf32", 0, *gpu_features.flags_of(name, run)])
            wrong += filter(None, [gpu_features.wrong_loss(name, gpu_features.losses_of(text))])
        except RuntimeError as problem:
            wrong.append(f"{name}: {problem}"[:200])
    shutil.rmtree(run, ignore_errors=True)
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return {"said": f"{len(gpu_features.FEATURES)} features, with the losses of a CPU to {gpu_features.TOLERANCE}"}


# ---- speed

def steps(B, peers, rounds=1, model=None, flags=""):
    def run(day):
        if day.simulated and (B != 16 or model):
            raise Skipped("in the simulator 124M at B 16 stands for all")
        out = day.state / f"steps_{B}_{len(peers)}.part"
        size = ["--sim"] if day.simulated else ["--model", model or day.model, "--shapes", f"{B}x{day.T}", "--program",
                                                 day.program("train_gpt2"), "--data", day.data("shakespeare_train.bin")]
        if peers and not have("torch"):
            raise Skipped("PyTorch is not there (pip install torch)")
        size += ["--rounds", rounds, "--peers", ",".join(peers), f"--flags={flags}", "--json", out]
        day.run([sys.executable, "dev/bench_gpu.py", *size])
        rows = json.loads(out.read_text())["rows"]
        out.unlink()
        said = [f"{r['who']}: {r['min_ms']:.2f} ms, {r['tokens_per_s']:,.0f} tokens/s" for r in rows]
        return {"steps": rows, "said": "; ".join(said)}
    return run


def first_and_last(ms):
    """The middle of the first and of the last quarter of the steps of a run, and whether it has become slower."""
    quarter = max(1, len(ms) // 4)
    early, late = (sorted(values)[quarter // 2] for values in (ms[:quarter], ms[-quarter:]))
    return early, late, late > 1.03 * early


def defaults_64(day):
    """200 steps at B 64 with the default flags: their time, and whether the GPU becomes slower as it becomes hot."""
    every = 1 if day.simulated else 5
    text = day.train("-b", 2 if day.simulated else 64, "-x", 8 if day.simulated else 200, "-lg", every)
    ms = [float(x) for x in re.findall(r"\| ([\d.]+) ms \|", text)][2:]
    early, late, slower = first_and_last(ms)
    clocks = [int(x) for x in re.findall(r", clock (\d+) MHz", text)]
    watts, celsius = [[float(x) for x in re.findall(rf", (?:power )?([\d.]+) {unit}", text)] for unit in "WC"]
    said = f"{min(ms):.2f} ms at best, {early:.2f} ms at first, {late:.2f} ms in the end"
    if clocks:
        said += f"; clock {clocks[0]} to {clocks[-1]} MHz, least {min(clocks)}"
    if watts and celsius:
        said += f"; up to {max(watts):.0f} W and {max(celsius):.0f} C"
    return {"ms": ms, "clocks": clocks, "watts": watts, "celsius": celsius, "throttled": slower,
            "said": said + ("; it becomes slower: its clock is lowered, or another program runs" if slower else "")}


def kernels(day):
    """Every kernel of a step, by events around each launch; with the flags of the model's table."""
    trace = day.state / "trace.json"
    B = 2 if day.simulated else 64
    day.train("-b", B, "-x", 6, "-r", 0, "-ge", 0, "--trace", trace, "--trace-steps", "5:6")
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X" and e.get("tid", 0) > 0]
    times = {}
    for e in events:
        if not e.get("args", {}).get("bytes") and e["name"] not in ("step",):
            times[e["name"]] = times.get(e["name"], 0) + 1e-3 * e["dur"] / 2
    if not times:
        raise RuntimeError("the trace has no kernels")
    products = sum(ms for name, ms in times.items() if name.startswith("matmul_"))
    own = sorted(times.items(), key=lambda item: -item[1])[:4]
    said = f"B {B}: products {products:.2f} ms, all {sum(times.values()):.2f} ms; " + ", ".join(
        f"{n} {ms:.2f}" for n, ms in own)
    return {"B": B, "kernels": {**{n: round(ms, 4) for n, ms in times.items()}, "all products": products}, "said": said}


PRODUCT = r"^product (.+): algorithm (\d+) of (\d+), ([\d.]+) ms; the first takes ([\d.]+) ms$"


KEPT = "algorithms"  # what cuBLASLt's choices are kept in, beside a program; the state has it for the next machine


def restore_products(day):
    """Puts the choices of an earlier call beside the program, if they are not there."""
    beside, kept = ROOT / day.programs / "BF16/build" / KEPT, day.state / KEPT
    if not day.simulated and kept.exists() and not beside.exists() and beside.parent.parent.exists():
        beside.parent.mkdir(exist_ok=True)
        shutil.copy(kept, beside)


def products(day):
    """cuBLASLt's algorithms for the products of a step: a step with the first of each; then they are timed, and the
    best are kept beside the program, for the parts that follow; then a step with these. (In the simulator there are
    three, and a copy of the program keeps its choice.)"""
    program = ROOT / day.program("train_gpt2")
    if day.simulated:
        program = pathlib.Path(shutil.copy2(program, day.state))
        day.environment["CUSIM_ALGORITHMS"] = "3"
    folder = program.parent / "build"
    for kept in (folder / "algorithms", folder / "algorithms.lock"):
        kept.unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()  # without it nothing is kept, nor timed

    def run(B):
        text = day.train("-b", B, "-x", 2 if day.simulated else 5, "-r", 0, "-ge", 0, program=program)
        return text, min(float(ms) for ms in re.findall(r"\| ([\d.]+) ms \|", text)[1:])
    sizes = (2,) if day.simulated else (64, 16, 4)
    _, before = run(sizes[0])
    folder.mkdir()
    texts = [run(B)[0] for B in sizes]
    text, after = run(sizes[0])
    shutil.copy(folder / KEPT, day.state)
    found = [{"product": product, "algorithm": int(which), "of": int(of), "ms": float(ms), "first_ms": float(first)}
             for text in texts for product, which, of, ms, first in re.findall(PRODUCT, text, re.M)]
    if not found or re.search(PRODUCT, text, re.M):
        raise RuntimeError("no product was timed" if not found else "what was chosen is not found by the next run")
    better = sum(row["algorithm"] > 1 for row in found)
    return {"products": found, "before_ms": before, "after_ms": after,
            "said": f"for {better} of {len(found)} products not the first is best; a step at B {sizes[0]}: "
                    f"{before:.2f} ms with the first, {after:.2f} ms with the best"}


def fastest_of(results, shipped):
    """Of the rungs of a ladder with the number format of what ships."""
    return min((r for r in results if (r["bench"], r["type"]) == (shipped["bench"], shipped["type"])),
               key=lambda r: r["min_ms"])


def ladder(name):
    """A ladder. Smaller shapes are compared with the reference, the main shape is only timed."""
    def run(day):
        path = day.programs / "cuda" / name
        if not (ROOT / path).exists():
            raise Skipped(f"{path} is not there; make gpu_day_programs")
        passed = re.findall(r"(\d+) passed", day.run([path, "--check"]))[-1]
        if day.simulated:
            return {"said": f"{passed} passed"}
        out = day.state / f"{name}.part"
        day.run([path, "--unchecked", "--cold", "--min-ms", 50, "--json", out])
        data = json.loads(out.read_text())
        out.unlink()
        data["results"] = [r for r in data["results"] if r["main"]]
        said = []
        for shipped in (r for r in data["results"] if r["id"] == "shipped"):
            best = fastest_of(data["results"], shipped)
            said.append(f"{shipped['bench']} {shipped['min_ms']:.3f} ms, {shipped['percent']:.0f}% of the peak" +
                        (f" ({best['id']}: {best['min_ms']:.3f} ms)" if best is not shipped else ""))
        peaks = f"copy {data['memory_gbs']:.0f} GB/s, bf16 {data['bf16_gflops'] / 1e3:.0f} TFLOP/s"
        return {"ladders": [data], "said": "; ".join(said) + f"; peaks: {peaks}; {passed} passed"}
    return run


def torch_attention(day):
    if not have("torch"):
        raise Skipped("PyTorch is not there (pip install torch)")
    size = ["--device", "cpu", "-b", 1, "-t", 64] if day.simulated else ["-b", 16, "-t", 1024]
    text = day.run([sys.executable, "dev/torch_attention.py", *size])
    found = re.findall(r"^(\w+): forward ([\d.]+) ms, backward ([\d.]+) ms", text, re.M)
    if not found:
        raise RuntimeError("no back end runs: " + text[-200:])
    return {"attention": {name: [float(f), float(b)] for name, f, b in found},
            "said": "; ".join(f"{n} {f} + {b} ms" for n, f, b in found)}


def ncu(day):
    if day.simulated or not shutil.which("ncu"):
        raise Skipped("ncu is not there (Nsight Compute)")
    metrics = ["gpu__time_duration.sum", "dram__bytes.sum", "sm__inst_executed_pipe_tensor.sum",
               "l1tex__data_bank_conflicts_pipe_lsu.sum", "sm__warps_active.avg.pct_of_peak_sustained_active",
               "sm__throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"]
    tokens = day.data("shakespeare_train.bin")
    program = [day.program("train_gpt2"), "-e", "L2C768H12T1024", "-i", tokens, "-j", tokens, "-b", 16, "-t", day.T,
               "-x", 2, "-v", 0, "-s", 0, "-r", 0, "-ge", 0]

    # --clock-control none: else ncu fixes the clock at a lower one than steps have, and may not be allowed to.
    def profile(*what):
        return day.run(["ncu", "--clock-control", "none", "--csv", "--page", "raw", *what, "--launch-skip", 5,
                        "--launch-count", 120, "--kernel-name-base", "function", *program], good=range(256))
    unknown, text = [], profile("--metrics", ",".join(metrics))
    while (missing := [m for m in metrics if re.search(rf"(?i)(fail|unknown|invalid|find).*{re.escape(m)}", text)]):
        unknown += missing
        metrics = [m for m in metrics if m not in missing]
        text = profile("--metrics", ",".join(metrics)) if metrics else ""
    if not re.search('^"', text, re.M):  # no table: what ncu itself chooses
        unknown.append("all by name")
        text = profile("--set", "basic")
    if not re.search('^"', text, re.M) or "==ERROR==" in text:
        raise RuntimeError("ncu measures nothing: " + " ".join(text.strip().splitlines()[-2:]))
    (day.state / "ncu.csv").write_text(text)
    return {"unknown": unknown, "counters": counters.read(text),
            "said": f"{text.count(chr(10))} lines in {day.state.name}/ncu.csv" +
            (f"; unknown here: {', '.join(unknown)}" if unknown else "")}


PARTS = {
    "check": Part("whether driver, toolkit and architecture fit", 5, 60, check),
    "build": Part("the programs, where they are not there and nvcc is", 240, 540, build),
    "machine": Part("driver, clocks, versions", 5, 60, machine),
    "tests_BF16_kernels": Part("kernels in bf16 beside the naive loops", 5, 180, tests("BF16", "kernels")),
    "tests_BF16_pytorch": Part("the model in bf16 beside PyTorch's numbers", 5, 120, tests("BF16", "pytorch")),
    "tests_BF16_cpu": Part("the model in bf16 beside the CPU trainer", 5, 180, tests("BF16", "cpu")),
    "tests_BF16_plan": Part("memory allocated as planned", 5, 60, tests("BF16", "plan")),
    **{f"tests_{format}_modern": Part(f"kernels of models after GPT-2 in {format.lower()}", 5, 180,
                                      modern_tests(format)) for format in ("BF16", "FP32")},
    "features": Part("one feature after the other: losses of a CPU", 15, 180, features),
    "curve": Part("300 steps on Shakespeare beside a CPU's, resumed in the middle", 5, 120, curve),
    # What the next two say decides what is worth doing.
    "torch_attention": Part("attention by PyTorch's back ends", 15, 150, torch_attention),
    "gelu_fusion": Part("-ge 0 to 2 at B 16 and 64, in turns", 60, 180, gelu_fusion),
    "cuda_graph": Part("--cuda-graph 0 and 1 at B 4, 16, 64, in turns", 55, 180, cuda_graph),
    f"ladder_{LADDERS[0]}": Part(f"peaks of copies and products, every rung of {LADDERS[0]}", 12, 120,
                                 ladder(LADDERS[0])),
    "products": Part("cuBLASLt's algorithms for the products of steps", 20, 120, products),
    "steps_64": Part("steps at B 64", 8, 90, steps(64, [])),
    "defaults_64": Part("200 steps at B 64 with the default flags: power, clock", 30, 120, defaults_64),
    "kernels": Part("every kernel of a step at B 64", 8, 90, kernels),
    "steps_16": Part("steps at B 16", 5, 60, steps(16, [])),
    "steps_4": Part("steps at B 4", 5, 60, steps(4, [])),
    **{f"ladder_{name}": Part(f"every rung of {name}", 12, 120, ladder(name)) for name in LADDERS[1:4]},
    "torch_16": Part("steps at B 16 beside PyTorch", 45, 240, steps(16, ["tuned"])),
    "same_bits": Part("20 steps twice, and -r 0 to 3: same weights", 35, 180, same_bits),
    "sanitizer_memcheck": Part("compute-sanitizer memcheck", 10, 300, sanitizer("memcheck")),
    "sanitizer_racecheck": Part("compute-sanitizer racecheck", 20, 300, sanitizer("racecheck")),
    **{f"steps_{model}": Part(f"steps of {model} at B {B}", 25, 90, steps(B, [], model=model))
       for model, B in (("d24", 16), ("d36", 4), ("d48", 4))},
    **{f"steps_d48_{flags.split()[-1]}": Part(f"steps of d48 at B 4 with {flags}", 25, 90,
                                              steps(4, [], model="d48", flags=flags)) for flags in ADAPTERS},
    "torch_64": Part("steps at B 64 beside PyTorch", 45, 240, steps(64, ["tuned"])),
    "torch_4": Part("steps at B 4 beside PyTorch", 60, 240, steps(4, ["compile", "tuned"])),
    "ncu": Part("counters of every kernel by Nsight Compute", 35, 240, ncu),
    **{f"ladder_{name}": Part(f"every rung of {name}", 12, 120, ladder(name)) for name in LADDERS[4:]},
    **{f"tests_{format}_{group}": Part(f"{group} in {format.lower()}", 5, 180, tests(format, group))
       for format in ("FP32", "FP16") for group in ("kernels", "pytorch", "cpu", "plan")},
    "sanitizer_synccheck": Part("compute-sanitizer synccheck", 10, 300, sanitizer("synccheck")),
    "sanitizer_initcheck": Part("compute-sanitizer initcheck", 10, 300, sanitizer("initcheck")),
}
