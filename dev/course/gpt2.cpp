// GPT-2 in one file: the model, its gradients, the optimizer, the data, sampling and training. It
// needs a C++17 compiler and the standard library.
//
//     make course && ./gpt2                             learns from dev/data/shakespeare, one byte at a time
//     ./gpt2 layers=2 length=128 rate=0.002             the same with other settings; `Settings` below lists them
//     ./gpt2 MODEL.bin SHARD.bin                        goes on training a model file, on a file of tokens
//     g++ -std=c++17 -O3 -march=native -fopenmp dev/course/gpt2.cpp -o gpt2     without make
//
// A language model reads the first tokens of a text (here a token is a byte) and gives each
// possible next token a probability. Training shows it text and changes its parameters, a little at
// each step, so that the tokens that did come next become more probable. Everything else here
// follows from how that change is found: by the derivative of one number, the loss, with respect to
// each parameter.
//
// Letters, the same everywhere:
//
//     B   sequences in a batch               V    tokens in the vocabulary
//     T   positions in a sequence            Vp   V rounded up to a multiple of 128: rows of the embedding table
//     C   channels: numbers per position     NH   attention heads, each of HS = C / NH channels
//     L   blocks (layers)                    OC   outputs of a linear layer, whose inputs are C
//
// The sections: 1 tensors, 2 layers, 3 the model, 4 the optimizer, 5 data, 6 model files,
// 7 settings, 8 sampling, 9 training. To see the whole first, begin with main, at the end.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

using Tokens = std::vector<int>;

// Ends the program with one sentence: status 1 for a file that is wrong, 2 for a wrong argument.
[[noreturn]] void fail(int status, const std::string& sentence) {
    fprintf(stderr, "gpt2: %s\n", sentence.c_str());
    exit(status);
}

// ---- 1. Tensors -------------------------------------------------------------------------------

// A matrix of numbers, and for each number its gradient. Values are stored row by row: element
// (r, c) is value[r * cols + c], or row(r)[c], where row(r) points to the beginning of a row.
//
// The gradient of a number z is dLoss/dz: if z grew by a very small h, and all that is computed
// from z followed, the loss would grow by h dLoss/dz. In formulas Dz stands for it, in the code
// z.grad. It is found from the loss backwards, by the chain rule: if y1, y2, ... are computed from
// z, then
//
//     Dz = Dy1 dy1/dz + Dy2 dy2/dz + ...
//
// Each use of z contributes one term. So every backward function below adds to the gradients of its
// inputs, and all gradients are set to 0 before a backward pass.
struct Tensor {
    int64_t rows = 0, cols = 0;
    std::vector<float> value, grad;

    Tensor() = default;
    Tensor(int64_t rows, int64_t cols) : rows(rows), cols(cols), value(rows * cols), grad(rows * cols) {}
    float* row(int64_t r) { return value.data() + r * cols; }
    float* grad_row(int64_t r) { return grad.data() + r * cols; }
    void zero_grad() { std::fill(grad.begin(), grad.end(), 0.0f); }
};

// ---- 2. Layers --------------------------------------------------------------------------------
//
// Each layer is two functions with the same arguments, outputs first. forward computes out.value
// from the values of its inputs. backward takes out.grad and adds to the gradients of the inputs.
// Activations have one row per position: row b * T + t is position t of sequence b.
//
// `#pragma omp parallel for` splits the loop below it among the cores. It stands only where no two
// iterations write the same number. `#pragma omp simd reduction` lets the compiler compute a sum
// with vector instructions, that is, in another order. A compiler without OpenMP ignores both.

// Embedding: what the model knows of a token before it has seen its neighbours. Each token has a
// row in a table, and so has each position; the model learns both tables.
//
//     out[b,t] = token_table[token[b,t]] + position_table[t]                         a sum of two rows
void embedding_forward(Tensor& out, const Tokens& tokens, Tensor& token_table, Tensor& position_table, int64_t T) {
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t c = 0; c < out.cols; c++)
            out.row(r)[c] = token_table.row(tokens[r])[c] + position_table.row(r % T)[c];
}

// The derivative of a sum with respect to each of its terms is 1. A row of a table gets a
// contribution from every position that uses it.
void embedding_backward(Tensor& out, const Tokens& tokens, Tensor& token_table, Tensor& position_table, int64_t T) {
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t c = 0; c < out.cols; c++) {
            token_table.grad_row(tokens[r])[c] += out.grad_row(r)[c];
            position_table.grad_row(r % T)[c] += out.grad_row(r)[c];
        }
}

// A linear layer: each output is a weighted sum of the inputs of its position, plus a bias. x
// (rows, C), weight (OC, C), out (rows, OC); bias (1, OC), or null for none. As matrices, out = x
// weight^T + bias.
//
//     out[r,o] = bias[o] + sum over c of x[r,c] weight[o,c]
void linear_forward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
#pragma omp parallel for
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t o = 0; o < out.cols; o++) {
            const float *x_row = x.row(r), *w_row = weight.row(o);
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < x.cols; c++) sum += x_row[c] * w_row[c];
            out.row(r)[o] = sum + (bias ? bias->value[o] : 0);
        }
}

