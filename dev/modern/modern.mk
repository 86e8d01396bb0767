# The program of dev/modern, and what checks it.

LESS_OPTIMIZED += modern_probe test_modern
$(B)/modern $(B)/modern_probe $(B)/test_modern: $(B)/%: dev/modern/%.cpp $(FLAGS_FILE)
	$(compile)
$(SHARED)/host/modern_table: dev/modern/modern_table.cpp $(wildcard dev/modern/*.h llmc/*/*.h)
	@mkdir -p $(@D)
	$(TIMED) $(HOSTCXX) -std=c++17 -O0 -pthread -I. $< -o $@
MODERN := $(B)/modern $(B)/modern_probe $(SHARED)/host/modern_table $(CPU)
$(call program,test_modern,$(B)/test_modern,$(B)/test_modern)
modern_check = $(call check,$(1),$(2),$(MODERN),\
    dev/test/modern.py --packages || skip "pip install numpy safetensors tiktoken torch transformers";\
    dev/test/modern.py $(3))
$(call modern_check,modern,models after GPT-2 compute what transformers computes,\
    numbers planted_errors micro_steps_and_threads muon)
$(call modern_check,modern_switches,models after GPT-2 in bf16 and with other switches,in_bf16 switches generated)
$(call modern_check,modern_files,models after GPT-2 from and to Hugging Face,there_and_back refused_imports)
$(call modern_check,modern_runs,runs of models after GPT-2 resume and plan and refuse,\
    resumed planned climbed bad_inputs)
$(call modern_check,modern_tokens,models after GPT-2 have tokens of 32 bits and of foreign tokenizers,\
    wide_tokens foreign_tokens)

# Its CUDA kernels on a GPU, by scripts/gpu_day.sh.
GPU_DAY_MORE = $(if $(filter FP16,$*),,$(GPU_DAY)/$*/test_modern_cuda)
$(GPU_DAY)/$(PRECISION)/test_modern_cuda: dev/modern/test_modern.cu $(wildcard dev/modern/*.cuh) $(GPU_DAY_NEEDS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(GPU_DAY_PACKED) $< -o $@ $(NVCC_LIBS)

# And in the simulator.
MODERN_CUDA := $(patsubst %,$(SHARED)/sim/%,$(wildcard dev/modern/*.cuh))
define modern_sim
$(B)/$(1)/test_modern_cuda: $(SHARED)/sim/dev/modern/test_modern.cu $(MODERN_CUDA) $(SIM_SOURCES) $(SIM_OBJECTS) \
                            $(FLAGS_FILE)
	@mkdir -p $$(@D)
	$$(call sim_compile,-DPRECISION_$(1) -MMD -MP -MF $(B)/test_modern_cuda_$(1).d -MT $$@)
endef
$(foreach p,BF16 FP32,$(eval $(call modern_sim,$p)))
$(foreach p,BF16 FP32,$(call program,test_modern_cuda_$p,$(B)/$p/test_modern_cuda,$(B)/$p/test_modern_cuda))
$(call check,modern_stacks,nvcc compiles the kernels of models after GPT-2 and none has a stack,,\
    command -v $(NVCC) || skip "install the CUDA toolkit"; dev/modern/stacks.py $(NVCC))
$(call check,modern_counted,the kernels of models after GPT-2 move the bytes that their headers say,part-counts,\
    command -v g++ || skip "apt-get install g++"; $(MAKE) -s CXX=g++ COUNT=1 build-count/BF16/test_modern_cuda &&\
    dev/modern/counted.py build-count/BF16/test_modern_cuda)
