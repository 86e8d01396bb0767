# The program of dev/modern, and what checks it.

$(B)/modern $(B)/modern_probe $(B)/test_modern: $(B)/%: dev/modern/%.cpp $(FLAGS_FILE)
	$(compile)
$(SHARED)/host/modern_table: dev/modern/modern_table.cpp $(wildcard dev/modern/*.h llmc/*/*.h)
	@mkdir -p $(@D)
	$(TIMED) $(HOSTCXX) -std=c++17 -O0 -pthread -I. $< -o $@
MODERN := $(B)/modern $(B)/modern_probe build/host/modern_table train_gpt2_cpu $(DATA)
$(call program,test_modern,$(B)/test_modern,$(B)/test_modern)
$(call check,modern,models after GPT-2 against transformers and PyTorch,$(MODERN),\
    dev/test/modern.py --packages || skip "pip install numpy safetensors torch transformers"; dev/test/modern.py)
