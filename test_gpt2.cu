// The CUDA trainer compared with references: each kernel with llmc/cpu/reference.h, the model with
// PyTorch's numbers and, at random shapes, with the CPU trainer; then invariants, bit by bit. The
// same source runs on a GPU and in the simulator. PRECISION=FP32 or FP16 on make's command line
// tests those builds.
//
//     make test_gpt2cu && ./test_gpt2cu             on a GPU
//     make test_gpt2sim && ./test_gpt2sim           in the simulator
//     ./test_gpt2sim kernels                        one group: kernels, pytorch, cpu or plan
//     ./test_gpt2sim quick                          the kernels, at a few small shapes
//     ./test_gpt2sim train FLAGS                    is the trainer: one program to compile for tests of both
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2.cu"
#include "dev/test/cpu_oracle.h"
#include "dev/test/document_layouts.h"
#include "dev/test/large_scores.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/cpu/reference_optimizers.h"
#include "llmc/cuda/orthogonalize.cuh"
#include "llmc/data/dataloader.h"
#include "llmc/model/initial_weights.h"
#include "llmc/options/learning_rate.h"

typedef GPT2 Model;
static GPT2 make_model(const GPT2Config& config, int64_t B, int64_t T, int64_t recompute, int64_t, int64_t micro_steps,
                       const Options& options = {}) {
    GPT2 model;
    model.backend = &GPU_BACKEND<floatX>;
    model.evaluate = evaluate, model.prefill = prefill, model.decode = decode<floatX>;
    Options o = options;
    o.tf32 = 0, o.given.insert("--recompute");
    Sizes sizes{config, B, T, recompute, config.maxT, 0, true, micro_steps};
    sizes.recompute_every = o.recompute_every, sizes.end_of_text = o.end_of_text;
    sizes.compressed_activations = o.compress_activations;
    model.layout = parameter_layout(config, 1);
    model.backend->settle(model, sizes, o);
    model.backend->allocate(model, model.sizes, o);
    return model;
}
static void micro_step(
    GPT2& model, const Batch& batch, std::function<void()> between = [] {}) {
    upload<floatX>(model, batch);
    forward(model, batch);
    between();
    backward(model, batch);
}
static StepResult update(GPT2& model, const UpdateSettings& settings) {
    loss_norm_and_update(model, settings);
    return wait_for_step(model, settings);
}
static double loss_sum(GPT2& model) {
    DeviceResults results;
    copy_to_host(&results, results_of(model), sizeof(results), model.gpu->stream);
    return results.loss_sum;
}
static void set_gradient(GPT2& model, int tensor, int64_t layer, int64_t i, float value) {
    const bool summed = model.sizes.sums_gradients() && !TENSORS[tensor].per_layer;
    if (summed) to_device(model, FORMAT_FP32, model.grad_sums + model.layout.offset(tensor) + i, &value, 1);
    else to_device(model, model.format, grad(model, tensor, layer) + i, &value, 1);
}
static std::vector<float> copied(const float* values, int64_t n) { return std::vector<float>(values, values + n); }
static std::vector<float> all_gradients(GPT2& model) {
    const int64_t n = model.layout.total_elems();
    return copied(model.sizes.sums_gradients() ? to_host(model, FORMAT_FP32, model.grad_sums, n)
                                               : to_host(model, model.format, model.grads, n),
                  n);
}
static std::vector<float> all_weights(GPT2& model) {
    const int64_t n = model.layout.total_elems();
    return copied(
        model.master ? to_host(model, FORMAT_FP32, model.master, n) : to_host(model, model.format, model.params, n), n);
}

#include "dev/test/model_tests.h"

// -------------------------------------------------------------------------------------------------
// kernels against reference.h

#include "dev/test/device_kernels.h"

static const float HUGE_NUMBER = FP16 ? 6e4f : 3e38f;

struct Shape {
    int64_t B, T, C, NH;
};
static const Shape SHAPES[] = {{1, 1, 16, 1},   {2, 33, 48, 3},  {3, 67, 40, 1},  {1, 130, 128, 2},
                               {2, 65, 192, 2}, {1, 70, 256, 2}, {1, 40, 256, 1}, {1, 50, 144, 1},
                               {1, 230, 64, 1}, {1, 257, 24, 1}, {1, 129, 120, 1}};
static std::string shape_text(const Shape& s) {
    return format("B %d T %d C %d NH %d", (int)s.B, (int)s.T, (int)s.C, (int)s.NH);
}

static void encoder_kernels(const Shape& s) {
    const int64_t V = 37, maxT = s.T + 3, rows = s.B * s.T;
    start_test("encoder, " + shape_text(s));
    const Floats wte = random_floatX(V * s.C), wpe = random_floatX(maxT * s.C), dout = random_floatX(rows * s.C);
    std::vector<int> tokens(rows), order(rows), begin(rows + 1);
    // one token is far more frequent than the others
    for (int64_t i = 0; i < rows; i++) tokens[i] = (int)(i * i % 5 == 0 ? 3 : i * 7 % V);
    Floats out(rows * s.C), dwte = random_floatX(V * s.C), dwpe(maxT * s.C, NAN);
    DeviceArray<int> d_tokens(tokens);
    Array d_wte(wte), d_wpe(wpe), d_out(rows * s.C), d_dout(dout), d_dwpe(maxT * s.C);
    Array32 d_dwte(dwte);
    encoder_forward(d_out.data, d_tokens, d_wte.data, d_wpe.data, s.B, s.T, s.C, 0, stream);
    reference::encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C);
    EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(1, 2));
    // 5 positions per segment: the frequent token has several
    const TokenOrder sorted = sort_by_token(order.data(), begin.data(), tokens.data(), rows, 5);
    EXPECT(rows < 30 || sorted.split > 1);
    DeviceArray<int> d_order(order), d_begin(begin);
    Array32 d_partials(std::max<int64_t>(1, sorted.split) * s.C);
    encoder_backward(d_dwte.data, d_dwpe.data, d_partials.data, d_dout.data, d_tokens, d_order, d_begin, sorted, s.B,
                     s.T, s.C, maxT, false, stream);
    reference::encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C, maxT, false);
    EXPECT(relative_error(d_dwte.values(), dwte) < sum_tolerance(rows));
    EXPECT(relative_error(d_dwpe.values(), dwpe) < kernel_tolerance(1, s.B));
}

// Whether the parts add up to the sums over the rows of x (rows, n), as stored.
static bool sums_over_rows(const ColumnSums& sums, const Array& x, int64_t rows, int64_t n) {
    Array32 d_got(n);
    float* const no_second = nullptr;
    sum_parts(d_got.data, no_second, sums, n, false, stream);
    const Floats values = x.values();
    Floats want(n);
    for (int64_t i = 0; i < rows * n; i++) want[i % n] += values[i];
    return sums.parts > 0 && relative_error(d_got.values(), want) < sum_tolerance(rows);
}

