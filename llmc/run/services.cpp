// The services that a trainer's train() calls (services.h). What each consists of is in the other
// headers of this folder.
//
// Compiled with -Og (Makefile), as most of it waits for kernels and files; but not what draws
// initial weights and samples, which takes 50257 powers for each token, and not what makes codes of
// weights.
#if defined(__OPTIMIZE__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif
#include "llmc/base/random.h"
#include "llmc/cpu/weight_codes.h"
#include "llmc/run/sampler.h"
#if defined(__OPTIMIZE__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#include "llmc/run/services.h"
#include "llmc/options/number_formats.h"
#include "llmc/options/run_json.h"
#include "llmc/run/after_loss.h"
#include "llmc/run/begin.h"
#include "llmc/run/evaluate.h"
#include "llmc/run/not_finite.h"
#include "llmc/run/print_plan.h"
#include "llmc/run/step_data.h"
#include "llmc/run/step_log.h"
#include "llmc/run/summary.h"

Options options_of_command(int argc, char** argv) {
    Options o = parse_options(argc, argv);
    if (o.resume && o.overwrite)
        usage_error("--overwrite 1 starts again and -y 1 goes on; one of them is accepted (-y 0 --overwrite 1)");
    o.flags_from = o.config;
    if (o.resume && !o.out_dir.empty()) {
        const std::string own = run_json_path(folder_to_resume(o.out_dir));
        if (name_exists(own)) o.flags_from = own;
    }
    if (!o.flags_from.empty() && !o.help && !o.version)
        take_over_flags(o, o.flags_from), check_remembered_paths(o, o.flags_from);
    if (!o.given.count("--trace")) o.trace.clear();  // what is traced is said at each start
    settle_length(o);
    if (o.from_step >= 0 && !o.resume)
        usage_error("--from-step %d says where -y 1 goes on; it is accepted with -y 1", o.from_step);
    return o;
}

void encode_on_host(const CodeMatrix& m, const float* weights) { encode_weights(m, weights); }

// -------------------------------------------------------------------------------------------------
// before the steps

// Says so if the checkpoint to resume from is that of the last step, and nothing is left to do.
static bool was_at_its_end(Run& run) {
    if (run.resumed_step < 0 || !is_finished(run)) return false;
    const long long step = run.state.step, steps = run.max_steps;
    tidy_checkpoints(run);
    run.logger.line("the run in %s is already at step %d%s", run.options.out_dir, step,
                    step > steps ? format(", beyond the last one asked for, %d", steps) : format(" of %d", steps));
    return true;
}

bool begin_run(Run& run) {
    Options& o = run.options;
    const Options given = o;
    if (o.help) return print_help(o), false;
    if (o.version) return printf("%s\n", program_text(run.model).c_str()), false;
    check_plan_flags(o);
    trace_steps(o);
    join_processes(run);
    prepare_process(run);
    if (o.resume && writes_out_dir(o)) comm_barrier("the out dir");  // rank 0 has settled what is there
    run.resumed_step = find_checkpoint(run);
    Sizes sizes = settle_run(run);
    run.model.backend->settle(run.model, sizes, o);
    if (o.plan) {
        if (comm.rank == 0) print_plan(o, sizes, run.model);
        return false;
    }
    if (comm.rank == 0) check_out_dir_free(o);
    open_inputs(run, run.resumed_step);
    check_processes_agree(run);
    identify_data(run, run.resumed_step);
    if (was_at_its_end(run)) return false;
    if (comm.rank == 0 && writes_out_dir(o)) check_own_checkpoints(o, run.state.step, run.max_steps);
    load_model_and_describe(run, sizes, given);
    run.first_step = run.state.step, run.started = now_seconds();
    run.model.phases.on = writes_out_dir(o);
    if (writes_out_dir(o)) {
        after_failed_write = "; " + how_to_go_on(o);
        comm.at_loss = [&run](int64_t lost) { return save_after_loss(run, lost); };
    }
    return true;
}

// -------------------------------------------------------------------------------------------------
// between steps

