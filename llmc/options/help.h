// What --help prints: the everyday flags by groups; --help all prints all flags, and what each
// accepts.
#pragma once
#include <cstring>
#include "llmc/base/text.h"
#include "llmc/options/option_table.h"

inline std::string names_of(const OptionRow& row) {
    return *row.short_name ? std::string(row.short_name) + ", " + row.long_name : row.long_name;
}

// What a flag accepts, in words. In the table, "1.." stands for 1 or more, "0..<1" for 0 to below
// 1, "0<..1" for above 0 to 1.
inline std::string accepted_text(const OptionRow& row) {
    std::string text = row.accepted;
    auto replace = [&](const char* sign, const char* word) {
        const size_t at = text.find(sign);
        if (at != text.npos) text.replace(at, strlen(sign), word);
    };
    if (ends_with(text, "..")) replace("..", " or more");
    if (text.find("<..") != text.npos) text = "above " + text, replace("<", "");
    replace("..<", " to below ");
    replace("..", " to ");
    replace(">", "above ");
    return text;
}

// A text in lines of so many columns, which are indented but for the first.
inline std::string wrapped(std::string text, size_t columns, size_t indent) {
    for (size_t begin = 0; text.size() - begin > columns;) {
        const size_t space = text.rfind(' ', begin + columns);
        if (space == text.npos || space <= begin + indent) break;
        text.replace(space, 1, "\n" + std::string(indent, ' '));
        begin = space + 1;
    }
    return text;
}

constexpr int HELP_COLUMNS = 100, HELP_INDENT = 29;

// The lines of one flag. --help has its meaning with the choices, if it has a list of them, and the
// default in brackets; --help all has a line on what is accepted.
inline std::string help_of(const OptionRow& row, bool all) {
    const std::string names = format("  %-25s  ", names_of(row));
    auto lines = [&](const std::string& text) { return wrapped(text, HELP_COLUMNS, HELP_INDENT) + "\n"; };
    if (all && *row.accepted)
        return lines(names + row.meaning) +
               lines(format("%*saccepted: %s; default: %s", HELP_INDENT, "", accepted_text(row), row.fallback));
    std::string text = names + row.meaning;
    if (row.text && strstr(row.accepted, ", ")) text += format("; one of %s", accepted_text(row));
    if (*row.fallback && strcmp(row.fallback, "none") != 0) text += format(" [%s]", row.fallback);
    return lines(text);
}

inline std::string help_text(const std::string& program, bool all) {
    std::string text =
        format("usage: %s [flags]      each flag as `--name value`, `--name=value` or `-short value`\n", program);
    int shown = 0;
    for (int group = 0; group < NUM_OPTION_GROUPS; group++) {
        std::string rows;
        for (const OptionRow& row : option_table())
            if ((row.group | EVERYDAY) == (group | EVERYDAY) && (all || row.group & EVERYDAY))
                rows += help_of(row, all), shown++;
        if (!rows.empty()) text += format("\n%s\n%s", OPTION_GROUPS[group], rows);
    }
    if (all) return text;
    return text +
           format("\n%d of %d flags, their defaults in brackets; `--help all` shows all, and what each accepts.\n",
                  shown, option_table().size());
}

inline void print_help(const Options& o) { fputs(help_text(o.program, o.help == HELP_ALL).c_str(), stdout); }
