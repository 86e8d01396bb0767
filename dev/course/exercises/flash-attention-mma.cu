// ----- task
// Causal attention of one head on tensor cores (Dao 2023, arXiv:2307.08691, algorithm 1):
//
//     s[t,u] = q[t] . k[u] / sqrt(HS)
//     p[t,u] = softmax of s[t,0] ... s[t,t]
//     out[t] = sum over u <= t of p[t,u] v[u]
//
// q, k, v (T, HS) are bf16, out (T, HS) is float; HS = 64, T is a multiple of 16. One warp, block b
// of the grid, computes the 16 queries from 16 b on. It goes through the keys in tiles of 16, up to
// its own, and never holds more scores than 16 x 16. In registers it keeps, for each of its rows,
// the largest score so far, the sum of the exponentials, and out as fragments. For a tile:
//
//     1. two fragments s[0], s[1] (16 queries x 8 keys each): 4 steps of mma over HS; then / sqrt(HS), and the mask
//     2. the new largest score of each row; what was summed so far is scaled by e^(old - new), out too
//     3. p = e^(s - largest), its sum; p becomes operand A of the next product as it is: see llmc/cuda/mma.cuh
//     4. out (16 x 64, 8 fragments) += p (16 x 16) v (16 x 64)
//
// A lane holds parts of two rows, g = lane / 4 and g + 8: c[0], c[1] and c[2], c[3] of each
// fragment. The other parts of a row are in the 4 lanes of the same g: two shuffles, of distance 1
// and 2, combine them. At the end out is divided by the sums.
//
// two_bf16(p) loads two neighbours p[0], p[1], column_bf16(p, stride) two of a column, p[0] and
// p[stride]; pack_pair<bf16>(x, y) rounds two floats; each makes one register of a fragment.
constexpr int HS = 64;
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__device__ inline uint32_t column_bf16(const bf16* p, int stride) {
    return pack_pair<bf16>((float)p[0], (float)p[stride]);
}
__global__ void flash_attention(float* out, const bf16* q, const bf16* k, const bf16* v, int T) {
    // your code
}

// ----- solution
constexpr int HS = 64;
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__device__ inline uint32_t column_bf16(const bf16* p, int stride) {
    return pack_pair<bf16>((float)p[0], (float)p[stride]);
}
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
// s (16 x 16, two fragments) = q k^T / sqrt(HS) of one tile, with the mask.
__device__ inline void scores(float (&s)[2][4], const bf16* q, const bf16* k, int first_query, int first_key) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i++) s[half][i] = 0;
        const bf16* key = k + (first_key + half * 8 + g) * HS + 2 * t;
        for (int h = 0; h < HS; h += 16) {
            const bf16* row = q + (first_query + g) * HS + h + 2 * t;
            const bf16* below = row + 8 * HS;
            const uint32_t a[4] = {two_bf16(row), two_bf16(below), two_bf16(row + 8), two_bf16(below + 8)};
            mma(s[half], a, two_bf16(key + h), two_bf16(key + h + 8));
        }
        for (int i = 0; i < 4; i++) {
            const int query = first_query + g + i / 2 * 8, u = first_key + half * 8 + 2 * t + i % 2;
            s[half][i] = u <= query ? s[half][i] * 0.125f : -INFINITY;
        }
    }
}
__global__ void flash_attention(float* out, const bf16* q, const bf16* k, const bf16* v, int T) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, first_query = blockIdx.x * 16;
    float o[HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int first_key = 0; first_key <= first_query; first_key += 16) {
        float s[2][4];
        scores(s, q, k, first_query, first_key);
        for (int r = 0; r < 2; r++) {  // rows g and g + 8
            const float own = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            const float larger = fmaxf(m[r], row_max(own)), scale = expf(m[r] - larger);
            float added = 0;
            for (int half = 0; half < 2; half++)
                for (int i = 2 * r; i < 2 * r + 2; i++) added += s[half][i] = expf(s[half][i] - larger);
            sum[r] = sum[r] * scale + row_sum(added);
            for (int n = 0; n < HS / 8; n++) o[n][2 * r] *= scale, o[n][2 * r + 1] *= scale;
            m[r] = larger;
        }
        const uint32_t p[4] = {pack_pair<bf16>(s[0][0], s[0][1]), pack_pair<bf16>(s[0][2], s[0][3]),
                               pack_pair<bf16>(s[1][0], s[1][1]), pack_pair<bf16>(s[1][2], s[1][3])};
        for (int n = 0; n < HS / 8; n++) {
            const bf16* value = v + (first_key + 2 * t) * HS + n * 8 + g;
            mma(o[n], p, column_bf16(value, HS), column_bf16(value + 8 * HS, HS));
        }
    }
    for (int n = 0; n < HS / 8; n++)
        for (int i = 0; i < 4; i++)
            out[(first_query + g + i / 2 * 8) * HS + n * 8 + 2 * t + i % 2] = o[n][i] / sum[i / 2];
}

