// Tries the parsers on damaged inputs, within one process (harness.h says what is checked). Built
// with sanitizers, by g++ or clang:
//
//     fuzz_parsers                     10,000 cases, the same each time, on all cores
//     fuzz_parsers --cases N --seed S
//     fuzz_parsers --only state-17     one case again; --only state: those of one parser
//     fuzz_parsers --try state FILE    an input from a file
//     fuzz_parsers --damage binary|text SEED FROM TO   a damaged copy of any file
//     fuzz_parsers --seeds FOLDER      the valid inputs, as FOLDER/PARSER/NUMBER
//     fuzz_parsers --list              the names of the parsers
//
// A case is a valid input, or one of dev/test/fuzz/corpus, with one to three changes (mutate.h). An
// input that breaks a promise is kept in build/fuzz.
//
// Compiled by clang with -fsanitize=fuzzer and -DGUIDED it is a program of libFuzzer, which changes
// inputs by what they reach in the parser that the variable FUZZ_PARSER names.
#include "dev/test/fuzz/parsers.h"

// What AddressSanitizer is to do unless the environment says otherwise.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:max_allocation_size_mb=1024"; }

#ifdef GUIDED
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t room);

static const Parser& guided_parser() {
    static const Parser& parser = PARSERS[parser_of(getenv("FUZZ_PARSER") ? getenv("FUZZ_PARSER") : "none")];
    return parser;
}
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    watch_allocations();
    make_scratch();
    atexit(remove_scratch);
    return guided_parser().seeds(), 0;
}
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    return run_case(guided_parser(), std::string((const char*)data, bytes)), 0;
}
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t room, unsigned seed) {
    Draw draw(seed, 0, 0);
    const Parser& parser = guided_parser();
    const bool own = draw.chance(2);
    if (!own) bytes = LLVMFuzzerMutate(data, bytes, room);
    std::string input((const char*)data, bytes);
    if (own) change(input, parser, draw);
    else if (parser.repair && !draw.chance(4)) parser.repair(input);
    bytes = std::min(room, input.size());
    memcpy(data, input.data(), bytes);
    return bytes;
}
#else
#include "dev/test/fuzz/cases.h"

// Writes the valid inputs of all parsers as files, for libFuzzer.
static void write_seeds(const std::string& folder) {
    const std::vector<Inputs> inputs = all_inputs();
    for (size_t p = 0; p < NUM_PARSERS; p++) {
        make_folder(folder + "/" + PARSERS[p].name);
        for (size_t i = 0; i < inputs[p].valid; i++) {
            FileWriter file(folder + "/" + PARSERS[p].name + format("/valid%d", i));
            file.write(inputs[p].all[i].data(), inputs[p].all[i].size());
            file.commit();
        }
    }
}
static void damage(const std::string& kind, uint64_t seed, const std::string& from, const std::string& to) {
    Draw draw(seed, NUM_PARSERS, 0);
    std::string bytes = content_of(from);
    mutate(bytes, kind == "text" ? OBJECTS : BINARY, draw);
    FileWriter file(to);
    file.write(bytes.data(), bytes.size());
    file.commit();
}

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const std::string first = words.empty() ? "" : words[0];
    int64_t cases = 10000, seed = 1;
    std::string only;
    if (first == "--list")
        for (const Parser& parser : PARSERS) printf("%s\n", parser.name);
    if (first == "--list") return 0;
    if (first == "--damage" && words.size() == 5)
        return damage(words[1], strtoull(words[2].c_str(), nullptr, 10), words[3], words[4]), 0;
    make_scratch();
    atexit(remove_scratch);
    if (first == "--seeds" && words.size() == 2) return write_seeds(words[1]), 0;
    if (first == "--try" && words.size() == 3) {
        const Parser& parser = PARSERS[parser_of(words[1])];
        watch_allocations();
        return run_case(parser, content_of(words[2]));
    }
    for (size_t i = 0; i < words.size(); i += 2) {
        const std::string value = i + 1 < words.size() ? words[i + 1] : "";
        const bool good = words[i] == "--only"    ? !(only = value).empty()
                          : words[i] == "--cases" ? parse_whole(value, cases) && cases > 0
                          : words[i] == "--seed"  ? parse_whole(value, seed)
                                                  : false;
        if (!good) usage_error("%s %s is not accepted; fuzz_parsers.cpp says what is", words[i], value);
    }
    return fuzz((size_t)cases, (uint64_t)seed, only);
}
#endif
