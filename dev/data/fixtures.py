#!/usr/bin/env python3
"""Makes dev/test/fixtures: what PyTorch, transformers and tiktoken compute, for our tests to compare with.

    pip install numpy torch transformers tiktoken && python3 dev/data/fixtures.py

For each small model: NAME.bin (weights, llm.c's layout), NAME_debug_state.bin (inputs, logits, loss, every gradient),
NAME_tokens.bin and NAME_run.txt (ten steps of AdamW over windows of those tokens: loss, norm, learning rate),
NAME_after.bin (weights after them); NAME_bf16.txt: the same in bf16 mixed precision: first the error of the loss and of
each tensor's gradient against fp32, then the ten steps; NAME_fp16.txt: likewise in fp16, the ten steps by autocast and
GradScaler. init_42.bin: the weights that PyTorch draws from seed 42.
b_documents_debug_state.bin: the same of model b where attention does not cross token 0, which begins a document.
a_window_debug_state.bin: of model a, whose layer 1 has a window of 7 positions. b_window_debug_state.bin: of model b,
with a window of 16 and documents. b_cut_debug_state.bin: of model b, each sequence cut into two.
schedules.txt, sampling.txt, tokenizer_text.bin, tokenizer_ids.bin. optimizers.txt: ten steps of each optimizer, which
`python3 dev/data/fixtures.py optimizers` makes alone. weight_codes.bin: weights in 8 and 4 bits, by NumPy, bitsandbytes
and ggml's gguf; `pip install bitsandbytes gguf && python3 dev/data/fixtures.py weight_codes` makes it alone.
"""
import contextlib
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy", "tiktoken", "torch", "transformers")
import copy  # noqa: E402
import math  # noqa: E402
import random  # noqa: E402
import struct  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config, GPT2LMHeadModel, get_inverse_sqrt_schedule, get_wsd_schedule)
from transformers.generation.logits_process import (  # noqa: E402
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

from tokenizer_file import gpt2_encoder  # noqa: E402

OUT = pathlib.Path(__file__).parents[1] / "test" / "fixtures"
LAYER_TENSORS = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                 "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                 "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]


def file_order(named, config):
    """The tensors of a {Hugging Face name: tensor} dict in the order and layout of a model file, as one fp32 array."""
    pad = (config.vocab_size + 127) // 128 * 128 - config.vocab_size
    parts = [torch.nn.functional.pad(named["transformer.wte.weight"], (0, 0, 0, pad)), named["transformer.wpe.weight"]]
    for name in LAYER_TENSORS:
        for layer in range(config.n_layer):
            tensor = named[f"transformer.h.{layer}.{name}"]
            parts.append(tensor.T if tensor.dim() == 2 else tensor)  # Conv1D is (input, output)
    parts += [named["transformer.ln_f.weight"], named["transformer.ln_f.bias"]]
    return np.concatenate([p.detach().numpy().astype("<f4").ravel() for p in parts])


def write_model(path, model):
    c = model.config
    header = np.zeros(256, "<i4")
    padded = (c.vocab_size + 127) // 128 * 128
    header[:8] = [20240326, 3, c.n_positions, c.vocab_size, c.n_layer, c.n_head, c.n_embd, padded]
    path.write_bytes(header.tobytes() + file_order(dict(model.named_parameters()), c).tobytes())


def write_tokens(path, tokens):
    header = np.zeros(256, "<i4")
    header[:3] = [20240520, 1, len(tokens)]
    path.write_bytes(header.tobytes() + np.array(tokens, "<u2").tobytes())


def make_model(L, C, NH, maxT, V, seed):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=V, n_positions=maxT, n_embd=C, n_layer=L, n_head=NH, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).float()
    with torch.no_grad():
        for p in model.parameters():  # no zeros and ones: biases and gains must matter
            p.add_(torch.randn_like(p) * 0.08)
    return model


def loss_of(model, x, y):
    logits = model(x).logits
    return logits, torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


def debug_state(path, model, B, T):
    x, y = torch.randint(0, model.config.vocab_size, (2, B, T))
    write_debug_state(path, model, x, y, *loss_of(model, x, y))
    return x, y