// ----- mistakes
//     scale: * 0.125f ==> * 1.0f
//     mask: u <= query ? ==> true ?
//     mask-self: u <= query ? ==> u < query || u == 0 ?
//     rescale-out: o[n][2 * r] *= scale, o[n][2 * r + 1] *= scale; ==> ;
//     rescale-sum: sum[r] = sum[r] * scale + ==> sum[r] = sum[r] +
//     lanes: row_sum(added) ==> added
//     divided: o[n][i] / sum[i / 2] ==> o[n][i]
//     transposed: column_bf16(value, HS), column_bf16(value + 8 * HS, HS) ==>
//         two_bf16(v + (first_key + g) * HS + n * 8 + 2 * t), two_bf16(v + (first_key + g + 8) * HS + n * 8 + 2 *
//         t)
//     scalar: mma(s[half], a, two_bf16(key + h), two_bf16(key + h + 8)); ==> for (int i = 0; i < 4; i++)
//         for (int c = h; c < h + 16; c++) s[half][i] += (float)q[(first_query + g + i / 2 * 8) * HS + c] *
//         (float)k[(first_key + half * 8 + 2 * t + i % 2) * HS + c];
//     largest: larger = fmaxf(m[r], row_max(own)) ==> larger = 0
//     mma: first_key <= first_query; first_key ==> first_key < T; first_key
//     alone: out[(first_query + g + i / 2 * 8) * HS + n * 8 + 2 * t + i % 2] = o[n][i] / sum[i / 2]; ==>
//         if (threadIdx.x + n + i == 0) for (int r = first_query; r < first_query + 16; r++) {
//         double all = 0, mean[HS] = {}; for (int u = 0; u <= r; u++) { double p = 0;
//         for (int h = 0; h < HS; h++) p += (float)q[r * HS + h] * (float)k[u * HS + h]; all += p = exp(p / 8);
//         for (int h = 0; h < HS; h++) mean[h] += p * (float)v[u * HS + h]; }
//         for (int h = 0; h < HS; h++) out[r * HS + h] = mean[h] / all; }

// ----- limits
//     counted mma >= 160, scalar: products are made one by one, not on tensor cores: 8 mma for the scores of a tile
//         of 16
//         keys, 8 for its part of out.
//     counted mma <= 160, mma: tiles that lie wholly behind the mask need not be computed, and each product of a
//         tile is
//         made once: 16 mma per tile of 16 keys.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
static std::vector<double> attention_with(const std::vector<bf16>& q, const std::vector<bf16>& k,
                                          const std::vector<bf16>& v, int T, int t, const Key& wrong) {
    const int HS = 64;
    std::vector<double> out(HS), lane_sums(4);
    double m = -INFINITY, sum = 0;
    for (int first = 0; first <= t / 16 * 16; first += 16) {  // tile by tile: some mistakes depend on them
        double s[16], larger = m;
        for (int u = first; u < first + 16; u++) {
            double& score = s[u - first];
            score = 0;
            for (int i = 0; i < HS; i++) score += (double)(float)q[t * HS + i] * (float)k[u * HS + i];
            score *= wrong == "scale" ? 1 : 0.125;
            const bool seen = wrong == "mask" || (wrong == "mask-self" ? u < t || u == 0 : u <= t);
            if (!seen) score = -INFINITY;
            larger = std::max(larger, score);
        }
        if (wrong == "largest") larger = 0;
        const double scale = float_exp(m - larger);
        sum *= wrong == "rescale-sum" ? 1 : scale;
        for (double& lane : lane_sums) lane *= scale;
        for (double& o : out) o *= wrong == "rescale-out" ? 1 : scale;
        for (int u = 0; u < 16; u++) {
            const double p = float_exp(s[u] - larger);
            sum += p, lane_sums[u % 8 / 2] += p;
            for (int i = 0; i < HS; i++) {
                int row = u, column = i;
                if (wrong == "transposed") row = u / 8 * 8 + i % 8, column = i / 8 * 8 + u % 8;
                out[i] += p * (float)v[(first + row) * HS + column];
            }
        }
        m = larger;
    }
    for (int i = 0; i < HS; i++) out[i] /= wrong == "divided" ? 1 : wrong == "lanes" ? lane_sums[i % 8 / 2] : sum;
    return out;
}

void judge(Judge& j, decltype(task::flash_attention)* flash_attention) {
    j.cuda = true;
    j.tolerance = 0.01;  // p is rounded to bf16
    j.hints = {{"scale", "the scores are not divided by sqrt(HS) = 8."},
               {"mask", "positions see the future of their own tile: the last tile needs the mask u <= t."},
               {"mask-self", "the mask is off by one: a position sees itself too."},
               {"rescale-out", "out is not scaled by e^(old largest - new largest) when a larger score comes."},
               {"rescale-sum", "the sum is not scaled by e^(old largest - new largest) when a larger score comes."},
               {"lanes", "each lane divides by its own part of the sum: a row is spread over 4 lanes."},
               {"largest", "nothing is subtracted from the scores before e^x, which overflows from 89 on."},
               {"divided", "out is not divided by the sums."},
               {"transposed",
                "v is loaded as k is. But its columns are summed over: b0 holds two rows of v in one column, "
                "column_bf16(p, HS)."}};
    for (auto [T, scale] : {std::pair<int, double>{16, 1}, {48, 1}, {32, 4}, {32, 24}, {64, 2}}) {
        j.sizes("T %d, HS 64, q, k, v up to %g", T, scale);
        std::vector<bf16> x[3];
        for (auto& part : x)
            for (float value : j.random(T * 64, scale)) part.push_back((bf16)value);
        OnDevice<float> out(begins(T * 64));
        OnDevice<bf16> q(x[0]), k(x[1]), v(x[2]);
        run(T == 64 ? "counted" : "flash_attention", flash_attention, T / 16, 32, out, q, k, v, T);
        j.check({{"out", {T, 64}, out.fetch()}}, [&, T = T, scale = scale](const Key& wrong) -> Arrays {
            std::vector<double> all;
            for (int t = 0; t < T; t++) {
                const std::vector<double> row = attention_with(x[0], x[1], x[2], T, t, wrong);
                all.insert(all.end(), row.begin(), row.end());
            }
            // there the sum of a lane may be too small for a float
            if (wrong == "lanes" && scale > 20) std::fill(all.begin(), all.end(), ANY);
            return {all};
        });
    }
}
