// How a run begins: the processes meet, the checkpoint to go on from is found, flags, model and
// data are settled and checked, memory is allocated, weights are loaded.
#pragma once
#include "llmc/comm/comm_start.h"
#include "llmc/options/core_share.h"
#include "llmc/options/messages.h"
#include "llmc/options/number_formats.h"
#include "llmc/run/average.h"
#include "llmc/run/describe.h"
#include "llmc/run/out_dir.h"
#include "llmc/run/prune.h"
#include "llmc/run/start_adapted.h"
#include "llmc/run/start_teacher.h"
#include "llmc/run/trace_file.h"

// "gpt2 trainer 0.1, bf16, GPU kernels".
inline std::string program_text(const GPT2& model) {
    return format("%s, %s, %s kernels", TRAINER_VERSION, NUMBER_FORMAT_NAMES[model.format], model.backend->kernels);
}

// Meets the other processes, if there are any. A plan counts processes without starting them.
inline void join_processes(Run& run) {
    const Options& o = run.options;
    comm.message_bytes = o.bucket_mb << 20;
    if (o.plan && o.num_processes > 1) return comm_count(o.num_processes);
    comm_start(o.num_processes, o.process_rank, o.dist_init, o.server_ip, o.fs_path, o.comm_timeout,
               program_text(run.model), common_flags(o));
    claim_cores(run.options);
}

// Finds the checkpoint to resume from, and returns its step: its header is in run.state, its model
// file stays open. -1 if the run begins at step 0.
inline int64_t find_checkpoint(Run& run) {
    const Options& o = run.options;
    if (!o.resume || o.out_dir.empty()) return -1;
    const int64_t step = o.from_step >= 0
                             ? checkpoint_of_step(o.out_dir, o.from_step, run.state, &run.model_file, run.logger)
                             : newest_checkpoint(o.out_dir, run.state, &run.model_file, &run.logger);
    if (step < 0) return -1;
    run.whole[step] = true;
    if (is_adapter_file(*run.model_file)) run.adapter_file = std::move(run.model_file);
    if (!name_exists(run_json_path(o.out_dir)))
        warning("%s is not there: flags that are not given have their defaults", run_json_path(o.out_dir));
    return step;
}

// Positions that generation needs keys and values for. A prompt has at most as many tokens as
// bytes.
inline int64_t cache_positions(const Options& o, const GPT2Config& config) {
    const bool samples = o.sample_tokens > 0 && (o.sample_every > 0 || only_generates(o));
    const int64_t prompt_tokens = std::max<int64_t>(1, o.prompt.size());
    return samples ? std::min<int64_t>(config.maxT, prompt_tokens + o.sample_tokens) : 0;
}

// The shape of the model and all sizes of the run, as far as they do not depend on the device.
inline Sizes settle_run(Run& run) {
    Options& o = run.options;
    const bool resumed = run.resumed_step >= 0;
    settle_tokenizer(o);
    settle_val_data(o);
    check_loss_mask(o);
    check_number_format(run.model.format, o);
    weight_format(o.weights);
    if (!resumed) settle_model(o);  // a checkpoint has its own weights
    GPT2Config config = config_of_model(o, run.model_file);
    settle_window(o, config, resumed);
    if (resumed) check_same_model(o, config);
    settle_sizes(o, config);
    settle_optimizer(o);
    settle_trained(o, config, run.adapter_file);
    if (resumed) check_same_trained(o, config, run.state);
    check_compression(run.model.format, o);
    check_sync(run.model.format, o);
    check_average(run.model.format, o);
    settle_teacher(run, config);
    run.pruning = pruning_of(o, config), run.model.prunes = run.pruning && o.max_steps != 0;
    if (comm.rank == 0) check_trained_positions(o);
    if (only_generates(o) && !resumed) run.trained_positions = trained_positions(o);
    settle_end_of_text(o, config);
    run.B = o.batch_size, run.T = o.seq_len;
    const int64_t micro_steps = o.total_batch_size / (run.B * run.T * comm.processes);
    settle_shards(o);
    run.model.layout = parameter_layout(config, comm.shards.processes, weight_format(o.weights));
    const int64_t cache_T = cache_positions(o, config), logit_rows = 0;  // the device settles these rows
    // A run that only generates makes one forward pass over the prompt.
    const bool prompts = only_generates(o) && cache_T > 0;
    const int64_t B = prompts ? 1 : run.B, T = prompts ? cache_T : run.T;
    Sizes sizes{config, B, T, o.recompute, cache_T, logit_rows, o.max_steps != 0, micro_steps, comm.processes};
    sizes.recompute_every = std::max<int64_t>(1, o.recompute_every), sizes.end_of_text = o.end_of_text;
    sizes.dropout = o.dropout > 0, sizes.compressed_activations = o.compress_activations;
    sizes.compressed_gradients = compression_of(o) != NOT_COMPRESSED, sizes.shards = comm.shards.processes;
    if (run.model.teacher) sizes.teacher_flops = forward_flops_per_token(run.model.teacher->layout.config, T);
    return sizes;
}

