#!/usr/bin/env python3
"""How exercise.py runs a judge, and what it says of a run that does not pass."""
import json
import os
import re
import resource
import secrets
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

CUDA_SEEDS = 4
# Of a judge, which takes less than one; sanitizers take ten times as much. Tests wait less for what does not end.
CPU_SECONDS, WALL_SECONDS = min(20, int(os.environ.get("EXERCISE_SECONDS", 20))), 60
OUTPUT_BYTES, MEMORY_BYTES = 64 << 20, 4 << 30

# What the simulator says when it stops a kernel, the key of the mistake, and what it means.
SIMULATOR = [
    ("wrote beyond its memory|byte .* of a device buffer|before a device buffer|beyond the end of the shared|"
     "before its first variable|no device memory", "bounds", "an index is out of range: the last block or the last "
     "pass of a loop may have more threads than elements."),
    ("the same barrier|at the __syncthreads|never come", "divergent", "not all threads of the block reach the same "
     "__syncthreads(): it must not stand where some threads have branched off."),
    ("with mask", "mask", "all lanes that the mask names must come to the same shuffle: none may leave a loop early."),
    ("is not aligned|misaligned", "misaligned", "a vector of n bytes must lie at a multiple of n bytes."),
    ("shared memory|__shared__", "shared", "too much shared memory, or none was given at the launch."),
]
RACE = ("race", "other results when the threads run in another order. A __syncthreads() is missing between the "
        "write of one thread to memory and the read of another, or between a read and the next write.")
VAGUE = ("unknown", "unwritten", "added", "overwritten", "factor")  # what a race can look like
# The figures that limits are about, by name; see the limits of an exercise.
MEANING = {"load-sectors": "sectors of 32 bytes per load of a warp",
           "store-sectors": "sectors of 32 bytes per store of a warp",
           "conflicts": "bank conflicts", "shared-requests": "accesses to shared memory", "atomics": "atomics",
           "global-atomics": "atomics in device memory", "shared-atomics": "atomics in shared memory",
           "reads": "bytes asked for per byte that is read", "writes": "bytes stored per byte that is written",
           "barriers": "barriers per block", "mma": "mma instructions", "shuffles": "shuffles",
           "loads": "loads of a warp", "lanes": "lanes that take part in a load or store, of 32",
           "longest": "accesses of the busiest thread, over the mean"}
# Of every exercise that has a kernel "counted", unless its own limits say otherwise.
EVERYWHERE = [
    ("counted", "longest", "<=", 8.0, "alone", "one thread does the work of many, while the others wait: share it "
     "among all threads."),
    ("counted", "lanes", ">=", 12.0, "idle", "most lanes of a warp do nothing while the others load and store."),
]


def limit(kind):
    """To be called in the process that becomes the judge."""
    def apply():
        slow = 10 if "-fsanitize=address" in kind or "-fsanitize=thread" in kind else 1
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS * slow, CPU_SECONDS * slow + 5))  # SIGXCPU, SIGKILL
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES,) * 2)
        if slow == 1:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2)
    return apply


def run(command, settings=None, token=""):
    """Returns (status, what it printed, what it printed to stderr); the status is None if it took too long."""
    flags = os.environ.get("EXERCISE_FLAGS", "")
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, preexec_fn=limit(flags),
                                   start_new_session=True, text=True, env={**os.environ, **(settings or {})})
        try:
            process.communicate(f" {token}\n", timeout=WALL_SECONDS * (10 if "-fsanitize" in flags else 1))
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.kill(), process.wait()
            status = None
        out.seek(0), err.seek(0)
        return status, out.read(1 << 20), err.read(1 << 20)


def hint(key, text):
    return f"hint ({key}): {text}\n"


def counts_path(program, arguments):
    return program.with_name(f"{program.name}_{'_'.join(arguments)}.counts")


def run_judge(program, arguments, e, show=None):
    """Runs the judge; in CUDA in several orders of blocks, warps and lanes. Returns (passed, what was printed). Only
    the judge gets the token, on its standard input at the end, and says it after "passed"."""
    token = secrets.token_hex(8)
    counts = counts_path(program, arguments)
    counts.unlink(missing_ok=True)
    first = None
    for seed in range(CUDA_SEEDS if e.cuda else 1):
        settings = {"CUSIM_SEED": str(seed)}
        if e.cuda and seed == 0 and os.environ.get("EXERCISE_COUNT"):
            settings["CUSIM_COUNT"] = str(counts)
            settings.update({"CUSIM_SHOW": str(show)} if show else {})
        status, text, errors = run([str(program), *arguments], settings, token)
        passed = status == 0 and text.count(token) == 1 and text.endswith(f"passed {token}\n")
        text = text.replace(f"passed {token}\n", "").replace(token, "")
        if not passed:
            return False, explain(program, arguments, e, seed, status, text, errors)
        if first is not None and text != first:
            return False, first + errors + hint("order", "not the same bits when the threads run in another order "
                                                f"(CUSIM_SEED={seed}): several threads add to the same number.")
        first = text
    good, counted = judge_counts(e, counts)
    return good, errors + first + counted + ("passed\n" if good else "")


