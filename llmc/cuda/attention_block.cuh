// Which rows of which head a block of attention's kernels works on.
//
// A block has ROWS rows of one head: queries, or keys. With a document mask (documents.h) a
// document is what a sequence is without: the rows of a block are those of one document, counted
// from its first position, so that no block reads another document. A block finds its document in a
// list that the host makes, the only difference between the two cases. A tile of a document's last
// few rows costs as much as a whole one, except that warps without a row do nothing.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/documents.h"

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

// The order in which the tiles of a document are started. Those with the most work should be first:
// the last queries see the most keys, the first keys are seen by the most queries.
enum TileOrder { LAST_TILE_FIRST, FIRST_TILE_FIRST };

// What a block works on: ROWS rows of one head of one document. Rows are counted from the
// document's first position.
template <int ROWS, TileOrder ORDER>
struct AttentionBlock {
    int length, first;               // rows of the document; the block's first one
    int C, stride;                   // stride: of rows of qkv
    int64_t qkv_offset, out_offset;  // of the document's head in qkv and dqkv (B,T,3C), in out and dout (B,T,C)
    int64_t row_offset;              // of the document's head in lse and D (B,NH,T)
    __device__ AttentionBlock(const DocumentTile* tiles, int T, int NH, int head_size)
        : length(T), C(NH * head_size), stride(3 * C) {
        const int h = blockIdx.x % NH;
        int b = blockIdx.x / NH, begin = 0, tile = gridDim.y - 1 - blockIdx.y;
        if (tiles) {
            const DocumentTile part = tiles[blockIdx.x / NH];
            b = part.first / T, begin = part.first % T, length = part.length, tile = part.index;
        }
        if (ORDER == FIRST_TILE_FIRST) tile = ceil_div(length, ROWS) - 1 - tile;
        first = tile * ROWS;
        const int64_t position = (int64_t)b * T + begin;
        qkv_offset = position * stride + h * head_size;
        out_offset = position * C + h * head_size;
        row_offset = ((int64_t)b * NH + h) * T + begin;
    }
    // Where the sums over these rows of the head in dqkv begin (column_sums.cuh): without documents
    // each ROWS rows of a sequence are a part.
    __device__ int64_t sums_offset(int NH, int head_size) const {
        const int64_t part = (int64_t)(blockIdx.x / NH) * gridDim.y + first / ROWS;
        return part * stride + blockIdx.x % NH * head_size;
    }
};