// Ends the run (exit 1) unless all processes have the same flags, model, data and checkpoint.
inline void check_processes_agree(Run& run) {
    const GPT2Config& c = run.model.layout.config;
    const std::string shape = format("%d %d %d %d %d %d", c.L, c.C, c.NH, c.V, c.maxT, c.lora.base);
    comm_check_flags(common_flags(run.options));
    comm_check_same(shape, "model");
    comm_check_same(format("%d %d %d", run.train_data.ends_identity, run.val_data.ends_identity, run.resumed_step),
                    "data and checkpoint");
    const uint64_t sample = comm.processes > 1 ? sample_identity(all_data_files(run)) : 0;
    comm_check_same(std::to_string(sample), "data");
}

// What holds whatever the run does: how it is stopped, and what it prints where.
inline void prepare_process(Run& run) {
    Options& o = run.options;
    catch_signals();
    if (o.max_minutes > 0) stop.deadline = now_seconds() + 60 * o.max_minutes;
    run.logger.silent = comm.rank > 0, run.logger.quiet = o.quiet, run.logger.terminal = stdout_is_terminal();
    if (comm.rank > 0 || !writes_out_dir(o)) return;
    check_own_files(o);
    if (!folder_exists(o.out_dir)) return;
    take_out_dir(run.lock, o);
    if (settle_earlier_run(o.out_dir, kept_best(o.out_dir)))
        run.logger.line("%s: the earlier run is back, the one that was to replace it has saved nothing", o.out_dir);
}

// Allocates the model, loads its weights, and says what the run is. given: the flags as the user
// gave them.
inline void load_model_and_describe(Run& run, const Sizes& sizes, const Options& given) {
    const Options& o = run.options;
    const bool resumed = run.resumed_step >= 0;
    const std::string settings = settings_text(given, o, usual_options(o, sizes.config));
    if (!settings.empty() && !only_generates(o)) run.logger.note("%s", settings);
    run.model.backend->allocate(run.model, sizes, o);
    advise(run, sizes);
    advise_on_inputs(run);
    if (resumed) advise_on_going_on(run);
    open_trace(run);
    load_weights(run, run.resumed_step);
    load_teacher(run);
    if (run.model.apart) run.model.backend->meet(run.model, FIRST_MEETING);
    begin_average(run, resumed, run.state.rank_states);
    run.met_step = run.state.step;
    open_out_dir(run, resumed);  // last: a run that fails to start leaves the folder of an earlier run alone
    describe_run(run, sizes), begin_pruning(run);
    if (resumed) run.logger.note("resumed at step %d", run.resumed_step);
    else if (o.resume && !o.out_dir.empty()) run.logger.note("no checkpoint in %s: a new run begins", o.out_dir);
    run.state.T = run.T, run.state.seed = o.seed, run.state.shuffle = o.shuffle;
    run.state.loss_scale = begin_scaling(run.model.format, o, run.state.loss_scale);
    run.saved_step = run.resumed_step;
    run.x.resize(run.B * run.T), run.y.resize(run.B * run.T), run.losses.resize(run.B * run.T);
}
