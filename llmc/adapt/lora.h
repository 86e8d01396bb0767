// --lora R: the model stays as it is, and adapters of rank R are trained beside matrices of its
// layers (cpu/low_rank.h; Hu et al. 2021, arXiv:2106.09685).
#pragma once
#include "llmc/adapt/trained.h"

// The bits of LowRank::on.
constexpr const char* ADAPTED_MATRICES[] = {"qkv", "attproj", "fc", "fcproj"};
constexpr uint32_t ALL_ADAPTED = 15;

// The matrices that --lora-on names, a bit for each.
inline uint32_t adapted_of(const std::string& text) {
    uint32_t on = 0;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const std::string name = text.substr(begin, end - begin);
        const uint32_t before = on;
        for (int i = 0; i < 4; i++)
            if (name == ADAPTED_MATRICES[i]) on |= 1u << i;
        if (on == before)
            usage_error(
                "--lora-on %s: '%s' is no matrix, or there twice; some of qkv, attproj, fc, fcproj are accepted", text,
                name);
        begin = end + 1;
    }
    return on;
}
inline std::string adapted_text(uint32_t on) {
    std::string text;
    for (int i = 0; i < 4; i++)
        if (on >> i & 1) text += (text.empty() ? "" : ",") + std::string(ADAPTED_MATRICES[i]);
    return text;
}
inline std::string lora_text(const LowRank& lora) {
    return format("--lora %d --lora-on %s --lora-alpha %g", lora.rank, adapted_text(lora.on), lora.alpha);
}

// The adapters that the flags ask for; alpha is twice the rank unless --lora-alpha says.
inline LowRank lora_of(const Options& o) {
    if (o.lora == 0) return {};
    return {o.lora, adapted_of(o.lora_on), (float)(o.lora_alpha > 0 ? o.lora_alpha : 2 * (double)o.lora)};
}
inline bool same_adapters(const LowRank& a, const LowRank& b) {
    return a.rank == b.rank && a.on == b.on && a.alpha == b.alpha;
}
// Only they train.
inline std::vector<uint32_t> only_adapters(const GPT2Config& c) {
    constexpr uint32_t adapters = bits_of(QKV_A, QKV_B, ATTPROJ_A, ATTPROJ_B, FC_A, FC_B, FCPROJ_A, FCPROJ_B);
    std::vector<uint32_t> trained(c.L + 1, adapters);
    trained[c.L] = 0;
    return trained;
}