// x[r,c] is used by all outputs of row r, each time times weight[o,c]; weight[o,c] by output o of
// all rows, each time times x[r,c]. Hence
//
//     Dx[r,c]      = sum over o of Dout[r,o] weight[o,c]
//     Dweight[o,c] = sum over r of Dout[r,o] x[r,c]
//     Dbias[o]     = sum over r of Dout[r,o]
void linear_backward(Tensor& out, Tensor& x, Tensor& weight, Tensor* bias) {
#pragma omp parallel for
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t o = 0; o < out.cols; o++) {
            const float d = out.grad_row(r)[o], *w_row = weight.row(o);
            float* dx_row = x.grad_row(r);
            for (int64_t c = 0; c < x.cols; c++) dx_row[c] += d * w_row[c];
        }
#pragma omp parallel for
    for (int64_t o = 0; o < out.cols; o++)
        for (int64_t r = 0; r < out.rows; r++) {
            const float d = out.grad_row(r)[o], *x_row = x.row(r);
            float* dw_row = weight.grad_row(o);
            for (int64_t c = 0; c < x.cols; c++) dw_row[c] += d * x_row[c];
            if (bias) bias->grad[o] += d;
        }
}

// Layer normalisation (Ba et al. 2016, arXiv:1607.06450): each row is shifted and scaled to mean 0
// and variance 1, then scaled and shifted by a gain and a bias per channel, which are learned. It
// keeps the numbers in range however many layers there are. For one row x of C channels:
//
//     mean   = (sum over c of x[c]) / C
//     var    = (sum over c of (x[c] - mean)^2) / C
//     s      = 1 / sqrt(var + 1e-5)                      1e-5, so that a constant row is no division by 0
//     n[c]   = (x[c] - mean) s                           the normalised row
//     out[c] = n[c] gain[c] + bias[c]
struct RowStatistics {
    float mean, s;
};
RowStatistics row_statistics(const float* x, int64_t C) {
    float mean = 0, var = 0;
    for (int64_t c = 0; c < C; c++) mean += x[c] / C;
    for (int64_t c = 0; c < C; c++) var += (x[c] - mean) * (x[c] - mean) / C;
    return {mean, 1 / std::sqrt(var + 1e-5f)};
}
void layernorm_forward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    for (int64_t r = 0; r < x.rows; r++) {
        const auto [mean, s] = row_statistics(x.row(r), x.cols);
        for (int64_t c = 0; c < x.cols; c++) out.row(r)[c] = (x.row(r)[c] - mean) * s * gain.value[c] + bias.value[c];
    }
}

// Dgain and Dbias are read off the last line. For Dx, let g[c] = Dout[c] gain[c], which is Dn[c].
// Every n[j] of the row depends on x[c]: by itself if j = c, and through mean and s.
//
//     dmean/dx[c] = 1 / C
//     dvar/dx[c]  = 2 (x[c] - mean) / C          what comes through mean is 0, as the sum of x[j] - mean is 0
//     ds/dx[c]    = -1/2 s^3 dvar/dx[c] = -s^2 n[c] / C                    as s = (var + 1e-5)^(-1/2), n = (x - mean) s
//     dn[j]/dx[c] = ((1 if j = c, else 0) - 1/C) s + (x[j] - mean) ds/dx[c]
//                 = s ((1 if j = c, else 0) - 1/C - n[j] n[c] / C)
//     Dx[c]       = sum over j of g[j] dn[j]/dx[c]
//                 = s (g[c] - (mean over j of g[j]) - n[c] (mean over j of g[j] n[j]))
void layernorm_backward(Tensor& out, Tensor& x, Tensor& gain, Tensor& bias) {
    const int64_t C = x.cols;
    for (int64_t r = 0; r < x.rows; r++) {
        const auto [mean, s] = row_statistics(x.row(r), C);
        const float *x_row = x.row(r), *dout = out.grad_row(r);
        float mean_g = 0, mean_gn = 0;
        for (int64_t c = 0; c < C; c++) {
            const float n = (x_row[c] - mean) * s, g = dout[c] * gain.value[c];
            mean_g += g / C;
            mean_gn += g * n / C;
            gain.grad[c] += dout[c] * n;
            bias.grad[c] += dout[c];
        }
        for (int64_t c = 0; c < C; c++) {
            const float n = (x_row[c] - mean) * s, g = dout[c] * gain.value[c];
            x.grad_row(r)[c] += s * (g - mean_g - n * mean_gn);
        }
    }
}

