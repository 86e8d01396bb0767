// What a checkpoint is on the disk. A checkpoint of step n (n steps done) is
//
//     model_%08d.bin        the weights (model_file.h)
//     state_%08d_%05d.bin   one per process: its part of the optimizer state, and where the run is
//     DONE_%08d             empty; written last, removed first
//
// Each file is written under a temporary name, flushed and renamed (file.h). A checkpoint is
// complete if DONE is there and every checksum is right; the state files hold checksums of
// themselves and of the model file. An incomplete checkpoint is never used.
//
// A state file is a StateHeader; then for each bucket (tensors.h) this rank's slice of m, of v, of
// the factors and, where weights are 16-bit and have one, of their fp32 master; then what the rank
// alone keeps (rank_state.h); then a checksum of all that. What an optimizer does not keep
// (optimizers.h) is left out.
#pragma once
#include <cstddef>
#include "llmc/base/text.h"
#include "llmc/compress/rank_state.h"
#include "llmc/optim/loss_scale.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/optim/outlier.h"

// The versions of state files. 2: with AdamW. 3: with another optimizer, whose name ends the
// header. 4: of a run in fp16; the name and the loss scale end the header. 5: of a run in another
// format that has skipped updates; the header is as in 4, but the scale is 0. 6: of ranks that keep
// something of their own, which ends the header; else as in 4 or 5. 7: of a run that trains some
// tensors alone; else as in 6.
constexpr int32_t STATE_MAGIC = 20261121, STATE_VERSION = 2, STATE_VERSION_NAMED = 3, STATE_VERSION_FP16 = 4,
                  STATE_VERSION_SKIPPED = 5, STATE_VERSION_RANK = 6, STATE_VERSION_TRAINED = 7;

// The header of a state file: where the run is, and what must not change when it is resumed.
struct StateHeader {
    int32_t magic = STATE_MAGIC, version = STATE_VERSION;
    int64_t step = 0, position_windows = 0;  // steps done; windows of the training data consumed
    int64_t processes = 1, rank = 0;
    int64_t T = 0, seed = 0, shuffle = 0;
    int64_t states = 2;  // how many there are: m, v, factors and master weights, or some of them
    uint64_t data_identity = 0;
    uint64_t model_checksum = 0;
    OutlierDetector loss_outlier, norm_outlier;
    uint64_t header_checksum = 0;
    char optimizer[16] = "adamw";  // from version 3 on
    LossScale loss_scale;          // of the next step; from version 4 on
    int64_t rank_states = 0;       // bits of RankState; from version 6 on
    uint64_t trained = 0;          // trained_identity() of the run; from version 7 on

    static int64_t least_bytes() { return offsetof(StateHeader, optimizer); }
    int64_t bytes() const {
        if (version >= STATE_VERSION_TRAINED) return sizeof(StateHeader);
        if (version >= STATE_VERSION_RANK) return offsetof(StateHeader, trained);
        if (version >= STATE_VERSION_FP16) return offsetof(StateHeader, rank_states);
        return version == STATE_VERSION_NAMED ? offsetof(StateHeader, loss_scale) : least_bytes();
    }
    void set_version(Optimizer o, bool fp16) {
        if (!fp16) loss_scale = {0, 0, loss_scale.skipped};
        version = fp16 ? STATE_VERSION_FP16 : o == ADAMW ? STATE_VERSION : STATE_VERSION_NAMED;
        if (!fp16 && loss_scale.skipped > 0) version = STATE_VERSION_SKIPPED;
        if (rank_states != 0) version = STATE_VERSION_RANK;
        if (trained != 0) version = STATE_VERSION_TRAINED;
        snprintf(optimizer, sizeof(optimizer), "%s", OPTIMIZERS[o].name);
    }
    uint64_t checksum() const {
        Checksum sum;
        sum.add(this, offsetof(StateHeader, header_checksum));
        sum.add(optimizer, bytes() - least_bytes());
        return sum.value();
    }
};
static_assert(sizeof(StateHeader) == offsetof(StateHeader, optimizer) + 16 + 16 + 16, "no padding");

// Reads the header of a state file; false if that fails, or the file is of no version known.
// file.problem is empty in the latter case.
inline bool try_read_header(FileReader& file, StateHeader& h) {
    const int64_t least = StateHeader::least_bytes();
    if (!file.try_read((void*)&h, least, "the header")) return false;
    if (h.magic != STATE_MAGIC || h.version < STATE_VERSION || h.version > STATE_VERSION_TRAINED) return false;
    if (!file.try_read(h.optimizer, h.bytes() - least, "the header")) return false;
    h.optimizer[sizeof(h.optimizer) - 1] = 0;
    return find_optimizer(h.optimizer) < NUM_OPTIMIZERS;
}

