// A training step of a small GPT-2 in CUDA, of which you can write every kernel that takes thought:
// `make mine` builds it from those of your exercises that pass, and model solutions for the rest.
//
//     build/exercises/mine_step_gpt2       a line for each step: its loss
//
// One layer with one head, T positions of one text, again and again: so the loss falls to nearly 0.
// All numbers are fp32, but for what attention multiplies on tensor cores. Products have their
// operands as (rows, columns) with the sum along the columns of both, so the backward pass
// transposes. The kernels of the exercises:
//
//     vector_add            residuals, and gradients that meet                           exercise vector-add
//     row_sums              the loss, and sums over rows of what has been transposed     warp-sum
//     row_statistics        mean and variance, for the gradient of layer norm            block-sum
//     layernorm             layernorm-kernel
//     transpose             transpose-shared
//     matmul                all products                                                 matmul-shared
//     embedding_backward    embedding-kernel
//     softmax               of the logits, and of attention in the backward pass         online-softmax-kernel
//     flash_attention       flash-attention-mma
//
// What follows is the rest: the kernels that work element by element, and the step.
#include "dev/course/exercises/judge_cuda.h"

constexpr int T = 64, C = 64, V = 128, STEPS = 8, THREADS = 128;  // C is the head size, too
typedef OnDevice<float> Array;

// -------------------------------------------------------------------------------------------------
// Kernels with one thread for each element, or in layer norm for each row

