//! `vmio kv` from the user's side: making, filling and reading stores.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{TestResult, refused, succeeded, vmio};
use serde_json::Value;

fn kv(command: &str, store: &Path) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).arg(store);
    run
}

fn created(dir: &Path) -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    let store = dir.join("store.kv");
    succeeded(kv("create", &store).args(["--size", "256M"]))?;
    Ok(store)
}

/// Runs a command with some input. Returns whether it succeeded, its output, and its errors.
fn fed(command: &mut Command, input: &str) -> Result<(bool, String, String), Box<dyn std::error::Error>> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    Ok((output.status.success(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

#[test]
fn values_are_found_by_the_next_command() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    succeeded(kv("put", &store).args(["pear", "green"]))?;
    succeeded(kv("put", &store).args(["--keyspace", "other", "apple", "an other one"]))?;
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    assert_eq!(succeeded(kv("get", &store).args(["--keyspace", "other", "apple"]))?, "an other one");
    assert_eq!(succeeded(kv("get", &store).args(["--region", "other", "apple"]))?, "an other one", "the old spelling");
    succeeded(kv("del", &store).arg("apple"))?;
    refused(kv("get", &store).arg("apple"), "\"apple\" has no value")?;
    assert_eq!(succeeded(&mut kv("scan", &store))?, "pear\tgreen\n");
    Ok(())
}

/// A takeover fences a process that has the store open and has written.
#[test]
fn a_store_is_taken_over_from_a_process_that_has_it_open() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    let mut old = kv("load", &store).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut input = old.stdin.take().ok_or("no input")?;
    input.write_all(b"pear\tgreen\n")?;
    // The name of the last thread that it starts shows that it has the store open; an attempt to open the store would be in its way.
    let is_open = || -> std::io::Result<bool> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", old.id()))?;
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        Ok(names.into_iter().any(|name| name.trim_end() == "vmio-kv-compact"))
    };
    while !is_open()? {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    refused(kv("put", &store).args(["plum", "blue"]), "take it over (--take-over)")?;
    succeeded(kv("put", &store).args(["--take-over", "plum", "blue"]))?;
    input.write_all(b"quince\tyellow\n")?;
    drop(input);
    let output = old.wait_with_output()?;
    let said = String::from_utf8(output.stderr)?;
    assert!(!output.status.success() && said.contains("was taken over"), "{said}");
    assert_eq!(String::from_utf8(output.stdout)?, "", "it has acknowledged nothing");
    assert_eq!(succeeded(&mut kv("scan", &store))?, "apple\tred\nplum\tblue\n");
    succeeded(kv("put", &store).args(["--take-over", "pear", "green"]))?;
    assert_eq!(succeeded(kv("get", &store).arg("pear"))?, "green");
    succeeded(&mut kv("check", &store))?;
    Ok(())
}

#[test]
fn space_held_for_former_owners_is_not_reported_as_a_full_store() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store.kv");
    succeeded(kv("create", &store).args(["--size", "64M"]))?;
    let take_over = |key: &str| kv("put", &store).args(["--take-over", key, "red"]).output();
    let refusal = (0..20)
        .map(|round| take_over(&round.to_string()))
        .find(|output| !matches!(output, Ok(output) if output.status.success()));
    let said = String::from_utf8(refusal.ok_or("each has found space")??.stderr)?;
    assert!(said.contains("open the store without --take-over"), "{said}");
    succeeded(kv("put", &store).args(["key", "green"]))?;
    assert_eq!(succeeded(kv("get", &store).arg("key"))?, "green");
    Ok(())
}

#[test]
fn a_store_grows_and_is_never_made_shorter() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    succeeded(kv("grow", &store).arg("300M"))?;
    assert_eq!(std::fs::metadata(&store)?.len(), 300 << 20);
    refused(kv("grow", &store).arg("300M"), "is 300 MiB long")?;
    assert_eq!(succeeded(kv("get", &store).arg("apple"))?, "red");
    succeeded(&mut kv("check", &store))?;
    Ok(())
}

