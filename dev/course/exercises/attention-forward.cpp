// ----- task
// Causal self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2). Each position t has a
// query q[t], a key k[t] and a value v[t] of HS numbers. It sees itself and the positions before
// it, u <= t. For each sequence and each head by itself:
//
//     s[t,u] = q[t] . k[u] / sqrt(HS)                    . is the sum of the products of two vectors
//     p[t,u] = softmax of s[t,0] ... s[t,t]
//     out[t] = sum over u <= t of p[t,u] v[u]
//
// A batch has B sequences of T positions; position t of sequence b is row b * T + t. A row of qkv
// (B * T, 3C) has the queries of all NH heads, NH times HS numbers, then all keys, then all values.
// A row of out (B * T, C) has the results of all heads, C = NH * HS.
//
// out.value is written, and p.value (B * NH * T, T): row (b * NH + h) * T + t holds p[t,0] ...
// p[t,t] of head h; its other elements are not used. Scores may be large: think of softmax.
void attention_forward(Tensor& out, Tensor& p, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t B = out.rows / T, C = out.cols, HS = C / NH;
    // your code
}

// ----- solution: dev/course/gpt2.cpp softmax attention_forward

// ----- mistakes
//     scale: score * scale ==> score
//     scale-hs: 1 / std::sqrt((float)HS) ==> 1 / (float)HS
//     scale-c: 1 / std::sqrt((float)HS) ==> 1 / std::sqrt((float)C)
//     mask-none: u <= t ==> u < T ;; t + 1) ==> T)
//     mask-self: u <= t ==> u < t ;; softmax(p_row, p_row, t + 1) ==> if (t > 0) softmax(p_row, p_row, t)
//     sum: p[i] /= sum; ==> ;
//     largest: std::exp(x[i] - largest) ==> std::exp(x[i])
//     head: + C + h * HS ==> + C
//     value: + 2 * C + h * HS ==> + C + h * HS
//     added: std::fill(o, o + HS, 0.0f) ==> (void)o

// ----- judge
// The scores, probabilities and outputs of one head of one sequence: q, k, v (T, HS).
struct OneHead {
    std::vector<double> p, out;
};
static OneHead one_head(const double* q, const double* k, const double* v, int64_t T, int64_t HS, int64_t C,
                        const Key& wrong) {
    OneHead result{std::vector<double>(T * T, ANY), std::vector<double>(T * HS, 0.0)};
    const double scale = wrong == "scale"      ? 1
                         : wrong == "scale-hs" ? 1.0 / HS
                                               : 1 / std::sqrt(wrong == "scale-c" ? C : HS);
    for (int64_t t = 0; t < T; t++) {
        const int64_t seen = wrong == "mask-none"   ? T
                             : wrong == "mask-self" ? t
                             : wrong == "mask-next" ? std::min(t + 2, T)
                                                    : t + 1;
        double* p = &result.p[t * T];
        double highest = -INFINITY, sum = 0;
        for (int64_t u = 0; u < seen; u++) {
            p[u] = 0;
            for (int64_t i = 0; i < HS; i++) p[u] += q[t * HS + i] * k[u * HS + i] * scale;
            highest = std::max(highest, p[u]);
        }
        for (int64_t u = 0; u < seen; u++) {
            p[u] = float_exp(p[u] - (wrong == "largest" ? 0 : highest));
            sum += p[u];
        }
        for (int64_t u = 0; u < seen; u++) {
            p[u] /= wrong == "sum" ? 1 : sum;
            for (int64_t i = 0; i < HS; i++) result.out[t * HS + i] += p[u] * v[u * HS + i];
        }
        for (int64_t u = t + 1; u < T; u++) p[u] = ANY;
        if (wrong == "mask-self") p[t] = ANY;
        if (seen == 0) std::fill_n(&result.out[t * HS], HS, ANY);
    }
    return result;
}

void judge(Judge& j, decltype(task::attention_forward)* attention_forward) {
    j.hints = {{"scale", "the scores are not divided by sqrt(HS)."},
               {"scale-hs", "the scores are divided by HS, not by its root."},
               {"scale-c", "the scores are divided by sqrt(C); a query has only HS = C / NH numbers."},
               {"mask-none", "positions see the future: the sums run over u <= t alone."},
               {"mask-next", "the mask is off by one: position t also sees t + 1."},
               {"mask-self", "the mask is off by one: position t does not see itself; u <= t, not u < t."},
               {"sum", "the exponentials are not divided by their sum, so p is no softmax."},
               {"largest", "e^s overflows for large scores: subtract the largest score of the row first."},
               {"head", "all heads use the keys of head 0: those of head h begin at C + h HS."},
               {"value", "the values are read where the keys are: they begin at 2C + h HS."}};
    struct Case {
        int64_t B, T, NH, HS;
        double scale;
    };
    for (const Case& c : {Case{1, 1, 1, 3, 1}, {1, 4, 1, 2, 1}, {2, 5, 3, 7, 2}, {1, 33, 2, 16, 1}, {1, 6, 2, 4, 20}}) {
        const int64_t B = c.B, T = c.T, NH = c.NH, HS = c.HS, C = NH * HS;
        j.sizes("B %d, T %d, NH %d, HS %d, qkv up to %g", (int)B, (int)T, (int)NH, (int)HS, c.scale);
        Tensor out(B * T, C), p(B * NH * T, T), qkv(B * T, 3 * C);
        qkv.value = j.random(B * T * 3 * C, c.scale);
        out.value = begins(B * T * C), p.value = begins(B * NH * T * T);
        attention_forward(out, p, qkv, NH, T);
        j.check({{"p", {B * NH * T, T}, p.value}, {"out", {B * T, C}, out.value}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> P, O(B * T * C);
            for (int64_t b = 0; b < B; b++)
                for (int64_t h = 0; h < NH; h++) {
                    std::vector<double> parts[3];  // queries, keys, values
                    for (int part = 0; part < 3; part++)
                        for (int64_t t = 0; t < T; t++)
                            for (int64_t i = 0; i < HS; i++) {
                                const int64_t from = part == 2 && wrong == "value" ? 1 : part;
                                const int64_t head = part == 1 && wrong == "head" ? 0 : h;
                                parts[part].push_back(qkv.row(b * T + t)[from * C + head * HS + i]);
                            }
                    const OneHead one = one_head(parts[0].data(), parts[1].data(), parts[2].data(), T, HS, C, wrong);
                    P.insert(P.end(), one.p.begin(), one.p.end());
                    for (int64_t t = 0; t < T; t++)
                        for (int64_t i = 0; i < HS; i++) O[(b * T + t) * C + h * HS + i] = one.out[t * HS + i];
                }
            return {P, O};
        });
    }
}
