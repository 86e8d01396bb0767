// What is settled before a run starts: which model -e means, whether the out dir is free for a new
// run or holds one to resume, and whether flags and sizes fit together.
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/checkpoint/earlier_run.h"
#include "llmc/options/run_json.h"
#include "llmc/options/window_flag.h"
#include "llmc/data/vocabulary.h"
#include "llmc/options/warmup.h"

inline bool is_model_file(const std::string& name) {
    return name.size() > 4 && name.compare(name.size() - 4, 4, ".bin") == 0;
}

// The shape of the model: of the file that is open already (the checkpoint to resume), else of what
// -e names, a file or a descriptor. The file stays open, so that the weights come from the same
// file.
inline GPT2Config config_of_model(const Options& o, std::unique_ptr<FileReader>& file) {
    if (!file && !is_model_file(o.model))
        return o.vocabulary ? config_from_descriptor(o.model, o.vocabulary) : config_from_descriptor(o.model);
    if (!file) file = std::make_unique<FileReader>(o.model);
    GPT2Config config;
    if (is_adapter_file(*file))
        usage_error("-e %s holds adapters alone; -e with the model that they adapt and --adapter %s are accepted",
                    o.model, o.model);
    file->rewind();
    read_model_header(*file, config);
    return config;
}

// -e with a folder means its newest complete checkpoint, unless the folder's name is a descriptor.
inline void settle_model(Options& o) {
    GPT2Config config;
    if (is_model_file(o.model) || parse_descriptor(o.model, config) || !folder_exists(o.model)) return;
    StateHeader header;
    const std::string folder = folder_to_resume(o.model);
    const int64_t step = newest_checkpoint(folder, header);
    if (step < 0) usage_error("-e %s holds no complete checkpoint; accepted: %s", o.model, accepted_models());
    FileReader model(model_path(folder, step));
    if (is_adapter_file(model)) o.adapter = model.path, o.model = options_of_folder(folder).model;
    else o.model = model.path;
}

// The model file of the newest complete checkpoint in the folder that a flag names.
inline std::string newest_model(const char* flag, const std::string& folder) {
    StateHeader header;
    const int64_t step = newest_checkpoint(folder_to_resume(folder), header);
    if (step < 0) usage_error("%s %s holds no complete checkpoint", flag, folder);
    return model_path(folder_to_resume(folder), step);
}

inline std::string descriptor_of(const GPT2Config& c) { return format("L%dC%dH%dT%dV%d", c.L, c.C, c.NH, c.maxT, c.V); }

// Exit 2 if -e was given, and names a model of another shape than the checkpoint's. A file that
// does not exist is accepted: the checkpoint has the weights.
inline void check_same_model(const Options& o, const GPT2Config& saved) {
    if (!o.given.count("--model") || (is_model_file(o.model) && !file_exists(o.model))) return;
    std::unique_ptr<FileReader> file;
    const std::string asked = descriptor_of(config_of_model(o, file)), has = descriptor_of(saved);
    if (asked != has)
        usage_error(
            "-e %s is %s, but the run to resume in %s has %s; -y 1 without -e goes on with that one, -y 0 "
            "--overwrite 1 starts again",
            o.model, asked, o.out_dir, has);
}

// Exit 2 if a new run would throw away the checkpoints of an earlier one.
inline void check_out_dir_free(const Options& o) {
    if (o.out_dir.empty() || o.max_steps == 0 || o.resume || o.overwrite) return;
    const std::vector<int64_t> earlier = finished_steps(o.out_dir);
    if (!earlier.empty())
        usage_error(
            "-o %s holds an earlier run, its newest checkpoint that of step %d: -y 1 goes on from it, --overwrite "
            "1 starts again",
            o.out_dir, earlier.back());
}

inline bool writes_out_dir(const Options& o) { return !o.out_dir.empty() && o.max_steps != 0 && !o.plan; }

// The first bytes of a file; none if it is not there, or cannot be read.
inline std::string first_bytes(const std::string& path, int64_t most) {
    FileReader file(path, FileReader::TELL);
    std::string bytes(std::min(file.size_bytes, most), '\0');
    return file.good() && file.try_read(bytes.data(), bytes.size(), "its beginning") ? bytes : "";
}

