// Causal self-attention, backward: dqkv from dout, out, lse and qkv. FLOPs: 5 B T^2 C. Bytes, at
// least: dout, out and qkv read, dqkv written.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/attention.cuh"

struct Operands {
    bf16* dqkv;
    const bf16 *dout, *out, *qkv;
    const float* lse;
    float *delta, *p, *ds;  // p, ds (B,NH,T,T): the first rung only
    int B, T, C, NH, HS;
    __device__ const bf16* row(int b, int t, int which, int h) const {
        return qkv + ((int64_t)b * T + t) * 3 * C + which * C + h * HS;
    }
    __device__ const bf16* out_row(int b, int t, int h) const { return out + ((int64_t)b * T + t) * C + h * HS; }
    __device__ const bf16* dout_row(int b, int t, int h) const { return dout + ((int64_t)b * T + t) * C + h * HS; }
    __device__ bf16* grad(int b, int t, int which, int h) const {
        return dqkv + ((int64_t)b * T + t) * 3 * C + which * C + h * HS;
    }
    __device__ float log_sum(int bh, int t) const { return lse[(int64_t)bh * T + t]; }
};
__device__ inline float dot(const bf16* a, const bf16* b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += (float)a[i] * (float)b[i];
    return sum;
}

// delta (B,NH,T), by one thread per position of a head.
__global__ void dots_kernel(Operands o) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)o.B * o.NH * o.T) return;
    const int t = i % o.T, h = i / o.T % o.NH, b = i / o.T / o.NH;
    o.delta[i] = dot(o.dout_row(b, t, h), o.out_row(b, t, h), o.HS);
}
// One thread per pair of query and key: stores its probability and the gradient of its score.
__global__ void pairs_kernel(Operands o) {
    const int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y, bh = blockIdx.z, b = bh / o.NH,
              h = bh % o.NH;
    if (key > query) return;
    const float scale = rsqrtf((float)o.HS);
    const float p = expf(dot(o.row(b, query, 0, h), o.row(b, key, 1, h), o.HS) * scale - o.log_sum(bh, query));
    const int64_t at = ((int64_t)bh * o.T + query) * o.T + key;
    o.p[at] = p;
    o.ds[at] =
        p * (dot(o.dout_row(b, query, h), o.row(b, key, 2, h), o.HS) - o.delta[(int64_t)bh * o.T + query]) * scale;
}
// One block per position of a head, one thread per channel: the three sums over the matrices.
__global__ void sums_kernel(Operands o) {
    const int c = threadIdx.x, t = blockIdx.x, bh = blockIdx.y, b = bh / o.NH, h = bh % o.NH;
    float dq = 0, dk = 0, dv = 0;
    for (int key = 0; key <= t; key++) dq += o.ds[((int64_t)bh * o.T + t) * o.T + key] * (float)o.row(b, key, 1, h)[c];
    for (int query = t; query < o.T; query++) {
        const int64_t at = ((int64_t)bh * o.T + query) * o.T + t;
        dk += o.ds[at] * (float)o.row(b, query, 0, h)[c];
        dv += o.p[at] * (float)o.dout_row(b, query, h)[c];
    }
    o.grad(b, t, 0, h)[c] = (bf16)dq, o.grad(b, t, 1, h)[c] = (bf16)dk, o.grad(b, t, 2, h)[c] = (bf16)dv;
}
// No matrices. One warp per position of a head recomputes the probabilities of its pairs: once as a
// query (for dq), once as a key (for dk and dv). A lane holds every 32nd channel.
constexpr int MOST_CHANNELS = 4;
__global__ void recompute_kernel(Operands o) {
    const int t = blockIdx.x * blockDim.y + threadIdx.y, bh = blockIdx.y, b = bh / o.NH, h = bh % o.NH,
              lane = threadIdx.x;
    if (t >= o.T) return;
    const float scale = rsqrtf((float)o.HS);
    float dq[MOST_CHANNELS] = {}, dk[MOST_CHANNELS] = {}, dv[MOST_CHANNELS] = {};
    auto pair = [&](int query, int key, float& p, float& ds) {
        float score = 0, dp = 0;
        for (int c = lane; c < o.HS; c += 32)
            score += (float)o.row(b, query, 0, h)[c] * (float)o.row(b, key, 1, h)[c],
                dp += (float)o.dout_row(b, query, h)[c] * (float)o.row(b, key, 2, h)[c];
        p = expf(warp_sum(score) * scale - o.log_sum(bh, query));
        ds = p * (warp_sum(dp) - o.delta[(int64_t)bh * o.T + query]) * scale;
    };
    float p, ds;
    for (int key = 0; key <= t; key++) {
        pair(t, key, p, ds);
        for (int i = 0; i < MOST_CHANNELS; i++)
            if (lane + 32 * i < o.HS) dq[i] += ds * (float)o.row(b, key, 1, h)[lane + 32 * i];
    }
    for (int query = t; query < o.T; query++) {
        pair(query, t, p, ds);
        for (int i = 0; i < MOST_CHANNELS; i++)
            if (lane + 32 * i < o.HS)
                dk[i] += ds * (float)o.row(b, query, 0, h)[lane + 32 * i],
                    dv[i] += p * (float)o.dout_row(b, query, h)[lane + 32 * i];
    }
    for (int i = 0; i < MOST_CHANNELS; i++)
        if (lane + 32 * i < o.HS)
            o.grad(b, t, 0, h)[lane + 32 * i] = (bf16)dq[i], o.grad(b, t, 1, h)[lane + 32 * i] = (bf16)dk[i],
                                           o.grad(b, t, 2, h)[lane + 32 * i] = (bf16)dv[i];
}

