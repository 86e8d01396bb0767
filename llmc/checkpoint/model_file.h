// Model files, in llm.c's layout: a header of 256 int32 (20240326; version, 3 for fp32 and 5 for
// bf16; maxT; V; L; NH; C; Vp; of models with a window, W and whether it alternates, else 0), then
// the tensors in the order of tensors.h, each over all layers before the next. Weights that are not
// finite are neither read nor written: training cannot recover from them.
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "llmc/base/file.h"
#include "llmc/base/hot_loop.h"
#include "llmc/base/logger.h"
#include "llmc/model/model_state.h"

constexpr int32_t MODEL_MAGIC = 20240326, MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5;

// True if none of n values is infinite or NaN, that is: if none has an exponent of all ones.
HOT_LOOP inline bool all_finite(const float* values, int64_t n) {
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, 4);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

// The name of a tensor, for messages: "wte", "fcw of layer 3".
inline std::string tensor_text(int tensor, int64_t layer) {
    const TensorInfo& t = TENSORS[tensor];
    return t.per_layer ? format("%s of layer %d", t.name, layer) : t.name;
}

// Bytes of a model file with weight_bytes per weight.
inline int64_t model_file_bytes(const GPT2Config& config, int64_t weight_bytes) {
    int64_t elems = 0;
    for (int i = 0; i < NUM_TENSORS; i++) elems += tensor_elems(i, config) * tensor_layers(i, config);
    return sizeof(Header) + elems * weight_bytes;
}

// Reads the header of an open model file into config, and returns its version. Exit 1 if the header
// makes no sense or does not match the length of the file.
inline int32_t read_model_header(FileReader& file, GPT2Config& config) {
    Header h;
    h.read(file, MODEL_MAGIC, "model");
    const int32_t version = h.value[1];
    if (version != MODEL_VERSION_FP32 && version != MODEL_VERSION_BF16)
        runtime_failure("%s has version %d of the model layout; 3 (fp32) and 5 (bf16) are accepted", file.path,
                        version);
    config = {h.value[2], h.value[3], h.value[7], h.value[4], h.value[5], h.value[6], {h.value[8], h.value[9] == 1}};
    const bool sane = config.maxT > 0 && config.maxT <= 1 << 20 && config.V > 0 && config.V <= MAX_VOCAB &&
                      config.L > 0 && config.L <= 1000 && config.NH > 0 && config.C > 0 && config.C <= 1 << 16 &&
                      config.C % config.NH == 0 && config.Vp == padded_vocab(config.V) &&
                      config.window.positions >= 0 && config.window.positions <= MOST_WINDOW &&
                      h.value[9] == (config.window.alternate ? 1 : 0);
    if (!sane)
        runtime_failure(
            "%s is damaged: its header says context %d, vocabulary %d padded to %d, %d layers, %d heads, "
            "%d channels, window %d",
            file.path, h.value[2], h.value[3], h.value[7], h.value[4], h.value[5], h.value[6], h.value[8]);
    file.expect_size(model_file_bytes(config, version == MODEL_VERSION_FP32 ? 4 : 2));
    return version;
}

// Reads tensors `first` to end - 1 after the header, and calls put(tensor, layer, values) with each
// of them, in fp32. Exit 1 if the file ends early or a value is not finite.
template <class Put>
inline void read_tensors(FileReader& file, int32_t version, const GPT2Config& config, int first, int end, Put put) {
    std::vector<float> values;
    std::vector<uint16_t> halves;
    for (int i = first; i < end; i++)
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
            if (!all_finite(values.data(), values.size()))
                runtime_failure("%s is damaged: %s has values that are not finite", file.path, tensor_text(i, l));
            put(i, l, values.data());
        }
}
template <class Put>
inline void read_model_tensors(FileReader& file, int32_t version, const GPT2Config& config, Put put) {
    read_tensors(file, version, config, 0, NUM_TENSORS, put);
}

// The version of the layout in which model files keep weights of this format. It has none for fp16,
// whose numbers are fp32 numbers.
inline int32_t model_version(NumberFormat format) {
    return format == FORMAT_BF16 ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32;
}

// Loads the weights of an open model file into a model of the same shape; exit 1 if the shapes
// differ.
inline void load_model(GPT2& model, FileReader& file, Progress* progress = nullptr) {
    const GPT2Config& made = model.layout.config;
    GPT2Config c;
    file.rewind();
    const int32_t version = read_model_header(file, c);
    if (c.maxT != made.maxT || c.V != made.V || c.L != made.L || c.NH != made.NH || c.C != made.C)
        runtime_failure("%s has changed while it was in use: its model has another shape now", file.path);
    read_model_tensors(file, version, c, [&](int tensor, int64_t layer, const float* values) {
        set_tensor(model, tensor, layer, values);
        if (progress) progress->reach(file.position);
    });
}
inline void load_model(GPT2& model, const std::string& path) {
    FileReader file(path);
    load_model(model, file);
}

// Calls each(tensor, layer, first, elems) with the pieces of a file of tensors `begin` to end - 1,
// in its order.
template <class Each>
inline void for_each_model_piece(const GPT2Config& config, Each each, int begin = 0, int end = NUM_TENSORS) {
    constexpr int64_t PIECE_ELEMS = 1 << 20;  // 4 MiB: saving needs little memory of its own
    for (int i = begin; i < end; i++)
        for (int64_t l = 0, elems = tensor_elems(i, config); l < tensor_layers(i, config); l++)
            for (int64_t first = 0; first < elems; first += PIECE_ELEMS)
                each(i, l, first, std::min(PIECE_ELEMS, elems - first));
}

// Writes tensors `first` to end - 1. get(tensor, layer, first, elems) returns elements first to
// first + elems of a tensor in fp32; values of a bf16 model fit bf16 exactly, so their lower 16
// bits are dropped. Exit 1 if a value is not finite or the disk fails; no file is left then.
template <class Get>
inline void write_tensors(FileWriter& file, int32_t version, const GPT2Config& config, int begin, int end, Get get,
                          Progress* progress) {
    std::vector<uint16_t> halves;
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
    const auto write = [&](int i, int64_t l, int64_t first, int64_t elems) {
        const float* values = get(i, l, first, elems);
        if (!all_finite(values, elems)) file.refuse(tensor_text(i, l) + " has values that are not finite");
        write_piece(values, elems);
    };
    for_each_model_piece(config, write, begin, end);
}
// Writes the contents of a model file, which the caller then flushes and publishes; returns its
// checksum.
template <class Get>
inline uint64_t write_model(FileWriter& file, const GPT2Config& config, int32_t version, Get get,
                            Progress* progress = nullptr) {
    Header h;
    const int32_t sizes[] = {MODEL_MAGIC,
                             version,
                             (int32_t)config.maxT,
                             (int32_t)config.V,
                             (int32_t)config.L,
                             (int32_t)config.NH,
                             (int32_t)config.C,
                             (int32_t)config.Vp,
                             (int32_t)config.window.positions,
                             config.window.alternate};
    memcpy(h.value, sizes, sizeof(sizes));
    file.write(h.value, sizeof(h.value));
    write_tensors(file, version, config, 0, NUM_TENSORS, get, progress);
    return file.checksum.value();
}
