// Reads the command line by the table of flags (option_table.h). A mistake ends the program with
// exit status 2 before anything is allocated or written.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include "llmc/base/default_files.h"
#include "llmc/base/parse.h"
#include "llmc/options/help.h"

// Whether a list "a, b, c" contains the value; true for any value if `choices` is no list.
inline bool is_choice(const std::string& choices, const std::string& value) {
    if (choices.find(", ") == choices.npos) return true;
    for (size_t at = 0, comma; at < choices.size(); at = comma + 2) {
        comma = std::min(choices.find(", ", at), choices.size());
        if (choices.substr(at, comma - at) == value) return true;
    }
    return false;
}

// Whether a number is finite and within the bounds of a row.
inline bool is_inside(const OptionRow& row, double n) {
    const bool open_below = row.bounds == OptionRow::ABOVE_LOWEST || row.bounds == OptionRow::ABOVE_LOWEST_CLOSED;
    if (!std::isfinite(n) || (open_below && n <= row.lowest)) return false;
    return n >= row.lowest && (row.bounds == OptionRow::BELOW_HIGHEST ? n < row.highest : n <= row.highest);
}

// Sets the option of a row. Returns what is wrong with the value; empty if nothing.
inline std::string option_problem(Options& options, const OptionRow& row, const std::string& value) {
    if (row.text) {
        if (!is_choice(row.accepted, value)) return "is not one of the choices";
        if ((double)value.size() < row.lowest) return "has no characters";
        options.*row.text = value;
        return "";
    }
    double number;
    if (row.whole) {
        int64_t n;
        if (!parse_whole(value, n)) return "is not a whole number";
        number = (double)n;
        if (row.lowest == -1 && row.accepted[4] == '1' && n == 0) return "is not accepted";  // "-1, 1.."
        options.*row.whole = n;
    } else {
        if (!parse_real(value, number)) return "is not a finite number";
        options.*row.real = number;
    }
    if (!is_inside(row, number)) return "is out of range";
    if (row.fp32 && !is_inside(row, (float)number))
        return format("is %g in fp32, as which it is used", (double)(float)number);
    return "";
}

// Sets the option of a flag of the command line; exit 2 if the value is not accepted.
inline void set_option(Options& options, const OptionRow& row, const std::string& name, const std::string& value) {
    const std::string problem = option_problem(options, row, value);
    if (!problem.empty())
        usage_error("%s %s %s; accepted: %s", name, value.empty() ? "(empty)" : value, problem, accepted_text(row));
    options.given.insert(row.long_name);
}

// Sets the option of a flag without a value, or of `--help all`.
inline void set_sign(Options& options, const OptionRow& row, bool has_value, const std::string& value) {
    const bool is_help = row.whole == &Options::help;
    if (has_value && !is_help)
        usage_error("%s %s: this flag takes no value; it is accepted alone", row.long_name, value);
    if (has_value && value != "all")
        usage_error("--help %s is not accepted; --help shows the everyday flags, --help all shows all",
                    value.empty() ? "(empty)" : value);
    options.*row.whole = has_value ? HELP_ALL : 1;
}

// A word, quoted where a shell needs that.
inline std::string shell_word(const std::string& word) {
    const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
    if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
    std::string quoted = "'";
    for (char c : word) c == '\'' ? quoted += "'\\''" : quoted += c;
    return quoted + "'";
}

// The edit distance of two words (Levenshtein 1966): the fewest letters to add, drop or change that
// turn one into the other. row[j] is the distance of the first i letters of a and the first j of b;
// corner is that of i - 1 and j - 1.
inline size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (size_t i = 1; i <= a.size(); i++)
        for (size_t j = 1, corner = row[0]++; j <= b.size(); j++) {
            const size_t changed = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = std::min(changed, std::min(row[j - 1], row[j]) + 1);
        }
    return row.back();
}

// The flag of the first letters of a name's words: "--lr" of "--learning-rate".
inline std::string initials_of(const std::string& name) {
    std::string text = "--";
    for (size_t i = 2; i < name.size(); i++)
        if (name[i - 1] == '-') text += name[i];
    return text;
}

