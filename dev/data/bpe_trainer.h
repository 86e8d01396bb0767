// Training of a byte-level BPE vocabulary (Sennrich et al. 2016, arXiv:1508.07909, algorithm 1).
//
// At first every byte of a word is a part of its own. Then, again and again, the pair of neighbours
// that is most frequent in the text becomes a token, and each of its occurrences becomes one part.
// Among equally frequent pairs, the one with the lowest left id is taken, then the lowest right id.
//
// Training is fast because nothing is counted twice:
//
// Words (pieces of llmc/data/tokenizer.h) repeat, so each different word is held once, with the
// number of its occurrences.
//
// Every pair has a count and a list of its positions. A merge visits the positions of its pair
// alone, and corrects the counts of the neighbours there. A pair first appears in the pass that
// makes the younger of its two tokens; after that, its positions only become fewer.
//
// Pairs wait in a heap. One whose count has dropped since it was put there is put back when it is
// popped.
//
// The file lists tokens, not merges, because the encoder merges neighbours whose concatenation is a
// token. The result is the same, for no two pairs make the same bytes: as long as no merge crosses
// the ends of a run of bytes, its parts follow from those bytes alone; so wherever the run is two
// parts, they are the same two.
#pragma once
#include <queue>
#include <unordered_map>
#include "llmc/base/logger.h"
#include "llmc/data/tokenizer.h"

// The different words of a text, and the number of occurrences of each.
struct WordCounts {
    struct Word {
        size_t begin, length;  // in bytes
        int64_t count;
    };
    std::string bytes;
    std::vector<Word> words;
    std::vector<uint32_t> slots = std::vector<uint32_t>(1 << 16);  // hash table: 1 + the index of a word, 0: empty

    std::string_view text_of(const Word& word) const { return {bytes.data() + word.begin, word.length}; }
    size_t find_slot(std::string_view word) const {
        const size_t mask = slots.size() - 1;
        size_t slot = hash_bytes(word) & mask;
        while (slots[slot] && text_of(words[slots[slot] - 1]) != word) slot = (slot + 1) & mask;
        return slot;
    }
    void add(std::string_view word) {
        const size_t slot = find_slot(word);
        if (slots[slot]) return void(words[slots[slot] - 1].count++);
        words.push_back({bytes.size(), word.size(), 1});
        bytes += word;
        slots[slot] = (uint32_t)words.size();
        if (2 * words.size() > slots.size()) grow();
    }
    void grow() {
        slots.assign(2 * slots.size(), 0);
        for (size_t i = 0; i < words.size(); i++) slots[find_slot(text_of(words[i]))] = (uint32_t)(i + 1);
    }
};

// The tokens of one byte each, in GPT-2's order: first the printable characters of ASCII and
// Latin-1.
inline std::vector<std::string> byte_tokens() {
    std::vector<std::string> printed, others;
    for (int byte = 0; byte < 256; byte++) {
        const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        (prints ? printed : others).push_back(std::string(1, (char)byte));
    }
    printed.insert(printed.end(), others.begin(), others.end());
    return printed;
}

struct BpeTrainer {
    static constexpr uint16_t INSIDE = 0xFFFF, BETWEEN_WORDS = 0xFFFE;  // no ids: the highest is 65,533
    static constexpr size_t LONGEST_TOKEN = 255;                        // bytes; the file has one byte for the length
    static constexpr size_t MOST_POSITIONS = UINT32_MAX;

    struct Pair {
        int64_t count = 0;
        std::vector<uint32_t> positions;  // ascending; some no longer hold the pair
    };
    struct Candidate {
        int64_t count;
        uint32_t pair;
        bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
    };

    std::vector<std::string> tokens = byte_tokens();
    // One slot per byte, and one before, between and after words. The first and the last slot of a
    // part hold its id, so that its neighbours on both sides can find it.
    std::vector<uint16_t> parts;
    std::vector<uint32_t> word_begin;
    std::vector<int64_t> word_count;
    std::unordered_map<uint32_t, Pair> pairs;  // by key()
    std::vector<uint32_t> new_pairs;
    std::priority_queue<Candidate> heap;

    explicit BpeTrainer(const WordCounts& words);
    bool learn_token();  // false if no pair is left

    static uint32_t key(int left, int right) { return (uint32_t)left << 16 | (uint32_t)right; }
    uint32_t length_at(uint32_t position) const { return (uint32_t)tokens[parts[position]].size(); }
    uint32_t key_at(uint32_t position) const { return key(parts[position], parts[position + length_at(position)]); }
    int64_t occurrences(uint32_t position) const {
        return word_count[std::upper_bound(word_begin.begin(), word_begin.end(), position) - word_begin.begin() - 1];
    }
    void add_pair(uint32_t position, int64_t count);
    void remove_pair(uint32_t position, int64_t count);
    void merge(uint32_t position, int id);
    void queue_new_pairs();
};

