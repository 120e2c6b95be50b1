# shellcheck shell=bash
# The steps of `make test` and `make test-all`: each is a function, step_NAME, run in a subshell by scripts/test, which sources this.
# $depth is quick, for people who wait, or deep.

# shellcheck disable=SC2034,SC2154 # used by, or set by, scripts/test
skip_status=77
locked=()
# In CI everything is built only once: incremental state would only take disk space.
if [ -n "${CI:-}" ]; then
    locked=(--locked)
    export CARGO_INCREMENTAL=0
fi

# One set of features for the whole workspace, so that nothing is built twice. It has the peers of vmio-kv that build everywhere. The step
# peers has RocksDB, which links the system's library. `cargo xtask vm-tests` reads the variable, too.
export VMIO_TEST_FEATURES=kv-peers/redb,kv-peers/fjall
# The peers need this Rust; the product builds with an older one.
# shellcheck disable=SC2034 # read by require_rust
rust_wanted=1.90
workspace=("${locked[@]}" --workspace --features "$VMIO_TEST_FEATURES")

# ---- sources ---------------------------------------------------------------------------------------------

step_format() {
    component rustfmt
    cargo fmt --all --check
}

step_shell() {
    local files
    mapfile -t files < <(grep -lE '^#!/usr/bin/env bash|^# shellcheck shell=bash' -r scripts tests kernel .ci)
    for file in "${files[@]}"; do bash -n "$file"; done
    have shellcheck || skip "shellcheck is not installed; only the syntax was checked"
    shellcheck --external-sources "${files[@]}"
}

step_clippy() {
    component clippy
    cargo clippy "${workspace[@]}" --all-targets -- -D warnings
    # As users build it, without the peers.
    cargo check "${locked[@]}" --workspace
}

step_doc() { RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" --workspace --lib --no-deps; }

# docs/ as a book. `tidy` checks the pages' links in each run; here mdBook renders them, with the help of the command in them.
step_book() { VMIO_BOOK_BUILT=yes scripts/book; }

# ---- builds and tests --------------------------------------------------------------------------------------

# Everything that later steps run: the tests, the commands, xtask.
step_build() { cargo build "${workspace[@]}" --all-targets; }

step_tidy() { xtask tidy; }

# .config/nextest.toml says which tests run alone, and which run first.
step_tests() {
    nextest
    # nextest writes it there, whatever CARGO_TARGET_DIR is.
    cp "target/nextest/$nextest_profile/junit.xml" "$scratch/"
}

step_doctests() { cargo test "${workspace[@]}" --doc --no-fail-fast; }

# The library's integration tests again, over each kind of cache that is not the default. Only crates/vmio/tests/support reads these
# variables.
cache_variants=(
    "VMIO_TEST_FRAMES=memfd"
    "VMIO_TEST_FRAMES=shared"
    "VMIO_TEST_ENGINE=reader-thread"
    "VMIO_TEST_ENGINE=reader-thread VMIO_TEST_FRAMES=memfd"
    "VMIO_TEST_ENGINE=managed"
    # As on Debian 12's own kernel, Linux 6.1.
    "VMIO_TEST_WITHOUT=batched-unmap,wp-async"
)

# variant_tests VARIANT: the tests of a variant, according to its promises; nothing for all tests.
variant_tests() {
    case $depth:$1 in
        # Its syncs are only those of files.
        quick:*ENGINE=managed*) echo model end_of_file resize ;;
        quick:*) echo model sync end_of_file ;;
        *ENGINE=managed*) echo crash devices end_of_file files fork memory_limit model resize ;;
        # Each variable alone runs all tests.
        *ENGINE=*FRAMES=* | *FRAMES=shared*) echo model threads sync fault_injection sparse resize tenants ;;
        *WITHOUT=*) echo model traps threads sync fault_injection kernels units resize tenants ;;
    esac
}

