// One training run, from flags to the last checkpoint: the same code whatever device the model is
// on. The trainer file provides a Model struct with `layout` (ParameterLayout) and `sizes` (Sizes),
// and these functions:
//
//     settle_device(model, sizes, options)         threads, sizes and layout that depend on the device; allocates
//     nothing plan_rows(sizes, options, Model*)            what would be allocated, row by row (PlanRow)
//     allocate(model, sizes, options)              allocates just that
//     set_tensor(model, tensor, layer, values)     fp32 on the host; tensor_data(model, tensor, layer, first, elems), a
//     piece of it back optimizer_slices(model)                      what it keeps of every parameter: 2 = m, v; 3 =
//     also the fp32 master of a 16-bit weight slice_memory(model, slice)                   where: m, v, and as 2 the
//     master, or the weights if they are fp32; null if there is none to_host(model, from, n), to_device(model, to,
//     values, n)     n floats from and to such memory micro_step(model, x, y, B, T, dloss, micro)  forward and backward
//     of micro-batch 0, 1, ... of a step; gradients add up from 0 on update(model, rule)                          the
//     end of the step: norm, clipping, AdamW; waits for the device, the only time evaluate(model, x, y, B, T, losses)
//     forward; loss of every position decode(model, token, position)               generation, one position at a time:
//     logits (V) of what comes next wire_bytes_a_step(model)                     what each process sends in collectives
//     on buckets peak_flops(model, reached)                   FLOP/s, 0 if unknown, or if it cannot be because a step
//     has reached more precision_name(model)                        fp32 or bf16 kernels_name(model) what computes, for
//     processes to compare arithmetic(model), device_status(model)      for the log: the precision, and what computes
//     in it; clocks and the like for -lg, or empty
#pragma once
#include "llmc/data_identity.h"
#include "llmc/evaluate.h"
#include "llmc/plan_disk.h"
#include "llmc/program.h"
#include "llmc/schedule.h"
#include "llmc/start.h"
#include "llmc/update_rule.h"

// Matrix products of one token, forward and backward, and causal attention at T (two products
// forward, five backward).
inline double flops_per_token(const GPT2Config& c, int64_t T) {
    double matmul_params = (double)c.V * c.C + (double)c.L * 12 * c.C * c.C;
    return 6 * matmul_params + 3.5 * 2 * T * c.C * c.L;
}

// Sizes that follow from flags and model; exit 2 if they cannot work together.
inline void settle_sizes(Options& o, const GPT2Config& config) {
    if (o.seq_len == 0) o.seq_len = std::min<int64_t>(1024, config.maxT);
    if (o.seq_len > config.maxT)
        usage_error("-t %lld is longer than the model's context; 1 to %lld are accepted", (long long)o.seq_len,
                    (long long)config.maxT);
    const int64_t micro_tokens = o.batch_size * o.seq_len * comm.processes;
    const bool from_run_json = o.resume && o.total_batch_size > 0 && !o.given.count("--total-batch-size");
    if (from_run_json && o.total_batch_size % micro_tokens != 0) {
        warning(
            "the run in %s had steps of %lld tokens, which is no multiple of B*T*processes = %lld*%lld*%lld: they "
            "have %lld from here on (-d chooses)",
            o.out_dir.c_str(), (long long)o.total_batch_size, (long long)o.batch_size, (long long)o.seq_len,
            (long long)comm.processes, (long long)micro_tokens);
        o.total_batch_size = micro_tokens;
    }
    if (o.total_batch_size == 0) o.total_batch_size = micro_tokens;
    if (o.total_batch_size % micro_tokens != 0)
        usage_error("-d %lld is no multiple of B*T*processes = %lld*%lld*%lld; multiples of %lld are accepted",
                    (long long)o.total_batch_size, (long long)o.batch_size, (long long)o.seq_len,
                    (long long)comm.processes, (long long)micro_tokens);
    if (only_generates(o) && o.sample_tokens == 0)
        usage_error("-g 0 with --prompt and -x 0 leaves nothing to do; 1 or more is accepted");
    if (o.out_dir.empty() && o.resume) usage_error("-y 1 needs -o, the folder to resume from");
    if (o.out_dir.empty() && o.checkpoint_every > 0)
        warning("-n %lld without -o, the folder for the checkpoints: none are written", (long long)o.checkpoint_every);
}

