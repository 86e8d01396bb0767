#!/usr/bin/env python3
"""Pruning, --prune, of the CPU trainer and of the GPU trainer in the simulator: which weights become 0 beside the same
rules in NumPy, that they stay 0, resumed, on several processes; `torch`: the steps of a pruned model beside PyTorch.

    pip install numpy; for `torch`: safetensors torch transformers
    make train_gpt2_cpu build/BF16/train_gpt2sim && dev/test/prune.py [torch]
"""
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy", *(["safetensors", "torch", "transformers"] if "torch" in sys.argv else []))
if "--packages" in sys.argv:
    sys.exit(0)
import numpy as np  # noqa: E402

from tiny_runs import CPU, SIM, Runs, model, weights_of, write_text, write_tokens  # noqa: E402

FLAGS = ["-e", "L2C32H2T16V257", "-b", "2", "-t", "16", "-x", "6", "-v", "0", "-s", "0", "-l", "1e-2", "-k",
         "constant", "-c", "0.1", "-n", "1"]
GROWING = ["--prune", "0.7", "--prune-steps", "1-4"]
L, C, VP, MAXT = 2, 32, 384, 16


def matrices(path):
    """The matrices of the layers of a model file."""
    all_weights = weights_of(path)
    at, found = (VP + MAXT) * C, []
    for rows, cols, is_matrix in ((1, 2 * C, 0), (3 * C, C, 1), (1, 3 * C, 0), (C, C, 1), (1, 3 * C, 0), (4 * C, C, 1),
                                  (1, 4 * C, 0), (C, 4 * C, 1), (1, C, 0)):
        each = all_weights[at:at + L * rows * cols].reshape(L, rows, cols)
        found += list(each) if is_matrix else []
        at += each.size
    assert at == all_weights.size - 2 * C
    return found


def pruned(matrix, rule):
    """Where the rule leaves weights: a share of zeros, or 2:4."""
    sizes, keep = np.abs(matrix), np.ones(matrix.shape, bool)
    if rule == "2:4":
        order = np.argsort(sizes.reshape(-1, 4), axis=1, kind="stable")
        np.put_along_axis(keep.reshape(-1, 4), order[:, :2], False, 1)
    else:
        keep.ravel()[np.argsort(sizes.ravel(), kind="stable")[:round(rule * matrix.size)]] = False
    return keep


def grown(step):
    """Zhu and Gupta 2017, section 3, for GROWING."""
    return 0.7 + (0 - 0.7) * (1 - (step - 1) / 3) ** 3


def same_zeros(ours, before, rule):
    return all(np.array_equal(a != 0, pruned(b, rule)) for a, b in zip(matrices(ours), matrices(before)))


def by_the_rules(tests, program, name, precision):
    """A checkpoint is written before its step's pruning: that of the next step has its zeros."""
    out = tests.out(name)
    tests.run(program, "--precision", precision, *GROWING, "-o", out)
    assert all((m != 0).all() for m in matrices(model(out, 1)))
    for step in 2, 3, 4:
        assert same_zeros(model(out, step + 1), model(out, step), grown(step)), step
        assert not same_zeros(model(out, step + 1), model(out, step), grown(step) - 0.01), "the check finds nothing"
    assert all(np.array_equal(a != 0, b != 0) for a, b in zip(matrices(model(out, 5)), matrices(model(out, 6))))
    plain = tests.out(f"{name}_plain")
    tests.run(program, "--precision", precision, "-o", plain)
    assert model(out, 2).read_bytes() == model(plain, 2).read_bytes(), "before anything is pruned"
    for rule in "2:4", 0.35:
        once = tests.out(f"{name}_once")
        tests.run(program, "--precision", precision, "--prune", rule, "--prune-steps", 3, "-o", once, "--overwrite", 1)
        assert same_zeros(model(once, 4), model(plain, 3), rule) and same_zeros(model(once, 6), model(plain, 3), rule)


def resumed(tests, program, name, precision, *more):
    """From step 3, at which the next pruning is due, as 6 steps at once."""
    flags = ["--precision", precision, *more]
    whole, half = tests.out(f"{name}_whole"), tests.out(f"{name}_half")
    tests.run(program, *flags, *GROWING, "-o", whole)
    tests.run(program, *flags, *GROWING, "-x", 3, "-o", half)
    tests.run(program, *flags, "-x", 6, "-y", 1, "-o", half)
    for file in "model_00000006.bin", "state_00000006_00000.bin":
        assert (whole / file).read_bytes() == (half / file).read_bytes(), file


