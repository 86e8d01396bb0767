// run.json in the out dir: version, command line and flags of the run, so that `-o DIR -y 1` is
// enough to resume it.
//
//     {"version": "...", "command": "...", "flags": {"--train-data": "...", "--batch-size": 4, "--threads": null, ...}}
//
// null stands for a flag that is not set, so that the program chooses; or for a name that is not
// UTF-8, which JSON cannot hold.
#pragma once
#include "llmc/base/file.h"
#include "llmc/base/json_text.h"
#include "llmc/options/options.h"
#include "llmc/options/source_list.h"

inline std::string run_json_path(const std::string& dir) { return dir + "/run.json"; }

// True for flags that a resumed run does not take over: those that concern one start of the
// program, the number and meeting of processes, and the out dir. --config leaves them out as well.
inline bool concerns_one_start(const OptionRow& row) {
    for (int64_t Options::*p : {&Options::resume, &Options::overwrite, &Options::num_processes, &Options::process_rank,
                                &Options::gpus_per_node, &Options::from_step})
        if (row.whole == p) return true;
    if (row.real == &Options::max_minutes) return true;
    for (std::string Options::*p :
         {&Options::config, &Options::out_dir, &Options::dist_init, &Options::server_ip, &Options::fs_path})
        if (row.text == p) return true;
    return !row.takes_value;
}

// The value of a flag, as text that gives the same value when it is read again.
inline std::string option_value(const Options& o, const OptionRow& row) {
    if (row.text) return o.*row.text;
    return row.whole ? std::to_string(o.*row.whole) : format("%.17g", o.*row.real);
}

// Writes run.json.
inline void write_run_json(const Options& o) {
    std::string flags;
    for (const OptionRow& row : option_table()) {
        if (concerns_one_start(row)) continue;
        Options trial;
        const std::string value = option_value(o, row), fallback = option_value(trial, row);
        const bool unset =
            (row.text && value.empty() && fallback.empty()) || !option_problem(trial, row, value).empty();
        const std::string shown = unset || !is_utf8(value) ? "null" : row.text ? json_text(value) : value;
        flags += format("%s\n    %s: %s", flags.empty() ? "" : ",", json_text(row.long_name), shown);
    }
    const std::string all = format("{\n  \"version\": %s,\n  \"command\": %s,\n  \"flags\": {%s\n  }\n}\n",
                                   json_text(TRAINER_VERSION), json_text(o.command), flags);
    FileWriter file(run_json_path(o.out_dir));
    file.write(all.data(), all.size());
    file.commit();
}

[[noreturn]] inline void damaged_run_json(const std::string& path, const JsonReader& json, const std::string& problem) {
    runtime_failure("%s is damaged at byte %d: %s; without it -y 1 goes on by the flags of the command line", path,
                    json.at, problem);
}

// Reads the flags of a run from its run.json, except those that are on the command line. Exit 1 if
// the file is damaged.
inline void take_over_flags(Options& o, const std::string& path) {
    constexpr int64_t MOST_BYTES = 1 << 20;
    FileReader file(path);
    std::string text(std::min(file.size_bytes, MOST_BYTES), '\0');
    JsonReader json{text};
    if (file.size_bytes > MOST_BYTES) damaged_run_json(path, json, "it is longer than a list of flags can be");
    file.read(text.data(), text.size(), "the flags");
    json.line = text;
    auto refuse = [&](const std::string& problem) -> bool { damaged_run_json(path, json, problem); };
    std::set<std::string> seen;
    auto once = [&](const std::string& name) { return seen.insert(name).second || refuse(name + " is there twice"); };
    auto take_flag = [&](const std::string& name) {
        once(name);
        const OptionRow* row = find_option(name);
        if (!row || concerns_one_start(*row)) refuse(name + " is no flag that this version takes from there");
        const size_t begin = json.at;
        std::string value;
        const bool quoted = json.peek() == '"';
        if (quoted ? !json_string(json, &value) : !json_value(json)) return false;
        if (!quoted) value = text.substr(begin, json.at - begin);
        if (o.given.count(name) || value == "null") return true;
        const std::string problem =
            quoted == (row->text != nullptr) ? option_problem(o, *row, value) : "is of another kind";
        return problem.empty() || refuse(name + " " + value + " " + problem);
    };
    const bool good = json_object(json, [&](const std::string& key) {
        once(key);
        if (key == "version" || key == "command") return json_string(json, nullptr);
        return key == "flags" ? json_object(json, take_flag) : refuse(key + " is not expected here");
    });
    if (!good) refuse(json.problem);
    json.skip_space();
    if (json.at < text.size()) refuse("nothing is expected after the end");
}

// Exit 1 if data that a run.json names by a relative path is not found from here: the paths are
// relative to the folder in which the run was started.
inline void check_remembered_path(const Options& o, const std::string& from, const char* flag,
                                  std::string Options::*path) {
    const std::string& pattern = o.*path;
    if (o.given.count(find_option(flag)->long_name) || pattern[0] == '/') return;
    if (!files_of_patterns(pattern).empty() || !source_files(pattern).empty()) return;
    runtime_failure(
        "%s %s matches no file: it comes from %s, whose paths are relative to the folder in which the run was "
        "started; start it there, or give %s",
        flag, pattern, from, flag);
}
inline void check_remembered_paths(const Options& o, const std::string& from) {
    if (o.plan) return;
    if (o.max_steps != 0) check_remembered_path(o, from, "-i", &Options::train_data);
    if (o.max_steps != 0 && !o.loss_mask.empty()) check_remembered_path(o, from, "--loss-mask", &Options::loss_mask);
    if (validates(o)) check_remembered_path(o, from, "-j", &Options::val_data);
}

// Puts one of -x and --epochs in force: that of the command line. Exit 2 if both are there.
inline void settle_length(Options& o) {
    if (o.epochs == 0 || o.max_steps < 0) return;
    const bool steps = o.given.count("--max-steps"), epochs = o.given.count("--epochs");
    if (steps && epochs)
        usage_error("-x %d and --epochs %d both say how long the run is; one of them is accepted", o.max_steps,
                    o.epochs);
    if (steps) o.epochs = 0;
    else o.max_steps = -1;
}