static void layernorm_kernels(int64_t rows, int64_t C) {
    start_test(format("layernorm, %d rows of %d", (int)rows, (int)C));
    const Floats x = random_floatX(rows * C), branch = random_floatX(rows * C), w = random_floatX(C),
                 b = random_floatX(C), dout = random_floatX(rows * C), dinp = random_floatX(rows * C);
    Floats residual(rows * C), out(rows * C), mean(rows), rstd(rows), dx = dinp, dw(C), db(C);
    Array d_x(x), d_branch(branch), d_w(w), d_b(b), d_dout(dout), d_residual(rows * C), d_out(rows * C), d_dx(dinp),
        d_dw(C), d_db(C);
    Array32 d_mean(rows), d_rstd(rows), d_partials(LAYERNORM_PARTS * 3 * C);
    reference::residual_forward(residual.data(), x.data(), branch.data(), rows * C);
    for (float& v : residual) v = (float)(floatX)v;  // the sum is stored, then normalised
    reference::layernorm_forward(out.data(), mean.data(), rstd.data(), residual.data(), w.data(), b.data(), rows, C);
    residual_layernorm_forward(d_residual.data, d_out.data, d_mean, d_rstd, d_x.data, d_branch.data, d_w.data, d_b.data,
                               rows, C, stream);
    EXPECT(relative_error(d_residual.values(), residual) == 0);
    EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(1, C));
    EXPECT(relative_error(d_mean.values(), mean) < sum_tolerance(C) * std::sqrt(C) &&
           relative_error(d_rstd.values(), rstd) < sum_tolerance(C));
    const Floats fused = d_out.values();
    layernorm_forward(d_out.data, d_mean, d_rstd, d_residual.data, d_w.data, d_b.data, rows, C, stream);
    EXPECT(d_out.values() == fused);
    for (bool add : {false, true}) {
        reference::layernorm_backward(dx.data(), dw.data(), db.data(), dout.data(), residual.data(), w.data(),
                                      mean.data(), rstd.data(), rows, C, add);
        const ColumnSums sums = layernorm_backward(d_dx.data, d_dw.data, d_db.data, d_partials.data, d_dout.data,
                                                   d_residual.data, d_w.data, d_mean, d_rstd, rows, C, add, stream);
        EXPECT(sums_over_rows(sums, d_dx, rows, C));
        EXPECT(relative_error(d_dx.values(), dx) < kernel_tolerance(2, C));
        EXPECT(relative_error(d_dw.values(), dw) < kernel_tolerance(2, rows));
        EXPECT(relative_error(d_db.values(), db) < kernel_tolerance(2, rows));
    }
}

static void matmul_kernels(int64_t rows, int64_t C, int64_t OC) {
    const Floats x = random_floatX(rows * C), w = random_floatX(OC * C), b = random_floatX(OC),
                 dout = random_floatX(rows * OC), pre = random_floatX(rows * C, 3);
    Floats out(rows * OC), gelu_out(rows * OC), dx(rows * C), dw(OC * C), db(OC);
    Array d_x(x), d_w(w), d_b(b), d_dout(dout), d_pre(pre), d_out(rows * OC), d_gelu(rows * OC), d_dx(rows * C),
        d_dw(OC * C), d_db(OC);
    Array32 d_partials(COLUMN_SUM_PARTS * std::max(C, OC));
    for (bool fuse : {false, true}) {
        start_test(
            format("matmul, %d x %d x %d, gelu %s", (int)rows, (int)C, (int)OC, fuse ? "in the epilogue" : "apart"));
        matmul_forward(d_out.data, d_x.data, d_w.data, d_b.data, rows, C, OC, stream, d_gelu.data, fuse);
        reference::matmul_forward(out.data(), x.data(), w.data(), b.data(), rows, C, OC, gelu_out.data());
        EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(1, C));
        EXPECT(relative_error(d_gelu.values(), gelu_out) < kernel_tolerance(2, C));
        for (bool add : {false, true}) {
            const ColumnSums sums = matmul_backward(d_dx.data, d_dw.data, d_db.data, {d_partials.data}, d_dout.data,
                                                    d_x.data, d_w.data, rows, C, OC, add, stream, d_pre.data, fuse);
            EXPECT(fuse ? sums.parts == 0 : sums_over_rows(sums, d_dx, rows, C));
            reference::matmul_backward(dx.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(), rows, C, OC,
                                       add, pre.data());
            EXPECT(relative_error(d_dx.values(), dx) < kernel_tolerance(2, OC));
            EXPECT(relative_error(d_dw.values(), dw) < kernel_tolerance(2, rows));
            EXPECT(relative_error(d_db.values(), db) < kernel_tolerance(2, rows));
        }
    }
}

static void orthogonalize_kernels(int64_t rows, int64_t cols) {
    start_test(format("Muon's orthogonalisation, %d x %d", (int)rows, (int)cols));
    const int64_t n = std::min(rows, cols);
    for (float norm : {1.0f, 1e-5f, 1e5f}) {
        Floats d = random_values(rows * cols, norm);
        Array32 d_d(d);
        Array x(rows * cols), gram(n * n), polynomial(n * n);
        DeviceArray<double> partials(NORM_MOST_BLOCKS);
        orthogonalize(d_d.data, rows, cols, OrthogonalScratch<floatX>{x, gram, polynomial}, partials.data, stream);
        reference::orthogonalize(d.data(), rows, cols);
        // X, A, A A and P are rounded in each of 5 steps
        EXPECT(norm_error(d_d.values(), d) < (HALF ? 20 * HALF_ROUNDOFF / std::sqrt(3.0) : 1e-5));
    }
}

// Forward at any number of elements; backward at rows of n / rows elements, if those are whole
// Packs.
static void gelu_kernels(int64_t rows, int64_t n) {
    start_test(format("gelu, %d elements in %d rows, in place and not, at special values", (int)n, (int)rows));
    const bool backward = n / rows % Pack<floatX>::size == 0;
    Floats x = random_floatX(n, 6), dout = random_floatX(n), out(n), dx(n);
    const float special[] = {0.0f, -0.0f, 1e-41f, 100.0f, -100.0f, HUGE_NUMBER, -HUGE_NUMBER};
    for (size_t i = 0; i < std::min<size_t>(n, 7); i++) x[n - 1 - i] = (float)(floatX)special[i];
    Array d_x(x), d_dout(dout), d_out(n), d_dx(n);
    Array32 d_partials(COLUMN_SUM_PARTS * (n / rows));
    const auto differentiate = [&](floatX* dinp) {
        return gelu_backward(dinp, d_partials.data, d_dout.data, d_x.data, rows, n / rows, stream);
    };
    reference::gelu_forward(out.data(), x.data(), n);
    reference::gelu_backward(dx.data(), dout.data(), x.data(), n);
    gelu_forward(d_out.data, d_x.data, n, stream);
    const Floats got = d_out.values();
    for (int64_t i = 0; i < n; i++)
        EXPECT(std::fabs(got[i] - out[i]) <= kernel_tolerance(1, 20) * std::fabs(out[i]) + 1e-6);
    if (backward) {
        EXPECT(sums_over_rows(differentiate(d_dx), d_dx, rows, n / rows));
        const Floats dgot = d_dx.values();
        for (int64_t i = 0; i < n; i++)
            EXPECT(std::fabs(dgot[i] - dx[i]) <= kernel_tolerance(1, 20) * std::fabs(dx[i]) + 2e-6);
        differentiate(d_dout);
        EXPECT(memcmp(d_dout.values().data(), dgot.data(), n * 4) == 0);
    }
    gelu_forward(d_x.data, d_x.data, n, stream);
    EXPECT(memcmp(d_x.values().data(), got.data(), n * 4) == 0);
    Array d_nan(Floats(n, NAN));
    gelu_forward(d_nan.data, d_nan.data, n, stream);
    for (float v : d_nan.values()) EXPECT(std::isnan(v));
}

