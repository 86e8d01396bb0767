// AdamW whose m and v have fewer than 32 bits, as plain loops: the oracle of
// llmc/optim/small_state.h.
#pragma once
#include <algorithm>
#include "llmc/optim/small_state.h"
#include "llmc/cpu/reference.h"

namespace reference {

// KEEP_BF16: AdamW, whose m and v are rounded up or down at random after each update.
template <class floatX>
void adamw_16bit(floatX* params, float* master, bf16* m, bf16* v, const floatX* grads, size_t n_elems,
                 const UpdateConstants& k, uint64_t seed, int64_t index) {
    const auto round = [&](bf16& to, float value, int state, size_t i) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        const uint16_t rounded = stochastic_bits(bits, hash_bits(seed_of_state(seed, state), index + i));
        memcpy((void*)&to, &rounded, 2);
    };
    for (size_t i = 0; i < n_elems; i++) {
        float mi = m[i], vi = v[i];
        adamw_update(params + i, master ? master + i : nullptr, &mi, &vi, grads + i, 1, k);
        round(m[i], mi, 0, i), round(v[i], vi, 1, i);
    }
}

// KEEP_8BIT (Dettmers et al. 2022, arXiv:2110.02861, sections 1.3 and 2.2): the values of the
// dynamic code, in ascending order. Each of 7 decades up to 1 is cut into equal parts, twice as
// many as the decade below, and has the middles of them; with signs, or without and twice as many.
inline std::vector<double> dynamic_code(bool has_signs) {
    std::vector<double> values = {0, 1};
    for (int decade = 0; decade < 7; decade++) {
        const int parts = (has_signs ? 1 : 2) << decade;
        const double high = std::pow(10.0, decade - 6), low = high / 10;
        for (int j = 0; j < parts; j++) {
            const double middle = low + (high - low) * (j + 0.5) / parts;
            values.push_back(middle);
            if (has_signs) values.push_back(-middle);
        }
    }
    std::sort(values.begin(), values.end());
    return values;
}
// Puts n values into a block: the scale is the one that is largest, whatever its sign; if there are
// two, the positive one. No positive value becomes 0 where the code has no signs, that of v.
inline void to_codes(StateBlock& block, const std::vector<double>& code, const float* values, int64_t n) {
    block.scale = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = std::fabs(values[i]), largest = std::fabs(block.scale);
        if (size > largest || (size == largest && values[i] > 0)) block.scale = values[i];
    }
    if (std::fabs(block.scale) < LEAST_STATE_SCALE) block.scale = 0;
    for (int64_t i = 0; i < n; i++) {
        const double share = block.scale == 0 ? 0 : (double)values[i] / block.scale;
        const auto nearer = [&](double a, double b) { return std::fabs(a - share) < std::fabs(b - share); };
        block.codes[i] = (uint8_t)(std::min_element(code.begin(), code.end(), nearer) - code.begin());
        if (code[0] == 0 && block.codes[i] == 0 && share > 0) block.codes[i] = 1;
    }
}

// Updates a slice of a bucket as the function of this name in optimizer_passes.h does, block after
// block.
template <class floatX>
void blocks_update(Optimizer, floatX* params, float* master, StateBlock* m, StateBlock* v, const floatX* grads,
                   int64_t n_elems, const std::vector<TensorRange>& ranges, const UpdateConstants& constants,
                   uint64_t seed = 0, int64_t index = 0) {
    const std::vector<double> m_code = dynamic_code(true), v_code = dynamic_code(false);
    for (int64_t at = 0; at < n_elems; at += STATE_BLOCK_ELEMS, m++, v++) {
        const int64_t n = std::min<int64_t>(STATE_BLOCK_ELEMS, n_elems - at);
        std::vector<float> m_values(n), v_values(n);
        for (int64_t i = 0; i < n; i++) {
            m_values[i] = (float)m_code[m->codes[i]] * m->scale;
            v_values[i] = (float)v_code[v->codes[i]] * v->scale;
            UpdateConstants k = constants;
            for (const TensorRange& range : ranges) {
                if (at + i < range.begin || at + i >= range.end) continue;
                if (!range.decayed) k.weight_decay = 0;
                adamw_update(params + at + i, master ? master + at + i : nullptr, &m_values[i], &v_values[i],
                             grads + at + i, 1, k, seed, index + at + i);
            }
        }
        to_codes(*m, m_code, m_values.data(), n), to_codes(*v, v_code, v_values.data(), n);
    }
}

}  // namespace reference