// The softmax of n scores: positive numbers whose sum is 1, so they serve as probabilities, and a
// larger score has a larger one. p may be x.
//
//     p[i] = e^x[i] / (sum over j of e^x[j])
//
// The largest score is subtracted from all, because e^89 does not fit a float. p stays the same:
// numerator and denominator are both divided by e^largest.
void softmax(float* p, const float* x, int64_t n) {
    const float largest = *std::max_element(x, x + n);
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += p[i] = std::exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

// Causal self-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2): the one layer in
// which positions look at each other. Each position t has three vectors of HS numbers: a query
// q[t], what it looks for; a key k[t], by which it is found; and a value v[t], what it tells those
// who find it. It sees itself and the positions before it, u <= t, never the tokens that it must
// predict.
//
//     s[t,u] = q[t] . k[u] / sqrt(HS)              how well they match; . is the sum of the products of two vectors
//     p[t,u] = softmax of s[t,0] ... s[t,t]        how much of v[u] goes into out[t]
//     out[t] = sum over u <= t of p[t,u] v[u]
//
// The sum of HS products of independent numbers of variance 1 has variance HS. Divided by sqrt(HS)
// it has variance 1 for every HS, and the softmax is not saturated from the start.
//
// Each head does this by itself, on its own channels. A row of qkv (rows, 3C) has the queries of
// all heads, NH times HS numbers, then all keys, then all values. A row of out (rows, C) has the
// results of all heads. p (B * NH * T, T) is kept for the backward pass.
void attention_forward(Tensor& out, Tensor& p, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t B = out.rows / T, C = out.cols, HS = C / NH;
    const float scale = 1 / std::sqrt((float)HS);
#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                const float* q = qkv.row(b * T + t) + h * HS;
                float *p_row = p.row((b * NH + h) * T + t), *o = out.row(b * T + t) + h * HS;
                for (int64_t u = 0; u <= t; u++) {
                    const float* k = qkv.row(b * T + u) + C + h * HS;
                    float score = 0;
                    for (int64_t i = 0; i < HS; i++) score += q[i] * k[i];
                    p_row[u] = score * scale;
                }
                softmax(p_row, p_row, t + 1);
                std::fill(o, o + HS, 0.0f);
                for (int64_t u = 0; u <= t; u++) {
                    const float* v = qkv.row(b * T + u) + 2 * C + h * HS;
                    for (int64_t i = 0; i < HS; i++) o[i] += p_row[u] * v[i];
                }
            }
}

// From the last line of the formula to the first:
//
//     Dv[u]   = sum over t >= u of p[t,u] Dout[t]
//     Dp[t,u] = Dout[t] . v[u]
//     Ds[t,u] = p[t,u] (Dp[t,u] - (sum over w <= t of p[t,w] Dp[t,w]))
//     Dq[t]   = sum over u <= t of Ds[t,u] k[u] / sqrt(HS)
//     Dk[u]   = sum over t >= u of Ds[t,u] q[t] / sqrt(HS)
//
// The third line is the gradient of a softmax. With Z = sum over j of e^s[j], p[w] = e^s[w] / Z,
// and
//
//     dp[w]/ds[u] = (e^s[w] if w = u, else 0) / Z - e^s[w] e^s[u] / Z^2 = p[w] ((1 if w = u, else 0) - p[u])
//     Ds[u]       = sum over w of Dp[w] dp[w]/ds[u] = p[u] Dp[u] - p[u] (sum over w of p[w] Dp[w])
void attention_backward(Tensor& out, Tensor& p, Tensor& qkv, int64_t NH, int64_t T) {
    const int64_t B = out.rows / T, C = out.cols, HS = C / NH;
    const float scale = 1 / std::sqrt((float)HS);
#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < NH; h++)
            for (int64_t t = 0; t < T; t++) {
                const float *q = qkv.row(b * T + t) + h * HS, *dout = out.grad_row(b * T + t) + h * HS;
                float* dq = qkv.grad_row(b * T + t) + h * HS;
                float *p_row = p.row((b * NH + h) * T + t), *dp_row = p.grad_row((b * NH + h) * T + t);
                float sum_p_dp = 0;
                for (int64_t u = 0; u <= t; u++) {
                    const float* v = qkv.row(b * T + u) + 2 * C + h * HS;
                    float* dv = qkv.grad_row(b * T + u) + 2 * C + h * HS;
                    for (int64_t i = 0; i < HS; i++) {
                        dv[i] += p_row[u] * dout[i];
                        dp_row[u] += dout[i] * v[i];
                    }
                    sum_p_dp += p_row[u] * dp_row[u];
                }
                for (int64_t u = 0; u <= t; u++) {
                    const float* k = qkv.row(b * T + u) + C + h * HS;
                    float* dk = qkv.grad_row(b * T + u) + C + h * HS;
                    const float ds = p_row[u] * (dp_row[u] - sum_p_dp) * scale;
                    for (int64_t i = 0; i < HS; i++) {
                        dq[i] += ds * k[i];
                        dk[i] += ds * q[i];
                    }
                }
            }
}

// GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415), the function between the two linear layers of a
// block: about x where x is large, about 0 where -x is large, smooth between. Without it, the two
// linear layers would be one.
//
//     gelu(x) = x (1 + tanh(u)) / 2 = x s,    u = sqrt(2/pi) (x + 0.044715 x^3),    s = 1 / (1 + e^(-2u))
//
// s is equal to (1 + tanh(u)) / 2 since tanh(u) = (e^u - e^-u) / (e^u + e^-u). By the product rule
// and the chain rule, with ds/du = 2 e^(-2u) / (1 + e^(-2u))^2 = 2 s (1 - s):
//
//     gelu'(x) = s + x 2 s (1 - s) du/dx,     du/dx = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
const float SQRT_2_OVER_PI = 0.7978845608f;
float gelu_s(float x) { return 1 / (1 + std::exp(-2 * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x))); }

void gelu_forward(Tensor& out, Tensor& x) {
    for (size_t i = 0; i < x.value.size(); i++) out.value[i] = x.value[i] * gelu_s(x.value[i]);
}
void gelu_backward(Tensor& out, Tensor& x) {
    for (size_t i = 0; i < x.value.size(); i++) {
        const float z = x.value[i], s = gelu_s(z), du = SQRT_2_OVER_PI * (1 + 3 * 0.044715f * z * z);
        x.grad[i] += out.grad[i] * (s + z * 2 * s * (1 - s) * du);
    }
}

