// What a run leaves on the disk, so that it can go on from there as if nothing had happened.
//
// A checkpoint of step n (n updates done) is model_%08d.bin, one state_%08d_%05d.bin a process, and an empty DONE_%08d. Each file is
// written beside its name, flushed and renamed; DONE comes last. The state carries checksums of itself and of the model file. Complete
// means: DONE is there and every checksum is right. Anything else is never picked up, and is named.
//
// Model file (llm.c's layout): 256 int32 header (20240326; version 3: fp32, 5: bf16; maxT; V; L; NH; C; Vp), then each tensor over all
// layers before the next. State file: StateHeader, then for each bucket (tensors.h) this rank's slice of m, of v and, where weights are
// 16-bit and have one, of their fp32 master; its checksum.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>
#include "llmc/comm.h"
#include "llmc/file.h"
#include "llmc/logger.h"
#include "llmc/options.h"
#include "llmc/outlier.h"
#include "llmc/tensors.h"

constexpr int32_t MODEL_MAGIC = 20240326, MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5, STATE_MAGIC = 20261121, STATE_VERSION = 2;

// Bytes of a model file whose weights have so many each.
inline int64_t model_file_bytes(const GPT2Config& config, int64_t weight_bytes) {
    int64_t elems = 0;
    for (int i = 0; i < NUM_TENSORS; i++) elems += tensor_elems(i, config) * tensor_layers(i, config);
    return sizeof(Header) + elems * weight_bytes;
}

// Reads and checks the header of an open model file: shape, sizes, length of the file. Returns its version.
inline int32_t read_model_header(FileReader& file, GPT2Config& config) {
    Header h;
    h.read(file, MODEL_MAGIC, "model");
    const int32_t version = h.value[1];
    if (version != MODEL_VERSION_FP32 && version != MODEL_VERSION_BF16) runtime_failure("%s has version %d of the model layout; 3 (fp32) and 5 (bf16) are accepted", file.path.c_str(), version);
    config = {h.value[2], h.value[3], h.value[7], h.value[4], h.value[5], h.value[6]};
    bool sane = config.maxT > 0 && config.maxT <= 1 << 20 && config.V > 0 && config.V <= MAX_VOCAB && config.L > 0 && config.L <= 1000 && config.NH > 0 && config.C > 0 &&
                config.C <= 1 << 16 && config.C % config.NH == 0 && config.Vp == padded_vocab(config.V);
    if (!sane)
        runtime_failure("%s is damaged: its header says context %d, vocabulary %d padded to %d, %d layers, %d heads, %d channels", file.path.c_str(), h.value[2], h.value[3], h.value[7], h.value[4],
                        h.value[5], h.value[6]);
    file.expect_size(model_file_bytes(config, version == MODEL_VERSION_FP32 ? 4 : 2));
    return version;
}

// Calls put(tensor, layer, values) with every tensor of the file as fp32, in the order of the file.
template <class Put>
inline void read_model_tensors(FileReader& file, int32_t version, const GPT2Config& config, Put put) {
    std::vector<float> values;
    std::vector<uint16_t> halves;
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0; l < tensor_layers(i, config); l++) {
            values.resize(tensor_elems(i, config));
            if (version == MODEL_VERSION_FP32) file.read(values.data(), values.size() * 4, TENSORS[i].name);
            else {
                halves.resize(values.size());
                file.read(halves.data(), halves.size() * 2, TENSORS[i].name);
                for (size_t k = 0; k < values.size(); k++) {
                    uint32_t bits = (uint32_t)halves[k] << 16;
                    memcpy(&values[k], &bits, 4);
                }
            }
            put(i, l, values.data());
        }
}

// The weights of a model file into a model of its shape; the trainer provides set_tensor (train.h).
template <class Model>
inline void load_model(Model& model, const std::string& path, Progress* progress = nullptr) {
    FileReader file(path);
    GPT2Config config;
    const int32_t version = read_model_header(file, config);
    read_model_tensors(file, version, config, [&](int tensor, int64_t layer, const float* values) {
        set_tensor(model, tensor, layer, values);
        if (progress) progress->reach(file.position);
    });
}

// Writes a model file; get(tensor, layer, first, elems) gives a piece of a tensor as fp32, which a bf16 model's values are exactly. Returns its checksum.
template <class Get>
inline uint64_t write_model(const std::string& path, const GPT2Config& config, int32_t version, Get get,
                            Progress* progress = nullptr) {
    constexpr int64_t PIECE_ELEMS = 1 << 20;  // so that a save needs next to no memory of its own
    Header h;
    std::vector<uint16_t> halves;
    const int32_t sizes[] = {MODEL_MAGIC, version, (int32_t)config.maxT, (int32_t)config.V, (int32_t)config.L, (int32_t)config.NH, (int32_t)config.C, (int32_t)config.Vp};
    memcpy(h.value, sizes, sizeof(sizes));
    FileWriter file(path);
    file.write(h.value, sizeof(h.value));
    auto write_piece = [&](const float* values, int64_t elems) {
        if (progress) progress->add(elems * (version == MODEL_VERSION_FP32 ? 4 : 2));
        if (version == MODEL_VERSION_FP32) return file.write(values, elems * 4);
        halves.resize(elems);
        for (int64_t k = 0; k < elems; k++) {
            uint32_t bits;
            memcpy(&bits, values + k, 4);
            halves[k] = (uint16_t)(bits >> 16);
        }
        file.write(halves.data(), elems * 2);
    };
    for (int i = 0; i < NUM_TENSORS; i++)
        for (int64_t l = 0, elems = tensor_elems(i, config); l < tensor_layers(i, config); l++)
            for (int64_t first = 0; first < elems; first += PIECE_ELEMS) write_piece(get(i, l, first, std::min(PIECE_ELEMS, elems - first)), std::min(PIECE_ELEMS, elems - first));
    file.commit();
    return file.checksum.value();
}