__device__ int element() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void embed(float* x, const float* wte, const float* wpe, const int* tokens) {
    const int i = element();
    if (i < T * C) x[i] = wte[tokens[i / C] * C + i % C] + wpe[i];
}
__global__ void round_all(bf16* out, const float* x, int n) {
    if (element() < n) out[element()] = (bf16)x[element()];
}
__global__ void gelu(float* out, const float* x, int n) {
    const int i = element();
    if (i < n) out[i] = x[i] / (1 + expf(-1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}
// dx may be dout.
__global__ void gelu_backward(float* dx, const float* dout, const float* x, int n) {
    const int i = element();
    if (i >= n) return;
    const float s = 1 / (1 + expf(-1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
    dx[i] = dout[i] * (s + x[i] * s * (1 - s) * 1.5957691216f * (1 + 3 * 0.044715f * x[i] * x[i]));
}
// Scores (T, T) become those of causal attention.
__global__ void mask(float* s) {
    const int i = element();
    if (i < T * T) s[i] = i % T <= i / T ? s[i] * 0.125f : -1e30f;
}
__global__ void multiply(float* out, const float* a, const float* b, int n) {
    if (element() < n) out[element()] = a[element()] * b[element()];
}
// Of a row of scores, whose softmax is p: Ds = p (Dp - sum over u of p Dp), divided as the scores
// are.
__global__ void softmax_backward(float* ds, const float* p, const float* dp, const float* sums) {
    const int i = element();
    if (i < T * T) ds[i] = p[i] * (dp[i] - sums[i / T]) * 0.125f;
}
// losses (T) and dlogits (T, V) of the mean loss are written, from p (T, V).
__global__ void loss_backward(float* losses, float* dlogits, const float* p, const int* targets) {
    const int i = element(), t = i / V;
    if (i >= T * V) return;
    const bool target = i % V == targets[t];
    dlogits[i] = (p[i] - (target ? 1 : 0)) / T;
    if (target) losses[t] = -logf(p[i]) / T;
}
// dx is added to; products (T, C), whose sums over rows are the gain's gradient, are written.
__global__ void layernorm_backward(float* dx, float* products, const float* dout, const float* x, const float* gain,
                                   const float* mean, const float* variance) {
    const int row = element();
    if (row >= T) return;
    const float s = rsqrtf(variance[row] + 1e-5f);
    float g_mean = 0, gn_mean = 0;
    for (int c = 0; c < C; c++) {
        const float n = (x[row * C + c] - mean[row]) * s, g = dout[row * C + c] * gain[c];
        g_mean += g / C, gn_mean += g * n / C;
        products[row * C + c] = dout[row * C + c] * n;
    }
    for (int c = 0; c < C; c++) {
        const float n = (x[row * C + c] - mean[row]) * s;
        dx[row * C + c] += s * (dout[row * C + c] * gain[c] - g_mean - n * gn_mean);
    }
}
__global__ void adamw(float* p, float* m, float* v, const float* g, int n, float rate, float correct1, float correct2) {
    const int i = element();
    if (i >= n) return;
    m[i] = 0.9f * m[i] + 0.1f * g[i], v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
    p[i] -= rate * m[i] * correct1 / (sqrtf(v[i] * correct2) + 1e-8f);
}

// -------------------------------------------------------------------------------------------------
// Operations on matrices, of the kernels

static dim3 blocks(int n) { return (n + THREADS - 1) / THREADS; }
static Array zeros(int n) { return Array(std::vector<float>(n)); }

// out (rows, OC) = x (rows, IC) w (OC, IC)^T
static void product(float* out, const float* x, const float* w, int rows, int IC, int OC) {
    run("matmul", matmul, dim3((OC + 31) / 32, (rows + 31) / 32), dim3(32, 32), out, x, w, rows, IC, OC);
}
static void transposed(float* out, const float* x, int rows, int cols) {
    run("transpose", transpose, dim3((cols + 31) / 32, (rows + 31) / 32), dim3(32, 8), out, x, rows, cols);
}
static void add(float* out, const float* a, const float* b, int n) {
    run("vector_add", vector_add, blocks(n), THREADS, out, a, b, n);
}
static void sums_of_rows(float* out, const float* x, int rows, int cols) {
    run("row_sums", row_sums, (rows + 3) / 4, 128, out, x, rows, cols);
}
// sums (cols) of the columns of x (rows, cols)
static void sums_of_columns(float* sums, const float* x, int rows, int cols) {
    const Array turned = zeros(rows * cols);
    transposed(turned.p, x, rows, cols), sums_of_rows(sums, turned.p, cols, rows);
}
// Of out = x w^T: dw (OC, IC) and dx (T, IC) are written.
static void product_backward(float* dx, float* dw, const float* dout, const float* x, const float* w, int IC, int OC) {
    const Array dout_T = zeros(T * OC), x_T = zeros(T * IC), w_T = zeros(OC * IC);
    transposed(dout_T.p, dout, T, OC), transposed(x_T.p, x, T, IC), transposed(w_T.p, w, OC, IC);
    product(dw, dout_T.p, x_T.p, OC, T, IC), product(dx, dout, w_T.p, T, OC, IC);
}

// -------------------------------------------------------------------------------------------------
// The model

struct Parameter {
    int rows, cols;
    Array value, grad, m, v;
    static std::vector<float> drawn(int n, float scale, float add) {
        static std::mt19937 generator(1);
        std::vector<float> values(n);
        for (float& x : values) x = add + scale * ((float)generator() / 4294967296.0f * 2 - 1);
        return values;
    }
    Parameter(int rows, int cols, float scale, float add = 0)
        : rows(rows),
          cols(cols),
          value(drawn(rows * cols, scale, add)),
          grad(zeros(rows * cols)),
          m(zeros(rows * cols)),
          v(zeros(rows * cols)) {}
    int n() const { return rows * cols; }
};
struct LayerNorm {
    Parameter gain{1, C, 0, 1}, bias{1, C, 0};
    void forward(float* out, const float* x) {
        run("layernorm", layernorm, (T + 3) / 4, 128, out, x, gain.value, bias.value, T, C);
    }
    void backward(float* dx, const float* dout, const float* x) {
        const Array mean = zeros(T), variance = zeros(T), products = zeros(T * C);
        run("row_statistics", row_statistics, T, 64, mean.p, variance.p, x, C);
        run("layernorm_backward", layernorm_backward, blocks(T), THREADS, dx, products.p, dout, x, gain.value, mean.p,
            variance.p);
        sums_of_columns(gain.grad, products.p, T, C), sums_of_columns(bias.grad, dout, T, C);
    }
};
struct Model {
    Parameter wte{V, C, 0.05f}, wpe{T, C, 0.05f}, wq{C, C, 0.2f}, wk{C, C, 0.2f}, wv{C, C, 0.2f}, wo{C, C, 0.2f},
        w1{4 * C, C, 0.2f}, w2{C, 4 * C, 0.1f};
    LayerNorm ln1, ln2, lnf;
    std::vector<Parameter*> parameters() {
        return {&wte, &wpe,      &wq,       &wk,       &wv,       &wo,       &w1,
                &w2,  &ln1.gain, &ln1.bias, &ln2.gain, &ln2.bias, &lnf.gain, &lnf.bias};
    }
    Array x0 = zeros(T * C), n1 = zeros(T * C), q = zeros(T * C), k = zeros(T * C), v = zeros(T * C),
          att = zeros(T * C), branch = zeros(T * C), x1 = zeros(T * C), n2 = zeros(T * C), fc = zeros(4 * T * C),
          hidden = zeros(4 * T * C), x2 = zeros(T * C), nf = zeros(T * C), logits = zeros(T * V), p = zeros(T * V),
          losses = zeros(T), loss = zeros(1);

    void forward(const int* tokens) {
        run("embed", embed, blocks(T * C), THREADS, x0, wte.value, wpe.value, tokens);
        ln1.forward(n1, x0);
        product(q, n1, wq.value, T, C, C), product(k, n1, wk.value, T, C, C), product(v, n1, wv.value, T, C, C);
        OnDevice<bf16> rounded[3] = {OnDevice<bf16>(std::vector<bf16>(T * C)), OnDevice<bf16>(std::vector<bf16>(T * C)),
                                     OnDevice<bf16>(std::vector<bf16>(T * C))};
        Array* exact[3] = {&q, &k, &v};
        for (int i = 0; i < 3; i++) run("round_all", round_all, blocks(T * C), THREADS, rounded[i], *exact[i], T * C);
        run("flash_attention", flash_attention, T / 16, 32, att, rounded[0], rounded[1], rounded[2], T);
        product(branch, att, wo.value, T, C, C), add(x1, x0, branch, T * C);
        ln2.forward(n2, x1);
        product(fc, n2, w1.value, T, C, 4 * C);
        run("gelu", gelu, blocks(4 * T * C), THREADS, hidden, fc, 4 * T * C);
        product(branch, hidden, w2.value, T, 4 * C, C), add(x2, x1, branch, T * C);
        lnf.forward(nf, x2);
        product(logits, nf, wte.value, T, C, V);
        run("softmax", softmax, (T + 3) / 4, 128, p, logits, T, V);
    }

    // dn (T, C), the gradient of n1, from that of att: with the probabilities of all pairs.
    void attention_backward(float* dn, const float* datt) {
        Array s = zeros(T * T), p = zeros(T * T), dp = zeros(T * T), ds = zeros(T * T), sums = zeros(T),
              p_T = zeros(T * T), ds_T = zeros(T * T), turned = zeros(T * C), part = zeros(T * C), dq = zeros(T * C),
              dk = zeros(T * C), dv = zeros(T * C);
        product(s, q, k, T, C, T);
        run("mask", mask, blocks(T * T), THREADS, s);
        run("softmax", softmax, (T + 3) / 4, 128, p, s, T, T);
        product(dp, datt, v, T, C, T);
        run("multiply", multiply, blocks(T * T), THREADS, s, p, dp, T * T), sums_of_rows(sums, s, T, T);
        run("softmax_backward", softmax_backward, blocks(T * T), THREADS, ds, p, dp, sums);
        transposed(p_T, p, T, T), transposed(ds_T, ds, T, T);
        transposed(turned, datt, T, C), product(dv, p_T, turned, T, T, C);
        transposed(turned, k, T, C), product(dq, ds, turned, T, T, C);
        transposed(turned, q, T, C), product(dk, ds_T, turned, T, T, C);
        product_backward(dn, wq.grad, dq, n1, wq.value, C, C);
        product_backward(part, wk.grad, dk, n1, wk.value, C, C), add(dn, dn, part, T * C);
        product_backward(part, wv.grad, dv, n1, wv.value, C, C), add(dn, dn, part, T * C);
    }

    void backward(const int* tokens, const int* targets) {
        Array dlogits = zeros(T * V), dn = zeros(T * C), dx = zeros(T * C), dhidden = zeros(4 * T * C),
              datt = zeros(T * C);
        run("loss_backward", loss_backward, blocks(T * V), THREADS, losses, dlogits, p, targets);
        sums_of_rows(loss, losses, 1, T);
        product_backward(dn, wte.grad, dlogits, nf, wte.value, C, V);
        lnf.backward(dx, dn, x2);
        product_backward(dhidden, w2.grad, dx, hidden, w2.value, 4 * C, C);
        run("gelu_backward", gelu_backward, blocks(4 * T * C), THREADS, dhidden, dhidden, fc, 4 * T * C);
        product_backward(dn, w1.grad, dhidden, n2, w1.value, C, 4 * C);
        ln2.backward(dx, dn, x1);
        product_backward(datt, wo.grad, dx, att, wo.value, C, C);
        attention_backward(dn, datt);
        ln1.backward(dx, dn, x0);
        run("embedding_backward", embedding_backward, V, 64, wte.grad, dx, tokens, T, C);  // to the classifier's
        add(wpe.grad, dx, zeros(T * C), T * C);
    }
};

int main() {
    const std::string text = "To be, or not to be, that is the question: Whether 'tis nobler in the mind";
    OnDevice<int> tokens(std::vector<int>(text.begin(), text.begin() + T)),
        targets(std::vector<int>(text.begin() + 1, text.begin() + T + 1));
    Model model;
    for (int step = 1; step <= STEPS; step++) {
        model.forward(tokens);
        model.backward(tokens, targets);
        printf("step %d | loss %.6f\n", step, model.loss.fetch()[0]);
        for (Parameter* each : model.parameters())
            run("adamw", adamw, blocks(each->n()), THREADS, each->value, each->m, each->v, each->grad, each->n(), 3e-3f,
                1 / (1 - powf(0.9f, step)), 1 / (1 - powf(0.95f, step)));
    }
}
