//! Programs with the data path of a mode, and their reports.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::programs::{plain, text};
use super::vmio;

/// The command that runs a program with the data path of a mode for the files of a folder. A mode may have options, as in "posix --cache
/// 8M".
pub fn under(mode: &str, folder: &Path, program: &[&str]) -> Command {
    by(vmio(), mode, folder, program)
}

/// The same, with another `vmio`.
pub fn by(mut command: Command, mode: &str, folder: &Path, program: &[&str]) -> Command {
    let (mode, options) = mode.split_once(' ').unwrap_or((mode, ""));
    // Much less than by default, so that the tests reach stores, too.
    command.env("VMIO_RUN_STORES_AFTER", "100000");
    // Short enough for several checkpoints of each log.
    let log = if mode == "strict" { &["--log-size", "1M"][..] } else { &[] };
    command
        .args(["run", "--mode", mode])
        .args(options.split_whitespace())
        .args(log)
        .args(["--stats", "--json", "--under"])
        .arg(folder);
    command.arg("--").args(program);
    command
}

/// The beginning of Python programs. The thread that takes leases has no time of its own on a busy machine: `leased` calls until the file
/// of a descriptor is leased, and `looked_for` looks until then.
pub const LEASED: &str = r#"
import os, sys, time
def is_leased(fd): return "LEASE  ACTIVE" in open("/proc/self/fdinfo/%d" % fd).read()
def looked_for(fd, look):
    for n in range(30000):
        if look(): return fd
        time.sleep(.002)
    sys.exit("in vain")
def leased(fd, call=lambda fd, n: os.pread(fd, 1, n)):
    for n in range(30000):
        if is_leased(fd): return fd
        call(fd, n)
        time.sleep(.001)
    sys.exit("the file is not leased")
"#;

/// A Python program with that beginning.
pub fn python(program: &str) -> String {
    format!("{LEASED}{program}")
}

/// The sum of a count over all processes' reports.
pub fn served(output: &Output, what: &str) -> u64 {
    let errors = String::from_utf8_lossy(&output.stderr);
    let reports = errors.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    reports.filter_map(|report| report[what].as_u64()).sum()
}

/// The sum of a count over several runs.
pub fn served_by_all(outputs: &[Output], what: &str) -> u64 {
    outputs.iter().map(|output| served(output, what)).sum()
}

/// Runs a program plainly in one folder and with a mode in another: it must print the same. Returns the second run's output and report.
pub fn prints_as_plain(mode: &str, dir: &Path, program: &[&str]) -> Result<Output, Box<dyn Error>> {
    let [without, with] = folders(dir);
    for folder in [&without, &with] {
        fs::create_dir(folder)?;
    }
    same_output(plain(program).current_dir(&without), under(mode, &with, program).current_dir(&with))
}

/// The same; moreover it must leave the same files.
pub fn same_as_plain(mode: &str, dir: &Path, program: &[&str]) -> Result<Output, Box<dyn Error>> {
    let output = prints_as_plain(mode, dir, program)?;
    let differences = Command::new("diff").args(["-r", "--brief"]).args(folders(dir)).output()?;
    if !differences.status.success() {
        return Err(String::from_utf8_lossy(&differences.stdout).into());
    }
    Ok(output)
}

fn folders(dir: &Path) -> [PathBuf; 2] {
    ["without", "with"].map(|name| dir.join(name))
}

/// Runs two commands, which must succeed and print the same. Returns the output of the second.
pub fn same_output(expected: &mut Command, command: &mut Command) -> Result<Output, Box<dyn Error>> {
    let (expected, output) = (expected.output()?, command.output()?);
    let told = [&expected, &output].map(|output| String::from_utf8_lossy(&output.stdout));
    if told[0] != told[1] {
        return Err(first_difference(&told[0], &told[1]).into());
    }
    for output in [&expected, &output] {
        if !output.status.success() {
            return Err(format!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
        }
    }
    Ok(output)
}

fn first_difference(without: &str, with: &str) -> String {
    let same = without.lines().zip(with.lines()).take_while(|(one, other)| one == other).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("nothing more").to_owned();
    let before: Vec<&str> = with.lines().take(same).skip(same.saturating_sub(8)).collect();
    format!("line {}\nwithout vmio: {}\nwith it: {}\nafter\n{}", same + 1, line(without), line(with), before.join("\n"))
}

/// A comparison of a program's runs in a folder.
pub type Compare = fn(&str, &Path, &[&str]) -> Result<Output, Box<dyn Error>>;

/// Runs a random program that takes a folder, a seed and a number of steps with some seeds, and compares each with a plain run. Returns the
/// outputs and reports of the runs in the mode.
pub fn random_runs(
    mode: &str,
    program: &Path,
    steps: u32,
    seeds: Range<u64>,
    compare: Compare,
) -> Result<Vec<Output>, Box<dyn Error>> {
    let run = |seed: u64| -> Result<Output, Box<dyn Error>> {
        let work = tempfile::tempdir()?;
        let output = compare(mode, work.path(), &[text(program), ".", &seed.to_string(), &steps.to_string()]);
        // The seed repeats the run.
        Ok(output.unwrap_or_else(|error| panic!("mode {mode}, seed {seed}, {steps} steps: {error}")))
    };
    seeds.map(run).collect()
}

/// Programs that make, change, compare and remove many files.
pub const TOOLS: &str = r#"
set -e
mkdir tree; for n in $(seq 60); do seq $n 200 > tree/$n; done; cp tree/1 large; for n in $(seq 9); do cat large large > more; mv more large; done
tar cf archive.tar --sort=name --mtime=@0 --owner=0 --group=0 tree large
mkdir copy; tar xf archive.tar -C copy; diff -r tree copy/tree; cmp large copy/large
sort -S 1M -T . large | uniq -c | sort -n > counts; dd if=large of=patched bs=1000 skip=3 seek=5 count=90 conv=notrunc status=none
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a GIT_AUTHOR_DATE="@1000000000 +0000" GIT_COMMITTER_DATE="@1000000000 +0000"
git init -q -b main repository; cp -r tree repository; cd repository; git add .; git commit -q -m one; seq 9 > tree/5; git commit -q -am two
git fsck; git gc -q; git log --format=%H; cd ..; git clone -q repository clone; diff -r repository/tree clone/tree; rm -rf repository clone
"#;

/// The work of a database, for sqlite3.
pub const SQL: &str = r#"
PRAGMA cache_size = 20; PRAGMA synchronous = OFF;
CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, at INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) INSERT INTO t SELECT i, hex(i * 7919), i % 97 FROM n;
CREATE INDEX by_word ON t (word);
UPDATE t SET at = at + 1 WHERE id % 3 = 0;
BEGIN; DELETE FROM t WHERE id % 5 = 0; ROLLBACK;
DELETE FROM t WHERE id % 7 = 0;
SELECT count(*), sum(at), max(word), min(word) FROM t;
SELECT sum(length(a.word)) FROM t a JOIN t b ON a.word = b.word WHERE a.id % 50 = 1;
VACUUM;
PRAGMA integrity_check;
"#;