def on_processes(tests):
    for stage in 0, 1:
        tests.processes(2, stage, *GROWING, "-z", stage, "-o", tests.out(f"two_{stage}"))
    assert model(tests.out("two_0"), 6).read_bytes() == model(tests.out("two_1"), 6).read_bytes()
    out = tests.out("two_1")
    for step in 3, 4:
        assert same_zeros(model(out, step + 1), model(out, step), grown(step)), step
    half = tests.out("two_half")
    tests.processes(2, "half", *GROWING, "-z", 1, "-x", 3, "-o", half)
    tests.processes(2, "then", "-z", 1, "-x", 6, "-y", 1, "-o", half)
    assert model(half, 6).read_bytes() == model(out, 6).read_bytes()


def on_gpus(tests):
    """Two simulated GPUs: each clears the gradients of its slices."""
    found = []
    for stage in 0, 1:
        out = tests.out(f"gpus_{stage}")
        command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2", *SIM]
        result = subprocess.run(tests.command(command, *GROWING, "-z", stage, "-o", out), cwd=ROOT, text=True,
                                capture_output=True, timeout=300)
        assert result.returncode == 0, result.stderr[-300:]
        assert same_zeros(model(out, 5), model(out, 4), 0.7) and same_zeros(model(out, 6), model(out, 4), 0.7)
        found.append(model(out, 6).read_bytes())
    assert found[0] == found[1]


def any_optimizer(tests):
    """Zeros stay where the state began before the weights became 0."""
    for optimizer in "adam", "sgd", "momentum", "adagrad", "rmsprop", "lion":
        out = tests.out(optimizer)
        tests.run(CPU, "--optimizer", optimizer, "--prune", 0.6, "--prune-steps", 2, "-l", 1e-3, "-o", out)
        assert same_zeros(model(out, 6), model(out, 2), 0.6), optimizer


def goes_on(tests):
    """A pruned model prunes no further at the share that it has, and does so without steps."""
    out, again = tests.out("cpu"), tests.out("again")
    tests.run(CPU, "-e", model(out, 6), "--prune", 0.7, "-x", 2, "-o", again)
    assert all(np.array_equal(a != 0, b != 0) for a, b in zip(matrices(model(out, 6)), matrices(model(again, 2))))
    data = ["-j", tests.folder / "train.bin", "-v", 1, "-m", 1, "--tokenizer", tests.folder / "none", "-x", 0]
    losses = [re.search(r"^val loss (\S+)", tests.run(CPU, "-e", model(out, 6), *data, *more).stdout, re.M)[1]
              for more in ([], ["--prune", 0.7], ["--prune", 0.9])]
    assert losses[0] == losses[1] != losses[2], losses
    tests.run(CPU, *data, "-y", 1, "-o", out)  # what run.json repeats is no wish
    plan = tests.run(CPU, "--plan", *GROWING).stdout
    assert "pruning: 70% of the 24,576 weights of the layers' matrices become 0 and stay 0, from step 1 to 4" in plan
    assert "the run ends after 3" in tests.run(CPU, *GROWING, "-x", 3).stderr


def refusals(tests):
    for flags, words in (
            ("--prune 1", "no sparsity"), ("--prune -0.1", "no sparsity"), ("--prune 2:3", "no sparsity"),
            ("--prune 0.5 --prune-steps 4-3", "names no steps"), ("--prune 0.5 --prune-steps 4-", "names no steps"),
            ("--prune 0.5 --prune-steps -1", "names no steps"), ("--prune-steps 3", "without --prune"),
            ("--prune 2:4 --prune-steps 1-3", "at once"), ("--prune 2:4 -e L1C6H3T16V257", "multiples of 4"),
            ("--prune 0.5 -z 2", "-z 2"), ("--prune 0.5 --lora 2", "rank 2"), ("--prune 0.5 --train ln", "--train ln"),
            ("--prune 0.5 --ema 0.9", "--ema"), ("--prune 0.5 --optimizer muon", "muon"),
            ("--prune 0.5 --optimizer adamw8bit", "adamw8bit"), ("--prune 0.5 --offload optimizer", "--offload"),
            ("--prune 0.5 --prune-steps 3 -x 0", "no steps"), ("--prune 0.5 -x 0 --weights int8", "--weights")):
        result = tests.run(CPU, *flags.split(), "-o", tests.out("refused"), status=2)
        assert words in result.stderr and result.stderr.count("\n") == 1, (flags, result.stderr)
        assert not tests.out("refused").exists()


