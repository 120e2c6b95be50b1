//! `vmio record`: the page, read as XML, beside what the command did.

mod common;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::{TestResult, patterned, refused, succeeded, vmio};
use roxmltree::{Document, Node, ParsingOptions};

/// Records a command; the page.
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

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect()
}

#[test]
fn the_page_shows_what_a_child_of_the_command_did() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("a <b> & c");
    fs::write(&file, patterned(24 << 20))?;
    // The cache is a child's, and stays open for as long as the reader is slow.
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
    assert!(text_of(parsed(&page)?.root_element()).contains("No cache was open"));
    Ok(())
}

#[test]
fn failures_are_passed_on() -> TestResult {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("run.html");
    refused(record(&page).args(["sh", "-c", "exit 3"]), "exit status: 3")?;
    assert!(page.exists(), "what was recorded is worth having all the same");
    refused(record(&dir.path().join("absent/run.html")).arg("true"), "there is no folder")?;
    refused(record(&page).arg("no-such-command"), "cannot run no-such-command")
}