def write_debug_state(path, model, x, y, logits, loss):
    model.zero_grad()
    loss.backward()
    header = np.zeros(256, "<i4")
    header[:4] = [20240327, 2, *x.shape]
    grads = file_order({n: p.grad for n, p in model.named_parameters()}, model.config)
    path.write_bytes(header.tobytes() + x.numpy().astype("<i4").tobytes() + y.numpy().astype("<i4").tobytes()
                     + logits.detach().numpy().astype("<f4").tobytes() + np.array([loss.item()], "<f4").tobytes()
                     + grads.tobytes())


def loss_of_documents(model, x, y, end_of_text):
    """Logits and loss where a position sees only its own document. Each document is also computed by itself, at the
    same positions: the logits must be equal to rounding."""
    B, T = x.shape
    document = (x == end_of_text).cumsum(1)
    sees = (document[:, :, None] == document[:, None, :]) & torch.ones(T, T, dtype=torch.bool).tril()
    mask = torch.zeros(B, 1, T, T).masked_fill(~sees[:, None], torch.finfo(torch.float32).min)
    logits = model(x, attention_mask=mask).logits
    for b in range(B):
        for d in document[b].unique():
            at = (document[b] == d).nonzero()[:, 0]
            alone = model(x[b:b + 1, at], position_ids=at[None]).logits[0]
            assert (alone - logits[b, at]).abs().max() < 1e-5
    return logits, torch.nn.functional.cross_entropy(logits.view(B * T, -1), y.reshape(-1))


def documents(path, model):
    """Documents of one position, one that begins a tile of 32 or 64, one that ends a sequence."""
    torch.manual_seed(9)
    x, y = torch.randint(1, model.config.vocab_size, (2, 2, 70))
    x[0, [5, 6, 7, 31, 32, 64]] = 0
    x[1, [0, 33, 69]] = 0
    write_debug_state(path, model, x, y, *loss_of_documents(model, x, y, 0))


def loss_of_windows(model, x, y, windows, end_of_text):
    """Logits and loss by scaled_dot_product_attention with a mask of each layer: a position sees its own document, and
    of it the last windows[layer] positions, or all if that is 0."""
    T = x.shape[1]
    behind = torch.arange(T)[:, None] - torch.arange(T)
    document = (x == end_of_text).cumsum(1)
    same = (document[:, :, None] == document[:, None, :])[:, None]

    def mask_of(window):
        sees = same & (behind >= 0) & (behind < (window or T))
        return torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)

    def in_layer(window):
        return lambda module, args, kwargs: (args, {**kwargs, "attention_mask": mask_of(window)})

    usual = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    hooks = [block.attn.register_forward_pre_hook(in_layer(window), with_kwargs=True)
             for block, window in zip(model.transformer.h, windows)]
    result = loss_of(model, x, y)
    for hook in hooks:
        hook.remove()
    model.set_attn_implementation(usual)
    return result


def windows(path, model, windows, B, T, begins):
    """begins: positions of token 0, which begins a document."""
    torch.manual_seed(11)
    x, y = torch.randint(1, model.config.vocab_size, (2, B, T))
    x[:, begins] = 0
    logits, loss = loss_of_windows(model, x, y, windows, 0)
    assert (logits - loss_of_windows(model, x, y, [0] * len(windows), 0)[0]).abs().max() > 1e-3
    write_debug_state(path, model, x, y, logits, loss)


def cut(path, model):
    """Two sequences of 70 tokens, each cut into two of 35: positions begin at 0 again."""
    torch.manual_seed(10)
    x, y = (tokens.view(4, 35) for tokens in torch.randint(0, model.config.vocab_size, (2, 2, 70)))
    write_debug_state(path, model, x, y, *loss_of(model, x, y))


def cosine(step, steps, warmup, peak, frac):
    if step < warmup:
        return peak * (step + 1) / warmup
    r = (step - warmup) / (steps - warmup)
    return frac * peak + (1 - frac) * peak * 0.5 * (1 + math.cos(math.pi * r))


