//! `vmio bench map --report`: a page and a drawing with the same results as `--json`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use crate::common::{TestResult, refused, succeeded, vmio};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

const SVG: &str = "http://www.w3.org/2000/svg";

/// Measures `engines` on a tiny file in `dir`. Returns the results as JSON, and the report.
fn tiny_run(dir: &Path, report: &str, arguments: &[&str]) -> Result<(Vec<Value>, String), Box<dyn Error>> {
    let (json, report) = (dir.join("out.json"), dir.join(report));
    succeeded(
        vmio()
            .args(["bench", "map", "--size", "16M", "--cache", "8M", "--secs", "0.3"])
            .args(["--op", "mixed:50", "--dir"])
            .arg(dir)
            .arg("--json")
            .arg(&json)
            .arg("--report")
            .arg(&report)
            .args(arguments),
    )?;
    Ok((serde_json::from_slice(&fs::read(json)?)?, fs::read_to_string(report)?))
}

fn number(run: &Value, key: &str) -> f64 {
    run[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {run}"))
}

fn engine(run: &Value) -> &str {
    run["engine"].as_str().unwrap_or_else(|| panic!("no engine in {run}"))
}

fn threads_label(run: &Value) -> String {
    if run["threads"] == 1 { "1 thread".to_owned() } else { format!("{} threads", run["threads"]) }
}

/// The elements below `node` that have `class` among their classes.
fn with_class<'a>(node: Node<'a, 'a>, class: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.descendants().filter(move |node| {
        node.attribute("class").is_some_and(|classes| classes.split(' ').any(|candidate| candidate == class))
    })
}

/// An element's title, which shows when somebody points at it.
fn title<'a>(node: Node<'a, 'a>) -> Option<&'a str> {
    node.children().find(|child| child.tag_name().name() == "title")?.text()
}

/// The coordinates of a path of straight lines.
fn coordinates(path: &str) -> Vec<(f64, f64)> {
    let point = |text: &str| {
        let (x, y) = text.split_once(' ')?;
        Some((x.parse().ok()?, y.parse().ok()?))
    };
    path.split(['M', 'L']).filter(|text| !text.is_empty()).map(|text| point(text).expect("two numbers")).collect()
}

fn assert_needs_nothing_else(text: &str) {
    assert!(!text.replace(SVG, "").contains("http"), "a reference to the net");
    for reference in ["src=", "href", "url(", "@import", "<script", "<link", "<img", "<image", "<use"] {
        assert!(!text.contains(reference), "{reference}");
    }
}

/// Every engine has one colour and shape in all charts, and shares it with no other.
fn assert_consistent_colours(document: &Document) {
    let mut classes = BTreeMap::new();
    for node in document.descendants() {
        let Some(engine) = node.attribute("data-engine") else { continue };
        let colour = node.attribute("class").and_then(|classes| classes.split(' ').next_back());
        assert_eq!(classes.entry(engine).or_insert(colour), &colour, "{engine}");
    }
    let mut colours: Vec<_> = classes.values().collect();
    colours.sort();
    colours.dedup();
    assert!(classes.len() > 1 && colours.len() == classes.len(), "{classes:?}");
}

/// The latency in a mark's title, as in `vmio: 50 % took at most 3.21 µs`.
fn latency_us(title: &str) -> f64 {
    let (value, unit) = title.rsplit_once("at most ").and_then(|(_, text)| text.split_once(' ')).expect("a latency");
    let factor = match unit {
        "ns" => 1e-3,
        "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => panic!("unit {unit}"),
    };
    value.parse::<f64>().expect("a number") * factor
}

fn assert_latencies_are_the_runs(chart: Node, run: &Value) {
    let curve = with_class(chart, "curve").find(|curve| curve.attribute("data-engine") == Some(engine(run)));
    let curve = curve.unwrap_or_else(|| panic!("no curve of {}", engine(run)));
    let points = coordinates(curve.attribute("d").unwrap_or_default());
    // A machine that is busy with something else may do few: the curve then ends early.
    let operations =
        title(curve).and_then(|title| title.rsplit_once(" of ")?.1.strip_suffix(" operations")?.parse().ok());
    let operations: f64 = operations.unwrap_or_else(|| panic!("no number of operations in {:?}", title(curve)));
    assert!(points.len() >= 50 || operations < 10.0, "{} points of {operations} operations", points.len());
    // Upwards to the right.
    assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1), "{points:?}");

    for (percentile, key, enough) in [("50", "p50_us", 2.0), ("99", "p99_us", 100.0), ("99.9", "p999_us", 1000.0)] {
        if operations < enough {
            continue;
        }
        let start = format!("{}: {percentile} % took at most ", engine(run));
        let mark = with_class(chart, "mark").filter_map(title).find(|title| title.starts_with(&start));
        let shown_us = latency_us(mark.unwrap_or_else(|| panic!("no mark for {start}")));
        assert!((shown_us / number(run, key) - 1.0).abs() < 0.01, "{key}: {shown_us} in the chart, {run}");
    }
}

