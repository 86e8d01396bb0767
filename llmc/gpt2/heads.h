// Heads of attention in a row of qkv: NH of queries, then NKV of keys, then NKV of values, of HS
// channels each. Where NKV is less than NH (grouped queries; Ainslie et al. 2023,
// arXiv:2305.13245), so many heads of queries as a group has, one after the other, share a head of
// keys and values. GPT-2 has as many of each.
#pragma once
#include <cstdint>

struct Heads {
    int64_t NH, NKV, HS;
    int64_t group() const { return NH / NKV; }
    int64_t out_row() const { return NH * HS; }
    int64_t qkv_row() const { return (NH + 2 * NKV) * HS; }
};
inline Heads heads_of(int64_t C, int64_t NH, int64_t NKV) { return {NH, NKV > 0 ? NKV : NH, C / NH}; }
