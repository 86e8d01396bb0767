// What a run leaves on the disk, so that it can go on from there as if nothing had happened.
//
// A checkpoint of step n (n updates done) is model_%08d.bin (model_file.h), one state_%08d_%05d.bin
// a process, and an empty DONE_%08d. Each file is written beside its name, flushed and renamed;
// DONE comes last, and goes first. The state carries checksums of itself and of the model file.
// Complete means: DONE is there and every checksum is right. Anything else is never picked up, and
// is named.
//
// State file: StateHeader, then for each bucket (tensors.h) this rank's slice of m, of v and, where
// weights are 16-bit and have one, of their fp32 master; its checksum.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include "llmc/comm.h"
#include "llmc/model_file.h"
#include "llmc/outlier.h"

constexpr int32_t STATE_MAGIC = 20261121, STATE_VERSION = 2;

// Where the run is, and what must not change when it goes on.
struct StateHeader {
    int32_t magic = STATE_MAGIC, version = STATE_VERSION;
    int64_t step = 0, position_windows = 0;  // updates done; windows of the training data consumed
    int64_t processes = 1, rank = 0;
    int64_t T = 0, seed = 0, shuffle = 0;
    int64_t slices = 2;  // of every parameter: m, v, and master weights if 3
    uint64_t data_identity = 0;
    uint64_t model_checksum = 0;
    OutlierDetector loss_outlier, norm_outlier;
    uint64_t header_checksum = 0;

    uint64_t checksum() const {
        Checksum sum;
        sum.add(this, offsetof(StateHeader, header_checksum));
        return sum.value();
    }
};

inline std::string model_path(const std::string& dir, int64_t step) {
    return format("%s/model_%08lld.bin", dir.c_str(), (long long)step);
}
inline std::string state_path(const std::string& dir, int64_t step, int64_t rank) {
    return format("%s/state_%08lld_%05lld.bin", dir.c_str(), (long long)step, (long long)rank);
}
inline std::string done_path(const std::string& dir, int64_t step) {
    return format("%s/DONE_%08lld", dir.c_str(), (long long)step);
}

// A file of a checkpoint, as its name says; temporary: it was being written when its program ended.
struct CheckpointFile {
    enum Kind { MODEL, STATE, DONE } kind;
    int64_t step;
    bool temporary;
    std::string path;
};

