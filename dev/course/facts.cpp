// The constants and tables of the code that ships, as JSON, for the pictures of the course
// (pictures.py): what is drawn is what the code computes.
//
//     build/course_facts
#include "dev/course/show.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/gemm_bf16.h"
#include "llmc/cpu/reference.h"
#include "llmc/base/random.h"
#include "llmc/optim/schedule.h"
#include "llmc/gpt2/tensors.h"
#include "llmc/data/tokenizer.h"

// tokenizer.h: the lengths in bytes of the parts of a word in GPT-2's vocabulary, after 0, 1, ...
// merges.
static void merges(const std::string& word) {
    Tokenizer gpt2;
    tokenizer_load(gpt2, "dev/data/gpt2_tokenizer.bin");
    std::vector<int> parts;
    for (char c : word) parts.push_back(gpt2.byte_token[(unsigned char)c]);
    for (int merged = 0;; merged++) {
        show_each("merges_" + std::to_string(merged), parts.size(),
                  [&](int64_t i) { return decode(gpt2, parts[i]).size(); });
        int best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts.size(); i++) {
            const int id = find_merge(gpt2, parts[i], parts[i + 1]);
            if (id >= 0 && (best < 0 || id < best)) best = id, at = i;
        }
        if (best < 0) return;
        parts[at] = best;
        parts.erase(parts.begin() + at + 1);
    }
}

// reference.h: GELU and its derivative from -5 to 4; the causal softmax of random scores of 12
// positions; a row of probabilities.
static void layers() {
    const int64_t points = 181, T = 12, HS = 4;
    std::vector<float> x(points), y(points), ones(points, 1), slope(points);
    for (int64_t i = 0; i < points; i++) x[i] = -5 + 0.05f * (float)i;
    reference::gelu_forward(y.data(), x.data(), points);
    reference::gelu_backward(slope.data(), ones.data(), x.data(), points);
    show_each("gelu", points, [&](int64_t i) { return y[i]; });
    show_each("gelu_slope", points, [&](int64_t i) { return slope[i]; });

    MersenneTwister rng(1);
    std::vector<float> qkv(T * 3 * HS), out(T * HS), lse(T);
    normal_fill(rng, qkv.data(), T * 3 * HS, 1.5f);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), 1, T, HS, 1);
    show_each("attention_p", T * T, [&](int64_t i) {
        const int64_t t = i / T, u = i % T;
        double score = 0;
        for (int64_t c = 0; c < HS; c++) score += (double)qkv[t * 3 * HS + c] * qkv[u * 3 * HS + HS + c];
        return u > t ? 0 : std::exp(score / std::sqrt((double)HS) - lse[t]);
    });
}

int main() {
    merges("unbelievable");
    layers();
    // gemm.h: how a product in fp32 is cut
    show("gemm_mr", GEMM_MR), show("gemm_nr", GEMM_NR), show("vec_floats", VEC_FLOATS);
    show("gemm_mc", GEMM_IN_PLACE.MC), show("gemm_nc", GEMM_IN_PLACE.NC), show("gemm_kc", GEMM_IN_PLACE.KC);
    show("attention_block", ATT_BLOCK);  // attention.h
    // tensors.h: the buckets of the 124M model on four processes, and the slice of each
    GPT2Config c;
    c.maxT = 1024, c.V = 50257, c.Vp = 50304, c.L = 12, c.NH = 12, c.C = 768;
    const ParameterLayout layout = parameter_layout(c, 4);
    show("zero_elems", layout.total_elems());
    show_each("zero_slice_elems", layout.buckets(), [&](int64_t bucket) { return layout.slice_elems(bucket); });
    // schedule.h: the rates of a run of 200 steps, of them 20 of warmup, from 1 to 0.1
    for (const Schedule& schedule : SCHEDULES)
        show_each(std::string("schedule_") + schedule.name, 200,
                  [&](int64_t step) { return learning_rate_at(schedule.name, step, 200, 20, 1.0, 0.1); });
}