static void dropout_kernels(int64_t rows, int64_t n) {
    start_test(format("dropout, %d elements in %d rows, in place and not", (int)n, (int)rows));
    const DropoutMask mask = Dropout{0.3, 42, 7, 5}.mask(DROP_MLP, 2, n / rows);
    const Floats x = random_floatX(n);
    Floats want(n);
    reference::dropout(want.data(), x.data(), n, mask);
    Array d_x(x), d_out(n);
    ColumnSums sums{nullptr, 3, n};
    EXPECT(dropout(d_out.data, d_x.data, n, Dropout{}.mask(DROP_MLP, 2, n / rows), stream, &sums) == d_x.data);
    EXPECT(sums.parts == 3);
    EXPECT(dropout(d_out.data, d_x.data, n, mask, stream, &sums) == d_out.data && sums.parts == 0);
    const Floats got = d_out.values();
    for (int64_t i = 0; i < n; i++) EXPECT(got[i] == (float)(floatX)want[i]);
    dropout(d_x.data, d_x.data, n, mask, stream);
    EXPECT(memcmp(d_x.values().data(), got.data(), n * 4) == 0);
}

static void code_kernels(int64_t n) {
    start_test(format("codes of %d activations and what they stand for: the CPU's bytes", (int)n));
    std::vector<floatX> x(n), want_values(n);
    const Floats drawn = random_values(n);
    for (int64_t i = 0; i < n; i++) x[i] = floatX(drawn[i] * std::pow(8.0f, (float)(i / CODE_BLOCK % 7) - 3));
    if (n > 200) x[70] = floatX(NAN), x[130] = floatX(INFINITY);
    std::vector<char> want(codes_bytes(n), 0), got(want);
    reference::encode_activations(codes_at(want.data(), n), x.data(), n);
    reference::decode_activations(want_values.data(), codes_at(want.data(), n), n);
    Array d_x(n), d_values(n);
    DeviceArray<char> d_codes(want.size());
    copy_to_device(d_x.data, x.data(), n * sizeof(floatX), stream);
    encode_activations(codes_at(d_codes.data, n), d_x.data, n, stream);
    decode_activations(d_values.data, codes_at(d_codes.data, n), n, stream);
    copy_to_host(got.data(), d_codes.data, got.size(), stream);
    const ActivationCodes mine = codes_at(got.data(), n), theirs = codes_at(want.data(), n);
    const Floats values = d_values.values();
    for (int64_t i = 0; i < n; i++) {
        const float scale = theirs.scales[i / CODE_BLOCK], wanted = (float)want_values[i];
        EXPECT(mine.codes[i] == theirs.codes[i] || std::isnan(scale));
        EXPECT(mine.scales[i / CODE_BLOCK] == scale || (std::isnan(mine.scales[i / CODE_BLOCK]) && std::isnan(scale)));
        EXPECT(values[i] == wanted || (std::isnan(values[i]) && std::isnan(wanted)));
        EXPECT(std::isnan(wanted) == (n > 200 && i >= 64 && i < 192));
    }
}

// The blocks of attention: every tile of every head once, group after group, in each the longest
// tiles first.
static void attention_places() {
    start_test("attention: its blocks in groups of heads that fit the cache, in each the longest tiles first");
    for (auto [heads, tiles, group] :
         {std::tuple<int, int, int>{10, 3, 4}, {12, 8, 12}, {7, 1, 2}, {5, 2, 1}, {1, 1, 1}, {9, 4, 100}}) {
        std::vector<int> times(heads * tiles, 0);
        AttentionPlace last{0, 0};
        for (int block = 0; block < heads * tiles; block++) {
            const AttentionPlace place = attention_place(block, heads, tiles, group);
            const bool same_group = place.head / group == last.head / group;
            EXPECT(place.head >= 0 && place.head < heads && place.tile >= 0 && place.tile < tiles);
            EXPECT(same_group ? place.tile >= last.tile
                              : place.head == last.head + 1 && place.tile == 0 && last.tile == tiles - 1);
            times[place.head * tiles + place.tile]++, last = place;
        }
        EXPECT(std::count(times.begin(), times.end(), 1) == heads * tiles);
    }
    const int64_t T = 1024, row_bytes = 128, of_head = 2 * T * row_bytes;
    EXPECT(attention_group(768, T, row_bytes, 50 << 20) == 48 && attention_group(48, T, row_bytes, 50 << 20) == 48);
    EXPECT(attention_group(768, T, row_bytes, 4 * of_head) == 1 && attention_group(768, T, row_bytes, 1) == 1);
    EXPECT(attention_group(10, T, row_bytes, 4 * 4 * of_head) == 4);  // of 4, 4 and 2
}

static void attention_kernels(const Shape& s) {
    start_test("attention, " + shape_text(s));
    const int64_t rows = s.B * s.T, HS = s.C / s.NH;
    const Floats qkv = random_floatX(rows * 3 * s.C, 1.5), dout = random_floatX(rows * s.C);
    Floats out(rows * s.C), lse(s.B * s.NH * s.T), dqkv(rows * 3 * s.C);
    Array d_qkv(qkv), d_dout(dout), d_out(rows * s.C), d_dqkv(rows * 3 * s.C);
    Array32 d_lse(s.B * s.NH * s.T), d_D(s.B * s.NH * s.T);
    attention_forward(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, s.C, s.NH, stream);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH);
    EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(2, HS + s.T));
    EXPECT(relative_error(d_lse.values(), lse) < sum_tolerance(HS + s.T));
    const Floats kept = d_out.values();
    reference::attention_backward(dqkv.data(), dout.data(), kept.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH);
    Array32 d_partials(ATTENTION_PARTS * 3 * s.C);
    const ColumnSums sums = attention_backward(d_dqkv.data, d_D.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data,
                                               s.B, s.T, s.C, s.NH, stream, {}, d_partials);
    EXPECT(relative_error(d_dqkv.values(), dqkv) < kernel_tolerance(3, HS + 2 * s.T));
    EXPECT(HALF ? sums_over_rows(sums, d_dqkv, rows, 3 * s.C) : sums.parts == 0);
    start_test("attention, the same bits twice, " + shape_text(s));
    const Floats first = d_dqkv.values();
    attention_forward(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, s.C, s.NH, stream);
    attention_backward(d_dqkv.data, d_D.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, s.B, s.T, s.C, s.NH,
                       stream);
    EXPECT(d_out.values() == kept && d_dqkv.values() == first);
    start_test("attention, one position at a time, " + shape_text(s));
    const int64_t maxT = s.T + 3;
    Array d_keys(maxT * s.C), d_values(maxT * s.C), d_row(s.C);
    Array32 d_scores(s.NH * maxT);
    for (int64_t t = 0; t < s.T; t++) {
        attention_decode(d_row.data, d_keys.data, d_values.data, d_qkv.data + t * 3 * s.C, d_scores, t, maxT, s.C, s.NH,
                         stream);
        if (t % 16 == 0 || t + 1 == s.T)
            EXPECT(relative_error(d_row.values().data(), out.data() + t * s.C, s.C) < kernel_tolerance(2, HS + s.T));
    }
}

