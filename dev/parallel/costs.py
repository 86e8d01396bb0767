"""What a layout takes: memory of a card, bytes on the wire, seconds of a step. Above each function stands its formula.

Letters: of the model L, C, NH, T, V; of the layout d, p, t ranks for data, pipeline, tensors; B sequences a
micro-batch, of which m make a step; v chunks of layers a stage. Neighbours share tensors, then data; stages are
farthest apart. Sources: Narayanan et al. 2021, arXiv:2104.04473 (pipeline, tensors); Korthikanti et al. 2022,
arXiv:2205.05198 (activations, sequence parallel); Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO).
"""
import collections
import math

Model = collections.namedtuple("Model", "L C NH T V")
Layout = collections.namedtuple("Layout", "d p t B v sequence zero recompute")
# n of them. products, memory_share: of the peaks, that large products and plain kernels reach. within, between: bytes a
# second that a card sends in a node and to another. flash: attention's scores are never stored. hidden: of what travels
# while a card computes. sum_bytes: of a gradient that is added up over micro-batches.
Cards = collections.namedtuple("Cards", "n memory flops bytes_s within between per_node products memory_share flash "
                                        "hidden sum_bytes")
Cost = collections.namedtuple("Cost", "seconds memory bubble tensor pipeline data share")

MESSAGE_S = 10e-6      # that a message costs however short, as in llmc/plan/plan_time.h
WEIGHT, STATE = 2, 12  # bytes of a bf16 weight; of AdamW's m and v and the fp32 weight (ZeRO, section 3.1)


# ---- the model

# elements = 12 L C^2 (1 + 13 / (12 C) + (V + T) / (12 L C)), equation (2) of 2104.04473, and the last norm's
def model_elems(model):
    L, C, _, T, V = model
    return 12 * L * C * C + 13 * L * C + (V + T + 2) * C


# A token's forward pass through a layer: 24 C^2 FLOPs of products with weights, 4 T C of attention's; through the
# classifier 2 C V. Backward is twice that (2104.04473, appendix). The half of the scores above the diagonal counts,
# too: flash attention leaves it out, and runs at about half the rate of products.
def layer_flops(model):
    return 24 * model.C ** 2, 4 * model.T * model.C


def step_flops(model, tokens):
    """What the model needs: recomputation does not count."""
    return 3 * tokens * (model.L * sum(layer_flops(model)) + 2 * model.C * model.V)


# ---- memory of a card

# A layer: (12 C^2 + 7 C) / t + 6 C; norms and the biases of the two products that are summed over t are whole. The
# first stage has wte / t and wpe, the last wte / t and the last norm.
def stage_elems(model, layout, stage):
    """Elements of the layers of a stage, and of what is outside of them."""
    L, C, _, T, V = model
    token_table = math.ceil(V / layout.t / 128) * 128 * C
    first, last = stage == 0, stage == layout.p - 1
    outside = token_table * (first or last) + T * C * first + 2 * C * last
    return L // layout.p * (math.ceil((12 * C + 7) * C / layout.t) + 6 * C), outside


# Of a layer, by 2205.05198, table 2 and equations (1) to (6), in bytes:
#     nothing recomputed           B T C (10 + 24 / t + 5 NH T / (C t))
#     attention ("selective")      B T C (10 + 24 / t), which is also what flash attention keeps
#     the layer ("full")           B T C 2
# Sequence parallel divides by t what the others keep whole.
def kept_bytes(model, layout, recompute):
    whole = layout.t if layout.sequence else 1
    values = layout.B * model.T * model.C
    if recompute == "full":
        return 2 * values / whole
    scores = 5 * model.NH * model.T / model.C / layout.t if recompute == "none" else 0
    return values * (10 / whole + 24 / layout.t + scores)


# Chunks of layers that a stage keeps at once, counted from stage 0: p - stage of 1F1B; interleaved
# 2 (p - 1 - stage) + (v - 1) p + 1; never more than the m v there are (chapter 21).
def kept_chunks(layout, m, stage):
    p, v = layout.p, layout.v
    return min(p - stage if v == 1 else 2 * (p - 1 - stage) + (v - 1) * p + 1, m * v)


