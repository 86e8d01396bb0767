// One training run, from flags to the last checkpoint: the same code whatever device the model
// computes on. model_contract.h lists what the trainer provides.
#pragma once
#include "llmc/comm/comm_start.h"
#include "llmc/options/number_formats.h"
#include "llmc/run/core_share.h"
#include "llmc/run/describe.h"
#include "llmc/run/evaluate.h"
#include "llmc/run/model_contract.h"
#include "llmc/run/not_finite.h"
#include "llmc/run/out_dir.h"
#include "llmc/run/print_plan.h"
#include "llmc/base/program.h"
#include "llmc/run/step_data.h"
#include "llmc/run/step_log.h"
#include "llmc/run/summary.h"
#include "llmc/run/talk.h"
#include "llmc/run/trace_file.h"

// What the update of this step, of which so many tokens count, needs beside the gradients.
template <class Model>
inline UpdateRule update_rule(const Run<Model>& run, double rate, double tokens) {
    const Options& o = run.options;
    const int64_t step = run.state.step, updates = step - run.state.loss_scale.skipped;
    UpdateRule rule;
    rule.constants = update_constants((float)rate, (float)o.beta1, (float)o.beta2, (float)o.eps, (float)o.weight_decay,
                                      1.0f, updates + 1);
    rule.constants.nesterov = o.nesterov, rule.constants.round_to_nearest = o.rounding == "nearest";
    rule.tokens = tokens;
    rule.grad_clip = o.grad_clip;
    rule.loss_scale = run.state.loss_scale.scale;
    rule.loss_limit = run.state.loss_outlier.limit(o.skip_loss_z);
    rule.norm_limit = run.state.norm_outlier.limit(o.skip_grad_z);
    rule.rounding_seed = generator_for(o.seed, RANDOM_ROUNDING, step).bits64();
    return rule;
}

// Forward and backward pass of the micro-batch in run.x and run.y, which is number `micro`.
template <class Model>
inline void compute_micro_batch(Run<Model>& run, float dloss, int64_t micro) {
    const int64_t B = run.B * run.cuts, T = run.T / run.cuts;
    micro_step(run.model, run.x.data(), run.y.data(), B, T, dloss, micro);
}

// After a step whose loss or gradient norm is not finite: says where the first such value came
// from, on the lowest rank that has one.
template <class Model>
inline void say_what_is_not_finite(Run<Model>& run, float dloss) {
    const auto first = first_not_finite(run.model, [&](int64_t micro) {
        load_micro_batch(run, micro);
        const Alone alone;
        compute_micro_batch(run, dloss, micro);
    });
    struct Finding {
        char text[200];
    } mine{};
    snprintf(mine.text, sizeof(mine.text), "%s", first.found.c_str());
    const std::vector<Finding> all = comm_gather(mine, "what is not finite");
    for (int64_t r = 0; r < comm.processes; r++) {
        const std::string rank = comm.processes > 1 ? format(" of rank %lld", (long long)r) : "";
        if (*all[r].text) return run.logger.line("first not finite: %s%s", all[r].text, rank.c_str());
    }
    run.logger.line("all tensors are finite, but a sum over them is not; the largest gradient is %.3g, in %s",
                    first.largest_gradient, first.largest.c_str());
}

// One step: the gradients of all its micro-batches, then one update of the weights. No update if a
// process could not load its tokens.
template <class Model>
inline void train_step(Run<Model>& run) {
    const Options& o = run.options;
    StateHeader& state = run.state;
    const Range range("step", state.step + 1);
    shape_step(run);
    const double begin = now_seconds(), tokens = counted_tokens(run);
    // the loss of a step is the mean over its tokens
    const float dloss = (float)state.loss_scale.scale / (float)std::max(1.0, tokens);
    for (int64_t micro = 0; micro < run.model.micro_steps; micro++) {
        run.model.parts.enter(PART_DATA);
        show_time_left(run, micro);
        load_micro_batch(run, micro);
        if (stop.failed && comm.processes == 1) break;
        compute_micro_batch(run, dloss, micro);
    }
    if (comm_any(stop.failed, "whether all processes have their data")) {
        stop.agreed = STOP_FAILED;
        return comm_wait("the sum of the gradients");
    }
    const double rate = learning_rate_of(o, state.step, run.max_steps);
    const UpdateRule rule = update_rule(run, rate, tokens);
    BeforeUpdate before;
    measure_before_update(run, rule.loss_scale, before);
    const StepResult result = update(run.model, rule, [&] { load_ahead(run); });
    const double loss_z = tokens > 0 ? state.loss_outlier.z_score(result.loss) : NAN;
    const bool overflow = gradients_overflowed(result) && can_lower(state.loss_scale, o);
    const double norm_z = tokens > 0 && !overflow ? state.norm_outlier.z_score(result.norm) : NAN;
    const Range log("log");
    const FirstGradient first{(double)run.first_tokens, result.small_squares};
    log_step(run,
             {rate, result.loss, result.norm, loss_z, norm_z, now_seconds() - begin, tokens, first, rule.loss_scale});
    if (!is_finite(result) && !overflow) say_what_is_not_finite(run, dloss), stop_if_not_finite(run, result);
    log_tensors(run, rule, result.updated, before);
    state.loss_scale = next_scale<typename Model::Element>(state.loss_scale, o, overflow);
    if (!result.updated) log_skipped_update(run, result, rule, state.loss_scale.scale);
    state.step++;
    state.position_windows += run.step_windows;
}