// What may not change between a run and its continuation. Exit 2 naming the flag.
inline void check_resumable(const Options& o, const StateHeader& saved) {
    auto refuse = [&](const char* flag, long long now, long long then) {
        usage_error(
            "%s %lld differs from the run to resume in %s, which has %lld; %lld is accepted, or -y 0 --overwrite 1",
            flag, now, o.out_dir.c_str(), then, then);
    };
    if (o.seq_len != saved.T) refuse("-t", o.seq_len, saved.T);
    if (o.seed != saved.seed) refuse("--seed", o.seed, saved.seed);
    if (o.shuffle != saved.shuffle) refuse("--shuffle", o.shuffle, saved.shuffle);
}

// Initial weights: the numbers that PyTorch draws (random.h), one generator, wte and wpe first,
// then layer by layer.
template <class Model>
inline void initialize_weights(Model& model, uint64_t seed, Progress* progress = nullptr) {
    const GPT2Config& c = model.layout.config;
    MersenneTwister rng(seed);
    std::vector<float> values;
    auto fill = [&](int i, int64_t layer) {
        const int64_t elems = tensor_elems(i, c), drawn = i == WTE ? c.V * c.C : elems;
        values.assign(elems, TENSORS[i].init == INIT_ONE ? 1.0f : 0.0f);
        if (TENSORS[i].init == INIT_NORMAL) normal_fill(rng, values.data(), drawn, 0.02f);
        if (TENSORS[i].init == INIT_NORMAL_RESIDUAL)
            normal_fill(rng, values.data(), drawn, (float)(0.02 / std::sqrt(2.0 * c.L)));
        set_tensor(model, i, layer, values.data());
        if (progress) progress->add(drawn);
    };
    for (int i = 0; i < NUM_TENSORS; i++)
        if (!TENSORS[i].per_layer) fill(i, 0);
    for (int64_t l = 0; l < c.L; l++)
        for (int i = 0; i < NUM_TENSORS; i++)
            if (TENSORS[i].per_layer) fill(i, l);
}

template <class Model>
inline void evaluate_and_sample(Run<Model>& run, int64_t step, bool last) {
    const Options& o = run.options;
    const bool due = o.val_every > 0 && (step % o.val_every == 0 || last);
    if (due && !only_generates(o) && run.val_data.total_windows > 0) {
        const double loss = validation_loss(run);
        if (stop.agreed) return;
        run.logger.line("val loss %s", loss_text("%f", loss).c_str());
        run.logger.record(format("s:%lld tel:%s", (long long)step, loss_text("%.4f", loss).c_str()));
    }
    if (due && !only_generates(o) && !run.hellaswag.empty()) {
        const int64_t correct = hellaswag_correct(run);
        if (stop.agreed) return;
        const double share = (double)correct / (double)run.hellaswag.size();
        run.logger.line("HellaSwag: %lld/%zu = %f", (long long)correct, run.hellaswag.size(), share);
        run.logger.record(format("s:%lld eval:%.4f", (long long)step, share));
    }
    if (run.model.sizes.cache_T > 0 && (last || (o.sample_every > 0 && step > 0 && step % o.sample_every == 0)) &&
        comm.rank == 0)
        sample_text(run, step);
}

// Ends the run if another has taken its out dir, which takes somebody who removes run.lock. If
// nobody has, the lock is taken again.
template <class Model>
inline void expect_own_folder(Run<Model>& run) {
    if (comm.rank > 0 || run.lock.fd < 0 || run.lock.keep()) return;
    runtime_failure(
        "%s was removed, and another run has begun in %s: this one ends at step %lld and leaves the folder "
        "to it; steps since the last checkpoint are not saved",
        run.lock.path.c_str(), run.options.out_dir.c_str(), (long long)run.state.step);
}

