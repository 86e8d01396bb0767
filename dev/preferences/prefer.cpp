// Preference tuning on the CPU, by DPO (direct preference optimisation; Rafailov et al. 2023,
// arXiv:2305.18290): of two answers to a prompt the model learns to prefer one. With log p(answer)
// the sum of the log probabilities of its tokens after the prompt, ref the model before training:
//
//     margin = b (log p(chosen) - log ref(chosen) - log p(rejected) + log ref(rejected))
//     loss   = -log(1 / (1 + e^-margin))
//
// The step is the trainer's. Only the loss is another, and its gradient is known to the classifier:
// it is that of the cross-entropy of the answers' tokens, times b / (1 + e^margin), and for the
// rejected answer times -1. ref is computed once, before the first step: no second model is held.
//
//     make prefer && ./prefer -i pairs_train.bin -j pairs_val.bin -e MODEL -b 8 -t 128 -x 100 --beta 0.1
#define TRAINER_WITHOUT_MAIN
#include "train_gpt2_cpu.cpp"

#include "dev/preferences/pairs.h"
#include "llmc/run/step_data.h"

// Over some pairs: how many, the sums of loss and margin, and for how many the margin is above 0.
struct Preference {
    double pairs = 0, loss = 0, margin = 0, right = 0;
};
struct Tuning {
    double beta = 0;  // b above; 0: as the run to resume, or 0.1
    Pairs train, val;
    Preference step;
};

// log p(answer) of rows from the losses (rows,T) of their tokens.
static std::vector<double> answers(const float* losses, int64_t rows, int64_t T) {
    std::vector<double> sums(rows);
    for (int64_t i = 0; i < rows * T; i++) sums[i / T] -= losses[i];
    return sums;
}
// The margin of a pair, whose answers these are; counts it in `all`.
static double count_pair(Preference& all, double beta, const double* p, const double* ref) {
    const double margin = beta * (p[0] - ref[0] - p[1] + ref[1]);
    all.pairs++, all.margin += margin, all.right += margin > 0;
    all.loss += std::max(0.0, -margin) + std::log1p(std::exp(-std::fabs(margin)));
    return margin;
}

// The losses of a micro-batch of pairs, ref (rows) theirs; leaves d(lnf) in BRANCH and the gradient
// of wte, as forward() of the trainer does. dloss: the gradient of the loss of a pair.
static void forward_pairs(GPT2& model, const Batch& batch, Tuning& tuning, const double* ref) {
    const int64_t B = batch.B, T = batch.T, C = model.layout.config.C;
    float *losses = model.act32(LOSSES), *dlnf = model.act<float>(BRANCH), *lnf = model.act<float>(LNF);
    model.phases.enter(PHASE_FORWARD);
    forward_to_lnf<float>(model, batch, LEAVES_CODES);
    keep_slices(model);
    losses_of(model, losses, lnf, batch.y, B * T);
    const std::vector<double> p = answers(losses, B, T);
    if (batch.micro == 0) tuning.step = {};
    double weight = 0;
    for (int64_t row = 0; row < B; row++) {
        const bool chosen = row % 2 == 0;  // the rejected answer of the pair is the next row
        if (chosen) {
            const double margin = count_pair(tuning.step, tuning.beta, &p[row], &ref[row]);
            weight = std::max(tuning.beta / (1 + std::exp(margin)), 1e-30);  // not 0, which asks for no gradient
        }
        const int64_t at = row * T * C;
        const float dloss = batch.dloss * (float)(chosen ? weight : -weight);
        losses_of(model, losses + row * T, dlnf + at, grad<float>(model, WTE), lnf + at, batch.y + row * T, T, dloss,
                  model.adds(batch) || row > 0, nullptr, Teacher<float>());
    }
    model.loss_sum = tuning.step.loss;
}