// All steps, and what is due between them. Returns the exit status of the program.
template <class Model>
inline int training_loop(Run<Model>& run) {
    const Options& o = run.options;
    const char* then = o.out_dir.empty() ? "nothing is kept without -o" : "saving";
    run.first_step = run.state.step, run.started = now_seconds();
    run.model.parts.on = writes_out_dir(o);
    if (writes_out_dir(o)) after_failed_write = "; " + how_to_go_on(o);
    for (;;) {
        const bool last = run.state.step >= run.max_steps;
        answer_signals(o.max_steps == 0 ? "stopping"
                                        : format("stopping after step %lld, %s", (long long)run.state.step, then));
        stop.at_once = false;
        const double evaluation = now_seconds();
        if (o.talks) converse(run);
        else if (!stop.agreed) evaluate_and_sample(run, run.state.step, last);
        run.evaluation_seconds = now_seconds() - evaluation;
        if (stop_agreed()) return end_early(run);
        if (last) return summarize(run), 0;
        answer_signals(format("finishing step %lld, %s", (long long)run.state.step + 1, then));
        begin_trace(run);
        train_step(run);
        end_trace(run);
        const bool due = o.checkpoint_every > 0 && run.state.step % o.checkpoint_every == 0;
        if (due || run.state.step == run.max_steps) save(run);
    }
}

// "gpt2 trainer 0.1, bf16, GPU kernels".
template <class Model>
inline std::string program_text(Model& model) {
    return format("%s, %s, %s kernels", TRAINER_VERSION, precision_name(model), kernels_name(model));
}

// Meets the other processes, if there are any. A plan counts processes without starting them.
template <class Model>
inline void join_processes(Run<Model>& run) {
    const Options& o = run.options;
    if (o.plan && o.num_processes > 1) {
        comm.processes = o.num_processes;
        return;
    }
    comm_start(o.num_processes, o.process_rank, o.dist_init, o.server_ip, o.fs_path, o.comm_timeout,
               program_text(run.model));
    claim_cores(run.options);
}

// Finds the checkpoint to resume from, and returns its step: its header is in run.state, its model
// file stays open. -1 if the run begins at step 0.
template <class Model>
inline int64_t find_checkpoint(Run<Model>& run) {
    const Options& o = run.options;
    if (!o.resume || o.out_dir.empty()) return -1;
    const int64_t step = o.from_step >= 0
                             ? checkpoint_of_step(o.out_dir, o.from_step, run.state, &run.model_file, run.logger)
                             : newest_checkpoint(o.out_dir, run.state, &run.model_file, &run.logger);
    if (step < 0) return -1;
    run.whole[step] = true;
    if (!name_exists(run_json_path(o.out_dir)))
        warning("%s is not there: flags that are not given have their defaults", run_json_path(o.out_dir).c_str());
    return step;
}

// Positions that generation needs keys and values for. A prompt has at most as many tokens as
// bytes.
inline int64_t cache_positions(const Options& o, const GPT2Config& config) {
    const bool samples = o.sample_tokens > 0 && (o.sample_every > 0 || only_generates(o));
    const int64_t prompt_tokens = o.talks ? config.maxT : std::max<int64_t>(1, o.prompt.size());
    return samples ? std::min<int64_t>(config.maxT, prompt_tokens + o.sample_tokens) : 0;
}

// The shape of the model and all sizes of the run, as far as they do not depend on the device.
template <class Model>
inline Sizes settle_run(Run<Model>& run, bool resumed) {
    Options& o = run.options;
    settle_tokenizer(o);
    settle_val_data(o);
    check_loss_mask(o);
    check_number_format<typename Model::Element>(o);
    if (!resumed) settle_model(o);  // a checkpoint has its own weights
    const GPT2Config config = config_of_model(o, run.model_file);
    if (resumed) check_same_model(o, config);
    settle_sizes(o, config);
    settle_optimizer(o);
    if (comm.rank == 0) check_trained_positions(o);
    if (only_generates(o) && !resumed) run.trained_positions = trained_positions(o);
    settle_end_of_text(o, config);
    run.B = o.batch_size, run.T = o.seq_len;
    const int64_t micro_steps = o.total_batch_size / (run.B * run.T * comm.processes);
    run.model.layout = parameter_layout(config, comm.processes);
    const int64_t cache_T = cache_positions(o, config), logit_rows = 0;  // the device settles these rows
    // A run that only generates makes one forward pass over the prompt.
    const bool prompts = only_generates(o) && cache_T > 0;
    const int64_t B = prompts ? 1 : run.B, T = prompts ? cache_T : run.T;
    Sizes sizes{config, B, T, o.recompute, cache_T, logit_rows, o.max_steps != 0, micro_steps, comm.processes};
    sizes.recompute_every = std::max<int64_t>(1, o.recompute_every), sizes.end_of_text = o.end_of_text;
    return sizes;
}