step_variants() {
    local variant tests name filter skipped=() broken=()
    for variant in "${cache_variants[@]}"; do
        if [[ $variant == *ENGINE=reader-thread* ]] && ! may_handle_kernel_faults; then
            skipped+=("$variant")
            continue
        fi
        filter="package(vmio) & kind(test)"
        tests=$(variant_tests "$variant")
        for name in $tests; do [ -f "crates/vmio/tests/$name.rs" ] || die "no test file of vmio is called $name"; done
        if [ -n "$tests" ]; then filter+=" & test(/^(${tests// /|})::/)"; fi
        printf -- '--- %s\n' "$variant"
        # shellcheck disable=SC2086,SC2163 # a variant may set several variables, by name
        (export $variant && nextest -E "$filter") || broken+=("$variant")
    done
    [ "${#broken[@]}" -eq 0 ] || die "failed: ${broken[*]}"
    [ "${#skipped[@]}" -eq 0 ] || skip "this user may not handle page faults of system calls: ${skipped[*]}"
}

# The kernel module, and the library over it, in a guest with Linux 6.12; deep also older kernels, and the rest of the lab.
# tests/vm/README.md says how.
step_vm() {
    if [ "${VM:-}" = skip ]; then skip "VM=skip"; fi
    local missing
    mapfile -t missing < <(missing_vm_packages)
    [ "${#missing[@]}" -eq 0 ] || die "QEMU needs ${missing[*]}: install them, or set VM=skip"
    xtask vm-kernel --kernel 6.12 || skip "Linux 6.12 could not be fetched"
    # vm-ring0: guest mode at ring 0, with KVM nested in the guest.
    if [ "$depth" = quick ]; then
        xtask vm-ring0 --kernel 6.12
        # Without tests that take five seconds or more.
        xtask module-tests --kernel 6.12 --rounds 0 '!larger_than_the_pool' '!larger_than_the_limit' '!all_held' '!sync_beside_evictions'
        xtask vm-tests --kernel 6.12 --engine kernel kernel_engine
        xtask vm-tests --kernel 6.12 --engine ring0 ring0 ring0_exits ring0_waiting_calls
        # What has been built for these by now. vmio-pmfs on a device in mode devdax, on one of two nodes.
        xtask vm --kernel 6.12 --nodes 2 --nvdimm 128 -- env vmio="$target_dir/debug/vmio" tests/vm/checks/pmfs-on-devdax
    else
        xtask vm-ring0 --kernel 6.12 --timeout 1500
        # The pool of frames on two nodes, each with a core that runs guests.
        xtask vm-ring0 --kernel 6.12 --cores 3 --nodes 2 frames
        # Programs, and stores that are killed, over it.
        xtask vm-each --kernel 6.12 --timeout 2000 --limit 300 run_ring0 run_ring0_debuggers run_ring0_servers run::numpy_maps_arrays \
            run_postgresql::in_guest_mode_it_answers_as_without kill
        xtask module-tests --kernel 6.12
        xtask vm-tests --kernel 6.12 --engine kernel --timeout 1500
        more_kernels
    fi
}

more_kernels() {
    local kernel unfetched=()
    for kernel in 6.1 5.15; do
        printf -- '--- Linux %s\n' "$kernel"
        if ! xtask vm-kernel --kernel "$kernel"; then
            unfetched+=("$kernel")
        elif [ "$kernel" = 5.15 ]; then
            xtask vm-tests --kernel 5.15 ensure fork sigbus system_calls verifier
        else
            xtask vm-tests --kernel "$kernel"
            # Built for each kernel, with warnings as errors; tested on the newest.
            xtask module "$kernel"
        fi
    done
    printf -- '--- the other devices of the lab\n'
    if xtask vm-programs; then
        xtask vm-lab --kernel 6.12
        # Built as Debian 13 would, now that its packages can be fetched.
        for kernel in 6.8 6.17; do
            if xtask vm-kernel --kernel "$kernel"; then xtask module "$kernel"; else unfetched+=("$kernel"); fi
        done
    else
        unfetched+=("programs for a guest" 6.8 6.17)
    fi
    [ "${#unfetched[@]}" -eq 0 ] || skip "could not be fetched: $(printf '%s; ' "${unfetched[@]}")"
}

# ---- other checks ------------------------------------------------------------------------------------------

step_loom() {
    CARGO_TARGET_DIR="$target_dir/loom" RUSTFLAGS="--cfg loom" \
        some_test cargo test "${locked[@]}" -p vmio-core -p vmio-pmfs-protocol --profile loom --lib loom
}

