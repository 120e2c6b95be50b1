//! A heat map of where in a file misses were, over time: the more misses in a cell, the stronger its colour.

use maud::html;
use vmio_report::charts::Chart;
use vmio_report::charts::axis::Axis;
use vmio_report::charts::coordinate::px;
use vmio_report::charts::plot::{LegendEntry, Plot};
use vmio_report::size::format_size;

use super::miss_log::{MappingLog, MissLog};
use super::units::{BYTES, SECONDS};

/// The number of shades in the charts' style sheet.
const SHADES: usize = 6;

/// The chart of one mapping; `end` is the end of the time axis.
pub fn heat_map(title: String, log: &MissLog, mapping: &MappingLog, end: f64) -> Chart {
    let shades = Shades::up_to(mapping.misses().flatten().copied().max().unwrap_or(0));
    let legend = shades.legend().map(|(class, range)| LegendEntry::area(&class, range)).collect();
    let time = Axis::amounts("Time", &SECONDS, end).0;
    let offset = Axis::amounts("Offset in the file", &BYTES, mapping.file_bytes() as f64).0;
    let plot = Plot::new(time, offset, legend);
    let mut paths = vec![String::new(); SHADES];
    for ((begin, end), rows) in log.periods().zip(mapping.misses()) {
        let (left, right) = (plot.x(begin), plot.x(end));
        // Neighbours of a shade are one rectangle.
        let mut row = 0;
        for group in rows.chunk_by(|misses, next| shades.of(*misses) == shades.of(*next)) {
            let rows = row..row + group.len() as u64;
            row = rows.end;
            let Some(shade) = group.first().and_then(|misses| shades.of(*misses)) else { continue };
            let y = |row: u64| plot.y((row * mapping.row_bytes()).min(mapping.file_bytes()) as f64);
            let (top, bottom) = (px(y(rows.end)), px(y(rows.start)));
            paths[shade] += &format!("M{} {bottom}V{top}H{}V{bottom}z", px(left), px(right));
        }
    }
    let marks = html! {
        @for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            path class=(class(shade)) d=(path) {}
        }
    };
    let subtitle = format!("misses in a cell of {} of the file", format_size(mapping.row_bytes()));
    plot.chart(title, &subtitle, marks)
}

fn class(shade: usize) -> String {
    format!("heat h{shade}")
}

/// The numbers of misses of each shade, which grow by a constant factor.
struct Shades {
    /// The smallest number of each shade; the last is the strongest shade's.
    smallest: Vec<u64>,
    most: u64,
}

impl Shades {
    fn up_to(most: u64) -> Self {
        let step = (most as f64 + 1.0).powf(1.0 / SHADES as f64);
        // A rounding error must not exceed a whole power.
        let power = |shade| (step.powi(shade) * (1.0 - 1e-9)).ceil() as u64;
        let mut smallest: Vec<u64> = (0..SHADES as i32).map(power).collect();
        smallest.dedup();
        smallest.retain(|smallest| *smallest <= most);
        Self { smallest, most }
    }

    /// `None` for no misses.
    fn of(&self, misses: u64) -> Option<usize> {
        let index = self.smallest.partition_point(|smallest| *smallest <= misses).checked_sub(1)?;
        Some(self.shade(index))
    }

    fn shade(&self, index: usize) -> usize {
        index + SHADES - self.smallest.len()
    }

    /// The class of each shade, and its range.
    fn legend(&self) -> impl Iterator<Item = (String, String)> {
        let ends = self.smallest.iter().skip(1).map(|next| next - 1).chain([self.most]);
        let range = |first: u64, last| if first == last { first.to_string() } else { format!("{first} to {last}") };
        let ranges = self.smallest.iter().zip(ends).map(move |(first, last)| range(*first, last));
        ranges.enumerate().map(move |(index, range)| (class(self.shade(index)), range))
    }
}

#[cfg(test)]
mod tests {
    use vmio::telemetry::{Miss, PublishedMapping};

    use super::*;

    fn ranges(most: u64) -> Vec<String> {
        Shades::up_to(most).legend().map(|(_, range)| range).collect()
    }

    #[test]
    fn shades_cover_every_number_and_the_strongest_is_for_the_most() {
        assert_eq!(ranges(0), [""; 0]);
        assert_eq!(ranges(1), ["1"]);
        assert_eq!(ranges(3), ["1", "2", "3"]);
        assert_eq!(ranges(63), ["1", "2 to 3", "4 to 7", "8 to 15", "16 to 31", "32 to 63"]);
        for most in [1, 2, 5, 100, 12_345, 1 << 40] {
            let shades = Shades::up_to(most);
            assert_eq!((shades.of(0), shades.of(most)), (None, Some(SHADES - 1)), "{most}");
            assert!((1..most.min(3000)).all(|misses| shades.of(misses) <= shades.of(misses + 1)), "{most}");
        }
    }

    #[test]
    fn cells_are_where_and_when_misses_were() {
        let mut log = MissLog::new(0.0);
        // A row for each page.
        log.know_mappings(vec![PublishedMapping { pages: 0..1 << 18, len: 64 * 4096 }]);
        (0..32).for_each(|page| log.add(Miss { page, store: false }));
        log.end_period(1.0);
        log.add(Miss { page: 63, store: false });
        log.end_period(2.0);
        let chart = heat_map("Misses".to_owned(), &log, &log.mappings[0], 2.0);
        let drawing = chart.drawing.into_string();
        let cells: Vec<&str> = drawing.matches("heat h5\" d=\"").collect();
        assert_eq!(cells.len(), 1, "one shade: {drawing}");
        let path = drawing.split("heat h5\" d=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let numbers = |cell: &str| -> Vec<f64> {
            cell.split(|c: char| c.is_alphabetic() || c == ' ').filter_map(|number| number.parse().ok()).collect()
        };
        let cells: Vec<_> = path.split_terminator('z').map(numbers).collect();
        // Left, bottom, top, right, bottom: the lower half at first, then the highest row.
        assert_eq!(cells.len(), 2, "{path}");
        assert_eq!(cells[0][3], cells[1][0]);
        assert!(cells[1][2] < cells[1][1] && cells[1][1] < cells[0][2] && cells[0][2] < cells[0][1], "{path}");
    }
}
