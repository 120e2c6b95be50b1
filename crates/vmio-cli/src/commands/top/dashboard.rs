//! The dashboard as widgets: a table of all caches, and the chosen one in detail.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Row, Sparkline, StatefulWidget, Table, TableState, Widget};
use vmio::PAGE_BYTES;
use vmio_report::size::format_size;

use super::view::{CacheView, View};
use crate::commands::stat::{Interval, format_latency, resident_by_priority};

/// The size of a frame in text.
const TEXT_SIZE: (u16, u16) = (110, 32);
/// The most caches that the table shows at a time; it scrolls.
const ROWS_MAX: usize = 8;
/// Columns of the names and values in front of the sparklines.
const METRIC_WIDTHS: [u16; 2] = [18, 12];

/// A value to draw over time.
struct Metric {
    name: &'static str,
    value: fn(&Interval) -> f64,
    format: fn(f64) -> String,
}

const METRICS: [Metric; 8] = [
    Metric { name: "misses/s", value: |interval| interval.misses_per_s, format: count },
    Metric { name: "minor faults/s", value: |interval| interval.minor_faults_per_s, format: count },
    Metric { name: "evictions/s", value: |interval| interval.evictions_per_s, format: count },
    Metric { name: "read MB/s", value: |interval| interval.read_bytes_per_s, format: megabytes },
    Metric { name: "written MB/s", value: |interval| interval.written_bytes_per_s, format: megabytes },
    Metric { name: "shootdowns/s", value: |interval| interval.shootdowns_per_s, format: count },
    Metric { name: "miss p50", value: |interval| quantile(interval, 0.5), format: latency },
    Metric { name: "miss p99", value: |interval| quantile(interval, 0.99), format: latency },
];

/// A frame of a view.
pub struct Dashboard<'a> {
    view: &'a View,
}

impl<'a> Dashboard<'a> {
    /// The frame for the view in its present state.
    pub fn new(view: &'a View) -> Self {
        Self { view }
    }

    /// The frame in plain text.
    pub fn as_text(&self) -> String {
        let (width, height) = TEXT_SIZE;
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        self.render(buffer.area, &mut buffer);
        let rows = buffer.content.chunks(usize::from(width));
        let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        let text: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
        format!("{}\n", text.trim_end())
    }

    fn render_head(&self, area: Rect, buffer: &mut Buffer) {
        let state = if self.view.is_paused() { "paused".bold() } else { "".into() };
        let every = format!(" every {} s  ", self.view.interval().as_secs_f64());
        Line::from(vec!["vmio top ".bold(), every.into(), state]).render(area, buffer);
        Line::from("q quit  p pause  ↑↓ choose".dim()).right_aligned().render(area, buffer);
    }

    fn render_caches(&self, area: Rect, buffer: &mut Buffer) {
        let head =
            ["process", "command", "cache", "capacity", "resident", "dirty", "misses/s", "p99", "in MB/s", "out MB/s"];
        let widths = [8, 16, 5, 10, 8, 7, 10, 8, 9, 9].map(Constraint::Length);
        let rows = self.view.caches().iter().map(row);
        let table = Table::new(rows, widths)
            .header(Row::new(head.map(|name| Cell::from(Line::from(name).right_aligned()))).bold())
            .row_highlight_style(Style::new().reversed())
            .highlight_symbol("> ");
        let mut state = TableState::default().with_selected(Some(self.view.chosen()));
        StatefulWidget::render(table, area, buffer, &mut state);
    }
}

impl Widget for &Dashboard<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let rows = self.view.caches().len().min(ROWS_MAX) as u16;
        let parts = [1, rows + 2, METRICS.len() as u16 + 11, 1].map(Constraint::Length);
        let [head, caches, chosen, notice] = Layout::vertical(parts).areas(area);
        self.render_head(head, buffer);
        self.render_caches(caches, buffer);
        match self.view.caches().get(self.view.chosen()) {
            Some(cache) => render_cache(cache, chosen, buffer),
            None => Line::from("no cache is open").render(chosen, buffer),
        }
        if let Some(text) = self.view.notice() {
            Line::from(text.bold()).render(notice, buffer);
        }
    }
}

