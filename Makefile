# Targets: `make help` lists them. Everything here needs a C++17 compiler (g++ 12, clang 14 or newer) and make, nothing else.
#
#   ARCH=native        what to compile for: native, or any -march (x86-64-v3, x86-64-v4, armv8-a)
#   KERNELS=fast       fast, or reference: the naive loops of llmc/cpu/reference.h
#   SANITIZE=          address (with undefined), thread, or nothing
#   PRECISION=BF16     of the GPU trainer and its simulator: BF16 (mixed precision) or FP32
#   HOSTCXX=g++        compiles what make itself runs, if CXX compiles for another machine
#   MPI=               several processes: found by a test compile (Open MPI); no: without
#   DEBUG=             1: no optimisation and full debug information, for gdb
#   GPU_ARCH=          for nvcc: native, or a list such as "80 90a"; if not given, native where there is a GPU, else 80, 90a, 100 and PTX
# Changing one of these, or a compiler, rebuilds.

CXX      ?= g++
comma    := ,
# Where objects go: sanitized and debug builds stand beside the ordinary one.
B        := build$(if $(SANITIZE),-$(SANITIZE))$(if $(DEBUG),-debug)
ARCH     ?= native
KERNELS  ?= fast
SANITIZE ?=
PRECISION ?= BF16
GPU_ARCH ?=
DEBUG    ?=
MPI      ?=

# -O3             the compiler's full optimizer; no -Ofast and no finite-math: NaN must stay NaN, sums keep their order
# -ffp-contract   a*b+c as one fused multiply-add, which is what the peak counts
# -fno-math-errno sqrt need not set errno, so it can be vectorised
# -pthread        the workers of llmc/cpu/threads.h
# -Wno-psabi      no note about how wide vectors are passed between functions; all of ours are inlined
CXXFLAGS = -std=c++17 -O3 -march=$(ARCH) -ffp-contract=fast -fno-math-errno -Wall -Wextra -Wno-psabi -g1 -pthread -I.
ifeq ($(filter BF16 FP32,$(PRECISION)),)
$(error PRECISION=$(PRECISION) is unknown; BF16 and FP32 are accepted)
endif
ifneq ($(DEBUG),)
CXXFLAGS += -O0 -g
endif
ifeq ($(SANITIZE),thread)
CXXFLAGS += -O1 -fsanitize=thread -fno-omit-frame-pointer
else ifneq ($(SANITIZE),)
CXXFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
ifeq ($(KERNELS),reference)
CXXFLAGS += -DKERNELS_REFERENCE
else ifneq ($(KERNELS),fast)
$(error KERNELS=$(KERNELS) is unknown; fast and reference are accepted)
endif
ifneq ($(filter-out address thread,$(SANITIZE)),)
$(error SANITIZE=$(SANITIZE) is unknown; address, thread and nothing are accepted)
endif

# MPI where a test program with it compiles and links.
MPI_COMPILE := $(shell mpicxx --showme:compile 2>/dev/null)
MPI_LINK    := $(shell mpicxx --showme:link 2>/dev/null)
ifneq ($(MPI),no)
ifeq ($(shell mkdir -p build; printf '\043include <mpi.h>\nint main(){MPI_Init(0,0);}' | $(CXX) $(MPI_COMPILE) -x c++ - -o build/mpi_test $(MPI_LINK) 2>/dev/null && echo yes),yes)
CXXFLAGS += -DUSE_MPI $(addprefix -isystem ,$(patsubst -I%,%,$(filter -I%,$(MPI_COMPILE))))
LDLIBS   += -Wl,--as-needed $(MPI_LINK)
endif
endif

# Files that change when what they hold does; programs depend on them.
stamp = $(shell mkdir -p $(dir $(1)); echo '$(2)' | cmp -s - $(1) || echo '$(2)' > $(1))$(1)
FLAGS_FILE := $(call stamp,$(B)/flags,$(CXX) $(CXXFLAGS))

