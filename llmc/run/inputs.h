// What a run reads: tokenizer, tokens, HellaSwag's questions, weights. All of it but the weights is
// opened and checked before anything is allocated or written.
#pragma once
#include "llmc/data/data_identity.h"
#include "llmc/model/initial_weights.h"
#include "llmc/run/run.h"
#include "llmc/run/start.h"

// The tokenizer, if the run samples or validates, and the tokens of --prompt.
inline void load_tokenizer(Run& run) {
    const Options& o = run.options;
    const bool samples = o.sample_every > 0 && o.sample_tokens > 0;
    if (!has_prompt(o) && !samples && !validates(o)) return;
    const bool stops = samples && !o.stop.empty();
    if (!encodes(o) && !stops && !file_exists(o.tokenizer)) {
        if (samples) warning("--tokenizer %s is not there; samples are shown as token ids", o.tokenizer);
        return;
    }
    tokenizer_load(run.tokenizer, o.tokenizer, encodes(o));
    check_vocabulary(o, run.model.layout.config);
    if (validates_on_text(o)) check_text_vocabulary("-j " + o.val_data, o, run.tokenizer, run.model.layout.config);
    if (o.prompt.empty()) return;
    encode(run.tokenizer, o.prompt, run.prompt);
    const int64_t V = run.model.layout.config.V;
    for (int token : run.prompt)
        if (token >= V)
            usage_error(
                "--prompt has token %d of %s, and the model (-e %s) has only %d tokens; --tokenizer with the "
                "model's own vocabulary is accepted",
                token, o.tokenizer, o.model, V);
}

// Says so if the model does not see all of a prompt.
inline void check_prompt_length(const Run& run, const std::vector<int>& prompt) {
    const long long tokens = prompt.size(), context = run.model.layout.config.maxT;
    if (tokens > context)
        warning(
            "the prompt has %d tokens, and the model's context is %d: it continues the last %d, and knows nothing of "
            "those before",
            tokens, context, context);
}

// The training data; exit 1 if it is too short for one step.
inline void open_train_data(Run& run) {
    const Options& o = run.options;
    dataloader_open(run.train_data, "-i", o.train_data, o.seq_len, run.model.layout.config.V, o.seed, o.shuffle);
    const int64_t windows = run.train_data.total_windows, needed = o.total_batch_size / o.seq_len;
    if (windows < needed)
        runtime_failure(
            "-i %s is too short for one step: it has %d windows of %d tokens, a step of -d %d "
            "needs %d; more text or a smaller -t, -b or -d is accepted",
            o.train_data, windows, o.seq_len, o.total_batch_size, needed);
}

// The masks of the training data, by --loss-mask, one for each shard of -i.
inline void open_train_masks(Run& run) {
    const Options& o = run.options;
    const std::vector<std::string> masks = files_of_patterns(o.loss_mask);
    const size_t shards = run.train_data.shards.size();
    if (masks.empty())
        runtime_failure("--loss-mask %s matches no file; `tokenize` makes masks of .jsonl files with prompts",
                        o.loss_mask);
    if (masks.size() != shards)
        usage_error("--loss-mask %s matches %s, -i %s matches %d; one mask for each shard is accepted", o.loss_mask,
                    count_text((int64_t)masks.size(), "file"), o.train_data, shards);
    dataloader_open_masks(run.train_data, masks);
}

// The masks of the validation data, which lie beside its shards. If none of them is there, all
// tokens count.
inline void open_val_masks(Run& run) {
    std::vector<std::string> masks;
    std::string missing;
    for (const Shard& shard : run.val_data.shards) {
        const std::string path = mask_path_of(shard.file.path);
        if (file_exists(path)) masks.push_back(path);
        else missing = path;
    }
    if (missing.empty()) return dataloader_open_masks(run.val_data, masks);
    if (!masks.empty())
        runtime_failure("%s is not there, but %s is: of -j %s all shards or none have a loss mask beside them", missing,
                        masks[0], run.options.val_data);
    warning("%s is not there: the validation loss is the mean over all tokens of -j %s", missing, run.options.val_data);
}

// True if the run evaluates HellaSwag and nothing else: no -j was given, and the default is not
// there.
inline bool evaluates_hellaswag_alone(const Options& o) {
    const bool wants_default = !o.given.count("--val-data") && o.val_data == default_file(Options().val_data);
    return o.max_steps == 0 && o.hellaswag && wants_default && !file_exists(o.val_data);
}

// HellaSwag's questions. Without the file a run that trains goes on; one that only evaluates ends.
inline void open_hellaswag(Run& run) {
    const Options& o = run.options;
    if (o.val_every == 0 && o.max_steps != 0)
        warning("-h 1 with -v 0: HellaSwag is evaluated beside the validation loss, which is never computed");
    if (file_exists(o.hellaswag_data)) {
        run.hellaswag = hellaswag_load(o.hellaswag_data, run.model.layout.config.V);
        return;
    }
    const std::string missing = format("--hellaswag-data %s is not there", o.hellaswag_data);
    const char* remedy = "dev/data/hellaswag.py makes the file";
    if (o.max_steps == 0) runtime_failure("%s; %s", missing, remedy);
    warning("%s; the run goes on without HellaSwag (%s)", missing, remedy);
}