fn row(cache: &CacheView) -> Row<'static> {
    let stats = &cache.now.stats;
    let share = |pages: u64| format!("{:.1}%", 100.0 * pages as f64 / stats.capacity_pages as f64);
    let last = |metric: fn(&Interval) -> String| cache.intervals.back().map_or_else(|| "-".to_owned(), metric);
    let cells = [
        cache.id.0.to_string(),
        cache.command.clone(),
        cache.id.1.to_string(),
        bytes(stats.capacity_pages),
        share(stats.resident_pages),
        share(stats.dirty_pages),
        last(|interval| count(interval.misses_per_s)),
        last(|interval| latency(quantile(interval, 0.99))),
        last(|interval| megabytes(interval.read_bytes_per_s)),
        last(|interval| megabytes(interval.written_bytes_per_s)),
    ];
    Row::new(cells.map(|text| Cell::from(Line::from(text).right_aligned())))
}

fn render_cache(cache: &CacheView, area: Rect, buffer: &mut Buffer) {
    let title = format!(" process {}, cache {} ", cache.id.0, cache.id.1);
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    let parts = [METRICS.len() as u16, 1, 1, 1, 4, 2].map(Constraint::Length);
    let [metrics, _, latencies, under_way, memory, by_priority] = Layout::vertical(parts).areas(inner);
    for (metric, line) in METRICS.iter().zip(metrics.rows()) {
        render_metric(metric, cache, line, buffer);
    }
    let Some(interval) = cache.intervals.back() else { return };
    let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|share| latency(quantile(interval, share)));
    let text = format!("miss latency      p50 {p50}   p90 {p90}   p99 {p99}   p99.9 {p999}");
    Line::from(text).render(latencies, buffer);
    let (misses, writes) = (interval.misses_under_way, interval.writes_under_way);
    Line::from(format!("under way         misses {misses:.2}   writes {writes:.2}")).render(under_way, buffer);
    render_memory(cache, memory, buffer);
    render_priorities(cache, by_priority, buffer);
}

fn render_metric(metric: &Metric, cache: &CacheView, area: Rect, buffer: &mut Buffer) {
    let [name, value] = METRIC_WIDTHS.map(Constraint::Length);
    let [name, value, _, graph] =
        Layout::horizontal([name, value, Constraint::Length(2), Constraint::Fill(1)]).areas(area);
    Line::from(metric.name).render(name, buffer);
    if let Some(interval) = cache.intervals.back() {
        Line::from((metric.format)((metric.value)(interval))).right_aligned().render(value, buffer);
    }
    let shown = cache.intervals.len().saturating_sub(usize::from(graph.width));
    let values: Vec<u64> = cache.intervals.iter().skip(shown).map(|interval| (metric.value)(interval) as u64).collect();
    Sparkline::default().data(values).render(graph, buffer);
}

/// The use of the budget.
fn render_memory(cache: &CacheView, area: Rect, buffer: &mut Buffer) {
    const BAR: usize = 40;
    let stats = &cache.now.stats;
    let parts = [
        ("resident", stats.resident_pages),
        ("dirty", stats.dirty_pages),
        ("free", stats.free_pages),
        ("page tables", stats.table_pages),
    ];
    for ((name, pages), line) in parts.into_iter().zip(area.rows()) {
        let share = (pages as f64 / stats.capacity_pages as f64).min(1.0);
        let full = (share * BAR as f64).round() as usize;
        let (full, empty) = ("█".repeat(full), "░".repeat(BAR - full));
        let text = format!("{name:<18}{:>10} {:>5.1}%  {full}{empty}", bytes(pages), 100.0 * share);
        Line::from(text).render(line, buffer);
    }
}

/// The resident pages by priority: a bar for the share of each class, and its pages.
fn render_priorities(cache: &CacheView, area: Rect, buffer: &mut Buffer) {
    const BARS: [&str; 9] = ["", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let [mut names, mut amounts] = ["by priority", ""].map(|name| format!("{name:<18}"));
    for (priorities, pages) in resident_by_priority(&cache.now) {
        let share = (pages as f64 / cache.now.stats.resident_pages.max(1) as f64).min(1.0);
        let bar = BARS[(share * (BARS.len() - 1) as f64).ceil() as usize];
        let amount = if pages == 0 { "-".to_owned() } else { format!("{bar} {}", bytes(pages)) };
        names += &format!("{:>11}", format!("{}-{}", priorities.start(), priorities.end()));
        amounts += &format!("{amount:>11}");
    }
    for (text, line) in [names, amounts].into_iter().zip(area.rows()) {
        Line::from(text).render(line, buffer);
    }
}

fn quantile(interval: &Interval, share: f64) -> f64 {
    interval.miss.quantile_ns(share).unwrap_or(0) as f64
}

/// A dash for zero, which stands for no miss: every miss takes time.
fn latency(ns: f64) -> String {
    format_latency((ns > 0.0).then_some(ns as u64))
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e6)
}

