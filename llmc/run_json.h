// run.json in the out dir: the version, the command line and every flag of the run, so that `-o DIR -y 1` alone goes on from there.
//
//     {"version": "...", "command": "...", "flags": {"--train-data": "...", "--batch-size": 4, "--threads": null, ...}}
//
// null: not set, the program chooses. A reader for just this: strings, numbers and null in these two levels, nothing else.
#pragma once
#include "llmc/file.h"
#include "llmc/options.h"

inline std::string run_json_path(const std::string& dir) { return dir + "/run.json"; }

// Not taken over from an earlier run: what only concerns one start of a program, its place among processes, and where the run is.
inline bool concerns_one_start(const OptionRow& row) {
    for (int64_t Options::*p : {&Options::resume, &Options::overwrite, &Options::num_processes, &Options::process_rank, &Options::gpus_per_node})
        if (row.whole == p) return true;
    for (std::string Options::*p : {&Options::out_dir, &Options::dist_init, &Options::server_ip, &Options::fs_path})
        if (row.text == p) return true;
    return !row.takes_value;
}

inline std::string json_text(const std::string& text) {
    std::string quoted = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (c < 0x20) quoted += format("\\u%04x", c);
        else quoted += (char)c;
    }
    return quoted + "\"";
}
inline std::string option_value(const Options& o, const OptionRow& row) {
    if (row.text) return o.*row.text;
    return row.whole ? std::to_string(o.*row.whole) : format("%.17g", o.*row.real);  // all digits: the same number comes back
}

inline void write_run_json(const Options& o) {
    std::string flags;
    for (const OptionRow& row : option_table()) {
        if (concerns_one_start(row)) continue;
        Options trial;
        const std::string value = option_value(o, row);
        const bool unset = (row.text && value.empty()) || !option_problem(trial, row, value).empty();
        const std::string shown = unset ? "null" : row.text ? json_text(value) : value;
        flags += format("%s\n    %s: %s", flags.empty() ? "" : ",", json_text(row.long_name).c_str(), shown.c_str());
    }
    const std::string all = format("{\n  \"version\": %s,\n  \"command\": %s,\n  \"flags\": {%s\n  }\n}\n", json_text(TRAINER_VERSION).c_str(),
                                   json_text(o.command).c_str(), flags.c_str());
    FileWriter file(run_json_path(o.out_dir));
    file.write(all.data(), all.size());
    file.commit();
}

// Reads run.json front to back; the first thing that is not as it should be ends the program.
struct RunJsonReader {
    std::string path, text;
    size_t at = 0;

    explicit RunJsonReader(const std::string& source) : path(source) {
        constexpr int64_t MOST_BYTES = 1 << 20;
        FileReader file(path);
        if (file.size_bytes > MOST_BYTES) damaged("it is longer than a list of flags can be");
        text.resize(file.size_bytes);
        file.read(text.data(), text.size(), "the flags");
    }
    [[noreturn]] void damaged(const std::string& what) const {
        runtime_failure("%s is damaged at byte %zu: %s; without the file -y 1 goes on by the flags of the command line", path.c_str(), at, what.c_str());
    }
    char next() {
        while (at < text.size() && strchr(" \t\r\n", text[at]) && text[at]) at++;
        return at < text.size() ? text[at] : '\0';
    }
    bool took(char c) { return next() == c && ++at; }
    void expect(char c) {
        if (!took(c)) damaged(format("%c is expected", c));
    }
    // \u and four digits, below the surrogates, as UTF-8.
    std::string code_point() {
        unsigned value = 0;
        for (int digit = 0; digit < 4; digit++, at++) {
            const char* hex = "0123456789abcdefABCDEF";
            const char* found = at < text.size() && text[at] ? strchr(hex, text[at]) : nullptr;
            if (!found) damaged("four hexadecimal digits are expected");
            value = value * 16 + (unsigned)(found - hex < 16 ? found - hex : found - hex - 6);
        }
        if (value == 0 || (value >= 0xD800 && value < 0xE000)) damaged("this character is not accepted");
        if (value < 0x80) return std::string(1, (char)value);
        if (value < 0x800) return {(char)(0xC0 | value >> 6), (char)(0x80 | (value & 63))};
        return {(char)(0xE0 | value >> 12), (char)(0x80 | (value >> 6 & 63)), (char)(0x80 | (value & 63))};
    }
    std::string string() {
        expect('"');
        std::string value;
        while (at < text.size() && text[at] != '"') {
            if ((unsigned char)text[at] < 0x20) damaged("a string goes over the end of its line");
            if (text[at] != '\\') {
                value += text[at++];
                continue;
            }
            const char kind = ++at < text.size() ? text[at] : '\0';
            const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t", *found = kind ? strchr(from, kind) : nullptr;
            if (!found && kind != 'u') damaged("this escape is not accepted");
            at++;
            if (found) value += to[found - from];
            else value += code_point();
        }
        if (at == text.size()) damaged("a string has no end");
        at++;
        return value;
    }
    // A string, a number or null; whether it is a string is told.
    std::string scalar(bool& quoted) {
        if ((quoted = next() == '"')) return string();
        const size_t begin = at;
        while (at < text.size() && (isalnum((unsigned char)text[at]) || strchr("+-.", text[at])) && text[at]) at++;
        return text.substr(begin, at - begin);
    }
    // Calls member(key) for each member of an object, which reads the value.
    template <class Member>
    void object(Member member) {
        std::set<std::string> seen;
        expect('{');
        if (took('}')) return;
        do {
            const std::string key = string();
            if (!seen.insert(key).second) damaged(key + " is there twice");
            expect(':');
            member(key);
        } while (took(','));
        expect('}');
    }
};

// The flags of the run in -o, but for those on the command line, which win.
inline void take_over_flags(Options& o) {
    RunJsonReader json(run_json_path(o.out_dir));
    json.object([&](const std::string& key) {
        if (key == "version" || key == "command") return (void)json.string();
        if (key != "flags") json.damaged(key + " is not expected here");
        json.object([&](const std::string& name) {
            bool quoted;
            const std::string value = json.scalar(quoted);
            const OptionRow* row = find_option(name);
            if (!row || concerns_one_start(*row)) json.damaged(name + " is no flag that this version takes from there");
            if (o.given.count(name) || (!quoted && value == "null")) return;
            const std::string problem = quoted == (row->text != nullptr) ? option_problem(o, *row, value) : "is of another kind";
            if (!problem.empty()) json.damaged(name + " " + value + " " + problem);
        });
    });
    if (json.next() != '\0' || json.at < json.text.size()) json.damaged("nothing is expected after the end");
}

// The flags in force: of the command line, else, with -y 1, of the run to go on from, else the defaults.
inline Options options_of_run(int argc, char** argv) {
    Options o = parse_options(argc, argv);
    if (o.resume && o.overwrite) usage_error("--overwrite 1 starts again and -y 1 goes on; one of them is accepted (-y 0 --overwrite 1)");
    if (o.resume && !o.out_dir.empty() && !o.help && !o.version && name_exists(run_json_path(o.out_dir))) take_over_flags(o);
    return o;
}
