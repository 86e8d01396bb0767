// What a model after GPT-2 computes on one batch, for dev/test/modern.py to compare: logits
// (B,T,V), the losses (B,T), the gradient of their mean, and the weights after an update, all as
// fp32, tensors in the order of model files.
//
//     modern_probe MODEL INPUT OUTPUT --precision bf16 --threads 2 -l 0.01 -c 0.1 --micro 2 --window 9 --optimizer muon
//
// INPUT: int32 B, T, then x (B,T) and y (B,T). --micro 2: in two micro-steps of B/2 sequences.
#define MODERN_WITHOUT_MAIN
#include "dev/modern/modern.cpp"

namespace modern {

struct Probe {
    std::string precision = "fp32", optimizer = "adamw";
    int64_t threads = 1, micro = 1, window = 0;
    double rate = 0.01, decay = 0.1;
};

template <class T>
void write_fp32(FileWriter& out, const T* values, int64_t n) {
    std::vector<float> wide(n);
    copy_values(wide.data(), values, n);
    out.write(wide.data(), 4 * n);
}
// The logits of all positions of the micro-step that forward() has just seen.
template <class floatX>
void write_logits(FileWriter& out, const Model& model) {
    const Config& c = model.config;
    const int64_t rows = model.B * model.T;
    std::vector<floatX> logits(rows * c.Vp);
    const floatX *none = nullptr, *head = model.param<floatX>(c.tied ? WTE : HEADW);
    kernels::matmul_forward(logits.data(), model.act<floatX>(NORMF), head, none, rows, c.C, c.Vp);
    if (c.softcap > 0) kernels::softcap_forward(logits.data(), c.softcap, logits.size());
    for (int64_t r = 0; r < rows; r++) write_fp32(out, logits.data() + r * c.Vp, c.V);
}
template <class floatX>
int probe(const Probe& p, char** argv) {
    FileReader file(argv[1]), input(argv[2]);
    bool in_bf16 = false;
    const Config c = read_model_header(file, in_bf16);
    int32_t sizes[2];
    input.read(sizes, 8, "sizes");
    const int64_t B = sizes[0], T = sizes[1], part = B / p.micro * T;
    std::vector<int> x(B * T), y(B * T);
    input.read(x.data(), 4 * B * T, "x"), input.read(y.data(), 4 * B * T, "y");
    const Optimizer optimizer = find_optimizer(p.optimizer.c_str());
    Model model = model_of(c, B / p.micro, T, sizeof(floatX) == 2, optimizer);
    device.threads = (int)p.threads;
    allocate<floatX>(model);
    load_weights<floatX>(model, file, in_bf16);
    FileWriter out(argv[3]);
    std::vector<float> losses;
    for (int64_t m = 0; m < p.micro; m++) {
        const Batch batch{x.data() + m * part, y.data() + m * part, 1.0f / (float)(B * T), m > 0, p.window};
        forward<floatX>(model, batch);
        write_logits<floatX>(out, model);
        losses.insert(losses.end(), model.act<float>(LOSSES), model.act<float>(LOSSES) + part);
        backward<floatX>(model, batch);
    }
    out.write(losses.data(), 4 * losses.size());
    out.write(model.grads, 4 * model.weights);
    UpdateSettings settings{};
    const OptimizerInfo& o = OPTIMIZERS[optimizer];
    settings.constants =
        update_constants((float)p.rate, (float)o.beta1, (float)o.beta2, (float)o.eps, (float)p.decay, 1, 1);
    settings.models = settings.loss_scale = 1;
    update<floatX>(model, settings, {0, 0, true}, 1);
    if (model.master) out.write(model.master, 4 * model.weights);
    else write_fp32(out, model.param<floatX>(WTE), model.weights);
    out.commit();
    return 0;
}

}  // namespace modern

int main(int argc, char** argv) {
    return run_program([&] {
        const DenormalsAreZero mode;
        modern::Probe p;
        if (argc < 4) usage_error("modern_probe MODEL INPUT OUTPUT is expected");
        read_flags(argc - 3, argv + 3,
                   {{{"--precision", &p.precision}, {"--optimizer", &p.optimizer}},
                    {{"--threads", {&p.threads}}, {"--micro", {&p.micro}}, {"--window", {&p.window}}},
                    {{"-l", {&p.rate}}, {"-c", {&p.decay}}}});
#ifndef KERNELS_REFERENCE
        if (p.precision == "bf16") return modern::probe<bf16>(p, argv);
#endif
        return modern::probe<float>(p, argv);
    });
}
