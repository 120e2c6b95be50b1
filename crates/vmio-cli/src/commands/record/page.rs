//! A recording as one page of HTML that needs no other file.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use vmio_report::charts::{self as bench_charts, figure};
use vmio_report::page::{META, PAGE_STYLE};

use super::charts::charts;
use super::miss_log::MissLog;
use super::recording::Recording;
use super::series::Series;
use crate::commands::stat::write_totals;

/// The page of one recording, or of several, one below the other.
pub fn page(recordings: &[Recording]) -> Markup {
    let commands: Vec<_> = recordings.iter().map(|recording| printable(&recording.command)).collect();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(META))
                title { "vmio record: " (commands.join(", ")) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(bench_charts::style_sheet())) }
            }
            body {
                @for recording in recordings { (article(recording)) }
                footer {
                    "Quantiles are at most a quarter too long. Under way is the mean number at a time: the total time of all, "
                    "divided by the time of the interval. Sizes are means over each interval: caches do not count their "
                    "distribution. R is the distance from each miss to the next, divided by the length of the file: near 0 "
                    "for misses that follow each other, 0.33 for random ones. "
                    "Written by vmio " (env!("CARGO_PKG_VERSION")) "."
                }
            }
        }
    }
}

fn article(recording: &Recording) -> Markup {
    html! {
        article {
            h1 { "vmio record" }
            dl {
                div { dt { "Command" } dd { code { (printable(&recording.command)) } } }
                div { dt { "A sample every" } dd { (recording.interval.as_secs_f64()) " s" } }
            }
            @if recording.series.is_empty() {
                p class="warning" { "No cache was seen: the command opened none, or for less than 50 ms." }
            }
            @if recording.is_full { p class="warning" { "There were more caches than could be recorded." } }
            @for series in &recording.series { (section(series)) }
        }
    }
}

fn section(series: &Series) -> Markup {
    let heading = format!("process {} ({}), cache {}", series.process_id, series.command, series.cache_number);
    html! {
        section {
            h2 { (printable(&heading)) }
            div class="charts" { @for chart in charts(series) { (figure(&chart)) } }
            (misses_note(series.misses.as_ref()))
            pre { (totals(series)) }
        }
    }
}

/// A note on misses that the charts do not show.
fn misses_note(misses: Option<&MissLog>) -> Markup {
    html! {
        @match misses {
            None => {
                p {
                    "This cache does not publish where in its files it missed, and how random that was: build it with "
                    code { "CacheBuilder::publish_misses(true)" } "."
                }
            },
            Some(log) => {
                @if log.lost > 0 {
                    p class="warning" {
                        (log.lost) " misses came too fast to be read: the charts of where they were lack them."
                    }
                }
                @if log.left_out > 0 {
                    p class="warning" { (log.left_out) " misses were in further mappings, which are not drawn." }
                }
            },
        }
    }
}

/// The totals of the last sample, as `vmio stat` prints them.
fn totals(series: &Series) -> String {
    let mut text = Vec::new();
    if let Some((_, last)) = series.samples.last() {
        // Writing to memory cannot fail.
        let _ = write_totals(&mut text, series.process_id, &series.command, std::slice::from_ref(last));
    }
    printable(&String::from_utf8_lossy(&text))
}

/// The text without characters that XML does not allow.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let note = |misses: Option<&MissLog>| misses_note(misses).into_string();
        let mut log = MissLog::new(0.0);
        assert!(note(None).contains("CacheBuilder::publish_misses(true)"));
        assert_eq!(note(Some(&log)), "");
        (log.lost, log.left_out) = (5, 7);
        let told = note(Some(&log));
        assert!(
            told.contains("5 misses came too fast") && told.contains("7 misses were in further mappings"),
            "{told}"
        );
    }
}