#[test]
fn a_segment_is_added_and_holds_keyspaces_of_its_own() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    succeeded(kv("put", &store).args(["apple", "red"]))?;
    refused(kv("put", &store).args(["--segment", "1", "--keyspace", "archive", "a", "b"]), "has no segment 1")?;
    refused(kv("create-segment", &store).args(["--size", "1M"]), "is too little")?;
    assert_eq!(succeeded(kv("create-segment", &store).args(["--size", "512M"]))?, "1\n");
    assert_eq!(std::fs::metadata(&store)?.len(), 768 << 20);
    let (is_ok, _, error) =
        fed(kv("load", &store).args(["--segment", "1", "--keyspace", "archive"]), "pear\tgreen\nplum\tblue\n")?;
    assert!(is_ok, "{error}");
    succeeded(kv("put", &store).args(["--keyspace", "archive", "quince", "yellow"]))?;
    assert_eq!(succeeded(kv("scan", &store).args(["--keyspace", "archive", "--keys-only"]))?, "pear\nplum\nquince\n");
    refused(kv("put", &store).args(["--segment", "1", "a", "b"]), "\"default\" is in segment 0")?;
    let stat: Value = serde_json::from_str(&succeeded(kv("stat", &store).arg("--json"))?)?;
    assert_eq!(stat["segments"][0]["keyspaces"], serde_json::json!(["default"]));
    assert_eq!(stat["segments"][1]["keyspaces"], serde_json::json!(["archive"]));
    let sum = |name: &str| -> u64 { (0..2).filter_map(|number| stat["segments"][number][name].as_u64()).sum() };
    assert!(["space_bytes", "log_bytes", "live_bytes"].into_iter().all(|name| stat[name] == sum(name)), "{stat}");
    let text = succeeded(&mut kv("stat", &store))?;
    assert!(text.contains("segment 1  ") && text.contains("keyspaces archive\n"), "{text}");
    assert!(succeeded(&mut kv("check", &store))?.contains("segments   2\n"));
    let dumped = succeeded(&mut kv("dump", &store))?;
    assert_eq!(dumped.matches("segment  number=").count(), 2, "{dumped}");
    Ok(())
}

#[test]
fn many_keys_are_loaded_and_come_back_in_order() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let lines: Vec<String> =
        (0..20_000).map(|number| format!("{:06}\tvalue {number}\\x00\n", number * 7 % 20_000)).collect();
    let (is_ok, printed, error) = fed(&mut kv("load", &store), &lines.concat())?;
    assert!(is_ok && printed == "20000 keys\n", "{printed}{error}");
    let mut sorted = lines.clone();
    sorted.sort();
    assert_eq!(succeeded(&mut kv("scan", &store))?, sorted.concat());
    let some = succeeded(kv("scan", &store).args(["--from", "000100", "--limit", "2"]))?;
    assert_eq!(some, sorted[100..102].concat());
    let stat: Value = serde_json::from_str(&succeeded(kv("stat", &store).arg("--json"))?)?;
    assert_eq!(stat["keyspaces"], serde_json::json!(["default"]));
    let bytes = |name: &str| stat[name].as_u64().unwrap_or_default();
    assert!(bytes("space_bytes") > bytes("log_bytes") && bytes("live_bytes") > 0, "{stat}");
    assert_eq!(bytes("live_bytes") + bytes("garbage_bytes"), bytes("log_bytes"), "{stat}");
    assert_eq!(stat["collected_chunks"], 0);
    let text = succeeded(&mut kv("stat", &store))?;
    assert!(text.contains(" live, ") && text.contains("collected  0 chunks"), "{text}");
    Ok(())
}

