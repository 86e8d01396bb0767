// Tests of m and v in fewer than 32 bits (llmc/optim/small_state.h): the 8-bit code, the blocks,
// and their map.
#pragma once
#include <set>
#include "dev/test/several.h"
#include "llmc/cpu/optimizer_passes.h"
#include "llmc/cpu/reference_optimizers.h"

typedef std::vector<float> Floats;

// m (is_signed) or v of n elements, in the format of an optimizer, made from fp32 values.
struct StoredState {
    Kept kept;
    bool is_signed;
    std::vector<bf16> halves;
    std::vector<StateBlock> blocks;

    StoredState(Kept kept, bool is_signed, Floats values) : kept(kept), is_signed(is_signed) {
        if (kept == KEEP_BF16) halves.assign(values.begin(), values.end());
        if (kept != KEEP_8BIT) return;
        blocks.resize(blocks_of((int64_t)values.size()));
        values.resize(blocks.size() * STATE_BLOCK_ELEMS);
        encode_blocks(blocks, values, is_signed);
    }
    void* data() { return kept == KEEP_BF16 ? (void*)halves.data() : (void*)blocks.data(); }
    Floats values(int64_t n) const {
        Floats all(halves.begin(), halves.end());
        if (kept == KEEP_8BIT) decode_blocks(all, blocks, is_signed);
        all.resize(n);
        return all;
    }
};

// How far rounding may move x: half the distance between its neighbours in the code. A positive
// value of v is not rounded to 0.
inline double half_gap(const std::vector<double>& code, double x, bool is_signed) {
    const auto above = std::upper_bound(code.begin(), code.end(), x);
    if (above == code.end()) return 1e-7;
    if (above == code.begin()) return 0.9 / 128;  // of -1, which is not in the code
    if (!is_signed && *(above - 1) == 0) return *above;
    return (*above - *(above - 1)) / 2;
}

template <bool SIGNED>
static void code_values() {
    start_test(
        format("8 bits, code of %s: its values are those of the paper, each the code of itself", SIGNED ? "m" : "v"));
    typedef DynamicCode<SIGNED> Code;
    const std::vector<double> code = reference::dynamic_code(SIGNED);
    EXPECT(code.size() == 256);
    for (int c = 0; c < 256; c++) {
        EXPECT(std::fabs(Code::value(c) - code[c]) <= 6e-8 * std::fabs(code[c]));
        EXPECT(Code::nearest(Code::value(c)) == c);
    }
    start_test(format("8 bits, code of %s: a value becomes the nearest one", SIGNED ? "m" : "v"));
    for (int i = 0; i < 200000; i++)
        for (double sign : {1.0, -1.0}) {
            const float x = (float)(sign * std::pow(10.0, -8.0 * i / 200000));
            if (!SIGNED && x < 0) continue;
            const double error = std::fabs(Code::value(Code::nearest(x)) - x);
            EXPECT(error <= half_gap(code, x, SIGNED) * (1 + 1e-5));
        }
    EXPECT(Code::nearest(1e-30f) == (SIGNED ? 127 : 1) && Code::nearest(0.0f) == (SIGNED ? 127 : 0));
}

