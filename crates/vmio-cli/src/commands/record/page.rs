//! A recording as one page of HTML that needs nothing else.

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts::charts;
use super::recording::{Recording, Series};
use crate::bench::charts::{self as bench_charts, figure};
use crate::bench::report_file::{META, PAGE_STYLE};
use crate::commands::stat::write_totals;

/// The page.
pub fn page(recording: &Recording, interval: Duration) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(META))
                title { "vmio record: " (printable(&recording.command)) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(bench_charts::style_sheet())) }
            }
            body {
                h1 { "vmio record" }
                dl {
                    div { dt { "Command" } dd { code { (printable(&recording.command)) } } }
                    div { dt { "A sample every" } dd { (interval.as_secs_f64()) " s" } }
                }
                @if recording.series.is_empty() {
                    p class="warning" { "No cache was open when a sample was taken: is the interval too long?" }
                }
                @if recording.left_out > 0 { p class="warning" { "There were more caches than could be recorded." } }
                @for series in &recording.series { (section(series)) }
                footer {
                    "Quantiles are at most a quarter too long. Under way is the mean number at a time: the time that all "
                    "took together, by the time that passed. Sizes are means over each interval. Where in the file "
                    "accesses went is not recorded: randomness and heat maps of offsets need a trace of misses. "
                    "Written by vmio " (env!("CARGO_PKG_VERSION")) "."
                }
            }
        }
    }
}

fn section(series: &Series) -> Markup {
    let heading = format!("process {} ({}), cache {}", series.process_id, series.command, series.cache_number());
    html! {
        section {
            h2 { (printable(&heading)) }
            @if series.samples.len() > 1 {
                div class="charts" { @for chart in charts(series) { (figure(&chart)) } }
            } @else {
                p { "It was open for one sample only: there is nothing to draw." }
            }
            pre { (totals(series)) }
        }
    }
}

/// As `vmio stat` prints them, by the last sample.
fn totals(series: &Series) -> String {
    let mut text = Vec::new();
    if let Some((_, last)) = series.samples.last() {
        // Writing to memory cannot fail.
        let _ = write_totals(&mut text, series.process_id, &series.command, std::slice::from_ref(last));
    }
    printable(&String::from_utf8_lossy(&text))
}

/// Without what XML may not have.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}
