# The same targets as ./dev, for those who type make. Variables are handed on: make install PREFIX=/usr/local NAMES=yes
.PHONY: demo torch test lint bench fuzz safety install help
.DEFAULT_GOAL := help

demo torch test lint bench fuzz safety help:
	./dev $@

install:
	./dev install PREFIX='$(PREFIX)' $(if $(PYTHON),PYTHON='$(PYTHON)') $(if $(NAMES),--names)
