#!/usr/bin/env python3
"""--trace: a file that the viewer of Chrome and Perfetto takes, whose spans nest, account for the time of a step, and
carry the FLOPs of a step; from the CPU, from several processes and from the simulator. Standard library only."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
sys.path.insert(0, str(ROOT / "dev"))
import overlap  # noqa: E402, from dev
CPU, SIM = "./train_gpt2_cpu", "build/BF16/train_gpt2sim"
L, C, NH, T, V, B = 3, 64, 2, 32, 300, 2
VP = -(-V // 128) * 128
RUN = f"-e L{L}C{C}H{NH}T{T}V{V} -b {B} -t {T} -x 6 -v 0 -s 0".split()
failed = 0


def check(good, what):
    global failed
    if not good:
        failed += 1
        print(f"failed: {what}")


def run(command, status=0):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    check(done.returncode == status, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def tokens(folder):
    """Shards of random tokens below V, in llm.c's layout."""
    path = folder / "t_train.bin"
    header = [20240520, 1, 4000] + [0] * 253
    body = b"".join((i * 7919 % V).to_bytes(2, "little") for i in range(4000))
    path.write_bytes(b"".join(v.to_bytes(4, "little") for v in header) + body)
    return path


def trace(folder, program, *more, before=()):
    path = folder / "trace.json"
    output = run([*before, program, "-i", tokens(folder), *RUN, "--trace", path, *more])
    check("what took longest" in output, "no table of kernels")
    return json.loads(path.read_text())["traceEvents"], output


def tracks(events):
    """The spans of each (pid, tid), checked against the format and to be nested."""
    found = {}
    for e in events:
        check(e["ph"] in "XM" and isinstance(e["pid"], int) and isinstance(e["tid"], int), f"no such event: {e}")
        if e["ph"] == "X":
            check(e["dur"] >= 0 and e["ts"] >= 0 and e["name"], f"a span out of time: {e}")
            found.setdefault((e["pid"], e["tid"]), []).append(e)
    for spans in found.values():
        spans.sort(key=lambda e: (e["ts"], -e["dur"]))
        open_ends = []
        for e in spans:
            begin, end = round(1000 * e["ts"]), round(1000 * e["ts"]) + round(1000 * e["dur"])  # whole nanoseconds
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            check(not open_ends or end <= open_ends[-1], f"a span that is not within the one around it: {e}")
            open_ends.append(end)
    return found


def outermost(spans, inside, wanted):
    """The outermost wanted spans within another one."""
    end, last, found = inside["ts"] + inside["dur"], inside["ts"], []
    for e in spans:
        if e is not inside and e["ts"] >= last and e["ts"] < end and wanted(e):
            found.append(e)
            last = e["ts"] + e["dur"]
    return found


def steps_of(spans):
    return [e for e in spans if e["name"].startswith("step ")]


def step_flops(micro_steps):
    rows = B * T
    products = 6 * rows * (12 * C * C * L + C * VP)
    return micro_steps * (products + 7 * B * T * T * C * L)


def is_kernel(e):
    return "bytes" in e.get("args", {})


def test_cpu(folder):
    # A step of milliseconds, so that its kernels are most of it.
    big = "-e L4C256H4T64V2000 -b 8 -t 64".split()
    spans = tracks(trace(folder, CPU, "--threads", "2", "--trace-steps", "2:6", *big)[0])
    check({key[1] for key in spans} == {0, 1, 2}, "the program and two threads")
    check([e["name"] for e in steps_of(spans[0, 0])] == [f"step {n}" for n in range(2, 7)], "the steps 2 to 6")

    def share(step, wanted):
        return sum(e["dur"] for e in outermost(spans[0, 0], step, wanted)) / step["dur"]
    # The best of the steps: another program may take the core between two spans.
    parts = max(share(e, lambda s: s["name"].split()[0] in ("data", "micro_step", "update", "log"))
                for e in steps_of(spans[0, 0]))
    kernels = max(share(e, lambda s: is_kernel(s) or s["name"].split()[0] in ("data", "log"))
                  for e in steps_of(spans[0, 0]))
    check(parts > 0.98, f"the parts are {parts:.3f} of a step")
    check(kernels > 0.98, f"the kernels are {kernels:.3f} of a step")

    spans = tracks(trace(folder, CPU, "-d", str(3 * B * T), "-r", "0")[0])[0, 0]
    step = steps_of(spans)[0]
    flops = sum(e["args"].get("FLOPs", 0) for e in outermost(spans, step, is_kernel))
    check(abs(flops / step_flops(3) - 1) < 1e-5, f"{flops} FLOPs, {step_flops(3)} are expected")
    names = [e["name"] for e in outermost(spans, step, is_kernel)]
    check(names.count("attention") == 3 * L and names.count(f"matmul {4 * C} x {C}") == 3 * L, f"kernels: {names}")
    check([e["name"] for e in outermost(spans, step, lambda e: e["name"].startswith("layer_backward"))]
          == 3 * [f"layer_backward {l}" for l in reversed(range(L))], "the layers of the backward pass")