#[test]
fn the_page_shows_what_json_says() -> TestResult {
    let dir = tempfile::tempdir()?;
    // A name that would break a page without escapes.
    let dir = dir.path().join("a <b> & 'c' \"d\"");
    fs::create_dir(&dir)?;
    let (runs, page) = tiny_run(&dir, "map.html", &["--threads", "1,2"])?;
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert_needs_nothing_else(&page);
    let document = Document::parse_with_options(&page, ParsingOptions { allow_dtd: true, ..Default::default() })?;
    assert_consistent_colours(&document);
    let text: String = document.descendants().filter_map(|node| node.text()).collect();
    for fact in ["a <b> & 'c' \"d\"", "16 MiB of data, a cache of 8 MiB", "--cache 8M", "Linux ", " UTC", "core"] {
        assert!(text.contains(fact), "{fact} is missing");
    }

    let chart = |title: &str| {
        let mut charts = document.descendants().filter(|node| node.has_tag_name((SVG, "svg")));
        charts.find(|node| node.attribute("aria-label") == Some(title)).unwrap_or_else(|| panic!("no chart {title}"))
    };
    let rows: Vec<Vec<&str>> = document
        .descendants()
        .filter(|node| node.tag_name().name() == "tr")
        .map(|row| row.children().filter_map(|cell| cell.text()).collect())
        .collect();
    let (throughput, bytes) = (chart("Throughput: uniform mixed:50"), chart("Bytes moved: uniform mixed:50"));
    assert!(runs.len() >= 4, "{runs:?}");
    for run in &runs {
        let threads = threads_label(run);
        assert_latencies_are_the_runs(chart(&format!("Latency: uniform mixed:50, {threads}")), run);

        let curves = with_class(throughput, "curve").filter(|node| node.attribute("data-engine") == Some(engine(run)));
        assert_eq!(curves.count(), 1, "{run}");
        for node in [throughput, bytes] {
            let start = format!("{}, {threads}: ", engine(run));
            assert!(node.descendants().filter_map(title).any(|title| title.starts_with(&start)), "{start} {run}");
        }

        let count = run["threads"].to_string();
        let row = rows.iter().find(|row| row[..2] == [engine(run), &count]);
        let row = row.unwrap_or_else(|| panic!("no row for {run} in {rows:?}"));
        for (column, text) in [
            (2, format!("{:.1}", number(run, "ops_per_s") / 1e3)),
            (4, format!("{:.2}", number(run, "mean_us"))),
            (5, format!("{:.2}", number(run, "p50_us"))),
            (6, format!("{:.1}", number(run, "p99_us"))),
            (8, format!("{:.1}", number(run, "p999_us"))),
            (10, format!("{:.1}", number(run, "max_us") / 1e3)),
        ] {
            assert_eq!(row[column], text, "column {column} of {row:?}, {run}");
        }
    }
    Ok(())
}

#[test]
fn bars_are_as_high_as_the_bytes_moved() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (runs, drawing) = tiny_run(dir.path(), "map.svg", &["--threads", "2", "--engines", "vmio,pread"])?;
    assert_needs_nothing_else(&drawing);
    let document = Document::parse(&drawing)?;
    assert!(document.root_element().has_tag_name((SVG, "svg")));
    assert_consistent_colours(&document);
    for title in
        ["Latency: uniform mixed:50, 2 threads", "Throughput: uniform mixed:50", "Bytes moved: uniform mixed:50"]
    {
        assert!(document.descendants().any(|node| node.text() == Some(title)), "{title} is missing");
    }
    for run in &runs {
        let height = |class: &'static str| -> f64 {
            let mut bars = with_class(document.root(), class).filter(|node| node.tag_name().name() == "rect");
            let bar = bars.find(|bar| bar.attribute("data-engine") == Some(engine(run)));
            let height = bar.and_then(|bar| bar.attribute("height")).and_then(|height| height.parse().ok());
            height.unwrap_or_else(|| panic!("no bar {class} of {run}"))
        };
        // Both are bytes for each operation of the same run, so their ratio is that of the bytes.
        let (read, written) = (number(run, "read_bytes"), number(run, "write_bytes"));
        let share = height("written") / (height("written") + height("read"));
        if read + written > 0.0 {
            assert!((share - written / (read + written)).abs() < 0.01, "{share} of the bar is written in {run}");
        }
    }
    Ok(())
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_runs() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (file, report) = (dir.path().join("data"), dir.path().join("absent/map.html"));
    let mut command = vmio();
    command.args(["bench", "map", "--size", "1M", "--file"]).arg(&file).arg("--report").arg(&report);
    refused(&mut command, "there is no folder")?;
    assert!(!file.exists(), "the benchmark began");
    refused(vmio().args(["bench", "map", "--report"]).arg(dir.path()), "is a folder")
}
