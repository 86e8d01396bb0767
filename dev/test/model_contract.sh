#!/bin/sh
# What a trainer does not provide of llmc/run/model_contract.h, the compiler's first error names: a function that is
# missing, and one that returns another type.
cxx=${CXX:-g++} source=dev/test/model_contract.cpp copy=build/model_contract.cpp
flags="-std=c++17 -fsyntax-only -I."
mkdir -p build
fail() { echo "$1"; exit 1; }
expect_first_error() {  # what it must name
    error=$($cxx $flags $copy 2>&1 | grep -m 1 'error: ')
    case $error in *"$1"*) ;; *) fail "the first error names no $1: $error" ;; esac
}

$cxx $flags $source || fail "the trainer of declarations does not fulfil the contract"
for name in slice parts gradients_complete; do
    grep -v " $name;" $source > $copy
    expect_first_error "$name"
done
for name in param settle_device micro_step prefill decode device_status device_reading; do
    grep -v "[ *]$name(" $source > $copy
    expect_first_error "$name"
done
for name in allocate update decode detected; do
    sed -E "s/^.*[ *]($name\(.*\);)\$/Model \1/" $source > $copy
    expect_first_error " $name("
done