// A residual connection (He et al. 2015, arXiv:1512.03385): a block adds to what it got instead of
// replacing it. The gradient passes through a sum unchanged, so it reaches the first layers of a
// deep model undiminished.
//
//     out = x + branch
void residual_forward(Tensor& out, Tensor& x, Tensor& branch) {
    for (size_t i = 0; i < out.value.size(); i++) out.value[i] = x.value[i] + branch.value[i];
}
void residual_backward(Tensor& out, Tensor& x, Tensor& branch) {
    for (size_t i = 0; i < out.value.size(); i++) {
        x.grad[i] += out.grad[i];
        branch.grad[i] += out.grad[i];
    }
}

// Cross-entropy, the loss: minus the logarithm of the probability that the model gave to the token
// that did come next, its mean over all rows. logits (rows, Vp) are the scores; the columns from V
// on are padding and take no part. probs (rows, Vp) is kept for the backward pass.
//
//     p[r,v] = softmax of logits[r,0] ... logits[r,V-1]
//     loss   = (sum over r of -log p[r,target[r]]) / rows
//
// A model that knows nothing gives each token 1/V, and has the loss log V: 5.545 for 256 bytes.
//
// p of the target may be too small for a float, and log 0 is infinite. p of the largest logit, m,
// is never below 1/V, and log p[target] = log p[largest] - (m - x[target]).
float cross_entropy_forward(Tensor& logits, Tensor& probs, const Tokens& targets, int64_t V) {
    double sum = 0;
    for (int64_t r = 0; r < logits.rows; r++) {
        const float *x = logits.row(r), *largest = std::max_element(x, x + V);
        softmax(probs.row(r), x, V);
        sum -= std::log((double)probs.row(r)[largest - x]) - (*largest - x[targets[r]]);
    }
    return (float)(sum / logits.rows);
}

// With -log p[y] = -x[y] + log(sum over v of e^x[v]), where x is the row of logits and y its
// target,
//
//     d(-log p[y])/dx[v] = -(1 if v = y, else 0) + e^x[v] / (sum over w of e^x[w]) = p[v] - (1 if v = y, else 0)
void cross_entropy_backward(Tensor& logits, Tensor& probs, const Tokens& targets, int64_t V) {
    for (int64_t r = 0; r < logits.rows; r++)
        for (int64_t v = 0; v < V; v++)
            logits.grad_row(r)[v] += (probs.row(r)[v] - (v == targets[r] ? 1 : 0)) / logits.rows;
}

// ---- 3. The model -----------------------------------------------------------------------------
//
// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"). A row of C
// numbers per position, the residual stream, passes from the embedding through L blocks. Each adds
// to it twice: first what attention gathers from other positions, then what the MLP (two linear
// layers) makes of each position by itself.
//
//     x = embedding(tokens)
//     L times:  x = x + linear(attention(linear(layernorm(x))))
//               x = x + linear(gelu(linear(layernorm(x))))
//     logits = layernorm(x) token_table^T              the token table serves twice: "tied weights"

struct Config {
    int64_t maxT, V, L, NH, C, Vp;  // maxT: rows of the position table, the longest sequence
};

// A tensor that is learned, with the two numbers per element that the optimizer keeps (section 4).
struct Parameter : Tensor {
    std::vector<float> m, v;
    bool decayed = false;

    Parameter() = default;
    Parameter(int64_t rows, int64_t cols)
        : Tensor(rows, cols), m(rows * cols), v(rows * cols), decayed(rows > 1) {}  // matrices decay, vectors do not
};

struct Block {
    Parameter ln1_gain, ln1_bias, qkv_weight, qkv_bias, proj_weight, proj_bias;  // attention
    Parameter ln2_gain, ln2_bias, up_weight, up_bias, down_weight, down_bias;    // MLP: from C to 4C and back
};

struct Model {
    Config config;
    Parameter token_table, position_table, final_gain, final_bias;
    std::vector<Block> blocks;

    explicit Model(const Config& c) : config(c), blocks(c.L) {
        const int64_t C = c.C;
        token_table = Parameter(c.Vp, C), position_table = Parameter(c.maxT, C);
        for (Block& b : blocks) {
            b.ln1_gain = b.ln1_bias = b.ln2_gain = b.ln2_bias = Parameter(1, C);
            b.qkv_weight = Parameter(3 * C, C), b.qkv_bias = Parameter(1, 3 * C);
            b.proj_weight = Parameter(C, C), b.proj_bias = Parameter(1, C);
            b.up_weight = Parameter(4 * C, C), b.up_bias = Parameter(1, 4 * C);
            b.down_weight = Parameter(C, 4 * C), b.down_bias = Parameter(1, C);
        }
        final_gain = final_bias = Parameter(1, C);
    }

    // All parameters, in the order of a model file: each kind of tensor over all blocks before the
    // next kind. `&Block::ln1_gain` names a member, and b.*member is that member of the block b.
    std::vector<Parameter*> parameters() {
        std::vector<Parameter*> all = {&token_table, &position_table};
        for (auto member : {&Block::ln1_gain, &Block::ln1_bias, &Block::qkv_weight, &Block::qkv_bias,
                            &Block::proj_weight, &Block::proj_bias, &Block::ln2_gain, &Block::ln2_bias,
                            &Block::up_weight, &Block::up_bias, &Block::down_weight, &Block::down_bias})
            for (Block& b : blocks) all.push_back(&(b.*member));
        all.push_back(&final_gain), all.push_back(&final_bias);
        return all;
    }
};

