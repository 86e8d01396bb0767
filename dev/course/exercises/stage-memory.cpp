// ----- task
// What a card needs for a stage of a pipeline by 1F1B (chapter 25), in bytes. The model has L
// layers of C channels, its embeddings do not count. There are p stages, numbered from 0, of L / p
// layers; each is divided by tensors among t cards, and there are d such pipelines with ZeRO-1. A
// step has m micro-batches of B sequences of T tokens.
//
// A layer has 12 C^2 + 13 C weights. Of a card are a t-th of 12 C^2 + 7 C, and all of the 6 C that
// are norms and the biases of sums. Each takes 2 bytes, its gradient 4; 12 bytes of state are
// divided among the d.
//
// Of each micro-batch on its way a layer keeps B T C (10 + 24 / t) bytes. Stage s has p - s
// micro-batches on their way, but never more than there are.
//
// bytes (2): those of weights, gradients and state; those of activations.
void stage_memory(float* bytes, int stage, int L, int C, int B, int T, int d, int p, int t, int m) {
    // your code
}

// ----- solution
void stage_memory(float* bytes, int stage, int L, int C, int B, int T, int d, int p, int t, int m) {
    const double layers = (double)L / p;
    const double elems = layers * ((12.0 * C * C + 7.0 * C) / t + 6.0 * C);
    const double kept = std::min(p - stage, m);
    bytes[0] = (float)(2 * elems + 4 * elems + 12 * elems / d);
    bytes[1] = (float)(kept * layers * B * T * C * (10 + 24.0 / t));
}

// ----- mistakes
//     not-late: std::min(p - stage, m) ==> std::min(p + 0 * stage, m)
//     one-kept: std::min(p - stage, m) ==> 1 + 0 * stage + 0 * m
//     too-many: std::min(p - stage, m) ==> p - stage + 0 * m
//     all-layers: kept * layers ==> kept * L
//     zero-2: 4 * elems + 12 * elems / d ==> 4 * elems / d + 12 * elems / d
//     zero-0: 12 * elems / d ==> 12 * elems + 0 * d
//     norms: ((12.0 * C * C + 7.0 * C) / t + 6.0 * C) ==> (12.0 * C * C + 13.0 * C) / t
//     sequence: (10 + 24.0 / t) ==> 34.0 / t

// ----- judge
#include "dev/course/exercises/judge.h"
struct Layout {
    int L, C, B, T, d, p, t, m;
};
static Arrays bytes_of(const Layout& l, int stage, const Key& wrong) {
    const double C = l.C, layers = (double)l.L / l.p, t = l.t;
    const double elems = layers * (wrong == "norms" ? (12 * C + 13) * C / t : (12 * C + 7) * C / t + 6 * C);
    double kept = std::min(l.p - stage, l.m);
    if (wrong == "not-late") kept = std::min(l.p, l.m);
    if (wrong == "one-kept") kept = 1;
    if (wrong == "too-many") kept = l.p - stage;
    const double gradients = wrong == "zero-2" ? 4.0 / l.d : 4, state = wrong == "zero-0" ? 12 : 12.0 / l.d;
    const double values = wrong == "sequence" ? 34 / t : 10 + 24 / t;
    const double of_layers = wrong == "all-layers" ? l.L : layers;
    return {{elems * (2 + gradients + state), kept * of_layers * l.B * l.T * C * values}};
}

void judge(Judge& j, decltype(task::stage_memory)* stage_memory) {
    j.hints = {{"not-late", "stage s has p - s micro-batches on their way; only stage 0 has p."},
               {"one-kept", "between forward and backward pass of one micro-batch others go forward: p - s are kept."},
               {"too-many", "a step of m micro-batches never has more than m on their way."},
               {"all-layers", "a stage has L / p layers, and keeps values of these alone."},
               {"zero-2", "ZeRO-1 divides the state; gradients are divided from stage 2 on."},
               {"zero-0", "ZeRO-1 divides the 12 bytes of state by d."},
               {"norms", "norms and biases of sums, 6 C of a layer, are on all t cards."},
               {"sequence", "without sequence parallel 10 of the bytes are on all t cards: 10 + 24 / t."}};
    for (const Layout& l : {Layout{12, 768, 4, 1024, 1, 1, 1, 8}, Layout{24, 1024, 2, 512, 4, 4, 2, 8},
                            Layout{48, 1600, 1, 1024, 2, 8, 5, 3}})
        for (int stage = 0; stage < l.p; stage++) {
            j.sizes("L %d, C %d, stage %d of %d, t %d, d %d, m %d", l.L, l.C, stage, l.p, l.t, l.d, l.m);
            std::vector<float> bytes = begins(2);
            stage_memory(bytes.data(), stage, l.L, l.C, l.B, l.T, l.d, l.p, l.t, l.m);
            j.check({{"bytes", {2}, bytes}},
                    [&, stage = stage](const Key& wrong) -> Arrays { return bytes_of(l, stage, wrong); });
        }
}
