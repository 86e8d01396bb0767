# The program of dev/modern, and what checks it.

$(B)/modern $(B)/modern_probe $(B)/test_modern: $(B)/%: dev/modern/%.cpp $(FLAGS_FILE)
	$(compile)
$(SHARED)/host/modern_table: dev/modern/modern_table.cpp $(wildcard dev/modern/*.h llmc/*/*.h)
	@mkdir -p $(@D)
	$(TIMED) $(HOSTCXX) -std=c++17 -O0 -pthread -I. $< -o $@
