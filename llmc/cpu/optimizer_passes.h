// The passes over memory of the optimizers that --optimizer names beside adamw (adamw.h). Each
// differs from AdamW's in its rule (optim/optimizers.h), and in what it keeps as m and v: nothing,
// fp32, bf16, or blocks of 8-bit codes (optim/small_state.h). All become fp32 in the first-level
// cache, where one pass for each rule changes them.
#pragma once
#include "llmc/cpu/adamw.h"
#include "llmc/optim/small_state.h"

// The pass of a rule over n weights p, their gradients g times grad_scale, and m and v, null if the
// optimizer does not keep them.
typedef void RulePass(float* p, float* m, float* v, const float* g, size_t n, float grad_scale, const RuleConstants& k);
template <class Rule>
void rule_pass(float* p, float* m, float* v, const float* g, size_t n, float grad_scale, const RuleConstants& k) {
    for_each_vector(n, [&](size_t i, size_t count) {
        const vfloat gi = rounded(load_some(g + i, count) * grad_scale);
        vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
        vfloat pi = load_some(p + i, count);
        Rule::update(pi, mi, vi, gi, k);
        if (m) store_some(m + i, mi, count);
        if (v) store_some(v + i, vi, count);
        store_some(p + i, pi, count);
    });
}
inline RulePass* pass_of(Optimizer optimizer) {
    RulePass* pass = nullptr;
    with_optimizer(optimizer, [&](auto constant) { pass = rule_pass<RuleOf<constant.value>>; });
    return pass;
}

// Where numbers lie whose type is known when the program runs: fp32 or bf16. So one pass is
// compiled for all types.
struct NumbersAt {
    void* data;  // null: there are none
    bool sixteen_bits;

    NumbersAt(void* data, bool sixteen_bits) : data(data), sixteen_bits(sixteen_bits) {}
    template <class T>
    NumbersAt(T* elems) : NumbersAt((void*)elems, sizeof(T) == 2) {}
    NumbersAt from(int64_t i) const {
        NumbersAt moved = *this;
        if (data) moved.data = (char*)data + i * (sixteen_bits ? 2 : 4);
        return moved;
    }
};
// The values of n elements in fp32: where they lie, or if they are bf16, in `converted`.
inline float* values_of(NumbersAt elems, BlockValues& converted, int64_t n) {
    if (!elems.sixteen_bits) return (float*)elems.data;
    copy_values(converted, (const bf16*)elems.data, n);
    return converted;
}
// Stores n values as bf16, rounded stochastically (store_stochastically() in adamw.h).
inline void store_stochastically(NumbersAt elems, const float* values, int64_t n, uint64_t seed, int64_t index) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, 4);
        ((uint16_t*)elems.data)[i] = stochastic_bits(bits, hash_bits(seed, index + i));
    }
}

// Updates n elements, at most a block, of params, m and v with grads; also of master, if it is not
// null. They become fp32 in the first-level cache, if they are not, and are rounded to their types
// when the rule has passed. index: of the first element among all parameters.
inline void update_block(RulePass* pass, NumbersAt params, float* master, NumbersAt m, NumbersAt v, NumbersAt grads,
                         int64_t n, const UpdateConstants& constants, const RuleConstants& k, uint64_t seed,
                         int64_t index) {
    BlockValues p_values, m_values, v_values, g_values;
    float* const p = master ? master : values_of(params, p_values, n);
    float* const m32 = m.data ? values_of(m, m_values, n) : nullptr;
    float* const v32 = v.data ? values_of(v, v_values, n) : nullptr;
    pass(p, m32, v32, values_of(grads, g_values, n), n, constants.grad_scale, k);
    if (m32 == m_values) store_stochastically(m, m32, n, seed_of_state(seed, 0), index);
    if (v32 == v_values) store_stochastically(v, v32, n, seed_of_state(seed, 1), index);
    if (params.data == p) return;
    if (!params.sixteen_bits) copy_values((float*)params.data, p, n);
    else if (!master && !constants.round_to_nearest) store_stochastically(params, p, n, seed, index);
    else copy_values((bf16*)params.data, p, n);
}

// All n_elems elements of one tensor, whose m and v are fp32 or bf16.
inline void update_by(RulePass* pass, NumbersAt params, float* master, NumbersAt m, NumbersAt v, NumbersAt grads,
                      int64_t n_elems, const UpdateConstants& constants, uint64_t seed, int64_t index) {
    const RuleConstants k = rule_constants(constants, true);
    const bool all_fp32 = !params.sixteen_bits && !m.sixteen_bits && !grads.sixteen_bits;
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        const int64_t step = all_fp32 ? end - begin : STATE_BLOCK_ELEMS;
        for (int64_t i = begin; i < end; i += step)
            update_block(pass, params.from(i), master ? master + i : nullptr, m.from(i), v.from(i), grads.from(i),
                         std::min(step, end - i), constants, k, seed, index + i);
    });
}

// Updates n_elems elements of one tensor. m and v are in the optimizer's format, which has no
// blocks.
template <class floatX, class floatG>
void optimizer_update(Optimizer optimizer, floatX* params, float* master, void* m, void* v, const floatG* grads,
                      size_t n_elems, const UpdateConstants& k, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[optimizer], n_elems, master, sizeof(floatX), sizeof(floatG)));
    const bool sixteen_bits = OPTIMIZERS[optimizer].keeps.m == KEEP_BF16;
    update_by(pass_of(optimizer), params, master, {m, sixteen_bits}, {v, sixteen_bits}, grads, n_elems, k, seed, index);
}

// Updates the n_elems elements of a slice of a bucket, for optimizers whose m and v are in blocks
// of 8-bit codes. ranges: the tensors in the slice.
inline void update_blocks_by(RulePass* pass, NumbersAt params, float* master, StateBlock* m, StateBlock* v,
                             NumbersAt grads, int64_t n_elems, const std::vector<TensorRange>& ranges,
                             const UpdateConstants& constants, uint64_t seed, int64_t index) {
    const RuleConstants k[] = {rule_constants(constants, false), rule_constants(constants, true)};
    parallel_ranges(blocks_of(n_elems), 128, [&](int64_t begin, int64_t end) {
        BlockValues mi, vi;
        for (int64_t block = begin; block < end; block++) {
            const int64_t first = block * STATE_BLOCK_ELEMS, last = first + STATE_BLOCK_ELEMS;
            decode_block<true>(mi, m[block]), decode_block<false>(vi, v[block]);
            for (const TensorRange& tensor : ranges) {
                const int64_t low = std::max(tensor.begin, first), high = std::min(tensor.end, last);
                if (low < high)
                    update_block(pass, params.from(low), master ? master + low : nullptr, mi + low - first,
                                 vi + low - first, grads.from(low), high - low, constants, k[tensor.decayed], seed,
                                 index + low);
            }
            encode_block<true>(m[block], mi), encode_block<false>(v[block], vi);
        }
    });
}
template <class floatX, class floatG>
void blocks_update(Optimizer optimizer, floatX* params, float* master, StateBlock* m, StateBlock* v,
                   const floatG* grads, int64_t n_elems, const std::vector<TensorRange>& ranges,
                   const UpdateConstants& constants, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[optimizer], n_elems, master, sizeof(floatX), sizeof(floatG)));
    update_blocks_by(pass_of(optimizer), params, master, m, v, grads, n_elems, ranges, constants, seed, index);
}