def wsd(step, steps, warmup, peak, frac):
    if step < warmup:
        return peak * (step + 1) / warmup
    start = math.floor(0.8 * steps)
    return peak if step < start else frac * peak + (1 - frac) * peak * (1 - math.sqrt((step - start) / (steps - start)))


def half_copy(model, dtype):
    """The model with 16-bit weights and activations, attention with fp32 inside, as the GPU trainer computes."""
    config = GPT2Config(**{**model.config.to_dict()})
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng():
        half = GPT2LMHeadModel(config)
    half.load_state_dict(model.state_dict())
    return half.to(dtype)


def loss_of_half(model, x, y):
    logits = model(x).logits.float()
    return logits, torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


def half_errors(model, x, y, dtype):
    """Relative error of the loss, then of each gradient tensor in file order, layer by layer: largest difference over
    largest magnitude."""
    half = half_copy(model, dtype)
    _, loss = loss_of(model, x, y)
    _, half_loss = loss_of_half(half, x, y)
    model.zero_grad()
    loss.backward()
    half_loss.backward()
    exact, rough = ({n: p.grad.float() for n, p in m.named_parameters()} for m in (model, half))
    names = ["transformer.wte.weight", "transformer.wpe.weight"]
    names += [f"transformer.h.{layer}.{n}" for n in LAYER_TENSORS for layer in range(model.config.n_layer)]
    names += ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    errors = [abs(half_loss.item() - loss.item()) / loss.item()]
    return errors + [((rough[n] - exact[n]).abs().max() / exact[n].abs().max().clamp_min(1e-30)).item() for n in names]


def adamw(decayed, others, lr, decay):
    groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)


def train_bf16(name, model, B, T, schedule, tokens, micro_steps=2, steps=10, clip=0.7, peak=3e-3, warmup=2, frac=0.1,
               decay=0.1):
    """Ten steps: bf16 forward and backward, gradients of micro-steps added in fp32, AdamW on fp32 master weights."""
    half = half_copy(model, torch.bfloat16)
    masters = {n: p.detach().clone().float() for n, p in model.named_parameters()}
    matrices = [p for p in masters.values() if p.dim() == 2]
    optimizer = adamw(matrices, [p for p in masters.values() if p.dim() != 2], peak, decay)
    lines, window = [], 0
    for step in range(steps):
        sums, total = {n: torch.zeros_like(p) for n, p in masters.items()}, 0.0
        for _ in range(micro_steps):
            data = torch.tensor([tokens[(window + b) * T:(window + b + 1) * T + 1] for b in range(B)])
            window += B
            half.zero_grad()
            _, loss = loss_of_half(half, data[:, :-1], data[:, 1:])
            (loss / micro_steps).backward()
            total += loss.item() / micro_steps
            for n, p in half.named_parameters():
                sums[n] += p.grad.float()
        for n, p in masters.items():
            p.grad = sums[n]
        norm = torch.nn.utils.clip_grad_norm_(list(masters.values()), clip).item()
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, warmup, peak, frac)
        optimizer.step()
        with torch.no_grad():
            for n, p in half.named_parameters():
                p.copy_(masters[n])
        lines.append(f"{total:.9g} {norm:.9g}")
    return lines


def train_fp16(model, B, T, schedule, tokens, micro_steps=2, steps=10, clip=0.7, peak=3e-3, warmup=2, frac=0.1,
               decay=0.1, scale=1024.0):
    """Ten steps of PyTorch's mixed precision in fp16: autocast, and the loss scaled by GradScaler."""
    model = copy.deepcopy(model)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    optimizer = adamw(matrices, [p for p in model.parameters() if p.dim() != 2], peak, decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    lines, window = [], 0
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(micro_steps):
            data = torch.tensor([tokens[(window + b) * T:(window + b + 1) * T + 1] for b in range(B)])
            window += B
            with torch.autocast("cpu", torch.float16):
                _, loss = loss_of_half(model, data[:, :-1], data[:, 1:])
            scaler.scale(loss / micro_steps).backward()
            total += loss.item() / micro_steps
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item()
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, warmup, peak, frac)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale  # nothing has overflowed
        lines.append(f"{total:.9g} {norm:.9g}")
    return lines


