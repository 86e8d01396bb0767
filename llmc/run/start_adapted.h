// What is settled before a run starts that trains a part of its model (--train), or adapters of it
// (--lora).
#pragma once
#include "llmc/run/start.h"

// The adapters of the model: those in the open file, that of --adapter or of the checkpoint to
// resume, or those that --lora asks for. Exit 2 if flags ask for others.
inline void settle_adapters(Options& o, GPT2Config& config, std::unique_ptr<FileReader>& file) {
    if (!o.adapter.empty() && !is_model_file(o.adapter) && folder_exists(o.adapter))
        o.adapter = newest_model("--adapter", o.adapter);
    if (!file && !o.adapter.empty()) file = std::make_unique<FileReader>(o.adapter);
    config.lora = lora_of(o);
    if (!file) {
        const bool others = o.lora_on != Options().lora_on;  // what run.json repeats is no wish
        if (o.lora == 0 && (others || o.lora_alpha > 0))
            usage_error("%s has no effect without --lora", others ? "--lora-on" : "--lora-alpha");
        return;
    }
    const LowRank asked = config.lora;
    read_adapter_header(*file, config);
    const bool others = (o.given.count("--lora") && o.lora != config.lora.rank) ||
                        (o.given.count("--lora-on") && asked.on != config.lora.on) ||
                        (o.given.count("--lora-alpha") && asked.alpha != config.lora.alpha);
    if (others)
        usage_error("%s holds adapters of %s, and the flags ask for %s; without these flags it is accepted", file->path,
                    lora_text(config.lora), lora_text(asked));
    o.lora = config.lora.rank, o.lora_on = adapted_text(config.lora.on), o.lora_alpha = config.lora.alpha;
}
// Whether the matrices are in codes: as --weights says, else as they were when the adapters
// trained. Exit 2 if they would have to train.
inline void settle_weights(Options& o, LowRank& lora) {
    if (o.weights.empty() && lora.beside) o.weights = WEIGHT_FORMAT_NAMES[lora.beside];
    const WeightFormat weights = weight_format(o.weights);
    if (o.max_steps != 0) {
        if (weights && lora.rank == 0)
            usage_error("--weights %s does not train; with --lora, or with -x 0, it is accepted", o.weights);
        lora.beside = weights;
    }
    if (lora.beside && lora.beside != weights)
        warning("--weights %s: the adapters were trained beside weights in %s, whose errors they make up for",
                o.weights, WEIGHT_FORMAT_NAMES[lora.beside]);
}
// Which tensors train. Exit 2 if other flags need gradients of all of them.
inline void settle_trained(Options& o, GPT2Config& config, std::unique_ptr<FileReader>& adapter_file) {
    settle_adapters(o, config, adapter_file);
    settle_weights(o, config.lora);
    config.trained = trained_of(o.train, config);
    if (config.lora.rank > 0) {
        if (o.train != "all")
            usage_error("--train %s with --lora, which trains adapters alone; all is accepted", o.train);
        config.trained = only_adapters(config);
    }
    if (config.trained.empty() || o.max_steps == 0) return;
    check_tensors_left_out(config.lora.rank > 0 ? format("--lora %d", config.lora.rank) : "--train " + o.train, o,
                           config);
}
// Exit 2 if these are not those of the run to resume.
inline void check_same_trained(const Options& o, const GPT2Config& config, const StateHeader& saved) {
    if (trained_identity(config) != saved.trained)
        usage_error(
            "the run to resume in %s trains other tensors than --train and --lora say, or beside other --weights; "
            "without these flags it goes on, or -y 0 --overwrite 1 starts again",
            o.out_dir);
}
