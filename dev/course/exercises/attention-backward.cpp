// ----- task
// The gradient of causal self-attention. Forward, for one sequence and one head:
//
//     s[t,u] = q[t] . k[u] / sqrt(HS)
//     p[t,u] = softmax of s[t,0] ... s[t,t]
//     out[t] = sum over u <= t of p[t,u] v[u]
//
// From the last line to the first: Dv[u] and Dp[t,u] from Dout, Ds[t,u] from Dp, then Dq[t] and
// Dk[u]. For the softmax, use dp[w]/ds[u] = p[w] ((1 if w = u, else 0) - p[u]).
//
// qkv.grad (B * T, 3C) is added to, from out.grad (B * T, C), qkv.value and p.value (B * NH * T,
// T), which hold what the forward pass left there; row (b * NH + h) * T + t of p is p[t,0] ...
// p[t,t], and the rest of the row is undefined. A row of qkv has the queries of all heads, NH times
// HS numbers, then all keys, then all values. p.grad is zero, and may be used for Dp.
void attention_backward(Tensor& out, Tensor& p, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t B = out.rows / T, C = out.cols, HS = C / NH;
    // your code
}

// ----- solution: dev/course/gpt2.cpp attention_backward

// ----- shipped
#include "llmc/cpu/reference.h"
void attention_backward(Tensor& out, Tensor&, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t B = out.rows / T, C = out.cols;
    std::vector<float> again(B * T * C), lse(B * NH * T), dqkv(B * T * 3 * C);
    reference::attention_forward(again.data(), lse.data(), qkv.row(0), B, T, C, NH);
    reference::attention_backward(dqkv.data(), out.grad_row(0), again.data(), lse.data(), qkv.row(0), B, T, C, NH);
    for (size_t i = 0; i < dqkv.size(); i++) qkv.grad[i] += dqkv[i];
}

// ----- mistakes
//     scale: sum_p_dp) * scale ==> sum_p_dp)
//     softmax: (dp_row[u] - sum_p_dp) ==> dp_row[u]
//     p: p_row[u] * (dp_row[u] - sum_p_dp) ==> (dp_row[u] - sum_p_dp)
//     unweighted: sum_p_dp += p_row[u] * dp_row[u] ==> sum_p_dp += dp_row[u]
//     dv: dv[i] += p_row[u] * dout[i] ==> dv[i] += dout[i]
//     swapped: dq[i] += ds * k[i] ==> dq[i] += ds * q[i] ;; dk[i] += ds * q[i] ==> dk[i] += ds * k[i]
//     last-use: dk[i] += ==> dk[i] =

// ----- judge
// One head of one sequence, q, k, v, dout (T, HS): the gradients of q, k and v, or if dout is null
// the outputs.
struct Head {
    std::vector<double> q, k, v, dout;
};
static Arrays head_gradient(const Head& x, int64_t T, int64_t HS, const Key& wrong, std::vector<double>* probabilities,
                            double* loss) {
    Arrays d(3, std::vector<double>(T * HS));
    const double scale = 1 / std::sqrt((double)HS);
    for (int64_t t = 0; t < T; t++) {
        std::vector<double> p(t + 1), dp(t + 1);
        double sum = 0, sum_p_dp = 0;
        for (int64_t u = 0; u <= t; u++) {
            for (int64_t i = 0; i < HS; i++) p[u] += x.q[t * HS + i] * x.k[u * HS + i] * scale;
            sum += p[u] = std::exp(p[u]);
        }
        for (int64_t u = 0; u <= t; u++) {
            p[u] /= sum;
            if (probabilities) (*probabilities)[t * T + u] = p[u];
            for (int64_t i = 0; i < HS; i++) {
                dp[u] += x.dout[t * HS + i] * x.v[u * HS + i];
                d[2][u * HS + i] += x.dout[t * HS + i] * (wrong == "dv" ? 1 : p[u]);
            }
            sum_p_dp += (wrong == "unweighted" ? 1 : p[u]) * dp[u];
        }
        if (loss) *loss += sum_p_dp;  // = dout[t] . out[t]
        for (int64_t u = 0; u <= t; u++) {
            const double centred = wrong == "softmax" ? dp[u] : dp[u] - sum_p_dp;
            const double ds = (wrong == "p" ? 1 : p[u]) * centred * (wrong == "scale" ? 1 : scale);
            for (int64_t i = 0; i < HS; i++) {
                const double q = x.q[t * HS + i], k = x.k[u * HS + i];
                double& dk = d[1][u * HS + i];
                d[0][t * HS + i] += ds * (wrong == "swapped" ? q : k);
                dk = (wrong == "last-use" ? 0 : dk) + ds * (wrong == "swapped" ? k : q);
            }
        }
    }
    return d;
}

