//! An unmodified Redis in the virtual machine of its process: threads, a fork to save, a kill.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::programs::{has, leave_out, plain};
use crate::common::redis::{Redis, value};
use crate::common::ring0::{chooses_level, has_been_inside, under};
use crate::common::{TestResult, succeeded};

/// Strings, lists, sets and scripts; the last answer depends on all values.
const WORK: &str = r#"
EVAL "for n = 1, 3000 do redis.call('SET', 'text:' .. n, string.rep(n, n % 50)) end return redis.call('DBSIZE')" 0
RPUSH list 3 1 2 9 7
SORT list DESC
SADD set a b c d
SORT set ALPHA
INCRBY counter 41
INCR counter
ZADD scores 3 c 1 a 2 b
ZRANGE scores 0 -1 WITHSCORES
EXPIRE counter 100000
DEL text:7 text:8
EVAL "local s = '' for n = 1, 3000 do s = redis.sha1hex(s .. (redis.call('GET', 'text:' .. n) or '')) end return s" 0
BGSAVE
"#;

/// Has a server do the work, and wait for its child, which saves. Returns its answers.
fn work(redis: &Redis) -> Result<String, Box<dyn std::error::Error>> {
    let mut client = redis.client().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    client.stdin.take().ok_or("no standard input")?.write_all(WORK.as_bytes())?;
    let answers = String::from_utf8(client.wait_with_output()?.stdout)?;
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let state = succeeded(redis.client().args(["INFO", "persistence"]))?;
        if state.contains("rdb_bgsave_in_progress:0") {
            assert!(state.contains("rdb_last_bgsave_status:ok"), "{state}");
            return Ok(answers);
        }
        assert!(Instant::now() < end, "the child does not end: {state}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn redis_answers_saves_and_dies_as_it_does_without() -> TestResult {
    if !has("redis-server") {
        return leave_out("redis-server is not installed");
    }
    let [without, with] = [tempfile::tempdir()?, tempfile::tempdir()?];
    let inside = |folder: &Path, arguments: &[&str]| -> Command {
        let mut command = under(folder, "16M");
        command.args(arguments);
        command
    };
    let mut tried = inside(with.path(), &["true"]);
    if !chooses_level(&mut tried, with.path())? {
        return Ok(());
    }
    let level: Vec<_> =
        tried.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    let expected = work(&Redis::start(without.path(), plain)?)?;
    let redis = Redis::start(with.path(), |arguments| {
        let mut command = inside(with.path(), arguments);
        command.envs(level.iter().cloned());
        command
    })?;
    assert_eq!(work(&redis)?, expected);
    assert!(expected.contains("Background saving started"), "{expected}");
    assert!(has_been_inside(redis.process())?);
    let acknowledged = redis.killed_while_it_stores(300)?;
    let found = Redis::start(with.path(), plain)?.values(acknowledged)?;
    assert!(
        found == (0..acknowledged).map(value).collect::<Vec<_>>(),
        "{acknowledged} were acknowledged, not all are there"
    );
    Ok(())
}
