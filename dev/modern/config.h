// The shape of a model after GPT-2, its switches, and the names under which shapes are known. Each
// switch is one change of the block; all together are the block of today, none is GPT-2's without
// its biases.
#pragma once
#include <cmath>
#include <cstring>
#include "dev/flags.h"
#include "llmc/base/integer_math.h"

namespace modern {

// What stands between the two products of the MLP; what a norm is; how positions are told.
enum Mlp { SWIGLU, RELU2, GELU, MLPS };
enum Norm { RMS, LAYER, NORMS };
enum Positions { ROTARY, LEARNED, POSITIONS };
constexpr const char *MLP_NAMES[] = {"swiglu", "relu2", "gelu"}, *NORM_NAMES[] = {"rms", "layer"},
                     *POSITION_NAMES[] = {"rotary", "learned"};

struct Config {
    int64_t maxT = 1024, V = 50257, Vp = 50304;
    int64_t L = 0, C = 0;             // layers, channels of the residual stream
    int64_t NH = 0, NKV = 0, HS = 0;  // heads of queries, of keys and of values, channels of each
    int64_t F = 0;                    // hidden channels of the MLP
    int64_t mlp = SWIGLU, norm = RMS, positions = ROTARY;
    int64_t qk_norm = 0, tied = 1;
    float softcap = 0, theta = 10000, eps = 1e-5f;  // softcap 0: none
    int64_t value_residual = 0;                     // the values of later layers are mixed with the first's

    int64_t qkv_row() const { return (NH + 2 * NKV) * HS; }
    int64_t fc_row() const { return mlp == SWIGLU ? 2 * F : F; }
    bool operator==(const Config& o) const { return memcmp(this, &o, sizeof(Config)) == 0; }
};
constexpr int64_t MOST_V = 1 << 20;

// Says what makes no sense, else "".
inline std::string problem_of(const Config& c) {
    const auto within = [](int64_t n, int64_t most) { return n > 0 && n <= most; };
    if (!within(c.maxT, 1 << 20) || !within(c.V, MOST_V) || c.Vp != round_up(c.V, (int64_t)128) || !within(c.L, 1000) ||
        !within(c.C, 1 << 16) || !within(c.NH, 1024) || !within(c.NKV, c.NH) || !within(c.HS, 1024) ||
        !within(c.F, 1 << 20))
        return "a size is out of range";
    if (c.NH % c.NKV != 0) return format("%d heads of queries do not divide among %d of keys", c.NH, c.NKV);
    if (c.HS % 2 != 0 && c.positions == ROTARY) return format("heads of %d channels have no two halves to turn", c.HS);
    const bool switches = c.mlp >= 0 && c.mlp < MLPS && c.norm >= 0 && c.norm < NORMS && c.positions >= 0 &&
                          c.positions < POSITIONS && (c.qk_norm | 1) == 1 && (c.tied | 1) == 1 &&
                          (c.value_residual | 1) == 1;
    if (!switches) return "a switch is unknown";
    if (!(c.softcap >= 0 && c.softcap <= 1000 && c.theta >= 1 && c.theta <= 1e9f && c.eps > 0 && c.eps <= 0.1f))
        return "a constant is out of range";
    if (c.norm == LAYER && c.eps != 1e-5f) return "the layer norm has an eps of 1e-5";
    return "";
}

struct NamedShape {
    const char *name, *sizes;
    bool tied, qk_norm;
    float theta, eps;
};
constexpr NamedShape NAMED_SHAPES[] = {
    {"smollm2-135m", "L30C576H9K3F1536T8192V49152", true, false, 1e5f, 1e-5f},
    {"tinyllama-1.1b", "L22C2048H32K4F5632T2048V32000", false, false, 1e4f, 1e-5f},
    {"qwen3-0.6b", "L28C1024H16K8D128F3072T40960V151936", true, true, 1e6f, 1e-6f},
};
inline std::string accepted_shapes() {
    std::string names;
    for (const NamedShape& shape : NAMED_SHAPES) names += std::string(shape.name) + ", ";
    return "a file that ends in .bin, " + names +
           "or sizes such as L4C96H6K2F256T128V50257 (L, C and H are needed; K: heads of keys, D: channels of a head)";
}

// Sizes by letters, as in L4C96H6K2: L layers, C channels, H heads, K heads of keys, D channels of
// a head, F hidden channels, T context, V vocabulary. False if the text is none.
inline bool parse_sizes(const std::string& text, Config& c) {
    c.L = c.C = c.NH = c.NKV = c.HS = c.F = 0;
    const std::map<char, int64_t*> letters = {{'L', &c.L},  {'C', &c.C}, {'H', &c.NH},   {'K', &c.NKV},
                                              {'D', &c.HS}, {'F', &c.F}, {'T', &c.maxT}, {'V', &c.V}};
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = std::min(text.find_first_not_of("0123456789", at + 1), text.size());
        const auto place = letters.find(text[at]);
        if (place == letters.end() || end == at + 1 || end > at + 10) return false;
        *place->second = std::stoll(text.substr(at + 1, end - at - 1));
    }
    if (c.L < 1 || c.C < 1 || c.NH < 1) return false;
    if (c.NKV == 0) c.NKV = c.NH;
    if (c.HS == 0) c.HS = c.C / c.NH;
    c.Vp = round_up(c.V, (int64_t)128);
    return true;
}
// The shape that -e names. Without F, the MLP has as many weights as GPT-2's.
inline Config config_of(const std::string& text) {
    Config c;
    std::string sizes = text;
    for (const NamedShape& shape : NAMED_SHAPES)
        if (text == shape.name)
            sizes = shape.sizes, c.tied = shape.tied, c.qk_norm = shape.qk_norm, c.theta = shape.theta,
            c.eps = shape.eps;
    if (!parse_sizes(sizes, c)) usage_error("-e \"%s\" is no model: %s are accepted", text, accepted_shapes());
    return c;
}
inline void settle_hidden(Config& c) {
    if (c.F == 0) c.F = c.mlp == SWIGLU ? round_up(8 * c.C / 3, (int64_t)16) : 4 * c.C;
}

inline std::string describe(const Config& c) {
    return format("L %d, C %d, heads %d of %d, of keys %d, F %d, T %d, V %d: %s, %s norm%s, %s positions, %s head%s%s",
                  c.L, c.C, c.NH, c.HS, c.NKV, c.F, c.maxT, c.V, MLP_NAMES[c.mlp], NORM_NAMES[c.norm],
                  c.qk_norm ? ", qk norm" : "", POSITION_NAMES[c.positions], c.tied ? "tied" : "untied",
                  c.softcap > 0 ? format(", soft cap %g", c.softcap) : "", c.value_residual ? ", value residuals" : "");
}

}  // namespace modern
