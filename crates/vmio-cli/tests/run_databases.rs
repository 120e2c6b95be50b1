//! `vmio run --mode` under unmodified databases and copiers: Redis, RocksDB and rsync, in each mode.

use crate::common::modes::{same_as_plain, served, under};
use crate::common::programs::{has, leave_out, plain};
use crate::common::redis::{Redis, value};
use crate::common::{TestResult, succeeded, vmio};

const MODES: [&str; 3] = ["posix", "sync", "strict"];

#[test]
fn redis_has_after_a_kill_what_it_has_acknowledged() -> TestResult {
    if !has("redis-server") {
        return leave_out("redis-server is not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        for round in 1..=2 {
            let redis = Redis::start(dir.path(), |arguments| under(mode, dir.path(), arguments))?;
            let acknowledged = redis.killed_while_it_stores(300 * round)?;
            if mode == "strict" {
                succeeded(vmio().arg("recover").arg(dir.path()))?;
            }
            let found = Redis::start(dir.path(), plain)?.values(acknowledged)?;
            let expected: Vec<String> = (0..acknowledged).map(value).collect();
            assert!(found == expected, "mode {mode}: {acknowledged} were acknowledged, not all of them are there");
        }
    }
    Ok(())
}

const FILL: &str = "db_bench --benchmarks=fillrandom,overwrite,deleterandom,compact,readrandom --num=3000 --value_size=1000 --seed=7 \
    --reads=10000 --threads=1 --cache_size=0 --stats_interval=1000000 --write_buffer_size=400000 --db=store > /dev/null && ldb --db=store scan > contents && \
    ldb --db=store checkconsistency && rm -r store && cat contents";

#[test]
fn rocksdb_holds_what_it_does_without() -> TestResult {
    if !has("db_bench") || !has("ldb") {
        return leave_out("db_bench and ldb (rocksdb-tools) are not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        let output = same_as_plain(mode, dir.path(), &["sh", "-c", FILL])?;
        assert!(output.stdout.len() > 500_000, "{mode}: {} bytes", output.stdout.len());
        assert!(served(&output, "files") > 0, "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Copies a tree: in whole, as differences within the files, and as appends.
const COPY: &str = r#"
set -e
mkdir from; for n in $(seq 40); do seq $n 3000 > from/$n; done; touch -d @1000000000 from/*
rsync -a from/ whole/
for n in $(seq 5 40); do printf 'changed' | dd of=from/$n bs=1 seek=$((n * 100)) conv=notrunc status=none; done
rsync -a --inplace --no-whole-file --checksum from/ whole/
for n in $(seq 10); do seq $n >> from/$n; done
rsync -a --append-verify from/ whole/
rsync -a --delete --checksum --itemize-changes from/ whole/
diff -r from whole; rm from/7; rsync -a --delete from/ whole/; diff -r from whole
"#;

#[test]
fn rsync_copies_what_it_does_without() -> TestResult {
    if !has("rsync") {
        return leave_out("rsync is not installed");
    }
    for mode in MODES {
        let dir = tempfile::tempdir()?;
        same_as_plain(mode, dir.path(), &["sh", "-c", COPY])?;
    }
    Ok(())
}
