//! The results of `bench map` for people: a table for each pattern and operation, every row beside
//! Linux mmap.

use vmio_report::table::Table;

use crate::break_even;
use crate::engines::EngineKind;
use crate::matrix::MatrixResult;
use crate::spec::{MissParts, RunResult, threads_label};

/// The format of tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns.
    Text,
    /// Markdown tables.
    Markdown,
}

const HEADER: [&str; 14] = [
    "engine",
    "threads",
    "kops/s",
    "x mmap",
    "mean µs",
    "p50 µs",
    "p99 µs",
    "x mmap",
    "p99.9 µs",
    "x mmap",
    "max ms",
    "CPU s/Mop",
    "max RSS MiB",
    "hits %",
];

/// The whole report.
pub fn report(result: &MatrixResult, style: Style) -> String {
    let mut text = String::new();
    let mut start = 0;
    while start < result.runs.len() {
        let first = &result.runs[start];
        let end = start
            + result.runs[start..].iter().take_while(|run| run.pattern == first.pattern && run.op == first.op).count();
        let heading = format!("{} {}", first.pattern, first.op);
        text.push_str(&match style {
            Style::Text => format!("{heading}\n"),
            Style::Markdown => format!("### {heading}\n\n"),
        });
        text.push_str(&group(&result.runs[start..end], style));
        text.push('\n');
        start = end;
    }
    if let Some(reason) = &result.left_out {
        text.push_str(&format!("{reason}\n"));
    }
    text + &verdict(result) + "\n"
}

/// A sentence that says whether the data was right.
pub fn verdict(result: &MatrixResult) -> String {
    match result.runs.iter().map(|run| run.verify_errors).sum() {
        0_u64 => "every word read was what it should be".to_owned(),
        errors => format!("VERIFY ERRORS: {errors} words were not what they should be"),
    }
}

/// The runs of one pattern and operation.
fn group(runs: &[RunResult], style: Style) -> String {
    let table = table(runs);
    let table = match style {
        Style::Text => table.text(),
        Style::Markdown => table.markdown() + "\n",
    };
    table + &remarks(runs, style)
}

/// The figures of the runs of one pattern and operation.
pub fn table(runs: &[RunResult]) -> Table {
    let mut table = Table::new(&HEADER);
    for run in runs {
        table.row(row(run, sibling(runs, run, EngineKind::Mmap)));
    }
    table
}

/// Conclusions from the figures: where a cache begins to win, and where the time of a miss goes.
pub fn remarks(runs: &[RunResult], style: Style) -> String {
    let mut text = String::new();
    for run in runs.iter().filter(|run| run.engine.is_vmio()) {
        let label = format!("{}, {}", run.engine, threads_label(run.threads));
        let sentence = sibling(runs, run, EngineKind::Pread).and_then(|uncached| break_even::sentence(run, uncached));
        if let Some(sentence) = sentence {
            text.push_str(&format!("{label}: {sentence}\n"));
        }
        if let Some(parts) = run.stats.as_ref().and_then(|stats| stats.miss_parts) {
            let chart = breakdown(&parts);
            let heading = format!("where a mean miss goes, {label}:");
            text.push_str(&match style {
                Style::Text => format!("{heading}\n{chart}"),
                Style::Markdown => format!("\n{heading}\n\n```text\n{chart}```\n\n"),
            });
        }
    }
    text
}

/// The run of another engine with the same number of threads.
fn sibling<'a>(runs: &'a [RunResult], run: &RunResult, engine: EngineKind) -> Option<&'a RunResult> {
    runs.iter().find(|other| other.engine == engine && other.threads == run.threads)
}

fn row(run: &RunResult, mmap: Option<&RunResult>) -> Vec<String> {
    let ratio = |value: fn(&RunResult) -> f64| {
        mmap.filter(|mmap| value(mmap) > 0.0)
            .map_or_else(|| "-".to_owned(), |mmap| format_ratio(value(run) / value(mmap)))
    };
    vec![
        run.engine.to_string(),
        run.threads.to_string(),
        format!("{:.1}", run.ops_per_s / 1e3),
        ratio(|run| run.ops_per_s),
        format!("{:.2}", run.mean_us),
        format!("{:.2}", run.p50_us),
        format!("{:.1}", run.p99_us),
        ratio(|run| run.p99_us),
        format!("{:.1}", run.p999_us),
        ratio(|run| run.p999_us),
        format!("{:.1}", run.max_us / 1e3),
        format!("{:.2}", run.cpu_s_per_mop),
        run.max_rss_bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string()),
        run.stats.as_ref().map_or_else(|| "-".to_owned(), |stats| format!("{:.1}", stats.hit_ratio * 100.0)),
    ]
}

/// Two digits that matter, also for small ratios.
fn format_ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

/// A bar for each part of a miss.
fn breakdown(parts: &MissParts) -> String {
    const WIDTH: f64 = 40.0;
    let bars = [
        ("trap", parts.trap_us),
        ("cache", parts.cache_us),
        ("I/O", parts.io_us),
        ("install", parts.install_us),
        ("other", parts.other_us),
    ];
    let total: f64 = bars.iter().map(|(_, us)| us).sum();
    let mut text = String::new();
    for (name, us) in bars {
        let part = if total > 0.0 { us / total } else { 0.0 };
        let bar = "#".repeat((part * WIDTH).round() as usize);
        text.push_str(&format!("  {name:<8} {us:>8.2} µs  {:>3.0} %  {bar}\n", part * 100.0));
    }
    text.push_str(&format!("  {:<8} {total:>8.2} µs\n", "miss"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_part() {
        let parts = MissParts { trap_us: 1.0, cache_us: 0.0, io_us: 2.0, install_us: 1.0, other_us: 0.0 };
        let chart = breakdown(&parts);
        assert!(chart.contains(&format!("50 %  {}\n", "#".repeat(20))), "{chart}");
        assert!(chart.contains("4.00 µs"), "{chart}");
    }
}