def train(name, model, B, T, schedule, error_lines, micro_steps=2, steps=10, clip=0.7, peak=3e-3, warmup=2, frac=0.1,
          decay=0.1):
    V = model.config.vocab_size
    tokens = torch.randint(0, V, (steps * micro_steps * B * T + 1,)).tolist()
    write_tokens(OUT / f"{name}_tokens.bin", tokens)
    bf16_lines = train_bf16(name, model, B, T, schedule, tokens, micro_steps, steps, clip, peak, warmup, frac, decay)
    fp16_lines = train_fp16(model, B, T, schedule, tokens, micro_steps, steps, clip, peak, warmup, frac, decay)
    for precision, lines in ("bf16", bf16_lines), ("fp16", fp16_lines):
        (OUT / f"{name}_{precision}.txt").write_text("\n".join([error_lines[precision]] + lines) + "\n")
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = adamw(matrices, others, peak, decay)
    lines, window = [], 0
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(micro_steps):
            rows = [tokens[(window + b) * T:(window + b + 1) * T + 1] for b in range(B)]
            window += B
            data = torch.tensor(rows)
            _, loss = loss_of(model, data[:, :-1], data[:, 1:])
            (loss / micro_steps).backward()
            total += loss.item() / micro_steps
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item()
        rate = schedule(step, steps, warmup, peak, frac)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        lines.append(f"{total:.9g} {norm:.9g} {rate:.9g}")
    (OUT / f"{name}_run.txt").write_text("\n".join(lines) + "\n")
    write_model(OUT / f"{name}_after.bin", model)


def initial_weights():
    """GPT-2's initial weights in the order in which we promise to draw them."""
    L, C, NH, maxT, V, seed = 3, 32, 2, 25, 101, 42
    model = make_model(L, C, NH, maxT, V, 0)
    torch.manual_seed(seed)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for n, p in named.items():
            p.fill_(1.0 if n.endswith("weight") and "ln_" in n else 0.0)
        torch.nn.init.normal_(named["transformer.wte.weight"], 0.0, 0.02)
        torch.nn.init.normal_(named["transformer.wpe.weight"], 0.0, 0.02)
        for layer in range(L):
            residual = 0.02 / math.sqrt(2 * L)
            spreads = {"attn.c_attn": 0.02, "attn.c_proj": residual, "mlp.c_fc": 0.02, "mlp.c_proj": residual}
            for n, std in spreads.items():
                conv = named[f"transformer.h.{layer}.{n}.weight"]
                # drawn in our (output, input) order
                conv.copy_(torch.empty(conv.shape[1], conv.shape[0]).normal_(0.0, std).T)
    write_model(OUT / "init_42.bin", model)