template <class Model>
inline void save(Run<Model>& run) {
    if (run.options.out_dir.empty() || run.saved_step == run.state.step) return;
    const ParameterLayout& layout = run.model.layout;
    const int64_t model_bytes = model_file_bytes(layout.config, run.model.sizes.floatX_bytes);
    const int64_t state_bytes = state_file_bytes(layout, optimizer_states(run.model));
    const int64_t all_bytes = model_bytes + comm.processes * state_bytes;
    const std::string step = format("step %lld", (long long)run.state.step);
    Progress progress(run.logger, "saving " + step, model_bytes + state_bytes, "MB", 1000000);
    expect_own_folder(run);
    save_checkpoint(run.options.out_dir, run.state, run.model, &progress);
    run.saved_step = run.state.step;
    run.logger.note("saved %s to %s (%s MB, %.1f s)", step.c_str(), run.options.out_dir.c_str(),
                    grouped_text(all_bytes / 1000000).c_str(), now_seconds() - progress.begin);
    run.whole[run.saved_step] = true;
    const Options& o = run.options;
    for (int64_t replaced : run.replaced)
        if (replaced != run.saved_step) remove_checkpoint(o.out_dir, replaced);
    run.replaced.clear();
    prune_checkpoints(o.out_dir, run.saved_step, o.keep_checkpoints, o.major_every, run.whole);
}

// Nothing until there is a number.
inline std::string z_text(double z) { return std::isnan(z) ? "" : format("(%+.2fz)", z); }

// What the step under way has come to: the time that the run has taken, and what is left of it. The
// pace is that since the second step, as the first finds memory and caches cold.
template <class Model>
inline void show_time_left(Run<Model>& run, int64_t micro) {
    const double now = now_seconds(), part = (double)micro / (double)run.micro_steps;
    if (micro == 0 && run.state.step <= run.first_step + 1) run.pace_step = run.state.step, run.pace_time = now;
    const double done = (double)(run.state.step - run.pace_step) + part;
    const double steps_left = (double)(run.max_steps - run.state.step) - part;
    std::string text = format("working on step %lld/%lld", (long long)run.state.step + 1, (long long)run.max_steps);
    if (run.micro_steps > 1) text += format(", micro-step %lld/%lld", (long long)micro + 1, (long long)run.micro_steps);
    text += ": " + duration_text(now - run.started) + " gone";
    if (done > 0) text += ", " + duration_text((now - run.pace_time) / done * steps_left) + " left";
    run.logger.progress(text);
}

