# Targets: `make help` lists them. Everything here needs a C++17 compiler (g++ 12, clang 14 or newer) and make, nothing else.
#
#   ARCH=native        what to compile for: native, or any -march (x86-64-v3, x86-64-v4, armv8-a)
#   KERNELS=fast       fast, or reference: the naive loops of llmc/cpu/reference.h
#   SANITIZE=          address (with undefined), or nothing
# Changing one of these, or the compiler, rebuilds.

CXX      ?= g++
ARCH     ?= native
KERNELS  ?= fast
SANITIZE ?=

# -O3             the compiler's full optimizer; no -Ofast and no finite-math: NaN must stay NaN, sums keep their order
# -ffp-contract   a*b+c as one fused multiply-add, which is what the peak counts
# -fno-math-errno sqrt need not set errno, so it can be vectorised
# -Wno-psabi      no note about how wide vectors are passed between functions; all of ours are inlined
CXXFLAGS = -std=c++17 -O3 -march=$(ARCH) -ffp-contract=fast -fno-math-errno -Wall -Wextra -Wno-psabi -g1 -I.
ifneq ($(SANITIZE),)
CXXFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
ifeq ($(KERNELS),reference)
CXXFLAGS += -DKERNELS_REFERENCE
else ifneq ($(KERNELS),fast)
$(error KERNELS=$(KERNELS) is unknown; fast and reference are accepted)
endif
ifneq ($(filter-out address,$(SANITIZE)),)
$(error SANITIZE=$(SANITIZE) is unknown; address and nothing are accepted)
endif

# OpenMP where a test program with it compiles and links; one thread without.
OPENMP := $(shell echo 'int main(){}' | $(CXX) -x c++ -fopenmp - -o /dev/null 2>/dev/null && echo -fopenmp || echo -Wno-unknown-pragmas)
CXXFLAGS += $(OPENMP)

# A file that changes when the flags do; programs depend on it.
FLAGS_FILE := build/flags
$(shell mkdir -p build; echo '$(CXX) $(CXXFLAGS)' | cmp -s - $(FLAGS_FILE) || echo '$(CXX) $(CXXFLAGS)' > $(FLAGS_FILE))

TEXTS   := $(wildcard dev/data/shakespeare/*.txt)
DATA    := dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin
TESTS   := build/test_kernels build/test_host build/test_model build/test_runs

.PHONY: all help data quickstart test test-sanitized check-headers bench clean
all: train_gpt2_cpu tokenize          ## the programs

help:                                 ## this list
	@grep -hE '^[a-z_0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 22

train_gpt2_cpu: train_gpt2_cpu.cpp $(FLAGS_FILE) | $(DATA)   ## the CPU trainer
	$(CXX) $(CXXFLAGS) -MMD -MP -MF build/$@.d -MT $@ $< -o $@

tokenize: dev/data/tokenize.cpp $(FLAGS_FILE)      ## text to tokens and back
	$(CXX) $(CXXFLAGS) -MMD -MP -MF build/$@.d -MT $@ $< -o $@

build/unigram: dev/data/unigram.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@

build/bench_gemm: dev/cpu/bench_gemm.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@

build/test_%: dev/test/test_%.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@

# ---- CUDA sources. PRECISION=BF16 or FP32.
PRECISION ?= BF16
ifeq ($(filter $(PRECISION),BF16 FP32),)
$(error PRECISION=$(PRECISION) is unknown; BF16 and FP32 are accepted)
endif

# The simulator compiles copies in which __shared__ is rewritten (dev/cusim/rewrite.sed); #line keeps their names and line numbers.
CUDA_SOURCES := train_gpt2.cu test_gpt2.cu $(wildcard llmc/cuda/*.cuh dev/cuda/*.cu dev/cusim/test/*.cu)
SIM_SOURCES  := $(CUDA_SOURCES:%=build/sim/%)
SIMFLAGS      = -Ibuild/sim -Idev/cusim/include $(CXXFLAGS) -DPRECISION_$(PRECISION) -Wno-unknown-pragmas

build/sim/%: % dev/cusim/rewrite.sed
	@mkdir -p $(@D)
	@{ echo '#line 1 "$<"'; sed -E -f dev/cusim/rewrite.sed $<; } > $@

build/cusim.o: dev/cusim/cusim.cpp dev/cusim/cusim.h dev/cusim/include/cuda_runtime.h $(FLAGS_FILE)
	$(CXX) $(filter-out -fsanitize% -fno-sanitize%,$(CXXFLAGS)) -Idev/cusim/include -c $< -o $@
build/cusim_blas.o: dev/cusim/blas.cpp $(FLAGS_FILE)
	$(CXX) $(filter-out -fsanitize% -fno-sanitize%,$(CXXFLAGS)) -Idev/cusim/include -MMD -MP -MF build/cusim_blas.d -c $< -o $@

train_gpt2sim: $(SIM_SOURCES) build/cusim.o build/cusim_blas.o $(FLAGS_FILE)   ## the GPU trainer on a CPU: no GPU, no CUDA toolkit
	$(CXX) $(SIMFLAGS) -MMD -MP -MF build/$@.d -MT $@ -x c++ build/sim/train_gpt2.cu -x none build/cusim.o build/cusim_blas.o -pthread -ldl -o $@

build/cpu_oracle.o: dev/test/cpu_oracle.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF build/cpu_oracle.d -MT $@ -c $< -o $@

test_gpt2sim: $(SIM_SOURCES) build/cusim.o build/cusim_blas.o build/cpu_oracle.o $(FLAGS_FILE)   ## the tests of the GPU trainer, on a CPU
	$(CXX) $(SIMFLAGS) -MMD -MP -MF build/$@.d -MT $@ -x c++ build/sim/test_gpt2.cu -x none build/cusim.o build/cusim_blas.o build/cpu_oracle.o -pthread -ldl -o $@

-include $(wildcard build/*.d)

# Both shards come from one command; it writes the second last, so that one stands for both.
dev/data/shakespeare_val.bin: $(TEXTS) dev/data/gpt2_tokenizer.bin | tokenize
	./tokenize $(TEXTS) -o dev/data/shakespeare
dev/data/shakespeare_train.bin: dev/data/shakespeare_val.bin
	@if test -f $@; then touch $@; else ./tokenize $(TEXTS) -o dev/data/shakespeare; fi
data: $(DATA)                         ## tokenizes the text that comes with the repository

quickstart: train_gpt2_cpu build/unigram $(DATA)   ## trains a small GPT-2 from scratch in about two minutes, and samples from it
	@scripts/quickstart.sh

test: all $(DATA) $(TESTS)            ## everything this machine can test
	@dev/test/run.sh $(TESTS)

test-sanitized:                       ## the unit tests under ASan and UBSan, in build/sanitized
	@dev/test/sanitized.sh

check-headers:                        ## every header compiles alone, and twice
	@dev/test/check_headers.sh "$(CXX)" "$(CXXFLAGS)"

bench: train_gpt2_cpu tokenize build/bench_gemm $(DATA)   ## this trainer beside PyTorch (needs: pip install torch)
	python3 dev/bench.py

clean:                                ## removes what was built; data and logs stay
	rm -rf build train_gpt2_cpu tokenize