[[noreturn]] inline void refuse_to_write_over(const Options& o, const std::string& name) {
    usage_error(
        "-o %s holds a %s that no run has written, and that this one would write over; another folder is "
        "accepted, or this one without that file",
        o.out_dir, name);
}

// Exit 2 if the out dir has a file of a name that runs write, but that no run has written: `-o .`
// must not cost a user a main.log of his own. Where run.json is a run's, the folder is one, too.
inline void check_own_files(const Options& o) {
    const std::string json = "{\n  \"version\":", flags = first_bytes(o.out_dir + "/run.json", json.size());
    if (flags == json) return;
    const std::string columns = "step,tokens,seconds,";
    const std::string log = first_bytes(o.out_dir + "/main.log", 2), sums = first_bytes(o.out_dir + "/shards.txt", 17);
    const std::string metrics = first_bytes(o.out_dir + "/metrics.csv", columns.size());
    const std::string tensors = first_bytes(o.out_dir + "/tensors.csv", 10);
    const std::string evals = first_bytes(o.out_dir + "/evals.jsonl", 8);
    const bool is_sum = sums.size() == 17 && sums.find_first_not_of("0123456789abcdef") == 16 && sums[16] == ' ';
    // Other programs, llm.c's trainer among them, write lines like those of main.log and
    // evals.jsonl.
    bool is_run = !metrics.empty() && metrics == columns;
    for (const CheckpointFile& file : checkpoint_files(o.out_dir))
        is_run =
            is_run || (file.kind == CheckpointFile::STATE && file_bytes(file.path) > 0 && is_of_a_run(o.out_dir, file));
    const char* foreign = nullptr;
    if (log != std::string("s:", is_run ? log.size() : 0)) foreign = "main.log";
    if (metrics != columns.substr(0, metrics.size())) foreign = "metrics.csv";
    if (tensors != std::string("step,what,", tensors.size())) foreign = "tensors.csv";
    if (evals != std::string("{\"step\":", is_run ? evals.size() : 0)) foreign = "evals.jsonl";
    if (o.keep_best && name_exists(o.out_dir + "/model_best.bin")) foreign = "model_best.bin";
    if (!flags.empty()) foreign = "run.json";
    if (!sums.empty() && !is_sum) foreign = "shards.txt";
    if (foreign) refuse_to_write_over(o, foreign);
}

// Exit 2 if a checkpoint of this run, between steps `first` and `last`, would take the name of a
// file that no run has written.
inline void check_own_checkpoints(const Options& o, int64_t first, int64_t last) {
    for (const CheckpointFile& file : checkpoint_files(o.out_dir)) {
        const bool due = o.checkpoint_every > 0 && file.step % o.checkpoint_every == 0;
        const bool saved = file.step > first && (file.step == last || (file.step < last && due)) && !file.temporary;
        if (saved && !is_of_a_run(o.out_dir, file)) refuse_to_write_over(o, file.path.substr(o.out_dir.size() + 1));
    }
}

// Exit 2 if another run is writing to the out dir.
inline void take_out_dir(FolderLock& lock, const Options& o) {
    if (!lock.take(o.out_dir))
        usage_error(
            "-o %s is the folder of a run that is going on now; another folder is accepted, or this one once "
            "that run has ended",
            o.out_dir);
}

// Layers that -r 4 recomputes at a time: sqrt(L) unless --recompute-every says.
inline void settle_recomputation(Options& o, int64_t L) {
    const long long every = o.recompute_every;
    if (o.recompute != 4 && o.given.count("--recompute-every"))
        usage_error("--recompute-every %d has no effect with -r %d; -r 4 is accepted", every, o.recompute);
    if (every > L) usage_error("--recompute-every %d is more than the model's layers; 1 to %d are accepted", every, L);
    if (o.recompute == 4 && every == 0) o.recompute_every = default_recompute_every(L);
}