// One optimizer step: micro-steps, norm, update, its line.
template <class Model>
inline void train_step(Run<Model>& run) {
    const Options& o = run.options;
    const int64_t step = run.state.step, windows = o.total_batch_size / run.T;
    const double begin = now_seconds();
    for (int64_t micro = 0; micro < run.micro_steps; micro++) {
        show_time_left(run, micro);
        const int64_t first =
            (o.overfit_one_batch ? 0 : run.state.position_windows) + (micro * comm.processes + comm.rank) * run.B;
        for (int64_t b = 0; b < run.B; b++)
            load_window(run.train_data, first + b, &run.x[b * run.T], &run.y[b * run.T]);
        micro_step(run.model, run.x.data(), run.y.data(), run.B, run.T, 1.0f / (float)o.total_batch_size, micro);
    }
    const double rate =
        learning_rate_at(o.lr_schedule, step, run.max_steps, o.warmup_steps, o.learning_rate, o.final_lr_frac);
    UpdateRule rule;
    rule.adamw = adamw_constants((float)rate, (float)o.beta1, (float)o.beta2, (float)o.eps, (float)o.weight_decay, 1.0f,
                                 step + 1);
    rule.tokens = (double)o.total_batch_size, rule.grad_clip = o.grad_clip;
    rule.loss_limit = run.state.loss_outlier.limit(o.skip_loss_z),
    rule.norm_limit = run.state.norm_outlier.limit(o.skip_grad_z);
    rule.rounding_seed = generator_for(o.seed, RANDOM_ROUNDING, step).bits64();
    const auto [loss, norm, updated] = update(run.model, rule);
    const double loss_z = run.state.loss_outlier.z_score(loss), norm_z = run.state.norm_outlier.z_score(norm);
    const bool finite = std::isfinite(loss) && std::isfinite(norm);
    const double seconds = now_seconds() - begin;
    const double flops = flops_per_token(run.model.layout.config, run.T) * (double)o.total_batch_size;
    const double reached = flops / seconds / comm.processes, peak = peak_flops(run.model, reached);
    const std::string mfu =
        peak > 0 ? format("%.1f%% %s MFU", 100 * reached / peak, precision_name(run.model)) : "n/a MFU";
    run.logger.line("step %4lld/%lld | loss %s %s| norm %s %s| lr %.2e | %.2f ms | %s | %.0f tok/s",
                    (long long)step + 1, (long long)run.max_steps, loss_text("%7.6f", loss).c_str(),
                    z_text(loss_z).c_str(), loss_text("%6.4f", norm).c_str(), z_text(norm_z).c_str(), rate,
                    seconds * 1e3, mfu.c_str(), (double)o.total_batch_size / seconds);
    run.logger.record(format("s:%lld trl:%s lr:%.6f norm:%s", (long long)step, loss_text("%.4f", loss).c_str(), rate,
                             loss_text("%.2f", norm).c_str()));
    if (o.log_gpu_every > 0 && (step + 1) % o.log_gpu_every == 0) {
        const std::string status = device_status(run.model);
        if (!status.empty()) run.logger.line("%s", status.c_str());
    }
    if (!finite) {
        const std::string last_good =
            run.saved_step >= 0
                ? "the last good checkpoint is " + model_path(o.out_dir, run.saved_step) + ", -y 1 goes on from it"
                : "no checkpoint was saved";
        runtime_failure(
            "the %s of step %lld is not finite; the run stops before this update, %s (a lower -l or a longer -u may "
            "help)",
            std::isfinite(loss) ? "gradient norm" : "loss", (long long)step + 1, last_good.c_str());
    }
    if (!updated)
        run.logger.line("step %lld: update skipped, its %s is an outlier", (long long)step + 1,
                        loss > rule.loss_limit ? "loss" : "gradient norm");
    run.state.step++;
    run.state.position_windows += windows;
}

// How a run that was stopped goes on.
inline std::string how_to_go_on(const Options& o) {
    if (comm.processes > 1 && !started_by_mpi()) return "the same commands with -y 1 go on from there";
    const std::string launcher = comm.processes > 1 ? format("mpirun -np %lld ", (long long)comm.processes) : "";
    return "to go on: " + launcher + o.program + " -o " + shell_word(o.out_dir) + " -y 1";
}

// The end of a run that a signal has stopped; its exit status.
template <class Model>
inline int end_early(Run<Model>& run) {
    const Options& o = run.options;
    if (o.max_steps != 0) save(run);
    run.logger.line("stopped at step %lld", (long long)run.state.step);
    if (o.max_steps != 0 && o.out_dir.empty()) run.logger.line("nothing is kept: there was no -o");
    else if (o.max_steps != 0) run.logger.line("saved in %s; %s", o.out_dir.c_str(), how_to_go_on(o).c_str());
    comm_barrier("the end of the run");  // no process ends before all that was to be written is there
    return stop_status(stop.agreed);
}

