# Benches and tools. What they measure and how: dev/bench.h, dev/cpu/README.md, dev/cuda/README.md.

.PHONY: course book exercise mine grade board simulated-exercise prove-model prove-fast prove-cuda
.PHONY: bench bench-cpu bench-gpu bench-cuda check-cuda count-cuda quality kernel-table \
        step-model gpu_day_programs format dist
NO_LADDERS := %/roofline.cpp %/products.cpp %/reading.cpp %/pieces.cpp %/tcp.cpp %/window.cpp
LADDERS := $(patsubst dev/cpu/%.cpp,$(B)/bench/%,$(filter-out $(NO_LADDERS),$(wildcard dev/cpu/*.cpp)))
NVCC_LADDERS := $(CUDA_LADDERS:%=build/nvcc/%)

$(B)/bench/%: dev/cpu/%.cpp $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(compile)
# As for a CPU with AVX-512, whichever CPU counts: no kernel runs.
$(B)/bench/pieces: CXXFLAGS += -O0 $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v4)
$(B)/unigram: dev/data/unigram.cpp $(FLAGS_FILE)
	$(compile)
build/nvcc/%.cubin: dev/cuda/%.cu $(NVCC_FILE)   # machine code for one GPU, and what ptxas says of it
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -I. -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -cubin -MMD -MP -MF $@.d -MT $@ \
	    $< -o $@ 2> $@.log || { cat $@.log; exit 1; }
build/nvcc/%: dev/cuda/%.cu $(NVCC_FILE)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(NVCC_LIBS)

# Lesson zero of the course. OpenMP where a test program with it compiles and links.
OPENMP_FLAG = $(if $(call found,OPENMP,omp.h,omp_get_max_threads(),-fopenmp),-fopenmp,-Wno-unknown-pragmas)
$(B)/gpt2: CXXFLAGS += $(OPENMP_FLAG)
$(B)/gpt2: dev/course/gpt2.cpp $(FLAGS_FILE)
	$(compile)
gpt2: $(B)/gpt2 FORCE
	$(call copy,$<)
$(B)/course_numbers: CXXFLAGS += -Wno-unknown-pragmas  # those of OpenMP, in lesson zero
$(B)/course_numbers: dev/course/numbers.cpp $(FLAGS_FILE)
	$(compile)
$(B)/course_numbers_gpu: $(SHARED)/sim/dev/course/numbers_gpu.cu dev/course/show.h $(SIM_SOURCES) $(SIM_OBJECTS) \
                         $(FLAGS_FILE)
	$(call sim_compile)
$(B)/first_kernel: $(SHARED)/sim/dev/course/first_kernel.cu $(SIM_SOURCES) $(SIM_OBJECTS) $(FLAGS_FILE)
	$(call sim_compile)
# For pictures: the constants of a CPU with AVX-512, whichever CPU draws them.
$(B)/course_facts: CXXFLAGS += -O0 $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v4)
$(B)/course_facts: dev/course/facts.cpp $(FLAGS_FILE)
	$(compile)
course: gpt2                          ## lesson zero: GPT-2 in one file; ./gpt2 trains it (dev/course)
book:                                 ## the course as a book: build/book/index.html, read without network (needs pip)
	@dev/course/book.py

# GNU readline where a test program with it compiles and links.
READLINE_FLAGS = $(if $(call found,READLINE,readline/readline.h,rl_callback_sigcleanup(),-lreadline),\
                 -DUSE_READLINE -lreadline)
$(B)/talk: LDLIBS += $(READLINE_FLAGS)
$(B)/talk: dev/talk/talk.cpp $(B)/services.o $(B)/compiled_once.o $(FLAGS_FILE)
	$(compile)
talk: $(B)/talk FORCE                 ## a conversation with a model, each line a prompt: ./talk -e MODEL
	$(call copy,$<)

$(B)/prefer: dev/preferences/prefer.cpp dev/preferences/pairs.h $(B)/services.o $(B)/compiled_once.o $(FLAGS_FILE)
	$(compile)
prefer: $(B)/prefer FORCE             ## preference tuning (DPO) on pairs of answers (dev/course/36-preferences.md)
	$(call copy,$<)

# The exercises of the course. prove-KIND tests their judges. Those in CUDA run in the simulator, with its counts
# (COUNT=1; g++ alone has them).
EXERCISE_PY = CXX='$(CXX)' EXERCISE_FLAGS='$(CXXFLAGS)' EXERCISE_LIBRARIES='$(LDLIBS)' B=$(B) \
              EXERCISE_SIM='$(filter-out $(CXXFLAGS),$(SIMFLAGS))' EXERCISE_COUNT='$(if $(COUNT),$(COUNT_FLAGS))' \
              EXERCISE_OBJECTS='$(SIM_OBJECTS)' python3 dev/course/exercises/exercise.py
IN_CUDA     = $(wildcard $(if $(EX),dev/course/exercises/$(EX).cu,$(or $(EXERCISE_MY),dev/course/my)/*.cu))
ifeq ($(COUNT)$(SANITIZE)$(findstring clang,$(CXX)),)
COUNTED     = COUNT=1
endif
EX_COMMAND  = $(if $(filter-out 0 no,$(SHOW)),show,judge)
exercise:                             ## EX=NAME: an exercise of the course, handed out, then judged; in CUDA SHOW=1
	@$(if $(IN_CUDA),$(MAKE) -s $(COUNTED) simulated-exercise,$(EXERCISE_PY) $(EX_COMMAND) $(EX))
mine:                                 ## lesson zero and a CUDA step with what you have written: built and trained
	@$(if $(IN_CUDA),$(MAKE) -s $(COUNTED) EX_COMMAND=mine simulated-exercise,$(EXERCISE_PY) mine)
board: train_gpt2_cpu tokenize        ## best bits per byte in ten minutes on two cores: our entries; ENTRY=FOLDER yours
	@dev/course/board.py $(ENTRY) $(if $(MINUTES),--minutes $(MINUTES))
grade:                                ## the exercises: which are done, which is next
	@$(if $(IN_CUDA),$(MAKE) -s $(COUNTED) simulated-exercise,$(EXERCISE_PY) grade)
simulated-exercise: $(SIM_SOURCES) $(SIM_OBJECTS)
	@$(EXERCISE_PY) $(if $(EX)$(filter mine,$(EX_COMMAND)),$(EX_COMMAND) $(EX),grade)
prove-model prove-fast:
	@$(EXERCISE_PY) prove $(@:prove-%=%)
prove-cuda: $(SIM_SOURCES) $(SIM_OBJECTS)
	@$(EXERCISE_PY) prove $(or $(EX),cuda)

# A ladder that fails does not keep the others from running, nor the right variants from the tables.
ALL_PASSED = { test -z "$$failed" || { echo "failed:$$failed"; exit 1; }; }

BENCH_PROGRAMS := $(B)/bench/roofline $(B)/bench/products $(B)/bench/reading
bench: train_gpt2_cpu tokenize $(BENCH_PROGRAMS) $(DATA)   ## this trainer beside PyTorch (torch)
	python3 dev/bench.py

# Without AMX its ladder runs in C++, where times mean nothing.
LADDERS_HERE = $(filter-out $(if $(shell grep -m1 amx_bf16 /proc/cpuinfo 2>/dev/null),,%/matmul_amx),$(LADDERS))
bench-cpu: $(LADDERS)                 ## every variant of every CPU kernel; table and charts into dev/cpu/README.md
	@rm -f $(LADDERS:%=%.json); failed=; \
	for b in $(LADDERS_HERE); do $$b --json $$b.json || failed="$$failed $$b"; done; \
	python3 dev/bench_table.py dev/cpu/README.md $$(ls $(LADDERS:%=%.json) 2>/dev/null) && $(ALL_PASSED)

bench-gpu: train_gpt2cu $(DATA)       ## the GPU trainer beside PyTorch; without a GPU: python3 dev/bench_gpu.py --sim
	python3 dev/bench_gpu.py

# What scripts/gpu_day.sh runs on a machine that may have no compiler: for any x86-64 CPU with AVX2, without MPI and
# NCCL, the CUDA runtime linked in. nvcc 13 packs machine code to a third; every driver that knows CUDA 13 unpacks it.
GPU_DAY      := build/gpu_day
GPU_DAY_ARCHS = $(or $(GPU_ARCH),90a)
GPU_DAY_MAKE  = $(MAKE) ARCH=x86-64-v3 MPI=no NCCL= GPU_ARCH="$(GPU_DAY_ARCHS)" B=$(GPU_DAY)/objects
NVCC_SINCE_13  = $(NVCC) --version 2>/dev/null | grep -E 'release (1[3-9]|[2-9][0-9])'
GPU_DAY_PACKED = $(if $(shell $(NVCC_SINCE_13)),-compress-mode=size)
GPU_DAY_NEEDS = $(wildcard *.cu llmc/*/*.h llmc/cuda/*.cuh dev/*.h dev/test/*.h dev/cuda/*.cuh)
ALL_RUNGS     = $(filter-out all_reduce,$(CUDA_LADDERS))
$(GPU_DAY)/$(PRECISION)/train_gpt2cu: train_gpt2.cu $(GPU_DAY_NEEDS) $(B)/services.o
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GPU_DAY_PACKED) $< $(filter %.o,$^) -o $@ $(NVCC_LIBS) -lpthread
$(GPU_DAY)/$(PRECISION)/test_gpt2cu: test_gpt2.cu $(GPU_DAY_NEEDS) $(TEST_OBJECTS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GPU_DAY_PACKED) $< $(filter %.o,$^) -o $@ $(NVCC_LIBS) -lpthread
$(GPU_DAY)/cuda/%: dev/cuda/%.cu $(GPU_DAY_NEEDS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GPU_DAY_PACKED) $< -o $@ $(NVCC_LIBS)
.PHONY: gpu_day_BF16 gpu_day_FP32 gpu_day_FP16 gpu_day_ladders   # side by side with make -j
gpu_day_BF16 gpu_day_FP32 gpu_day_FP16: gpu_day_%:
	+$(GPU_DAY_MAKE)/$* PRECISION=$* $(GPU_DAY)/$*/train_gpt2cu $(GPU_DAY)/$*/test_gpt2cu $(GPU_DAY_MORE)
gpu_day_ladders:
	+$(GPU_DAY_MAKE)/ladders $(ALL_RUNGS:%=$(GPU_DAY)/cuda/%)
GPU_DAY_PARTS = gpu_day_BF16 gpu_day_FP32 gpu_day_FP16 gpu_day_ladders
gpu_day_programs: $(GPU_DAY_PARTS)    ## what scripts/gpu_day.sh runs (nvcc; GPU_ARCH, make -j)
gpu_day_programs: $(DATA) build/host/tokenize
	build/host/tokenize --bytes 1 $(TEXTS) --val-split tail -o $(GPU_DAY)/bytes
	cp $(firstword $(DATA)) $(GPU_DAY)/ && rm -rf $(GPU_DAY)/objects $(GPU_DAY)/*_val.bin && du -sh $(GPU_DAY)
	printf '{"cuda": "%s", "archs": "%s"}\n' "$$($(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" \
	    "$(GPU_DAY_ARCHS)" > $(GPU_DAY)/built.json

bench-cuda: $(NVCC_LADDERS)           ## every variant of every GPU kernel; table and charts into dev/cuda/README.md
	@rm -f build/nvcc/*.json; failed=; \
	for b in $(NVCC_LADDERS); do $$b --cold --json $$b.json || failed="$$failed $$b"; done; \
	python3 dev/bench_table.py dev/cuda/README.md $$(ls build/nvcc/*.json 2>/dev/null) && $(ALL_PASSED)

check-cuda: $(SIM_LADDERS)            ## the same in the simulator: compared with the reference, not timed
	@failed=; for b in $(SIM_LADDERS); do $$b --check || failed="$$failed $$b"; done; $(ALL_PASSED)

count-cuda:                           ## the same, counted: what it asks of memory; WRITE=1: into dev/cuda/README.md
	@$(MAKE) -s COUNT=1 $(CUDA_LADDERS:%=build-count/cuda/%)
	$(if $(shell command -v $(NVCC) 2>/dev/null),@$(MAKE) -s $(CUDA_LADDERS:%=build/nvcc/%.cubin))
	@WRITE=$(WRITE) NVCC=$(NVCC) python3 dev/cuda/count_table.py $(CUDA_LADDERS:%=build-count/cuda/%)

quality: train_gpt2_cpu $(DATA)       ## number formats and PyTorch trained from the same start (torch)
	python3 dev/quality.py

TABLE_ARCHS = $(filter-out native ptx,$(if $(filter native,$(ARCHS)),80 90a 100,$(ARCHS)))
# What the tests in the simulator launch; test-all has them written when it runs these tests.
LAUNCHES := build/launches_BF16 build/launches_FP32
$(LAUNCHES): build/launches_%: $(B)/%/test_gpt2sim
	@CUSIM_LAUNCHES=$@.new $< > /dev/null && mv $@.new $@
kernel-table: $(LAUNCHES)             ## registers, stack, occupancy of GPU kernels (nvcc)
	@cat $(LAUNCHES) > build/launches
	@WRITE=$(WRITE) python3 dev/cuda/kernel_table.py $(NVCC) build/launches $(TABLE_ARCHS)

step-model: $(B)/BF16/train_gpt2sim $(DATA)   ## predicted times of steps on GPUs, kernel by kernel (nvcc, if there)
	python3 dev/cuda/step_model.py --nvcc $(NVCC) $(if $(WRITE),--write)

format:                               ## lays the sources out (.clang-format; needs: pip install clang-format==14.0.6)
	@python3 dev/format.py
	@python3 dev/width.py

dist:                                 ## the sources in build/gpt2-VERSION.tar.gz, which builds without git
	@python3 dev/dist.py
