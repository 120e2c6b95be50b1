//! Databases as they are on a mounted vmio-pmfs, plain and under `vmio run --mode`: they hold and answer what they do on another file system.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use test_depth::Depth;

use crate::common::modes::{served, under};
use crate::common::programs::{NOBODY, for_everybody, has, leave_out, plain, text};
use crate::common::{TestResult, succeeded};
use crate::pmfs::can_mount;
use crate::pmfs_program_maps::Lab;
use crate::run_postgresql::{Postgres, programs};

/// Plain, and modes: all of them in a deep run, since each of their writes is a round trip.
fn ways() -> &'static [Option<&'static str>] {
    test_depth::pick(&[None, Some("posix")][..], &[None, Some("posix"), Some("sync"), Some("strict")])
}

/// A shell's commands in a folder, in one of the ways. Returns what they print, and the reads and writes that vmio has served.
fn shell(way: Option<&str>, folder: &Path, script: &str) -> Result<(String, u64), Box<dyn std::error::Error>> {
    let program = ["sh", "-c", script];
    let mut command = way.map_or_else(|| plain(&program), |mode| under(mode, folder, &program));
    let output = command.current_dir(folder).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{way:?}: {}\n{said}", output.status);
    let calls = served(&output, "reads_served") + served(&output, "writes_served");
    Ok((String::from_utf8(output.stdout)?, calls))
}

/// Runs commands outside of the mount, and inside in each way. They must print the same, and mode posix must serve some of their calls.
fn prints_the_same(script: &str) -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let lab = Lab::in_memory("256M")?;
    let outside = lab.dir().join("outside");
    fs::create_dir(&outside)?;
    let (expected, _) = shell(None, &outside, script)?;
    for way in ways() {
        let (printed, calls) = shell(*way, &lab.folder(way.unwrap_or("plain"))?, script)?;
        assert!(printed == expected, "{way:?} prints\n{printed}and elsewhere\n{expected}");
        assert!(*way != Some("posix") || calls > 0, "no call was served");
    }
    lab.end()
}

/// The store is mapped for reads; each block that is read has its checksum verified. What is printed has no times in it.
const ROCKSDB: &str = r#"
set -e
bench() {
    db_bench --num=2000 --reads=2000 --value_size=500 --seed=7 --threads=1 --mmap_read=1 --verify_checksum=1 --cache_size=0 \
        --compression_type=none --write_buffer_size=200000 --stats_interval=1000000 "$@" > said || { cat said >&2; exit 1; }
    grep -o '([0-9]* of [0-9]* found)' said || true
}
bench --db=store --benchmarks=fillseq
bench --db=store --use_existing_db=1 --benchmarks=readrandom,overwrite,readrandom,seekrandom,deleterandom,compact,readrandom,seekrandom
bench --db=synced --benchmarks=fillsync --num=100000
for store in store synced; do
    ldb --db=$store checkconsistency
    ldb --db=$store scan | md5sum
done
"#;

#[test]
fn rocksdb_holds_what_it_does_elsewhere() -> TestResult {
    if !has("db_bench") || !has("ldb") {
        return leave_out("db_bench and ldb (rocksdb-tools) are not installed");
    }
    prints_the_same(ROCKSDB)
}

/// Processes that wait for each other's locks. Their rows come in any order.
const SQLITE: &str = r#"
set -e
for journal in delete wal; do
    sqlite3 $journal.db "PRAGMA journal_mode = $journal; CREATE TABLE t (who, n, word, PRIMARY KEY (who, n));"
    for who in 1 2 3 4; do
        for n in $(seq 20); do echo "INSERT INTO t VALUES ($who, $n, hex(zeroblob(1000)) || $n);"; done > rows
        for n in $(seq 3 3 20); do echo "UPDATE t SET word = word || 'more' WHERE who = $who AND n = $n;"; done >> rows
        (echo '.timeout 120000'; echo 'PRAGMA synchronous = NORMAL;'; cat rows) > script$who
        sqlite3 -bail $journal.db < script$who &
        all="$all $!"
    done
    for process in $all; do wait $process; done
    all=
    sqlite3 $journal.db 'SELECT count(*), sum(length(word)) FROM t; PRAGMA integrity_check;'