// Steps, and what is between them; returns the program's exit status.
template <class Model>
inline int training_loop(Run<Model>& run) {
    const Options& o = run.options;
    const char* then = o.out_dir.empty() ? "nothing is kept without -o" : "saving";
    run.first_step = run.state.step, run.started = now_seconds();
    for (;;) {
        const bool last = run.state.step >= run.max_steps;
        expect_own_folder(run);
        answer_signals(o.max_steps == 0 ? "stopping"
                                        : format("stopping after step %lld, %s", (long long)run.state.step, then));
        stop.at_once = false;
        evaluate_and_sample(run, run.state.step, last);
        if (stop_agreed()) return end_early(run);
        if (last) return 0;
        answer_signals(format("finishing step %lld, %s", (long long)run.state.step + 1, then));
        train_step(run);
        const bool due = o.checkpoint_every > 0 && run.state.step % o.checkpoint_every == 0;
        if (due || run.state.step == run.max_steps) save(run);
    }
}

template <class Model>
inline void print_plan(const Options& o, const Sizes& s, Model* model) {
    printf("model: L %lld, C %lld, NH %lld, context %lld, vocabulary %lld (padded to %lld): %lld parameters\n",
           (long long)s.config.L, (long long)s.config.C, (long long)s.config.NH, (long long)s.config.maxT,
           (long long)s.config.V, (long long)s.config.Vp, (long long)parameter_count(s.config));
    print_plan_rows(stdout, plan_rows(s, o, model));
    if (o.max_steps != 0) print_disk_plan(o, planned_checkpoint_bytes(s, model->layout, plan_rows(s, o, model)));
    printf("FLOPs a step: %.4e (%lld tokens)\n", flops_per_token(s.config, s.T) * (double)o.total_batch_size,
           (long long)o.total_batch_size);
    const int64_t wire = wire_bytes_per_step(*model);
    printf("bytes on the wire a step: %lld sent by each of %lld processes\n", (long long)wire,
           (long long)comm.processes);
    if (!s.gpu) return;
    const Cluster c;
    const ScalingEstimate e =
        estimate_scaling(c, flops_per_token(s.config, s.T) * (double)o.total_batch_size, (double)wire, comm.processes,
                         o.gpus_per_node, s.config.L + 1, s.micro_steps);
    printf(
        "on GPUs of %.0f TFLOP/s used to %.0f%%, %.0f GB/s between those of a node, %.0f GB/s a GPU between nodes of "
        "%lld, %.0f us a message:\n",
        c.flops / 1e12, 100 * c.utilisation, c.node_bytes_s / 1e9, c.network_bytes_s / 1e9, (long long)o.gpus_per_node,
        1e6 * c.message_s);
    printf(
        "a step computes for %.2f ms and communicates for %.2f ms, of which %.2f ms hide behind the backward pass: "
        "efficiency %.1f%%\n",
        1e3 * e.compute_s, 1e3 * e.communicate_s, 1e3 * e.hidden_s,
        100 * e.compute_s / (e.compute_s + e.communicate_s - e.hidden_s));
}

template <class Model>
inline void load_tokenizer(Run<Model>& run) {
    const Options& o = run.options;
    if (o.prompt.empty() && (o.sample_every == 0 || o.sample_tokens == 0)) return;
    if (o.prompt.empty() && !file_exists(o.tokenizer))
        return warning("--tokenizer %s is not there; samples are shown as token ids", o.tokenizer.c_str());
    tokenizer_load(run.tokenizer, o.tokenizer, !o.prompt.empty());
    if (o.prompt.empty()) return;
    encode(run.tokenizer, o.prompt, run.prompt);
    for (int token : run.prompt)
        if (token >= run.model.layout.config.V)
            usage_error("--prompt has token %d, but the model has only %lld: it was made for another --tokenizer",
                        token, (long long)run.model.layout.config.V);
}

