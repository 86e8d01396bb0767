// Weights in codes in naive loops; formulas: llmc/adapt/weight_codes.h. The other layers:
// reference.h.
#pragma once
#include <cmath>
#include <vector>
#include "llmc/adapt/weight_codes.h"
#include "llmc/cpu/reference.h"

namespace reference {

inline float code_level(WeightFormat format, int code) {
    return format == WEIGHTS_NF4 ? NF4_LEVELS[code] : (float)(format == WEIGHTS_INT4 ? code - 8 : code);
}
inline int get_code(const CodeMatrix& m, int64_t row, int64_t i) {
    if (m.format == WEIGHTS_INT8) return (int8_t)m.codes(row)[i];
    const int64_t group = i / 64, in_group = i % 64, byte = m.codes(row)[group * 32 + in_group % 32];
    return in_group < 32 ? byte % 16 : byte / 16;
}
inline void set_code(const CodeMatrix& m, int64_t row, int64_t i, int code) {
    if (m.format == WEIGHTS_INT8) return (void)(m.codes(row)[i] = (uint8_t)code);
    const int64_t group = i / 64, in_group = i % 64;
    uint8_t& byte = m.codes(row)[group * 32 + in_group % 32];
    byte = (uint8_t)(in_group < 32 ? byte / 16 * 16 + code : byte % 16 + code * 16);
}
inline float get_scale(const CodeMatrix& m, int64_t row, int64_t i) {
    if (m.format == WEIGHTS_INT8) return m.scales(row)[0];
    return m.format == WEIGHTS_INT4 ? (float)m.half_scales(row)[i / 32] : m.scales(row)[i / 64];
}
inline float decode_weight(const CodeMatrix& m, int64_t row, int64_t i) {
    return code_level(m.format, get_code(m, row, i)) * get_scale(m, row, i);
}

// Of each block the scale, then for each weight the code whose level is nearest.
inline void encode_weights(const CodeMatrix& m, const float* weights) {
    const int64_t block = m.format == WEIGHTS_INT8 ? m.padded_C() : m.format == WEIGHTS_INT4 ? INT4_BLOCK : NF4_BLOCK;
    for (int64_t row = 0; row < m.rows; row++)
        for (int64_t first = 0; first < m.padded_C(); first += block) {
            const auto weight = [&](int64_t i) { return i < m.C ? weights[row * m.C + i] : 0.0f; };
            float extreme = 0;
            for (int64_t i = first; i < first + block; i++)
                if (std::fabs(weight(i)) > std::fabs(extreme)) extreme = weight(i);
            const float scale = m.format == WEIGHTS_INT4   ? extreme / -8
                                : m.format == WEIGHTS_INT8 ? std::fabs(extreme) / 127
                                                           : std::fabs(extreme);
            if (m.format == WEIGHTS_INT4) m.half_scales(row)[first / block] = fp16(scale);
            else m.scales(row)[first / block] = scale;
            const int lowest = m.format == WEIGHTS_INT8 ? -127 : 0, highest = m.format == WEIGHTS_INT8 ? 127 : 15;
            for (int64_t i = first; i < first + block; i++) {
                int nearest = m.format == WEIGHTS_NF4 ? 7 : m.format == WEIGHTS_INT4 ? 8 : 0;  // the level 0
                const double w = scale == 0 ? 0 : (double)weight(i) / scale;
                for (int code = lowest; code <= highest; code++)
                    if (std::fabs(code_level(m.format, code) - w) < std::fabs(code_level(m.format, nearest) - w))
                        nearest = code;
                set_code(m, row, i, nearest);
            }
        }
}

template <class floatX>
void coded_matmul(floatX* out, const floatX* inp, const CodeMatrix& m, const floatX* bias, int64_t rows,
                  floatX* gelu_out, void* = nullptr) {
    std::vector<floatX> weights(m.rows * m.C);
    for (int64_t o = 0; o < m.rows; o++)
        for (int64_t i = 0; i < m.C; i++) weights[o * m.C + i] = decode_weight(m, o, i);
    matmul_forward(out, inp, weights.data(), bias, rows, m.C, m.rows, gelu_out);
}

template <class floatX>
void coded_encoder(floatX* out, const int* inp, const CodeMatrix& wte, const floatX* wpe, int64_t B, int64_t T,
                   int64_t first) {
    for (int64_t row = 0; row < B * T; row++)
        for (int64_t i = 0; i < wte.C; i++)
            out[row * wte.C + i] = decode_weight(wte, inp[row], i) + (float)wpe[(first + row % T) * wte.C + i];
}

template <class floatX>
void coded_classifier(float* losses, floatX* logits, const floatX* inp, const CodeMatrix& wte, const int* targets,
                      int64_t rows, int64_t V, void* = nullptr) {
    std::vector<floatX> weights(wte.rows * wte.C);
    floatX* const none = nullptr;
    for (int64_t o = 0; o < wte.rows; o++)
        for (int64_t i = 0; i < wte.C; i++) weights[o * wte.C + i] = decode_weight(wte, o, i);
    classifier(losses, none, none, logits, inp, weights.data(), targets, rows, wte.C, V, wte.rows, 0.0f, false);
}
}  // namespace reference
