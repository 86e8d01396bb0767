// What the flags of both trainers say: one value for each, with its default. option_table.h says
// what each is called, and what is accepted.
#pragma once
#include <cstdint>
#include <set>
#include <string>

constexpr int64_t HELP_ALL = 2;  // --help all

struct Options {
    std::string train_data = "dev/data/shakespeare_train.bin", val_data = "dev/data/shakespeare_val.bin", loss_mask;
    std::string tokenizer = "dev/data/gpt2_tokenizer.bin", hellaswag_data = "dev/data/hellaswag/hellaswag_val.bin";
    std::string model = "d12", out_dir;
    std::string train = "all", lora_on = "qkv,attproj,fc,fcproj", adapter;
    int64_t lora = 0;
    double lora_alpha = 0;  // 0: twice the rank
    std::string teacher;
    double distill = 0.5, distill_temperature = 2;
    std::string prune = "0", prune_steps = "0";
    int64_t checkpoint_every = 0, keep_checkpoints = 0, major_every = 0, resume = 0, overwrite = 0;
    int64_t batch_size = 4, seq_len = 0, total_batch_size = 0, max_steps = -1;  // 0: from the other sizes
    std::string lr_schedule = "cosine";
    std::string optimizer = "adamw";
    double learning_rate = -1, final_lr_frac = 1.0, weight_decay = 0.0, grad_clip = 1.0;
    double beta1 = -1, beta2 = -1, eps = -1;  // these and learning_rate below 0: those of the optimizer
    int64_t nesterov = 0;
    int64_t warmup_steps = 0, seq_warmup = 0, batch_warmup = 0;
    double dropout = 0.0;
    double skip_loss_z = 0, skip_grad_z = 0;
    int64_t val_every = 20, val_max_steps = 20, patience = 0, sample_every = 20, sample_tokens = 64;
    std::string prompt, stop;
    int64_t samples = 1;
    double temperature = 1.0, top_p = 1.0;
    int64_t top_k = 0;
    double ema = 0;
    std::string window;  // empty: that of the model
    int64_t hellaswag = 0, overfit_one_batch = 0, tf32 = 1, master_weights = 1, gelu_fusion = -1, cuda_graph = 0,
            recompute = 1, recompute_every = 0, compress_activations = 0, document_mask = 0, zero_stage = 0,
            log_gpu_every = -1;
    int64_t num_processes = -1, process_rank = -1, gpus_per_node = 8;  // -1: from the launcher
    int64_t comm_timeout = 600, bucket_mb = 0, shard_within = 0;
    std::string compress_gradients = "none";
    int64_t compress_warmup = 0, sync_every = 0;
    double outer_lr = 1, outer_momentum = 0;
    int64_t shared_memory = 1;
    std::string dist_init = "mpi", server_ip, fs_path;
    std::string offload = "none", offload_dir;
    int64_t seed = 42, shuffle = 1, threads = 0;  // 0: threads_of()
    std::string precision;                        // empty: the trainer's own
    std::string weights;                          // empty: as precision says
    std::string loss_scale = "dynamic", rounding = "stochastic";
    std::string device;  // for --plan; empty: this machine
    double price = 0;    // of a device for an hour
    double max_minutes = 0;
    int64_t epochs = 0, keep_best = 0, noise_scale = 0, log_every = 1, log_tensors = 0,
            from_step = -1;  // -1: the newest
    std::string config;
    std::string trace, trace_steps = "2:4";
    int64_t quiet = 0, plan = 0, version = 0, help = 0;  // help: 1, or HELP_ALL
    int64_t core_share = 0;        // threads for this process of several (core_share.h); 0: there is one
    int64_t end_of_text = -1;      // with --document-mask 1: the token at which documents begin
    int64_t vocabulary = 0;        // tokens of --tokenizer, if that is there and is not the default; else 0
    std::set<std::string> given;   // long names of the flags on the command line
    std::string flags_from;        // the run.json whose flags were taken over; empty: none was
    std::string program, command;  // the first word of the command line, and all of it, quoted for a shell
};