// Exit 2 if --patience has no validations to count.
inline void check_patience(const Options& o) {
    if (o.patience > 0 && o.max_steps != 0 && !validates(o))
        usage_error("--patience %d counts validations, and -v 0 makes none; with -v 1 or more it is accepted",
                    o.patience);
}

// Says it if --noise-scale 1 has nothing to compute, or nowhere to write it.
inline void check_noise_scale(const Options& o) {
    if (!o.noise_scale || o.max_steps == 0) return;
    if (o.out_dir.empty()) warning("--noise-scale 1 without -o, the folder of metrics.csv: it is not recorded");
    else if (o.total_batch_size == o.batch_size * o.seq_len)
        warning(
            "--noise-scale 1 compares a micro-batch with the whole step, and a step has only one: its columns stay "
            "empty; a larger -d, or a smaller -b with the same -d, makes several");
}

// Exit 2 if the schedule would have to end at 0 and never gets there.
inline void check_schedule(const Options& o) {
    if (multiplies(o.lr_schedule) && o.final_lr_frac == 0 && o.max_steps != 0)
        usage_error(
            "-q 0 with -k %s, which multiplies the learning rate by factors: above 0 to 1 is accepted, or -k linear",
            o.lr_schedule);
}

// Constants of the optimizer that no flag gave are those of its rule. Exit 2 if one is given that
// the rule has not.
inline void settle_optimizer(Options& o) {
    const OptimizerInfo& optimizer = OPTIMIZERS[find_optimizer(o.optimizer.c_str())];
    const auto settle = [&](const char* flag, double& value, double usual) {
        if (usual == 0 && value > 0 && o.given.count(flag))
            usage_error("%s %g has no effect with --optimizer %s; without it the run is the same", flag, value,
                        optimizer.name);
        if (usual == 0 || value < 0) value = usual;
    };
    settle("--learning-rate", o.learning_rate, optimizer.rate);
    settle("--beta1", o.beta1, optimizer.beta1);
    settle("--beta2", o.beta2, optimizer.beta2);
    settle("--eps", o.eps, optimizer.eps);
    if (o.nesterov && o.optimizer != "momentum")
        usage_error("--nesterov 1 has no effect with --optimizer %s; momentum is accepted", optimizer.name);
}

// The defaults as they are settled for a run, of which those left open by the table depend on its
// sizes and its optimizer.
inline Options usual_options(const Options& o, const GPT2Config& config) {
    const OptimizerInfo& optimizer = OPTIMIZERS[find_optimizer(o.optimizer.c_str())];
    Options usual;
    usual.seq_len = std::min<int64_t>(1024, config.maxT);
    usual.total_batch_size = o.batch_size * o.seq_len * comm.processes;
    usual.learning_rate = optimizer.rate;
    usual.beta1 = optimizer.beta1, usual.beta2 = optimizer.beta2, usual.eps = optimizer.eps;
    if (o.recompute == 4) usual.recompute_every = default_recompute_every(config.L);
    return usual;
}

// Fills in the sizes that no flag gave. Exit 2 if flags and model cannot work together.
inline void settle_sizes(Options& o, const GPT2Config& config) {
    if (o.seq_len == 0) o.seq_len = std::min<int64_t>(1024, config.maxT);
    if (o.seq_len > config.maxT)
        usage_error("-t %d is longer than the model's context; 1 to %d are accepted", o.seq_len, config.maxT);
    const long long B = o.batch_size, T = o.seq_len, processes = comm.processes;
    const int64_t micro_tokens = B * T * processes;
    const bool from_run_json = o.resume && o.total_batch_size > 0 && !o.given.count("--total-batch-size");
    if (from_run_json && o.total_batch_size % micro_tokens != 0) {
        warning(
            "the run in %s had steps of %d tokens, which is no multiple of B*T*processes = %d*%d*%d: they "
            "have %d from here on (-d chooses)",
            o.out_dir, o.total_batch_size, B, T, processes, micro_tokens);
        o.total_batch_size = micro_tokens;
    }
    if (o.total_batch_size == 0) o.total_batch_size = micro_tokens;
    if (o.total_batch_size % micro_tokens != 0)
        usage_error("-d %d is no multiple of B*T*processes = %d*%d*%d; multiples of %d are accepted",
                    o.total_batch_size, B, T, processes, micro_tokens);
    settle_recomputation(o, config.L);
    check_noise_scale(o);
    check_patience(o);
    check_schedule(o);
    check_warmups(o);
    if (only_generates(o) && o.sample_tokens == 0)
        usage_error("-g 0 with -x 0 and a prompt leaves nothing to do; 1 or more is accepted");
    if (o.out_dir.empty() && o.resume) usage_error("-y 1 needs -o, the folder to resume from");
    if (o.out_dir.empty() && o.log_tensors > 0)
        usage_error("--log-tensors %d needs -o, the folder for tensors.csv", o.log_tensors);
    if (o.out_dir.empty() && o.checkpoint_every > 0)
        warning("-n %d without -o, the folder for the checkpoints: none are written", o.checkpoint_every);
    if (o.keep_best && o.max_steps != 0 && (o.out_dir.empty() || o.val_every == 0))
        warning("--keep-best 1 %s: no model_best.bin is written",
                o.out_dir.empty() ? "without -o, its folder" : "with -v 0, which computes no validation loss");
}

