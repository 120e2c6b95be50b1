//! `vmio record` and `vmio report`: the page, parsed as XML, beside the work of the command.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, patterned, refused, succeeded, vmio};
use roxmltree::{Document, Node, ParsingOptions};
use vmio::backing::NullBacking;
use vmio::{Cache, Engine, Mapping, MappingOptions};

const PAGE_BYTES: u64 = 4096;
const PAGES: u64 = 2000;

/// Set for the recorded program: whether it publishes its misses.
const PUBLISHES: &str = "VMIO_TEST_PUBLISHES";

/// The program that tests below record; not a test. Loads the pages of one file in sequence and those of another at random, and stores to a
/// page right before it ends.
#[test]
fn recorded_program() -> TestResult {
    let Ok(publishes) = env::var(PUBLISHES) else { return Ok(()) };
    let builder = Cache::builder().engine(Engine::Sigbus).capacity(6 << 20);
    let cache = builder.publish_misses(publishes == "yes").build()?;
    let open = || Mapping::open(&cache, NullBacking::new(PAGES * PAGE_BYTES), MappingOptions::new());
    let load = |map: &Mapping, page: u64| map.ensure(page * PAGE_BYTES..page * PAGE_BYTES + 1);
    let (first, second) = (open()?, open()?);
    (0..PAGES).try_for_each(|page| load(&first, page))?;
    let mut random = 1_u32;
    for _ in 0..PAGES {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        load(&second, u64::from(random >> 8) % PAGES)?;
    }
    let published: &[&str] = if publishes == "yes" { &["vmio-stat", "vmio-misses"] } else { &["vmio-stat"] };
    assert!(test_depth::comes_true(|| published.iter().all(|name| recorder_has(name))), "nobody records");
    first.write_at(0, &[1])?;
    std::process::exit(0)
}

/// Whether this process's parent, `vmio record`, has a file open that a cache has published.
fn recorder_has(name: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fd", std::os::unix::process::parent_id()));
    let mut targets = files.into_iter().flatten().flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| target.to_string_lossy().starts_with(&format!("/memfd:{name}")))
}

/// Records a command; returns the page.
fn recorded(dir: &Path, command: &[&str]) -> Result<String, Box<dyn Error>> {
    let page = dir.join("run.html");
    succeeded(record(&page).args(command))?;
    Ok(fs::read_to_string(page)?)
}

fn record(page: &Path) -> Command {
    let mut command = vmio();
    command.args(["record", "--interval", "0.05", "--out"]).arg(page).arg("--");
    command
}

fn parsed(page: &str) -> Result<Document<'_>, Box<dyn Error>> {
    assert!(page.starts_with("<!DOCTYPE html>"));
    for reference in ["src=", "href", "url(", "@import", "<script", "<link", "<img"] {
        assert!(!page.contains(reference), "{reference}");
    }
    Ok(Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..Default::default() })?)
}

const SVG: &str = "http://www.w3.org/2000/svg";

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect()
}

#[test]
fn the_page_shows_what_a_child_of_the_command_did() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("a <b> & c");
    fs::write(&file, patterned(24 << 20))?;
    // A child has the cache, and keeps it open for as long as the reader is slow.
    let script = r#""$0" cat --cache 8M "$1" | while head -c 4194304 | grep -c . >/dev/null; do sleep 0.2; done"#;
    let path = file.to_str().ok_or("no text")?;
    let page = recorded(dir.path(), &["sh", "-c", script, env!("CARGO_BIN_EXE_vmio"), path])?;
    let document = parsed(&page)?;
    let text = text_of(document.root_element());
    for part in ["(vmio), cache 1", "a <b> & c", "evicted pages", "mapping(s)"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let charts: Vec<_> = document.descendants().filter(|node| node.attribute("aria-label").is_some()).collect();
    let titles: Vec<_> = charts.iter().filter_map(|node| node.attribute("aria-label")).collect();
    assert_eq!(titles, ["Pages", "Bytes moved", "Latency of misses", "Memory", "Size of requests", "Under way"]);
    for (chart, curve) in charts.iter().zip(["misses", "read", "p99", "resident", "read", "misses"]) {
        let drawn = chart.descendants().find(|node| node.attribute("data-curve") == Some(curve));
        let path = drawn.and_then(|node| node.attribute("d")).unwrap_or_default();
        assert!(path.starts_with('M'), "no curve {curve}");
    }
    Ok(())
}

#[test]
fn a_command_without_caches_gets_a_page_that_says_so() -> TestResult {
    let dir = tempfile::tempdir()?;
    let page = recorded(dir.path(), &["sh", "-c", "exit 0"])?;
    assert!(text_of(parsed(&page)?.root_element()).contains("No cache was seen"));
    Ok(())
}