// Bytes of the state file of one rank.
inline int64_t state_file_bytes(const ParameterLayout& layout, const StateHeader& h, Optimizer optimizer, bool master) {
    const int64_t values = state_values(layout, OPTIMIZERS[optimizer], master) + rank_values(layout, h.rank_states);
    return h.bytes() + values * 4 + sizeof(uint64_t);
}
// Whether a state file has master weights.
inline bool has_master(const StateHeader& h) {
    return h.states > (int64_t)states_of(OPTIMIZERS[find_optimizer(h.optimizer)], false).size();
}

inline std::string model_path(const std::string& dir, int64_t step) { return format("%s/model_%08d.bin", dir, step); }
inline std::string state_path(const std::string& dir, int64_t step, int64_t rank) {
    return format("%s/state_%08d_%05d.bin", dir, step, rank);
}
inline std::string done_path(const std::string& dir, int64_t step) { return format("%s/DONE_%08d", dir, step); }

// A file of a checkpoint, as its name says. A temporary one was still being written when its
// program ended.
struct CheckpointFile {
    enum Kind { MODEL, STATE, DONE } kind;
    int64_t step;
    bool temporary;
    std::string path;
};

// The files of checkpoints in a folder: those whose names are exactly what this program writes.
inline std::vector<CheckpointFile> checkpoint_files(const std::string& dir) {
    std::vector<CheckpointFile> files;
    for (const std::string& full : list_folder(dir)) {
        const bool temporary = ends_with(full, ".tmp");
        const std::string path = dir + "/" + full.substr(0, full.size() - 4 * temporary);
        const char* name = path.c_str() + dir.size() + 1;
        long long step = -1, rank = -1;
        auto add = [&](CheckpointFile::Kind kind, const std::string& its_path) {
            if (step >= 0 && path == its_path) files.push_back({kind, step, temporary, dir + "/" + full});
        };
        if (sscanf(name, "model_%18lld", &step) == 1) add(CheckpointFile::MODEL, model_path(dir, step));
        if (sscanf(name, "state_%18lld_%18lld", &step, &rank) == 2)
            add(CheckpointFile::STATE, state_path(dir, step, rank));
        if (sscanf(name, "DONE_%18lld", &step) == 1) add(CheckpointFile::DONE, done_path(dir, step));
    }
    return files;
}

// Whether a run wrote a file of a checkpoint; a user's own may have such a name. DONE shows it by
// being empty, a state by its first bytes, a model by one of these beside it: saving publishes
// states first, removing takes the model first.
inline bool is_of_a_run(const std::string& dir, const CheckpointFile& file) {
    FileReader reader(file.path, FileReader::TELL);
    if (reader.good() && reader.size_bytes == 0) return true;  // nothing in it can be lost
    if (file.kind == CheckpointFile::DONE) return false;
    int32_t magic = 0;
    if (file.kind == CheckpointFile::STATE)
        return reader.try_read(&magic, sizeof(magic), "the header") && magic == STATE_MAGIC;
    for (const CheckpointFile& other : checkpoint_files(dir))
        if (other.kind != CheckpointFile::MODEL && other.step == file.step && is_of_a_run(dir, other)) return true;
    return false;
}

// The steps that have a DONE file, in ascending order. Their checksums have not been verified.
inline std::vector<int64_t> finished_steps(const std::string& dir) {
    std::vector<int64_t> steps;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::DONE && !file.temporary) steps.push_back(file.step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

// Bytes of all files of a checkpoint; 0 if there are none.
inline int64_t checkpoint_bytes(const std::string& dir, int64_t step) {
    int64_t bytes = 0;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.step == step && !file.temporary) bytes += file_bytes(file.path);
    return bytes;
}

// Removes a checkpoint; warns where that fails. DONE goes first, so that what is left is
// incomplete. The model goes before the states: while a state file is there, prune_checkpoints()
// sees that this removal was interrupted, and finishes it.
inline void remove_checkpoint(const std::string& dir, int64_t step) {
    auto remove = [&](const std::string& path) {
        const bool gone = remove_file(path);
        if (!gone) warning("cannot remove %s: %s; it stays for now", path, strerror(errno));
        return gone;
    };
    if (!remove(done_path(dir, step))) return;
    flush_folder(dir);  // from here on it is incomplete
    if (!remove(model_path(dir, step))) return;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::STATE && file.step == step && is_of_a_run(dir, file)) remove(file.path);
}
