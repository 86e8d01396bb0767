// The tokens of a micro-batch on their way to the GPU.
#pragma once
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/gpu.cuh"
#include "llmc/gpt2/documents.h"

// x and y (B,T) of a micro-batch to the GPU by way of pinned memory, which belongs to that
// micro-batch until the step ends. With a document mask also the tiles of documents, for a backward
// pass the order of the tokens.
template <class floatX>
void upload(GPT2& model, const Batch& batch, bool training = true) {
    const int64_t B = batch.B, T = batch.T, n = B * T;
    const int *x = batch.x, *y = batch.y;
    if (training) model.phases.enter(PHASE_FORWARD);
    int* inputs = model.gpu->host_tokens + batch.micro * host_tokens_per_micro_step(model.sizes);
    int *targets = inputs + n, *order = targets + n, *begins = order + n, *tiles = begins + n + 1;
    const auto send = [&](int a, const int* from, int64_t count) {
        const size_t bytes = count * sizeof(int);
        check_cuda(cudaMemcpyAsync(model.ints(a), from, bytes, cudaMemcpyHostToDevice, model.gpu->stream),
                   "copying tokens");
    };
    memcpy(inputs, x, n * sizeof(int));
    memcpy(targets, y, n * sizeof(int));
    send(INPUTS, inputs, n), send(TARGETS, targets, n);
    if (model.sizes.end_of_text >= 0) {
        std::vector<int> starts(n);
        find_documents(starts.data(), x, B, T, model.sizes.end_of_text);
        const int64_t rows = attention_tile_rows<floatX>(model.layout.config.C / model.layout.config.NH);
        const int64_t count = cut_documents((DocumentTile*)tiles, starts.data(), B, T, rows);
        send(DOCUMENT_TILES, tiles, 3 * count);
        model.gpu->documents = {(DocumentTile*)model.ints(DOCUMENT_TILES), count};
    }
    if (!training) return;
    model.gpu->tokens = sort_by_token(order, begins, x, n, encoder_segment_positions(n));
    send(TOKEN_ORDER, order, n + model.gpu->tokens.segments + 1);
}
