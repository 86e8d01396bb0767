// The shape of a GPT-2 model, and the names under which shapes are known.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/check.h"
#include "llmc/base/integer_math.h"
#include "llmc/gpt2/window.h"

// Adapters of low rank beside matrices of the layers (--lora): which, of which rank.
struct LowRank {
    int64_t rank = 0;   // 0: there are none
    uint32_t on = 0;    // which: 1 qkv, 2 attproj, 4 fc, 8 fcproj
    float alpha = 0;    // what an adapter adds is multiplied by alpha / rank
    uint64_t base = 0;  // a checksum of the model that it was trained on, 0: unknown
    int beside = 0;     // in which format that model's matrices were then (WeightFormat), 0: numbers

    float scale() const { return alpha / (float)rank; }
};

struct GPT2Config {
    int64_t maxT = 1024;            // longest sequence (context)
    int64_t V = 50257, Vp = 50304;  // vocabulary, and the same padded to a multiple of 128
    int64_t L = 12, NH = 12, C = 768;
    AttentionWindow window = {};
    // Which tensors train, a bit for each, of every layer and then of what is outside the layers;
    // empty: all do.
    std::vector<uint32_t> trained = {};
    LowRank lora = {};
};

constexpr int64_t MAX_VOCAB = 65536;  // of a GPT-2: its tokens have 16 bits

inline int64_t padded_vocab(int64_t V) { return round_up(V, 128); }

// Whether a model of V tokens fits a vocabulary of `tokens`: V is as large, or counts its padding,
// too.
inline bool is_vocabulary_of(int64_t tokens, int64_t V) { return tokens <= V && V <= padded_vocab(tokens); }

struct NamedShape {
    const char* name;
    int64_t C, L, NH, maxT;
};
constexpr NamedShape NAMED_SHAPES[] = {
    {"d6", 384, 6, 6, 1024},
    {"d12", 768, 12, 12, 1024},
    {"d24", 1024, 24, 16, 1024},
    {"d36", 1280, 36, 20, 1024},
    {"d48", 1600, 48, 25, 1024},
    {"d60", 1920, 60, 30, 1024},
    {"d72", 2880, 72, 30, 1024},
    {"d84", 3456, 84, 36, 1024},
    {"gpt3:c384", 384, 6, 6, 2048},
    {"gpt3:c768", 768, 12, 12, 2048},
    {"gpt3:c1024", 1024, 24, 16, 2048},
    {"gpt3:c1536", 1536, 24, 16, 2048},
    {"gpt3:c2048", 2048, 24, 16, 2048},
    {"gpt3:c2560", 2560, 32, 32, 2048},
    {"gpt3:c4096", 4096, 32, 32, 2048},
    {"gpt3:c5120", 5120, 40, 40, 2048},
    {"gpt3:c12288", 12288, 96, 96, 2048},
};

inline std::string accepted_models() {
    std::string list =
        "a file that ends in .bin (dev/data/import_hf.py makes one of a model of Hugging Face), a folder of "
        "checkpoints, one of";
    for (const NamedShape& shape : NAMED_SHAPES) list += std::string(" ") + shape.name;
    return list + ", or sizes such as L6C384H6 or L6C384H6T256V512 (C a multiple of H)";
}

// The shape that a descriptor such as d12, gpt2:d12, gpt3:c768 or L6C384H6T256V512 names; false if
// text is no descriptor. Without V the shape has the default vocabulary.
inline bool parse_descriptor(const std::string& text, GPT2Config& config, int64_t default_V = GPT2Config().V) {
    config = {};
    config.V = default_V, config.Vp = padded_vocab(default_V);
    const std::string name = text.rfind("gpt2:d", 0) == 0 ? text.substr(5) : text;
    for (const NamedShape& shape : NAMED_SHAPES)
        if (name == shape.name) {
            config.C = shape.C, config.L = shape.L, config.NH = shape.NH, config.maxT = shape.maxT;
            return true;
        }
    struct Size {
        char letter;
        int64_t* value;
        int64_t highest;
        bool given;
    };
    Size sizes[] = {{'L', &config.L, 1000, false},
                    {'C', &config.C, 1 << 16, false},
                    {'H', &config.NH, 1 << 16, false},
                    {'T', &config.maxT, 1 << 20, false},
                    {'V', &config.V, MAX_VOCAB, false}};
    bool good = !text.empty();
    for (const char* p = text.c_str(); good && *p;) {
        good = false;
        for (Size& size : sizes) {
            if (*p != size.letter || size.given || p[1] < '1' || p[1] > '9') continue;
            char* end;
            *size.value = strtoll(p + 1, &end, 10);
            good = *size.value <= size.highest && end - p < 10;
            size.given = true;
            p = end;
            break;
        }
    }
    good = good && sizes[0].given && sizes[1].given && sizes[2].given && config.C % config.NH == 0;
    config.Vp = padded_vocab(config.V);
    return good;
}

// The shape that a descriptor names; exit 2 with the list of accepted models if text is none.
inline GPT2Config config_from_descriptor(const std::string& text, int64_t default_V = GPT2Config().V) {
    GPT2Config config;
    if (!parse_descriptor(text, config, default_V))
        usage_error("-e %s is no model; accepted: %s", text, accepted_models());
    return config;
}
