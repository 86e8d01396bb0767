// How the programs of the course print what pages and pictures are made from: one array per line,
// as JSON, with as many digits as its type has.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

using Shape = std::vector<int64_t>;

template <class T>
inline void show(const std::string& name, const Shape& shape, const std::vector<T>& values) {
    printf("{\"name\": \"%s\", \"shape\": [", name.c_str());
    for (size_t i = 0; i < shape.size(); i++) printf("%s%lld", i ? ", " : "", (long long)shape[i]);
    printf("], \"values\": [");
    for (size_t i = 0; i < values.size(); i++)
        printf("%s%.*g", i ? ", " : "", std::is_same_v<T, float> ? 9 : 17, (double)values[i]);
    printf("]}\n");
}

// A single number: an array without dimensions.
inline void show(const std::string& name, int64_t value) { show(name, {}, std::vector<int64_t>{value}); }

// The numbers f(0), ..., f(count - 1).
template <class F>
inline void show_each(const std::string& name, int64_t count, F f) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; i++) values.push_back((double)f(i));
    show(name, {count}, values);
}

// The part of a program that its argument names; a list of all parts, and exit 2, if there is none.
struct Part {
    const char* name;
    void (*show)();
};
template <size_t N>
inline int show_part(const Part (&parts)[N], int argc, char** argv) {
    for (const Part& part : parts)
        if (argc == 2 && part.name == std::string(argv[1])) return part.show(), 0;
    fprintf(stderr, "usage: %s NAME, one of:", argv[0]);
    for (const Part& part : parts) fprintf(stderr, " %s", part.name);
    fprintf(stderr, "\n");
    return 2;
}
