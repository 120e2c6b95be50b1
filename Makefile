# Everything a user or CI does with the repository. The work itself is in scripts/.

.DEFAULT_GOAL := help
.PHONY: help run test test-all soak sanitize deny install header bench bench-map bench-fetch bench-commit bench-units bench-kv bench-run bench-programs bench-busy bench-ring0 bench-pmfs fmt lint doc book clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## install what is missing, build, and run the main benchmark (RUN_ARGS adds options to it)
	@scripts/run

test: ## install what is missing and run what CI runs, in 25 minutes (STEPS="clippy vm" runs only those; CRATE=vmio-kv that crate's tests)
	@CRATE='$(CRATE)' TEST='$(TEST)' scripts/test $(STEPS)

test-all: ## run all tests there are, in an hour, and end with a table of them (STEPS="fuzz" runs only those)
	@scripts/test --all $(STEPS)

soak: ## kill, cut the power of and damage key-value stores for about SOAK_MINUTES (30)
	@scripts/soak

sanitize: ## run tests under the address and thread sanitizers (needs a nightly Rust; half an hour)
	@scripts/sanitize

deny: ## look at the licences and sources of what we depend on, and at what is known against it
	@scripts/deny

install: ## build and install the command and the C library (PREFIX=/usr/local, DESTDIR=, PARTS="library command")
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' PARTS='$(PARTS)' BUILT='$(BUILT)' scripts/install

header: ## write crates/vmio-c/include/vmio.h anew from the Rust code
	@VMIO_WRITE_HEADER=1 cargo test -q -p vmio-c --test integration header::

bench: ## measure all that two cores can beside the peers; rewrites docs/benchmarks/README.md (needs root; BENCH="hit kv")
	@scripts/bench $(BENCH)

bench-map: ## measure against Linux mmap and pread on zram and disk; rewrites docs/benchmarks/map.md (needs root)
	@scripts/bench-map

bench-fetch: ## measure asynchronous misses beside mmap with advice and fio, on disk and zram (needs root)
	@scripts/bench-fetch

bench-commit: ## measure commits beside msync, SQLite and LMDB; writes docs/benchmarks/commit.md (needs root)
	@scripts/bench-commit

bench-units: ## measure units of 4 KiB, 2 MiB and dynamic ones; writes docs/benchmarks/units.md (needs root)
	@scripts/bench-units

bench-kv: ## measure vmio-kv beside RocksDB, LMDB, redb and fjall; writes docs/benchmarks/kv.md (needs root)
	@scripts/bench-kv

bench-run: ## measure vmio run beside the same program with Linux mmap, on zram (needs root), or with BENCH_GUEST=1 in a guest, with the kernel module too
	@scripts/bench-run

bench-programs: ## measure programs that map files (numpy, LMDB, Polars, Java...) with vmio run and without; writes docs/benchmarks/programs.md (needs root; BENCH_ONLY="gather scan")
	@scripts/bench-programs

bench-ring0: ## measure faults in guest mode at ring 0 beside Linux mmap, on zram (needs root and hardware virtualisation), or with BENCH_GUEST=1 count instructions in a guest
	@scripts/bench-ring0

bench-pmfs: ## count page faults and instructions of vmio-pmfs, ext4 and XFS with DAX, in a guest (BENCH_PARTS="faults calls lmdb rocksdb radix breakdown staging")
	@scripts/bench-pmfs

bench-busy: ## measure loads and stores beside Linux mmap while other threads keep all cores busy; writes docs/benchmarks/busy.md (needs root)
	@scripts/bench-busy

fmt: ## format the Rust code
	@cargo fmt --all

lint: ## check format, clippy, shell scripts and the project lints
	@scripts/test format clippy shell tidy

doc: ## build the library's documentation, warnings denied
	@scripts/test doc

book: ## build docs/ as a book with mdBook into target/book, and check its links
	@scripts/book

clean: ## remove everything that was built
	@cargo clean
	@rm -rf fuzz/target fuzz/artifacts