// Where a new model begins: weights are drawn from a normal distribution of standard deviation 0.02
// (GPT-1, Radford et al. 2018, section 4.1), biases are 0, gains 1. The two layers of a block that
// add to the residual stream get 0.02 / sqrt(2L): a sum of 2L independent terms then has the
// variance of one. That is section 2.3 of GPT-2's paper; the code that came with it has no such
// factor, and 0.01 for positions.
void initialize(Model& model, std::mt19937& rng) {
    const auto draw = [&](Parameter& p, double deviation) {
        std::normal_distribution<float> normal(0.0f, (float)deviation);
        for (float& x : p.value) x = normal(rng);
    };
    const auto ones = [](Parameter& p) { std::fill(p.value.begin(), p.value.end(), 1.0f); };
    const double residual = 0.02 / std::sqrt(2.0 * model.config.L);
    draw(model.token_table, 0.02), draw(model.position_table, 0.02), ones(model.final_gain);
    for (Block& b : model.blocks) {
        ones(b.ln1_gain), draw(b.qkv_weight, 0.02), draw(b.proj_weight, residual);
        ones(b.ln2_gain), draw(b.up_weight, 0.02), draw(b.down_weight, residual);
    }
}

// What the forward pass computes on its way, for a batch of B sequences of T tokens. It is kept for
// the backward pass, which needs most of it.
struct BlockActivations {
    Tensor ln1, qkv, p, attention, proj, middle;  // attention; middle: the residual stream after it
    Tensor ln2, up, gelu, down, out;              // MLP; out: the residual stream after the block
};

struct Activations {
    int64_t B, T;
    Tensor embedding, final_norm, logits, probs;
    std::vector<BlockActivations> blocks;

    Activations(const Config& c, int64_t B, int64_t T) : B(B), T(T), blocks(c.L) {
        const int64_t rows = B * T, C = c.C;
        embedding = final_norm = Tensor(rows, C);
        logits = probs = Tensor(rows, c.Vp);
        for (BlockActivations& a : blocks) {
            a.ln1 = a.attention = a.proj = a.middle = a.ln2 = a.down = a.out = Tensor(rows, C);
            a.qkv = Tensor(rows, 3 * C), a.p = Tensor(B * c.NH * T, T);
            a.up = a.gelu = Tensor(rows, 4 * C);
        }
    }
    std::vector<Tensor*> all() {
        std::vector<Tensor*> list = {&embedding, &final_norm, &logits};
        for (BlockActivations& a : blocks)
            for (Tensor* t :
                 {&a.ln1, &a.qkv, &a.p, &a.attention, &a.proj, &a.middle, &a.ln2, &a.up, &a.gelu, &a.down, &a.out})
                list.push_back(t);
        return list;
    }
};

// From tokens (B * T) to logits.
void forward(Model& model, Activations& act, const Tokens& tokens) {
    embedding_forward(act.embedding, tokens, model.token_table, model.position_table, act.T);
    Tensor* x = &act.embedding;
    for (int64_t l = 0; l < model.config.L; l++) {
        Block& b = model.blocks[l];
        BlockActivations& a = act.blocks[l];
        layernorm_forward(a.ln1, *x, b.ln1_gain, b.ln1_bias);
        linear_forward(a.qkv, a.ln1, b.qkv_weight, &b.qkv_bias);
        attention_forward(a.attention, a.p, a.qkv, model.config.NH, act.T);
        linear_forward(a.proj, a.attention, b.proj_weight, &b.proj_bias);
        residual_forward(a.middle, *x, a.proj);
        layernorm_forward(a.ln2, a.middle, b.ln2_gain, b.ln2_bias);
        linear_forward(a.up, a.ln2, b.up_weight, &b.up_bias);
        gelu_forward(a.gelu, a.up);
        linear_forward(a.down, a.gelu, b.down_weight, &b.down_bias);
        residual_forward(a.out, a.middle, a.down);
        x = &a.out;
    }
    layernorm_forward(act.final_norm, *x, model.final_gain, model.final_bias);
    linear_forward(act.logits, act.final_norm, model.token_table, nullptr);
}

// The same lines from the last to the first, backward in place of forward. It begins with the loss.
void backward(Model& model, Activations& act, const Tokens& tokens, const Tokens& targets) {
    for (Parameter* p : model.parameters()) p->zero_grad();
    for (Tensor* t : act.all()) t->zero_grad();
    cross_entropy_backward(act.logits, act.probs, targets, model.config.V);
    linear_backward(act.logits, act.final_norm, model.token_table, nullptr);
    Tensor& last = model.config.L > 0 ? act.blocks.back().out : act.embedding;
    layernorm_backward(act.final_norm, last, model.final_gain, model.final_bias);
    for (int64_t l = model.config.L - 1; l >= 0; l--) {
        Block& b = model.blocks[l];
        BlockActivations& a = act.blocks[l];
        Tensor& x = l > 0 ? act.blocks[l - 1].out : act.embedding;
        residual_backward(a.out, a.middle, a.down);
        linear_backward(a.down, a.gelu, b.down_weight, &b.down_bias);
        gelu_backward(a.gelu, a.up);
        linear_backward(a.up, a.ln2, b.up_weight, &b.up_bias);
        layernorm_backward(a.ln2, a.middle, b.ln2_gain, b.ln2_bias);
        residual_backward(a.middle, x, a.proj);
        linear_backward(a.proj, a.attention, b.proj_weight, &b.proj_bias);
        attention_backward(a.attention, a.p, a.qkv, model.config.NH, act.T);
        linear_backward(a.qkv, a.ln1, b.qkv_weight, &b.qkv_bias);
        layernorm_backward(a.ln1, x, b.ln1_gain, b.ln1_bias);
    }
    embedding_backward(act.embedding, tokens, model.token_table, model.position_table, act.T);
}