// Exit 2, naming the flag that was probably meant: one that begins with this name or has its
// letters as initials, or the nearest by edit distance.
[[noreturn]] inline void refuse_unknown(const std::string& name) {
    std::string hyphenated = name, nearest;
    std::replace(hyphenated.begin(), hyphenated.end(), '_', '-');
    size_t least = std::min<size_t>(4, name.size() / 2);  // anything further away is another word
    for (const OptionRow& row : option_table()) {
        if (name.size() > 3 && initials_of(row.long_name) == name) least = 0, nearest = row.long_name;
        const bool begins = name.size() > 4 && std::string(row.long_name).rfind(hyphenated, 0) == 0;
        const size_t distance = begins ? 0 : edit_distance(hyphenated, row.long_name);
        if (distance < least) least = distance, nearest = row.long_name;
    }
    if (nearest.empty()) usage_error("unknown flag %s; --help all lists what is accepted", name);
    usage_error("unknown flag %s, perhaps %s; --help all lists what is accepted", name, nearest);
}

// The options of a command line; exit 2 for a mistake. Default files are looked for beside the
// program, too (default_files.h).
inline Options parse_options(int argc, char** argv) {
    Options options;
    options.program = shell_word(argv[0]);
    for (int i = 0; i < argc; i++) options.command += (i ? " " : "") + shell_word(argv[i]);
    using O = Options;
    for (std::string O::*file : {&O::train_data, &O::val_data, &O::tokenizer, &O::hellaswag_data})
        options.*file = default_file(options.*file);
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i], value;
        const size_t equals = name.rfind("--", 0) == 0 ? name.find('=') : name.npos;
        if (equals != name.npos) value = name.substr(equals + 1), name.resize(equals);
        const OptionRow* row = find_option(name);
        if (!row) refuse_unknown(name);
        bool has_value = equals != name.npos;
        const bool may_follow = row->takes_value || (row->whole == &O::help && i + 1 < argc && *argv[i + 1] != '-');
        if (!has_value && may_follow && i + 1 < argc) value = argv[++i], has_value = true;
        if (!row->takes_value) set_sign(options, *row, has_value, value);
        else if (has_value) set_option(options, *row, name, value);
        else usage_error("%s needs a value; accepted: %s (--help all lists all flags)", name, accepted_text(*row));
    }
    return options;
}

// With -x 0, `--prompt ""` asks for a text from nothing.
inline bool has_prompt(const Options& options) {
    const bool from_nothing = options.max_steps == 0 && options.given.count("--prompt");
    return !options.prompt.empty() || from_nothing;
}
// True if the run does nothing but generate from a prompt.
inline bool only_generates(const Options& options) { return options.max_steps == 0 && has_prompt(options); }

// Whether -j names texts, not token shards.
inline bool is_text(const std::string& pattern) { return ends_with(pattern, ".txt"); }

// True if the run computes a validation loss: on texts, or on token shards.
inline bool validates(const Options& options) { return options.val_every > 0 && !only_generates(options); }
inline bool validates_on_text(const Options& options) { return validates(options) && is_text(options.val_data); }
// True if the run turns text into tokens.
inline bool encodes(const Options& options) { return has_prompt(options) || validates_on_text(options); }

inline std::string option_text(const Options& options, const OptionRow& row) {
    if (row.text) return options.*row.text;
    return row.whole ? std::to_string(options.*row.whole) : format("%g", options.*row.real);
}
// The flags that must be the same in all processes of a run, with their values: all but those that
// say which process this is, where the others are, and what cannot change the run.
inline std::vector<std::string> common_flags(const Options& options) {
    std::vector<std::string> flags;
    for (const OptionRow& row : option_table()) {
        const bool own = row.whole == &Options::process_rank || row.whole == &Options::num_processes ||
                         row.whole == &Options::threads || row.whole == &Options::quiet ||
                         row.text == &Options::server_ip || row.text == &Options::fs_path;
        if (row.takes_value && !own) flags.push_back(format("%s %s", row.long_name, option_text(options, row)));
    }
    return flags;
}
// The flags that differ from their defaults, one per line. `given` has the values that the user
// set, and those of the run to resume; `settled` those in force, in which sizes left open have been
// computed; `usual` what those are unless a flag says otherwise. The rate of another optimizer than
// the default is shown.
inline std::string settings_text(const Options& given, const Options& settled, const Options& usual) {
    const Options defaults;
    std::string text;
    for (const OptionRow& row : option_table()) {
        const bool is_rate = row.real == &Options::learning_rate;
        const std::string value = option_text(is_rate ? settled : given, row);
        const bool usual_value = value == option_text(usual, row);
        const bool chosen = (given.given.count(row.long_name) && !is_rate) || !usual_value;
        const bool own_rate = is_rate && given.optimizer != defaults.optimizer;
        if (row.takes_value && ((value != option_text(defaults, row) && chosen) || own_rate))
            text += format("\n| %-20s | %s", row.long_name + 2, option_text(settled, row));
    }
    return text.empty() ? text : text.substr(1);
}
