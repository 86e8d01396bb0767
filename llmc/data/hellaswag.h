// HellaSwag (Zellers et al. 2019, arXiv:1905.07830): a context and four ways it could continue. The
// model's answer is the completion whose tokens have the lowest mean loss.
//
// File layout: a header of 256 int32 (20240522, version 1, number of examples, longest example in
// bytes), then one record of uint16 per example: start marker 65535, bytes in the record, index,
// label, number of choices (4), then the context and each completion, each as a length followed by
// that many tokens.
#pragma once
#include <vector>
#include "llmc/base/file.h"

constexpr int HELLASWAG_CHOICES = 4;

struct HellaSwagExample {
    int label = 0;
    std::vector<int> context, completions[HELLASWAG_CHOICES];
};

// A question's context with one of its completions, cut from the left to what a model sees at
// once: T tokens, and one more that is only predicted. The losses of the last `targets` count.
struct HellaSwagRow {
    std::vector<int> tokens;
    int64_t targets;
};

// Row r of all: question r / 4 with its completion r % 4.
inline HellaSwagRow hellaswag_row(const std::vector<HellaSwagExample>& questions, int64_t r, int64_t T) {
    const HellaSwagExample& question = questions[r / HELLASWAG_CHOICES];
    const std::vector<int>& completion = question.completions[r % HELLASWAG_CHOICES];
    std::vector<int> tokens = question.context;
    tokens.insert(tokens.end(), completion.begin(), completion.end());
    const int64_t cut = std::max<int64_t>(0, (int64_t)tokens.size() - (T + 1));
    tokens.erase(tokens.begin(), tokens.begin() + cut);
    const int64_t targets = std::min<int64_t>((int64_t)completion.size(), (int64_t)tokens.size() - 1);
    return {tokens, targets};
}

// One record of the file. `good` turns false, and stays so, at the first thing that is not as it
// should be; then what the functions return is of no use.
struct HellaSwagRecord {
    std::vector<uint16_t> values;
    size_t at = 0;
    bool good = true;

    // Reads the record at the file's position, without its marker and length.
    void read(FileReader& file) {
        uint16_t begin[2] = {};
        auto there = [&](size_t bytes) { return good = good && (size_t)(file.size_bytes - file.position) >= bytes; };
        if (there(sizeof(begin))) file.read(begin, sizeof(begin), "a record");
        good = good && begin[0] == 65535 && begin[1] % 2 == 0 && begin[1] >= sizeof(begin);
        if (good) values.resize(begin[1] / 2 - 2);
        if (there(values.size() * 2)) file.read(values.data(), values.size() * 2, "a record");
    }
    // The next value of the record.
    int next() {
        good = good && at < values.size();
        return good ? values[at++] : 0;
    }
    // A length and that many tokens.
    std::vector<int> tokens() {
        const size_t count = next();
        good = good && count > 0 && count <= values.size() - at;
        std::vector<int> list(good ? count : 0);
        for (int& token : list) token = next();
        return list;
    }
};

// The example in a record; record.good says whether it is one.
inline HellaSwagExample hellaswag_example(HellaSwagRecord& record) {
    HellaSwagExample example;
    record.next();  // index
    example.label = record.next();
    const int choices = record.next();
    example.context = record.tokens();
    for (auto& completion : example.completions) completion = record.tokens();
    record.good = record.good && record.at == record.values.size() && choices == HELLASWAG_CHOICES &&
                  example.label < HELLASWAG_CHOICES;
    return example;
}

// Reads all examples of a file. Exit 1 if a record is damaged or has a token that is not below
// vocab.
inline std::vector<HellaSwagExample> hellaswag_load(const std::string& path, int64_t vocab) {
    FileReader file(path);
    Header header;
    header.read(file, 20240522, "HellaSwag", "; dev/data/hellaswag.py makes one of the .jsonl file");
    const int32_t count = header.value[2];
    if (header.value[1] != 1)
        runtime_failure("%s has version %d of the HellaSwag layout; 1 is expected", path, header.value[1]);
    if (count < 1) runtime_failure("%s is damaged: its header promises %d examples", path, count);
    std::vector<HellaSwagExample> examples;
    for (int32_t i = 0; i < count; i++) {
        HellaSwagRecord record;
        record.read(file);
        examples.push_back(hellaswag_example(record));
        if (!record.good) runtime_failure("%s is damaged or cut short within example %d of %d", path, i, count);
        auto check = [&](const std::vector<int>& tokens) {
            for (int token : tokens)
                if (token >= vocab)
                    runtime_failure("%s: token %d in example %d is not in the model's vocabulary of %d", path, token, i,
                                    vocab);
        };
        check(examples.back().context);
        for (const auto& completion : examples.back().completions) check(completion);
    }
    if (file.position != file.size_bytes) runtime_failure("%s is too long: bytes follow the last example", path);
    return examples;
}