def schedulers(steps, warmup, peak, frac):
    """PyTorch's scheduler for each of our schedules that it has, of the steps after the warmup."""
    lr = torch.optim.lr_scheduler
    left = steps - warmup
    drops = [steps * 4 // 5 - warmup, steps * 9 // 10 - warmup]
    made = {"constant": lambda o: lr.ConstantLR(o, 1.0),
            "linear": lambda o: lr.LinearLR(o, 1.0, frac, left),
            "cosine": lambda o: lr.CosineAnnealingLR(o, left, eta_min=peak * frac)}
    if frac > 0:
        made["exponential"] = lambda o: lr.ExponentialLR(o, frac ** (1 / left))
        made["step"] = lambda o: lr.MultiStepLR(o, drops, frac ** 0.5)
    else:
        made["linear"] = lambda o: lr.PolynomialLR(o, left, power=1)  # linear to zero
    return made


def rates_of(make, steps, warmup, peak):
    """The learning rates of a scheduler of PyTorch after a linear warmup, whose first step has peak / warmup."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    if warmup > 0:
        rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
        fall = make(optimizer)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[warmup])
    else:
        scheduler = make(optimizer)
    for _ in range(steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def transformers_schedules(steps, warmup, peak, frac):
    """The rates of schedules that PyTorch has not, by transformers, whose warmup begins with the rate 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    inverse = get_inverse_sqrt_schedule(optimizer, warmup, timescale=max(warmup, 1)).lr_lambdas[0]
    start = steps * 4 // 5
    decay = get_wsd_schedule(optimizer, warmup, steps - start, num_stable_steps=start - warmup, decay_type="1-sqrt",
                             min_lr_ratio=frac).lr_lambdas[0]
    rise = [peak * (step + 1) / warmup for step in range(warmup)]
    return {"inverse-sqrt": [peak * inverse(step + (warmup > 0)) for step in range(steps)],
            "wsd": rise + [peak * decay(step) for step in range(warmup, steps)]}


def schedules():
    lines = []

    def add(name, steps, warmup, peak, frac, rates):
        lines.extend(f"{name} {step} {steps} {warmup} {peak} {frac} {rate:.12g}" for step, rate in enumerate(rates))

    for steps, warmup, peak, frac in [(50, 7, 6e-4, 0.1), (11, 0, 1e-3, 0.0), (37, 2, 5e-4, 0.2)]:
        for name, make in schedulers(steps, warmup, peak, frac).items():
            add(name, steps, warmup, peak, frac, rates_of(make, steps, warmup, peak))
        for name, rates in transformers_schedules(steps, warmup, peak, frac).items():
            add(name, steps, warmup, peak, frac, rates)
    (OUT / "schedules.txt").write_text("\n".join(lines) + "\n")


def sampling():
    torch.manual_seed(3)
    lines = []
    cases = [(17, 1.0, 0, 1.0), (40, 0.7, 0, 1.0), (40, 1.3, 5, 1.0), (40, 1.0, 0, 0.8), (40, 0.9, 12, 0.6),
             (40, 1.0, 100, 0.05)]
    for V, temperature, top_k, top_p in cases:
        logits = torch.randn(1, V) * 2
        out = TemperatureLogitsWarper(temperature)(None, logits)
        if top_k:
            out = TopKLogitsWarper(top_k)(None, out)
        if top_p < 1.0:
            out = TopPLogitsWarper(top_p)(None, out)
        probs = torch.softmax(out.double(), -1)[0]
        values = [f"{v:.9g}" for v in logits[0].tolist() + probs.tolist()]
        lines.append(" ".join([str(V), str(temperature), str(top_k), str(top_p)] + values))
    (OUT / "sampling.txt").write_text("\n".join(lines) + "\n")


def tokenizer():
    encoder = gpt2_encoder()
    random.seed(5)
    pool = ["a", "'", "s", "'s", "'LL", "'ll", "re", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000",
            "\u2028", "\x85", "\x1c", "1", "\u0663", "\u00e9", "e\u0301", "\u00df", "\u6f22", "\U0001f600", "\u200d",
            "!", "...", "<|endoftext|>", "\x00", "\u2167", "\u00b2", "'d", "\u2019s", "hello", "World", "\ufeff",
            "\U0010ffff"]
    text = "".join(random.choice(pool) for _ in range(6000))
    some = [*range(0x3400), *range(0x3400, 0x110000, 257)]
    text += "".join(chr(cp) for cp in some if not 0xD800 <= cp < 0xE000)
    text += " " * 5000 + "x" * 5000 + "\n" * 3000 + " end" + "=" * 777 + "ab" * 600
    (OUT / "tokenizer_text.bin").write_bytes(text.encode())
    (OUT / "tokenizer_ids.bin").write_bytes(np.array(encoder.encode_ordinary(text), "<u2").tobytes())


def lion(p, gradients, lr, decay, beta1=0.9, beta2=0.99):
    """Chen et al. 2023, arXiv:2302.06675, algorithm 2, in double precision."""
    m = [0.0] * len(p)
    for g in gradients:
        c = [beta1 * a + (1 - beta1) * b for a, b in zip(m, g)]
        p = [x - lr * ((y > 0) - (y < 0) + decay * x) for x, y in zip(p, c)]
        m = [beta2 * a + (1 - beta2) * b for a, b in zip(m, g)]
    return p


def trust_ratio(p, d):
    """|p| / |d| of LARS and LAMB; 1 where either norm is 0."""
    norms = np.linalg.norm(p), np.linalg.norm(d)
    return norms[0] / norms[1] if min(norms) > 0 else 1


def lars(p, gradients, lr, decay, beta1=0.9):
    """You et al. 2020, arXiv:1904.00962, algorithm 1, of one tensor, in double precision."""
    p, m = np.array(p), np.zeros(len(p))
    for g in gradients:
        m = beta1 * m + (1 - beta1) * (np.array(g) + decay * p)
        p = p - lr * trust_ratio(p, m) * m
    return p.tolist()


def lamb(p, gradients, lr, decay, beta1=0.9, beta2=0.95, eps=1e-8):
    """You et al. 2020, arXiv:1904.00962, algorithm 2, of one tensor, in double precision."""
    p, m, v = np.array(p), np.zeros(len(p)), np.zeros(len(p))
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * np.array(g)
        v = beta2 * v + (1 - beta2) * np.array(g) ** 2
        r = m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps) + decay * p
        p = p - lr * trust_ratio(p, r) * r
    return p.tolist()