def beside_torch(tests):
    """Losses and norms of six steps of a model that is pruned after two, with clipping and weight decay."""
    import torch
    import transformers
    from torch.nn.functional import cross_entropy
    import import_hf
    from run_script import script
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=L, n_embd=C, n_head=2, n_positions=16, vocab_size=97,
                                     initializer_range=0.2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    net = transformers.GPT2LMHeadModel(config)
    net.save_pretrained(tests.out("hf"))
    script(import_hf, tests.out("hf"), tests.out("hf.bin"))
    tokens = np.random.default_rng(2).integers(0, 97, 32 * 6 + 1)
    write_tokens(tests.out("few.bin"), tokens)
    groups = [{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    matrices_of = [p for name, p in net.named_parameters() if ".h." in name and p.dim() == 2]
    for rule in "2:4", 0.6:
        net.load_state_dict(transformers.GPT2LMHeadModel.from_pretrained(tests.out("hf")).state_dict())
        optimizer.state.clear()
        theirs, masks = [], None
        for step in range(6):
            if step == 2:  # the matrices of GPT-2 are (in, out): those here are (out, in)
                masks = [torch.tensor(pruned(np.ascontiguousarray(p.detach().numpy().T), rule).T) for p in matrices_of]
                for p, mask in zip(matrices_of, masks):
                    p.data *= mask
                    for key in "exp_avg", "exp_avg_sq":
                        optimizer.state[p][key] *= mask
            x = torch.tensor(tokens[32 * step:32 * step + 33])
            loss = cross_entropy(net(input_ids=x[:-1].view(2, 16)).logits.flatten(0, 1), x[1:])
            optimizer.zero_grad()
            loss.backward()
            for p, mask in zip(matrices_of, masks or []):
                p.grad *= mask
            theirs += [loss.item(), torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()]
            optimizer.step()
        flags = ["-i", tests.out("few.bin"), "-e", tests.out("hf.bin"), "--shuffle", 0]
        out = tests.run(CPU, *flags, "--prune", rule, "--prune-steps", 2).stdout
        ours = [float(number) for pair in re.findall(r"loss ([\d.]+) \| norm ([\d.]+)", out) for number in pair]
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4), (rule, ours, theirs)
        later = tests.run(CPU, *flags, "--prune", rule, "--prune-steps", 3).stdout
        ours = [float(number) for pair in re.findall(r"loss ([\d.]+) \| norm ([\d.]+)", later) for number in pair]
        assert not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4), "a planted error is not found"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder / "train.bin", 1500)
        tests = Runs(folder, ["-i", folder / "train.bin", *FLAGS])
        if "torch" in sys.argv:
            tests.test("the steps of a pruned model are PyTorch's", beside_torch)
        else:
            tests.test("what becomes 0, fp32", by_the_rules, CPU, "cpu", "fp32")
            tests.test("what becomes 0, bf16", by_the_rules, CPU, "cpu_bf16", "bf16")
            tests.test("what becomes 0, GPU", by_the_rules, SIM, "sim", "bf16")
            tests.test("resumed, fp32", resumed, CPU, "cpu", "fp32")
            tests.test("resumed, bf16", resumed, CPU, "cpu16", "bf16")
            tests.test("resumed, bf16 without master weights", resumed, CPU, "cpu_w0", "bf16", "-w", 0)
            tests.test("resumed, GPU", resumed, SIM, "sim", "bf16")
            tests.test("resumed, GPU without master weights", resumed, SIM, "sim_w0", "bf16", "-w", 0)
            tests.test("on several processes", on_processes)
            tests.test("on two GPUs", on_gpus)
            tests.test("with any optimizer that works by element", any_optimizer)
            tests.test("a pruned model, and what the log says", goes_on)
            tests.test("what is not accepted", refusals)
    sys.exit(tests.end())


if __name__ == "__main__":
    main()