def test_simulator(folder):
    spans = tracks(trace(folder, SIM, "-r", "0", "-f", "0")[0])
    check({key[1] for key in spans} == {0, 1}, "the program and a stream")
    # On the device's time line the kernels follow each other.
    kernels = [e for e in spans[0, 1] if is_kernel(e)]
    total = {}
    for step in steps_of(spans[0, 0]):
        inside = [e for e in kernels if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
        total[step["name"]] = sum(e["args"].get("FLOPs", 0) for e in outermost(inside, step, is_kernel))
    check(len(total) == 3, f"three steps are traced by default: {total}")
    for flops in total.values():
        check(abs(flops / step_flops(1) - 1) < 1e-5, f"{flops} FLOPs, {step_flops(1)} are expected")
    check(any(e["name"] == "adamw" for e in kernels), "the update")


def test_directions(folder):
    """Optimizers with directions: the bytes are those of the elements, without what only fills a tile or a piece."""
    vectors, outside = L * 13 * C, V * C + T * C + 2 * C
    elems = L * 12 * C * C + vectors + outside  # without the padding of wte
    for program, *more in (CPU, "--precision", "bf16"), (SIM, "-f", "0"):
        # of an element: gradient and direction 8, master 4, m 8 and v 8; then direction 4, master 8, weight 2
        for optimizer, expected in (("muon", {"directions": elems * 20 + (vectors + outside) * 8}),
                                    ("adafactor", {"directions": elems * 12, "collect factors": elems * 4})):
            expected[optimizer] = elems * 14
            total = dict.fromkeys(expected, 0)
            for e in trace(folder, program, "--optimizer", optimizer, "--trace-steps", "2:2", *more)[0]:
                if e["name"] in total:
                    total[e["name"]] += e.get("args", {}).get("bytes", 0)
            for kernel, of_kernel in expected.items():
                check(abs(total[kernel] / of_kernel - 1) < 1e-4,
                      f"{program}, {optimizer}: {kernel} has {total[kernel]} bytes, {of_kernel} are expected")


def test_processes(folder):
    mpirun = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2"]
    if not shutil.which("mpirun"):
        return
    events, _ = trace(folder, CPU, "--threads", "1", "-z", "1", before=mpirun)
    spans = tracks(events)
    check({key[0] for key in spans} == {0, 1}, "two ranks")
    for rank in (0, 1):
        step = steps_of(spans[rank, 0])[0]
        sent = [e for e in outermost(spans[rank, 0], step, lambda e: "sent bytes" in e.get("args", {}))]
        check(len(sent) == 2 * (L + 1), f"a reduce-scatter and an all-gather for each bucket: {len(sent)}")
    events, _ = trace(folder, SIM, "-f", "0", "-z", "0", before=mpirun)
    check({key[1] for key in tracks(events)} == {0, 1, 2}, "a stream for communication")
    names = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 2]
    check(names.count("sums and gradients") == 2 * 3 and not any(name.startswith("all_gather") for name in names),
          f"what two ranks collect at the end of three steps is one group of calls each: {names}")
    # Links are slow: the first layer computes with its weights while those of the last are on their way.
    spans = tracks(trace(folder, SIM, "-f", "0", "-z", "1", before=["env", "CUSIM_NCCL_MS=40", *mpirun])[0])
    for rank in (0, 1):
        steps = steps_of(spans[rank, 0])
        for step in steps[1:]:
            ends = {e["name"]: e["ts"] + e["dur"] for e in spans[rank, 2] if e["ts"] < step["ts"] + step["dur"] / 2}
            first = min(e["ts"] for e in spans[rank, 1] if e["name"] == "layernorm_forward" and e["ts"] > step["ts"])
            check(ends["all_gather 0"] <= first, f"layer 0 waits for its weights: {ends}, {first}")
            check(first < ends[f"all_gather {L - 1}"], f"and for no others: {ends}, {first}")


