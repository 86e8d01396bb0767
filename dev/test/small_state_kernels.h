// Part of test_gpt2.cu: the kernels of optimizers whose m and v are in fewer than 32 bits, against
// reference_optimizers.h, for a process that keeps all slices of the buckets, or one of three.
#pragma once

// 1 for an element of a tensor, 0 for padding, which the kernels update as well: 0 stays 0.
static Floats tensor_mask(const ParameterLayout& layout) {
    Floats mask(layout.total_elems());
    for (int64_t b = 0; b < layout.buckets(); b++)
        for (const TensorRange& range : tensor_ranges(layout, b, 0, layout.bucket_elems(b)))
            std::fill_n(&mask[layout.bucket_begin[b] + range.begin], range.end - range.begin, 1.0f);
    return mask;
}
static Floats masked(Floats values, const Floats& mask) {
    for (size_t i = 0; i < values.size(); i++) values[i] = mask[i] > 0 ? values[i] : 0.0f;
    return values;
}

// m or v as earlier steps would leave it, in bf16 or in blocks.
struct SmallStates {
    std::vector<bf16> halves;
    std::vector<StateBlock> blocks;

    SmallStates(bool in_blocks, bool is_signed, const BlockMap& map, const Floats& mask) {
        Floats all = masked(random_values(mask.size(), 0.01), mask);
        if (!is_signed) all = UpdatedModel::squares_of(all);
        if (!in_blocks) halves.assign(all.begin(), all.end());
        for (int64_t block = 0; in_blocks && block < map.blocks(); block++) {
            int elems = 0;
            const int64_t begin = map.begin(block, elems);
            Floats some(&all[begin], &all[begin] + elems);
            some.resize(STATE_BLOCK_ELEMS);
            blocks.resize(block + 1);
            std::vector<StateBlock> one(1);
            encode_blocks(one, some, is_signed);
            blocks[block] = one[0];
        }
    }
    // Sums in another order may lead to the next value, in few places; scales are fp32.
    void check(const SmallStates& other) const {
        int64_t different = 0;
        const auto compare = [&](int64_t a, int64_t b) { EXPECT(std::abs(a - b) <= 1), different += a != b; };
        const auto bits = [](bf16 x) {
            uint16_t u;
            memcpy(&u, &x, 2);
            return u;
        };
        for (size_t i = 0; i < halves.size(); i++) compare(bits(halves[i]), bits(other.halves[i]));
        for (size_t b = 0; b < blocks.size(); b++) {
            EXPECT(std::fabs(blocks[b].scale - other.blocks[b].scale) <= 1e-6 * std::fabs(blocks[b].scale));
            for (int i = 0; i < STATE_BLOCK_ELEMS; i++) compare(blocks[b].codes[i], other.blocks[b].codes[i]);
        }
        EXPECT(different <= 3);
    }
};

// What the CPU trainer does with its slices of the buckets, by the plain loops.
static void update_slices(Optimizer o, Floats& p, SmallStates& m, SmallStates& v, const Floats& grads,
                          const ParameterLayout& layout, const BucketSlice& slice, const UpdateConstants& constants) {
    const BlockMap map = block_map(layout, slice);
    float* const no_master = nullptr;
    for (int64_t b = 0; b < layout.buckets(); b++)
        for (int64_t s = 0; s < map.slices; s++) {
            const int64_t elems = layout.slice_elems(b), begin = slice.begin(layout, b) + s * elems;
            const int64_t at = layout.bucket_begin[b] + begin, kept = slice.state_begin(layout, b) + s * elems;
            const auto ranges = tensor_ranges(layout, b, begin, begin + elems);
            const int64_t block = map.first_block(b) + s * map.slice_blocks(b);
            if (!m.blocks.empty())
                reference::blocks_update(o, &p[at], no_master, &m.blocks[block], &v.blocks[block], &grads[at], elems,
                                         ranges, constants, 7, at);
            for (size_t r = 0; r < ranges.size() && m.blocks.empty(); r++) {
                UpdateConstants k = constants;
                if (!ranges[r].decayed) k.weight_decay = 0;
                const int64_t i = ranges[r].begin;
                reference::optimizer_update(o, &p[at + i], no_master, &m.halves[kept + i], &v.halves[kept + i],
                                            &grads[at + i], ranges[r].end - i, k, 7, at + i);
            }
        }
}

static void small_state_kernel(Optimizer o, const BucketSlice& slice) {
    start_test(format("%s: the kernel, of %s", OPTIMIZERS[o].name, slice.parts > 1 ? "one slice of 3" : "all slices"));
    const ParameterLayout layout = parameter_layout({24, 37, 128, 2, 2, 40}, 3);
    const BlockMap map = block_map(layout, slice);
    const SliceMap mine = slice_map(layout, slice);
    const bool in_blocks = OPTIMIZERS[o].keeps.m == KEEP_8BIT;
    const int64_t n = layout.total_elems(), kept = slice.state_elems(layout);
    const Floats mask = tensor_mask(layout);
    const Floats params = masked(random_floatX(n), mask), grads = masked(random_floatX(n, 0.1), mask);
    Floats start(kept), own_mask(kept), p = params;
    for (int64_t i = 0; i < kept; i++) start[i] = params[mine.index(i)], own_mask[i] = mask[mine.index(i)];
    SmallStates m(in_blocks, true, map, own_mask), v(in_blocks, false, map, own_mask), new_m = m, new_v = v;
    Array d_params{params}, d_grads{grads};
    Array32 d_master{start};
    float* const master = HALF ? d_master.data : nullptr;
    UpdateSettings settings = clipping_rule();
    StepResults results;
    results.compute(d_grads.data, mine, settings);
    const DecayRanges decayed = decay_ranges(layout);
    const auto run = [&](auto& states_m, auto& states_v, auto update) {
        DeviceArray<std::decay_t<decltype(states_m[0])>> d_m(states_m), d_v(states_v);
        update(d_m.data, d_v.data);
        copy_to_host(states_m.data(), d_m.data, states_m.size() * sizeof(states_m[0]), stream);
        copy_to_host(states_v.data(), d_v.data, states_v.size() * sizeof(states_v[0]), stream);
    };
    if (in_blocks)
        run(new_m.blocks, new_v.blocks, [&](StateBlock* m, StateBlock* v) {
            blocks_update(o, d_params.data, master, m, v, d_grads.data, mine, map, settings.constants, decayed,
                          results.device.data, 7, stream);
        });
    else
        run(new_m.halves, new_v.halves, [&](bf16* m, bf16* v) {
            optimizer_update(o, d_params.data, master, m, v, d_grads.data, mine, settings.constants, decayed,
                             results.device.data, 7, stream);
        });
    settings.constants.grad_scale = results.copy().grad_scale;
    EXPECT(settings.constants.grad_scale < 1);
    update_slices(o, p, m, v, grads, layout, slice, settings.constants);
    new_m.check(m), new_v.check(v);
    const Floats after = d_params.values(), masters = d_master.values();
    Floats exact = params;
    for (int64_t i = 0; i < kept; i++) {
        const int64_t at = mine.index(i);
        exact[at] = HALF ? masters[i] : after[at];
        EXPECT(after[at] == (float)(floatX)exact[at]);
    }
    EXPECT(relative_error(exact, p) < 1e-6 && !(relative_error(params, p) < 1e-3));
}
