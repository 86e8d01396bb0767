// Which rows of which head a block of attention's kernels works on, and in which order the blocks
// start.
//
// A block has ROWS rows of one head: queries, or keys. All blocks of a head read the same keys and
// values (those for dk and dv the same queries and gradients), so they should run while these are
// in the second-level cache; and the blocks with the most work should start first, so that short
// ones fill the gaps at the end. Hence groups of heads: as many as fit the cache, one group after
// the other, and within a group first the longest tile of every head, then the next longest:
//
//     groups of 2 heads, 3 tiles       h0 t2  h1 t2  h0 t1  h1 t1  h0 t0  h1 t0  h2 t2  h3 t2  ...
//
// With a document mask (documents.h) a document is what a sequence is without: the rows of a block
// are those of one document, counted from its first position, so that no block reads another
// document. A block finds its document in a list that the host makes, longest first; a document is
// short, so heads need no groups. A tile of a document's last few rows costs as much as a whole
// one, except that warps without a row do nothing.
//
// Where heads of queries share keys and values (llmc/gpt2/heads.h), the rows of the kernel for dk
// and dv are those of one head of keys, and it walks over the queries of all heads that share them,
// one after the other: so their sum has one order.
//
// With a window (llmc/gpt2/window.h) a query sees `window` keys that end with its own. Tiles that
// no row of a block sees are neither loaded nor counted in its walk; in those that a window begins
// in, keys before it are masked.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/documents.h"
#include "llmc/gpt2/window.h"

// The documents of a batch in tiles, on the device (cut_documents in documents.h); without a
// document mask tiles is null, and each sequence is one document.
struct DocumentTiles {
    const DocumentTile* tiles = nullptr;
    int64_t count = 0;
};
inline dim3 attention_grid(int64_t B, int64_t T, int64_t NH, int64_t rows, DocumentTiles documents) {
    if (documents.tiles) return dim3((unsigned)(documents.count * NH));
    return dim3((unsigned)(B * NH), (unsigned)ceil_div(T, rows));
}

// The heads of a group, of `heads` = B NH: at most so many that what their blocks share, two
// matrices of T rows of row_bytes for each, takes a quarter of the second-level cache. A quarter,
// because two groups are in work where one follows the other, and because each half of an A100's
// cache keeps the data that its own multiprocessors read ("NVIDIA A100 Tensor Core GPU
// Architecture", 2020, section on the L2 cache). Groups are of about one size.
inline int attention_group(int64_t heads, int64_t T, int64_t row_bytes, int64_t cache_bytes) {
    const int64_t fit = cache_bytes / 4 / (2 * T * row_bytes), most = fit > 1 ? fit : 1;
    return (int)ceil_div(heads, ceil_div(heads, most));
}
// The head (of B NH) and the tile that the block of this number works on, the longest tile being 0.
// Blocks start in the order of their numbers.
struct AttentionPlace {
    int head, tile;
};
__host__ __device__ inline AttentionPlace attention_place(int block, int heads, int tiles, int group) {
    const int first_head = block / (group * tiles) * group, within = block - first_head * tiles;
    const int in_group = heads - first_head < group ? heads - first_head : group;
    return {first_head + within % in_group, within / in_group};
}

// What tells a kernel which blocks it has: the tiles of documents, or if that is null the heads of
// a group; how many keys a query sees at most; and how many heads of queries share one of keys,
// with the channels of all keys of a row, which are here so that no register need hold them.
constexpr int ALL_KEYS = 1 << 30;
struct AttentionOrder {
    const DocumentTile* documents;
    int group, window, sharing, kv_channels;
};
// heads: of the grid, queries' or keys', NH or NKV; elem_bytes: of an element of qkv.
inline AttentionOrder attention_order(int64_t B, int64_t T, int64_t C, int64_t NH, int64_t NKV, int64_t heads,
                                      int64_t elem_bytes, DocumentTiles documents, int64_t window) {
    const int group = attention_group(B * heads, T, C / heads * elem_bytes, device_attribute(cudaDevAttrL2CacheSize));
    return {documents.tiles, group, window > 0 ? (int)window : ALL_KEYS, (int)(NH / NKV), (int)(C / NH * NKV)};
}
// The first key that a query sees.
__device__ inline int first_key_of(int query, int window) { return query >= window ? query - window + 1 : 0; }

// The tiles with the most work: the last queries see the most keys, the first keys are seen by the
// most queries.
enum TileOrder { LAST_TILE_FIRST, FIRST_TILE_FIRST };

// What a block works on: ROWS rows of one head of one document. Rows are counted from the
// document's first position. GROUPED: heads of queries share keys; the rows of a block may be keys
// of such a head, and offsets of queries are then those of the first head that shares them.
enum BlockRows { QUERY_ROWS, KEY_ROWS };
template <int ROWS, TileOrder ORDER, BlockRows ARE = QUERY_ROWS, bool GROUPED = false>
struct AttentionBlock {
    int length, first;               // rows of the document; the block's first one
    int C, stride;                   // stride: of rows of qkv
    int64_t qkv_offset, out_offset;  // of the document's head in qkv and dqkv (B,T,stride), in out and dout (B,T,C)
    int64_t row_offset;              // of the document's head in lse and delta (B,NH,T)
    int to_keys, to_values;          // from its queries to its keys and its values in qkv
    __device__ AttentionBlock(AttentionOrder order, int T, int NH, int head_size) : length(T), C(NH * head_size) {
        const int kv_channels = GROUPED ? order.kv_channels : C, sharing = GROUPED ? order.sharing : 1;
        const int heads = ARE == KEY_ROWS ? NH / sharing : NH;
        int b, begin = 0, h, tile;
        if (order.documents) {
            const DocumentTile part = order.documents[blockIdx.x / heads];
            h = blockIdx.x % heads, b = part.first / T, begin = part.first % T, length = part.length, tile = part.index;
            if (ORDER == FIRST_TILE_FIRST) tile = ceil_div(length, ROWS) - 1 - tile;
        } else {
            const AttentionPlace place =
                attention_place(blockIdx.y * gridDim.x + blockIdx.x, gridDim.x, gridDim.y, order.group);
            h = place.head % heads, b = place.head / heads;
            tile = ORDER == FIRST_TILE_FIRST ? place.tile : gridDim.y - 1 - place.tile;
        }
        stride = C + 2 * kv_channels;
        if (ARE == KEY_ROWS) h *= sharing;
        to_keys = C + (h / sharing - h) * head_size, to_values = to_keys + kv_channels;
        first = tile * ROWS;
        const int64_t position = (int64_t)b * T + begin;
        qkv_offset = position * stride + h * head_size;
        out_offset = position * C + h * head_size;
        row_offset = ((int64_t)b * NH + h) * T + begin;
    }
    // Where the sums over these rows of the head in dqkv begin (column_sums.cuh): without documents
    // each ROWS rows of a sequence are a part.
    __device__ int64_t sums_offset(int NH, int head_size) const {
        const int head = (int)(row_offset / length);
        const int64_t part = (int64_t)(head / NH) * gridDim.y + first / ROWS;
        return part * stride + head % NH * head_size;
    }
};
