// Weights in codes in naive loops; formulas: llmc/adapt/weight_codes.h. The other layers:
// reference.h.
#pragma once
#include <cmath>
#include <vector>
#include "llmc/adapt/weight_codes.h"
#include "llmc/cpu/reference_low_rank.h"
#include "llmc/cpu/weight_codes.h"

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
    if (m.format == WEIGHTS_INT4) return (float)m.half_scales(row)[i / 32];
    return std::fma(SCALE_VALUES[m.scale_codes(row)[i / 64]], *m.group(row, i / 64), *m.mean());
}
inline float decode_weight(const CodeMatrix& m, int64_t row, int64_t i) {
    return code_level(m.format, get_code(m, row, i)) * get_scale(m, row, i);
}

// The codes of nf4's scales: of 256 the nearest of all values.
inline void encode_nf4_scales(const CodeMatrix& m, const std::vector<float>& scales) {
    double mean = 0;
    for (float scale : scales) mean += scale / (double)scales.size();
    *m.mean() = (float)mean;
    for (size_t first = 0; first < scales.size(); first += 256) {
        const size_t end = std::min(scales.size(), first + 256);
        float group = 0;
        for (size_t i = first; i < end; i++) group = std::max(group, std::fabs(scales[i] - *m.mean()));
        m.mean()[1 + first / 256] = group;
        for (size_t i = first; i < end; i++) {
            const double x = group == 0 ? 0 : (scales[i] - *m.mean()) / (double)group;
            int nearest = 127;
            for (int code = 0; code < 256; code++)
                if (std::fabs(SCALE_VALUES[code] - x) < std::fabs(SCALE_VALUES[nearest] - x)) nearest = code;
            m.scale_codes(0)[i] = (uint8_t)nearest;
        }
    }
}

// Of each block the scale, then for each weight the code whose level is nearest.
inline void encode_weights(const CodeMatrix& m, const float* weights) {
    std::vector<float> nf4_scales;
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
            else if (m.format == WEIGHTS_NF4) nf4_scales.push_back(scale);
            else m.scales(row)[0] = scale;
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
    if (m.format == WEIGHTS_NF4) encode_nf4_scales(m, nf4_scales);
}

template <class floatX>
std::vector<floatX> decoded(const CodeMatrix& m) {
    std::vector<floatX> weights(m.rows * m.C);
    for (int64_t o = 0; o < m.rows; o++)
        for (int64_t i = 0; i < m.C; i++) weights[o * m.C + i] = decode_weight(m, o, i);
    return weights;
}
template <class floatX>
void coded_matmul(floatX* out, const floatX* inp, const CodeMatrix& m, const floatX* bias, int64_t rows,
                  floatX* gelu_out, void* = nullptr, bool = false) {
    matmul_forward(out, inp, decoded<floatX>(m).data(), bias, rows, m.C, m.rows, gelu_out);
}
template <class floatX>
void coded_backward(floatX* dinp, const floatX* dout, const CodeMatrix& m, int64_t rows, void* = nullptr,
                    const floatX* pre_gelu = nullptr) {
    floatX* const none = nullptr;
    matmul_backward(dinp, none, none, dout, none, decoded<floatX>(m).data(), rows, m.C, m.rows, false, pre_gelu);
}
template <class floatX>
void low_rank_forward(floatX* out, const floatX* inp, const InStrips<floatX>& weight, const floatX* bias,
                      const floatX* A, const floatX* B, floatX* low, int64_t rows, int64_t C, int64_t OC, int64_t R,
                      float scale, floatX* gelu_out = nullptr) {
    low_rank_forward(out, inp, (const floatX*)decoded<floatX>(weight.codes).data(), bias, A, B, low, rows, C, OC, R,
                     scale, gelu_out);
}
template <class floatX, class floatG>
void low_rank_backward(floatX* dinp, floatG* dA, floatG* dB, const floatX* dout, const floatX* inp,
                       const InStrips<floatX>& weight, const floatX* A, const floatX* B, floatX* low, int64_t rows,
                       int64_t C, int64_t OC, int64_t R, float scale, bool add, const floatX* pre_gelu = nullptr) {
    low_rank_backward(dinp, dA, dB, dout, inp, (const floatX*)decoded<floatX>(weight.codes).data(), A, B, low, rows, C,
                      OC, R, scale, add, pre_gelu);
}

template <class floatX>
void coded_encoder(floatX* out, const int* inp, const CodeMatrix& wte, const floatX* wpe, int64_t B, int64_t T,
                   int64_t first) {
    for (int64_t row = 0; row < B * T; row++)
        for (int64_t i = 0; i < wte.C; i++)
            out[row * wte.C + i] = decode_weight(wte, inp[row], i) + (float)wpe[(first + row % T) * wte.C + i];
}

template <class floatX>
void coded_classifier(float* losses, floatX* dinp, floatX* logits, const floatX* inp, const CodeMatrix& wte,
                      const int* targets, int64_t rows, int64_t V, float dloss, void* = nullptr,
                      const Teacher<floatX>& teacher = {}) {
    floatX* const none = nullptr;
    classifier(losses, dinp, none, logits, inp, decoded<floatX>(wte).data(), targets, rows, wte.C, V, wte.rows, dloss,
               false, nullptr, teacher);
}
}  // namespace reference