// ---- 4. The optimizer -------------------------------------------------------------------------

struct Settings {
    std::string model, data, save;                      // files, see section 6; save: where the trained model goes
    int64_t layers = 4, heads = 4, channels = 128;      // of a new model: L, NH, C
    int64_t batch = 8, length = 64, steps = 1000;       // B, T, and how many updates
    int64_t report = 100, seed = 42, shuffle = 1;       // steps between samples; of random numbers; 0: data in order
    double rate = 3e-3, final_rate = 0.1, decay = 0.1;  // learning rate: its peak, its end as a fraction of that
    int64_t warmup = 50;                                // steps in which the rate rises
};

// The norm of the gradient of all parameters: the root of the sum of its squares.
double gradient_norm(Model& model) {
    double squares = 0;
    for (Parameter* p : model.parameters())
        for (float g : p->grad) squares += (double)g * g;
    return std::sqrt(squares);
}

// The learning rate of step 0, 1, ...: it rises linearly, while the averages m and v of AdamW have
// seen little; then it falls with half a period of a cosine (Loshchilov & Hutter 2017,
// arXiv:1608.03983).
double learning_rate(const Settings& s, int64_t step) {
    if (step < s.warmup) return s.rate * (double)(step + 1) / (double)s.warmup;
    const double progress = (double)(step - s.warmup) / (double)std::max<int64_t>(s.steps - s.warmup, 1);
    const double end = s.rate * s.final_rate;
    return end + (s.rate - end) * (1 + std::cos(M_PI * progress)) / 2;
}

// AdamW (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm
// 2). For each number p of the model, with g its gradient and t = 1, 2, ... the number of the
// update:
//
//     m = beta1 m + (1 - beta1) g                a running average of the gradient
//     v = beta2 v + (1 - beta2) g^2              and of its square
//     mhat = m / (1 - beta1^t)                   m and v begin at 0 and are too small at first: the weights of the
//     vhat = v / (1 - beta2^t)                   gradients in m add up to 1 - beta1^t, those in v to 1 - beta2^t
//     p = p - rate (mhat / (sqrt(vhat) + eps) + decay p)
//
// A small enough step against the gradient lowers the loss; its average over the last batches is
// less noisy than the gradient of one. The division by sqrt(vhat) makes the size of the step about
// `rate` or less for every number, however large its gradients are. Weight decay pulls the
// matrices towards 0. Before all this the gradient is clipped: if its norm is above 1, it is scaled
// to 1, so that a single strange batch cannot do much harm (Pascanu et al. 2013, arXiv:1211.5063).
void adamw(Model& model, const Settings& s, double rate, double norm, int64_t t) {
    const float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    const float clip = norm > 1 ? (float)(1 / norm) : 1.0f;
    const float correction1 = (float)(1 - std::pow((double)beta1, t)),
                correction2 = (float)(1 - std::pow((double)beta2, t));
    for (Parameter* p : model.parameters()) {
        const float decay = p->decayed ? (float)s.decay : 0.0f;
        for (size_t i = 0; i < p->value.size(); i++) {
            const float g = p->grad[i] * clip;
            p->m[i] = beta1 * p->m[i] + (1 - beta1) * g;
            p->v[i] = beta2 * p->v[i] + (1 - beta2) * g * g;
            const float mhat = p->m[i] / correction1, vhat = p->v[i] / correction2;
            p->value[i] -= (float)rate * (mhat / (std::sqrt(vhat) + eps) + decay * p->value[i]);
        }
    }
}

// ---- 5. Data ----------------------------------------------------------------------------------
//
// The data is one long row of tokens. The first nine tenths are for training, the last tenth for
// validation: text that the model is judged by and never learns from. A window is T + 1 tokens in a
// row: the first T are the inputs, the last T the targets, so position t must predict token t + 1.

struct Data {
    Tokens tokens;
    int64_t T = 0, train_windows = 0, windows = 0;  // the first train_windows of `windows` are for training
};

struct Batch {
    Tokens inputs, targets;  // B * T each
};

void add_window(Batch& batch, const Data& data, int64_t window) {
    const auto begin = data.tokens.begin() + window * data.T;
    batch.inputs.insert(batch.inputs.end(), begin, begin + data.T);
    batch.targets.insert(batch.targets.end(), begin + 1, begin + data.T + 1);
}

// The batch of step 0, 1, ...: windows drawn at random, or one after another.
Batch training_batch(const Data& data, const Settings& s, int64_t step, std::mt19937& rng) {
    Batch batch;
    for (int64_t b = 0; b < s.batch; b++)
        add_window(batch, data, (s.shuffle ? (int64_t)rng() : step * s.batch + b) % data.train_windows);
    return batch;
}

// The mean loss of up to 10 batches from the last tenth.
float validation_loss(Model& model, Activations& act, const Data& data) {
    const int64_t batches = std::min<int64_t>(10, (data.windows - data.train_windows) / act.B);
    double sum = 0;
    for (int64_t i = 0; i < batches; i++) {
        Batch batch;
        for (int64_t b = 0; b < act.B; b++) add_window(batch, data, data.train_windows + i * act.B + b);
        forward(model, act, batch.inputs);
        sum += cross_entropy_forward(act.logits, act.probs, batch.targets, model.config.V);
    }
    return (float)(sum / batches);
}