step_miri() {
    nightly
    rustup component add --toolchain nightly miri rust-src || skip "Miri is not available for this nightly"
    timeout 600 cargo +nightly miri setup || skip "Miri's standard library could not be built"
    MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=4 \
        some_test cargo +nightly miri test "${locked[@]}" -p vmio-core --lib -- page::word budget:: free_frames::list::
}

# Quick: the seeds are run once, by targets that stable Rust builds. Deep: each target searches for new inputs.
step_fuzz() {
    local target corpora
    if [ "$depth" = quick ]; then
        cargo build "${locked[@]}" --manifest-path fuzz/Cargo.toml --target-dir "$target_dir/fuzz"
        for target in "${fuzz_targets[@]}"; do "$target_dir/fuzz/debug/$target" -runs=0 "fuzz/seeds/$target"; done
        return
    fi
    nightly
    PATH="$(realpath -m "$target_dir")/tools/bin:$PATH"
    if ! have cargo-fuzz; then
        timeout 600 cargo install --locked --root "$target_dir/tools" cargo-fuzz ||
            skip "cargo-fuzz could not be installed"
    fi
    for target in "${fuzz_targets[@]}"; do
        mkdir -p "$target_dir/fuzz-corpus/$target"
        # What is found goes into the first folder; the other has what was worth keeping.
        corpora=("$target_dir/fuzz-corpus/$target" "fuzz/seeds/$target")
        cargo +nightly fuzz run "$target" "${corpora[@]}" -- -max_total_time="${FUZZ_SECONDS:-15}"
    done
}

fuzz_targets=(journal kv_backup kv_format kv_log kv_volume operation_log options pmfs stat_page trace)

step_peers() {
    has_rocksdb || skip "librocksdb-dev is not installed"
    cargo test "${locked[@]}" -p kv-peers --features redb,fjall,rocksdb
}

step_readme() { tests/readme/fresh-clone || { [ $? -eq "$skip_status" ] && skip "nothing is committed to clone"; }; }

# ---- helpers of the steps ----------------------------------------------------------------------------------------------

skip() {
    printf 'skipped: %s\n' "$*"
    printf '%s' "$*" >"$scratch/reason"
    exit "$skip_status"
}

# nextest OPTION...: runs tests, four at a time on two cores: many wait for a disk or a child.
nextest() {
    cargo nextest run --profile "$nextest_profile" "${workspace[@]}" --test-threads $(($(nproc) * 2)) "$@"
}
# A slow test of the deep suite does not count as hanging.
nextest_profile=default
if [ "$depth" = deep ]; then nextest_profile=deep; fi

# The binary of step_build: `cargo xtask` would build it with other features.
xtask() { "$target_dir/debug/xtask" "$@"; }

# component NAME: a part of the default toolchain, such as clippy.
component() {
    if cargo "${1/rustfmt/fmt}" --version >/dev/null 2>&1; then return 0; fi
    have rustup || die "$1 is missing and there is no rustup to install it"
    rustup component add "$1"
}

# Whether this user may use the reader-thread engine.
may_handle_kernel_faults() {
    local check
    check=$("$target_dir/debug/vmio" doctor --json | grep -A 1 '"name": "reader threads"')
    [[ $check == *'"ok": true'* ]]
}

# The packages for tests/vm; some programs are not in every user's PATH.
missing_vm_packages() {
    PATH="$PATH:/usr/sbin:/sbin" missing_packages busybox=busybox-static cpio=cpio \
        depmod=kmod mkfs.ext4=e2fsprogs ndctl=ndctl xz=xz-utils zstd=zstd debootstrap=debootstrap python3=python3
}

nightly() {
    have rustup || skip "no rustup, so no nightly toolchain"
    if rustup run nightly rustc --version >/dev/null 2>&1; then return 0; fi
    timeout 600 rustup toolchain install nightly --profile minimal --no-self-update ||
        skip "no nightly toolchain could be installed"
}

# some_test COMMAND...: a test run whose filter must match something, so that a renamed test does not pass unnoticed.
some_test() {
    "$@" 2>&1 | tee "$scratch/output"
    grep -qE '^running [1-9]' "$scratch/output" || die "no test has a name that matches"
}