void judge(Judge& j, decltype(task::attention_backward)* attention_backward) {
    j.hints = {{"softmax",
                "Ds lacks the second term of the softmax's gradient: Ds[u] = p[u] (Dp[u] - sum over w of p[w] "
                "Dp[w])."},
               {"unweighted", "the sum that is subtracted from Dp is over p[w] Dp[w], not over Dp[w]."},
               {"p", "Ds lacks the factor p[u]: Ds[u] = p[u] (Dp[u] - sum over w of p[w] Dp[w])."},
               {"scale", "the scores were divided by sqrt(HS): so are the gradients of q and k."},
               {"dv", "Dv[u] is the sum of p[t,u] Dout[t]: the factor p[t,u] is missing."},
               {"swapped", "q and k are exchanged: Dq is made of k, and Dk of q."},
               {"last-use", "Dk is overwritten by each t: it is the sum over all t >= u."}};
    for (auto [B, T, NH, HS] : {std::array<int64_t, 4>{1, 1, 1, 3}, {1, 4, 1, 2}, {2, 5, 3, 3}, {1, 33, 2, 16}}) {
        const int64_t C = NH * HS;
        const bool small = T < 10;
        j.sizes("B %d, T %d, NH %d, HS %d%s", (int)B, (int)T, (int)NH, (int)HS, small ? ", by finite differences" : "");
        Tensor out(B * T, C), p(B * NH * T, T), qkv(B * T, 3 * C);
        qkv.value = j.random(B * T * 3 * C), out.grad = j.random(B * T * C), qkv.grad = begins(B * T * 3 * C);
        p.value = begins(B * NH * T * T);
        std::vector<Head> heads;
        for (int64_t b = 0; b < B; b++)
            for (int64_t h = 0; h < NH; h++) {
                Head x;
                for (int64_t t = 0; t < T; t++)
                    for (int64_t i = h * HS; i < (h + 1) * HS; i++) {
                        const float* row = qkv.row(b * T + t);
                        x.q.push_back(row[i]), x.k.push_back(row[C + i]), x.v.push_back(row[2 * C + i]);
                        x.dout.push_back(out.grad_row(b * T + t)[i]);
                    }
                std::vector<double> kept(T * T);
                head_gradient(x, T, HS, "", &kept, nullptr);
                for (int64_t t = 0; t < T; t++)
                    for (int64_t u = 0; u <= t; u++) p.row((b * NH + h) * T + t)[u] = (float)kept[t * T + u];
                heads.push_back(x);
            }
        for (int64_t b = 0; b < B; b++)  // out of the forward pass: sum over u of p v
            for (int64_t t = 0; t < T; t++)
                for (int64_t c = 0; c < C; c++)
                    for (int64_t u = 0; u <= t; u++)
                        out.row(b * T + t)[c] += p.row((b * NH + c / HS) * T + t)[u] * qkv.row(b * T + u)[2 * C + c];
        attention_backward(out, p, qkv, NH, T);
        j.check({{"Dqkv", {B * T, 3 * C}, qkv.grad}}, [&, B = B, T = T, NH = NH, HS = HS](const Key& wrong) -> Arrays {
            std::vector<double> expected(B * T * 3 * C);
            for (int64_t b = 0; b < B; b++)
                for (int64_t h = 0; h < NH; h++) {
                    Head x = heads[b * NH + h];
                    const auto loss = [&, T = T, HS = HS] {
                        double sum = 0;
                        head_gradient(x, T, HS, "", nullptr, &sum);
                        return sum;
                    };
                    Arrays d = head_gradient(x, T, HS, wrong, nullptr, nullptr);
                    if (wrong.empty() && small)
                        d = {finite_differences(x.q, loss), finite_differences(x.k, loss),
                             finite_differences(x.v, loss)};
                    for (int part = 0; part < 3; part++)
                        for (int64_t i = 0; i < T * HS; i++)
                            expected[(b * T + i / HS) * 3 * C + part * C + h * HS + i % HS] = d[part][i];
                }
            std::vector<double> sum = added_to_begins({expected})[0];
            if (wrong == "last-use")
                for (int64_t i = 0; i < B * T * 3 * C; i++)
                    if (i / C % 3 == 1) sum[i] = expected[i];
            return {sum};
        });
    }
}