// The files of checkpoints in a folder. Names that are not exactly theirs are somebody else's.
inline std::vector<CheckpointFile> checkpoint_files(const std::string& dir) {
    std::vector<CheckpointFile> files;
    for (const std::string& full : list_folder(dir)) {
        const bool temporary = full.size() > 4 && full.compare(full.size() - 4, 4, ".tmp") == 0;
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

// Steps that have a DONE file, in order.
inline std::vector<int64_t> finished_steps(const std::string& dir) {
    std::vector<int64_t> steps;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::DONE && !file.temporary) steps.push_back(file.step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

inline int64_t checkpoint_bytes(const std::string& dir, int64_t step) {
    int64_t bytes = 0;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.step == step && !file.temporary) bytes += file_bytes(file.path);
    return bytes;
}

// Reads on to the last `tail` bytes of a file, for its checksum. False, and file.problem says why,
// if that fails.
inline bool read_to_tail(FileReader& file, int64_t tail, Progress* progress) {
    std::vector<char> buffer(1 << 20);
    while (file.good() && file.position + tail < file.size_bytes) {
        const int64_t bytes = std::min<int64_t>(buffer.size(), file.size_bytes - tail - file.position);
        file.try_read(buffer.data(), bytes, "what its checksum is of");
        if (progress) progress->add(bytes);
    }
    return file.good();
}

// What is wrong with a state file of a checkpoint; empty if nothing.
inline std::string state_problem(const std::string& path, int64_t step, int64_t rank, StateHeader& h,
                                 Progress* progress) {
    FileReader file(path, FileReader::TELL);
    if (!file.good()) return file.problem;
    uint64_t sum = 0, stored = 0;
    if (file.size_bytes < (int64_t)(sizeof(h) + sizeof(stored))) return path + " is cut short";
    if (!file.try_read((void*)&h, sizeof(h), "the header")) return file.problem;
    if (h.magic != STATE_MAGIC || h.version != STATE_VERSION) return path + " is no state file of this version";
    if (!read_to_tail(file, sizeof(stored), progress)) return file.problem;
    sum = file.checksum.value();
    if (!file.try_read(&stored, sizeof(stored), "its checksum")) return file.problem;
    const bool sane = h.step == step && h.rank == rank && h.processes > rank && h.slices >= 2 && h.slices <= 3;
    if (sum != stored || h.header_checksum != h.checksum() || !sane) return path + " is damaged: its checksum is wrong";
    return "";
}

// What is wrong with the checkpoint of this step; empty if nothing. header is that of rank 0; model
// its model file, still open.
inline std::string checkpoint_problem(const std::string& dir, int64_t step, StateHeader& header,
                                      std::unique_ptr<FileReader>* model = nullptr, Progress* progress = nullptr) {
    for (int64_t rank = 0; rank == 0 || rank < header.processes; rank++) {
        const std::string path = state_path(dir, step, rank);
        StateHeader h;
        const std::string problem = state_problem(path, step, rank, h, progress);
        if (!problem.empty()) return problem;
        if (rank == 0) header = h;
        else if (h.model_checksum != header.model_checksum || h.processes != header.processes ||
                 h.slices != header.slices)
            return path + " belongs to another checkpoint";
    }
    auto file = std::make_unique<FileReader>(model_path(dir, step), FileReader::TELL);
    if (!file->good() || !read_to_tail(*file, 0, progress)) return file->problem;
    if (file->checksum.value() != header.model_checksum) return file->path + " is damaged: its checksum is wrong";
    if (model) *model = std::move(file);
    return "";
}

// The newest complete checkpoint, its header and its model file, still open; the ones passed over
// are named on stderr. -1 if the folder has none. If it has some, and none can be used, the program
// ends: starting again would be the end of them.
inline int64_t newest_checkpoint(const std::string& dir, StateHeader& header,
                                 std::unique_ptr<FileReader>* model = nullptr, Logger* logger = nullptr) {
    Logger nobody;
    nobody.silent = true;
    const std::vector<int64_t> steps = finished_steps(dir);
    int64_t unfinished = -1;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::STATE && !file.temporary) unfinished = std::max(unfinished, file.step);
    if (steps.empty() && unfinished >= 0)
        warning("the checkpoint of step %lld is passed over: it was not finished, %s is not there",
                (long long)unfinished, done_path(dir, unfinished).c_str());
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        StateHeader found;
        const std::string name = format("checking step %lld of %s", (long long)*step, dir.c_str());
        std::string problem;
        {
            Progress progress(logger ? *logger : nobody, name, checkpoint_bytes(dir, *step), "MB", 1000000);
            problem = checkpoint_problem(dir, *step, found, model, &progress);
        }
        if (problem.empty()) return header = found, *step;
        warning("the checkpoint of step %lld is passed over: %s", (long long)*step, problem.c_str());
    }
    if (steps.empty()) return -1;
    runtime_failure(
        "none of the %zu checkpoints in %s can be used (steps %lld to %lld, each named above); nothing was "
        "changed, and another -o starts a new run",
        steps.size(), dir.c_str(), (long long)steps.front(), (long long)steps.back());
}

// The model goes before the states: as long as one of those is there, what is left of an
// interrupted removal is known for what it is.
inline void remove_checkpoint(const std::string& dir, int64_t step) {
    auto remove = [&](const std::string& path) {
        const bool gone = remove_file(path);
        if (!gone) warning("cannot remove %s: %s; it stays for now", path.c_str(), strerror(errno));
        return gone;
    };
    if (!remove(done_path(dir, step))) return;
    flush_folder(dir);  // from here on it is incomplete
    if (!remove(model_path(dir, step))) return;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind == CheckpointFile::STATE && file.step == step) remove(file.path);
}

// Bytes of the state file of one rank.
inline int64_t state_file_bytes(const ParameterLayout& layout, int64_t slices) {
    return sizeof(StateHeader) + layout.total_elems() / layout.processes * slices * 4 + sizeof(uint64_t);
}