fn bytes(pages: u64) -> String {
    format_size(pages.saturating_mul(PAGE_BYTES as u64))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    /// Two caches of a process; the second has done something in two seconds.
    fn view() -> View {
        let mut view = View::new(Duration::from_secs(2));
        let idle = MadeUpPage::new(77, 1).snapshot();
        let before = MadeUpPage::new(77, 2).snapshot();
        // 300 load misses, 100 store misses, 2 MB read; bucket 17 ends at 5120 ns, bucket 33 at 81.92 µs.
        let busy = MadeUpPage::new(77, 2)
            .gauge(0, 250)
            .gauge(1, 50)
            .resident(4, 740)
            .resident(7, 10)
            .counter(0, 300)
            .counter(1, 100)
            .counter(8, 2_000_000)
            .durations(0, 17, 390, 0)
            .durations(0, 33, 10, 3_000_000_000)
            .snapshot();
        let intervals = [
            (&idle, Interval::between(Some(&idle), &idle, 2.0)),
            (&busy, Interval::between(Some(&before), &busy, 2.0)),
        ];
        view.update(77, "my\x1b[db", intervals.into_iter());
        view.choose_next();
        view
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("nothing can fail in it");
        terminal.draw(|frame| frame.render_widget(&Dashboard::new(view), frame.area())).expect("as above");
        terminal.backend().to_string()
    }

    #[test]
    fn a_frame_shows_the_chosen_cache_in_numbers() {
        let frame = drawn(&view(), 110, 30);
        let line = |start: &str| {
            let found = frame.lines().find(|line| line.trim_start_matches(['"', '│', ' ']).starts_with(start));
            found.unwrap_or_else(|| panic!("no line {start:?} in\n{frame}"))
        };
        for (start, part) in [
            ("misses/s ", " 200  "),
            ("read MB/s", " 1.0  "),
            ("miss p99", "82 µs"),
            ("miss latency", "p50 5.1 µs   p90 5.1 µs   p99 82 µs   p99.9 82 µs"),
            ("under way", "misses 1.50   writes 0.00"),
            ("resident", "75.0%"),
            ("free", "25.0%"),
            ("by priority", " 128-159  "),
            ("by priority", " 224-255"),
            ("> ", "200"),
        ] {
            assert!(line(start).contains(part), "no {part:?} in {:?} of\n{frame}", line(start));
        }
        for part in ["█ 2.9 MiB", "▁ 40 KiB"] {
            assert!(frame.contains(part), "no {part:?} in\n{frame}");
        }
        assert!(line("misses/s ").contains('█'), "no sparkline in\n{frame}");
        assert!(frame.contains("process 77, cache 2") && frame.contains("every 2 s"), "{frame}");
        assert!(!frame.contains('\x1b') && !frame.contains("paused"), "{frame}");
    }

    #[test]
    fn what_happened_to_the_view_shows() {
        let mut view = view();
        view.toggle_pause();
        view.choose_previous();
        let frame = drawn(&view, 110, 30);
        assert!(frame.contains("paused") && frame.contains("process 77, cache 1"), "{frame}");
        view.update(77, "db", std::iter::empty());
        view.set_notice("process 77 (db) has ended".to_owned());
        let frame = drawn(&view, 110, 30);
        assert!(frame.contains("no cache is open") && frame.contains("process 77 (db) has ended"), "{frame}");
    }

    #[test]
    fn text_says_what_the_screen_shows() {
        let text = Dashboard::new(&view()).as_text();
        let frame = drawn(&view(), TEXT_SIZE.0, TEXT_SIZE.1);
        let shown: Vec<_> = frame.lines().map(|line| line.trim_matches('"').trim_end()).collect();
        assert!(text.lines().count() > 15);
        assert!(text.lines().eq(shown.into_iter().take(text.lines().count())), "{text}\n{frame}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
            drawn(&view(), width, height);
        }
    }
}