TEXTS   := $(wildcard dev/data/shakespeare/*.txt)
DATA    := dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin
LADDERS := $(patsubst dev/cpu/%.cpp,$(B)/bench/%,$(filter-out %/roofline.cpp %/products.cpp,$(wildcard dev/cpu/*.cpp)))
TESTS   := test_kernels test_softmax test_threads test_peak test_host test_data_files test_tokenize test_model test_model_bf16 \
           test_runs test_output test_start_stop test_checkpoints test_processes test_rendezvous \
           FP32/test_gpt2sim BF16/test_gpt2sim test_sim test_gpus
TESTS   := $(TESTS:%=$(B)/%)

.PHONY: all help data quickstart test format test-sanitized check-headers kernel-table bench bench-cpu bench-gpu bench-cuda check-cuda quality clean
all: train_gpt2_cpu tokenize          ## the programs

help:                                 ## this list
	@grep -hE '^[a-z_0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 22

# A program is built where its kind of build has its objects, and copied here: building one kind leaves the others' alone.
copy = @cmp -s $(1) $@ || { cp $(1) $@.new && mv $@.new $@; }
train_gpt2_cpu: $(B)/train_gpt2_cpu FORCE      ## the CPU trainer
	$(call copy,$<)
tokenize: $(B)/tokenize FORCE                  ## text to tokens and back
	$(call copy,$<)
FORCE:

$(B)/train_gpt2_cpu: train_gpt2_cpu.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)
$(B)/tokenize: dev/data/tokenize.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)

$(B)/unigram: dev/data/unigram.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)

$(B)/bench/%: dev/cpu/%.cpp $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)

$(B)/planted_bench: dev/test/planted_bench.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)

$(B)/test_%: dev/test/test_%.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDLIBS)

# ---- the GPU trainer, with nvcc

NVCC     := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
ARCHS    := $(or $(GPU_ARCH),$(if $(shell nvidia-smi -L 2>/dev/null),native,80 90a $(shell $(NVCC) --list-gpu-arch 2>/dev/null | sed -n 's/^compute_100$$/100/p') ptx))
GENCODE  := $(foreach a,$(ARCHS),$(if $(filter native,$a),-arch=native,$(if $(filter ptx,$a),-gencode arch=compute_80$(comma)code=compute_80,-gencode arch=compute_$a$(comma)code=sm_$a)))
# -t 0            the architectures are compiled side by side
# -lineinfo       profilers show source lines
# -Wno-parentheses nvcc's intermediate file has some of its own
NVCCFLAGS = -std=c++17 -O3 -t 0 -lineinfo -I. -DPRECISION_$(PRECISION) $(GENCODE) -Xcompiler "-Wall -Wextra -Wno-parentheses"
NVCC_FILE := $(call stamp,build/nvcc_flags,$(NVCC) $(ARCHS) $(PRECISION) $(MPI))
NVCC_LIBS = -lcublasLt -ldl $(NCCL_LINK)
# NCCL where a test program with it compiles and links, and MPI as above; one process without.
NCCL_LINK = $(if $(NCCL),-lnccl) $(if $(findstring -DUSE_MPI,$(CXXFLAGS)),$(MPI_LINK))
NCCL      = $(shell mkdir -p build; printf '\043include <nccl.h>\nint main(){ncclComm_t c;ncclCommCount(c,0);}' > build/nccl_test.cu; $(NVCC) build/nccl_test.cu -o build/nccl_test -lnccl 2>/dev/null && echo yes)
NVCCFLAGS += $(if $(NCCL),-DUSE_NCCL) $(if $(findstring -DUSE_MPI,$(CXXFLAGS)),-DUSE_MPI $(filter -I%,$(MPI_COMPILE)))

train_gpt2cu: train_gpt2.cu $(NVCC_FILE)       ## the GPU trainer (needs the CUDA toolkit)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(B)/$@.d -MT $@ $< -o $@ $(NVCC_LIBS)
test_gpt2cu: test_gpt2.cu $(B)/cpu_oracle.o $(NVCC_FILE)  ## its tests
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(B)/$@.d -MT $@ $< $(B)/cpu_oracle.o -o $@ $(NVCC_LIBS) -lpthread
$(B)/cpu_oracle.o: dev/test/cpu_oracle.cpp $(FLAGS_FILE)
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

# ---- the same sources in the simulator: no GPU, no CUDA toolkit

# It compiles copies in which __shared__ is rewritten (dev/cusim/rewrite.sed); #line keeps their names and line numbers.
SIM_SOURCES := $(patsubst %,build/sim/%,train_gpt2.cu test_gpt2.cu $(wildcard llmc/cuda/*.cuh dev/cusim/test/*.cu))
SIM_OBJECTS := $(B)/cusim.o $(B)/cusim_blas.o $(B)/cusim_nccl.o
SIMFLAGS     = -Ibuild/sim -Idev/cusim/include $(CXXFLAGS) -Wno-unknown-pragmas $(if $(SANITIZE),-DCUSIM_SANITIZE_$(SANITIZE)) -DUSE_NCCL

build/sim/%: % dev/cusim/rewrite.sed
	@mkdir -p $(@D)
	@{ echo '#line 1 "$<"'; sed -E -f dev/cusim/rewrite.sed $<; } > $@
$(SIM_OBJECTS): $(B)/%.o: dev/cusim/%.cpp $(FLAGS_FILE)     # the machinery itself is not sanitized
	$(CXX) $(filter-out -fsanitize% -fno-sanitize%,$(SIMFLAGS)) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

# Both precisions side by side in $(B)/; the programs in the root are those of PRECISION.
define sim_program
$(B)/$(2)/$(1)sim: $$(SIM_SOURCES) $$(SIM_OBJECTS) $(3) $$(FLAGS_FILE)
	@mkdir -p $$(@D)
	$$(CXX) $$(SIMFLAGS) -DPRECISION_$(2) -MMD -MP -MF $(B)/$(1)sim_$(2).d -MT $$@ -x c++ build/sim/$(1).cu -x none $(3) $$(SIM_OBJECTS) -rdynamic -ldl -o $$@ $$(LDLIBS)
endef
$(foreach p,BF16 FP32,$(eval $(call sim_program,train_gpt2,$p,))$(eval $(call sim_program,test_gpt2,$p,$(B)/cpu_oracle.o)))
train_gpt2sim: $(B)/$(PRECISION)/train_gpt2sim FORCE   ## the GPU trainer on a CPU (dev/cusim)
	$(call copy,$<)
test_gpt2sim: $(B)/$(PRECISION)/test_gpt2sim FORCE     ## its tests, on a CPU
	$(call copy,$<)
$(B)/cusim_%: build/sim/dev/cusim/test/%.cu $(SIM_SOURCES) $(SIM_OBJECTS) $(FLAGS_FILE)
	$(CXX) $(SIMFLAGS) -x c++ $< -x none $(SIM_OBJECTS) -ldl -o $@ $(LDLIBS)

# The ladders of dev/cuda, here and with nvcc.
.SECONDARY:
CUDA_LADDERS := $(patsubst dev/cuda/%.cu,%,$(wildcard dev/cuda/*.cu))
$(B)/cuda/%: build/sim/dev/cuda/%.cu build/sim/dev/cuda/bench_cuda.cuh dev/bench.h dev/bench_run.h $(SIM_SOURCES) $(SIM_OBJECTS) $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(CXX) $(SIMFLAGS) -x c++ $< -x none $(SIM_OBJECTS) -rdynamic -ldl -o $@ $(LDLIBS)
build/nvcc/%: dev/cuda/%.cu $(NVCC_FILE)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(NVCC_LIBS)

-include $(wildcard $(B)/*.d $(B)/bench/*.d build/nvcc/*.d)

# What make itself runs is compiled for this machine, also where CXX compiles for another.
HOSTCXX ?= $(if $(shell command -v g++),g++,$(CXX))
build/host/%: dev/data/%.cpp $(wildcard llmc/*.h)
	@mkdir -p $(@D)
	$(HOSTCXX) -std=c++17 -O2 -pthread -I. $< -o $@

# Data is made for what runs with it, not to build a program. Both shards come from one command, which writes the second last.
# Few texts: their end is what validates.
dev/data/shakespeare_val.bin: $(TEXTS) dev/data/gpt2_tokenizer.bin | build/host/tokenize
	build/host/tokenize $(TEXTS) -o dev/data/shakespeare --val-split tail
dev/data/shakespeare_train.bin: | dev/data/shakespeare_val.bin
	test -f $@ || build/host/tokenize $(TEXTS) -o dev/data/shakespeare --val-split tail
data: $(DATA)                         ## tokenizes the text that comes with the repository

quickstart: train_gpt2_cpu $(B)/unigram $(DATA)   ## trains a small GPT-2 from scratch in about two minutes, and samples from it
	@scripts/quickstart.sh

test: all $(DATA) $(TESTS) $(B)/FP32/train_gpt2sim $(B)/BF16/train_gpt2sim $(B)/cusim_seeded_bugs $(LADDERS) $(B)/bench/roofline $(B)/bench/products $(B)/planted_bench $(CUDA_LADDERS:%=$(B)/cuda/%)   ## everything this machine can test
	@dev/test/run.sh $(TESTS)

test-sanitized:                       ## unit tests and kernels under ASan, UBSan and TSan
	@dev/test/sanitized.sh

check-headers: $(SIM_SOURCES)         ## every header compiles alone, and twice
	@dev/test/check_headers.sh "$(CXX)" "$(CXXFLAGS)"

kernel-table: $(B)/BF16/test_gpt2sim $(B)/FP32/test_gpt2sim   ## registers, shared memory, spills, occupancy of each GPU kernel (needs nvcc)
	@for p in BF16 FP32; do for t in kernels plan cpu; do CUSIM_LAUNCHES=build/launches_$${p}_$$t $(B)/$$p/test_gpt2sim $$t > /dev/null; done; done
	@cat build/launches_* > build/launches
	@WRITE=$(WRITE) python3 dev/cuda/kernel_table.py $(NVCC) build/launches $(filter-out native ptx,$(if $(filter native,$(ARCHS)),80 90a 100,$(ARCHS)))

bench: train_gpt2_cpu tokenize $(B)/bench/roofline $(B)/bench/products $(DATA)   ## this trainer beside PyTorch (needs: pip install torch)
	python3 dev/bench.py

# A lab that fails does not keep the others from running, nor the right variants from the tables.
ALL_PASSED = { test -z "$$failed" || { echo "failed:$$failed"; exit 1; }; }
bench-cpu: $(LADDERS)                 ## every variant of every CPU kernel; table and charts into dev/cpu/README.md
	@rm -f $(LADDERS:%=%.json); failed=; \
	for b in $(LADDERS); do $$b --json $$b.json || failed="$$failed $$b"; done; \
	python3 dev/bench_table.py dev/cpu/README.md $$(ls $(LADDERS:%=%.json) 2>/dev/null) && $(ALL_PASSED)

bench-gpu: train_gpt2cu $(DATA)       ## the GPU trainer beside PyTorch; without a GPU: python3 dev/bench_gpu.py --sim
	python3 dev/bench_gpu.py

quality: train_gpt2_cpu $(DATA)        ## fp32, bf16 and PyTorch trained from the same start: losses and curves (needs: pip install torch)
	python3 dev/quality.py

check-cuda: $(CUDA_LADDERS:%=$(B)/cuda/%)    ## every variant of every GPU kernel in the simulator, compared with the reference
	@failed=; for b in $(CUDA_LADDERS:%=$(B)/cuda/%); do $$b --check || failed="$$failed $$b"; done; $(ALL_PASSED)

bench-cuda: $(CUDA_LADDERS:%=build/nvcc/%)   ## the same on a GPU, timed; table and charts into dev/cuda/README.md
	@rm -f build/nvcc/*.json; failed=; \
	for b in $(CUDA_LADDERS:%=build/nvcc/%); do $$b --cold --json $$b.json || failed="$$failed $$b"; done; \
	python3 dev/bench_table.py dev/cuda/README.md $$(ls build/nvcc/*.json 2>/dev/null) && $(ALL_PASSED)

format:                               ## lays the sources out (.clang-format; needs: pip install clang-format==14.0.6)
	@python3 dev/format.py

clean:                                ## removes what was built; data and logs stay
	rm -rf build build-* train_gpt2_cpu train_gpt2cu train_gpt2sim test_gpt2cu test_gpt2sim tokenize
