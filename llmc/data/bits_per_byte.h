// Bits per byte: the loss in a unit in which models with different vocabularies can be compared.
//
//     bits per byte = (sum of the losses of all targets) / ln 2 / (bytes that the targets stand for)
//
// A loss per token says little by itself: with a larger vocabulary a token stands for more text and
// is harder to predict. Divided by bytes, the sum is what a text costs that is compressed with the
// model's predictions. <|endoftext|> stands for no byte; its loss counts. Targets that a loss mask
// leaves out have no loss, and their bytes do not count.
#pragma once
#include <cmath>
#include "llmc/gpt2/config.h"
#include "llmc/gpt2/constants.h"
#include "llmc/data/tokenizer.h"

inline int64_t bytes_of_targets(const Tokenizer& tok, const int* targets, int64_t n) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++)
        if (targets[i] != tok.end_of_text && targets[i] != IGNORED_TARGET)
            bytes += (int64_t)decode(tok, targets[i]).size();
    return bytes;
}

inline double bits_per_byte(double loss_sum, double bytes) { return loss_sum / std::log(2.0) / bytes; }

// Whether the tokens of a model of V can be those of this tokenizer.
inline bool is_tokenizer_of(const Tokenizer& tok, int64_t V) { return is_vocabulary_of(tok.vocab_size(), V); }