def newton_schulz(g, dtype):
    """torch.optim.Muon's orthogonalisation, in another type than bf16."""
    x = g.to(dtype)
    x = x.T if g.size(0) > g.size(1) else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if g.size(0) > g.size(1) else x).to(g.dtype)


@contextlib.contextmanager
def exact_muon():
    """torch.optim.Muon with products in double precision."""
    import torch.optim._muon as module
    own = module._zeropower_via_newtonschulz
    module._zeropower_via_newtonschulz = lambda g, *constants: newton_schulz(g, torch.float64)
    yield
    module._zeropower_via_newtonschulz = own


def sm3(p, gradients, lr, decay):
    """Anil et al. 2019, arXiv:1901.11150, algorithm SM3-II, of a matrix whose sets are its rows and its columns, or of
    a vector, whose elements are its sets; with decoupled weight decay; in double precision."""
    p = np.array(p)
    sets = [[(i, j) for j in range(p.shape[1])] for i in range(p.shape[0])] if len(p) > 1 else []
    sets += [[(i, j) for i in range(p.shape[0])] for j in range(p.shape[1])]
    mu = [0.0] * len(sets)
    for g in gradients:
        p = p - lr * decay * p
        new = [0.0] * len(sets)
        for i in np.ndindex(*p.shape):
            of_element = [r for r, members in enumerate(sets) if i in members]
            nu = min(mu[r] for r in of_element) + g[i] ** 2
            p[i] -= lr * g[i] / math.sqrt(nu) if nu > 0 else 0
            for r in of_element:
                new[r] = max(new[r], nu)
        mu = new
    return p.flatten().tolist()


def adamw_rounded(p, gradients, lr, decay, rounded, beta1=0.9, beta2=0.95, eps=1e-8):
    """AdamW in double precision, whose m and v go through rounded(values, is_v, step) after each step."""
    p, m, v = np.array(p), np.zeros(len(p)), np.zeros(len(p))
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * np.array(g)
        v = beta2 * v + (1 - beta2) * np.array(g) ** 2
        p = p - lr * (m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps) + decay * p)
        m, v = rounded(m, False, t), rounded(v, True, t)
    return p.tolist()


def in_8_bits(values, is_v, _):
    """Dettmers et al. 2022, arXiv:2110.02861: one block; the scale with its sign, no positive v becomes 0."""
    code = [0.0, 1.0]
    for zeros in range(7):  # a tree: the number of zeros says the decade, the other bits where in it
        bits = 6 - zeros + is_v
        middles = 10.0 ** -zeros * (0.1 + 0.9 * (np.arange(2 ** bits) + 0.5) / 2 ** bits)
        code += [*middles] if is_v else [*middles, *-middles]
    code = np.sort(code)
    assert len(code) == 256
    scale = values[np.argmax(np.abs(values))]
    nearest = np.abs((values / scale)[:, None] - code).argmin(1)
    return scale * code[np.maximum(nearest, values > 0) if is_v else nearest]


