# The program of dev/modern, and what checks it.

$(B)/modern $(B)/modern_probe $(B)/test_modern: $(B)/%: dev/modern/%.cpp $(FLAGS_FILE)
	$(compile)