#[test]
fn a_scan_has_bounds_and_goes_both_ways() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let lines = "apple\tred\napricot\torange\nbanana\tyellow\ncherry\tdark red\n";
    assert!(fed(&mut kv("load", &store), lines)?.0);
    let scan = |arguments: &[&str]| succeeded(kv("scan", &store).args(arguments));
    assert_eq!(scan(&["--from", "apricot", "--to", "cherry"])?, "apricot\torange\nbanana\tyellow\n");
    assert_eq!(scan(&["--prefix", "ap", "--keys-only"])?, "apple\napricot\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"])?, "cherry\tdark red\nbanana\tyellow\n");
    assert_eq!(scan(&["--reverse", "--to", "b", "--keys-only", "--limit", "1", "--json"])?, "{\"key\":\"apricot\"}\n");
    assert_eq!(scan(&["--from", "x"])?, "");
    refused(kv("scan", &store).args(["--prefix", "a", "--from", "b"]), "--prefix")?;
    Ok(())
}

#[test]
fn several_values_come_as_lines() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    assert!(fed(&mut kv("load", &store), "apple\tred\npear\tgreen\n")?.0);
    assert_eq!(succeeded(kv("get", &store).args(["pear", "apple"]))?, "pear\tgreen\napple\tred\n");
    let object = "{\"key\":\"pear\",\"value\":\"green\"}\n";
    assert_eq!(succeeded(kv("get", &store).args(["--json", "pear"]))?, object);
    let (is_ok, printed, error) = fed(kv("get", &store).args(["pear", "plum"]), "")?;
    assert!(!is_ok && printed == "pear\tgreen\n" && error.contains("\"plum\" has no value"), "{printed}{error}");
    Ok(())
}

#[test]
fn objects_come_back_and_a_bad_line_is_named() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let good = "{\"key\":\"a\",\"value\":\"\u{e9}\"}\n";
    let (is_ok, _, error) = fed(kv("load", &store).arg("--json"), &format!("{good}nonsense\n"))?;
    assert!(!is_ok && error.contains("line 2"), "{error}");
    assert_eq!(succeeded(kv("scan", &store).arg("--json"))?, good, "what came before it stays");
    Ok(())
}

#[test]
fn files_without_a_store_are_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    refused(&mut kv("create", &store), "holds a store already")?;
    let other = dir.path().join("other");
    std::fs::write(&other, vec![7; 64 << 20])?;
    refused(kv("get", &other).arg("a"), "holds no store of vmio-kv")?;
    refused(kv("get", &dir.path().join("none")).arg("a"), "none")?;
    refused(kv("put", &store).args(["", "value"]), "a key cannot have 0 bytes")?;
    std::fs::OpenOptions::new().write(true).open(&store)?.set_len(40 << 20)?;
    refused(kv("get", &store).arg("a"), "the file was cut off")?;
    Ok(())
}

#[test]
fn a_check_finds_nothing_wrong_until_a_byte_is_flipped() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let lines: String = (0..5_000).map(|number| format!("{number:06}\tvalue {number}\n")).collect();
    fed(&mut kv("load", &store), &lines)?;
    let before = std::fs::read(&store)?;
    let printed = succeeded(&mut kv("check", &store))?;
    // Closing the store has written one more record, which says what is durable.
    assert!(printed.contains("problems   0") && printed.contains("log        5001 records"), "{printed}");
    let report: Value = serde_json::from_str(&succeeded(kv("check", &store).arg("--json"))?)?;
    assert_eq!(report["problems"], serde_json::json!([]));
    assert_eq!(std::fs::read(&store)?, before, "it changes nothing");

    let dumped = succeeded(kv("dump", &store).args(["--structure", "log", "--json"]))?;
    let records: Vec<Value> = dumped.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let second = records.iter().find(|record| record["key"] == "000001").ok_or("no record of the second key")?;
    let place = second["offset"].as_u64().ok_or("no offset")?;
    let superblocks = succeeded(&mut kv("dump", &store))?;
    assert!(superblocks.contains("superblock  epoch="), "{superblocks}");

    let mut bytes = before;
    // The catalogue of keyspaces has no second copy.
    let catalogue = succeeded(kv("dump", &store).args(["--structure", "keyspaces", "--json"]))?;
    let catalogue = serde_json::from_str::<Value>(&catalogue)?["offset"].as_u64().ok_or("no offset")?;
    bytes[catalogue as usize + 500] ^= 1;
    std::fs::write(&store, &bytes)?;
    let wrong = format!("wrong: the catalogue of keyspaces at byte {catalogue}: its checksum does not match");
    let output = kv("check", &store).output()?;
    let printed = String::from_utf8(output.stdout)?;
    assert!(output.status.code() == Some(1) && printed.contains(&wrong), "{printed}");
    assert!(place > 0 && printed.contains("problems   1"), "{printed}");
    Ok(())
}

