//! `vmio stat` on a running `vmio cat`, which stands still whenever nobody reads its output.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::cat::{Cat, FILE_BYTES};
use crate::common::{TestResult, refused, succeeded, vmio};
use serde_json::Value;

/// The only cache in the object of a sample.
fn only_cache(sample: &str) -> Result<Value, Box<dyn Error>> {
    let sample: Value = serde_json::from_str(sample)?;
    let caches = sample["caches"].as_array().ok_or("caches is a list")?;
    assert_eq!((caches.len(), &sample["command"]), (1, &Value::from("vmio")));
    Ok(caches[0].clone())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a whole number"))
}

#[test]
fn totals_grow_with_what_the_process_reads() -> TestResult {
    let mut cat = Cat::start()?;
    let first = only_cache(&succeeded(vmio().args(["stat", "--json", &cat.id()]))?)?;
    assert_eq!((number(&first["cache"]), number(&first["mappings"])), (1, 1));
    assert_eq!(number(&first["mapped_bytes"]), FILE_BYTES as u64);
    let parts = ["resident_bytes", "table_bytes", "free_bytes"].map(|part| number(&first[part]));
    assert_eq!(number(&first["capacity_bytes"]), parts.iter().sum::<u64>(), "{first}");
    assert!(number(&first["capacity_bytes"]) <= 8 << 20);
    let by_priority = first["resident_bytes_by_priority"].as_array().ok_or("it is a list")?;
    let of_default = by_priority.iter().find(|class| class["lowest"] == 128).ok_or("128 begins one")?;
    let resident = number(&first["resident_bytes"]);
    assert!((1..=resident).contains(&number(&of_default["bytes"])) && by_priority.len() == 8, "{first}");
    assert_eq!(by_priority.iter().map(|class| number(&class["bytes"])).sum::<u64>(), number(&of_default["bytes"]));
    let counters = &first["counters"];
    assert!(number(&counters["read_bytes"]) >= 1 << 20, "{first}");
    // Every miss is timed; one may begin or end while the page is read. Of the reads, the first of eight of each core is timed.
    let timed = number(&first["latency_ns"]["miss"]["count"]);
    assert!(timed.abs_diff(number(&counters["load_misses"])) <= 2, "{first}");
    let timed = number(&first["latency_ns"]["read"]["count"]);
    assert!(timed >= 1 && timed <= number(&counters["reads"]), "{first}");
    assert_eq!(number(&first["reads_timed_one_in"]), 8);
    assert_eq!((number(&counters["minor_faults"]), number(&counters["store_misses"])), (0, 0));
    assert!(first["latency_ns"]["sync"]["p50"].is_null() && first["interval"].is_null());

    cat.read(16 << 20)?;
    let second = only_cache(&succeeded(vmio().args(["stat", "--json", &cat.id()]))?)?;
    for counter in ["load_misses", "reads", "read_bytes", "evicted_clean"] {
        assert!(number(&second["counters"][counter]) > number(&counters[counter]), "{counter}: {second}");
    }
    let text = succeeded(vmio().args(["stat", &cat.id()]))?;
    assert!(text.starts_with(&format!("process {} (vmio)\n", cat.id())), "{text}");
    for part in
        ["cache 1: ", "24 MiB  in 1 mapping(s)", "evicted pages", "read (one in 8)", "p99.9", "  priority 128-159"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    cat.finish()
}

#[test]
fn watching_ends_with_the_process() -> TestResult {
    let mut cat = Cat::start()?;
    let mut watch = vmio().args(["stat", "--json", &cat.id(), "--watch", "0.05"]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().ok_or("its output is piped")?).lines();
    let first = only_cache(&lines.next().ok_or("a sample while the process lives")??)?;
    assert!(first["interval"]["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.05), "{first}");
    cat.read(8 << 20)?;
    // It has read more by now: some sample from here on shows that.
    let mut moved = false;
    while !moved {
        let sample = only_cache(&lines.next().ok_or("the process lives")??)?;
        moved = sample["interval"]["misses_per_s"].as_f64().is_some_and(|rate| rate > 0.0);
        assert_eq!(moved, sample["interval"]["miss_ns"]["p99"].is_u64(), "{sample}");
    }
    cat.finish()?;
    for line in lines {
        serde_json::from_str::<Value>(&line?)?;
    }
    assert!(watch.wait()?.success());
    Ok(())
}

#[test]
fn watching_for_people_has_a_header_and_a_line_a_sample() -> TestResult {
    let mut cat = Cat::start()?;
    let mut watch = vmio().args(["stat", &cat.id(), "--watch", "0.05"]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().ok_or("its output is piped")?).lines();
    let header = lines.next().ok_or("a header")??;
    let line = lines.next().ok_or("a sample")??;
    for column in ["misses/s", "p99", "in MB/s", "evict/s", "shoot/s", "dirty"] {
        assert!(header.contains(column), "no {column:?} in {header}");
    }
    assert!(line.trim_start().starts_with('1') && line.ends_with('%'), "{line}");
    cat.finish()?;
    assert!(lines.all(|line| line.is_ok_and(|line| !line.contains("misses/s"))), "a file has one header");
    assert!(watch.wait()?.success());
    Ok(())
}

#[test]
fn what_cannot_be_looked_at_is_refused_with_a_reason() -> TestResult {
    // Larger than any number that Linux gives to a process.
    refused(vmio().args(["stat", "4194305"]), "there is no process 4194305")?;
    refused(vmio().args(["stat", "4294967295", "--watch"]), "there is no process 4294967295")?;
    let this = std::process::id().to_string();
    refused(vmio().args(["stat", &this]), "does not use vmio")?;
    // At most root may open it, and not in every container: the same right shows its program.
    let visible = fs::read_link("/proc/1/exe").is_ok();
    refused(vmio().args(["stat", "1"]), if visible { "does not use vmio" } else { "CAP_SYS_PTRACE" })?;
    refused(vmio().args(["stat", "0"]), "PID")?;
    refused(vmio().args(["stat", "--watch", "1"]), "PID")?;
    refused(vmio().args(["stat", "1", "--watch", "0"]), "seconds")?;
    Ok(())
}

#[test]
fn a_reader_that_goes_away_is_no_failure() -> TestResult {
    let mut cat = Cat::start()?;
    let mut watch = vmio().args(["stat", &cat.id(), "--watch", "0.05"]).stdout(Stdio::piped()).spawn()?;
    drop(watch.stdout.take());
    assert!(watch.wait()?.success());
    cat.finish()
}