# Weights, gradients and state, of n elements, o of them outside layers (ZeRO, section 5; places: chapter 16):
#     stage 0    (2 + g + 12) n                    stage 2    2 n + (g + 12) n / d + places of gradients
#     stage 1    (2 + g) n + 12 n / d              stage 3    (2 + g + 12) n / d + places of weights and gradients
# A place holds a layer; there are two, and one for o. g: bytes of a gradient.
def state_bytes(model, layout, stage, g):
    layers, outside = stage_elems(model, layout, stage)
    n, places = layers + outside, 2 * layers / (model.L / layout.p) + outside
    of = lambda least: n / layout.d if layout.zero >= least else n
    return (WEIGHT * of(3) + g * of(2) + STATE * of(1) + WEIGHT * places * (layout.zero == 3) +
            g * places * (layout.zero >= 2))


# The activations of the chunks that are kept; of one layer what is computed again; in the last stage logits, of
# 4 B T V / t bytes, with their inputs, 4 B T C (2205.05198, section 4.3).
def memory_of(model, cards, layout, m):
    g, peak = cards.sum_bytes if m > 1 else WEIGHT, 0
    kept = kept_bytes(model, layout, layout.recompute)
    stored = "selective" if cards.flash or layout.recompute == "none" else "none"
    again = kept_bytes(model, layout, stored) - kept if layout.recompute == "full" or stored == "none" else 0
    for stage in {0, layout.p - 1}:
        chunks = kept_chunks(layout, m, stage) * model.L / layout.p / layout.v
        logits = 4 * layout.B * model.T * (model.V / layout.t + model.C) if stage == layout.p - 1 else 0
        peak = max(peak, state_bytes(model, layout, stage, g) + chunks * kept + again + logits)
    return peak


# ---- bytes on the wire, and their time