def in_bf16(values, is_v, step):
    """Rounded up or down at random: the bits are splitmix64's."""
    def random_bits(seed, index):
        mask = 2 ** 64 - 1
        h = (seed + index * 0x9E3779B97F4A7C15) & mask
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & mask
        h = (h ^ h >> 27) * 0x94D049BB133111EB & mask
        return h >> 32

    bits = np.array(values, np.float32).view(np.uint32).tolist()
    seed = step + (2 if is_v else 1)
    up = [b + (random_bits(seed, i) & 0xFFFF) & 0xFFFF0000 for i, b in enumerate(bits)]
    return np.array(up, np.uint32).view(np.float32).astype(float)


def optimizers():
    """Ten steps of 24 parameters, a vector or a matrix. A line: name, Nesterov or not, where the numbers are
    from (PyTorch, or fixtures.py where torch.optim does not have the optimizer), rows, columns, learning rate, weight
    decay, what the first parameters and the gradients are multiplied by, the parameters after the steps."""
    optim = torch.optim
    cases = [("adamw", 0, 0.01, optim.AdamW, dict(betas=(0.9, 0.95), eps=1e-8)),
             ("adam", 0, 0.01, optim.Adam, dict(betas=(0.9, 0.95), eps=1e-8)),
             ("sgd", 0, 0.1, optim.SGD, {}),
             ("momentum", 0, 0.05, optim.SGD, dict(momentum=0.9)),
             ("momentum", 1, 0.05, optim.SGD, dict(momentum=0.9, nesterov=True)),
             ("adagrad", 0, 0.1, optim.Adagrad, {}),
             ("rmsprop", 0, 0.01, optim.RMSprop, {})]
    decay = 0.1
    p0 = [((i * 37) % 64 - 32) / 32 for i in range(24)]
    gradients = [[((i * 29 + step * 53 + i * step * 7) % 128 - 64) / 256 for i in range(24)] for step in range(10)]
    lines = []

    def add(name, nesterov, shape, lr, after, weights=1, slope=1, source="PyTorch"):
        rows, columns = shape
        lines.append(f"{name} {nesterov} {source} {rows} {columns} {lr} {decay} {weights} {slope} " +
                     " ".join(f"{x:.9g}" for x in after))

    def torch_steps(make, constants, shape, lr, weights=1, slope=1):
        p = torch.nn.Parameter(weights * torch.tensor(p0).reshape([n for n in shape if n > 1]))
        optimizer = make([p], lr=lr, weight_decay=decay, **constants)
        for g in gradients:
            p.grad = slope * torch.tensor(g).reshape(p.shape)
            optimizer.step()
        return p.flatten().tolist()

    vector, matrix = (1, 24), (4, 6)
    for name, nesterov, lr, make, constants in cases:
        add(name, nesterov, vector, lr, torch_steps(make, constants, vector, lr))
    rules = ("lion", lion), ("lars", lars), ("lamb", lamb)  # torch.optim does not have them
    for name, rule, weights in *((*r, 1) for r in rules), ("lars", lars, 0), ("lamb", lamb, 0):  # 0: as biases begin
        after = rule([weights * x for x in p0], gradients, 0.01, decay)
        add(name, 0, vector, 0.01, after, weights, source="fixtures.py")
    # bf16 changes each step by about 1%, so all ten together by less
    muon = dict(adjust_lr_fn="match_rms_adamw")
    for shape in (4, 6), (6, 4), (2, 12):
        with exact_muon():
            after = torch_steps(optim.Muon, muon, shape, 0.05)
        own = torch_steps(optim.Muon, muon, shape, 0.05)
        assert math.dist(own, after) < 0.02 * math.dist(p0, after), "torch.optim.Muon has another formula"
        add("muon", 0, shape, 0.05, after)
    add("muon", 0, vector, 0.01, torch_steps(optim.AdamW, dict(betas=(0.95, 0.95), eps=1e-8), vector, 0.01))
    # Adafactor's limits: of its rate, of the root mean square of the weights, of its estimate
    for shape, *scales in ((vector, 0.01), (matrix, 0.01), (matrix, 0.5), (matrix, 0.01, 2 ** -12),
                           (matrix, 0.01, 1, 2 ** -14), (vector, 0.01, 1, 2 ** -23)):
        lr, *factors = scales
        add("adafactor", 0, shape, lr, torch_steps(optim.Adafactor, {}, shape, *scales), *factors)
    for shape in vector, matrix:
        of_shape = lambda values: np.array(values).reshape(shape)  # noqa: E731
        add("sm3", 0, shape, 0.01, sm3(of_shape(p0), [of_shape(g) for g in gradients], 0.01, decay),
            source="fixtures.py")
    uneven = [[x * (1 + i / 1000) for i, x in enumerate(g)] for g in gradients]  # no ties in rounding
    for name, rounded in (("adamw8bit", in_8_bits), ("adamw16bit", in_bf16)):
        add(name, 0, vector, 0.01, adamw_rounded(p0, uneven, 0.01, decay, rounded), source="fixtures.py")
    (OUT / "optimizers.txt").write_text("\n".join(lines) + "\n")