// Without -j, -x 0 validates a run on the data, and with the loss mask, that its run.json names.
// Exit 1 if that data is not there, unless HellaSwag can be evaluated alone.
inline void settle_val_data(Options& o) {
    const std::string folder = folder_of_run(o.model);
    if (o.max_steps != 0 || o.resume || !validates(o) || o.given.count("--val-data") || folder.empty()) return;
    const Options run = options_of_folder(folder);
    if (o.hellaswag && glob_files(run.val_data).empty()) return;
    if (!o.plan) check_remembered_path(run, run_json_path(run.out_dir), "-j", &Options::val_data);
    o.val_data = run.val_data;
    if (!o.given.count("--loss-mask")) o.loss_mask = run.loss_mask;
}

// Exit 2 if --loss-mask would have no effect: on a text all tokens count.
inline void check_loss_mask(const Options& o) {
    if (o.max_steps == 0 && o.given.count("--loss-mask") && validates_on_text(o))
        usage_error("--loss-mask %s has no effect on -j %s, a text; with -x 0 it is accepted where -j is token shards",
                    o.loss_mask, o.val_data);
}

// How many positions the run that -e names has trained: the -t of a run from scratch. 0 if that is
// not known.
inline int64_t trained_positions(const Options& o) {
    const std::string folder = folder_of_run(o.model);
    if (folder.empty()) return 0;
    const Options run = options_of_folder(folder);
    GPT2Config config;
    return parse_descriptor(run.model, config) ? run.seq_len : 0;
}

// Says so if a run that only evaluates does it at positions that were never trained.
inline void check_trained_positions(const Options& o) {
    if (o.max_steps != 0 || o.resume || !validates(o)) return;
    const long long trained = trained_positions(o);
    if (trained > 0 && trained < o.seq_len)
        warning("the run in %s has trained %d positions, and -t %d evaluates it at more; -t %d does not",
                folder_of_run(o.model), trained, o.seq_len, trained);
}

// Exit 2, naming the flag, if one has changed that must be the same when a run goes on.
inline void check_resumable(const Options& o, const StateHeader& saved) {
    auto refuse = [&](const char* flag, long long now, long long then) {
        usage_error("%s %d differs from the run to resume in %s, which has %d; %d is accepted, or -y 0 --overwrite 1",
                    flag, now, o.out_dir, then, then);
    };
    if (o.optimizer != saved.optimizer)
        usage_error(
            "--optimizer %s differs from the run to resume in %s, whose state is that of %s; %s is accepted, "
            "or -y 0 --overwrite 1, or -e %s -o ANOTHER, which begins from its weights",
            o.optimizer, o.out_dir, saved.optimizer, saved.optimizer, shell_word(o.out_dir));
    if (o.seq_len != saved.T) refuse("-t", o.seq_len, saved.T);
    if (o.seed != saved.seed) refuse("--seed", o.seed, saved.seed);
    if (o.shuffle != saved.shuffle) refuse("--shuffle", o.shuffle, saved.shuffle);
}
