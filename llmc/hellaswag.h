// HellaSwag (Zellers et al. 2019, arXiv:1905.07830): a context and four ways it could go on. The model's answer is the completion whose
// tokens have the lowest mean loss. File layout: 256 int32 header (20240522, version 1, examples, longest example in bytes), then an
// example: uint16 start marker 65535, bytes in the record, index, label, number of choices (4), then the context and each completion as a
// length followed by its tokens.
#pragma once
#include <vector>
#include "llmc/file.h"

constexpr int HELLASWAG_CHOICES = 4;

struct HellaSwagExample {
    int label = 0;
    std::vector<int> context, completions[HELLASWAG_CHOICES];
};

// Reads and checks the whole file: every token below vocab, every record whole.
inline std::vector<HellaSwagExample> hellaswag_load(const std::string& path, int64_t vocab) {
    FileReader file(path);
    Header header;
    header.read(file, 20240522, "HellaSwag");
    if (header.value[1] != 1) runtime_failure("%s has version %d of the HellaSwag layout; 1 is expected", path.c_str(), header.value[1]);
    if (header.value[2] < 1) runtime_failure("%s is damaged: its header promises %d examples", path.c_str(), header.value[2]);
    std::vector<uint16_t> body((file.size_bytes - sizeof(header.value)) / 2);
    file.read(body.data(), body.size() * 2, "the examples");
    size_t at = 0;
    std::vector<HellaSwagExample> examples;
    for (int32_t i = 0; i < header.value[2]; i++) {
        auto damaged = [&] { runtime_failure("%s is damaged or cut short within example %d of %d", path.c_str(), i, header.value[2]); };
        auto next = [&]() -> int {
            if (at >= body.size()) damaged();
            return body[at++];
        };
        const size_t begin = at;
        HellaSwagExample example;
        const int marker = next(), bytes = next();
        next();  // index
        example.label = next();
        if (marker != 65535 || next() != HELLASWAG_CHOICES || example.label >= HELLASWAG_CHOICES) damaged();
        auto read_tokens = [&](std::vector<int>& tokens) {
            tokens.resize(next());
            for (int& token : tokens)
                if ((token = next()) >= vocab) runtime_failure("%s: token %d in example %d is not in the model's vocabulary of %lld", path.c_str(), token, i, (long long)vocab);
            if (tokens.empty()) damaged();
        };
        read_tokens(example.context);
        for (auto& completion : example.completions) read_tokens(completion);
        if ((at - begin) * 2 != (size_t)bytes) damaged();
        examples.push_back(example);
    }
    if (at != body.size() || file.size_bytes % 2) runtime_failure("%s is too long: bytes follow the last example", path.c_str());
    return examples;
}