done
"#;

#[test]
fn processes_share_a_database_of_sqlites() -> TestResult {
    if !has("sqlite3") {
        return leave_out("sqlite3 is not installed");
    }
    prints_the_same(SQLITE)
}

/// A lab in which the user that runs PostgreSQL finds the command, and may lease extents of the medium.
fn lab_of(user: u32) -> Result<(Lab, PathBuf), Box<dyn std::error::Error>> {
    // The write-ahead log alone may take 1 GiB.
    let lab = Lab::in_memory("2G")?;
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o755))?;
    chown(lab.image(), Some(user), None)?;
    let programs = lab.dir().join("programs");
    fs::create_dir(&programs)?;
    let vmio = for_everybody(&programs)?;
    Ok((lab, vmio))
}

/// Work of a server's processes on the same relations, and what it answers.
const ANSWERS: &str = "CREATE TABLE t AS SELECT n, md5(n::text) AS word FROM generate_series(1, 3000) n; CREATE INDEX ON t (word); \
    DELETE FROM t WHERE n % 7 = 0; UPDATE t SET word = word || n WHERE n % 5 = 0; VACUUM FULL t; \
    SELECT count(*), sum(n), md5(string_agg(word, '' ORDER BY n)) FROM t; \
    SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history), count(*) FROM pgbench_history";

#[test]
fn postgresql_answers_as_elsewhere() -> TestResult {
    let Some(programs) = programs() else { return leave_out("PostgreSQL is not installed") };
    if !can_mount() {
        return Ok(());
    }
    let (lab, vmio) = lab_of(NOBODY)?;
    let outside = lab.dir().join("outside");
    fs::create_dir(&outside)?;
    let answers = |folder: &Path, options: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let postgres = Postgres { programs: programs.clone(), folder, vmio: vmio.clone(), options };
        postgres.create("on")?;
        let server = postgres.start()?;
        succeeded(postgres.program("pgbench").args(["-i", "-q"]))?;
        succeeded(postgres.program("pgbench").args(["-c", "4", "-t", "20"]))?;
        succeeded(postgres.program("pg_amcheck").args(["--install-missing", "--heapallindexed"]))?;
        let mut answer = String::new();
        for question in ANSWERS.split("; ") {
            answer += &postgres.ask(question)?;
        }
        postgres.stop(server)?;
        Ok(answer)
    };
    let expected = answers(&outside, &[])?;
    assert!(expected.contains("t|80\n"), "{expected}");
    for way in ways() {
        let options: Vec<&str> = way.iter().flat_map(|mode| ["--mode", mode, "--log-size", "16M"]).collect();
        assert_eq!(answers(&lab.folder(way.unwrap_or("plain"))?, &options)?, expected, "{way:?}");
    }
    lab.end()
}

/// PostgreSQL's own tests, by the project's script: all must pass on the mount, as they do elsewhere.
#[test]
fn postgresqls_regression_tests_pass() -> TestResult {
    if Depth::of_this_run() == Depth::Quick {
        test_depth::skipped("PostgreSQL's regression tests take minutes: VMIO_TEST_DEPTH=deep");
        return Ok(());
    }
    if programs().is_none() {
        return leave_out("PostgreSQL is not installed");
    }
    if !can_mount() {
        return Ok(());
    }
    let user = succeeded(Command::new("id").args(["-u", "postgres"]))?.trim().parse()?;
    let (lab, vmio) = lab_of(user)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgresql-regression");
    for way in [None, Some("posix")] {
        let folder = lab.folder(way.unwrap_or("plain"))?;
        let mut tests = Command::new(&script);
        tests.arg("--data").arg(&folder).env("VMIO", &vmio);
        tests.args(way.iter().flat_map(|mode| ["--", "--mode", mode]));
        let output = tests.stdin(Stdio::null()).output()?;
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if errors.contains("there are no sources of") {
            return leave_out("apt has no sources of PostgreSQL (deb-src)");
        }
        assert!(output.status.success(), "{way:?}: {said}{errors}");
        println!("{}: {}", text(&folder), said.trim());
    }
    lab.end()
}