// Both passes of attention, on sequences that are cut into documents if there are starts (B,T).
struct AttentionRun {
    Floats out, lse, dqkv;
    AttentionRun(const Shape& s, const Floats& qkv, const Floats& dout, const std::vector<int>& starts,
                 int64_t window = 0) {
        const int64_t rows = s.B * s.T;
        Array d_qkv(qkv), d_dout(dout), d_out(rows * s.C), d_dqkv(rows * 3 * s.C);
        Array32 d_lse(s.B * s.NH * s.T), d_D(s.B * s.NH * s.T);
        DeviceArray<int> d_tiles(3 * rows);
        DocumentTiles documents;
        if (!starts.empty()) {
            std::vector<int> tiles(3 * rows);
            const int64_t tile_rows = attention_tile_rows<floatX>(s.C / s.NH);
            const int64_t count = cut_documents((DocumentTile*)tiles.data(), starts.data(), s.B, s.T, tile_rows);
            copy_to_device(d_tiles.data, tiles.data(), 12 * count, stream);
            documents = {(DocumentTile*)d_tiles.data, count};
        }
        attention_forward(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, s.C, s.NH, stream, documents, window);
        attention_backward(d_dqkv.data, d_D.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, s.B, s.T, s.C, s.NH,
                           stream, documents, nullptr, window);
        out = d_out.values(), lse = d_lse.values(), dqkv = d_dqkv.values();
    }
    bool same_bits(const AttentionRun& o) const { return out == o.out && lse == o.lse && dqkv == o.dqkv; }
};

// A document among others whose every value is NaN, and alone in a sequence of its length: the same
// bits. So no value of another document is read.
static void document_as_if_alone(const Shape& s, const Floats& qkv, const Floats& dout, const std::vector<int>& starts,
                                 int64_t b, int64_t first, int64_t length) {
    const auto copy = [&](const Floats& from, Floats& to, int64_t at, int64_t width) {
        std::copy_n(&from[(b * s.T + first) * width], length * width, &to[at * width]);
    };
    Floats nans(qkv.size(), NAN), dnans(dout.size(), NAN);  // with the document's values among NaNs
    Floats own(length * 3 * s.C), down(length * s.C);       // of the document alone
    Floats want(length * s.C), dwant(length * 3 * s.C);
    copy(qkv, nans, b * s.T + first, 3 * s.C), copy(dout, dnans, b * s.T + first, s.C);
    copy(qkv, own, 0, 3 * s.C), copy(dout, down, 0, s.C);
    const AttentionRun among(s, nans, dnans, starts), alone({1, length, s.C, s.NH}, own, down, {});
    copy(among.out, want, 0, s.C), copy(among.dqkv, dwant, 0, 3 * s.C);
    EXPECT(want == alone.out && dwant == alone.dqkv);
    for (int64_t h = 0; h < s.NH; h++)
        EXPECT(std::equal(&alone.lse[h * length], &alone.lse[h * length] + length,
                          &among.lse[(b * s.NH + h) * s.T + first]));
}

#include "dev/test/window_kernels.h"

static void attention_with_documents(const Shape& s, const DocumentLayout& layout) {
    start_test(format("attention, documents %s, ", layout.name) + shape_text(s));
    const int64_t rows = s.B * s.T, HS = s.C / s.NH, b = s.B - 1;
    const Floats qkv = random_floatX(rows * 3 * s.C, 1.5), dout = random_floatX(rows * s.C);
    const std::vector<int> starts = document_starts(layout, s.B, s.T);
    const AttentionRun run(s, qkv, dout, starts);
    Floats out(rows * s.C), lse(s.B * s.NH * s.T), dqkv(rows * 3 * s.C);
    reference::attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH, starts.data());
    reference::attention_backward(dqkv.data(), dout.data(), run.out.data(), lse.data(), qkv.data(), s.B, s.T, s.C, s.NH,
                                  starts.data());
    EXPECT(relative_error(run.out, out) < kernel_tolerance(2, HS + s.T));
    EXPECT(relative_error(run.lse, lse) < sum_tolerance(HS + s.T));
    EXPECT(relative_error(run.dqkv, dqkv) < kernel_tolerance(3, HS + 2 * s.T));
    int64_t number = 0;
    for_each_document(&starts[b * s.T], s.T, [&](int64_t first, int64_t length) {
        if (number++ == 1) document_as_if_alone(s, qkv, dout, starts, b, first, length);
    });
    const std::vector<int> one(rows, 0);
    EXPECT(AttentionRun(s, qkv, dout, one).same_bits(AttentionRun(s, qkv, dout, {})));
}