#[test]
fn pairs_go_from_store_to_store_in_every_form() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path())?;
    let longest = "k".repeat(65_536);
    let pairs = format!("\"a, \"\"b\"\"\",1\nc,\"two\nlines\"\n{longest},long\n");
    let (is_ok, printed, error) = fed(kv("load", &store).args(["--format", "csv"]), &pairs)?;
    assert!(is_ok && printed == "3 keys\n", "{printed}{error}");
    assert_eq!(succeeded(&mut kv("scan", &store))?, format!("a, \"b\"\t1\nc\ttwo\\nlines\n{longest}\tlong\n"));
    assert_eq!(succeeded(kv("get", &store).arg(&longest))?, "long");
    refused(kv("put", &store).args([&format!("{longest}k"), "longer"]), "keys have 1 to 65536")?;
    for form in ["text", "json", "csv", "binary"] {
        let copy = dir.path().join(form);
        succeeded(kv("create", &copy).args(["--size", "256M"]))?;
        let pairs = succeeded(kv("scan", &store).args(["--format", form]))?;
        let (is_ok, _, error) = fed(kv("load", &copy).args(["--format", form]), &pairs)?;
        assert!(is_ok, "{form}: {error}");
        assert_eq!(succeeded(&mut kv("scan", &copy))?, succeeded(&mut kv("scan", &store))?, "{form}");
    }
    Ok(())
}

#[test]
fn large_values_go_by_files_and_pipes() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (store, copy) = (created(dir.path())?, dir.path().join("copy.kv"));
    succeeded(&mut kv("create", &copy))?;
    let value: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 95) as u8 + b' ').collect();
    let (file, back) = (dir.path().join("value"), dir.path().join("back"));
    std::fs::write(&file, &value)?;
    succeeded(kv("put", &store).arg("large").arg("--file").arg(&file))?;
    succeeded(kv("get", &store).arg("large").arg("--out").arg(&back))?;
    assert!(std::fs::read(&back)? == value);
    let text = succeeded(kv("get", &store).args(["large", "--range", "1999900..1999910"]))?;
    assert_eq!(text.as_bytes(), &value[1_999_900..1_999_910]);
    let (is_ok, _, _) = fed(kv("put", &store).args(["small", "--file", "-"]), "from a pipe")?;
    assert!(is_ok && succeeded(kv("get", &store).arg("small"))? == "from a pipe");
    let pairs = kv("scan", &store).args(["--format", "binary"]).output()?.stdout;
    let pairs_file = dir.path().join("pairs");
    std::fs::write(&pairs_file, pairs)?;
    succeeded(kv("load", &copy).args(["--format", "binary"]).stdin(std::fs::File::open(&pairs_file)?))?;
    succeeded(kv("get", &copy).arg("large").arg("--out").arg(&back))?;
    assert!(std::fs::read(&back)? == value);
    succeeded(&mut kv("check", &copy))?;
    refused(kv("get", &store).args(["large", "small", "--range", "0..1"]), "one key")?;
    refused(kv("put", &store).args(["key", "value", "--file", "-"]), "--file")?;
    Ok(())
}