// What follows "stopping after step 3, " where a signal is answered.
static const char* what_follows(const Run& run) {
    return run.options.out_dir.empty() ? "nothing is kept without -o" : "saving";
}

void evaluate_when_due(Run& run) {
    const int64_t step = run.state.step;
    answer_signals(run.options.max_steps == 0 ? "stopping"
                                              : format("stopping after step %d, %s", step, what_follows(run)));
    stop.at_once = false;
    const double begin = now_seconds();
    if (!stop.agreed) evaluate_and_sample(run, step, step >= run.max_steps);
    run.evaluation_seconds = now_seconds() - begin;
}

bool run_is_over(Run& run) { return stop_agreed() || run.state.step >= run.max_steps; }

int end_run(Run& run) {
    int status = 0;
    if (stop.agreed) status = end_early(run), evaluate_stopped(run);
    else end_best(run);
    summarize(run);
    if (stop.agreed) comm_barrier("the end of the run");  // all that was to be written and printed is there
    check_traced(run);
    run.files.finish();
    return status;
}

void save_when_due(Run& run) {
    const Options& o = run.options;
    const bool due = o.checkpoint_every > 0 && run.state.step % o.checkpoint_every == 0;
    if (due || run.state.step == run.max_steps) save(run);
}

// -------------------------------------------------------------------------------------------------
// in a step

// Updates of the weights in all steps before this one.
static int64_t updates_done(const Run& run) { return run.state.step - run.state.loss_scale.skipped; }

void begin_step(Run& run) {
    answer_signals(format("finishing step %d, %s", run.state.step + 1, what_follows(run)));
    begin_trace(run);
    prune_when_due(run);
    run.step.range.emplace("step", run.state.step + 1);
    shape_step(run);
    run.step.begin = now_seconds();
    run.model.compressed.on =
        run.model.compressed.kind != NOT_COMPRESSED && updates_done(run) >= run.options.compress_warmup;
    run.step.tokens = counted_tokens(run);
    // the loss of a step is the mean over its tokens; of processes that train apart, each one's own
    const double share = run.model.apart ? run.step.tokens / (double)comm.processes : run.step.tokens;
    run.step.dloss = (float)run.state.loss_scale.scale / (float)std::max(1.0, share);
}

Batch next_batch(Run& run, int64_t micro) {
    run.model.phases.enter(PHASE_DATA);
    show_time_left(run, micro);
    load_micro_batch(run, micro);
    if (stop.failed && comm.processes == 1) run.model.micro_steps = micro + 1;  // the other micro-steps are of no use
    const bool last = micro + 1 == run.model.micro_steps;
    const int64_t rows_before = (micro * comm.processes + comm.rank) * run.B * run.T;
    const Dropout dropout{run.options.dropout, (uint64_t)run.options.seed, run.state.step, rows_before};
    return {run.x.data(), run.y.data(), run.B * run.cuts, run.T / run.cuts, run.step.dloss, micro, last, dropout};
}

bool data_failed(Run& run) {
    if (!comm_any(stop.failed, "whether all processes have their data")) return false;
    stop.agreed = STOP_FAILED;
    comm_wait("the sum of the gradients");
    run.step.range.reset();
    end_trace(run);
    return true;
}

// What the update of this step, of which so many tokens count, needs beside the gradients.
static UpdateSettings update_settings(const Run& run, double rate, double tokens) {
    const Options& o = run.options;
    const int64_t updates = updates_done(run);
    UpdateSettings settings;
    settings.constants = update_constants((float)rate, (float)o.beta1, (float)o.beta2, (float)o.eps,
                                          (float)o.weight_decay, 1.0f, updates + 1);
    if (run.model.compressed.on && run.model.compressed.kind == IN_1_BIT)
        keep_v(settings.constants, (float)o.beta2, o.compress_warmup);
    settings.constants.nesterov = o.nesterov, settings.constants.round_to_nearest = o.rounding == "nearest";
    settings.tokens = tokens;
    settings.grad_clip = o.grad_clip;
    settings.models = run.model.apart ? (double)comm.processes : 1;
    settings.loss_scale = run.state.loss_scale.scale;
    settings.loss_limit = run.state.loss_outlier.limit(o.skip_loss_z);
    settings.norm_limit = run.state.norm_outlier.limit(o.skip_grad_z);
    settings.rounding_seed = generator_for(o.seed, RANDOM_ROUNDING, updates).bits64();
    return settings;
}