// Everything the run reads, opened and checked before anything is allocated or written.
template <class Model>
inline void open_inputs(Run<Model>& run, int64_t resumed_step) {
    const Options& o = run.options;
    const GPT2Config& c = run.model.layout.config;
    const bool trains = o.max_steps != 0;
    load_tokenizer(run);
    if (trains) {
        dataloader_open(run.train_data, "-i", o.train_data, o.seq_len, c.V, o.seed, o.shuffle);
        const int64_t needed = o.total_batch_size / o.seq_len;
        if (run.train_data.total_windows < needed)
            runtime_failure(
                "-i %s is too short for one step: it has %lld windows of %lld tokens, a step of -d %lld "
                "needs %lld; more text or a smaller -t, -b or -d is accepted",
                o.train_data.c_str(), (long long)run.train_data.total_windows, (long long)o.seq_len,
                (long long)o.total_batch_size, (long long)needed);
        if (resumed_step >= 0) check_resumable(o, run.state);
    }
    if (o.val_every > 0 && !only_generates(o))
        dataloader_open(run.val_data, "-j", o.val_data, o.seq_len, c.V, o.seed, false);
    if (o.hellaswag && !only_generates(o)) {
        if (file_exists(o.hellaswag_data)) run.hellaswag = hellaswag_load(o.hellaswag_data, c.V);
        else
            warning(
                "--hellaswag-data %s is not there; the run goes on without HellaSwag (dev/data/hellaswag.py makes the "
                "file)",
                o.hellaswag_data.c_str());
    }
    run.max_steps = o.max_steps >= 0 ? o.max_steps : run.train_data.total_tokens / o.total_batch_size;
}

template <class Model>
inline std::vector<Shard*> all_shards(Run<Model>& run) {
    std::vector<Shard*> shards;
    for (DataLoader* data : {&run.train_data, &run.val_data})
        for (Shard& shard : data->shards) shards.push_back(&shard);
    return shards;
}

// A run that is kept knows its data by all its bytes. Exit 2 if they are not those that the run to
// resume was trained on; checkpoints of earlier versions know the ends of the shards.
template <class Model>
inline void identify_data(Run<Model>& run, int64_t resumed_step) {
    const Options& o = run.options;
    if (!writes_out_dir(o)) return;
    checksum_shards(all_shards(run), o.out_dir, run.logger);
    const uint64_t identity = identity_of(run.train_data), saved = run.state.data_identity;
    if (resumed_step >= 0 && saved != identity && saved != run.train_data.ends_identity)
        usage_error(
            "-i %s is other data than the run to resume in %s was trained on; the same shards are accepted, "
            "or -y 0 --overwrite 1",
            o.train_data.c_str(), o.out_dir.c_str());
    run.state.data_identity = identity;
}

// The out dir: a fresh log for a fresh run, the old one cut back to the checkpoint for a resumed
// one. A folder that was not there when the program started is not locked yet.
template <class Model>
inline void open_out_dir(Run<Model>& run, bool resumed) {
    const std::string& dir = run.options.out_dir;
    if (dir.empty() || run.options.max_steps == 0) return;
    make_folder(dir);
    run.logger.path = dir + "/main.log";
    if (comm.rank == 0 && run.lock.fd < 0) {
        take_out_dir(run.lock, run.options);
        if (!finished_steps(dir).empty()) runtime_failure("another run began in %s, and ended, just now", dir.c_str());
    }
    if (!resumed && comm.rank == 0) {
        const std::vector<int64_t> earlier = finished_steps(dir);
        for (const CheckpointFile& file : checkpoint_files(dir))
            if (run.options.overwrite && file.kind != CheckpointFile::MODEL) run.replaced.insert(file.step);
        for (int64_t step : earlier)
            if (!remove_file(done_path(dir, step)))
                runtime_failure("cannot remove %s: %s", done_path(dir, step).c_str(), strerror(errno));
        flush_folder(dir);
        if (!earlier.empty())
            run.logger.line(
                "%s holds an earlier run: starting again, its %zu checkpoints are marked incomplete, and "
                "removed once this run has saved one",
                dir.c_str(), earlier.size());
    }
    run.logger.rewind(resumed ? run.state.step : 0);
    if (comm.rank != 0) return;
    write_run_json(run.options);
    remember_checksums(dir, all_shards(run));
}

