// The parsers of binary files: models, checkpoints, token shards, loss masks, vocabularies,
// HellaSwag.
#pragma once
#include "dev/test/fuzz/harness.h"
#include "dev/test/token_files.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/hellaswag.h"
#include "llmc/data/tokenizer.h"

// ---- models

inline const GPT2Config TINY{4, 5, 128, 1, 1, 2};

// A model in fp32 whose weights, m and v lie in one piece of memory, of which all that is written
// must be.
inline const float *tiny_begin, *tiny_end;
inline void copy_within(GPT2&, void* to, const void* from, int64_t bytes) {
    expect((const char*)to >= (const char*)tiny_begin && (const char*)to + bytes <= (const char*)tiny_end,
           "values stay within the model");
    memcpy(to, from, bytes);
}
inline Backend tiny_backend() {
    Backend backend{};
    backend.copy_out = [](GPT2&, void* to, const void* from, int64_t bytes) { memcpy(to, from, bytes); };
    backend.copy_in = copy_within;
    return backend;
}
struct TinyModel {
    std::vector<float> all;
    Backend backend = tiny_backend();
    GPT2 model;

    explicit TinyModel(int64_t processes = 1) {
        model.layout = parameter_layout(TINY, processes), model.backend = &backend;
        const int64_t elems = model.layout.total_elems();
        all.resize(3 * elems);
        for (size_t i = 0; i < all.size(); i++) all[i] = 1e-3f * (float)(i % 97);
        model.params = all.data(), model.m = &all[elems], model.v = &all[2 * elems];
        tiny_begin = all.data(), tiny_end = tiny_begin + all.size();
    }
};

inline std::string model_bytes(int32_t version) {
    TinyModel tiny;
    FileWriter file(scratch + "/model.bin");
    auto get = [&](int tensor, int64_t layer, int64_t first, int64_t) {
        return tiny.model.param<float>(tensor, layer) + first;
    };
    write_model(file, TINY, version, get);
    file.commit();
    return content_of(file.path);
}
inline std::vector<std::string> model_seeds() {
    return {model_bytes(MODEL_VERSION_FP32), model_bytes(MODEL_VERSION_BF16)};
}
// What is read is what the file holds, to the last bit.
inline void expect_tensors(FileReader& file, int32_t version, const GPT2Config& config, int begin, int end,
                           const std::string& input) {
    std::string read;
    read_tensors(file, version, config, begin, end, [&](int tensor, int64_t, const float* values) {
        const int64_t n = tensor_elems(tensor, config);
        const size_t bytes = version == MODEL_VERSION_FP32 ? 4 : 2;
        for (int64_t i = 0; i < n; i++) read.append((const char*)&values[i] + 4 - bytes, bytes);
    });
    expect(read == input.substr(sizeof(Header)), "a model's weights are those of its file");
}
inline void run_model(const std::string& input) {
    FileReader file(scratch_file("model.bin", input));
    GPT2Config config;
    const int32_t version = read_model_header(file, config);
    expect_tensors(file, version, config, 0, NUM_TENSORS, input);
}

// ---- adapters of a tiny model

inline std::vector<std::string> adapter_seeds() {
    std::vector<std::string> seeds;
    for (int32_t version : {MODEL_VERSION_FP32, MODEL_VERSION_BF16}) {
        GPT2Config config = TINY;
        config.lora = {2, 5, 8, 7, WEIGHTS_NF4};
        const std::vector<float> values(adapter_elems(config), 0.25f);
        FileWriter file(scratch + "/adapter.bin");
        write_adapters(file, config, version, [&](int, int64_t, int64_t, int64_t) { return values.data(); });
        file.commit();
        seeds.push_back(content_of(file.path));
    }
    return seeds;
}
inline void run_adapter(const std::string& input) {
    FileReader file(scratch_file("adapter.bin", input));
    GPT2Config config = TINY;
    const int32_t version = read_adapter_header(file, config);
    expect_tensors(file, version, config, NUM_TENSORS, ALL_TENSORS, input);
}

// ---- checkpoints: the state of rank 0, beside a valid model, rank 1's state and DONE

constexpr int64_t STATE_STEP = 7;