// Losses of rows first to first + n - 1, without gradients, as sums over their answers.
static std::vector<double> evaluate_rows(Run& run, const Pairs& pairs, int64_t first, int64_t n) {
    run.model.evaluate(run.model, &pairs.x[first * run.T], &pairs.y[first * run.T], n, run.T, run.losses.data());
    return answers(run.losses.data(), n, run.T);
}
static void find_reference(Run& run, Pairs& pairs) {
    for (int64_t row = 0; row < pairs.rows(); row += run.B)
        for (double p : evaluate_rows(run, pairs, row, std::min(run.B, pairs.rows() - row)))
            pairs.reference.push_back(p);
}
// Computes what the weights before training say of all answers, and keeps it in the out dir, behind
// b. A run that goes on reads it there.
static void settle_reference(Run& run, Tuning& tuning) {
    const std::string path = run.options.out_dir + "/reference.bin";
    if (run.resumed_step >= 0) {
        FileReader file(path);
        double beta;
        file.expect_size((1 + tuning.train.rows() + tuning.val.rows()) * (int64_t)sizeof(double));
        file.read(&beta, sizeof(double), "--beta");
        if (tuning.beta > 0 && tuning.beta != beta)
            usage_error("--beta %g differs from the run to resume in %s, which has %g; %g is accepted", tuning.beta,
                        run.options.out_dir, beta, beta);
        tuning.beta = beta;
        for (Pairs* pairs : {&tuning.train, &tuning.val}) {
            pairs->reference.resize(pairs->rows());
            file.read(pairs->reference.data(), pairs->rows() * sizeof(double), "the reference");
        }
        return;
    }
    if (tuning.beta == 0) tuning.beta = 0.1;
    find_reference(run, tuning.train), find_reference(run, tuning.val);
    if (run.options.out_dir.empty() || comm.rank > 0) return;
    FileWriter file(path);
    file.write(&tuning.beta, sizeof(double));
    for (const Pairs* pairs : {&tuning.train, &tuning.val})
        file.write(pairs->reference.data(), pairs->reference.size() * sizeof(double));
    file.commit();
}

static void print_preference(Run& run, const char* of, const Preference& found) {
    run.logger.line("%s: loss %.4f | margin %+.4f | %.1f%% of %s right", of, found.loss / found.pairs,
                    found.margin / found.pairs, 100 * found.right / found.pairs,
                    count_text((int64_t)found.pairs, "pair"));
}
static Preference over_processes(Preference found) {
    for (double* sum : {&found.pairs, &found.loss, &found.margin, &found.right})
        *sum = comm_sum(*sum, "the sums over pairs");
    return found;
}
// Every -v steps: how many of the validation's pairs are right by now.
static void evaluate_pairs(Run& run, Tuning& tuning) {
    const int64_t step = run.state.step, every = run.options.val_every;
    if (tuning.val.rows() == 0 || (step % every != 0 && step != run.max_steps) || stop_agreed()) return;
    Preference found;
    const Pairs& pairs = tuning.val;
    for (int64_t row = 0; row < pairs.rows(); row += run.B) {
        const std::vector<double> p = evaluate_rows(run, pairs, row, std::min(run.B, pairs.rows() - row));
        for (size_t i = 0; i < p.size(); i += 2)
            count_pair(found, tuning.beta, &p[i], &pairs.reference[row + (int64_t)i]);
    }
    print_preference(run, "val pairs", found);
}

// Exit 2 if flags ask for what is done to texts, not to pairs.
static void check_flags(Options& o) {
    if (computes_in_bf16(o)) usage_error("--precision bf16: pairs are learned from in fp32; fp32 is accepted");
    if (o.help || o.version || o.max_steps == 0) return;  // as the trainer
    if (o.max_steps < 0) usage_error("-x %d: the number of steps is needed; 1 or more is accepted", o.max_steps);
    if (o.batch_size % 2 != 0)
        usage_error("-b %d would divide a pair: its two answers are two rows; even numbers are accepted", o.batch_size);
    const auto refuse = [](const char* flag) { usage_error("%s is not for pairs; without it this is accepted", flag); };
    if (!o.teacher.empty()) refuse("--teacher");
    if (o.seq_warmup > 0) refuse("--seq-warmup");
    if (o.batch_warmup > 0) refuse("--batch-warmup");
    if (o.sync_every > 0) refuse("--sync-every");
    if (o.noise_scale) refuse("--noise-scale");
    if (o.overfit_one_batch) refuse("--overfit-one-batch");
    if (o.loss_mask.empty()) o.loss_mask = mask_path_of(o.train_data);
}