// Opens all inputs but the weights.
inline void open_inputs(Run& run, int64_t resumed_step) {
    const Options& o = run.options;
    const int64_t V = run.model.layout.config.V;
    load_tokenizer(run);
    if (o.max_steps != 0) open_train_data(run);
    if (o.max_steps != 0 && !o.loss_mask.empty()) open_train_masks(run);
    if (o.max_steps != 0 && resumed_step >= 0) check_resumable(o, run.state);
    const Tokenizer* text_tokenizer = validates_on_text(o) ? &run.tokenizer : nullptr;
    if (validates(o) && !evaluates_hellaswag_alone(o)) {
        dataloader_open(run.val_data, "-j", o.val_data, o.seq_len, V, o.seed, false, text_tokenizer, &run.logger);
        if (!o.loss_mask.empty() && !text_tokenizer) open_val_masks(run);
    }
    for (const DataLoader* data : {&run.train_data, &run.val_data}) check_masks(*data, run.logger);
    if (o.hellaswag && !only_generates(o)) open_hellaswag(run);
    run.max_steps = steps_of(o, data_size(run));
}

// Warns of masks beside the training data that are not used, and of a prompt that the model does
// not see all of, or has learned nothing to continue with.
inline void advise_on_inputs(const Run& run) {
    const Options& o = run.options;
    if (comm.rank > 0) return;
    const auto has_mask = [](const Shard& shard) { return file_exists(mask_path_of(shard.file.path)); };
    const std::vector<Shard>& shards = run.train_data.shards;
    const auto found = std::find_if(shards.begin(), shards.end(), has_mask);
    if (o.loss_mask.empty() && found != shards.end()) {
        std::string masks;
        for (const DataSource& source : run.train_data.sources)
            masks += (masks.empty() ? "" : ",") + mask_path_of(source.pattern);
        warning(
            "%s is there, and without --loss-mask it is not used: all tokens count, those of prompts too; --loss-mask "
            "%s counts the completions alone",
            mask_path_of(found->file.path), shell_word(masks));
    }
    check_prompt_length(run, run.prompt);
    if (only_generates(o) && !run.model_file)
        warning(
            "-e %s describes a model whose weights are random: it writes random tokens; a model file or the folder of "
            "a run writes what it has learned",
            o.model);
}

inline std::vector<DataFile*> all_data_files(Run& run) {
    std::vector<DataFile*> files = files_of(run.train_data);
    for (DataFile* file : files_of(run.val_data)) files.push_back(file);
    return files;
}

// A run that writes an out dir identifies its training data by a checksum of all bytes. Exit 2 if
// the run to resume was trained on other data. Checkpoints of earlier versions have a checksum of
// the ends of the shards.
inline void identify_data(Run& run, int64_t resumed_step) {
    const Options& o = run.options;
    if (!writes_out_dir(o)) return;
    checksum_files(all_data_files(run), o.out_dir, run.logger);
    const uint64_t identity = identity_of(run.train_data), saved = run.state.data_identity;
    if (resumed_step >= 0 && saved != identity && saved != run.train_data.ends_identity)
        usage_error(
            "-i %s%s is other data than the run to resume in %s was trained on; the same shards are accepted, "
            "or -y 0 --overwrite 1",
            o.train_data, o.loss_mask.empty() ? "" : " with --loss-mask " + o.loss_mask, o.out_dir);
    run.state.data_identity = identity;
    if (resumed_step < 0 || comm.rank > 0) return;
    const std::string other = other_validation_data(o.out_dir, run.train_data, run.val_data);
    if (!other.empty())
        warning(
            "-j %s is other data than the run in %s was validated on (%s): its validation losses up to step %d "
            "cannot be compared with those after it",
            o.val_data, o.out_dir, other, resumed_step);
}

// The model that adapters are beside: drawn, or from its file. Its checksum, or that of what it is
// drawn from, goes into their files.
inline void load_base(Run& run) {
    const Options& o = run.options;
    LowRank& lora = run.model.layout.config.lora;
    const auto drawn_from = [&] { return format("%s %d", descriptor_of(run.model.layout.config), o.seed); };
    if (run.model_file) {
        load_model(run.model, *run.model_file);
        lora.base = run.model_file->checksum.value();
        return run.model_file.reset();
    }
    Checksum sum;
    sum.add(drawn_from().data(), drawn_from().size());
    initialize_weights(run.model, o.seed);
    lora.base = sum.value();
}

// The weights: drawn, or from the model file; of a resumed run with its optimizer state.
inline void load_weights(Run& run, int64_t resumed_step) {
    const Options& o = run.options;
    const bool adapts = run.model.layout.config.lora.rank > 0, resumes = resumed_step >= 0;
    run.random_weights = !run.model_file;
    if (adapts) load_base(run);
    std::unique_ptr<FileReader>& from = adapts ? run.adapter_file : run.model_file;
    if (!from) {
        if (adapts) return initialize_adapters(run.model, o.seed);
        const int64_t parameters = parameter_count(run.model.layout.config);
        Progress progress(run.logger, "drawing the initial weights", parameters, "million", 1000000);
        return initialize_weights(run.model, o.seed, &progress);
    }
    const int64_t state_bytes = resumes ? run.state.processes * file_bytes(state_path(o.out_dir, resumed_step, 0)) : 0;
    Progress progress(run.logger, "loading " + from->path, from->size_bytes + state_bytes, "MB", 1000000);
    if (resumes) load_checkpoint(o.out_dir, run.state, *from, run.model, &progress);
    else if (adapts) load_adapters(run.model, *from, &progress);
    else load_model(run.model, *from, &progress);
    from.reset();
}