// The files of a checkpoint that so many processes have written, by name. They are made in the
// folder for files, which it empties.
inline std::map<std::string, std::string> checkpoint_of(int64_t processes, Optimizer optimizer, bool fp16) {
    empty_scratch();
    std::map<std::string, std::string> files;
    TinyModel tiny(processes);
    GPT2& model = tiny.model;
    model.optimizer = optimizer;
    comm_count(processes);
    FileWriter weights(model_path(scratch, STATE_STEP));
    StateHeader header;
    header.step = STATE_STEP, header.position_windows = 14, header.T = 4, header.seed = 42;
    header.processes = processes, header.model_checksum = write_weights(weights, model);
    header.set_version(optimizer, fp16), header.states = (int64_t)kept_states(model).size();
    if (fp16) header.loss_scale = {FIRST_SCALE, 3};
    weights.commit();
    for (int64_t rank = 0; rank < processes; rank++) {
        comm_count(processes, rank);
        header.rank = rank, header.header_checksum = header.checksum();
        write_state(scratch, header, model, nullptr);
    }
    comm_count(1);
    scratch_file(format("DONE_%08d", STATE_STEP), "");
    for (const CheckpointFile& file : checkpoint_files(scratch))
        files[file.path.substr(scratch.size() + 1)] = content_of(file.path);
    return files;
}
inline const std::map<std::string, std::string>& valid_checkpoint(int64_t processes) {
    static const std::map<std::string, std::string> of_one = checkpoint_of(1, ADAMW, false),
                                                    of_two = checkpoint_of(2, LION, false);
    return processes == 1 ? of_one : of_two;
}
inline std::string state_name(int64_t rank) { return state_path("", STATE_STEP, rank).substr(1); }
inline std::vector<std::string> state_seeds() {
    const std::string named = valid_checkpoint(2).at(state_name(0)), adamw = valid_checkpoint(1).at(state_name(0));
    return {adamw, named, checkpoint_of(1, ADAMW, true).at(state_name(0))};  // versions 2, 3 and 4
}
inline void repair_state(std::string& input) {
    StateHeader header;
    if (input.size() < sizeof(header) + sizeof(uint64_t)) return;
    memcpy((void*)&header, input.data(), sizeof(header));
    header.header_checksum = header.checksum();
    memcpy(&input[offsetof(StateHeader, header_checksum)], &header.header_checksum, sizeof(uint64_t));
    Checksum sum;
    sum.add(input.data(), input.size() - sizeof(uint64_t));
    const uint64_t value = sum.value();
    memcpy(&input[input.size() - sizeof(value)], &value, sizeof(value));
}
inline int64_t processes_of(const std::string& state) {
    StateHeader header;
    if (state.size() >= sizeof(header)) memcpy((void*)&header, state.data(), sizeof(header));
    return header.processes;
}
inline void run_state(const std::string& input) {
    for (const auto& [name, bytes] : valid_checkpoint(processes_of(input) == 2 ? 2 : 1)) scratch_file(name, bytes);
    scratch_file(state_name(0), input);
    StateHeader header;
    std::unique_ptr<FileReader> file;
    if (newest_checkpoint(scratch, header, &file) < 0) broken("a folder with DONE holds no checkpoint");
    TinyModel tiny;
    GPT2& model = tiny.model;
    model.optimizer = find_optimizer(header.optimizer);
    load_checkpoint(scratch, header, *file, model);
    for (OutlierDetector* detector : {&header.loss_outlier, &header.norm_outlier})
        for (int i = 0; i < 3; i++) detector->limit(3), detector->z_score(i);
    expect(header.step == STATE_STEP && header.position_windows >= 0, "a resumed run is at a step and a position");
}

// ---- token shards and loss masks

constexpr int64_t SHARD_TOKENS = 37, WINDOW = 4, VOCAB = 257;

template <class Token>
std::string shard_bytes(int64_t n) {
    std::vector<Token> tokens(n);
    for (int64_t i = 0; i < n; i++) tokens[i] = (Token)(i * i % VOCAB);
    write_tokens(scratch + "/shard.bin", tokens.data(), n);
    return content_of(scratch + "/shard.bin");
}
inline std::vector<std::string> shard_seeds() {
    return {shard_bytes<uint16_t>(SHARD_TOKENS), shard_bytes<uint16_t>(WINDOW + 1),
            shard_bytes<uint32_t>(SHARD_TOKENS)};
}
// Loads two epochs of windows. Every token of the input is that of its file.
inline void read_windows(DataLoader& data, const std::string& shard) {
    std::vector<int> x(WINDOW), y(WINDOW);
    const int64_t bytes = data.shards[0].token_bytes;
    auto token = [&](int64_t i) {
        int value = 0;
        memcpy(&value, &shard[TOKENS_HEADER_BYTES + bytes * i], bytes);
        return value;
    };
    for (int64_t w = 0; w < std::min<int64_t>(2 * data.total_windows, 2000); w++) {
        load_window(data, w, x.data(), y.data());
        const int64_t first = (int64_t)data.sources[0].window_order[w % data.total_windows] * WINDOW;
        for (int64_t t = 0; t < WINDOW; t++) {
            expect(x[t] == token(first + t) && x[t] < VOCAB, "inputs are the tokens of the file");
            expect(y[t] == token(first + t + 1) || (data.masked && y[t] == IGNORED_TARGET), "targets likewise");
        }
    }
}
inline void run_shard(const std::string& input) {
    DataLoader data;
    dataloader_open(data, "-i", scratch_file("shard.bin", input), WINDOW, VOCAB, 1, true);
    read_windows(data, input);
}