UpdateSettings begin_update(Run& run) {
    run.step.rate = learning_rate_of(run.options, run.state.step, run.max_steps);
    const UpdateSettings settings = update_settings(run, run.step.rate, run.step.tokens);
    run.step.before = {};
    measure_before_update(run, settings.loss_scale, run.step.before);
    return settings;
}

void load_ahead(Run& run) {
    if (run.state.step + 1 >= run.max_steps) return;
    const Range range("next data");
    const MicroBatch batch = micro_batch(run, 0, run.state.step + 1);
    if (try_load(run, batch, run.ahead.x, run.ahead.y).empty()) run.ahead.first_window = batch.first;
}

// After a step whose loss or gradient norm is not finite: says where the first such value came
// from, on the lowest rank that has one.
static void say_what_is_not_finite(Run& run, const std::function<void(int64_t)>& micro_step) {
    const auto first = first_not_finite(run.model, [&](int64_t micro) {
        const Alone alone;
        micro_step(micro);
    });
    struct Finding {
        char text[200];
    } mine{};
    snprintf(mine.text, sizeof(mine.text), "%s", first.found.c_str());
    const std::vector<Finding> all = comm_gather(mine, "what is not finite");
    for (int64_t r = 0; r < comm.processes; r++) {
        const std::string rank = comm.processes > 1 ? format(" of rank %d", r) : "";
        if (*all[r].text) return run.logger.line("first not finite: %s%s", all[r].text, rank);
    }
    run.logger.line("all tensors are finite, but a sum over them is not; the largest gradient is %.3g, in %s",
                    first.largest_gradient, first.largest);
}

void meet_when_due(Run& run) {
    const int64_t step = run.state.step + 1;
    if (run.model.apart && (step % run.options.sync_every == 0 || step == run.max_steps)) meet(run, step);
}

void average_weights(Run& run, const StepResult& result) {
    if (run.model.average && result.wanted)
        run.model.backend->average(run.model, ADD_TO_AVERAGE, average_share(run.options.ema, run.state.step + 1));
}

void end_step(Run& run, const UpdateSettings& settings, const StepResult& result,
              const std::function<void(int64_t micro)>& micro_step) {
    const Options& o = run.options;
    StateHeader& state = run.state;
    StepInWork& step = run.step;
    run.model.in_update = true;
    run.model.phases.enter(NO_PHASE);
    const double loss_z = step.tokens > 0 ? state.loss_outlier.z_score(result.loss) : NAN;
    const bool overflow = gradients_overflowed(result) && can_lower(state.loss_scale, o);
    const double norm_z = step.tokens > 0 && !overflow ? state.norm_outlier.z_score(result.norm) : NAN;
    StateHeader after = state;
    after.loss_scale = next_scale(run.model.format, state.loss_scale, o, overflow);
    if (!result.wanted) after.loss_scale.skipped++;
    after.step++, after.position_windows += run.step_windows;
    step.after = &after;  // who is lost from here on, is lost after the step
    run.model.in_update = false;
    {
        const Range range("log");
        StepReport report;
        report.rate = step.rate;
        if (step.tokens > 0) report.loss = result.loss, report.norm = result.norm;
        report.loss_z = loss_z, report.norm_z = norm_z, report.loss_scale = settings.loss_scale;
        report.seconds = now_seconds() - step.begin, report.tokens = step.tokens;
        report.first = {(double)run.first_tokens, result.small_squares};
        log_step(run, report);
        if (!is_finite(result) && !overflow) {
            say_what_is_not_finite(run, micro_step);
            stop_if_not_finite(run, result);
        }
        log_tensors(run, settings, result.wanted, step.before);
    }
    if (!result.wanted) log_skipped_update(run, result, settings, after.loss_scale.scale);
    state = after, step.after = nullptr;
    step.range.reset();
    end_trace(run);
}
