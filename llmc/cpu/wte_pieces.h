// The gradient of wte where each process keeps a slice of it (ZeRO stages 2 and 3), and none has
// room for all. It is a product, and what the embedding adds:
//
//     Dwte = Dlogits^T lnf + Dembedding       (Vp, C) = (Vp, rows) (rows, C) + (Vp, C)
//
// With fewer rows than channels the two factors are smaller than what they make. So the classifier
// leaves them as they are, in the activations, and Dwte is made at the end of the backward pass, in
// pieces as large as the bucket of a layer, and in the places of layers. While one is summed over
// the processes, the next is computed. A piece has a part of every process's slice of the last
// bucket:
//
//     last bucket      | slice 0        | slice 1        | slice 2        |
//     piece 0          |=====           |=====           |=====           |
//     piece 1          |     =====      |     =====      |     =====      |
//
// These parts begin and end within rows of wte. Each element is the same sum in the same order as
// in the whole, to the bit. What follows wte in the bucket is small, and has a place of its own.
#pragma once
#include "llmc/cpu/classifier.h"
#include "llmc/cpu/encoder.h"
#include "llmc/cpu/shard.h"

// Decides whether the gradient of wte is made in pieces: where that takes less memory than the
// whole. The first chunk of logits is there in any case, and a teacher has as many.
inline void settle_wte_pieces(GPT2& model, Sizes& s) {
#ifndef KERNELS_REFERENCE
    const int64_t more_rows = (s.rows() - s.logit_rows) * (model.teacher ? 2 : 1);
    const bool possible = s.training && model.gradient_places.sharded && trains(s.config, WTE) &&
                          model.layout.bucket_elems(0) > 0 && !model.noise_scale && !model.needs_whole_gradients;
    if (!possible || more_rows * s.floatX_bytes >= s.config.C * (int64_t)sizeof(float)) return;
    model.gradient_places.wte_in_pieces = true;
    s.logit_rows = s.rows();
#endif
}

// Elements begin to end - 1 of the last bucket's gradients, to out.
template <class floatX>
void gradients_outside_layers(GPT2& model, float* out, int64_t begin, int64_t end, const Batch& batch,
                              const SortedTokens& tokens) {
    const int64_t C = model.layout.config.C, Vp = model.layout.config.Vp, rows = batch.B * batch.T;
    const int64_t chunk = classifier_chunk_rows(rows), wte_end = std::min(end, model.layout.wte_elems());
    const floatX *dlogits = model.act<floatX>(LOGITS), *lnf = model.act<floatX>(LNF),
                 *dencoded = model.act<floatX>(DRESIDUAL);
    for (int64_t at = begin; at < wte_end;) {  // whole rows, and what there is of the first and the last
        const int64_t row = at / C, column = at % C;
        const int64_t columns = std::min(C - column, wte_end - at), n = columns < C ? 1 : (wte_end - at) / C;
        float* const part = out + (at - begin);
        for (int64_t r = 0; r < rows; r += chunk)
            weight_gradient(part, dlogits + r * Vp + row, Vp, n, lnf + r * C + column, C, columns,
                            std::min(chunk, rows - r), r > 0);
        add_to_tokens(part, tokens, row, row + n, dencoded + column, C, columns);
        at += n * columns;
    }
    const int64_t others = std::max(begin, wte_end);
    const float* const whole = (float*)model.grads + model.gradient_places.whole(model.layout, model.layout.config.L);
    if (others < end) memcpy(out + (others - begin), whole + others, (end - others) * sizeof(float));
}

// Computes the gradient of wte of a micro-batch, and starts the sum of the last bucket over the
// processes. DRESIDUAL is the gradient of the embeddings' sum; what follows wte is complete.
template <class floatX>
void sum_wte_in_pieces(GPT2& model, const Batch& batch) {
    const ParameterLayout& layout = model.layout;
    const BucketPlaces& places = model.gradient_places;
    const int64_t L = layout.config.L, slice = layout.slice_elems(L), most = layout.slice_elems(0);
    const SortedTokens tokens(batch.x, batch.B * batch.T);
    int64_t place = 0;  // layer 0 is there last
    for (int64_t first = 0; first < slice; first += most) {
        const int64_t n = std::min(most, slice - first);
        place = (place + 1) % std::min(BucketPlaces::LAYERS, L);
        keep_slices(model, place);
        float* const piece = (float*)model.grads + places.whole(layout, place);
        {
            const double rows_of_wte = (double)(n * comm.shards.processes) / layout.config.C;
            const Range range(work::matmul_backward(batch.B * batch.T, layout.config.C, rows_of_wte, false,
                                                    sizeof(floatX), sizeof(float), false, true));
            for (int64_t rank = 0; rank < comm.shards.processes; rank++) {
                const int64_t begin = rank * slice + first;
                gradients_outside_layers<floatX>(model, piece + rank * n, begin, begin + n, batch, tokens);
            }
        }
        model.phases.enter(PHASE_COMMUNICATION);
        start_sum(model, piece, L, first, n, place, batch.micro > 0);
        model.phases.enter(PHASE_BACKWARD);
        comm_progress();
    }
}
