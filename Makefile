# Targets: `make help` lists them. A C++17 compiler (g++ 12, clang 14 or newer) and make are all that is needed here.
# Rules for dev/ are in dev/cusim/cusim.mk (the simulator), dev/dev.mk (benches, tools) and dev/test/test.mk (tests).
#
#   ARCH=native        what to compile for: native, or any -march (x86-64-v3, x86-64-v4, armv8-a)
#   KERNELS=fast       fast, or reference: the naive loops of llmc/cpu/reference.h
#   SANITIZE=          address (with undefined), thread, or nothing
#   PRECISION=BF16     of the GPU trainer and its simulator: BF16 or FP16 (mixed precision), or FP32
#   HOSTCXX=g++        compiles what make itself runs, if CXX compiles for another machine
#   MPI= OPENMP= READLINE=   Open MPI, OpenMP (gpt2), GNU readline (talk): found by a test compile; no: without
#   DEBUG= COUNT=      1: no optimisation, for gdb; 1: programs of the simulator count accesses to memory (dev/cusim)
#   GPU_ARCH=          for nvcc: native, or a list such as "80 90a"; not given: native, without a GPU 80, 90a, 100, PTX
#   CUDA_INCLUDE= CUDA_LIB=  folders of headers and libraries for nvcc, if it does not find them itself
# Changing one of these, or a compiler, rebuilds. `make test` runs JOBS (cores + 2) compilers and tests at a time.
# What only builds does so on all cores, with -j1 on one.
BUILDS := all train_gpt2_cpu train_gpt2cu train_gpt2sim tokenize talk quickstart
ifeq ($(MAKELEVEL)$(filter-out $(BUILDS),$(or $(MAKECMDGOALS),all)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
endif

CXX      ?= g++
comma    := ,
# Where objects go: sanitized and debug builds stand beside the ordinary one. B=FOLDER keeps the programs there, too.
B        := build$(if $(SANITIZE),-$(SANITIZE))$(if $(COUNT),-count)$(if $(DEBUG),-debug)
SHARED   := $(if $(filter command,$(origin B)),$(B),build)
ARCH     ?= native
KERNELS  ?= fast
PRECISION ?= BF16

# -O3             the compiler's full optimizer; no -Ofast and no finite-math: NaN must stay NaN, sums keep their order
# -mcpu           on ARM in place of -march, of which older clang has no native there
# -ffp-contract   a*b+c as one fused multiply-add, which is what the peak counts
# -fno-math-errno sqrt need not set errno, so it can be vectorised
# -pthread        the workers of llmc/cpu/threads.h
# -Wno-psabi      no note about how wide vectors are passed between functions; all of ours are inlined
MARCH    := $(if $(filter nativearm% nativeaarch%,$(ARCH)$(shell uname -m)),-mcpu,-march)=$(ARCH)
CXXFLAGS = -std=c++17 -O3 $(MARCH) -ffp-contract=fast -fno-math-errno -Wall -Wextra -Wno-psabi -pthread -I.
one_of = $(if $(filter-out $(2),$(or $($(1)),nothing)),$(error $(1)=$($(1)) is unknown; accepted: $(2)))
$(call one_of,PRECISION,BF16 FP16 FP32)$(call one_of,KERNELS,fast reference)
$(if $(SANITIZE),$(call one_of,SANITIZE,address thread))
SANITIZE_thread  = -fsanitize=thread
# Without three checks that take a third of the compiler's time; what they find, AddressSanitizer finds when it is used.
SANITIZE_address = -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow \
                   -fno-sanitize-recover=all
CXXFLAGS += $(if $(DEBUG),-O0 -g) $(if $(SANITIZE),-g1 -Og -fno-omit-frame-pointer $(SANITIZE_$(SANITIZE)))
CXXFLAGS += $(if $(filter reference,$(KERNELS)),-DKERNELS_REFERENCE)

# yes if a program compiles and links, unless the variable says no: $(call found,VARIABLE,header,call,flags).
found = $(if $(filter no,$($(1))),,$(shell mkdir -p $(B); \
        printf '\043include <stdio.h>\n\043include <$(2)>\nint main(){$(3);}' | \
        $(CXX) -x c++ - -o $(B)/found.$$$$ $(4) 2>/dev/null && echo yes; rm -f $(B)/found.$$$$))
MPICXX      := $(or $(shell command -v mpicxx 2>/dev/null),$(wildcard /opt/homebrew/bin/mpicxx /usr/local/bin/mpicxx))
MPI_COMPILE := $(if $(MPICXX),$(shell $(MPICXX) --showme:compile 2>/dev/null))
MPI_LINK    := $(if $(MPICXX),$(shell $(MPICXX) --showme:link 2>/dev/null))
AS_NEEDED   := $(if $(filter Darwin,$(shell uname -s)),,-Wl$(comma)--as-needed)  # Apple's linker does so unasked
ifeq ($(call found,MPI,mpi.h,MPI_Init(0$(comma)0),$(MPI_COMPILE) $(MPI_LINK)),yes)
CXXFLAGS += -DUSE_MPI $(addprefix -isystem ,$(patsubst -I%,%,$(filter -I%,$(MPI_COMPILE))))
LDLIBS   += $(AS_NEEDED) $(MPI_LINK)
endif

# Files that change when what they hold does.
stamp = $(shell mkdir -p $(dir $(1)); echo '$(2)' | cmp -s - $(1) || echo '$(2)' > $(1))$(1)
FLAGS_FILE := $(call stamp,$(B)/flags,$(CXX) $(CXXFLAGS))

# A source file to a program; kernels first, whose copies of inline functions are optimized. TIMED runs the compiler.
compile = $(TIMED) $(CXX) $(CXXFLAGS) $(1) $(OWN_FLAGS) -MMD -MP -MF $@.d -MT $@ $(filter %/compiled_once.o,$^) $< \
    $(filter-out %/compiled_once.o,$(filter %.o,$^)) -o $@ $(LDLIBS)
# Compiled once, whatever the trainer changes: services of a run and kernels. -Og: for what waits for files and kernels;
# -O0 with sanitizers, whose checks take as long to optimize as to compile.
CONTROL = $(if $(DEBUG)$(filter reference,$(KERNELS)),,$(if $(SANITIZE),-O0,-Og))
once = $(TIMED) $(CXX) $(CXXFLAGS) $(1) -MMD -MP -MF $@.d -MT $@ -c $< -o $@
$(B)/services.o: llmc/run/services.cpp $(FLAGS_FILE); $(call once,$(CONTROL))
$(B)/compiled_once.o: llmc/cpu/compiled_once.cpp $(FLAGS_FILE); $(call once)
TEST_OBJECTS := $(B)/cpu_oracle.o $(B)/services.o $(B)/compiled_once.o

.PHONY: all help data quickstart test test-all clean FORCE
all: train_gpt2_cpu tokenize          ## the programs

help:                                 ## this list
	@awk -F ':[^#]*## *' '/^[a-z_0-9-]+:.*##/ { printf "%-21s %s\n", $$1, $$2 }' $(filter %ile %.mk,$(MAKEFILE_LIST))

# A program is built beside the objects of its kind of build and copied here, so that one kind leaves the others' alone.
copy = $(if $(filter command,$(origin B)),,@cmp -s $(1) $@ || { cp $(1) $@.new && mv $@.new $@; })
train_gpt2_cpu: $(B)/train_gpt2_cpu FORCE      ## the CPU trainer
	$(call copy,$<)
tokenize: $(B)/tokenize FORCE                  ## text to tokens and back
	$(call copy,$<)
$(B)/train_gpt2_cpu: train_gpt2_cpu.cpp $(B)/services.o $(B)/compiled_once.o $(FLAGS_FILE)
	$(call compile,$(CONTROL))
$(B)/tokenize: dev/data/tokenize.cpp $(FLAGS_FILE)
	$(compile)

# ---- the GPU trainer, with nvcc

NVCC     := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
DEFAULTS  = 80 90a $(shell $(NVCC) --list-gpu-arch 2>/dev/null | sed -n 's/^compute_100$$/100/p') ptx
ARCHS    := $(or $(GPU_ARCH),$(if $(shell nvidia-smi -L 2>/dev/null),native,$(DEFAULTS)))
gencode   = $(if $(filter native,$(1)),-arch=native,-gencode arch=compute_$(2)$(comma)code=$(3))
GENCODE  := $(foreach a,$(ARCHS),$(if $(filter ptx,$a),$(call gencode,$a,80,compute_80),$(call gencode,$a,$a,sm_$a)))
# -t 0            the architectures are compiled side by side; -O3 -O0: the CPU's code; -lineinfo: profilers show lines
# -Wno-parentheses nvcc's intermediate file has some of its own
NVCCFLAGS = -std=c++17 $(if $(DEBUG),-O0 -g,-O3) -t 0 -lineinfo -I. -DPRECISION_$(PRECISION) $(GENCODE) \
            -Xcompiler "-Wall -Wextra -Wno-parentheses" $(CUDA_INCLUDE:%=-I%)
NVCC_FILE := $(call stamp,$(B)/nvcc_flags,$(NVCC) $(ARCHS) $(PRECISION) $(MPI) $(CUDA_LIB))
NVCC_LIBS = $(CUDA_LIB:%=-L%) -lcublasLt -ldl $(NCCL_LINK)
# NCCL where a test program with it compiles and links, and MPI as above; one process without.
WITH_MPI  = $(findstring -DUSE_MPI,$(CXXFLAGS))
NCCL_LINK = $(if $(NCCL),-lnccl) $(if $(WITH_MPI),$(patsubst -Wl$(comma)%,-Xlinker %,$(filter -L% -l% -W%,$(MPI_LINK))))
NCCL_TEST = mkdir -p $(B); printf '\043include <nccl.h>\nint main(){ncclComm_t c;ncclCommFinalize(c);}' > \
            $(B)/nccl_test.cu; $(NVCC) $(CUDA_INCLUDE:%=-I%) $(B)/nccl_test.cu -o $(B)/nccl_test \
            $(CUDA_LIB:%=-L%) -lnccl 2>/dev/null && echo yes
NCCL      = $(shell $(NCCL_TEST))
NVCCFLAGS += $(if $(NCCL),-DUSE_NCCL) $(if $(WITH_MPI),-DUSE_MPI $(filter -I%,$(MPI_COMPILE)))

train_gpt2cu: train_gpt2.cu $(B)/services.o $(NVCC_FILE)   ## the GPU trainer (needs the CUDA toolkit)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(B)/$@.d -MT $@ $< $(filter %.o,$^) -o $@ $(NVCC_LIBS) -lpthread
test_gpt2cu: test_gpt2.cu $(TEST_OBJECTS) $(NVCC_FILE)  ## its tests
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(B)/$@.d -MT $@ $< $(filter %.o,$^) -o $@ $(NVCC_LIBS) -lpthread

# ---- data, made for what runs with it, not to build a program

# What make itself runs is compiled for this machine, also where CXX or ARCH are for another.
HOSTCXX ?= $(if $(shell command -v g++ 2>/dev/null),g++,$(CXX))
$(SHARED)/host/%: dev/data/%.cpp $(wildcard llmc/*/*.h dev/data/*.h)
	@mkdir -p $(@D)
	$(TIMED) $(HOSTCXX) -std=c++17 -O2 -pthread -I. $< -o $@

# Both shards come from one command, which writes the second last. Few texts: their end validates.
DATA  := dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin
TEXTS := $(wildcard dev/data/shakespeare/*.txt)
TOKENIZER = $(if $(filter buildnative,$(B)$(ARCH)),$(B)/tokenize,$(SHARED)/host/tokenize)
SHARDS = $(TOKENIZER) $(TEXTS) -o dev/data/shakespeare --val-split tail
dev/data/shakespeare_val.bin: $(TEXTS) dev/data/gpt2_tokenizer.bin | $(TOKENIZER)
	$(SHARDS)
dev/data/shakespeare_train.bin: | dev/data/shakespeare_val.bin; @test -f $@ || $(SHARDS)
data: $(DATA)                         ## tokenizes the text that comes with the repository

quickstart: train_gpt2_cpu tokenize $(B)/unigram $(MODEL:%=$(B)/%)   ## trains a small GPT-2 in two minutes, and samples
	@$(if $(MODEL),dev/modern,scripts)/quickstart.sh

test:                                 ## what a change may break, in a few minutes: all but the long campaigns
	@dev/test/run.sh "$(MAKE)" $(SHORT)
test-all:                             ## everything this machine can test
	@dev/test/run.sh "$(MAKE)" $(LONGEST) $(filter-out $(LONGEST),$(PARTS))

clean:                                ## removes what was built; data and logs stay
	rm -rf build build-* train_gpt2_cpu train_gpt2cu train_gpt2sim test_gpt2cu test_gpt2sim tokenize gpt2 talk prefer

include dev/cusim/cusim.mk dev/dev.mk dev/test/test.mk $(wildcard dev/parallel/parallel.mk dev/modern/modern.mk)
-include $(wildcard $(B)/*.d $(B)/bench/*.d build/nvcc/*.d)