// Where the run is, and what must not change when it goes on.
struct StateHeader {
    int32_t magic = STATE_MAGIC, version = STATE_VERSION;
    int64_t step = 0, position_windows = 0;                       // updates done; windows of the training data consumed
    int64_t processes = 1, rank = 0;
    int64_t T = 0, seed = 0, shuffle = 0;
    int64_t slices = 2;                                           // of every parameter: m, v, and master weights if 3
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

inline std::string model_path(const std::string& dir, int64_t step) { return format("%s/model_%08lld.bin", dir.c_str(), (long long)step); }
inline std::string state_path(const std::string& dir, int64_t step, int64_t rank) { return format("%s/state_%08lld_%05lld.bin", dir.c_str(), (long long)step, (long long)rank); }
inline std::string done_path(const std::string& dir, int64_t step) { return format("%s/DONE_%08lld", dir.c_str(), (long long)step); }

// Steps that have a DONE file, in order.
inline std::vector<int64_t> finished_steps(const std::string& dir) {
    std::vector<int64_t> steps;
    for (const std::string& path : glob_files(dir + "/DONE_*")) {
        int64_t step;
        const std::string digits = path.substr(dir.size() + 6);
        if (digits.size() >= 8 && digits[0] != '+' && parse_whole(digits, step) && step >= 0) steps.push_back(step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

// Checksum of a file up to its last `tail` bytes, which go to `tail_value`. False if it cannot be read.
inline bool checksum_file(const std::string& path, size_t tail, Checksum& sum, uint64_t& tail_value, StateHeader* header) {
    FILE* file = fopen(path.c_str(), "rb");
    if (!file) return false;
    struct stat st;
    bool good = fstat(fileno(file), &st) == 0 && (size_t)st.st_size >= tail + (header ? sizeof(StateHeader) : 0);
    std::vector<char> buffer(1 << 20);
    for (size_t left = good ? st.st_size - tail : 0, first = 1; good && left > 0; first = 0) {
        size_t n = fread(buffer.data(), 1, std::min(left, buffer.size()), file);
        if (n == 0) good = false;
        if (header && first && n >= sizeof(StateHeader)) memcpy((void*)header, buffer.data(), sizeof(StateHeader));
        sum.add(buffer.data(), n);
        left -= n;
    }
    if (good && tail) good = fread(&tail_value, 1, tail, file) == tail;
    fclose(file);
    return good;
}

// What is wrong with the checkpoint of this step; empty if nothing. header is that of rank 0.
inline std::string checkpoint_problem(const std::string& dir, int64_t step, StateHeader& header) {
    header = {};
    for (int64_t rank = 0, processes = 1; rank < processes; rank++) {
        const std::string path = state_path(dir, step, rank);
        StateHeader h;
        Checksum sum;
        uint64_t stored = 0;
        if (!checksum_file(path, 8, sum, stored, &h)) return path + " is missing, cut short or unreadable";
        if (h.magic != STATE_MAGIC || h.version != STATE_VERSION) return path + " is no state file of this version";
        if (sum.value() != stored || h.header_checksum != h.checksum() || h.step != step || h.rank != rank || h.processes < 1 || h.slices < 2 || h.slices > 3) return path + " is damaged: its checksum is wrong";
        if (rank == 0) header = h, processes = h.processes;
        else if (h.model_checksum != header.model_checksum || h.processes != processes) return path + " belongs to another checkpoint";
    }
    Checksum model;
    uint64_t none = 0;
    const std::string path = model_path(dir, step);
    if (!checksum_file(path, 0, model, none, nullptr)) return path + " is missing or unreadable";
    if (model.value() != header.model_checksum) return path + " is damaged: its checksum is wrong";
    return "";
}

// The newest complete checkpoint, -1 if there is none; the ones passed over are named on stderr.
inline int64_t newest_checkpoint(const std::string& dir, StateHeader& header) {
    std::vector<int64_t> steps = finished_steps(dir);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        const std::string problem = checkpoint_problem(dir, *step, header);
        if (problem.empty()) return *step;
        warning("the checkpoint of step %lld is passed over: %s", (long long)*step, problem.c_str());
    }
    return -1;
}

inline void remove_checkpoint(const std::string& dir, int64_t step) {
    unlink(done_path(dir, step).c_str());  // first: from here on it is incomplete
    flush_folder(dir);
    for (const std::string& path : glob_files(format("%s/state_%08lld_*.bin", dir.c_str(), (long long)step))) unlink(path.c_str());
    unlink(model_path(dir, step).c_str());
}

// Bytes of the state file of one rank.
inline int64_t state_file_bytes(const ParameterLayout& layout, int64_t slices) {
    int64_t elems = 0;
    for (int64_t b = 0; b < layout.buckets(); b++) elems += layout.shard_elems(b);
    return sizeof(StateHeader) + slices * elems * 4 + sizeof(uint64_t);
}

// What a checkpoint holds of a bucket, this rank's slice of m (0), v (1) or master weights (2): all that the process has in ZeRO stage 1, a part of
// what it has in stage 0. The trainer provides the memory (train.h).
template <class Model>
inline const float* optimizer_slice(Model& model, int slice, int64_t bucket) {
    const int64_t elems = model.layout.shard_elems(bucket), skip = model.shard.parts > 1 ? 0 : comm.rank * elems;
    return to_host(model, slice_memory(model, slice) + model.shard.state_begin(model.layout, bucket) + skip, elems);
}
// Elements first.. of a bucket, from whoever saved them: what of them this process keeps. Master weights go into fp32 weights, which all have whole.
template <class Model>
inline void set_optimizer_slice(Model& model, int slice, int64_t bucket, int64_t first, int64_t elems, const float* values) {
    const ZeroShard shard = slice < optimizer_slices(model) ? model.shard : ZeroShard{};
    const int64_t begin = shard.first(model.layout, bucket), low = std::max(first, begin), high = std::min(first + elems, shard.end(model.layout, bucket));
    float* state = slice_memory(model, slice);
    if (state && low < high) to_device(model, state + shard.state_begin(model.layout, bucket) + low - begin, values + low - first, high - low);
}

// Writes the checkpoint of header.step from the model.
template <class Model>
inline void save_checkpoint(const std::string& dir, StateHeader header, Model& model, Progress* progress = nullptr) {
    const ParameterLayout& layout = model.layout;
    if (comm.rank == 0) {
        for (const std::string& leftover : glob_files(dir + "/*.tmp")) unlink(leftover.c_str());
        unlink(done_path(dir, header.step).c_str());
        const int32_t version = strcmp(precision_name(model), "bf16") == 0 ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32;
        auto piece = [&](int tensor, int64_t layer, int64_t first, int64_t elems) {
            return tensor_data(model, tensor, layer, first, elems);
        };
        header.model_checksum = write_model(model_path(dir, header.step), layout.config, version, piece, progress);
    }
    header.model_checksum = comm_gather(header.model_checksum, "writing the model")[0];
    header.processes = comm.processes, header.rank = comm.rank, header.slices = optimizer_slices(model);
    header.header_checksum = header.checksum();
    FileWriter state(state_path(dir, header.step, comm.rank));
    state.write(&header, sizeof(header));
    for (int64_t b = 0; b < layout.buckets(); b++)
        for (int slice = 0; slice < header.slices; slice++) {
            state.write(optimizer_slice(model, slice, b), layout.shard_elems(b) * 4);
            if (progress) progress->add(layout.shard_elems(b) * 4);
        }
    const uint64_t sum = state.checksum.value();
    state.write(&sum, sizeof(sum));
    state.commit();
    comm_barrier("writing the state");  // all are there
    if (comm.rank > 0) return;
    FileWriter done(done_path(dir, header.step));
    done.commit();
}

// Loads weights and optimizer state; the shards may have been written by any number of processes.
template <class Model>
inline void load_checkpoint(const std::string& dir, int64_t step, Model& model, Progress* progress = nullptr) {
    load_model(model, model_path(dir, step), progress);
    StateHeader header;
    std::vector<float> values;
    for (int64_t rank = 0; rank == 0 || rank < header.processes; rank++) {
        FileReader state(state_path(dir, step, rank));
        state.read((void*)&header, sizeof(header), "the header");
        const ParameterLayout saved = parameter_layout(model.layout.config, header.processes);
        for (int64_t b = 0; b < saved.buckets(); b++)
            for (int slice = 0; slice < header.slices; slice++) {
                const int64_t elems = saved.shard_elems(b);
                values.resize(elems);
                state.read(values.data(), elems * 4, "m, v or master weights");
                set_optimizer_slice(model, slice, b, rank * elems, elems, values.data());
                if (progress) progress->add(elems * 4);
            }
    }
}

// Keeps the `keep` newest checkpoints (0: all) and those at multiples of `major`.
inline void prune_checkpoints(const std::string& dir, int64_t keep, int64_t major) {
    std::vector<int64_t> steps = finished_steps(dir);
    if (comm.rank > 0) return;
    for (int64_t i = 0; keep > 0 && i + keep < (int64_t)steps.size(); i++)
        if (major == 0 || steps[i] % major != 0) remove_checkpoint(dir, steps[i]);
}
