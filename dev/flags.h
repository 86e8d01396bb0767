// The flags of programs in dev/ that need few: each has a value, and a mistake is one sentence.
#pragma once
#include <map>
#include <string>
#include "llmc/base/check.h"
#include "llmc/base/parse.h"

struct Whole {
    int64_t* number;
    int64_t least = 1, most = 100000;
};
struct Real {
    double* number;
    double most;
    Real(double* number, double most = 1000) : number(number), most(most) {}  // from 0 on
};
struct Flags {
    std::map<std::string, std::string*> texts;
    std::map<std::string, Whole> wholes;
    std::map<std::string, Real> reals{};
};
// Writes the values of a command line. Exit 2 for a flag or a value that is not accepted.
inline void read_flags(int argc, char** argv, const Flags& flags) {
    std::string names;
    for (const auto& [name, text] : flags.texts) names += " " + name;
    for (const auto& [name, whole] : flags.wholes) names += " " + name;
    for (const auto& [name, real] : flags.reals) names += " " + name;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
        if (flags.texts.count(name)) {
            *flags.texts.at(name) = value;
        } else if (flags.wholes.count(name)) {
            const Whole& of = flags.wholes.at(name);
            if (!parse_whole(value, *of.number) || *of.number < of.least || *of.number > of.most)
                usage_error("%s \"%s\": whole numbers from %d to %d are accepted", name, value, of.least, of.most);
        } else if (flags.reals.count(name)) {
            const Real& of = flags.reals.at(name);
            if (!parse_real(value, *of.number) || *of.number < 0 || *of.number > of.most)
                usage_error("%s \"%s\": numbers from 0 to %g are accepted", name, value, of.most);
        } else {
            usage_error("%s is unknown;%s are accepted", name, names);
        }
    }
}