inline const std::string& masked_shard() {
    static const std::string bytes = shard_bytes<uint16_t>(SHARD_TOKENS);
    return bytes;
}
inline uint64_t checksum_of_bytes(const std::string& bytes) {
    Checksum sum;
    sum.add(bytes.data(), bytes.size());
    return std::max<uint64_t>(1, sum.value());
}
// A mask of these bits, with the right header.
inline std::string mask_of_bits(int64_t tokens, const std::string& bits) {
    MaskHeader mask;
    Checksum sum;
    sum.add(bits.data(), bits.size());
    mask.tokens = tokens, mask.shard_checksum = checksum_of_bytes(masked_shard()), mask.bits_checksum = sum.value();
    for (size_t i = 0; i < 8 * bits.size(); i++) mask.counted += mask_bit((const uint8_t*)bits.data(), i);
    const Header header = mask_header(mask);
    return std::string((const char*)header.value, sizeof(header.value)) + bits;
}
inline std::vector<std::string> mask_seeds() {
    return {mask_of_bits(SHARD_TOKENS, std::string("\xf1\x0f\x33\x55\x01", 5))};
}
inline void repair_mask(std::string& input) {
    if (input.size() > sizeof(Header)) input = mask_of_bits(SHARD_TOKENS, input.substr(sizeof(Header)));
}
inline void run_mask(const std::string& input) {
    DataLoader data;
    const std::string shard = scratch_file("shard.bin", masked_shard()), mask = scratch_file("shard.mask", input);
    dataloader_open(data, "-i", shard, WINDOW, VOCAB, 1, true);
    dataloader_open_masks(data, {mask});
    FileReader file(mask);
    expect_mask_of(file, checksum_of_bytes(masked_shard()), shard);
    read_windows(data, masked_shard());
}

// ---- vocabularies

// The tokens of single bytes, some of two and three, and the end of the text.
inline std::vector<std::string> vocabulary_seeds() {
    Tokenizer tok;
    for (int byte = 0; byte < 256; byte++) tok.bytes_of.emplace_back(1, (char)byte);
    for (const char* more : {"th", "he", "the", " t", " the", "in", "ing"}) tok.bytes_of.push_back(more);
    tok.end_of_text = tok.vocab_size();
    tok.bytes_of.push_back("<|endoftext|>");
    FileWriter file(scratch + "/tokenizer.bin");
    tokenizer_write(tok, file);
    file.commit();
    return {content_of(file.path)};
}
// Text to tokens and back gives the same text; both ways of merging, and a text in two parts, the
// same tokens.
inline void check_encoding(const Tokenizer& tok, std::string_view text) {
    std::vector<int> ids, parts;
    encode(tok, text, ids);
    std::string back;
    for (int id : ids) back += decode(tok, id);
    expect(back == text, "the tokens of a text decode to the text");
    const size_t cut = text.empty() ? 0 : last_cut(tok, text);
    encode(tok, text.substr(0, cut), parts);
    encode(tok, text.substr(cut), parts);
    expect(parts == ids, "a text cut by last_cut() has the same tokens");
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = next_piece(tok, text, at);
        if (end - at > 64) continue;
        std::vector<int> brief, lengthy;
        merge_short(tok, text.substr(at, end - at), brief);
        merge_long(tok, text.substr(at, end - at), lengthy);
        expect(brief == lengthy, "both ways of merging give the same tokens");
    }
}
inline void run_vocabulary(const std::string& input) {
    Tokenizer tok;
    tokenizer_load(tok, scratch_file("tokenizer.bin", input));
    check_encoding(tok, "The thing is, the 42 kings didn't  sing\xe2\x80\xa6 \xff\n\n then");
}

// ---- HellaSwag

inline std::vector<std::string> hellaswag_seeds() {
    std::vector<uint16_t> records;
    for (uint16_t index = 0; index < 3; index++) {
        std::vector<uint16_t> values = {index, (uint16_t)(index % 4), HELLASWAG_CHOICES, (uint16_t)(3 + index)};
        for (int t = 0; t < 3 + index; t++) values.push_back((uint16_t)(t * 31));
        for (uint16_t choice = 1; choice <= HELLASWAG_CHOICES; choice++) {
            values.push_back(choice);
            for (int t = 0; t < choice; t++) values.push_back((uint16_t)(t + choice));
        }
        records.insert(records.end(), {65535, (uint16_t)(2 * values.size() + 4)});
        records.insert(records.end(), values.begin(), values.end());
    }
    Header header;
    header.value[0] = 20240522, header.value[1] = 1, header.value[2] = 3, header.value[3] = 100;
    return {std::string((const char*)header.value, sizeof(header.value)) +
            std::string((const char*)records.data(), 2 * records.size())};
}
inline void run_hellaswag(const std::string& input) {
    const std::vector<HellaSwagExample> questions = hellaswag_load(scratch_file("hellaswag.bin", input), VOCAB);
    for (size_t r = 0; r < HELLASWAG_CHOICES * questions.size(); r++) {
        const HellaSwagRow row = hellaswag_row(questions, (int64_t)r, WINDOW);
        const int64_t n = (int64_t)row.tokens.size();
        expect(n >= 2 && n <= WINDOW + 1 && row.targets >= 1 && row.targets < n, "a row fits the model");
    }
}
