// model_table MODEL.bin | FOLDER | --shape L6C384H6T256V512
//
// Prints as JSON the shape of a model, and the name and shape of each of its tensors in model files
// and in Hugging Face's files. The headers of the trainers check MODEL.bin. FOLDER is a run's out
// dir; "file" is then the model file of its newest complete checkpoint. dev/data/model_files.py
// reads the JSON, so that the Python scripts need no list of tensors of their own.
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/gpt2/constants.h"
#include "llmc/base/json_text.h"

static GPT2Config config_of_shape(const char* shape) {
    GPT2Config config;
    if (!parse_descriptor(shape, config))
        runtime_failure(
            "a model of shape %s cannot be made (L layers, C channels, H heads, T context, V vocabulary): C must be a "
            "multiple of H, V at most %d, and all of ordinary size",
            shape, MAX_VOCAB);
    return config;
}

static std::string newest_model(const std::string& folder) {
    StateHeader header;
    const int64_t step = newest_checkpoint(folder, header);
    if (step < 0) runtime_failure("%s holds no complete checkpoint", folder);
    return model_path(folder, step);
}

static void print_tensor(int tensor, const GPT2Config& c) {
    const TensorInfo& t = TENSORS[tensor];
    const int64_t rows = dimension(t.rows, c), cols = dimension(t.cols, c);
    const bool vector = t.rows == DIM_1, conv1d = t.per_layer && !vector;  // Conv1D: (input, output)
    const long long hf_rows = t.rows == DIM_VP ? c.V : rows, hf_cols = cols;
    const std::string hf_shape = vector   ? format("%d", hf_cols)
                                 : conv1d ? format("%d, %d", hf_cols, hf_rows)
                                          : format("%d, %d", hf_rows, hf_cols);
    printf(
        "%s\n  {\"name\": \"%s\", \"layers\": %lld, \"elems\": %lld, \"hf_name\": \"%s\", \"hf_shape\": [%s], "
        "\"transposed\": %s}",
        tensor ? "," : "", t.name, (long long)tensor_layers(tensor, c), (long long)(rows * cols), t.hf_name,
        hf_shape.c_str(), conv1d ? "true" : "false");
}

int main(int argc, char** argv) {
    const bool by_shape = argc == 3 && strcmp(argv[1], "--shape") == 0;
    if (argc != 2 && !by_shape) usage_error("usage: model_table MODEL.bin | FOLDER | --shape L6C384H6T256V512");
    std::string name;
    GPT2Config c;
    int32_t version = MODEL_VERSION_FP32;
    if (by_shape) c = config_of_shape(argv[2]);
    else {
        const bool run = folder_exists(argv[1]);
        const std::string path = run ? newest_model(argv[1]) : argv[1];
        if (run) name = path.substr(path.rfind('/') + 1);
        FileReader file(path);
        version = read_model_header(file, c);
    }
    printf(
        "{\"file\": %s, \"version\": %d, \"magic\": %d, \"versions\": {\"fp32\": %d, \"bf16\": %d},\n"
        " \"maxT\": %lld, \"V\": %lld, \"Vp\": %lld, \"L\": %lld, \"NH\": %lld, \"C\": %lld, \"window\": %lld, "
        "\"layernorm_eps\": %.6g, \"parameters\": %lld, \"tensors\": [",
        json_text(name).c_str(), version, MODEL_MAGIC, MODEL_VERSION_FP32, MODEL_VERSION_BF16, (long long)c.maxT,
        (long long)c.V, (long long)c.Vp, (long long)c.L, (long long)c.NH, (long long)c.C, (long long)c.window.positions,
        LAYERNORM_EPS, (long long)parameter_count(c));
    for (int i = 0; i < NUM_TENSORS; i++) print_tensor(i, c);
    printf("]}\n");
}