// n values over so many decades, one of which is the largest: 3, or -3.
static Floats block_values(int64_t n, double decades, bool is_signed, double largest) {
    Floats values = random_values(n), size = random_values(n);
    for (int64_t i = 0; i < n; i++) {
        values[i] = std::copysign((float)(2 * std::pow(10.0, decades * (size[i] - 1) / 2)), values[i]);
        if (!is_signed) values[i] = std::fabs(values[i]);
    }
    values[n / 2] = (float)largest;
    return values;
}
static void blocks() {
    start_test("8 bits: blocks are within the bound of the code, keep their largest element, and stay as they are");
    for (bool is_signed : {true, false})
        for (int64_t n : {1, 16, 255, 256, 257, 1000})
            for (double decades : {0.0, 1.0, 9.0, 30.0})
                for (double largest : {3.0, is_signed ? -3.0 : 3.0}) {
                    const std::vector<double> code = reference::dynamic_code(is_signed);
                    const Floats values = block_values(n, decades, is_signed, largest);
                    const StoredState stored(KEEP_8BIT, is_signed, values);
                    const Floats decoded = stored.values(n);
                    for (int64_t i = 0; i < n; i++) {
                        const double scale = stored.blocks[i / STATE_BLOCK_ELEMS].scale;
                        const double error = std::fabs((double)decoded[i] - values[i]) / std::fabs(scale);
                        EXPECT(error <= half_gap(code, values[i] / scale, is_signed) * (1 + 1e-5));
                        EXPECT(std::fabs(values[i]) <= std::fabs(scale));
                    }
                    EXPECT(decoded[n / 2] == values[n / 2]);
                    const StoredState again(KEEP_8BIT, is_signed, decoded);
                    EXPECT(memcmp(stored.blocks.data(), again.blocks.data(),
                                  stored.blocks.size() * sizeof(StateBlock)) == 0);
                }
    start_test("8 bits: zeros, the smallest and the largest blocks; two largest elements; what is positive stays so");
    for (float x : {0.0f, 1e-38f, 1e-31f, 1e-29f, 1e30f}) {
        const Floats both = {x, -x, x * 1e-6f}, decoded = StoredState(KEEP_8BIT, true, both).values(3);
        const float kept = x < LEAST_STATE_SCALE ? 0.0f : x;
        EXPECT(decoded[0] == kept && std::fabs(decoded[1] + kept) <= kept * 0.9 / 128 * (1 + 1e-5));
        const Floats roots = StoredState(KEEP_8BIT, false, {x, x * 1e-12f}).values(2);
        EXPECT(roots[0] == kept && (kept == 0 || roots[1] > 0) && roots[1] <= kept * 3.3e-7f);
    }
}

// Each element of which a process keeps state is in one block, and no block is in two slices.
static void block_maps() {
    start_test("8 bits: blocks cover the slices of a process, and are the same in both stages");
    for (int64_t P : {1, 2, 3, 5}) {
        const ParameterLayout layout = parameter_layout({16, 97, 128, 3, 2, 24}, P);
        std::set<std::pair<int64_t, int64_t>> whole, of_slices;  // first element among all parameters, elements
        const auto add = [&](auto& blocks, const BucketSlice& slice) {
            const BlockMap map = block_map(layout, slice);
            int64_t next = 0;
            for (int64_t block = 0; block < map.blocks(); block++) {
                int elems = 0;
                EXPECT(map.begin(block, elems) == next && elems > 0 && elems <= STATE_BLOCK_ELEMS);
                int64_t bucket = 0;
                while (next >= slice.state_begin(layout, bucket + 1)) bucket++;
                EXPECT(block >= map.first_block(bucket) &&
                       block < map.first_block(bucket) + map.slices * map.slice_blocks(bucket));
                const int64_t at = slice.begin(layout, bucket) + next - slice.state_begin(layout, bucket);
                EXPECT(at / layout.slice_elems(bucket) == (at + elems - 1) / layout.slice_elems(bucket));
                blocks.insert({layout.bucket_begin[bucket] + at, elems});
                next += elems;
            }
            EXPECT(next == slice.state_elems(layout));
        };
        add(whole, {});
        for (int64_t r = 0; r < P; r++) add(of_slices, {P, r});
        EXPECT(whole == of_slices);
    }
}

// v near 1, whose share of change is 1/1000 per step, follows the gradient on average; rounded to
// nearest it would not move.
static void stochastic_v() {
    start_test("bf16 m and v: v follows the gradients where rounding to nearest would keep it");
    const int64_t n = 4096;
    Floats p(n), g(n, 2.0f);
    StoredState m(KEEP_BF16, true, Floats(n)), v(KEEP_BF16, false, Floats(n, 1.0f));
    float* const no_master = nullptr;
    for (int64_t t = 1; t <= 100; t++) {
        const UpdateConstants k = update_constants(1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, 1.0f, t);
        ::optimizer_update(ADAMW16BIT, p.data(), no_master, m.data(), v.data(), g.data(), n, k, t, 0);
    }
    double mean = 0;
    for (float x : v.values(n)) mean += x / n;
    const double exact = 4 - 3 * std::pow(0.999, 100);
    EXPECT((float)bf16(1.0f + 0.003f) == 1.0f);  // the first change, rounded to nearest
    EXPECT(std::fabs(mean - exact) < 0.01 * (exact - 1));
}

inline void small_state() {
    code_values<true>(), code_values<false>();
    blocks(), block_maps(), stochastic_v();
}