def changes_with_order(program, arguments, before):
    return any(run([str(program), *arguments], {"CUSIM_SEED": str(seed)})[1] != before
               for seed in range(1, 1 + CUDA_SEEDS))


def explain(program, arguments, e, seed, status, text, errors):
    """What is printed of a judge that did not pass: what it said, its stderr, and a hint."""
    hints = re.search(r"^hint \((\S+)\): .*\n", text, re.M)
    before = text[:hints.start()] if hints else text
    before += "" if before.endswith("\n") else "\n"
    if status is None or status == -24:
        return before + errors + hint("endless", "it does not come to its end in the time that it has: a loop that "
                                      "does not end, or threads that wait for each other.")
    if status == -25:
        return before[:2000] + "\n" + hint("flood", f"it prints more than {OUTPUT_BYTES >> 20} MiB.")
    where = "\n".join(dict.fromkeys(re.findall(
        r"^ +(?:Write|Read|Previous|Atomic).*|^ *#0 .*|^.*of size .*|^SUMMARY: .*", errors, re.M)))
    if "ThreadSanitizer: data race" in errors:
        return before + where + "\n" + hint("race", "two threads access the same memory, one of them writes, and no "
                                            "barrier is between the two.")
    if "AddressSanitizer" in errors:
        return before + where + "\n" + hint("bounds", "this line accesses memory that is not the function's.")
    if status == 1:
        for pattern, key, meaning in SIMULATOR:
            if e.cuda and re.search(f"^error: .*({pattern})", errors, re.M):
                return before + errors + hint(key, meaning)
    if hints:
        again = e.cuda and (seed > 0 or hints[1] in VAGUE and changes_with_order(program, arguments, text))
        return before + errors + (hint(*RACE) if again else hints[0])
    if status is not None and status < 0:
        return before + errors + hint(
            "crash", f"the program crashed (signal {-status}) at the sizes of the last line: an index out of range, or "
            "a null pointer. make exercise EX=... SANITIZE=address names the line.")
    if status == 0:
        return before + errors + hint("unfinished", "the program has ended before its judge had: the function must "
                                      "return, once.")
    return before + errors + hint("stopped", f"the program ended with status {status}.")


def metric(kernel, name):
    """A figure of the counts of a kernel (dev/cusim/README.md)."""
    if name.endswith("-sectors"):  # per request of a warp
        tally = kernel["global_" + name.partition("-")[0]]
        return tally["sectors"] / max(tally["requests"], 1)
    shared = [kernel[kind] for kind in ("shared_load", "shared_store", "shared_atomic", "cp_async_shared", "ldmatrix")]
    threads = kernel["blocks"] * kernel["block"][0] * kernel["block"][1] * kernel["block"][2]
    sites = [s for s in kernel["sites"] if s["kind"] in ("global_load", "global_store")]
    return {"conflicts": sum(t["wavefronts"] - t["wavefronts_without_conflicts"] for t in shared),
            "shared-requests": sum(t["requests"] for t in shared),
            "reads": kernel["global_load"]["bytes"] / max(kernel["read_bytes"], 1),
            "writes": kernel["global_store"]["bytes"] / max(kernel["written_bytes"], 1),
            "global-atomics": kernel["global_atomic"]["requests"],
            "shared-atomics": kernel["shared_atomic"]["requests"],
            "atomics": kernel["global_atomic"]["requests"] + kernel["shared_atomic"]["requests"],
            "barriers": kernel["barriers"] / kernel["blocks"],
            "mma": kernel["warps"].get("mma", 0), "loads": kernel["global_load"]["requests"],
            "shuffles": sum(n for what, n in kernel["warps"].items() if what.startswith("__shfl")),
            "lanes": sum(s["bytes"] / s["lane_bytes"] for s in sites) / max(sum(s["requests"] for s in sites), 1),
            "longest": kernel["longest_thread"] * threads / max(kernel["accesses"], 1)}[name]


def limits_of(e):
    """The exercise's own between those of all exercises: one thread that does all has too many of everything, too."""
    own = {(kernel, name) for kernel, name, *_ in e.limits}
    counted = e.cuda and '"counted"' in e.sections["judge"]
    first, last = ([limit] if counted and limit[:2] not in own else [] for limit in EVERYWHERE)
    return first + e.limits + last


def read_counts(path):
    return {k["kernel"]: k for k in map(json.loads, path.read_text().split("\n")[1:-1])}


def judge_counts(e, path):
    """Compares what the simulator counted with the limits of the exercise."""
    if not path.exists():
        return True, ""
    kernels, text = read_counts(path), ""
    for kernel, name, sign, bound, key, meaning in limits_of(e):
        value = metric(kernels[kernel], name)
        text += f"  {kernel}: {MEANING[name]} {value:.4g}, asked: at {'most' if sign == '<=' else 'least'} {bound:g}\n"
        if not (value <= bound if sign == "<=" else value >= bound):
            return False, text + hint(key, meaning)
    return True, text
