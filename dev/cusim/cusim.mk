# The CUDA sources in the simulator: no GPU, no CUDA toolkit.

# It compiles copies in which __shared__ is rewritten (rewrite.sed); #line keeps their names and line numbers.
SIM_SOURCES := $(patsubst %,$(SHARED)/sim/%,train_gpt2.cu test_gpt2.cu $(wildcard llmc/cuda/*.cuh dev/cusim/test/*.cu))
SIM_OBJECTS := $(patsubst dev/cusim/%.cpp,$(B)/%.o,$(wildcard dev/cusim/*.cpp))
SIMFLAGS     = -I$(SHARED)/sim -Idev/cusim/include $(CXXFLAGS) -Wno-unknown-pragmas \
               $(if $(SANITIZE),-DCUSIM_SANITIZE_$(SANITIZE)) $(if $(COUNT),-DCUSIM_COUNTS) -DUSE_NCCL
# With COUNT=1, each access to memory becomes a call, to cusim_count.cpp instead of ThreadSanitizer's library. Structs
# keep their 128-bit accesses (no-tree-sra). -O2: what is optimised after that does not matter here.
COUNT_FLAGS  = -O2 -g -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -fno-tree-sra
CLANG       := $(findstring clang,$(shell $(CXX) --version))
ifneq ($(COUNT),)
$(if $(CLANG),$(error COUNT=1 needs g++ 12 or newer, CXX=$(CXX) is clang))
$(if $(SANITIZE),$(error COUNT=1 and SANITIZE=$(SANITIZE) are two kinds of builds))
endif

$(SHARED)/sim/%: % dev/cusim/rewrite.sed
	@mkdir -p $(@D)
	@{ echo '#line 1 "$<"'; sed -E -f dev/cusim/rewrite.sed $<; } > $@
$(SIM_OBJECTS): $(B)/%.o: dev/cusim/%.cpp $(FLAGS_FILE)     # the machinery itself is not sanitized
	$(TIMED) $(CXX) $(filter-out -fsanitize% -fno-sanitize%,$(SIMFLAGS)) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@
$(B)/cpu_oracle.o: dev/test/cpu_oracle.cpp $(FLAGS_FILE)
	$(TIMED) $(CXX) $(CXXFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

# One rewritten source to one program: $(call sim_compile,more flags,more objects). It takes two thirds of the time that
# it takes with -O3, and programs run as fast. expensive: with fused a*b+c.
SIM_LEVEL   := $(if $(DEBUG)$(COUNT)$(SANITIZE),,-O1 $(if $(CLANG),,-fexpensive-optimizations))
sim_link    = $(2) $(SIM_OBJECTS) -rdynamic -ldl -o $@ $(LDLIBS)
sim_compile = $(if $(COUNT),$(TIMED) $(CXX) $(SIMFLAGS) $(COUNT_FLAGS) $(1) -x c++ -c $< -o $@.o && \
                            $(CXX) -pthread $@.o $(sim_link),\
                            $(TIMED) $(CXX) $(SIMFLAGS) $(SIM_LEVEL) $(1) -x c++ $< -x none $(sim_link))

# The precisions side by side in $(B)/; the programs in the root are those of PRECISION.
define sim_program
$(B)/$(2)/$(1)sim: $(SHARED)/sim/$(1).cu $$(SIM_SOURCES) $$(SIM_OBJECTS) $(3) $$(FLAGS_FILE)
	@mkdir -p $$(@D)
	$$(call sim_compile,-DPRECISION_$(2) -MMD -MP -MF $(B)/$(1)sim_$(2).d -MT $$@,$(3))
endef
$(foreach p,BF16 FP16 FP32,$(eval $(call sim_program,train_gpt2,$p,$(B)/services.o)))
$(foreach p,BF16 FP16 FP32,$(eval $(call sim_program,test_gpt2,$p,$(TEST_OBJECTS))))
train_gpt2sim: $(B)/$(PRECISION)/train_gpt2sim FORCE   ## the GPU trainer on a CPU (dev/cusim)
	$(call copy,$<)
test_gpt2sim: $(B)/$(PRECISION)/test_gpt2sim FORCE     ## its tests, on a CPU
	$(call copy,$<)
$(B)/cusim_%: $(SHARED)/sim/dev/cusim/test/%.cu $(SIM_SOURCES) $(SIM_OBJECTS) $(FLAGS_FILE)
	$(call sim_compile)

# The ladders of dev/cuda.
.SECONDARY:
CUDA_LADDERS := $(patsubst dev/cuda/%.cu,%,$(wildcard dev/cuda/*.cu))
SIM_LADDERS  := $(CUDA_LADDERS:%=$(B)/cuda/%)
LADDER_SOURCES := $(patsubst %,$(SHARED)/sim/%,$(wildcard dev/cuda/*.cu dev/cuda/*.cuh))
LADDER_HEADERS := $(filter %.cuh,$(LADDER_SOURCES)) dev/bench.h dev/bench_run.h
$(B)/cusim_hopper_bugs $(B)/cusim_counts: $(LADDER_HEADERS)
$(B)/cuda/%: $(SHARED)/sim/dev/cuda/%.cu $(LADDER_HEADERS) $(SIM_SOURCES) $(SIM_OBJECTS) $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(call sim_compile)