// All bytes of the texts in a folder, one file after another. Each byte is a token, 0 to 255.
Tokens read_texts(const std::string& folder) {
    std::error_code problem;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder, problem))
        if (entry.path().extension() == ".txt") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    Tokens tokens;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        for (auto byte = std::istreambuf_iterator<char>(file); byte != std::istreambuf_iterator<char>(); ++byte)
            tokens.push_back((unsigned char)*byte);
    }
    if (tokens.empty())
        fail(1, "there are no texts (*.txt) in " + folder + "; start ./gpt2 in the folder with README.md");
    return tokens;
}

// ---- 6. Model files and token files -----------------------------------------------------------
//
// Both are those of llm.c and of the other programs here: 256 int32 of header, then the numbers.
//
//     model    20240326, 3, maxT, V, L, NH, C, Vp; then the parameters as float, in the order of Model::parameters()
//     tokens   20240520, 1, number of tokens; then the tokens as uint16

const int32_t MODEL_MAGIC = 20240326, MODEL_VERSION = 3, TOKENS_MAGIC = 20240520, TOKENS_VERSION = 1;

// Reads n numbers of type T, or ends the program.
template <class T>
std::vector<T> read_numbers(std::ifstream& file, const std::string& path, int64_t n) {
    std::vector<T> numbers(n);
    if (!file.read((char*)numbers.data(), n * sizeof(T))) fail(1, path + " is missing, or ends early");
    return numbers;
}

// Opens a file, reads its header and checks it.
std::vector<int32_t> open_file(std::ifstream& file, const std::string& path, int32_t magic, int32_t version) {
    file.open(path, std::ios::binary);
    const std::vector<int32_t> header = read_numbers<int32_t>(file, path, 256);
    if (header[0] != magic || header[1] != version)
        fail(1, path + (magic == MODEL_MAGIC ? " is not a model file in fp32" : " is not a file of tokens"));
    return header;
}

// A file that is longer or shorter than its header says is damaged.
void expect_size(const std::string& path, int64_t numbers, int64_t bytes_of_each) {
    std::error_code problem;
    if ((int64_t)std::filesystem::file_size(path, problem) != 256 * 4 + numbers * bytes_of_each)
        fail(1, path + " is damaged: its length is not what its header says");
}

Tokens read_tokens(const std::string& path) {
    std::ifstream file;
    const int64_t n = open_file(file, path, TOKENS_MAGIC, TOKENS_VERSION)[2];
    expect_size(path, n, sizeof(uint16_t));
    const std::vector<uint16_t> tokens = read_numbers<uint16_t>(file, path, n);
    return Tokens(tokens.begin(), tokens.end());
}

Model read_model(const std::string& path) {
    std::ifstream file;
    const std::vector<int32_t> h = open_file(file, path, MODEL_MAGIC, MODEL_VERSION);
    const Config c = {h[2], h[3], h[4], h[5], h[6], h[7]};
    const bool sane = c.maxT > 0 && c.maxT <= 1 << 20 && c.V > 0 && c.V <= c.Vp && c.Vp <= 1 << 17 && c.L > 0 &&
                      c.L <= 1000 && c.NH > 0 && c.C > 0 && c.C <= 1 << 16 && c.C % c.NH == 0;
    if (!sane) fail(1, path + " is damaged: the sizes in its header make no sense");
    // A block has 4C in its layer norms, 12 C^2 in its weights and 9C in their biases.
    expect_size(path, c.Vp * c.C + c.maxT * c.C + c.L * (12 * c.C * c.C + 13 * c.C) + 2 * c.C, sizeof(float));
    Model model(c);
    for (Parameter* p : model.parameters()) p->value = read_numbers<float>(file, path, p->value.size());
    return model;
}

// The file gets its name when it is complete: a model of that name is never lost halfway.
void write_model(Model& model, const std::string& path) {
    const Config& c = model.config;
    std::vector<int32_t> header = {MODEL_MAGIC,  MODEL_VERSION, (int32_t)c.maxT, (int32_t)c.V,
                                   (int32_t)c.L, (int32_t)c.NH, (int32_t)c.C,    (int32_t)c.Vp};
    header.resize(256);
    std::ofstream file(path + ".tmp", std::ios::binary);
    file.write((const char*)header.data(), header.size() * sizeof(int32_t));
    for (Parameter* p : model.parameters()) file.write((const char*)p->value.data(), p->value.size() * sizeof(float));
    file.close();
    std::error_code problem;
    if (file) std::filesystem::rename(path + ".tmp", path, problem);
    if (!file || problem) fail(1, "cannot write " + path);
}

// ---- 7. Settings ------------------------------------------------------------------------------

// Sets `number` if the argument is "name=..." with a number from `lowest` on.
template <class Number>
bool set_number(const std::string& argument, const char* name, Number& number, double lowest) {
    const size_t length = strlen(name);
    if (argument.compare(0, length, name) != 0 || argument[length] != '=') return false;
    const char* text = argument.c_str() + length + 1;
    char* end;
    const double value = strtod(text, &end);
    const bool accepted = *text != 0 && *end == 0 && value >= lowest && value <= 1e9;
    if (accepted) number = (Number)value;
    if (!accepted || (double)number != value)
        fail(2, argument + " is not accepted: a " + (std::is_integral_v<Number> ? "whole number" : "number") +
                    " from " + std::to_string((int)lowest) + " to 1000000000 is expected");
    return true;
}

