// The passes over memory of the optimizers that --optimizer names beside adamw (adamw.h). Each
// differs from AdamW's in its rule (optim/optimizers.h), and in what it keeps as m and v: nothing,
// fp32, bf16, or blocks of 8-bit codes (optim/small_state.h).
#pragma once
#include "llmc/cpu/adamw.h"
#include "llmc/optim/small_state.h"

// Stores m or v as the optimizer keeps them, in fp32 or bf16.
VEC_INLINE void store_state(float* state, vfloat values, size_t count, uint64_t, int64_t) {
    store_some(state, values, count);
}
VEC_INLINE void store_state(bf16* state, vfloat values, size_t count, uint64_t seed, int64_t index) {
    store_stochastically((uint16_t*)state, values, count, seed, index);
}

// Updates elements i to i + count - 1, at most a vector, of params, m and v by a rule of
// optimizers.h, with grads; also of master, if it is not null. m and v are null if the optimizer
// does not keep them. What is rounded stochastically gets random bits that follow from seed and
// from index, that of element 0 among all parameters.
template <class Rule, class floatX, class State, class floatG>
VEC_INLINE void update_vector(floatX* params, float* master, State* m, State* v, const floatG* grads, size_t i,
                              size_t count, const UpdateConstants& constants, const RuleConstants& k, uint64_t seed,
                              int64_t index) {
    const vfloat g = load_some(grads + i, count) * constants.grad_scale;
    vfloat mi = m ? load_some(m + i, count) : vfloat{}, vi = v ? load_some(v + i, count) : vfloat{};
    vfloat p = master ? load_some(master + i, count) : load_some(params + i, count);
    Rule::update(p, mi, vi, g, k);
    if (m) store_state(m + i, mi, count, seed_of_state(seed, 0), index + i);
    if (v) store_state(v + i, vi, count, seed_of_state(seed, 1), index + i);
    store_weights(params + i, master ? master + i : nullptr, p, count, constants.round_to_nearest, seed, index + i);
}

// Updates all n_elems elements of one tensor by a rule.
template <class Rule, class floatX, class State, class floatG>
void update_by(floatX* params, float* master, State* m, State* v, const floatG* grads, size_t n_elems,
               const UpdateConstants& constants, uint64_t seed, int64_t index) {
    const RuleConstants k = rule_constants(constants, true);
    parallel_ranges(n_elems, 1 << 15, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](size_t i, size_t count) {
            update_vector<Rule>(params, master, m, v, grads, begin + i, count, constants, k, seed, index);
        });
    });
}

// Updates the n_elems elements of a slice of a bucket, whose m and v are in 8 bits, by a rule: each
// block becomes fp32, is updated, and becomes a block again. ranges: the tensors in the slice.
template <class Rule, class floatX, class floatG>
void update_blocks_by(floatX* params, float* master, StateBlock* m, StateBlock* v, const floatG* grads, int64_t n_elems,
                      const std::vector<TensorRange>& ranges, const UpdateConstants& constants, uint64_t seed,
                      int64_t index) {
    const RuleConstants k[] = {rule_constants(constants, false), rule_constants(constants, true)};
    parallel_ranges(blocks_of(n_elems), 128, [&](int64_t begin, int64_t end) {
        BlockValues mi, vi;
        for (int64_t block = begin; block < end; block++) {
            const int64_t first = block * STATE_BLOCK_ELEMS, last = first + STATE_BLOCK_ELEMS;
            decode_block<true>(mi, m[block]), decode_block<false>(vi, v[block]);
            for (const TensorRange& range : ranges) {
                const int64_t low = std::max(range.begin, first), high = std::min(range.end, last);
                if (low >= high) continue;
                for_each_vector(high - low, [&](size_t i, size_t count) {
                    update_vector<Rule>(params + first, master ? master + first : nullptr, mi, vi, grads + first,
                                        low - first + i, count, constants, k[range.decayed], seed, index + first);
                });
            }
            encode_block<true>(m[block], mi), encode_block<false>(v[block], vi);
        }
    });
}

// Updates n_elems elements of one tensor. m and v are in the optimizer's format.
template <class floatX, class floatG>
void optimizer_update(Optimizer optimizer, floatX* params, float* master, void* m, void* v, const floatG* grads,
                      size_t n_elems, const UpdateConstants& k, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[optimizer], n_elems, master, sizeof(floatX), sizeof(floatG)));
    with_optimizer(optimizer, [&](auto constant) {
        typedef StateType<constant.value> State;
        if constexpr (OPTIMIZERS[constant.value].keeps.m == KEEP_8BIT) return;  // blocks_update()
        else update_by<RuleOf<constant.value>>(params, master, (State*)m, (State*)v, grads, n_elems, k, seed, index);
    });
}
// Updates the n_elems elements of a slice of a bucket, for optimizers whose m and v are in blocks.
template <class floatX, class floatG>
void blocks_update(Optimizer optimizer, floatX* params, float* master, StateBlock* m, StateBlock* v,
                   const floatG* grads, int64_t n_elems, const std::vector<TensorRange>& ranges,
                   const UpdateConstants& k, uint64_t seed = 0, int64_t index = 0) {
    const Range range(work::update(OPTIMIZERS[optimizer], n_elems, master, sizeof(floatX), sizeof(floatG)));
    with_optimizer(optimizer, [&](auto constant) {
        if constexpr (OPTIMIZERS[constant.value].keeps.m == KEEP_8BIT)
            update_blocks_by<RuleOf<constant.value>>(params, master, m, v, grads, n_elems, ranges, k, seed, index);
    });
}
