#!/bin/sh
# The unit tests built with AddressSanitizer and UndefinedBehaviorSanitizer, beside the ordinary build.
set -e
mkdir -p build/sanitized
flags="-std=c++17 -O1 -g -march=${ARCH:-native} -ffp-contract=fast -fno-math-errno -fsanitize=address,undefined -fno-sanitize-recover=all -Wno-psabi -I."
echo 'int main(){}' | ${CXX:-g++} -x c++ -fopenmp - -o /dev/null 2>/dev/null && flags="$flags -fopenmp"
for test in kernels host model; do
    ${CXX:-g++} $flags dev/test/test_$test.cpp -o build/sanitized/test_$test
    build/sanitized/test_$test
done
