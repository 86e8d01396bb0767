// unigram TRAIN.bin VAL.bin V|TOKENIZER.bin: prints the loss on VAL of a model that knows only how
// often each token occurs in TRAIN (with one added to each count) and, with a tokenizer file, its
// bits per byte. A network with a lower loss has learned something about the order of tokens.
#include <cmath>
#include "llmc/data/bits_per_byte.h"
#include "llmc/data/tokens_file.h"

static std::vector<uint32_t> read_shard(const char* path, int64_t vocab) {
    FileReader file(path);
    const std::vector<uint32_t> tokens = read_tokens(file);
    for (uint32_t token : tokens)
        if (token >= vocab) runtime_failure("%s: token %d is not in a vocabulary of %d", path, token, vocab);
    return tokens;
}

int main(int argc, char** argv) {
    const char* usage = "usage: unigram TRAIN.bin VAL.bin V|TOKENIZER.bin";
    if (argc != 4) usage_error("%s", usage);
    const bool has_tokenizer = file_exists(argv[3]);
    Tokenizer tok;
    if (has_tokenizer) tokenizer_load(tok, argv[3], false);
    const int64_t vocab = has_tokenizer ? tok.vocab_size() : atoll(argv[3]);
    if (vocab < 1) usage_error("%s", usage);
    const std::vector<uint32_t> train = read_shard(argv[1], vocab), val = read_shard(argv[2], vocab);
    if (val.empty()) runtime_failure("%s is empty", argv[2]);
    std::vector<double> count(vocab, 1.0);
    for (uint32_t token : train) count[token]++;
    double loss = 0;
    for (uint32_t token : val) loss -= std::log(count[token] / ((double)train.size() + (double)vocab));
    printf("%.4f", loss / (double)val.size());
    const std::vector<int> targets(val.begin(), val.end());
    if (has_tokenizer) {
        const int64_t bytes = bytes_of_targets(tok, targets.data(), (int64_t)targets.size());
        printf(" %.4f", bits_per_byte(loss, (double)bytes));
    }
    printf("\n");
}
