//! `vmio trace` of a program that publishes its misses, and of one that does not.

use std::error::Error;
use std::io::{Read, stdin};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use crate::common::{TestResult, refused, succeeded, vmio};
use rustix::process::{Pid, Signal, kill_process};
use vmio::backing::NullBacking;
use vmio::{Access, Cache, Engine, FrameHint, Mapping, MappingOptions, Unit};

const PAGE_BYTES: u64 = 4096;
const PAGES: u64 = 2000;
/// Large enough for all pages: in a smaller cache, a page may be evicted before the missing thread looks, which then misses it again.
const CAPACITY: u64 = 64 << 20;
/// The page that gets a store; the others get loads.
const STORED: u64 = PAGES - 1;

/// Set for the traced program: `no`, `yes`, or `stream` for a mapping that huge pages would fill.
const PUBLISHES: &str = "VMIO_TEST_PUBLISHES";

/// The program that the tests below run and trace; not a test. Loads pages, stores to the last, and waits for the end of its input.
#[test]
fn traced_program() -> TestResult {
    let Ok(publishes) = env::var(PUBLISHES) else { return Ok(()) };
    let builder = Cache::builder().engine(Engine::Sigbus).capacity(CAPACITY);
    if publishes == "stream" {
        return load_stream(&builder.publish_misses(true).build()?);
    }
    let cache = builder.publish_misses(publishes == "yes").build()?;
    // Without published misses, the pages of a larger unit would come in together.
    let options = MappingOptions::new().unit(Unit::Kib64);
    let map = Mapping::open(&cache, NullBacking::new(PAGES * PAGE_BYTES), options)?;
    for page in 0..STORED {
        map.ensure(page * PAGE_BYTES..page * PAGE_BYTES + 1)?;
    }
    map.write_at(STORED * PAGE_BYTES, &[1])?;
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn load_stream(cache: &Cache) -> TestResult {
    let options = MappingOptions::new().access(Access::ReadOnly).frames(FrameHint::Stream);
    let map = Mapping::open(cache, NullBacking::new(PAGES * PAGE_BYTES), options)?;
    for page in 0..PAGES {
        map.ensure(page * PAGE_BYTES..page * PAGE_BYTES + 1)?;
    }
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn trace(publishes: &str, out: &Path) -> Result<Child, Box<dyn Error>> {
    let mut command = vmio();
    command.env(PUBLISHES, publishes).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(["trace", "--out"]).arg(out).arg("--").arg(env::current_exe()?);
    Ok(command.args(["--exact", "trace::traced_program"]).spawn()?)
}

/// Waits until the trace ends with a line.
fn wait_for_line(recorder: &mut Child, out: &Path, line: &str) -> TestResult {
    while fs::read_to_string(out).map_or(true, |text| !text.ends_with(&format!("\n{line}\n"))) {
        assert!(recorder.try_wait()?.is_none(), "the recorder ended early");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn the_trace_has_every_miss_in_order_and_can_be_replayed() -> TestResult {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("pages.txt");
    let mut recorder = trace("yes", &out)?;
    wait_for_line(&mut recorder, &out, &format!("{STORED},store"))?;
    drop(recorder.stdin.take());
    let output = recorder.wait_with_output()?;
    let told = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && told.contains(&format!("{PAGES} misses recorded, 0 lost")), "{told}");
    let text = fs::read_to_string(&out)?;
    let mut lines = text.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("# misses of cache 1 of process ")));
    let expected = (0..STORED).map(|page| format!("{page},load")).chain([format!("{STORED},store")]);
    assert!(lines.eq(expected), "{text}");
    let out = out.to_str().ok_or("a path")?;
    let replayed = succeeded(vmio().args(["sim", "--trace", out, "--cache", "50%", "--policy", "lru"]))?;
    assert!(replayed.starts_with(&format!("{PAGES} accesses to {PAGES} pages")), "{replayed}");
    Ok(())
}

#[test]
fn what_would_come_in_by_huge_pages_is_recorded_page_by_page() -> TestResult {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("pages.txt");
    let mut recorder = trace("stream", &out)?;
    wait_for_line(&mut recorder, &out, &format!("{},load", PAGES - 1))?;
    drop(recorder.stdin.take());
    let output = recorder.wait_with_output()?;
    let told = String::from_utf8(output.stderr)?;
    assert!(output.status.success() && told.contains(&format!("{PAGES} misses recorded, 0 lost")), "{told}");
    Ok(())
}

#[test]
fn an_interrupt_ends_the_recording_with_its_summary() -> TestResult {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("pages.txt");
    let mut recorder = trace("yes", &out)?;
    wait_for_line(&mut recorder, &out, &format!("{STORED},store"))?;
    kill_process(Pid::from_child(&recorder), Signal::INT)?;
    let status = recorder.wait()?;
    // The program goes on, and ends now with its input.
    let output = recorder.wait_with_output()?;
    let told = String::from_utf8(output.stderr)?;
    assert!(status.success() && told.contains(&format!("{PAGES} misses recorded, 0 lost")), "{told}");
    Ok(())
}

#[test]
fn what_publishes_nothing_is_not_traced() -> TestResult {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("pages.txt");
    let mut recorder = trace("no", &out)?;
    drop(recorder.stdin.take());
    let output = recorder.wait_with_output()?;
    let told = String::from_utf8(output.stderr)?;
    assert!(!output.status.success() && told.contains("CacheBuilder::publish_misses"), "{told}");
    refused(vmio().args(["trace", "--out"]).arg(&out), "--pid")
}
