// Gradients in 8 bits or in 1 on their way between processes (--compress-gradients), with error
// feedback.
//
// A block of 256 elements x travels as one scale and a code for each element:
//
//     8bit    the dynamic code of optim/small_state.h              260 bytes, 0.254 of fp32's 1024
//     1bit    the sign of x; the scale is the mean of |x|           36 bytes, 0.035 of them
//
// A sign says little. What it leaves out is not lost but late: the sender keeps the difference, the
// residual e, and adds it to what it sends next (Seide et al. 2014,
// doi:10.21437/Interspeech.2014-274, section 3.1; Karimireddy et al. 2019, arXiv:1901.09847):
//
//     p = g + e,    sends c = code(p),    keeps e = p - value(c)
//
// so that all that was sent so far is the sum of all gradients, less the one residual that waits.
//
// The sum of P processes takes two hops (Tang et al. 2021, 1-bit Adam, arXiv:2102.02888, section 4;
// Zheng et al. 2019, arXiv:1905.10936). In an all-to-all every rank sends slice r of a bucket to
// rank r, which adds the values that arrive, in the order of ranks. Then rank r codes that sum,
// with a residual of its own, and all gather the codes: every rank has the same bits. In ZeRO stage
// 1 the second hop is that of the updated weights, which are not compressed.
//
// AdamW divides by the root of v, the mean of g^2. Squares of codes are no squares of gradients: of
// the errors that cancel in the sum of gradients, none does there. So 1-bit Adam trains as usual
// at first (--compress-warmup), and then keeps v as it is: what is left, m, is linear in g. There
// it codes m; here g is coded, which is m before its running mean, for m exists in slices alone in
// stage 1, and clipping comes before it.
//
// Then, too, nothing holds back a gradient that v has not seen. In AdamW v is at least (1 - beta2)
// g^2, so |g| is at most sqrt(v / (1 - beta2)). Sums of signs are held to that: a word that the
// warmup never met does not leap, and where v is 0 (padding, positions beyond T), a sign, which has
// no 0, moves nothing.
#pragma once
#include "llmc/optim/small_state.h"

enum Compression { NOT_COMPRESSED, IN_8_BITS, IN_1_BIT };

struct SignBlock {
    float scale;
    uint8_t negative[STATE_BLOCK_ELEMS / 8];  // one bit for each element, the first the lowest
};
static_assert(sizeof(SignBlock) == 36 && sizeof(StateBlock) == 260, "no padding");

// Bytes of the codes of n elements. The last block has its whole length.
inline int64_t code_bytes(Compression kind, int64_t n) {
    return blocks_of(n) * (int64_t)(kind == IN_1_BIT ? sizeof(SignBlock) : sizeof(StateBlock));
}

// The value of element i of a block.
HOST_DEVICE inline float sign_value(const SignBlock& block, int i) {
    return block.negative[i / 8] >> i % 8 & 1 ? -block.scale : block.scale;
}

// x, or a number of its sign as large as AdamW could see beside this v; limit: 1 / (1 - beta2).
HOST_DEVICE inline float held_within(float x, float v, float limit) {
    const float most = sqrtf(v * limit);
    return x > most ? most : x < -most ? -most : x;
}

// What a process keeps of gradients that it sends compressed, and the codes on their way.
struct CompressedGradients {
    Compression kind = NOT_COMPRESSED;
    bool on = false;                // in this step: several processes, and the warmup is over
    float limit = 0;                // of held_within()
    float* residual = nullptr;      // layout.total_elems()
    float* sum_residual = nullptr;  // of this rank's slices of the sums; null in ZeRO stage 1
    // Codes of one bucket, a slice for each process: those that this process sends to the others,
    // what they send to it, and those of all sums.
    char *sent = nullptr, *received = nullptr, *sums = nullptr;
    int64_t exchanging = -1, gathering = -1;  // the bucket in the first hop and the one in the second; -1: none
};

// Bytes of `sent`, of `received` and of `sums`: the largest bucket's.
inline int64_t bucket_code_bytes(Compression kind, const ParameterLayout& layout) {
    const int64_t L = layout.config.L;
    return layout.processes * code_bytes(kind, std::max(L > 0 ? layout.slice_elems(0) : 0, layout.slice_elems(L)));
}
// Bytes of the codes of one slice of every bucket: what a process sends to each other in one hop.
inline int64_t slice_code_bytes(Compression kind, const ParameterLayout& layout) {
    int64_t bytes = 0;
    for (int64_t b = 0; b < layout.buckets(); b++) bytes += code_bytes(kind, layout.slice_elems(b));
    return bytes;
}