// True if a resumed run has nothing left to do. One that was killed after its last checkpoint has:
// main.log lacks what is evaluated at its end.
template <class Model>
inline bool is_finished(Run<Model>& run) {
    if (run.options.max_steps == 0 || run.state.step < run.max_steps) return false;
    bool lacks = false;
    if (comm.rank == 0 && run.state.step == run.max_steps && run.options.val_every > 0) {
        Logger log;
        log.path = run.options.out_dir + "/main.log";
        bool validated = false, asked = false;
        const std::string step = format("s:%lld ", (long long)run.state.step);
        for (const std::string& line : log.recorded()) {
            validated |= line.rfind(step + "tel:", 0) == 0;
            asked |= line.rfind(step + "eval:", 0) == 0;
        }
        lacks = !validated || (!asked && !run.hellaswag.empty());
    }
    return !comm_any(lacks, "whether anything is left to do");
}

template <class Model>
inline void load_weights(Run<Model>& run, int64_t resumed_step) {
    const Options& o = run.options;
    run.random_weights = !run.model_file;
    if (run.random_weights) {
        const int64_t parameters = parameter_count(run.model.layout.config);
        Progress progress(run.logger, "drawing the initial weights", parameters, "million", 1000000);
        return initialize_weights(run.model, o.seed, &progress);
    }
    FileReader& file = *run.model_file;
    const bool resumes = resumed_step >= 0;
    const int64_t state_bytes = resumes ? run.state.processes * file_bytes(state_path(o.out_dir, resumed_step, 0)) : 0;
    Progress progress(run.logger, "loading " + file.path, file.size_bytes + state_bytes, "MB", 1000000);
    if (resumes) load_checkpoint(o.out_dir, run.state, file, run.model, &progress);
    else load_model(run.model, file, &progress);
    run.model_file.reset();
}

// What the run is: the model and what computes it, the data and how it is divided.
template <class Model>
inline void describe_run(Run<Model>& run, const Sizes& sizes) {
    const Options& o = run.options;
    const GPT2Config& c = sizes.config;
    const double mib = plan_bytes(plan_rows(sizes, o, &run.model)) / 1048576.0;
    run.logger.note("model: L %lld, C %lld, NH %lld, T %lld of %lld, V %lld: %s parameters, %s, %.1f MiB planned",
                    (long long)c.L, (long long)c.C, (long long)c.NH, (long long)run.T, (long long)c.maxT,
                    (long long)c.V, grouped_text(parameter_count(c)).c_str(), arithmetic(run.model).c_str(), mib);
    if (o.max_steps == 0) return;
    const int64_t n = comm.processes, shards = run.train_data.shards.size();
    run.logger.note("data: %lld shard%s, %s tokens, %lld steps of %s tokens in %lld micro-step%s%s", (long long)shards,
                    shards == 1 ? "" : "s", grouped_text(run.train_data.total_tokens).c_str(), (long long)run.max_steps,
                    grouped_text(o.total_batch_size).c_str(), (long long)run.micro_steps,
                    run.micro_steps == 1 ? "" : "s",
                    n > 1 ? format(" on each of %lld processes", (long long)n).c_str() : "");
    const double epochs = (double)run.max_steps * (double)o.total_batch_size / (double)run.train_data.total_tokens;
    if (epochs > 1) run.logger.note("the data is gone through %.1f times (epochs)", epochs);
    if (o.out_dir.empty()) run.logger.note("no -o: nothing of this run is kept");
    else if (comm.rank == 0)
        warn_of_full_disk(o, planned_checkpoint_bytes(sizes, run.model.layout, plan_rows(sizes, o, &run.model)),
                          run.max_steps);
}

