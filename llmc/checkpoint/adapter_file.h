// Adapter files: what --lora has trained, without the model that it adapts. A header of 256 int32
// (20261125; version, shape as in model_file.h; rank; which matrices; alpha as fp32; a checksum of
// the model's file in two; the format of its matrices in training, 0 numbers, 1 int8, 2 int4, 3
// nf4), then the adapters in the order of tensors.h, each over all layers. They
// take the place of model files in checkpoints, and -e MODEL --adapter FILE loads one.
#pragma once
#include "llmc/adapt/lora.h"
#include "llmc/adapt/weight_codes.h"
#include "llmc/checkpoint/model_file.h"

constexpr int32_t ADAPTER_MAGIC = 20261125;
constexpr int64_t MOST_RANK = 1024;

inline bool is_adapter_file(FileReader& file) {
    int32_t magic = 0;
    file.rewind();
    const bool is = file.size_bytes >= (int64_t)sizeof(Header) && file.try_read(&magic, sizeof(magic), "the header") &&
                    magic == ADAPTER_MAGIC;
    return file.rewind(), is;
}
inline int64_t adapter_elems(const GPT2Config& c) {
    int64_t elems = 0;
    for (int i = NUM_TENSORS; i < ALL_TENSORS; i++) elems += tensor_elems(i, c) * tensor_layers(i, c);
    return elems;
}
inline int64_t adapter_file_bytes(const GPT2Config& c, int64_t weight_bytes) {
    return sizeof(Header) + adapter_elems(c) * weight_bytes;
}

// Bytes of the file of weights in a checkpoint, with weight_bytes per weight.
inline int64_t saved_model_bytes(const GPT2Config& c, int64_t weight_bytes) {
    return c.lora.rank > 0 ? adapter_file_bytes(c, weight_bytes) : model_file_bytes(c, weight_bytes);
}

// Reads the header of an adapter file into c.lora, and returns its version. Exit 1 if it is of a
// model of another shape than c, makes no sense or does not match the length of the file.
inline int32_t read_adapter_header(FileReader& file, GPT2Config& c) {
    Header h;
    h.read(file, ADAPTER_MAGIC, "adapter");
    const int32_t version = h.value[1];
    if (version != MODEL_VERSION_FP32 && version != MODEL_VERSION_BF16)
        runtime_failure("%s has version %d of the layout of adapters; 3 (fp32) and 5 (bf16) are accepted", file.path,
                        version);
    const int64_t shape[] = {c.maxT, c.V, c.L, c.NH, c.C, c.Vp};
    for (int i = 0; i < 6; i++)
        if (h.value[2 + i] != shape[i])
            runtime_failure(
                "%s adapts a model of another shape: L %d, C %d, NH %d, context %d, V %d; this one has %d, %d, %d, %d, "
                "%d",
                file.path, h.value[4], h.value[6], h.value[5], h.value[2], h.value[3], c.L, c.C, c.NH, c.maxT, c.V);
    LowRank lora;
    lora.rank = h.value[8], lora.on = (uint32_t)h.value[9];
    memcpy(&lora.alpha, h.value + 10, 4), memcpy(&lora.base, h.value + 11, 8);
    lora.beside = h.value[13];
    const bool sane = lora.rank > 0 && lora.rank <= MOST_RANK && lora.on != 0 && (lora.on & ~ALL_ADAPTED) == 0 &&
                      std::isfinite(lora.alpha) && lora.alpha > 0 && lora.beside >= 0 &&
                      lora.beside < NUM_WEIGHT_FORMATS;
    if (!sane)
        runtime_failure("%s is damaged: its header says rank %d, matrices %d", file.path, h.value[8], h.value[9]);
    c.lora = lora;
    file.expect_size(adapter_file_bytes(c, version == MODEL_VERSION_FP32 ? 4 : 2));
    return version;
}

// Loads the adapters of an open file into a model of the same shape, which must be the one that
// they were trained on, as the checksum of its file says; 0: the file does not say of which.
inline void load_adapters(GPT2& model, FileReader& file, Progress* progress = nullptr) {
    GPT2Config c = model.layout.config;
    file.rewind();
    const int32_t version = read_adapter_header(file, c);
    if (!same_adapters(c.lora, model.layout.config.lora))
        runtime_failure("%s has changed while it was in use: its adapters have another shape now", file.path);
    if (c.lora.base != 0 && c.lora.base != model.layout.config.lora.base)
        runtime_failure("%s was trained on another model than that of -e: the checksums of their files differ",
                        file.path);
    read_tensors(file, version, c, NUM_TENSORS, ALL_TENSORS, [&](int tensor, int64_t layer, const float* values) {
        set_tensor(model, tensor, layer, values);
        if (progress) progress->reach(file.position);
    });
}

// Writes the contents of an adapter file, as write_model() does of a model.
template <class Get>
uint64_t write_adapters(FileWriter& file, const GPT2Config& c, int32_t version, Get get, Progress* progress = nullptr) {
    Header h;
    const int64_t sizes[] = {ADAPTER_MAGIC, version, c.maxT, c.V, c.L, c.NH, c.C, c.Vp, c.lora.rank, c.lora.on};
    for (int i = 0; i < 10; i++) h.value[i] = (int32_t)sizes[i];
    memcpy(h.value + 10, &c.lora.alpha, 4), memcpy(h.value + 11, &c.lora.base, 8);
    h.value[13] = c.lora.beside;
    file.write(h.value, sizeof(h.value));
    write_tensors(file, version, c, NUM_TENSORS, ALL_TENSORS, get, progress);
    return file.checksum.value();
}