// What a checkpoint holds of a bucket, this rank's slice of m (0), v (1) or master weights (2): all
// that the process has in ZeRO stage 1, a part of what it has in stage 0. The trainer provides the
// memory (train.h).
template <class Model>
inline const float* optimizer_slice(Model& model, int slice, int64_t bucket) {
    const int64_t elems = model.layout.shard_elems(bucket), skip = model.shard.parts > 1 ? 0 : comm.rank * elems;
    return to_host(model, slice_memory(model, slice) + model.shard.state_begin(model.layout, bucket) + skip, elems);
}
// Elements first.. of a bucket, from whoever saved them: what of them this process keeps. Master
// weights go into fp32 weights, which all have whole.
template <class Model>
inline void set_optimizer_slice(Model& model, int slice, int64_t bucket, int64_t first, int64_t elems,
                                const float* values) {
    const ZeroShard shard = slice < optimizer_slices(model) ? model.shard : ZeroShard{};
    const int64_t begin = shard.first(model.layout, bucket), low = std::max(first, begin),
                  high = std::min(first + elems, shard.end(model.layout, bucket));
    float* state = slice_memory(model, slice);
    if (state && low < high)
        to_device(model, state + shard.state_begin(model.layout, bucket) + low - begin, values + low - first,
                  high - low);
}

// Writes this rank's state file of a checkpoint; returns its checksum.
template <class Model>
inline uint64_t write_state(const std::string& dir, const StateHeader& header, Model& model, Progress* progress) {
    const ParameterLayout& layout = model.layout;
    FileWriter file(state_path(dir, header.step, header.rank));
    file.write(&header, sizeof(header));
    for (int64_t b = 0; b < layout.buckets(); b++)
        for (int slice = 0; slice < header.slices; slice++) {
            const int64_t elems = layout.shard_elems(b);
            const float* values = optimizer_slice(model, slice, b);
            if (!all_finite(values, elems)) {
                const char* names[] = {"m", "v", "the master weights"};
                const bool layer = b < layout.config.L;
                const std::string where = layer ? format("layer %lld", (long long)b) : "what is outside the layers";
                file.refuse(format("%s of %s: values that are not finite", names[slice], where.c_str()));
            }
            file.write(values, elems * 4);
            if (progress) progress->add(elems * 4);
        }
    const uint64_t sum = file.checksum.value();
    file.write(&sum, sizeof(sum));
    file.commit();
    return sum;
}

// Ends the program unless the state file that a rank has written is there for rank 0 to see.
inline void expect_state(const std::string& path, const StateHeader& header, int64_t rank, uint64_t sum) {
    FileReader file(path, FileReader::TELL);
    StateHeader h;
    uint64_t stored = 0;
    bool good = file.good() && file.size_bytes > (int64_t)sizeof(h);
    good = good && file.try_read((void*)&h, sizeof(h), "the header") && h.step == header.step && h.rank == rank;
    if (good) file.seek(file.size_bytes - sizeof(stored));
    good = good && file.try_read(&stored, sizeof(stored), "its checksum") && stored == sum;
    if (!good)
        runtime_failure(
            "rank %lld has written its part of the checkpoint of step %lld, but rank 0 finds no such %s: "
            "-o must be one folder, which all processes share",
            (long long)rank, (long long)header.step, path.c_str());
}

// Writes the checkpoint of header.step from the model.
template <class Model>
inline void save_checkpoint(const std::string& dir, StateHeader header, Model& model, Progress* progress = nullptr) {
    const int32_t version = strcmp(precision_name(model), "bf16") == 0 ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32;
    if (comm.rank == 0) {
        for (const CheckpointFile& file : checkpoint_files(dir))
            if (file.temporary) remove_file(file.path);
        const std::string done = done_path(dir, header.step);
        if (!remove_file(done))
            runtime_failure("cannot remove %s, to write that checkpoint again: %s", done.c_str(), strerror(errno));
        flush_folder(dir);
        auto get = [&](int tensor, int64_t layer, int64_t first, int64_t elems) {
            return tensor_data(model, tensor, layer, first, elems);
        };
        const std::string path = model_path(dir, header.step);
        header.model_checksum = write_model(path, model.layout.config, version, get, progress);
    }
    header.model_checksum = comm_gather(header.model_checksum, "writing the model")[0];
    header.processes = comm.processes, header.rank = comm.rank, header.slices = optimizer_slices(model);
    header.header_checksum = header.checksum();
    const std::vector<uint64_t> sums = comm_gather(write_state(dir, header, model, progress), "writing the state");
    if (comm.rank > 0) return;
    for (int64_t rank = 0; rank < comm.processes; rank++)
        expect_state(state_path(dir, header.step, rank), header, rank, sums[rank]);
    FileWriter done(done_path(dir, header.step));
    done.commit();
}