template <class Model>
inline int run_main(const Options& options) {
    Run<Model> run;
    Options& o = run.options = options;
    if (o.help) return print_help(o.program.c_str()), 0;
    if (o.version) return printf("%s\n", TRAINER_VERSION), 0;
    if (o.plan && o.num_processes > 1) comm.processes = o.num_processes;  // a plan for any number, none is started
    else
        comm_start(o.num_processes, o.process_rank, o.dist_init, o.server_ip, o.fs_path, o.comm_timeout,
                   format("%s, %s, %s kernels", TRAINER_VERSION, precision_name(run.model), kernels_name(run.model)));
    CommSession session;
    catch_signals();
    run.logger.silent = comm.rank > 0, run.logger.quiet = o.quiet, run.logger.terminal = stdout_is_terminal();

    if (comm.rank == 0 && writes_out_dir(o)) check_own_files(o);
    if (comm.rank == 0 && writes_out_dir(o) && folder_exists(o.out_dir)) take_out_dir(run.lock, o);
    const bool resumes = o.resume && !o.out_dir.empty();
    const int64_t resumed_step = resumes ? newest_checkpoint(o.out_dir, run.state, &run.model_file, &run.logger) : -1;
    if (resumed_step >= 0) run.whole[resumed_step] = true;
    if (resumed_step >= 0 && !name_exists(run_json_path(o.out_dir)))
        warning("%s is not there: flags that are not given have their defaults", run_json_path(o.out_dir).c_str());
    if (resumed_step < 0) settle_model(o);  // else the checkpoint has the weights
    const GPT2Config config = config_of_model(o.model, run.model_file);
    if (resumed_step >= 0) check_same_model(o, config);
    settle_sizes(o, config);
    run.B = o.batch_size, run.T = o.seq_len, run.micro_steps = o.total_batch_size / (run.B * run.T * comm.processes);
    const bool samples = o.sample_tokens > 0 && (o.sample_every > 0 || (o.max_steps == 0 && !o.prompt.empty()));
    const int64_t cache_T =
        samples ? std::min<int64_t>(config.maxT, std::max<size_t>(1, o.prompt.size()) + o.sample_tokens) : 0;
    Sizes sizes{config, run.B, run.T, o.recompute, cache_T, 0, o.max_steps != 0, run.micro_steps, comm.processes};
    run.model.layout = parameter_layout(config, comm.processes);
    settle_device(run.model, sizes, o);
    if (o.plan) {
        if (comm.rank == 0) print_plan(o, sizes, &run.model);
        return 0;
    }

    if (comm.rank == 0) check_out_dir_free(o);
    open_inputs(run, resumed_step);
    comm_check_same(format("%s %lld %lld %lld %lld %lld", options_text(o).c_str(), (long long)config.L,
                           (long long)config.C, (long long)config.NH, (long long)config.V, (long long)config.maxT),
                    "flags and model");
    comm_check_same(format("%llu %llu %lld", (unsigned long long)run.train_data.ends_identity,
                           (unsigned long long)run.val_data.ends_identity, (long long)resumed_step),
                    "data and checkpoint");
    identify_data(run, resumed_step);
    if (resumed_step >= 0 && is_finished(run)) {
        run.logger.line("the run in %s is already at step %lld of %lld", o.out_dir.c_str(), (long long)run.state.step,
                        (long long)run.max_steps);
        return 0;
    }
    const std::string settings = settings_text(options, o);
    if (!settings.empty() && !only_generates(o)) run.logger.note("%s", settings.c_str());
    allocate(run.model, sizes, o);
    load_weights(run, resumed_step);
    open_out_dir(run, resumed_step >= 0);  // last: what cannot run must not touch the folder of an earlier run
    describe_run(run, sizes);
    if (resumed_step >= 0) run.logger.note("resumed at step %lld", (long long)resumed_step);
    else if (resumes) run.logger.note("no checkpoint in %s: a new run begins", o.out_dir.c_str());
    run.state.T = run.T, run.state.seed = o.seed, run.state.shuffle = o.shuffle;
    run.saved_step = resumed_step;
    run.x.resize(run.B * run.T), run.y.resize(run.B * run.T), run.losses.resize(run.B * run.T);
    const int status = training_loop(run);
    run.logger.finish();
    return status;
}