// share: of a teacher, at temperature 2; 0 without one.
static void classifier_kernels(int64_t rows, int64_t chunk_rows, int64_t C, int64_t V, float share = 0) {
    start_test(format("classifier, %d rows, %d at a time, C %d, V %d%s", (int)rows, (int)chunk_rows, (int)C, (int)V,
                      share > 0 ? format(", %g of a teacher", share).c_str() : ""));
    const int64_t Vp = padded_vocab(V);
    const Floats x = random_floatX(rows * C, 3), wte = random_floatX(Vp * C);
    std::vector<int> targets(rows);
    for (int64_t r = 0; r < rows; r++) targets[r] = r % 5 == 3 ? IGNORED_TARGET : (int)(r * 31 % V);
    Floats losses(rows), logits(rows * Vp), dx(rows * C), dwte = random_floatX(Vp * C);
    Array d_x(x), d_wte(wte), d_logits(rows * Vp), d_dx(rows * C);
    Array32 d_losses(rows), d_dwte(dwte);
    DeviceArray<int> d_targets(targets);
    const int64_t their_C = C + 16;
    const Floats their_x = random_floatX(rows * their_C, 2), their_wte = random_floatX(Vp * their_C);
    Floats their_logits(rows * Vp);
    Array d_their_x(their_x), d_their_wte(their_wte), d_their_logits(chunk_rows * Vp);
    const Teacher<float> teacher{their_x.data(), their_wte.data(), their_logits.data(), their_C, share, 2};
    const Teacher<floatX> d_teacher{d_their_x.data, d_their_wte.data, d_their_logits.data, their_C, share, 2};
    const float dloss = 1.0f / 64;
    reference::matmul_forward(logits.data(), x.data(), wte.data(), (const float*)nullptr, rows, C, Vp);
    double largest = 0;
    for (float v : logits) largest = std::fmax(largest, std::fabs(v));
    reference::classifier(losses.data(), dx.data(), dwte.data(), logits.data(), x.data(), wte.data(), targets.data(),
                          rows, C, V, Vp, dloss, true, nullptr, teacher);
    for (float v : their_logits) largest = std::fmax(largest, std::fabs(v));
    classifier(d_losses.data, d_dx.data, d_dwte.data, d_logits.data, d_x.data, d_wte.data, d_targets.data, rows,
               chunk_rows, C, V, Vp, dloss, true, stream, d_teacher);
    // The absolute error of a logit as it is stored, and so the relative error of its exponential.
    const double logit_error = (1 + 3 * share) * largest * (HALF ? HALF_ROUNDOFF : 2 * sum_tolerance(C));
    const Floats got = d_losses.values();
    for (int64_t r = 0; r < rows; r++) EXPECT(std::fabs(got[r] - losses[r]) <= logit_error + sum_tolerance(V));
    for (int64_t r = 3; r < rows; r += 5) EXPECT(got[r] == 0);
    EXPECT(relative_error(d_dx.values(), dx) < logit_error + kernel_tolerance(2, Vp));
    EXPECT(relative_error(d_dwte.values(), dwte) < logit_error + kernel_tolerance(1, rows));
    const Floats dlogits = d_logits.values();
    for (int64_t v = V; v < Vp; v++) EXPECT(dlogits[v] == 0);
    if (share > 0) return;
    classifier(d_losses.data, (floatX*)nullptr, nullptr, d_logits.data, d_x.data, d_wte.data, d_targets.data, rows,
               chunk_rows, C, V, Vp, 0.0f, false, stream);
    EXPECT(d_losses.values() == got);
    if (!row_fits_shared(Vp * sizeof(floatX))) return;
    const Floats values = random_floatX(rows * Vp, 3);
    Array in_shared(values), in_memory(values);
    Array32 shared_losses(rows), memory_losses(rows);
    softmax_loss(shared_losses.data, in_shared.data, d_targets.data, rows, V, Vp, dloss, true, true, stream);
    softmax_loss(memory_losses.data, in_memory.data, d_targets.data, rows, V, Vp, dloss, true, false, stream);
    EXPECT(shared_losses.values() == memory_losses.values() && in_shared.values() == in_memory.values());
}

static void weight_code_kernels(WeightFormat format_of_weights, int64_t rows, int64_t C) {
    const char* name = WEIGHT_FORMAT_NAMES[format_of_weights];
    start_test(format("weights in %s, %d rows, C %d: as numbers, times a row of inputs, as an embedding", name,
                      (int)rows, (int)C));
    CodeMatrix m{format_of_weights, rows, C, nullptr};
    std::vector<uint8_t> codes(m.bytes());
    m.memory = codes.data();
    const Floats weights = random_floatX(rows * C, 0.1), decoded = cpu_oracle_codes(m, weights.data());
    DeviceArray<uint8_t> d_codes(codes);
    m.memory = d_codes.data;
    Array d_decoded(rows * C);
    decode_weights(d_decoded.data, m, stream);
    Floats rounded = decoded;
    for (float& w : rounded) w = (float)(floatX)w;
    EXPECT(d_decoded.values() == rounded);

    const Floats x = random_floatX(C), bias = random_floatX(rows);
    Floats out(rows), gelu_out(rows);
    Array d_x(x), d_bias(bias), d_out(rows), d_gelu_out(rows);
    for (const float* of_bias : {bias.data(), (const float*)nullptr}) {
        reference::matmul_forward(out.data(), x.data(), decoded.data(), of_bias, 1, C, rows);
        coded_matvec(d_out.data, d_x.data, m, of_bias ? d_bias.data : nullptr, stream, d_gelu_out.data);
        EXPECT(relative_error(d_out.values(), out) < kernel_tolerance(1, (double)C));
        reference::gelu_forward(gelu_out.data(), d_out.values().data(), rows);  // of out as it is rounded
        EXPECT(relative_error(d_gelu_out.values(), gelu_out) < kernel_tolerance(1, 4));
    }

    const int64_t B = 2, T = 5, first = 3;
    const Floats wpe = random_floatX((first + T) * C);
    std::vector<int> tokens(B * T);
    for (int64_t i = 0; i < B * T; i++) tokens[i] = (int)((i * 17 + rows - 1) % rows);
    Floats embedded(B * T * C);
    for (int64_t i = 0; i < B * T * C; i++)
        embedded[i] = (float)(floatX)(decoded[tokens[i / C] * C + i % C] + wpe[(first + i / C % T) * C + i % C]);
    DeviceArray<int> d_tokens(tokens);
    Array d_wpe(wpe), d_embedded(B * T * C);
    coded_encoder(d_embedded.data, d_tokens.data, m, d_wpe.data, B, T, first, stream);
    EXPECT(d_embedded.values() == embedded);
}

// Scores with which only a softmax that subtracts the maximum works.
static void large_scores(double level) {
    const double tolerance = HALF ? 0.02 : 1e-4;
    const int64_t C = 16, V = 297, Vp = padded_vocab(V), T = 70;
    for (int target : {0, 296}) {
        start_test(format("classifier at logits around %g, target %d", level, target));
        const LargeLogits<floatX> inputs(level, C, V, Vp);
        Array d_x(floats(inputs.x)), d_wte(floats(inputs.wte)), d_logits(Vp), d_dx(C);
        Array32 d_losses(1), d_dwte(Floats(Vp * C, 0.0f));
        DeviceArray<int> d_targets(std::vector<int>{target});
        classifier(d_losses.data, d_dx.data, d_dwte.data, d_logits.data, d_x.data, d_wte.data, d_targets.data, 1, 1, C,
                   V, Vp, 1.0f, true, stream);
        inputs.check(target, d_losses.values()[0], d_dwte.values(), tolerance);
        for (float d : d_dx.values()) EXPECT(std::isfinite(d));
    }
    start_test(format("attention at scores around %g", level));
    const LargeAttention<floatX> inputs(level, T, C);
    const Floats qkv = floats(inputs.qkv), dout = random_floatX(T * C);
    Array d_qkv(qkv), d_out(T * C), d_dout(dout), d_dqkv(T * 3 * C), d_keys(T * C), d_values(T * C), d_row(C);
    Array32 d_lse(T), d_D(T), d_scores(T);
    attention_forward(d_out.data, d_lse.data, d_qkv.data, 1, T, C, 1, stream);
    const Floats out = d_out.values();
    for (int64_t t = 0; t < T; t++) inputs.check(&out[t * C], t, tolerance);
    for (int64_t t = 0; t < T; t++) {
        attention_decode(d_row.data, d_keys.data, d_values.data, d_qkv.data + t * 3 * C, d_scores, t, T, C, 1, stream);
        if (t % 16 == 0 || t + 1 == T) inputs.check(d_row.values().data(), t, tolerance);
    }
    // the backward pass computes e^(s - lse) from a rounded lse: at 1e30, neighbours in fp32 are
    // 8e22 apart
    if (std::fabs(level) > 100) return;
    Floats dqkv(T * 3 * C), want_out(T * C), lse(T);
    reference::attention_forward(want_out.data(), lse.data(), qkv.data(), 1, T, C, 1);
    reference::attention_backward(dqkv.data(), dout.data(), want_out.data(), lse.data(), qkv.data(), 1, T, C, 1);
    attention_backward(d_dqkv.data, d_D.data, d_dout.data, d_out.data, d_lse.data, d_qkv.data, 1, T, C, 1, stream);
    EXPECT(relative_error(d_dqkv.values(), dqkv) < tolerance);
}

