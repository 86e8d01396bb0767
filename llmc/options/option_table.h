// The flags of both trainers, in one table. It drives the parser, --help, run.json and the list of
// settings printed when a run starts: a flag exists if it has a row here.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/check.h"
#include "llmc/optim/optimizers.h"
#include "llmc/optim/schedule.h"
#include "llmc/options/option_row.h"

constexpr const char* TRAINER_VERSION = "gpt2 trainer 0.1";

// The rates that optimizers have unless -l is given: "3e-4; adam: 0.001, sgd: 0.3".
inline std::string usual_rates() {
    static_assert(OPTIMIZERS[ADAMW].rate == 3e-4);
    std::string text = "3e-4";
    for (const OptimizerInfo& o : OPTIMIZERS)
        if (o.rate != OPTIMIZERS[ADAMW].rate)
            text += format("%s%s: %g", text.find(':') == text.npos ? "; " : ", ", o.name, o.rate);
    return text;
}

inline const std::vector<OptionRow>& option_table() {
    enum { DATA, MODEL, TRAINING, RATE, EVALUATION, CHECKPOINTS, SPEED, PROCESSES, ABOUT };
    static_assert(ABOUT + 1 == NUM_OPTION_GROUPS);
    const double many = 9e15;
    auto text = [](int g, const char* s, const char* l, std::string Options::*p, const char* accepted,
                   const char* fallback, const char* meaning) {
        return OptionRow{g, s, l, p, nullptr, nullptr, 0, 0, accepted, fallback, meaning};
    };
    auto whole = [](int g, const char* s, const char* l, int64_t Options::*p, double low, double high,
                    const char* accepted, const char* fallback, const char* meaning) {
        return OptionRow{g, s, l, nullptr, p, nullptr, low, high, accepted, fallback, meaning};
    };
    auto real = [](int g, const char* s, const char* l, double Options::*p, double low, double high,
                   OptionRow::Bounds bounds, const char* accepted, const char* fallback, const char* meaning) {
        return OptionRow{g, s, l, nullptr, nullptr, p, low, high, accepted, fallback, meaning, bounds};
    };
    auto single = [real](auto... columns) {
        OptionRow row = real(columns...);
        return row.fp32 = true, row;
    };
    auto nonempty = [text](auto... columns) {
        OptionRow row = text(columns...);
        return row.lowest = 1, row;
    };
    auto sign = [](int g, const char* l, int64_t Options::*p, const char* meaning) {
        return OptionRow{g, "", l, nullptr, p, nullptr, 0, 1, "", "", meaning, OptionRow::CLOSED, false};
    };
    using O = Options;
    using R = OptionRow;
    static const std::string schedules = schedule_names(), rates = usual_rates();
    static const std::vector<OptionRow> table = {
        text(ABOUT, "", "--config", &O::config, "a run.json", "none",
             "takes the flags of another run; those of the command line, and with -y 1 those of -o, come first"),
        text(EVERYDAY | DATA, "-i", "--train-data", &O::train_data, "glob", "dev/data/shakespeare_train.bin",
             "token shards to train on; 'a*.bin:0.7,b*.bin:0.3': several sources, and the share of each"),
        text(EVERYDAY | DATA, "-j", "--val-data", &O::val_data, "glob", "dev/data/shakespeare_val.bin",
             "token shards to validate on, or texts, *.txt: with -x 0 all of the text, and its perplexity per token, "
             "word and byte"),
        text(DATA, "", "--loss-mask", &O::loss_mask, "glob", "none",
             "which tokens of -i count as targets, as `tokenize` writes it of prompts and completions: one mask for "
             "each shard; those of -j lie beside its shards, X.mask for X.bin"),
        text(DATA, "", "--tokenizer", &O::tokenizer, "file", "dev/data/gpt2_tokenizer.bin",
             "turns tokens into text and back"),
        text(DATA, "", "--hellaswag-data", &O::hellaswag_data, "file", "dev/data/hellaswag/hellaswag_val.bin",
             "questions for -h 1"),
        text(EVERYDAY | MODEL, "-e", "--model", &O::model, "file or folder or descriptor", "d12",
             "model.bin, a run's folder (its newest checkpoint), or d12, gpt3:c768, L6C384H6T256V512 and the like: "
             "from scratch"),
        text(MODEL, "", "--window", &O::window, "W or W,alternate; 0 = off", "that of -e",
             "a position sees W positions, itself the last, in all layers or, alternate, in layers 1, 3, 5, ..."),
        text(EVERYDAY | CHECKPOINTS, "-o", "--out-dir", &O::out_dir, "folder", "none",
             "logs and checkpoints; created if it is not there"),
        whole(EVERYDAY | CHECKPOINTS, "-n", "--checkpoint-every", &O::checkpoint_every, 0, many, "0..", "0",
              "steps; with -o there is always one at the end; 0 = only then"),
        whole(CHECKPOINTS, "-nk", "--keep-checkpoints", &O::keep_checkpoints, 0, many, "0..", "0 = all",
              "how many recent ones stay"),
        whole(CHECKPOINTS, "-nm", "--major-every", &O::major_every, 0, many, "0..", "0",
              "checkpoints at multiples of this are never removed"),
        whole(EVERYDAY | CHECKPOINTS, "-y", "--resume", &O::resume, 0, 1, "0, 1", "0",
              "go on from the newest complete checkpoint in -o"),
        whole(CHECKPOINTS, "", "--from-step", &O::from_step, 0, many, "0..", "the newest",
              "with -y 1: go on from the checkpoint of this step; later ones are removed once this run has saved"),
        whole(CHECKPOINTS, "", "--keep-best", &O::keep_best, 0, 1, "0, 1", "0",
              "1: model_best.bin in -o is the model with the lowest validation loss so far"),
        whole(EVERYDAY | CHECKPOINTS, "", "--overwrite", &O::overwrite, 0, 1, "0, 1", "0",
              "1: start again in a folder that holds an earlier run"),
        whole(EVERYDAY | TRAINING, "-b", "--batch-size", &O::batch_size, 1, 1 << 20, "1..", "4",
              "B: sequences in one micro-batch of one process"),
        whole(EVERYDAY | TRAINING, "-t", "--seq-len", &O::seq_len, 1, 1 << 20, "1..", "1024 or the context",
              "T: tokens in a sequence"),
        whole(EVERYDAY | TRAINING, "-d", "--total-batch-size", &O::total_batch_size, 1, many, "multiple of B*T*P",
              "B*T*P", "tokens in one optimizer step of P processes"),
        whole(EVERYDAY | TRAINING, "-x", "--max-steps", &O::max_steps, -1, many, "-1, 0, 1..", "-1",
              "in all, resumed ones too; -1 = one epoch; 0 = only evaluate and sample, with --prompt only generate"),
        whole(TRAINING, "", "--epochs", &O::epochs, 0, 1e6, "0..", "0 = as -x says",
              "passes over the training data, instead of -x"),
        real(TRAINING, "", "--max-minutes", &O::max_minutes, 0, 1e9, R::CLOSED, "0..", "0 = off",
             "after so many minutes this start finishes its step, saves and exits 0"),
        text(EVERYDAY | RATE, "-k", "--lr-schedule", &O::lr_schedule, schedules.c_str(), "cosine",
             "how the learning rate changes over the run"),
        single(EVERYDAY | RATE, "-l", "--learning-rate", &O::learning_rate, 0, INFINITY, R::CLOSED, "0..",
               rates.c_str(), "its peak"),
        whole(EVERYDAY | RATE, "-u", "--warmup-steps", &O::warmup_steps, 0, many, "0..", "0",
              "steps over which it rises"),
        whole(TRAINING, "", "--seq-warmup", &O::seq_warmup, 0, many, "0..", "0 = off",
              "steps over which sequences grow to T: each window is cut into 2, 4, 8, ... of them at first"),
        whole(TRAINING, "", "--batch-warmup", &O::batch_warmup, 0, 1e7, "0..10000000", "0 = off",
              "steps over which the tokens of a step grow to -d"),
        real(EVERYDAY | RATE, "-q", "--final-lr-frac", &O::final_lr_frac, 0, 1, R::CLOSED, "0..1", "1.0",
             "what it ends at, as a fraction of the peak; constant and inverse-sqrt do not use it"),
        single(EVERYDAY | TRAINING, "-c", "--weight-decay", &O::weight_decay, 0, INFINITY, R::CLOSED, "0..", "0.0",
               "of the matrices; not of biases and gains"),
        single(TRAINING, "", "--dropout", &O::dropout, 0, 1, R::BELOW_HIGHEST, "0..<1", "0 = off",
               "share of the embeddings' sum and of what layers add to it that each step sets to 0; not of attention's "
               "weights, which its kernels never store"),
        nonempty(
            TRAINING, "", "--train", &O::train, "`all` or names", "all",
            "the tensors that train: some of wte, wpe, ln, bias, qkv, attproj, fc, fcproj, lnf, head, layers; with "
            "=N or =A-B of these layers alone: wte,ln,layers=8-11"),
        whole(TRAINING, "", "--lora", &O::lora, 0, 1024, "0..1024", "0 = off",
              "the model stays as it is, and adapters of this rank are trained beside its matrices; checkpoints hold "
              "them alone"),
        nonempty(TRAINING, "", "--lora-on", &O::lora_on, "names", "qkv,attproj,fc,fcproj",
                 "the matrices that have one"),
        real(TRAINING, "", "--lora-alpha", &O::lora_alpha, 0, 1e6, R::CLOSED, "0..1000000", "0 = twice the rank",
             "what adapters add is multiplied by this, over the rank"),
        text(MODEL, "", "--adapter", &O::adapter, "file or folder", "none",
             "adapters that --lora has trained of the model of -e: a model_*.bin of that run, or its folder"),
        text(TRAINING, "", "--teacher", &O::teacher, "file or folder", "none",
             "a model of the same vocabulary, from whose predictions the model learns, too"),
        real(TRAINING, "", "--distill", &O::distill, 0, 1, R::CLOSED, "0..1", "0.5",
             "with --teacher: the share of its predictions in the loss; the rest is the cross-entropy"),
        single(TRAINING, "", "--distill-temperature", &O::distill_temperature, 0, 1000, R::ABOVE_LOWEST_CLOSED,
               "0<..1000", "2", "with --teacher: scores are divided by it where its predictions are compared"),
        nonempty(TRAINING, "", "--prune", &O::prune, "0..<1 or 2:4", "0 = off",
                 "this share of the weights of the layers' matrices, the smallest, become 0 and stay 0; 2:4: two of "
                 "every four beside each other"),
        nonempty(TRAINING, "", "--prune-steps", &O::prune_steps, "N or FROM-TO", "0 = before the first",
                 "with --prune: after which step; or a growing share, from one to the other (Zhu, Gupta 2017)"),
        real(
            TRAINING, "", "--ema", &O::ema, 0, 1, R::BELOW_HIGHEST, "0..<1", "0 = off",
            "keeps an average of the weights, of which each update keeps this share: validated beside the weights, and "
            "written at the end as model_ema_STEP.bin"),
        text(EVERYDAY | TRAINING, "", "--optimizer", &O::optimizer, OPTIMIZER_NAMES, "adamw",
             "how the gradient changes the weights (llmc/optim/optimizers.h); each has an -l of its own unless that is "
             "given"),
        single(TRAINING, "", "--beta1", &O::beta1, 0, 1, R::BELOW_HIGHEST, "0..<1", "0.9; muon: 0.95",
               "of the optimizer: the share that its running mean of gradients keeps"),
        single(TRAINING, "", "--beta2", &O::beta2, 0, 1, R::BELOW_HIGHEST, "0..<1", "0.95; lion, rmsprop: 0.99",
               "of the optimizer: the same for the mean of their squares; lion: for m"),
        single(TRAINING, "", "--eps", &O::eps, 0, INFINITY, R::ABOVE_LOWEST, ">0", "1e-8; adagrad: 1e-10",
               "of the optimizer: added to what it divides by"),
        whole(TRAINING, "", "--nesterov", &O::nesterov, 0, 1, "0, 1", "0",
              "1: --optimizer momentum looks one step ahead (Nesterov)"),
        real(EVERYDAY | TRAINING, "", "--grad-clip", &O::grad_clip, 0, INFINITY, R::CLOSED, "0..", "1.0",
             "largest norm of the gradient; 0 = off"),
        whole(CHECKPOINTS, "", "--noise-scale", &O::noise_scale, 0, 1, "0, 1", "0",
              "1: the gradient noise scale in metrics.csv, the batch size up to which larger ones pay off"),
        whole(CHECKPOINTS, "", "--log-every", &O::log_every, 1, many, "1..", "1",
              "steps between step lines, on stdout and in main.log; metrics.csv has every step"),
        whole(CHECKPOINTS, "", "--log-tensors", &O::log_tensors, 0, many, "0..", "0 = off",
              "steps between entries in tensors.csv: norms of weights, gradients, updates and the residual stream"),
        real(TRAINING, "-sl", "--skip-loss-z", &O::skip_loss_z, 0, INFINITY, R::CLOSED, "0..", "0 = off",
             "skip an update whose loss is this many deviations above its recent mean"),
        real(TRAINING, "-sg", "--skip-grad-z", &O::skip_grad_z, 0, INFINITY, R::CLOSED, "0..", "0 = off",
             "the same for the norm of the gradient"),
        whole(EVERYDAY | EVALUATION, "-v", "--val-every", &O::val_every, 0, many, "0..", "20",
              "steps between validations; 0 = never"),
        whole(EVALUATION, "", "--patience", &O::patience, 0, many, "0..", "0 = off",
              "after so many validations in a row that were not better than the best the run saves and exits 0"),
        whole(EVALUATION, "-m", "--val-max-steps", &O::val_max_steps, -1, many, "-1, 1..", "20",
              "a validation takes so many batches of 4*T tokens, whatever -b and the processes are; -1 = the whole "
              "split"),
        whole(EVERYDAY | EVALUATION, "-s", "--sample-every", &O::sample_every, 0, many, "0..", "20",
              "steps between samples; 0 = never"),
        whole(EVERYDAY | EVALUATION, "-g", "--sample-tokens", &O::sample_tokens, 0, 1 << 20, "0..", "64",
              "tokens in a sample"),
        text(EVERYDAY | EVALUATION, "", "--prompt", &O::prompt, "text", "none",
             "what a sample begins with; with -x 0 the run only generates"),
        whole(EVALUATION, "", "--samples", &O::samples, 1, 1 << 20, "1..", "1",
              "drawn of a prompt, each with random numbers of its own; with -x 0 --prompt --quiet 1 a NUL byte ends "
              "each, except on a terminal"),
        nonempty(EVALUATION, "", "--stop", &O::stop, "text", "none",
                 "a sample ends before this text; it also ends at an end-of-text token"),
        real(EVERYDAY | EVALUATION, "", "--temperature", &O::temperature, 0, INFINITY, R::CLOSED, "0..", "1.0",
             "of sampling: below 1 likelier tokens are preferred; 0 = greedy, always the likeliest"),
        whole(EVALUATION, "", "--top-k", &O::top_k, 0, many, "0..", "0 = off", "sample among the k likeliest tokens"),
        real(EVALUATION, "", "--top-p", &O::top_p, 0, 1, R::ABOVE_LOWEST_CLOSED, "0<..1", "1.0 = off",
             "sample among the likeliest tokens that hold this much probability"),
        whole(EVERYDAY | EVALUATION, "-h", "--hellaswag", &O::hellaswag, 0, 1, "0, 1", "0",
              "evaluate HellaSwag beside the validation loss"),
        whole(TRAINING, "-a", "--overfit-one-batch", &O::overfit_one_batch, 0, 1, "0, 1", "0",
              "train on the first training batch again and again"),
        whole(DATA, "", "--document-mask", &O::document_mask, 0, 1, "0, 1", "0",
              "1: attention does not cross <|endoftext|>, the first token of its document; positions go on"),
        whole(SPEED, "-f", "--tf32", &O::tf32, 0, 1, "0, 1", "1", "CUDA, fp32 builds on a card"),
        whole(SPEED, "-w", "--master-weights", &O::master_weights, 0, 1, "0, 1", "1",
              "fp32 copy of 16-bit weights; 0 = stochastic rounding"),
        text(SPEED, "", "--rounding", &O::rounding, "stochastic, nearest", "stochastic",
             "with -w 0: of bf16 weights; nearest loses updates below half the spacing of bf16 numbers"),
        whole(SPEED, "-ge", "--gelu-fusion", &O::gelu_fusion, -1, 2, "-1, 0, 1, 2", "-1 = 0",
              "CUDA: GELU in the GEMM's epilogue: 0 no, 1 forward, 2 backward too"),
        whole(SPEED, "", "--cuda-graph", &O::cuda_graph, 0, 1, "0, 1", "0",
              "CUDA, one process: 1 launches forward and backward pass of a micro-step as graphs, not in traced steps"),
        whole(EVERYDAY | SPEED, "-r", "--recompute", &O::recompute, 0, 4, "0, 1, 2, 3, 4", "1",
              "recompute: 0 nothing (GPUs, if it fits), 1 gelu, 2 and layernorm, 3 the block, 4 several blocks"),
        whole(SPEED, "", "--recompute-every", &O::recompute_every, 1, 1000, "1..", "sqrt(L)",
              "-r 4 keeps the input of every so many layers, and recomputes as many at a time"),
        whole(SPEED, "", "--compress-activations", &O::compress_activations, 0, 1, "0, 1", "0",
              "1: what is kept for the backward pass is kept in 8 bits, so that gradients are no longer exact"),
        whole(EVERYDAY | PROCESSES, "-z", "--zero-stage", &O::zero_stage, 0, 3, "0, 1, 2, 3", "0",
              "sharded: 1 the optimizer's state, 2 also gradients, 3 also weights"),
        whole(PROCESSES, "", "--shard-within", &O::shard_within, 0, 1 << 20, "0, 2..", "0 = all",
              "with -z 1, 2, 3: slices among so many neighbours; groups of these have copies (those of a machine)"),
        text(SPEED, "", "--offload", &O::offload, "none, optimizer, activations, both", "none",
             "what lies in a file (GPUs: in the host's memory) until needed: state, activations between segments (-r "
             "3, 4)"),
        text(SPEED, "", "--offload-dir", &O::offload_dir, "folder", "that of -o, else .", "CPU: where that file is"),
        whole(CHECKPOINTS, "-lg", "--log-gpu-every", &O::log_gpu_every, -1, many, "-1, 1..", "-1 = off",
              "steps between lines on clocks, power, temperature, memory"),
        whole(PROCESSES, "-pn", "--num-processes", &O::num_processes, 1, 1 << 20, "1..", "from the launcher, else 1",
              "processes of the run"),
        whole(PROCESSES, "-pr", "--process-rank", &O::process_rank, 0, 1 << 20, "0..", "from the launcher, else 0",
              "which of them this is"),
        whole(PROCESSES, "-pg", "--gpus-per-node", &O::gpus_per_node, 1, 1 << 10, "1..", "8",
              "processes on one machine"),
        text(PROCESSES, "-pi", "--dist-init", &O::dist_init, "mpi, tcp, fs", "mpi", "how processes find each other"),
        text(PROCESSES, "-ps", "--server-ip", &O::server_ip, "address", "none", "for -pi tcp"),
        text(PROCESSES, "-pf", "--fs-path", &O::fs_path, "folder", "none", "for -pi fs"),
        whole(PROCESSES, "", "--comm-timeout", &O::comm_timeout, 1, 1 << 30, "1..", "600",
              "seconds after which waiting for other processes ends the run"),
        text(PROCESSES, "", "--compress-gradients", &O::compress_gradients, "none, 8bit, 1bit", "none",
             "gradients travel in so many bits, and what these leave out with those of the next step"),
        whole(PROCESSES, "", "--compress-warmup", &O::compress_warmup, 0, many, "0..", "0",
              "updates before gradients are compressed; 1bit needs some: it then keeps AdamW's v as it is"),
        whole(PROCESSES, "", "--sync-every", &O::sync_every, 0, many, "0..", "0 = off",
              "processes update alone, and average their weights after so many steps"),
        real(PROCESSES, "", "--outer-lr", &O::outer_lr, 0, 10, R::ABOVE_LOWEST_CLOSED, "0<..10", "1.0 = the mean",
             "with --sync-every: how far the weights go towards that mean (DiLoCo: 0.7)"),
        real(PROCESSES, "", "--outer-momentum", &O::outer_momentum, 0, 1, R::BELOW_HIGHEST, "0..<1", "0 = off",
             "with --sync-every: of that movement, Nesterov's (DiLoCo: 0.9)"),
        whole(PROCESSES, "", "--bucket-mb", &O::bucket_mb, 0, 1 << 20, "0..", "0",
              "gradients of layers wait until so many MB are complete, and travel together; 0: each layer's at once"),
        whole(PROCESSES, "", "--shared-memory", &O::shared_memory, 0, 1, "0, 1", "1",
              "CPU: processes on one machine read gradients and weights from the memory of each other"),
        whole(EVERYDAY | TRAINING, "", "--seed", &O::seed, 0, many, "0..", "42",
              "of weights, data order, sampling, stochastic rounding, dropout"),
        whole(DATA, "", "--shuffle", &O::shuffle, 0, 1, "0, 1", "1", "shards and windows in a new order each epoch"),
        whole(EVERYDAY | SPEED, "", "--threads", &O::threads, 1, 4096, "1..", "physical cores",
              "CPU; the processes on a machine share them"),
        text(EVERYDAY | SPEED, "", "--precision", &O::precision, "fp32, fp32x3, bf16, fp16",
             "CPU: fp32; CUDA: as built", "of weights and activations; fp16 on CUDA alone"),
        text(SPEED, "", "--weights", &O::weights, "none, int8, int4, nf4", "none, or --adapter's",
             "generation, evaluation and, with --lora, training with matrices in 8 or 4 bits a weight"),
        text(SPEED, "", "--loss-scale", &O::loss_scale, "`dynamic` or a number above 0", "dynamic",
             "fp16: what the loss is multiplied by for the backward pass; dynamic: lowered when a gradient overflows"),
        text(CHECKPOINTS, "", "--trace", &O::trace, "file", "none", "a time line of some steps, for ui.perfetto.dev"),
        text(CHECKPOINTS, "", "--trace-steps", &O::trace_steps, "A:B", "2:4",
             "the first and the last of them, counted as on stdout"),
        whole(CHECKPOINTS, "", "--quiet", &O::quiet, 0, 1, "0, 1", "0",
              "1 = only step lines, evaluations, samples, warnings; no settings, progress, `saved` lines"),
        sign(EVERYDAY | SPEED, "--plan", &O::plan, "print what the run would need and stop"),
        text(SPEED, "", "--device", &O::device, "a GPU's name or peaks", "this machine",
             "what --plan estimates times for: H100 and the like, or TFLOP/s,GB/s,GiB"),
        real(SPEED, "", "--price", &O::price, 0, INFINITY, R::CLOSED, "0..", "none",
             "of one device for one hour, for --plan: what the run would cost"),
        sign(ABOUT, "--version", &O::version, "print the version, number format and kernels, and stop"),
        sign(ABOUT, "--help", &O::help, "print the everyday flags and stop; --help all: all flags"),
    };
    return table;
}

// The row of a long or short name, null if there is none.
inline const OptionRow* find_option(const std::string& name) {
    for (const OptionRow& row : option_table())
        if (name == row.long_name || (*row.short_name && name == row.short_name)) return &row;
    return nullptr;
}