def weight_codes(rows=12, columns=192):
    """Weights, then for each format codes, one a byte, and scales: int8 by rows in NumPy, int4 as ggml's q4_0, nf4
    with double quantisation; then the scales of 300 more blocks of nf4, and what double quantisation makes of them."""
    import bitsandbytes.functional
    import gguf

    weights = np.random.default_rng(5).standard_normal((rows, columns)).astype("<f4") * np.float32(0.02)
    weights[1, 64:128] = 0
    weights[2, 7], weights[3] = 1.5, -np.abs(weights[3])
    scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
    int8 = np.rint(weights * (np.float32(1) / scale)).astype("i1")
    blocks = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_0).reshape(-1, 18)
    int4 = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1)

    def as_nf4(values):
        """Codes, codes of scales, mean of scales, scales of groups of scales."""
        packed, state = bitsandbytes.functional.quantize_4bit(torch.tensor(values), blocksize=64, quant_type="nf4",
                                                              compress_statistics=True)
        nf4 = np.stack([packed.numpy().ravel() >> 4, packed.numpy().ravel() & 15], 1)
        return nf4, state.absmax.numpy(), np.float32(state.offset.item()), state.state2.absmax.numpy()

    sparse = np.zeros((300, 64), "<f4")  # more scales than those of one group
    sparse[:, 0] = np.abs(np.random.default_rng(6).standard_normal(300)) + 2
    parts = [np.array([rows, columns], "<i4"), weights, int8, scale, int4, blocks[:, :2], *as_nf4(weights),
             sparse[:, 0], *as_nf4(sparse)[1:]]
    (OUT / "weight_codes.bin").write_bytes(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["weight_codes"]:
        return weight_codes()
    if sys.argv[1:] == ["optimizers"]:
        return optimizers()
    torch.set_num_threads(1)
    models = [("a", (2, 48, 3, 35, 97), 3, 33, cosine), ("b", (1, 40, 1, 70, 130), 1, 67, wsd),
              ("c", (1, 32, 2, 8, 128), 2, 1, cosine)]
    for name, shape, B, T, schedule in models:
        model = make_model(*shape, seed=len(name) + shape[1])
        write_model(OUT / f"{name}.bin", model)
        x, y = debug_state(OUT / f"{name}_debug_state.bin", model, B, T)
        with torch.random.fork_rng():
            if name == "a":
                windows(OUT / "a_window_debug_state.bin", model, [0, 7], 2, 34, [])
            if name == "b":
                windows(OUT / "b_window_debug_state.bin", model, [16], 2, 70, [5, 40])
                documents(OUT / "b_documents_debug_state.bin", model)
                cut(OUT / "b_cut_debug_state.bin", model)
        error_lines = {precision: " ".join(f"{e:.4g}" for e in half_errors(model, x, y, dtype))
                       for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))}
        train(name, model, B, T, schedule, error_lines)
    initial_weights()
    weight_codes()
    optimizers()
    schedules()
    sampling()
    tokenizer()
    print(f"{sum(f.stat().st_size for f in OUT.iterdir())} bytes in {OUT}")


if __name__ == "__main__":
    main()