inline BpeTrainer::BpeTrainer(const WordCounts& words) {
    if (words.bytes.size() + words.words.size() >= MOST_POSITIONS)
        runtime_failure("the text has %d bytes of different words, more than a vocabulary can be trained on (%d)",
                        words.bytes.size(), MOST_POSITIONS);
    uint16_t id_of_byte[256];
    for (int id = 0; id < 256; id++) id_of_byte[(unsigned char)tokens[id][0]] = (uint16_t)id;
    parts.push_back(BETWEEN_WORDS);
    for (const WordCounts::Word& word : words.words) {
        if (word.length < 2) continue;  // it has no pair
        word_begin.push_back((uint32_t)parts.size()), word_count.push_back(word.count);
        for (char c : words.text_of(word)) parts.push_back(id_of_byte[(unsigned char)c]);
        parts.push_back(BETWEEN_WORDS);
    }
    for (size_t w = 0; w < word_begin.size(); w++)
        for (uint32_t at = word_begin[w]; parts[at + 1] != BETWEEN_WORDS; at++) add_pair(at, word_count[w]);
    queue_new_pairs();
}

// Counts the pair of the part at `position` and its right neighbour, which has just come to be in a
// word that occurs `count` times.
inline void BpeTrainer::add_pair(uint32_t position, int64_t count) {
    if (length_at(position) + length_at(position + length_at(position)) > LONGEST_TOKEN) return;
    const auto [entry, is_new] = pairs.try_emplace(key_at(position));
    if (is_new) new_pairs.push_back(entry->first);
    entry->second.count += count;
    entry->second.positions.push_back(position);
}

// Takes back what add_pair() counted, before a merge ends the pair at `position`. The position
// stays in the list; learn_token() ignores it, because other parts are there then.
inline void BpeTrainer::remove_pair(uint32_t position, int64_t count) {
    const auto entry = pairs.find(key_at(position));
    if (entry != pairs.end()) entry->second.count -= count;
}

// Makes the part at `position` and its right neighbour one part, the token `id`.
inline void BpeTrainer::merge(uint32_t position, int id) {
    const int64_t count = occurrences(position);
    const uint32_t middle = position + length_at(position), end = middle + length_at(middle);
    const bool has_left = parts[position - 1] != BETWEEN_WORDS, has_right = parts[end] != BETWEEN_WORDS;
    const uint32_t left = has_left ? position - length_at(position - 1) : position;
    if (has_left) remove_pair(left, count);
    if (has_right) remove_pair(middle, count);
    parts[middle - 1] = parts[middle] = INSIDE;
    parts[position] = parts[end - 1] = (uint16_t)id;
    if (has_left) add_pair(left, count);
    if (has_right) add_pair(position, count);
}

inline void BpeTrainer::queue_new_pairs() {
    for (uint32_t pair : new_pairs) heap.push({pairs[pair].count, pair});
    new_pairs.clear();
}

inline bool BpeTrainer::learn_token() {
    while (!heap.empty()) {
        const Candidate best = heap.top();
        heap.pop();
        const auto entry = pairs.find(best.pair);
        const int64_t count = entry->second.count;
        if (count > 0 && count < best.count) {
            heap.push({count, best.pair});
            continue;
        }
        const std::vector<uint32_t> positions = std::move(entry->second.positions);
        pairs.erase(entry);
        if (count == 0) continue;

        const int left = (int)(best.pair >> 16), right = (int)(best.pair & 0xFFFF), id = (int)tokens.size();
        const size_t left_length = tokens[left].size();
        tokens.push_back(tokens[left] + tokens[right]);
        for (uint32_t at : positions)
            if (parts[at] == left && parts[at + left_length] == right) merge(at, id);
        queue_new_pairs();
        return true;
    }
    return false;
}

// The vocabulary of the 256 bytes, the tokens learned and, last, <|endoftext|>.
inline void set_vocabulary(Tokenizer& tok, std::vector<std::string> tokens) {
    tok.bytes_of = std::move(tokens);
    tok.end_of_text = tok.vocab_size();
    tok.bytes_of.push_back("<|endoftext|>");
    index_tokens(tok);
}

// Learns a vocabulary of `size` tokens, or fewer if no pairs are left in the words. Calls
// on_token() after each token.
template <class OnToken>
inline void train_vocabulary(Tokenizer& tok, const WordCounts& words, int64_t size, Logger& logger, OnToken on_token) {
    BpeTrainer trainer(words);
    Progress progress(logger, "learning the vocabulary", size - 257, "merges");
    for (; (int64_t)trainer.tokens.size() + 1 < size && trainer.learn_token(); on_token()) progress.add(1);
    set_vocabulary(tok, std::move(trainer.tokens));
}
