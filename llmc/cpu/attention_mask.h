// What is left out of attention's square of queries and keys: what is above the diagonal, other
// documents (gpt2/documents.h), and what is before a window (gpt2/window.h). Whole blocks are not
// computed; in those that an edge crosses, single keys are masked:
//
//               keys   0..63  64..127  128..191  192..255
//     queries   0..63    D                                   D: DIAGONAL
//             64..127    B       D                           #: NONE, every query sees every key
//            128..191    B       #        D                  B: BAND, here of a window of 128
//            192..255            B        #         D
#pragma once
#include "llmc/cpu/device.h"
#include "llmc/cpu/vec.h"
#include "llmc/gpt2/documents.h"
#include "llmc/gpt2/heads.h"
#include "llmc/gpt2/window.h"

constexpr int64_t ATT_BLOCK = 64;  // queries, or keys, in a block

// One head of one document: its number of positions, where its first one lies in qkv, as query, key
// and value, in out (B,T,NH HS) and in lse (B,NH,T), and whether it begins or ends a group.
struct DocumentHead {
    int64_t length, q, k, v, out, lse;
    bool begins, ends;
};

// Calls f(DocumentHead) for each head of each document, the heads of a batch in parallel, or if
// `by_group` the groups, whose heads are one thread's then. starts (B,T) as in documents.h, or null
// where each sequence is one document.
template <class F>
inline void for_each_document_head(const int* starts, int64_t B, int64_t T, const Heads& heads, bool by_group, F f) {
    const int64_t together = by_group ? heads.group() : 1, pieces = heads.NH / together, HS = heads.HS;
    parallel_for(B * pieces, [&](int64_t piece) {
        const int64_t b = piece / pieces, first_head = piece % pieces * together;
        for_each_document(starts ? starts + b * T : nullptr, T, [&](int64_t first, int64_t length) {
            for (int64_t h = first_head; h < first_head + together; h++) {
                const int64_t row = b * T + first, in_qkv = row * heads.qkv_row(), kv = heads.NH + h / heads.group();
                f(DocumentHead{length, in_qkv + h * HS, in_qkv + kv * HS, in_qkv + (kv + heads.NKV) * HS,
                               row * heads.out_row() + h * HS, (b * heads.NH + h) * T + first, h == first_head,
                               h + 1 == first_head + together});
            }
        });
    });
}

// What the queries of a block see of a block of keys: all; on the diagonal the keys up to
// themselves; where a window begins in the block, `window` keys that end with themselves.
enum Mask { NONE, DIAGONAL, BAND };
// Where queries q0 to q0 + queries - 1 meet a block of keys from k0 on.
struct BlockPlace {
    int64_t q0, k0, queries, window;
    Mask mask() const { return q0 + queries - window > k0 ? BAND : k0 == q0 ? DIAGONAL : NONE; }
};
// The first block of keys that a query of the block from q0 on sees.
inline int64_t first_key_block(int64_t q0, int64_t window) {
    return std::max<int64_t>(0, q0 - window + 1) / ATT_BLOCK * ATT_BLOCK;
}
// Whether query i of a block sees key j + lane, for each lane.
template <Mask MASK>
VEC_INLINE vint seen(int64_t i, int64_t j, BlockPlace at) {
    const vint key = lane_numbers() + (int32_t)j;
    if (MASK == DIAGONAL) return key <= (int32_t)i;
    const int64_t own = at.q0 + i - at.k0;
    return (key <= (int32_t)own) & (key > (int32_t)(own - at.window));
}