// The results of a step on the device, for one process.
struct StepResults {
    DeviceArray<DeviceResults> device{4};  // one, with room for the sums of its rank
    DeviceArray<double> partials{NORM_MOST_BLOCKS};
    StepResults() { check_cuda(cudaMemsetAsync(device, 0, 4 * sizeof(DeviceResults), stream), "clearing"); }
    void compute(const floatX* grads, const SliceMap& map, const UpdateSettings& settings) {
        sum_squares(device.data, partials.data, grads, map, 0, stream);
        finish_norm(device.data, 1, 1, settings, stream);
    }
    DeviceResults copy() {
        DeviceResults r;
        copy_to_host(&r, device.data, sizeof(r), stream);
        return r;
    }
};

static UpdateSettings clipping_rule() {
    UpdateSettings settings;
    settings.constants = update_constants(1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    settings.tokens = 10, settings.grad_clip = 0.5;
    return settings;
}

// Parameters of a small model with a gradient and the state of earlier steps, on the device; and
// the same on the host, as they were.
struct UpdatedModel {
    const ParameterLayout layout = parameter_layout({24, 37, 128, 2, 2, 40}, 1);
    const int64_t n = layout.total_elems();
    const Floats params = random_floatX(n), grads = random_floatX(n, 0.1), m = random_values(n, 0.01),
                 v = squares_of(random_values(n, 0.01));
    Array d_params{params}, d_grads{grads};
    Array32 d_master{params}, d_m{m}, d_v{v};
    StepResults results;

    static Floats squares_of(Floats values) {
        for (float& x : values) x *= x;
        return values;
    }
    void update(Optimizer o, const floatX* gradients, const UpdateSettings& settings) {
        const SliceMap whole = slice_map(layout, {});
        results.compute(gradients, whole, settings);
        optimizer_update(o, d_params.data, HALF ? d_master.data : nullptr, d_m.data, d_v.data, gradients, whole,
                         settings.constants, decay_ranges(layout), results.device.data, 7, stream);
    }
};

static void update_kernel(Optimizer o) {
    start_test(format("global norm, clipping and %s with its decay mask", OPTIMIZERS[o].name));
    UpdatedModel model;
    const UpdateSettings settings = clipping_rule();
    model.update(o, model.d_grads.data, settings);
    const double norm = std::sqrt(reference::global_norm_squared(model.grads.data(), model.n));
    const DeviceResults results = model.results.copy();
    EXPECT(std::fabs(results.norm - norm) < 1e-6 * norm && results.wanted == 1);
    Floats p = model.params, m = model.m, v = model.v;
    const Floats new_m = model.d_m.values(), new_v = model.d_v.values();
    const Floats after = model.d_params.values(), exact = HALF ? model.d_master.values() : after;
    UpdateConstants k = settings.constants;
    k.grad_scale = (float)(0.5 / norm);
    const GPT2Config& config = model.layout.config;
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, config); l++) {
            const int64_t at = model.layout.offset(i, l), elems = tensor_elems(i, config);
            k.weight_decay = TENSORS[i].decayed ? 0.1f : 0.0f;
            reference::optimizer_update(o, &p[at], (float*)nullptr, &m[at], &v[at], &model.grads[at], elems, k);
            EXPECT(relative_error(&exact[at], &p[at], elems) < 1e-6);
            EXPECT(relative_error(&new_m[at], &m[at], elems) < 1e-6);
            EXPECT(relative_error(&new_v[at], &v[at], elems) < 1e-6);
        }
    for (int64_t i = 0; i < model.n; i++) EXPECT(after[i] == (float)(floatX)exact[i]);
}

#include "dev/test/factored_kernels.h"
#include "dev/test/small_state_kernels.h"

static void unwanted_updates() {
    start_test("an update that is not wanted changes nothing: NaN, infinity, outliers");
    UpdatedModel model;
    const UpdateSettings settings = clipping_rule();
    const double norm = std::sqrt(reference::global_norm_squared(model.grads.data(), model.n));
    for (float bad : {NAN, INFINITY, 1e30f, 0.0f}) {
        Floats broken = model.grads;
        broken[model.n / 2] = bad;
        Array d_broken(broken);
        UpdateSettings strict = settings;
        strict.norm_limit = bad == 0 ? norm / 2 : bad == 1e30f ? 1e20 : INFINITY;
        model.update(ADAMW, d_broken.data, strict);
        EXPECT(model.results.copy().wanted == 0 && model.d_params.values() == model.params);
        EXPECT(model.d_m.values() == model.m);
    }
}

static void stochastic_rounding() {
    start_test("stochastic rounding: always a neighbour, the mean is right, another seed gives other bits");
    const int64_t n = 1 << 14;
    const float exact = 1.0f + 0.3f / 128;  // between 1 and the next bf16, nearer to 1
    UpdateSettings settings = clipping_rule();
    settings.grad_clip = 0;
    UpdateConstants grow = settings.constants;  // p = keep p, with keep = exact
    grow.learning_rate = 1.0f, grow.weight_decay = 1.0f - exact;
    DecayRanges all{};
    all.layer_elems = all.layers_end = n, all.count[0] = 1, all.end[0][0] = n;
    const SliceMap flat{n, n, 0, 1, 0};
    auto rounded = [&](uint64_t seed, bool to_nearest = false) {
        grow.round_to_nearest = to_nearest;
        Array d_p(Floats(n, 1.0f)), d_g(Floats(n, 0.0f));
        Array32 d_m(Floats(n, 0.0f)), d_v(Floats(n, 1.0f));
        float* const no_master = nullptr;
        StepResults results;
        results.compute(d_g.data, flat, settings);
        adamw_update(d_p.data, no_master, d_m.data, d_v.data, d_g.data, flat, grow, all, results.device.data, seed,
                     stream);
        return d_p.values();
    };
    const Floats a = rounded(1), b = rounded(1), c = rounded(2);
    double mean = 0;
    for (float x : a) EXPECT(x == 1.0f || x == 1.0078125f), mean += x / n;
    EXPECT(std::fabs(mean - exact) < 4 * 0.0078125 * std::sqrt(0.3 * 0.7 / n));
    EXPECT(a == b && a != c);
    start_test("rounding to nearest: the small updates are lost");
    EXPECT(rounded(1, true) == Floats(n, 1.0f));
}