// Ends the run (exit 1) unless all processes have the same flags, model, data and checkpoint.
template <class Model>
inline void check_processes_agree(Run<Model>& run, int64_t resumed_step) {
    const GPT2Config& c = run.model.layout.config;
    const std::string shape = format("%lld %lld %lld %lld %lld", (long long)c.L, (long long)c.C, (long long)c.NH,
                                     (long long)c.V, (long long)c.maxT);
    comm_check_same(options_text(run.options) + " " + shape, "flags and model");
    comm_check_same(format("%llu %llu %lld", (unsigned long long)run.train_data.ends_identity,
                           (unsigned long long)run.val_data.ends_identity, (long long)resumed_step),
                    "data and checkpoint");
    const uint64_t sample = comm.processes > 1 ? sample_identity(all_data_files(run)) : 0;
    comm_check_same(std::to_string(sample), "data");
}

// What holds whatever the run does: how it is stopped, and what it prints where.
template <class Model>
inline void prepare_process(Run<Model>& run) {
    Options& o = run.options;
    catch_signals();
    if (o.max_minutes > 0) stop.deadline = now_seconds() + 60 * o.max_minutes;
    o.talks = wants_conversation(o);
    run.logger.silent = comm.rank > 0, run.logger.quiet = o.quiet, run.logger.terminal = stdout_is_terminal();
    if (comm.rank > 0 || !writes_out_dir(o)) return;
    check_own_files(o);
    if (folder_exists(o.out_dir)) take_out_dir(run.lock, o);
}

// Allocates the model, loads its weights, and says what the run is. resumed_step: of the checkpoint
// that it goes on from, -1 if it begins at step 0. given: the flags as the user gave them.
template <class Model>
inline void begin_run(Run<Model>& run, const Sizes& sizes, int64_t resumed_step, const Options& given) {
    const Options& o = run.options;
    const bool resumed = resumed_step >= 0;
    const std::string settings = settings_text(given, o);
    if (!settings.empty() && !only_generates(o)) run.logger.note("%s", settings.c_str());
    allocate(run.model, sizes, o);
    advise(run, sizes);
    if (resumed) advise_on_going_on(run);
    open_trace(run);
    load_weights(run, resumed_step);
    open_out_dir(run, resumed);  // last: a run that fails to start leaves the folder of an earlier run alone
    describe_run(run, sizes);
    if (resumed) run.logger.note("resumed at step %lld", (long long)resumed_step);
    else if (o.resume && !o.out_dir.empty())
        run.logger.note("no checkpoint in %s: a new run begins", o.out_dir.c_str());
    run.state.T = run.T, run.state.seed = o.seed, run.state.shuffle = o.shuffle;
    run.state.loss_scale = begin_scaling<typename Model::Element>(o, run.state.loss_scale);
    run.saved_step = resumed_step;
    run.x.resize(run.B * run.T), run.y.resize(run.B * run.T), run.losses.resize(run.B * run.T);
}

// A whole run. Returns the exit status of the program.
template <class Model>
inline int run_main(const Options& options) {
    static_assert(sizeof(ModelContract<Model>) > 0, "names what the trainer does not provide");
    Run<Model> run;
    Options& o = run.options = options;
    if (o.help) return print_help(o), 0;
    if (o.version) return printf("%s\n", program_text(run.model).c_str()), 0;
    check_plan_flags(o);
    trace_steps(o);
    join_processes(run);
    CommSession session;
    prepare_process(run);

    const int64_t resumed_step = find_checkpoint(run);
    Sizes sizes = settle_run(run, resumed_step >= 0);
    settle_device(run.model, sizes, o);
    if (o.plan) {
        if (comm.rank == 0) print_plan(o, sizes, &run.model);
        return 0;
    }
    if (comm.rank == 0) check_out_dir_free(o);
    open_inputs(run, resumed_step);
    check_processes_agree(run, resumed_step);
    identify_data(run, resumed_step);
    if (resumed_step >= 0 && is_finished(run)) {
        const long long step = run.state.step, steps = run.max_steps;
        run.logger.line("the run in %s is already at step %lld%s", o.out_dir.c_str(), step,
                        step > steps ? format(", beyond the last one asked for, %lld", steps).c_str()
                                     : format(" of %lld", steps).c_str());
        return 0;
    }

    begin_run(run, sizes, resumed_step, options);
    const int status = training_loop(run);
    check_traced(run);
    run.files.finish();
    return status;
}
