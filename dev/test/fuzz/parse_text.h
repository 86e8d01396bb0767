// The parsers of text: flags, run.json, the files that a resumed run goes on with, names of
// checkpoints, prompts and documents.
#pragma once
#include "dev/data/encode_block.h"
#include "dev/test/fuzz/parse_files.h"
#include "llmc/run/out_dir.h"
#include "llmc/data/text_stream.h"
#include "llmc/run/trace_file.h"

inline std::vector<std::string> flag_words() {
    std::vector<std::string> words = {"-1",         "0",
                                      "1",          "2147483647",
                                      "1048576",    "9007199254740993",
                                      "1e-38",      "3e-4",
                                      "=",          "L2C32H2T16V256",
                                      "gpt3:c768",  "d12",
                                      "cosine",     "wsd",
                                      "tcp",        "2:4",
                                      "312,2039,80"};
    for (const OptionRow& row : option_table())
        for (const char* name : {row.short_name, row.long_name})
            if (*name) words.push_back(name);
    return words;
}

// ---- the command line: words that end in zero bytes

inline std::vector<std::string> flag_seeds() {
    std::vector<std::string> seeds;
    for (std::string line : {"-e L2C32H2T16V256 -b 2 -t 16 -d 96 -x 10 -l 3e-4 -u 3 -q 0.1 -k cosine",
                             "--model=d12 --prompt=Once --top-k=5 --temperature 0.7 --samples 3 -x 0",
                             "-pn 4 -pr 1 -pi tcp -ps 10.0.0.1:29500 -z 1 -r 4 --recompute-every 3 --comm-timeout 5",
                             "--plan --device 312,2039,80 --price 2.5 --precision bf16 -n 5 -nk 1 -nm 10",
                             "--trace out.json --trace-steps 2:4 -sl 3 -sg 3.5 --beta1 0.8 --eps 1e-9 --seed 7"}) {
        for (char& c : line)
            if (c == ' ') c = '\0';
        seeds.push_back(line);
    }
    return seeds;
}
// All that run.json keeps of some options.
inline std::string kept_options(const Options& o) {
    std::string text;
    for (const OptionRow& row : option_table())
        if (!concerns_one_start(row)) text += option_value(o, row) + "\n";
    return text;
}
// Options that were accepted can be written to run.json, and come back from there.
inline void check_round_trip(Options o) {
    o.out_dir = scratch;
    write_run_json(o);
    Options again;
    again.out_dir = scratch;
    take_over_flags(again, run_json_path(again.out_dir));
    bool utf8 = true;  // JSON holds no other names
    for (const OptionRow& row : option_table())
        if (row.text) utf8 = utf8 && is_utf8(o.*row.text);
    if (utf8) expect(kept_options(o) == kept_options(again), "run.json keeps all flags");
}
inline void run_flags(const std::string& input) {
    std::vector<std::string> words = {"train_gpt2"};
    for (size_t at = 0, end; at <= input.size(); at = end + 1) {
        end = std::min(input.find('\0', at), input.size());
        words.push_back(input.substr(at, end - at));
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    Options o = parse_options((int)argv.size(), argv.data());
    settle_length(o);
    check_plan_flags(o);
    trace_steps(o);
    if (!o.device.empty()) stated_device(o, true, true);
    check_round_trip(o);
    const GPT2Config config = config_from_descriptor(o.model);
    comm_count(std::max<int64_t>(1, o.num_processes));
    o.out_dir = scratch;
    try {
        settle_sizes(o, config);
    } catch (...) {
        comm_count(1);
        throw;
    }
    expect(o.total_batch_size % (o.batch_size * o.seq_len * comm.processes) == 0, "a step is whole micro-batches");
    comm_count(1);
}

// ---- what a resumed run reads beside its checkpoint

inline std::vector<std::string> run_json_seeds() {
    Options o;
    o.out_dir = scratch, o.model = "L2C32H2T16V256", o.prompt = "a \"b\"\n\xe2\x82\xac",
    o.command = "./train_gpt2_cpu -x 4";
    o.learning_rate = 1.0 / 3, o.max_steps = 4;
    write_run_json(o);
    return {content_of(run_json_path(scratch))};
}
inline void run_run_json(const std::string& input) {
    Options o;
    o.out_dir = scratch;
    scratch_file("run.json", input);
    take_over_flags(o, run_json_path(o.out_dir));
    check_round_trip(o);
}

inline std::vector<std::string> record_seeds() {
    std::string log, metrics = metrics_header(), evals, tensors = tensor_log_header(), sums;
    for (int step = 0; step < 4; step++) {
        log += format("s:%d tel:5.4321\ns:%d eval:0.2957\ns:%d trl:5.4000 lr:0.000300 norm:1.20\n", step, step, step);
        MetricsLine line;
        line[METRIC_STEP] = step, line[METRIC_SECONDS] = step * 0.5, line[METRIC_NOISE] = 0.25, line[METRIC_SIGNAL] = 2;
        metrics += metrics_text(line) + "\n";
        evals += format("{\"step\": %d, \"val_loss\": %d.25, \"bits_per_byte\": 1.09}\n", step, 5 - step);
        evals += format("{\"step\": %d, \"sample\": \" upon\", \"prompt\": \"Once\"}\n", step);
        tensors += format("%d,weight,wte,,640,1.5,0.25,0,\n", step);
        sums += format("%016x 1098 %d /data/train_%d.bin\n", 77 + step, 5000 + step, step);
    }
    return {log, metrics, evals, tensors, sums};
}
// The files are cut back to step 2. What stays is of earlier steps, and cutting once more changes
// nothing.
inline void run_records(const std::string& input) {
    constexpr int64_t STEP = 2;
    const std::vector<std::string> names = {"main.log", "metrics.csv", "evals.jsonl", "tensors.csv"};
    for (const std::string& name : names) scratch_file(name, input);
    scratch_file("shards.txt", input);
    Run run;
    run.model.sizes.cache_T = 1;
    run.logger.silent = true;
    run.options.out_dir = scratch, run.state.step = STEP, run.lock.fd = -1;
    rewind_best(run);
    open_run_files(run);
    expect(run.best.step < STEP || std::isinf(run.best.loss), "the best loss is one of a step that is kept");
    DataLoader train, val;
    other_validation_data(scratch, train, val);
    std::string once;
    for (const std::string& name : names) once += content_of(scratch + "/" + name);
    for (RunFile* file : {&run.files.log, &run.files.metrics, &run.files.evals, &run.files.tensors})
        for (const std::string& line : file->rewind(STEP))
            expect(file->step_of(line) >= 0 && file->step_of(line) < STEP, "lines of later steps are dropped");
    std::string twice;
    for (const std::string& name : names) twice += content_of(scratch + "/" + name);
    expect(once == twice, "cutting the files back again changes nothing");
    lacks_last_lines(run);
}

// ---- names in the folder of a run: one per line, beside a complete checkpoint

inline std::vector<std::string> name_seeds() {
    return {"DONE_00000003\nmodel_00000003.bin\nstate_00000003_00000.bin\nnotes.txt\n",
            "DONE_00000009\nstate_00000009_00000.bin.tmp\nmodel_00000005.bin\nDONE_00000009.tmp\nDONE_1\n"};
}
// Whether a name has the form of a checkpoint's files.
inline bool is_checkpoint_name(const std::string& name) {
    std::string form;  // the name with R for a number of 5 digits or more, S for 8 or more
    for (size_t at = 0, end; at < name.size(); at = end) {
        for (end = at; end < name.size() && name[end] >= '0' && name[end] <= '9'; end++) {}
        form += end - at >= 8 ? "S" : end - at >= 5 ? "R" : name.substr(at, std::max<size_t>(1, end - at));
        end = std::max(end, at + 1);
    }
    for (const char* end : {"", ".tmp"})
        for (const char* accepted : {"model_S.bin", "state_S_R.bin", "state_S_S.bin", "DONE_S"})
            if (form == accepted + std::string(end)) return true;
    return false;
}
// The complete checkpoint is found and stays; nothing is removed but files of other checkpoints.
inline void run_names(const std::string& input) {
    const std::map<std::string, std::string>& complete = valid_checkpoint(1);
    std::vector<std::string> others;
    for (size_t at = 0, end; at < input.size(); at = end + 1) {
        end = std::min(input.find('\n', at), input.size());
        const std::string name = input.substr(at, std::min<size_t>(end - at, 200));
        if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\0", 2)) != name.npos)
            continue;
        scratch_file(name, "");
        if (!is_checkpoint_name(name)) others.push_back(name);
    }
    for (const auto& [name, bytes] : complete) scratch_file(name, bytes);
    StateHeader header;
    expect(newest_checkpoint(scratch, header) == STATE_STEP, "the complete checkpoint is found");
    std::map<int64_t, bool> whole;
    prune_checkpoints(scratch, STATE_STEP, 1, 0, whole);
    clear_checkpoint(scratch, 1000);
    expect(checkpoint_problem(scratch, STATE_STEP, header).empty(), "the newest checkpoint stays");
    for (const std::string& name : others) expect(name_exists(scratch + "/" + name), "files of no checkpoint stay");
    for (int64_t step : finished_steps(scratch)) expect(step >= STATE_STEP, "older checkpoints are removed");
}

// ---- prompts, documents, JSON

inline const Tokenizer& small_vocabulary() {
    static const Tokenizer tok = [] {
        Tokenizer made;
        tokenizer_load(made, scratch_file("vocabulary.bin", vocabulary_seeds()[0]));
        return made;
    }();
    return tok;
}
inline std::vector<std::string> prompt_seeds() {
    return {"To be, or not to be, that's the question:\n\n  Whether 'tis nobler in the mind to suffer 1234567 slings",
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xe4\xb8\xad\xe6\x96\x87  \t\xc2\xa0 they're THE THING \x80\xff"};
}
// However a text is cut into tokens, what is shown of it is the same, and UTF-8.
inline void run_prompt(const std::string& input) {
    check_encoding(small_vocabulary(), input);
    for (const char* stop : {"", "the", "\n\n"}) {
        TextStream whole{stop}, bytes{stop};
        std::string at_once = whole.add(input), in_bytes;
        if (!whole.stopped) at_once += whole.finish();
        for (size_t at = 0; at < input.size() && !bytes.stopped; at++) in_bytes += bytes.add(input.substr(at, 1));
        if (!bytes.stopped) in_bytes += bytes.finish();
        expect(at_once == in_bytes, "a text is shown the same in one piece and byte by byte");
        expect(is_utf8(at_once), "what is shown is UTF-8");
        expect(!*stop || at_once.find(stop) == at_once.npos, "nothing from --stop on is shown");
    }
}
inline std::vector<std::string> document_seeds() {
    return {
        "{\"text\": \"Once upon a time\", \"id\": 7}\n{\"text\": \"\\u00e9\\ud83d\\ude00 \\\"x\\\"\", \"a\": [1, "
        "{}]}\n",
        "{\"prompt\": \"2+2=\", \"completion\": \" 4\"}\n\n{\"completion\": \" 5\", \"prompt\": \"2+3=\", \"n\": "
        "-1.5e3}"};
}
inline void run_documents(const std::string& input) {
    const std::vector<TextFile> files = {{scratch_file("text.jsonl", input), true, (int64_t)input.size()}};
    DocumentReader reader(small_vocabulary(), files, nullptr);
    for (Encoded out; reader.next(out.block); out = {}) {
        encode_block(small_vocabulary(), true, {}, out);
        if (!out.problem.empty()) runtime_failure("%s: %s", files[0].name(), out.problem);
        expect(!out.prompted.value_or(false) || out.counts.size() == out.tokens.size(),
               "each token has a bit in the mask");
    }
    JsonReader json{input};
    json.skip_space();
    std::string text, again;
    if (!json_string(json, &text)) return;
    JsonReader quoted{};
    const std::string written = json_text(text);
    quoted.line = written;
    expect(json_string(quoted, &again) && again == text, "a text comes back from JSON");
}
