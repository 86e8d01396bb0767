// Prints as JSON what dev/modern/hf.py needs to read and write model files after GPT-2: the header,
// and the tensors in the order of the file.
//
//     modern_table model.bin
//     modern_table maxT=64 V=100 L=2 NH=3 ...     the fields of files.h; others have their defaults
#include "dev/modern/files.h"
#include "llmc/base/program.h"

namespace modern {

// Sets the field of this name.
struct FieldSetter {
    std::string name, value;
    bool found = false;
    void operator()(const char* field, int64_t& whole) {
        if (name == field) found = parse_whole(value, whole);
    }
    void operator()(const char* field, float& real) {
        double number;
        if (name == field && (found = parse_real(value, number))) real = (float)number;
    }
};
struct FieldPrinter {
    void operator()(const char* field, int64_t whole) { printf(", \"%s\": %lld", field, (long long)whole); }
    void operator()(const char* field, float real) { printf(", \"%s\": %.9g", field, (double)real); }
};

static int print_table(int argc, char** argv) {
    Config c;
    bool in_bf16 = false;
    if (argc == 2 && ends_with(argv[1], ".bin")) {
        FileReader file(argv[1]);
        c = read_model_header(file, in_bf16);
    } else {
        for (int i = 1; i < argc; i++) {
            const std::string text = argv[i];
            const size_t equals = std::min(text.find('='), text.size() - 1);
            FieldSetter setter{text.substr(0, equals), text.substr(equals + 1)};
            for_each_field(c, std::ref(setter));
            if (!setter.found) usage_error("%s is no field with a number", text);
        }
        c.Vp = round_up(c.V, (int64_t)128);
    }
    const std::string problem = problem_of(c);
    if (!problem.empty()) usage_error("%s", problem);
    printf("{\"dtype\": \"%s\"", in_bf16 ? "bf16" : "fp32");
    FieldPrinter printer;
    for_each_field(c, printer);
    for (bool bf16 : {false, true}) {
        printf(", \"header_%s\": [", bf16 ? "bf16" : "fp32");
        const Header h = header_of(c, bf16);
        for (int i = 0; i < 256; i++) printf("%s%d", i ? ", " : "", h.value[i]);
        printf("]");
    }
    printf(", \"tensors\": [");
    for (int i = 0; i < TENSORS; i++) {
        const TensorShape shape = shape_of(i, c);
        printf("%s{\"name\": \"%s\", \"rows\": %lld, \"cols\": %lld, \"layers\": %lld, \"decayed\": %d}", i ? ", " : "",
               shape.name, (long long)shape.rows, (long long)shape.cols, (long long)shape.layers, shape.decayed);
    }
    printf("]}\n");
    return 0;
}

}  // namespace modern

int main(int argc, char** argv) {
    return run_program([&] { return modern::print_table(argc, argv); });
}
