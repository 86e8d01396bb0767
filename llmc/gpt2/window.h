// Local attention, for --window W: the query at position t sees the W keys t-W+1 to t, not all t+1.
//
//     W 3        keys  0 1 2 3 4 5
//     query 0          #
//           1          # #
//           2          # # #
//           3            # # #           a band along the diagonal
//           4              # # #
//           5                # # #
//
// A layer of them moves information W-1 positions at most, L layers L (W-1): so what is further
// away is seen through others (Beltagy et al. 2020, Longformer, arXiv:2004.05150; Jiang et al.
// 2023, Mistral, arXiv:2310.06825, whose W counts as here). With `alternate` only layers 1, 3, 5,
// ... are local, and 0, 2, 4, ... see all: "alternating dense and locally banded", in this order as
// in GPT-Neo (Brown et al. 2020, GPT-3, arXiv:2005.14165, section 2.1, after Child et al. 2019,
// arXiv:1904.10509).
//
// A mask of documents (documents.h) holds as well: the first key is max(start(t), t-W+1).
#pragma once
#include <cstdint>

constexpr int64_t MOST_WINDOW = 1 << 20;

struct AttentionWindow {
    int64_t positions = 0;  // W; 0: no window
    bool alternate = false;
    // W of a layer; 0: it sees all positions.
    int64_t of_layer(int64_t layer) const { return alternate && layer % 2 == 0 ? 0 : positions; }
    bool operator==(const AttentionWindow& o) const { return positions == o.positions && alternate == o.alternate; }
    bool operator!=(const AttentionWindow& o) const { return !(*this == o); }
};

// Twice the mean number of keys that a query sees in sequences of T: T, or 2W - W^2/T. Attention
// takes T of these FLOPs without a window, and so many with one.
inline double twice_seen(double T, double window) { return window > 0 && window < T ? window * (2 - window / T) : T; }