# A group of `size`, `stride` ranks apart, has per_node / stride members in a node. Rings in a node go at `within`;
# beyond it all adapters of the members in a node share the bytes. Each ring is (members - 1) messages in a node and, by
# trees, log2(nodes) between.
def wire_seconds(cards, sent, messages, size, stride):
    if size == 1:
        return 0
    members = max(1, min(size, cards.per_node // stride))
    nodes = math.ceil(size / members)
    rate = cards.within if nodes == 1 else min(cards.within, members * cards.between)
    return sent / rate + messages * MESSAGE_S * (members - 1 + math.ceil(math.log2(nodes)))


# Tensor parallel: 2 all-reduces of 2 B T C bytes in a layer's forward pass, 2 in its backward pass, 2 more if it is
# computed again; one each for embedding and classifier. A ring sends 2 (t - 1) / t of the bytes. Sequence parallel
# makes of each a reduce-scatter and an all-gather, the same bytes; two all-gathers more a layer, of what was not kept,
# go on while gradients are computed (2205.05198, section 4.2.2).
def tensor_wire(model, cards, layout, m):
    """Bytes that a card sends in a step; seconds of a micro-batch."""
    half = (layout.t - 1) / layout.t * 2 * layout.B * model.T * model.C
    layers, outside = model.L / layout.p, 2 if layout.p == 1 else 1
    calls = layers * (6 if layout.recompute == "full" else 4) + outside
    seconds = wire_seconds(cards, calls * 2 * half, calls * 2, layout.t, 1)
    return m * half * (2 * calls + 2 * layers * layout.sequence), seconds


# Pipeline: a stage in the middle sends v times 2 B T C / t bytes forward and as many backward, each t-th by one card
# (2104.04473, section 4.1); without sequence parallel neighbours then gather the whole.
def pipeline_wire(model, cards, layout, m):
    if layout.p == 1:
        return 0, 0
    values, stride = 2 * layout.B * model.T * model.C / layout.t, layout.t * layout.d
    rate = cards.within if layout.p * stride <= cards.per_node else cards.between
    seconds = 2 * layout.v * (values / rate + MESSAGE_S)
    if not layout.sequence:
        seconds += wire_seconds(cards, 2 * layout.v * values * (layout.t - 1), 2 * layout.v, layout.t, 1)
    return m * 2 * layout.v * values, seconds


# Data parallel, of n elements: gradients in a reduce-scatter, weights (stage 0: the sums) in an all-gather, each
# (d - 1) / d of n. Stages 2 and 3 send the gradients of each micro-batch, stage 3 gathers weights twice in each. While
# they travel, a card computes: the backward pass of the last micro-batch, of each in stage 2, all passes in stage 3. Of
# the shorter of the two a share is hidden. At the end the two copies of wte are summed (2104.04473; chapter 16).
def data_wire(model, cards, layout, m, forward, backward):
    """Bytes that a card sends in a step; seconds of them that nothing hides."""
    layers, outside = stage_elems(model, layout, 0)
    sent = WEIGHT if m == 1 or layout.zero >= 2 else cards.sum_bytes
    part, buckets = (layout.d - 1) / layout.d * (layers + outside), model.L // layout.p + 1
    time = lambda n: wire_seconds(cards, n, buckets, layout.d, layout.t)
    shown = lambda seconds, computing: seconds - cards.hidden * min(seconds, computing)
    gradients, weights = part * sent, part * WEIGHT
    if layout.zero == 3:
        return m * (2 * weights + gradients), m * shown(2 * time(weights) + time(gradients), forward + backward)
    if layout.zero == 2:
        return m * gradients + weights, m * shown(time(gradients), backward) + time(weights)
    tied = (outside - model.T * model.C) * sent if layout.p > 1 else 0
    tied_s = tied / (cards.within if layout.d * layout.t * layout.p <= cards.per_node else cards.between)
    if layout.zero == 1:
        return gradients + weights + tied, shown(time(gradients), backward) + time(weights) + tied_s
    return 2 * gradients + tied, shown(2 * time(gradients), backward) + tied_s


# ---- time

# Of a layer: FLOPs at the rate of large products, and after them the bytes of what is no product. Per element of
# B T C, where a value has 2 bytes and a mask of dropout 1:
#     forward    2 norms 8, 2 times dropout and residual sum 14: 22, which sequence parallel divides; GELU 16 / t
#     backward   16 and 10: 26 likewise; GELU 24 / t
# and of B NH T^2 / t, unless attention is flash: scores, softmax, dropout 13 forward, 19 backward.
def layer_seconds(model, cards, layout):
    """Forward; backward with what it computes again."""
    products, attention = (flops * layout.B * model.T / layout.t for flops in layer_flops(model))
    values, whole = layout.B * model.T * model.C, layout.t if layout.sequence else 1
    stored = layout.B * model.NH * model.T ** 2 / layout.t * (not cards.flash or layout.recompute == "none")
    flops_s, bytes_s = cards.products * cards.flops, cards.memory_share * cards.bytes_s
    forward = (products + attention) / flops_s + (values * (22 / whole + 16 / layout.t) + 13 * stored) / bytes_s
    backward = 2 * (products + attention) / flops_s + (values * (26 / whole + 24 / layout.t) + 19 * stored) / bytes_s
    again = {"none": 0, "selective": attention / flops_s + 13 * stored / bytes_s, "full": forward}
    return forward, backward + again[layout.recompute]


# The classifier, in the last stage: 2 B T C V / t FLOPs forward and 4 backward; 10 bytes of each logit.
def classifier_seconds(model, cards, layout):
    logits = layout.B * model.T * model.V / layout.t
    return 6 * logits * model.C / cards.products / cards.flops + 10 * logits / cards.memory_share / cards.bytes_s


# step = m (the slowest stage) + (p - 1) / v (a stage) + data + update: the bubble is (p - 1) / (v m) of the work
# (2104.04473, section 2.2). The update reads a gradient, reads and writes 12 bytes of state and writes a weight.
def cost_of(model, cards, layout, sequences):
    """What a step of so many sequences takes."""
    m = sequences // layout.d // layout.B
    layers = model.L // layout.p
    forward, backward = (layers * seconds for seconds in layer_seconds(model, cards, layout))
    tensor, tensor_s = tensor_wire(model, cards, layout, m)
    pipeline, pipeline_s = pipeline_wire(model, cards, layout, m)
    stage = forward + backward + tensor_s + pipeline_s
    slowest, bubble = stage + classifier_seconds(model, cards, layout), (layout.p - 1) / layout.v * stage
    data, data_s = data_wire(model, cards, layout, m, forward, backward)
    updated = sum(stage_elems(model, layout, 0)) / (layout.d if layout.zero else 1)
    update = updated * (cards.sum_bytes + 2 * STATE + WEIGHT) / cards.memory_share / cards.bytes_s
    seconds = m * slowest + bubble + data_s + update
    return Cost(seconds, memory_of(model, cards, layout, m), bubble / seconds, tensor, pipeline, data,
                step_flops(model, sequences * model.T) / seconds / cards.n / cards.flops)