// The shipped kernels with 16 rows per warp.
struct Backward16 {
    AttentionBackward<false> backward;
    template <int HS, int KEYS, int COLS, int M>
    void run() {
        backward.run<HS, KEYS, COLS, 1>();
    }
};

BENCH("attention_backward", dims("B", "T", "C", "NH"),
      shapes({{16, 1024, 768, 12}, {2, 67, 64, 1}, {1, 70, 96, 3}, {1, 33, 128, 1}}, counted({1, 256, 128, 2}))) {
    const int64_t B = shape[0], T = shape[1], C = shape[2], NH = shape[3], HS = C / NH, rows = B * T;
    float *qkv = random_floats(rows * 3 * C, 1.5), *dout = random_floats(rows * C), *out = buffer<float>(rows * C),
          *lse = buffer<float>(rows * NH), *dqkv = buffer<float>(rows * 3 * C);
    bf16 *d_qkv = on_device<bf16>(qkv, rows * 3 * C), *d_dout = on_device<bf16>(dout, rows * C),
         *d_out = device_buffer<bf16>(rows * C), *d_dqkv = device_buffer<bf16>(rows * 3 * C);
    float *d_lse = device_buffer<float>(rows * NH), *d_D = device_buffer<float>(rows * NH),
          *d_partials = device_buffer<float>(ATTENTION_PARTS * 3 * C), *d_p = device_buffer<float>(B * NH * T * T),
          *d_ds = device_buffer<float>(B * NH * T * T);
    setup([=] { attention_forward(d_out, d_lse, d_qkv, B, T, C, NH, stream); });
    const Operands o{d_dqkv, d_dout, d_out, d_qkv, d_lse, d_D, d_p, d_ds, (int)B, (int)T, (int)C, (int)NH, (int)HS};
    flops(5.0 * B * T * T * C), bytes(2.0 * rows * 8 * C);
    output("dqkv", dqkv, rows * 3 * C, 0), device_output("dqkv", d_dqkv, rows * 3 * C, bf16_tolerance(3, HS + 2 * T));
    expected([=] {
        std::vector<bf16> stored(rows * C);
        copy_from_device(stored.data(), d_out, rows * C * sizeof(bf16));
        copy_from_device(lse, d_lse, rows * NH * sizeof(float));
        std::copy(stored.begin(), stored.end(), out);
        reference::attention_backward(dqkv, dout, out, lse, qkv, B, T, C, NH);
    });
    auto dots = [=] { launch("dots", dots_kernel, grid_for(B * NH * T, 64, 1, 1), 64, 0, stream, o); };
    auto naive = [=] {
        dots();
        launch("pairs", pairs_kernel, grid_for(T, 64, T, 1, B * NH), 64, 0, stream, o);
        launch("sums", sums_kernel, grid_for(T, 1, B * NH, 1), (unsigned)HS, 0, stream, o);
    };
    variant_bf16("naive",
                 "probabilities and score gradients of all pairs in memory, then three sums over these matrices",
                 naive);
    auto recompute = [=] {
        dots();
        launch("recompute", recompute_kernel, grid_for(T, 4, B * NH, 1), dim3(32, 4), 0, stream, o);
    };
    variant_bf16("recompute",
                 "no matrices: each probability is recomputed from lse wherever it is needed, twice; that saves the "
                 "memory, and costs dot products",
                 recompute);
    auto tensor_cores = [=] {
        Backward16 backward{{d_dqkv, d_D, d_dout, d_out, d_lse, d_qkv, B, T, C, NH, stream, {}, 0, NH}};
        for_head_size(HS, backward);
    };
    variant_bf16(
        "tensor-cores",
        "tiles on tensor cores, two buffers; one kernel for dq, which computes delta on the way, and one for dk "
        "and dv, which computes the scores transposed, so that they are the next product's operand; no "
        "atomics; 16 rows per warp",
        tensor_cores);
    auto shipped = [=] {
        attention_backward(d_dqkv, d_D, d_dout, d_out, d_lse, d_qkv, B, T, C, NH, stream, {}, d_partials);
    };
    variant_bf16("shipped",
                 "32 rows per warp, where registers allow: each fragment that is loaded from shared memory serves two "
                 "of these rows; the sums over rows, for the bias of the layer before, are left on the way",
                 shipped);
}
