// ----- task
// Two products on several processes (Shoeybi et al. 2019, arXiv:1909.08053, section 3), forward and
// backward:
//
//     y = max(0, x a^T),    z = y b^T + bias
//
// a (size * H, C) is cut by rows and b (C, size * H) by columns: this rank has H of each. x, bias
// and dz, the gradient of z, are the same on all ranks.
//
//     x, z, dx, dz (T, C)      a, da (H, C)      b, db (C, H)      bias (C)
//
// Written are z and dx, as one process would have them with all of a and b, and da and db, the
// gradients of what this rank has. At most 2 T C numbers go through all_reduce.
//
//     me.rank, me.size
//     me.all_reduce(data, n)     data (n) becomes the sum over the ranks
void column_row(Rank& me, float* z, float* dx, float* da, float* db, const float* x, const float* a, const float* b,
                const float* bias, const float* dz, int64_t T, int64_t C, int64_t H) {
    // your code
}

// ----- solution
void column_row(Rank& me, float* z, float* dx, float* da, float* db, const float* x, const float* a, const float* b,
                const float* bias, const float* dz, int64_t T, int64_t C, int64_t H) {
    std::fill(z, z + T * C, 0.0f), std::fill(dx, dx + T * C, 0.0f);
    std::fill(da, da + H * C, 0.0f), std::fill(db, db + C * H, 0.0f);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            float y = 0, dy = 0;
            for (int64_t c = 0; c < C; c++) y += x[t * C + c] * a[h * C + c];
            const bool passes = y > 0;
            if (!passes) y = 0;
            for (int64_t c = 0; c < C; c++) {
                z[t * C + c] += y * b[c * H + h];
                db[c * H + h] += y * dz[t * C + c];
                dy += dz[t * C + c] * b[c * H + h];
            }
            if (!passes) dy = 0;
            for (int64_t c = 0; c < C; c++) dx[t * C + c] += dy * a[h * C + c], da[h * C + c] += dy * x[t * C + c];
        }
    me.all_reduce(z, T * C);
    for (int64_t i = 0; i < T * C; i++) z[i] += bias[i % C];
    me.all_reduce(dx, T * C);
}

// ----- mistakes
//     no-sum: me.all_reduce(z, T * C); ==> ;
//     no-sum-backward: me.all_reduce(dx, T * C); ==> ;
//     bias: me.all_reduce(z, T * C); ==> for (int64_t i = 0; i < T * C; i++) z[i] += (me.size - 1) * bias[i % C] /
//         me.size; me.all_reduce(z, T * C);
//     gradient-summed: std::fill(z, ==> std::vector<float> sum(dz, dz + T * C); me.all_reduce(sum.data(), T * C);
//         dz = sum.data(); std::fill(z,
//     weights-summed: me.all_reduce(dx, T * C); ==> me.all_reduce(dx, T * C); me.all_reduce(da, H * C);
//         me.all_reduce(db, C * H);
//     gate: if (!passes) dy = 0; ==> ;
//     bytes: me.all_reduce(dx, T * C); ==> me.all_reduce(dx, T * C); std::vector<float> more(H);
//         me.all_reduce(more.data(), H);
//     deadlock: me.all_reduce(dx, T * C); ==> if (me.rank == 0) me.all_reduce(dx, T * C);

// ----- judge
#include "dev/course/exercises/ranks.h"
struct Pair {
    int64_t size, T, C, H;
    std::vector<float> x, a, b, bias, dz;  // a (size, H, C), b (size, C, H): those of all ranks
};
// z and dx of all ranks, da and db of each.
static Arrays pair_with(const Pair& p, const Key& wrong) {
    const int64_t size = p.size, T = p.T, C = p.C, H = p.H, n = T * C;
    std::vector<double> z(size * n), dx(size * n), da(size * H * C), db(size * C * H);
    const double scale = wrong == "gradient-summed" ? (double)size : 1;
    for (int64_t r = 0; r < size; r++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++) {
                const float *a = &p.a[(r * H + h) * C], *b = &p.b[r * C * H + h], *x = &p.x[t * C];
                double y = 0, dy = 0;
                for (int64_t c = 0; c < C; c++) y += (double)x[c] * a[c], dy += scale * p.dz[t * C + c] * b[c * H];
                if (y <= 0 && wrong != "gate") dy = 0;
                y = std::max(y, 0.0);
                for (int64_t c = 0; c < C; c++) {
                    for (int64_t to = 0; to < size; to++) {
                        if (wrong != "no-sum" || to == r) z[to * n + t * C + c] += y * b[c * H];
                        if (wrong != "no-sum-backward" || to == r) dx[to * n + t * C + c] += dy * a[c];
                    }
                    for (int64_t to = 0; to < size; to++) {
                        if (wrong != "weights-summed" && to != r) continue;
                        da[(to * H + h) * C + c] += dy * x[c];
                        db[to * C * H + c * H + h] += scale * p.dz[t * C + c] * y;
                    }
                }
            }
    for (size_t i = 0; i < z.size(); i++) z[i] += (wrong == "bias" ? (double)size : 1) * p.bias[i % C];
    return {z, dx, da, db};
}

void judge(Judge& j, decltype(task::column_row)* column_row) {
    j.hints = {{"deadlock", "not all ranks make the same collective calls, in the same order."},
               {"no-sum", "each rank has a part of the sum that z is: the sum over the ranks is missing."},
               {"no-sum-backward", "x went to all ranks, so dx is the sum of what each of them computes."},
               {"bias", "the bias is in every part of the sum, so it is added once for each rank."},
               {"gradient-summed", "dz is the same on all ranks already: a sum over the ranks makes it too large."},
               {"weights-summed", "each rank has weights of its own: their gradients are no sums over the ranks."},
               {"gate", "where y is 0, no gradient passes."},
               {"bytes", "more goes through all_reduce than z and dx."}};
    for (auto [size, T, C, H] : {std::tuple<int, int64_t, int64_t, int64_t>{1, 2, 3, 2}, {2, 3, 4, 5}, {3, 5, 3, 4}}) {
        j.sizes("%d ranks, T %d, C %d, H %d", size, (int)T, (int)C, (int)H);
        const int64_t weights = size * H * C, n = T * C;
        const Pair p{size, T, C, H, j.random(n), j.random(weights), j.random(weights), j.random(C), j.random(n)};
        std::vector<float> z(size * n), dx(size * n), da(weights), db(weights);
        Post post;
        const std::string problem = run_ranks(size, post, [&, T = T, C = C, H = H](Rank& me) {
            const int64_t r = me.rank, w = r * H * C;
            column_row(me, &z[r * n], &dx[r * n], &da[w], &db[w], p.x.data(), &p.a[w], &p.b[w], p.bias.data(),
                       p.dz.data(), T, C, H);
        });
        if (!problem.empty()) {
            j.expect(false, "deadlock", "%s", problem.c_str());
            continue;
        }
        const std::vector<float> before(std::max(size * n, weights));
        j.check({{"z of rank", {size, n}, z, before},
                 {"dx of rank", {size, n}, dx, before},
                 {"da of rank", {size, H * C}, da, before},
                 {"db of rank", {size, C * H}, db, before}},
                [&](const Key& wrong) -> Arrays { return pair_with(p, wrong); });
        const int64_t sent = *std::max_element(post.sent_floats.begin(), post.sent_floats.end());
        j.expect(size == 1 || j.failed || sent <= 2 * n * size, "bytes",
                 "%d numbers went through all_reduce, asked: %d", (int)(sent / size), (int)(2 * n));
    }
}