/// Records the program above, with samples only at its beginning and its end.
fn recorded_misses(publishes: &str) -> Result<String, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("run.html");
    let mut command = vmio();
    command.args(["record", "--interval", "3600", "--out"]).arg(&page).arg("--").arg(env::current_exe()?);
    succeeded(command.args(["--exact", "record::recorded_program"]).env(PUBLISHES, publishes))?;
    Ok(fs::read_to_string(page)?)
}

#[test]
fn where_misses_were_is_drawn_of_caches_that_publish_it() -> TestResult {
    let page = recorded_misses("yes")?;
    let document = parsed(&page)?;
    let chart = |title: &str| {
        let mut nodes = document.descendants();
        nodes.find(|node| node.attribute("aria-label") == Some(title)).ok_or_else(|| format!("no chart {title:?}"))
    };
    for mapping in ["mapping 1", "mapping 2"] {
        let map = chart(&format!("Where misses were, {mapping}"))?;
        let is_cell = |node: &Node<'_, '_>| {
            node.has_tag_name((SVG, "path")) && node.attribute("class").is_some_and(|class| class.starts_with("heat "))
        };
        assert!(map.descendants().any(|node| is_cell(&node)), "{mapping} is empty");
    }
    let randomness = |mapping: u32, curve| -> Result<f64, Box<dyn Error>> {
        let chart = chart(&format!("Randomness of misses, mapping {mapping}"))?;
        let line = chart.descendants().find(|node| node.attribute("data-curve") == Some(curve));
        let title = text_of(line.ok_or_else(|| format!("no line {curve:?} of mapping {mapping}"))?);
        Ok(title.rsplit(' ').next().unwrap_or_default().parse()?)
    };
    let (in_sequence, anywhere) = (randomness(1, "loads")?, randomness(2, "loads")?);
    assert!(in_sequence < 0.002, "{in_sequence}");
    assert!((0.3..0.36).contains(&anywhere), "{anywhere}");
    Ok(())
}

#[test]
fn what_a_cache_does_right_before_its_end_is_recorded() -> TestResult {
    let page = recorded_misses("no")?;
    let text = text_of(parsed(&page)?.root_element());
    assert!(text.contains(", by stores 1\n"), "{text}");
    assert!(text.contains("CacheBuilder::publish_misses(true)"), "{text}");
    Ok(())
}

#[test]
fn failures_are_passed_on() -> TestResult {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("run.html");
    refused(record(&page).args(["sh", "-c", "exit 3"]), "sh ended with status 3")?;
    assert!(page.exists(), "what was recorded is worth having all the same");
    refused(record(&dir.path().join("absent/run.html")).arg("true"), "there is no folder")?;
    refused(record(&page).arg("no-such-command"), "cannot run no-such-command")
}

#[test]
fn what_was_saved_is_drawn_later() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let mut command = record(&path("now.html"));
    command.arg(env::current_exe()?).args(["--exact", "record::recorded_program"]).env(PUBLISHES, "yes");
    // Before the command, among the options.
    let mut command_and_save = vmio();
    command_and_save
        .args(["record", "--save"])
        .arg(path("run.vmio"))
        .args(command.get_args().skip(1))
        .env(PUBLISHES, "yes");
    succeeded(&mut command_and_save)?;
    let report = |recordings: &[&str], out: &str| {
        let mut report = vmio();
        report.arg("report").args(recordings.iter().map(|name| path(name))).arg("--out").arg(path(out));
        report
    };
    succeeded(&mut report(&["run.vmio"], "later.html"))?;
    let page = |name: &str| fs::read_to_string(path(name));
    // The page gives the cache's age as of now.
    let without_time = |page: &str| page.lines().filter(|line| !line.contains(", up ")).collect::<Vec<_>>().join("\n");
    assert_eq!(without_time(&page("later.html")?), without_time(&page("now.html")?));
    succeeded(&mut report(&["run.vmio", "run.vmio"], "both.html"))?;
    let both = page("both.html")?;
    let maps = |page: &str| page.matches("aria-label=\"Where misses were, mapping 1\"").count();
    assert_eq!((maps(&page("later.html")?), maps(&both)), (1, 2));
    parsed(&both)?;

    let saved = page("run.vmio")?;
    fs::write(path("half.vmio"), &saved[..saved.len() / 2])?;
    refused(&mut report(&["run.vmio", "half.vmio"], "none.html"), "half.vmio: it is cut off")?;
    refused(&mut report(&["now.html"], "none.html"), "not a recording")?;
    refused(&mut report(&["absent"], "none.html"), "No such file")?;
    assert!(!path("none.html").exists());
    refused(vmio().args(["record", "--", "true"]), "--out")
}