Settings read_settings(int count, char** arguments) {
    Settings s;
    for (int i = 1; i < count; i++) {
        const std::string a = arguments[i];
        const bool known = set_number(a, "layers", s.layers, 1) || set_number(a, "heads", s.heads, 1) ||
                           set_number(a, "channels", s.channels, 1) || set_number(a, "batch", s.batch, 1) ||
                           set_number(a, "length", s.length, 1) || set_number(a, "steps", s.steps, 0) ||
                           set_number(a, "report", s.report, 0) || set_number(a, "seed", s.seed, 0) ||
                           set_number(a, "shuffle", s.shuffle, 0) || set_number(a, "rate", s.rate, 0) ||
                           set_number(a, "final_rate", s.final_rate, 0) || set_number(a, "decay", s.decay, 0) ||
                           set_number(a, "warmup", s.warmup, 0);
        if (known) continue;
        if (a.compare(0, 5, "save=") == 0) s.save = a.substr(5);
        else if (a.find('=') == std::string::npos && s.data.empty()) (s.model.empty() ? s.model : s.data) = a;
        else
            fail(2, "unknown setting " + a +
                        "; accepted: [MODEL.bin SHARD.bin] and layers= heads= channels= batch= "
                        "length= steps= report= seed= shuffle= rate= final_rate= decay= warmup= save=");
    }
    if (s.model.empty() != s.data.empty()) fail(2, "a model file and a file of tokens are expected together");
    if (s.channels % s.heads != 0) fail(2, "channels must be a multiple of heads");
    return s;
}

Model make_model(const Settings& s, std::mt19937& rng) {
    if (!s.model.empty()) return read_model(s.model);
    Model model(Config{s.length, 256, s.layers, s.heads, s.channels, 256});
    initialize(model, rng);
    return model;
}

Data make_data(const Settings& s, const Config& c) {
    Data data;
    data.tokens = s.data.empty() ? read_texts("dev/data/shakespeare") : read_tokens(s.data);
    data.T = s.length;
    data.windows = ((int64_t)data.tokens.size() - 1) / data.T;
    data.train_windows = data.windows * 9 / 10;
    if (s.length > c.maxT) fail(2, "length is above " + std::to_string(c.maxT) + ", the longest that the model knows");
    if (data.train_windows < 1 || data.windows - data.train_windows < s.batch)
        fail(2, "the data is too short: its last tenth must hold `batch` windows of `length` tokens");
    if (*std::max_element(data.tokens.begin(), data.tokens.end()) >= c.V)
        fail(1, "the data has a token that is not in the vocabulary of the model");
    return data;
}

// ---- 8. Sampling ------------------------------------------------------------------------------

// The model writes: it gives each token the probability of being next, one is drawn, and the text
// with that token is its next input. Of a long text it sees the last T tokens. What stands behind
// the end of a shorter one does not matter, since no position looks ahead.
void sample(Model& model, Activations& act, int64_t count, std::mt19937& rng) {
    const int64_t V = model.config.V, T = act.T;
    const bool bytes = V == 256;
    Tokens text = {bytes ? '\n' : 0};
    for (int64_t i = 0; i < count; i++) {
        const int64_t seen = std::min<int64_t>(T, (int64_t)text.size());
        Tokens inputs(text.end() - seen, text.end());
        inputs.resize(T);
        forward(model, act, inputs);
        std::vector<float> p(V);
        softmax(p.data(), act.logits.row(seen - 1), V);
        text.push_back(std::discrete_distribution<int>(p.begin(), p.end())(rng));
        if (bytes) putchar(text.back());
        else printf("%d ", text.back());
    }
    putchar('\n');
}

// ---- 9. Training ------------------------------------------------------------------------------

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main(int count, char** arguments) {
    const Settings s = read_settings(count, arguments);
    std::mt19937 rng((uint32_t)s.seed);
    Model model = make_model(s, rng);
    const Data data = make_data(s, model.config);
    Activations act(model.config, s.batch, s.length), sample_act(model.config, 1, s.length);

    int64_t numbers = 0;
    for (Parameter* p : model.parameters()) numbers += p->value.size();
    printf("%lld parameters, %lld tokens\n", (long long)numbers, (long long)data.tokens.size());

    for (int64_t step = 0; step < s.steps; step++) {
        const double begin = seconds_now();
        const Batch batch = training_batch(data, s, step, rng);
        forward(model, act, batch.inputs);
        const float loss = cross_entropy_forward(act.logits, act.probs, batch.targets, model.config.V);
        backward(model, act, batch.inputs, batch.targets);
        const double norm = gradient_norm(model), rate = learning_rate(s, step);
        adamw(model, s, rate, norm, step + 1);
        printf("step %lld/%lld | loss %.6f | norm %.4f | rate %.2e | %.0f ms\n", (long long)(step + 1),
               (long long)s.steps, loss, norm, rate, (seconds_now() - begin) * 1e3);
        if (s.report > 0 && (step + 1) % s.report == 0) {
            printf("validation loss %.6f\n", validation_loss(model, act, data));
            sample(model, sample_act, 200, rng);
        }
        fflush(stdout);
    }
    if (!s.save.empty()) write_model(model, s.save);
    return 0;
}