static void checkers() {
    start_test("the comparisons see NaN and a planted error");
    Floats good = random_values(100), wrong = good;
    wrong[50] = NAN;
    EXPECT(!(relative_error(wrong, good) < kernel_tolerance(3, 1e6)));
    Array d_x(random_floatX(64)), d_out(64);
    gelu_forward(d_out.data, d_x.data, 64, stream);
    Floats out(64);
    const Floats x = d_x.values();
    // 0.054 for 0.044715
    for (int i = 0; i < 64; i++)
        out[i] = 0.5f * x[i] * (1 + std::tanh(0.79788456f * (x[i] + 0.054f * x[i] * x[i] * x[i])));
    EXPECT(!(relative_error(d_out.values(), out) < kernel_tolerance(1, 20)) || HALF);
    for (int i = 0; i < 64; i++)
        out[i] = 0.5f * x[i] * (1 + std::tanh(0.79788456f * (x[i] + 0.09f * x[i] * x[i] * x[i])));
    EXPECT(!(relative_error(d_out.values(), out) < kernel_tolerance(1, 20)));
}

static void kernel_tests(bool quick) {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    DeviceArray<char> workspace(BLAS_WORKSPACE_BYTES);
    start_blas(choose_gpu(0).name, workspace.data);
    for (const Shape& s : SHAPES)
        if (!quick || s.B * s.T < 70) encoder_kernels(s), attention_kernels(s);
    attention_places();
    for (const DocumentLayout& layout : DOCUMENT_LAYOUTS)
        for (const Shape& s : {Shape{2, 33, 48, 3}, Shape{1, 130, 64, 1}, Shape{1, 70, 144, 1}})
            if (!quick || (s.T == 33 && &layout == &DOCUMENT_LAYOUTS[2])) attention_with_documents(s, layout);
    for (const Shape& s : {Shape{2, 1, 48, 3}, Shape{2, 33, 48, 3}, Shape{1, 100, 64, 1}, Shape{1, 170, 144, 1}})
        if (!quick || s.T == 33) attention_with_windows(s, quick);
    const int widest = (int)layernorm_most_channels<floatX>();
    for (auto [rows, C] :
         {std::pair<int, int>{33, 48}, {1, 16}, {300, 40}, {37, 1024}, {7, 1600}, {3, 4104}, {2, widest}})
        if (!quick || rows == 33) layernorm_kernels(rows, C);
    for (auto [rows, C, OC] : {std::tuple<int, int, int>{33, 48, 192}, {1, 16, 48}, {130, 40, 120}})
        if (!quick || rows == 33) matmul_kernels(rows, C, OC);
    for (auto [rows, cols] : {std::pair<int, int>{16, 48}, {48, 16}, {64, 64}, {48, 192}, {192, 48}})
        if (!quick || rows == 48) orthogonalize_kernels(rows, cols);
    for (auto [rows, n] :
         {std::pair<int, int>{33, 33 * 48}, {1, 33}, {1, 1}, {1, 31}, {1, 4095}, {300, 300 * 40}, {3, 3 * 1600}})
        if (!quick || rows == 33) gelu_kernels(rows, n), dropout_kernels(rows, n), code_kernels(n);
    classifier_kernels(33, 33, 48, 97), classifier_kernels(33, 12, 48, 97, 0.3f);
    if (!quick) {
        // the last one has more Packs in a row than two for each thread
        for (int64_t V : {1, 40, 127, 128, 257, 5000, 2 * CLASSIFIER_THREADS * 8 + 12345})
            classifier_kernels(5, 5, 32, V);
        classifier_kernels(100, 32, 16, 40), classifier_kernels(20, 20, 16, 1037, 1);
    }
    // 300 rows have scales of more than one group of 256
    for (auto [rows, C] : {std::pair<int, int>{33, 48}, {1, 64}, {300, 40}, {5, 1600}})
        for (WeightFormat f : {WEIGHTS_INT8, WEIGHTS_INT4, WEIGHTS_NF4})
            if (!quick || rows == 33) weight_code_kernels(f, rows, C);
    for (double level : LARGE_SCORES)
        if (std::fabs(level) < HUGE_NUMBER && (!quick || level == LARGE_SCORES[0])) large_scores(level);
    // those with directions need a whole model: against_cpu()
    for (int o = 0; o < NUM_OPTIMIZERS; o++) {
        if (is_small(OPTIMIZERS[o].keeps.m))
            small_state_kernel((Optimizer)o, {}), small_state_kernel((Optimizer)o, {3, 1});
        else if (!OPTIMIZERS[o].whole_tensors) update_kernel((Optimizer)o);
        if (OPTIMIZERS[o].keeps.factors == KEEP_FACTORED && (!quick || o == ADAFACTOR)) factored_update((Optimizer)o);
    }
    unwanted_updates();
    if (HALF && !FP16) stochastic_rounding();
    checkers();
    blas.plans.clear();
    check_cuda(cudaStreamDestroy(stream), "freeing a stream");
}

// -------------------------------------------------------------------------------------------------
// the model against the CPU's, on random shapes

static void against_cpu(uint64_t seed, Optimizer optimizer, float rate) {
    MersenneTwister rng(seed);
    auto between = [&](int low, int high) { return low + (int)(rng.bits32() % (uint32_t)(high - low + 1)); };
    const int NH = between(1, 4), HS = 8 * between(2, 5), L = between(1, 3), V = between(2, 300), T = between(1, 70),
              B = between(1, 3), micro_steps = between(1, 3), end_of_text = seed % 2 ? -1 : V / 2;
    const GPT2Config config{T + between(0, 9), V, padded_vocab(V), L, NH, (int64_t)NH * HS};
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    start_test(
        format("20 steps of %s as on the CPU: L %d, C %d, NH %d, V %d, B %d, T %d, %d micro-steps, documents at %d",
               info.name, L, NH * HS, NH, V, B, T, micro_steps, end_of_text));
    Options o;
    const int recompute = between(0, 3);
    o.optimizer = info.name;
    o.gelu_fusion = between(0, 2), o.end_of_text = end_of_text;
    GPT2 model = make_model(config, B, T, recompute, 0, micro_steps, o);
    initialize_weights(model, seed);
    CpuOracle* oracle = cpu_oracle_start(config, B, T, micro_steps, seed, end_of_text, optimizer);
    std::vector<int> x(B * T), y(B * T);
    double worst_loss = 0, worst_norm = 0;
    for (int step = 0; step < 20; step++) {
        for (int micro = 0; micro < micro_steps; micro++) {
            for (int& token : x) token = between(0, V - 1);
            for (int i = 0; i < B * T; i++) y[i] = (x[i] * 3 + 1) % V;
            micro_step(model, {x.data(), y.data(), B, T, (float)LOSS_SCALE / (float)(B * T * micro_steps), micro,
                               micro + 1 == micro_steps});
            cpu_oracle_micro_step(oracle, x.data(), y.data(), micro);
        }
        UpdateSettings settings;
        settings.constants =
            update_constants(rate, (float)info.beta1, (float)info.beta2, (float)info.eps, 0.1f, 1.0f, step + 1);
        settings.tokens = B * T * micro_steps, settings.grad_clip = 1.0, settings.rounding_seed = step;
        const StepResult theirs = cpu_oracle_update(oracle, settings);
        settings.loss_scale = LOSS_SCALE;
        const StepResult mine = update(model, settings);
        const double loss_error = std::fabs(mine.loss - theirs.loss) / theirs.loss,
                     norm_error = std::fabs(mine.norm - theirs.norm) / theirs.norm;
        // written so that a NaN stays
        worst_loss = loss_error <= worst_loss ? worst_loss : loss_error,
        worst_norm = norm_error <= worst_norm ? worst_norm : norm_error;
    }
    EXPECT(worst_loss < (HALF ? loss_tolerance() : 1e-4));
    const double in_fp32 = optimizer == ADAMW8BIT ? 1e-3 : 1e-4;  // of two values near ties go either way
    if (!EXPECT(worst_norm < (HALF ? model_tolerance(L) : in_fp32)))
        printf("    loss %.3g norm %.3g\n", worst_loss, worst_norm);
    cpu_oracle_end(oracle);
    free_model(model);
}

