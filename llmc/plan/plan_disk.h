// What a run writes: the bytes of one checkpoint, and of all that are in the out dir at once.
#pragma once
#include <sys/statvfs.h>
#include <numeric>
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/plan/plan.h"

// The bytes of a checkpoint: a model file, and the state files of all processes, which together
// hold every state in the plan once.
inline double planned_checkpoint_bytes(const Sizes& s, Optimizer optimizer, const ParameterLayout& layout,
                                       const std::vector<PlanRow>& rows) {
    bool master = false;
    StateHeader header;
    for (const PlanRow& row : rows) {
        master = master || row.name == "master weights";
        for (int state = 0; state < NUM_RANK_STATES; state++)
            if ((row.category == "compression" || row.category == "average") && "the " + row.name == RANK_STATES[state])
                header.rank_states |= 1 << state;
    }
    const double model = (double)saved_model_bytes(s.config, s.file_bytes());
    header.trained = trained_identity(s.config);
    header.set_version(optimizer, s.fp16);
    return model + (double)(s.slices() * state_file_bytes(layout, header, optimizer, master));
}

// The most checkpoints that a run of so many steps has at once. The newest is written before an old
// one is removed (-nk, -nm).
inline int64_t most_checkpoints(const Options& o, int64_t steps) {
    const int64_t every = o.checkpoint_every, keep = o.keep_checkpoints, major = o.major_every;
    const int64_t saved = every > 0 ? steps / every + (steps % every != 0) : 1;
    if (keep == 0 || saved <= keep) return saved;
    const int64_t stride = major > 0 ? major / std::gcd(every, major) : 0;  // one saved checkpoint in `stride` is major
    return std::min(saved, keep + 1 + (stride > 0 ? steps / every / stride : 0));
}

inline std::string size_text(double bytes) {
    return bytes >= 1e9 ? format("%.1f GB", bytes / 1e9) : format("%.1f MB", bytes / 1e6);
}

// Bytes of the average of the weights that a run writes at its end.
inline double average_file_bytes(const Options& o, const Sizes& s) {
    return o.ema > 0 ? (double)saved_model_bytes(s.config, s.file_bytes()) : 0;
}

inline void print_disk_plan(const Options& o, double one_bytes, double average_bytes) {
    printf("a checkpoint: %.0f bytes, %s\n", one_bytes, size_text(one_bytes).c_str());
    if (average_bytes > 0)
        printf("the average at the end: %.0f bytes, %s\n", average_bytes, size_text(average_bytes).c_str());
    if (o.max_steps > 0) {
        const int64_t most = most_checkpoints(o, o.max_steps);
        printf("on the disk: up to %lld checkpoint%s%s, %s (-n, -nk and -nm say how many)\n", (long long)most,
               most == 1 ? "" : "s", average_bytes > 0 ? " and the average" : "",
               size_text((double)most * one_bytes + average_bytes).c_str());
    } else if (o.max_steps < 0) printf("on the disk: how many depends on the data; -nk keeps only the newest\n");
}

// Warns at the start of a run that will fill the disk. What a resumed run needs includes the
// checkpoints that it has written already, so these count as room.
inline void warn_of_full_disk(const Options& o, double one_bytes, double average_bytes, int64_t steps) {
    struct statvfs disk;
    if (statvfs(o.out_dir.c_str(), &disk) != 0) return;
    const double there = o.resume ? (double)finished_steps(o.out_dir).size() * one_bytes : 0;
    const double room = (double)disk.f_bavail * (double)disk.f_frsize + there,
                 needed = (double)most_checkpoints(o, steps) * one_bytes + average_bytes;
    if (needed > room)
        warning(
            "-o %s has room for %s, and the run's checkpoints need up to %s: a lower -nk, or a higher -n, needs less",
            o.out_dir, size_text(room), size_text(needed));
}
