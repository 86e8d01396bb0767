// Model files and checkpoints of models after GPT-2.
//
// A model file: a header of 256 int32 (20261130; version, 3 for fp32 and 5 for bf16; then the sizes
// and switches of FIELDS, real numbers by their bits), then the tensors in the order of model.h,
// each over all layers before the next. The first number is another than that of GPT-2's files, so
// that each family refuses the other's.
//
// The checkpoint of step n is model_n.bin, state_n.bin (what a run needs to go on with the same
// bits: m, v, master, and where it was in its data) and, last, an empty DONE_n. Each file is whole
// or absent (base/file.h), and the checksums of both are in the state file.
#pragma once
#include "dev/modern/model.h"
#include "llmc/base/file.h"

namespace modern {

constexpr int32_t MODEL_MAGIC = 20261130, STATE_MAGIC = 20261131, STATE_VERSION = 1;
constexpr int32_t VERSION_FP32 = 3, VERSION_BF16 = 5;

// Calls f(name, number) for each size and switch, from header value 2 on.
template <class C, class F>
void for_each_field(C& c, F f) {
    f("maxT", c.maxT), f("V", c.V), f("L", c.L), f("NH", c.NH), f("C", c.C), f("Vp", c.Vp), f("NKV", c.NKV);
    f("HS", c.HS), f("F", c.F), f("mlp", c.mlp), f("norm", c.norm), f("positions", c.positions);
    f("qk_norm", c.qk_norm), f("tied", c.tied), f("softcap", c.softcap), f("theta", c.theta), f("eps", c.eps);
    f("value_residual", c.value_residual);  // 0 in older files
}
struct FieldReader {
    const int32_t* from;
    void operator()(const char*, int64_t& whole) { whole = *from++; }
    void operator()(const char*, float& real) { memcpy(&real, from++, 4); }
};
struct FieldWriter {
    int32_t* to;
    void operator()(const char*, int64_t whole) { *to++ = (int32_t)whole; }
    void operator()(const char*, float real) { memcpy(to++, &real, 4); }
};
inline Header header_of(const Config& c, bool in_bf16) {
    Header h;
    h.value[0] = MODEL_MAGIC, h.value[1] = in_bf16 ? VERSION_BF16 : VERSION_FP32;
    FieldWriter writer{h.value + 2};
    for_each_field(c, std::ref(writer));
    return h;
}

// The config of an open model file, and whether its weights are bf16. Exit 1 if it makes no sense.
inline Config read_model_header(FileReader& file, bool& in_bf16) {
    Header h;
    h.read(file, MODEL_MAGIC, "modern model",
           "; GPT-2's are loaded by train_gpt2_cpu, and dev/data/import_hf.py makes one of a Llama or Qwen3");
    if (h.value[1] != VERSION_FP32 && h.value[1] != VERSION_BF16)
        runtime_failure("%s has version %d of the model layout; 3 (fp32) and 5 (bf16) are accepted", file.path,
                        h.value[1]);
    Config c;
    FieldReader reader{h.value + 2};
    for_each_field(c, std::ref(reader));
    const std::string problem = problem_of(c);
    if (!problem.empty()) runtime_failure("%s is damaged: by its header %s", file.path, problem);
    in_bf16 = h.value[1] == VERSION_BF16;
    file.expect_size((int64_t)sizeof(Header) + model_of(c, 1, 1, false).weights * (in_bf16 ? 2 : 4));
    return c;
}
// "wte", "fcw of layer 3".
inline std::string tensor_text(int tensor, const Config& c, int64_t l) {
    const TensorShape shape = shape_of(tensor, c);
    return shape.layers > 1 ? format("%s of layer %d", shape.name, l) : shape.name;
}
template <class T>
bool all_finite(const T* values, int64_t n) {
    return std::all_of(values, values + n, [](T value) { return std::isfinite((float)value); });
}

// Loads the weights of an open model file, whose header has been read.
template <class floatX>
void load_weights(Model& model, FileReader& file, bool file_in_bf16) {
    std::vector<float> values;
    std::vector<bf16> halves;
    for (int i = 0; i < TENSORS; i++) {
        const TensorShape shape = shape_of(i, model.config);
        for (int64_t l = 0; l < shape.layers && shape.elems() > 0; l++) {
            values.resize(shape.elems()), halves.resize(file_in_bf16 ? shape.elems() : 0);
            if (file_in_bf16) {
                file.read(halves.data(), 2 * halves.size(), shape.name);
                copy_values(values.data(), halves.data(), values.size());
            } else {
                file.read(values.data(), 4 * values.size(), shape.name);
            }
            if (!all_finite(values.data(), values.size()))
                runtime_failure("%s is damaged: %s has values that are not finite", file.path,
                                tensor_text(i, model.config, l));
            set_tensor<floatX>(model, i, l, values.data());
        }
    }
}
// Writes a model file; returns its checksum.
template <class floatX>
uint64_t save_model(const Model& model, const std::string& path) {
    FileWriter file(path);
    const Header h = header_of(model.config, sizeof(floatX) == 2);
    file.write(h.value, sizeof(h.value));
    for (int i = 0; i < TENSORS; i++) {
        const TensorShape shape = shape_of(i, model.config);
        for (int64_t l = 0; l < shape.layers; l++) {
            const floatX* values = model.param<floatX>(i, l);
            if (!all_finite(values, shape.elems()))
                file.refuse(tensor_text(i, model.config, l) + " has values that are not finite");
            file.write(values, shape.elems() * sizeof(floatX));
        }
    }
    file.commit();
    return file.checksum.value();
}

// Where a run was, and what must be the same when it goes on. Its weights are those of the model
// file with this checksum.
struct Place {
    int64_t step, updates, weights, in_bf16, B, T, micro_steps, seed, shuffle;
    uint64_t data, model_checksum;
    int64_t optimizer;  // ADAMW in older files
};
struct Checkpoint {
    std::string model, state, done;
};
inline Checkpoint checkpoint_of(const std::string& folder, int64_t step) {
    const auto name = [&](const char* begin, const char* end) {
        return format("%s/%s_%08d%s", folder, begin, step, end);
    };
    return {name("model", ".bin"), name("state", ".bin"), name("DONE", "")};
}
// The newest step whose checkpoint is complete, -1 if there is none.
inline int64_t newest_checkpoint(const std::string& folder) {
    int64_t newest = -1, step;
    for (const std::string& name : list_folder(folder))
        if (name.rfind("DONE_", 0) == 0 && parse_whole(name.substr(5), step)) newest = std::max(newest, step);
    return newest;
}
// Calls f(memory) for each state that a model has.
template <class F>
void for_each_state(const Model& model, F f) {
    f(model.m), f(model.v);
    if (model.master) f(model.master);
}
template <class floatX>
void save_checkpoint(const Model& model, const std::string& folder, Place place) {
    const Checkpoint to = checkpoint_of(folder, place.step);
    place.model_checksum = save_model<floatX>(model, to.model);
    FileWriter file(to.state);
    Header h;
    h.value[0] = STATE_MAGIC, h.value[1] = STATE_VERSION;
    memcpy(h.value + 2, &place, sizeof(place));
    file.write(h.value, sizeof(h.value));
    for_each_state(model, [&](const float* values) { file.write(values, model.weights * 4); });
    const uint64_t checksum = file.checksum.value();
    file.write(&checksum, sizeof(checksum));
    file.commit();
    FileWriter(to.done).commit();
}
// The place of a checkpoint, whose state file is then open behind its header.
inline Place read_place(FileReader& state) {
    Header h;
    Place place;
    h.read(state, STATE_MAGIC, "state");
    if (h.value[1] != STATE_VERSION)
        runtime_failure("%s has version %d of the state layout; %d is expected", state.path, h.value[1], STATE_VERSION);
    memcpy(&place, h.value + 2, sizeof(place));
    if (place.weights < 0 || place.weights > (int64_t)1 << 40)
        runtime_failure("%s is damaged: its header promises %d weights", state.path, place.weights);
    if (place.optimizer != ADAMW && place.optimizer != MUON)
        runtime_failure("%s is damaged: its header has an optimizer of number %d", state.path, place.optimizer);
    state.expect_size((int64_t)sizeof(Header) + place.weights * 4 * (place.in_bf16 ? 3 : 2) + 8);
    return place;
}
// Loads what follows the place; exit 1 if a checksum is not as it was written.
inline void load_state(Model& model, FileReader& state, const Place& place, const FileReader& model_file) {
    for_each_state(model, [&](float* values) { state.read(values, model.weights * 4, "the optimizer's state"); });
    const uint64_t found = state.checksum.value();
    uint64_t written = 0;
    state.read(&written, sizeof(written), "the checksum");
    if (found != written) runtime_failure("%s is damaged: its checksum is not what it was when written", state.path);
    if (model_file.checksum.value() != place.model_checksum)
        runtime_failure("%s is damaged, or not the model that %s was written with: its checksum is another",
                        model_file.path, state.path);
    model.updates = place.updates;
}

}  // namespace modern