// -------------------------------------------------------------------------------------------------
// memory

#ifndef CUSIM
// One step of a small model: the driver loads kernels and the library when they are first used, and
// takes memory for them.
static void warm_up() {
    GPT2 model = make_model(GPT2Config{40, 97, 128, 2, 3, 48}, 1, 33, 0, 0, 1);
    const std::vector<int> tokens(33, 5);
    initialize_weights(model, 1);
    micro_step(model, {tokens.data(), tokens.data(), 1, 33, 1.0f / 33});
    update(model, UpdateSettings{});
    free_model(model);
}
#endif

static void plan_tests() {
#ifndef CUSIM
    warm_up();
#endif
    for (int64_t micro_steps : {1, 2})
        for (auto [level, every] : LEVELS_OF_5_LAYERS) {
            start_test(format("the plan is what is allocated, to the byte: recompute %d, every %d, %d micro-steps",
                              (int)level, (int)every, (int)micro_steps));
            Options o;
            o.master_weights = level % 2, o.recompute_every = every, o.end_of_text = micro_steps - 2;
#ifdef CUSIM
            const size_t before = cusim::requested_bytes();
            GPT2 model = make_model(GPT2Config{40, 97, 128, 5, 3, 48}, 3, 33, level, 0, micro_steps, o);
            EXPECT((int64_t)(cusim::requested_bytes() - before) == plan_bytes(gpu_plan_rows(model, model.sizes, o)));
#else
            size_t before = 0, after = 0, total = 0;
            check_cuda(cudaMemGetInfo(&before, &total), "asking for memory");
            GPT2 model = make_model(GPT2Config{1024, 5000, 5120, 5, 4, 256}, 8, 512, level, 0, micro_steps, o);
            check_cuda(cudaMemGetInfo(&after, &total), "asking for memory");
            const int64_t taken = (int64_t)(before - after), planned = plan_bytes(gpu_plan_rows(model, model.sizes, o));
            EXPECT(taken >= planned && taken <= planned + (8 << 21));  // the driver allocates in units of 2 MiB
#endif
            free_model(model);
        }
#ifdef CUSIM
    // as if the processes had been connected
    check_cuda(cudaStreamCreateWithFlags(&gpu_comm.stream, cudaStreamNonBlocking), "making a stream");
    const auto pinned = [](const std::vector<PlanRow>& rows) {
        int64_t bytes = 0;
        for (const PlanRow& row : rows) bytes += row.name.find(", pinned") < row.name.size() ? row.bytes : 0;
        return bytes;
    };
    for (int n = 0; n < 10; n++) {  // T is less than C
        const char* const optimizer = std::array{"adamw", "lamb", "muon", "adafactor", "adamw8bit"}[n % 5];
        start_test(format("%s%s: the plan of one of four processes, stage 1, is what it allocates, to the byte",
                          optimizer, n < 5 ? "" : ", offloaded"));
        comm_count(4, 2);
        Options o;
        o.zero_stage = 1, o.optimizer = optimizer, o.offload = n < 5 ? "none" : "both";
        o.compress_gradients = n == 5 ? "1bit" : "none", o.compress_activations = n % 2;
        const size_t before = cusim::requested_bytes(), pinned_before = cusim::pinned_bytes();
        Sizes sizes{GPT2Config{40, 97, 128, 5, 3, 48}, 1, 33, n < 5 ? 1 : 3, 40, 0, true, 2, comm.processes};
        sizes.compressed_activations = o.compress_activations, sizes.compressed_gradients = n == 5;
        GPT2 model;
        model.backend = &GPU_BACKEND<floatX>;
        model.layout = parameter_layout(sizes.config, comm.processes);
        model.backend->settle(model, sizes, o);
        model.backend->allocate(model, sizes, o);
        EXPECT((int64_t)(cusim::requested_bytes() - before) == plan_bytes(gpu_plan_rows(model, sizes, o)) &&
               model.slice.state_elems(model.layout) * 4 == model.layout.total_elems());
        EXPECT((int64_t)(cusim::pinned_bytes() - pinned_before) == pinned(gpu_host_plan_rows(model, sizes, o)));
        const bool has_states = n >= 5 && (model.master || OPTIMIZERS[model.optimizer].keeps.m != KEEP_NONE);
        EXPECT(has_states != model.gpu->offload.states.empty() && (n < 5) == !model.gpu->offload.inputs);
        comm_count(1);
        free_model(model);
    }
#endif
}

int main(int argc, char** argv) {
    const std::string only = argc > 1 ? argv[1] : "";
    if (only == "train")
        return run_program([&] {
            Run run;
            run.options = options_of_command(argc - 1, argv + 1);
            return train(run);
        });
    choose_gpu(0);
    auto wanted = [&](const char* group) { return only.empty() || only == group; };
    if (wanted("kernels") || only == "quick") kernel_tests(only == "quick");
    if (wanted("pytorch")) model_tests();
    if (wanted("cpu")) {
        for (uint64_t seed = 1; seed <= 4; seed++) against_cpu(seed, ADAMW, 1e-3f);
        for (int k = 0; k < NUM_OPTIMIZERS; k++)
            if (OPTIMIZERS[k].whole_tensors || is_small(OPTIMIZERS[k].keeps.m))
                against_cpu(5 + k, (Optimizer)k, k == ADAFACTOR ? 1e-2f : 1e-3f);
    }
    if (wanted("plan")) plan_tests();
    return report_tests();
}
