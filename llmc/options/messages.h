// What the flags say about messages between processes: --compress-gradients and --sync-every.
#pragma once
#include "llmc/base/fp16.h"
#include "llmc/comm/comm.h"
#include "llmc/compress/gradient_codes.h"
#include "llmc/options/options.h"

// What gradients are sent as.
inline Compression compression_of(const Options& o) {
    if (comm.processes == 1 || o.max_steps == 0) return NOT_COMPRESSED;
    return o.compress_gradients == "8bit" ? IN_8_BITS : o.compress_gradients == "1bit" ? IN_1_BIT : NOT_COMPRESSED;
}
// Whether processes update alone, and meet only now and then.
inline bool trains_apart(const Options& o) { return comm.processes > 1 && o.sync_every > 0 && o.max_steps != 0; }

// The highest ZeRO stage that goes with these flags.
inline int64_t most_stage(const Options& o) { return o.sync_every > 0 ? 0 : o.compress_gradients != "none" ? 1 : 3; }

// Has buckets in slices among as many neighbours as the flags say. Exit 2 if that is not possible.
inline void settle_shards(const Options& o) {
    const int64_t N = o.shard_within, P = comm.processes;
    if (N > 0 && P % N != 0)
        usage_error("--shard-within %d, but %d processes cannot be divided into groups of %d", N, P, N);
    if (N == 1 && P > 1) usage_error("--shard-within 1 would keep all on every process, as -z 0 does; 2.. is accepted");
    if (N > 0 && o.zero_stage == 0)
        usage_error("--shard-within %d has no effect with -z 0, which has no slices; -z 1, 2 and 3 are accepted", N);
    if (N > 0 && N < P && o.compress_gradients != "none")
        usage_error("--shard-within %d with --compress-gradients %s, whose codes go to all processes; one is accepted",
                    N, o.compress_gradients);
    comm_shard_within(N > 0 ? N : P);
}

// Exit 2 if gradients cannot be compressed as the flags say.
inline void check_compression(NumberFormat format, const Options& o) {
    const char* kind = o.compress_gradients.c_str();
    if (o.compress_gradients == "none") {
        if (o.compress_warmup > 0)
            usage_error("--compress-warmup %d has no effect without --compress-gradients; 8bit and 1bit are accepted",
                        o.compress_warmup);
        return;
    }
    if (o.sync_every > 0)
        usage_error("--compress-gradients %s with --sync-every %d, with which no gradients are sent; one is accepted",
                    kind, o.sync_every);
    if (o.zero_stage > most_stage(o))
        usage_error(
            "--compress-gradients %s with -z %d, where gradients travel in every micro-step; -z 0 and -z 1 are "
            "accepted",
            kind, o.zero_stage);
    if (format == FORMAT_FP16)
        usage_error(
            "--compress-gradients %s with fp16, whose gradients change with the loss scale, and what waits of them "
            "does not; bf16 and fp32 are accepted",
            kind);
    if (o.compress_gradients == "1bit" && o.optimizer != "adamw" && o.optimizer != "adam")
        usage_error(
            "--compress-gradients 1bit with --optimizer %s: signs need a v that stays as it is after a warmup; adamw "
            "and adam are accepted, or 8bit",
            o.optimizer);
    if (o.compress_gradients == "1bit" && o.compress_warmup == 0)
        usage_error(
            "--compress-gradients 1bit needs --compress-warmup, the updates in which v settles before it stays as it "
            "is: 1 and more are accepted, a fifth of the run is usual");
    if (comm.processes == 1 && o.given.count("--compress-gradients"))
        warning("--compress-gradients %s has no effect on one process, which sends nothing", kind);
}

// Exit 2 if the weights cannot be averaged as the flags say (optim/average.h).
inline void check_average(NumberFormat format, const Options& o) {
    if (o.ema == 0 || o.max_steps == 0) return;
    if (o.sync_every > 0)
        usage_error("--ema %g with --sync-every %d, where processes have weights of their own; one is accepted", o.ema,
                    o.sync_every);
    if (format == FORMAT_BF16 && !o.master_weights)
        usage_error(
            "--ema %g with -w 0: weights of 16 bits cannot come back once it was in their place; -w 1 is accepted",
            o.ema);
    if (o.offload == "optimizer" || o.offload == "both")
        usage_error(
            "--ema %g with --offload %s reads all master weights in each step; --offload activations is accepted",
            o.ema, o.offload);
}

// Exit 2 if processes cannot train apart as the flags say.
inline void check_sync(NumberFormat format, const Options& o) {
    if (o.sync_every == 0) {
        if (o.outer_lr == 1 && o.outer_momentum == 0) return;
        const bool rate = o.outer_lr != 1;
        usage_error("--outer-%s %g has no effect without --sync-every; 1 and more steps are accepted",
                    rate ? "lr" : "momentum", rate ? o.outer_lr : o.outer_momentum);
    }
    const OptimizerInfo& optimizer = OPTIMIZERS[find_optimizer(o.optimizer.c_str())];
    if (optimizer.whole_tensors || is_small(optimizer.keeps.m))
        usage_error(
            "--sync-every %d with --optimizer %s, whose state or directions processes share; adamw, adam, sgd, "
            "momentum, adagrad, rmsprop and lion are accepted",
            o.sync_every, o.optimizer);
    if (o.noise_scale)
        usage_error("--sync-every %d with --noise-scale 1, which needs the gradient of the whole step; one is accepted",
                    o.sync_every);
    if (o.zero_stage > most_stage(o))
        usage_error("--sync-every %d with -z %d: a process that updates alone needs all of the state; -z 0 is accepted",
                    o.sync_every, o.zero_stage);
    if (format != FORMAT_FP32 && !o.master_weights)
        usage_error("--sync-every %d with -w 0 would average weights of 16 bits; -w 1 is accepted", o.sync_every);
    if (comm.processes == 1 && o.given.count("--sync-every"))
        warning("--sync-every %d has no effect on one process", o.sync_every);
    if (trains_apart(o) && comm.rank == 0 && validates(o) && o.val_every % o.sync_every != 0)
        warning(
            "-v %d is no multiple of --sync-every %d: between meetings each process validates its own weights, on "
            "its share of the windows",
            o.val_every, o.sync_every);
}
