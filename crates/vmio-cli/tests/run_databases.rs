//! `vmio run --mode` under unmodified databases and copiers: Redis, RocksDB and rsync, in each mode.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::modes::{same_as_plain, served, under};
use crate::common::programs::{has, leave_out, plain, text};
use crate::common::{TestResult, succeeded, vmio};

const MODES: [&str; 3] = ["posix", "sync", "strict"];

/// A Redis that acknowledges only logged writes, and listens at a socket of its folder.
struct Redis {
    server: Child,
    socket: String,
}

impl Redis {
    fn start(folder: &Path, command: impl Fn(&[&str]) -> Command) -> Result<Self, Box<dyn Error>> {
        let socket = text(&folder.join("socket")).to_owned();
        let mut arguments = vec!["redis-server", "--port", "0", "--unixsocket", &socket, "--dir", text(folder)];
        arguments.extend(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        let server = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let redis = Redis { server, socket };
        let end = Instant::now() + Duration::from_secs(60);
        while redis.client().arg("PING").output()?.stdout != b"PONG\n" {
            assert!(Instant::now() < end, "Redis does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }

    fn client(&self) -> Command {
        let mut client = Command::new("redis-cli");
        client.args(["-s", &self.socket]);
        client
    }

    /// Stores a value for one number after the other, and kills the server after `at_least` acknowledgements. Returns the acknowledgements
    /// by then.
    fn killed_while_it_stores(mut self, at_least: usize) -> Result<usize, Box<dyn Error>> {
        let mut client = self.client().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut commands = client.stdin.take().ok_or("no standard input")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        // After the kill the client gets no further commands, and ends.
        let asking = std::thread::spawn(move || {
            (0..)
                .take_while(|_| !until.load(Ordering::Relaxed))
                .try_for_each(|number| writeln!(commands, "SET key:{number} {}", value(number)))
        });
        let mut answers = BufReader::new(client.stdout.take().ok_or("no standard output")?).lines();
        let mut acknowledged = 0;
        while acknowledged < at_least {
            assert_eq!(answers.next().ok_or("the server has ended")??, "OK");
            acknowledged += 1;
        }
        self.server.kill()?;
        self.server.wait()?;
        is_over.store(true, Ordering::Relaxed);
        acknowledged += answers.map_while(Result::ok).filter(|answer| answer == "OK").count();
        client.wait()?;
        // The client may end first.
        let _ = asking.join().map_err(|_| "the thread that asks has panicked")?;
        Ok(acknowledged)
    }

    /// The values of the first `count` numbers.
    fn values(&self, count: usize) -> Result<Vec<String>, Box<dyn Error>> {
        let keys = (0..count).map(|number| format!("key:{number}"));
        let said = succeeded(self.client().arg("MGET").args(keys))?;
        Ok(said.lines().map(str::to_owned).collect())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn value(number: usize) -> String {
    format!("{number:x}").repeat(1 + number % 40)
}

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
