//! The whole report as one page of HTML that needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use vmio_report::charts::{self, figure};
use vmio_report::page::{META, PAGE_STYLE, fact_list};
use vmio_report::size::format_size;

use super::Setting;
use crate::matrix::MatrixResult;
use crate::run_charts::RunGroup;
use crate::tables::{Style, remarks, table, verdict};

/// The page.
pub fn page(setting: &Setting, result: &MatrixResult) -> Markup {
    let subtitle = setting.sizes();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(META))
                title { "vmio bench map, " (setting.surroundings.date) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(charts::style_sheet())) }
            }
            body {
                h1 { "vmio bench map" }
                (facts(setting))
                @if let Some(reason) = &result.left_out { p class="warning" { (reason) } }
                @let is_wrong = result.runs.iter().any(|run| run.verify_errors > 0);
                p class=[is_wrong.then_some("warning")] { (verdict(result)) }
                @for group in RunGroup::all(result) {
                    (section(&group, &subtitle))
                }
                footer {
                    "Latencies are those of single loads and stores, as the program waits for them. "
                    "Bytes are what the kernel counted for the process at the device, page cache hits left out. "
                    "Written by vmio " (env!("CARGO_PKG_VERSION")) "."
                }
            }
        }
    }
}

fn facts(setting: &Setting) -> Markup {
    let cache = format_size(setting.cache_bytes);
    let each = format!("{} s, after a warm-up that is not counted", setting.measure_s);
    let more = [("Data", setting.target.as_str()), ("Cache", &cache), ("Each run", &each)];
    fact_list(&setting.surroundings, &more)
}

fn section(group: &RunGroup, subtitle: &str) -> Markup {
    let runs: Vec<_> = group.runs.iter().map(|(run, _)| run.clone()).collect();
    let remarks = remarks(&runs, Style::Text);
    html! {
        section {
            h2 { (group.heading()) }
            div class="charts" { @for chart in group.charts(subtitle) { (figure(&chart)) } }
            div class="wide" { (table(&runs).html()) }
            @if !remarks.is_empty() { pre { (remarks) } }
        }
    }
}