def test_overlap(folder):
    """dev/overlap.py: what is planted, and the share of processes that send in three ways."""
    def track(number, name):
        return {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}

    def span(number, begin, end, **args):
        return {"name": "x", "ph": "X", "pid": 0, "tid": number, "ts": begin, "dur": end - begin,
                "args": {key.replace("_", " "): value for key, value in args.items()}}
    planted = [track(0, "program"), track(1, "thread 0"), track(2, "communication"), span(0, 0, 40, bytes=1),
               span(0, 50, 60, bytes=1), span(0, 40, 41, sent_bytes=1), span(1, 0, 100), span(2, 30, 55, sent_bytes=1),
               span(2, 52, 70, sent_bytes=1)]
    check(overlap.overlap(planted) == {0: (0, 40, 20)}, f"planted spans: {overlap.overlap(planted)}")
    both = ["scripts/processes.sh", "-np", "2"]
    shares = {}
    for name, program, flags, before in (("TCP", CPU, ["--shared-memory", "0"], []), ("shared memory", CPU, [], []),
                                         ("the simulator", SIM, ["-f", "0"], ["env", "CUSIM_NCCL_MS=5"])):
        events, _ = trace(folder, program, "--threads", "1", *flags, before=[*before, *both])
        tracks(events)
        for rank, (steps, moved, hidden) in overlap.overlap(events).items():
            check(steps == 3 and 0 <= hidden <= moved and moved > 0, f"{name}, rank {rank}: {steps} {moved} {hidden}")
            shares[name] = max(shares.get(name, 0), hidden / moved)
    check(shares["TCP"] > 0 and shares["the simulator"] > 0, f"something is hidden: {shares}")
    # --bucket-mb: what GPUs send of all layers is one piece of work
    events, _ = trace(folder, SIM, "--threads", "1", "-f", "0", "--bucket-mb", "1", before=both)
    together = [e for e in events if e["ph"] == "X" and e["tid"] == 2 and e["name"].startswith("reduce_scatter")]
    check(len(together) == 2 * 3 and {e["name"] for e in together} == {f"reduce_scatters {L + 1}"},
          f"sums of two ranks in three steps: {[e['name'] for e in together]}")
    check(os.uname().sysname != "Linux" or shares["shared memory"] == 0, f"nothing is hidden there: {shares}")


def test_offload(folder):
    """What lies on the host travels while the GPU computes: copies take 150 ms, kernels begin and end meanwhile."""
    events, _ = trace(folder, SIM, "-f", "0", "-r", "3", "-e", f"L6C{C}H{NH}T{T}V{V}", "--offload", "both",
                      "--trace-steps", "2:3", before=["env", "CUSIM_COPY_MS=150"])
    spans = tracks(events)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    check(names[2] == "host to GPU" and names[3] == "GPU to host", f"two streams for copies: {names}")
    for step in steps_of(spans[0, 0])[:2]:
        def of_step(track, name):
            inside = [e for e in spans[0, track] if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
            return {int(e["name"].split()[-1]): e for e in inside if e["name"].startswith(name)}

        def kernels_beside(copy):
            end = copy["ts"] + copy["dur"]
            return sum(copy["ts"] <= e["ts"] and e["ts"] + e["dur"] <= end for e in spans[0, 1])
        up, down = of_step(2, "input to the GPU"), of_step(3, "input to the host")
        check(set(up) == set(down) == {1, 2, 3, 4}, f"inputs of the segments but the first and the last: {up}, {down}")
        # the last of them to come is waited for; the others, and all that go, have kernels beside them
        for j in (1, 2, 3, 4):
            check(kernels_beside(down[j]) > 0, f"input {j} goes while the GPU computes")
            check(kernels_beside(up[j]) > 0, f"input {j} comes while the GPU computes")
            check(down[j]["ts"] + down[j]["dur"] <= up[j]["ts"], f"input {j} has gone before it comes")
        up, down = of_step(2, "state to the GPU"), of_step(3, "state to the host")
        updates = sorted(e["ts"] for e in spans[0, 1] if e["name"] == "adamw" and is_kernel(e)
                         and step["ts"] <= e["ts"] < step["ts"] + step["dur"])
        check(len(up) == len(updates) >= 7 and len(down) >= len(up) - 3, f"stretches: {len(up)}, {len(updates)}")
        ways = [(a, b) for a in up.values() for b in down.values()
                if a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"]]
        check(len(ways) > len(up) / 2, f"state comes and goes at once: {len(ways)} of {len(up)}")
        check(all(up[i]["ts"] + up[i]["dur"] <= updates[i] for i in up), "each update waits for its state")
        check(up[1]["ts"] < updates[0], "the next state is on its way when a stretch is updated")


def test_refused(folder):
    path = folder / "none.json"
    base = [CPU, "-i", tokens(folder), *RUN]
    for wrong in ("3:2", "0:2", "2", "2:3x"):
        check(" accepted" in run([*base, "--trace", path, "--trace-steps", wrong], 2), f"{wrong} is refused")
    run([*base, "--trace-steps", "2:3"], 2)
    for place in (folder / "none" / "x.json", folder):
        output = run([*base, "--trace", place], 1)
        check("cannot write" in output and "\nstep" not in output, f"refused before the first step: {output}")
    output = run([*base, "--trace", path, "--trace-steps", "50:60"])
    check("nothing was traced" in output and not path.exists(), f"steps that do not come: {output}")
    run([*base, "-o", folder / "log", "--trace", path])
    path.unlink()
    output = run([CPU, "-o", folder / "log", "-y", "1", "-x", "12"])
    check("nothing was traced" not in output and not path.exists(), f"a resumed run traces if it is asked: {output}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for test in (test_cpu, test_simulator, test_directions, test_processes, test_overlap, test_offload,
                     test_refused):
            test(folder)
    sys.exit(failed > 0)


main()