static int prefer(Run& run, Tuning& tuning) {
    GPT2& model = run.model;
    model.format = format_of<float>(), model.backend = &cpu_backend<float>();
    model.needs_whole_gradients = true;  // the classifier is called once for each answer
    model.evaluate = evaluate<float>, model.prefill = prefill<float>, model.decode = decode<float>;
    if (!begin_run(run)) return 0;
    const int64_t V = model.layout.config.V;
    tuning.train = read_pairs("-i", run.train_data.shards, run.T, V);
    if (validates(run.options)) tuning.val = read_pairs("-j", run.val_data.shards, run.T, V);
    settle_reference(run, tuning);
    run.logger.note("pairs: %s; %s to validate; %d left out, longer than -t", grouped_text(tuning.train.count()),
                    grouped_text(tuning.val.count()), tuning.train.left_out + tuning.val.left_out);
    std::vector<double> ref(run.B);
    const auto micro_step = [&](int64_t micro) {
        Batch batch = next_batch(run, micro);                                     // its windows are replaced by pairs
        const int64_t first = micro_batch(run, micro, run.state.step).first / 2;  // of the pairs of the run
        for (int64_t row = 0; row < run.B; row += 2) {
            const int64_t of =
                load_pair(tuning.train, first + row / 2, run.options.seed, &run.x[row * run.T], &run.y[row * run.T]);
            ref[row] = tuning.train.reference[of], ref[row + 1] = tuning.train.reference[of + 1];
        }
        forward_pairs(model, batch, tuning, ref.data());
        backward<float>(model, batch);
    };
    for (;;) {
        evaluate_when_due(run);  // validation loss of all answers
        evaluate_pairs(run, tuning);
        if (run_is_over(run)) return end_run(run);
        begin_step(run);
        run.step.tokens = (double)run.step_windows / 2, run.step.dloss = (float)(1 / run.step.tokens);  // pairs
        for (int64_t micro = 0; micro < model.micro_steps; micro++) micro_step(micro);
        if (data_failed(run)) continue;
        const UpdateSettings settings = begin_update(run);
        const StepResult result = loss_and_norm<float>(model, settings);
        if (result.wanted) update<float>(model, settings, result);
        average_weights(run, result);
        end_step(run, settings, result, micro_step);
        print_preference(run, "pairs of the step", over_processes(tuning.step));
        save_when_due(run);
    }
}

// Removes --beta, which the trainers do not have, from the command. Returns its value.
static double take_beta(std::vector<char*>& command) {
    double beta = 0;
    for (size_t i = 1; i < command.size(); i++) {
        if (strcmp(command[i], "--beta") != 0) continue;
        const std::string value = i + 1 < command.size() ? command[i + 1] : "";
        if (!parse_real(value, beta) || beta <= 0) usage_error("--beta %s: above 0 is accepted", value);
        command.erase(command.begin() + i, command.begin() + i + 2), i--;
    }
    return beta;
}

int main(int argc, char** argv) {
    return run_program([&] {
        const DenormalsAreZero mode;
        Run run;
        Tuning tuning;
        std::vector<char*> command(argv, argv + argc);
        tuning.beta = take_beta(command);
        run.options = options_of_command((int)command.size(), command.data());
        check_flags(run.options);
        if (run.options.help || run.options.version || run.options.plan || run.options.max_steps == 0)
            return train<float>(run);
        return prefer(run, tuning);
    });
}