// Loads the part of m, v and master weights that a rank of the saved run kept. verified: the header
// of the checkpoint, as it was when it was found.
template <class Model>
inline void load_state(const std::string& path, const StateHeader& verified, int64_t rank, Model& model,
                       Progress* progress) {
    FileReader file(path);
    StateHeader h;
    file.read((void*)&h, sizeof(h), "the header");
    auto changed = [&] { runtime_failure("%s has changed since it was verified", path.c_str()); };
    const bool same = h.header_checksum == h.checksum() && h.step == verified.step && h.rank == rank &&
                      h.processes == verified.processes && h.slices == verified.slices &&
                      h.model_checksum == verified.model_checksum;
    if (!same) changed();
    const ParameterLayout saved = parameter_layout(model.layout.config, h.processes);
    file.expect_size(state_file_bytes(saved, h.slices));
    std::vector<float> values;
    for (int64_t b = 0; b < saved.buckets(); b++)
        for (int slice = 0; slice < h.slices; slice++) {
            const int64_t elems = saved.shard_elems(b);
            values.resize(elems);
            file.read(values.data(), elems * 4, "m, v or master weights");
            if (!all_finite(values.data(), elems))
                runtime_failure("%s is damaged: it has values that are not finite", path.c_str());
            set_optimizer_slice(model, slice, b, rank * elems, elems, values.data());
            if (progress) progress->add(elems * 4);
        }
    const uint64_t sum = file.checksum.value();
    uint64_t stored = 0;
    file.read(&stored, sizeof(stored), "its checksum");
    if (sum != stored) changed();
}

// Loads weights and optimizer state of the checkpoint that newest_checkpoint found; the shards may
// have been written by any number of processes.
template <class Model>
inline void load_checkpoint(const std::string& dir, const StateHeader& verified, FileReader& model_file, Model& model,
                            Progress* progress = nullptr) {
    load_model(model, model_file, progress);
    if (model_file.checksum.value() != verified.model_checksum)
        runtime_failure("%s has changed since it was verified", model_file.path.c_str());
    for (int64_t rank = 0; rank < verified.processes; rank++)
        load_state(state_path(dir, verified.step, rank), verified, rank, model, progress);
}

// Keeps the `keep` newest checkpoints up to this step (0: all) and those at multiples of `major`;
// removes what is older, and finishes removals that were interrupted. Only whole checkpoints count:
// those that this run has saved or verified are in `whole`, others are verified now.
inline void prune_checkpoints(const std::string& dir, int64_t step, int64_t keep, int64_t major,
                              std::map<int64_t, bool>& whole) {
    if (comm.rank > 0 || keep == 0) return;
    const std::vector<int64_t> steps = finished_steps(dir);
    int64_t oldest_kept = -1;
    for (auto s = steps.rbegin(); s != steps.rend() && keep > 0; ++s) {
        if (*s > step) continue;
        if (!whole.count(*s)) {
            StateHeader header;
            const std::string problem = checkpoint_problem(dir, *s, header);
            whole[*s] = problem.empty();
            if (!problem.empty())
                warning("the checkpoint of step %lld does not count for -nk: %s", (long long)*s, problem.c_str());
        }
        if (whole[*s]) keep--, oldest_kept = *s;
    }
    if (keep > 0) return;
    std::set<int64_t> old;
    for (const CheckpointFile& file : checkpoint_files(dir))
        if (file.kind != CheckpointFile::MODEL && file.step < oldest_kept && (major == 0 || file.step % major != 0))
            old.insert(file.step);
    for (int64_t s : old) remove_checkpoint(dir, s);
}
