//! An axis of a chart: the values that it spans, its ticks, and the place of a value on it.

use crate::latency_curve::MARKED_FRACTIONS;
use crate::size::format_size;

/// An axis with its label and ticks.
pub struct Axis {
    /// The quantity that it shows, with its unit.
    pub label: String,
    /// The ticks, in rising order.
    pub ticks: Vec<Tick>,
    /// Whether lines across the chart go through the ticks.
    pub has_grid: bool,
    scale: Scale,
    first: f64,
    last: f64,
}

/// A value to look out for.
pub struct Tick {
    /// The value at which it is.
    pub value: f64,
    /// The text beside it; none for a minor tick.
    pub label: Option<String>,
}

#[derive(Clone, Copy)]
enum Scale {
    Linear,
    /// Every factor of ten is as long as the next.
    Logarithmic,
    /// Fractions; every further tenth of the rest is as long as the one before: 90 %, 99 %, 99.9 %.
    Nines,
}

/// An amount's unit, and its size.
pub type Unit = (&'static str, f64);

impl Axis {
    /// From zero to `largest`, in the largest of `units` (in rising order) that is not above it.
    pub fn amounts(what: &str, units: &[Unit], largest: f64) -> (Self, Unit) {
        let unit =
            units.iter().rev().find(|(_, size)| largest >= *size).or(units.first()).copied().unwrap_or(("", 1.0));
        let step = nice_step(largest / unit.1) * unit.1;
        let steps = (largest / step).ceil().max(1.0) as u32;
        let tick = |index| {
            let value = f64::from(index) * step;
            Tick { value, label: Some(trimmed(value / unit.1)) }
        };
        let axis = Self {
            label: format!("{what} ({})", unit.0),
            ticks: (0..=steps).map(tick).collect(),
            has_grid: true,
            scale: Scale::Linear,
            first: 0.0,
            last: f64::from(steps) * step,
        };
        (axis, unit)
    }

    /// The whole decades around the latencies from `lowest_us` to `highest_us`.
    pub fn latencies(lowest_us: f64, highest_us: f64) -> Self {
        const SHORTEST_US: f64 = 1e-3;
        let first_decade = lowest_us.max(SHORTEST_US).log10().floor() as i32;
        let last_decade = (highest_us.max(SHORTEST_US).log10().ceil() as i32).max(first_decade + 1);
        let few = last_decade - first_decade <= 2;
        let mut ticks = Vec::new();
        for decade in first_decade..=last_decade {
            let digits = if decade == last_decade { 1..=1 } else { 1..=9 };
            for digit in digits {
                let value = f64::from(digit) * 10_f64.powi(decade);
                let labelled = digit == 1 || few && (digit == 2 || digit == 5);
                ticks.push(Tick { value, label: labelled.then(|| format_latency(value)) });
            }
        }
        Self {
            label: "Latency (logarithmic)".to_owned(),
            ticks,
            has_grid: true,
            scale: Scale::Logarithmic,
            first: 10_f64.powi(first_decade),
            last: 10_f64.powi(last_decade),
        }
    }

    /// From 0 to 99.99 %, with a tail as long as the rest.
    pub fn percentiles() -> Self {
        let tick = |fraction: f64| Tick { value: fraction, label: Some(format_percentile(fraction)) };
        Self {
            label: "Operations that took no longer (%)".to_owned(),
            ticks: MARKED_FRACTIONS.map(tick).into(),
            has_grid: true,
            scale: Scale::Nines,
            first: MARKED_FRACTIONS[0],
            last: MARKED_FRACTIONS[MARKED_FRACTIONS.len() - 1],
        }
    }

    /// The numbers of threads, with every doubling as long as the next; `threads` rise.
    pub fn threads(threads: &[u32]) -> Self {
        let tick = |count: &u32| Tick { value: f64::from(*count), label: Some(count.to_string()) };
        let axis = Self {
            label: "Threads".to_owned(),
            ticks: threads.iter().map(tick).collect(),
            has_grid: true,
            scale: Scale::Logarithmic,
            first: f64::from(threads.first().copied().unwrap_or(1)) * 0.8,
            last: f64::from(threads.last().copied().unwrap_or(1)) * 1.25,
        };
        axis.without_crowded_labels()
    }

    /// Sizes of a cache, with every doubling as long as the next; `sizes` in bytes, rising.
    pub fn cache_sizes(sizes: &[u64]) -> Self {
        let tick = |bytes: &u64| Tick { value: *bytes as f64, label: Some(format_size(*bytes)) };
        let axis = Self {
            label: "Cache (logarithmic)".to_owned(),
            ticks: sizes.iter().map(tick).collect(),
            has_grid: true,
            scale: Scale::Logarithmic,
            first: sizes.first().copied().unwrap_or(1) as f64 * 0.9,
            last: sizes.last().copied().unwrap_or(1) as f64 * 1.1,
        };
        axis.without_crowded_labels()
    }

    /// A group for each number of threads, at 0, 1, 2 and so on.
    pub fn groups(threads: &[u32]) -> Self {
        Self::named_groups("Threads", threads.iter().map(u32::to_string))
    }

    /// A group for each name, at 0, 1, 2 and so on.
    pub fn named_groups(label: &str, names: impl Iterator<Item = String>) -> Self {
        let tick = |(index, name)| Tick { value: index as f64, label: Some(name) };
        let ticks: Vec<_> = names.enumerate().map(tick).collect();
        let last = ticks.len() as f64 - 0.5;
        let axis = Self { label: label.to_owned(), ticks, has_grid: false, scale: Scale::Linear, first: -0.5, last };
        axis.without_crowded_labels()
    }

    /// Leaves out labels that would run into the one before.
    fn without_crowded_labels(mut self) -> Self {
        const NARROWEST: f64 = 0.05;
        const LETTER: f64 = 0.0125;
        let mut free_from = f64::NEG_INFINITY;
        let places: Vec<f64> = self.ticks.iter().map(|tick| self.place(tick.value)).collect();
        for (tick, place) in self.ticks.iter_mut().zip(places) {
            let letters = tick.label.as_ref().map_or(0, |label| label.chars().count());
            let half = NARROWEST.max(LETTER * letters as f64) / 2.0;
            if place - half < free_from {
                tick.label = None;
            } else {
                free_from = place + half;
            }
        }
        self
    }

    /// The place of `value`: 0 at the beginning of the axis, 1 at its end, never outside.
    pub fn place(&self, value: f64) -> f64 {
        let [first, last, value] = [self.first, self.last, value].map(|value| self.scale.length(value));
        ((value - first) / (last - first)).clamp(0.0, 1.0)
    }
}

impl Scale {
    fn length(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.max(f64::MIN_POSITIVE).log10(),
            Self::Nines => -(1.0 - value).max(f64::EPSILON).log10(),
        }
    }
}

/// The step of 1, 2 or 5 times a power of ten that gives at most six steps.
fn nice_step(largest: f64) -> f64 {
    const STEPS: f64 = 6.0;
    if largest <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf((largest / STEPS).log10().floor());
    [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter().find(|step| largest <= STEPS * step).unwrap_or(10.0 * power)
}

/// A latency with its unit, three digits that matter.
pub fn format_latency(latency_us: f64) -> String {
    let (value, unit) = match latency_us {
        us if us < 0.9995 => (us * 1e3, "ns"),
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", trimmed(value))
}

/// `99.9` for 0.999.
pub fn format_percentile(fraction: f64) -> String {
    let text = format!("{:.2}", fraction * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Three digits that matter, without zeros after the point at the end.
pub fn trimmed(value: f64) -> String {
    let decimals = if value >= 100.0 || value == 0.0 { 0 } else { 2 - value.abs().log10().floor().min(2.0) as i32 };
    let text = format!("{value:.*}", decimals.clamp(0, 9) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_are_equally_long() {
        let axis = Axis::percentiles();
        for (fraction, place) in [(0.0, 0.0), (0.9, 0.25), (0.99, 0.5), (0.999, 0.75), (0.9999, 1.0), (1.0, 1.0)] {
            assert!((axis.place(fraction) - place).abs() < 1e-6, "{fraction}");
        }
        let labels: Vec<_> = axis.ticks.iter().filter_map(|tick| tick.label.as_deref()).collect();
        assert_eq!(labels, ["0", "50", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn latencies_span_whole_decades() {
        let axis = Axis::latencies(0.02, 1500.0);
        let labels: Vec<_> = axis.ticks.iter().filter_map(|tick| tick.label.as_deref()).collect();
        assert_eq!(labels, ["10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]);
        assert!((axis.place(0.01), axis.place(10_000.0)) == (0.0, 1.0));
        assert!((axis.place(10.0) - 0.5).abs() < 1e-9);
        // One value alone still has an axis with several labels.
        let axis = Axis::latencies(10.0, 10.0);
        assert_eq!(axis.ticks.iter().filter(|tick| tick.label.is_some()).count(), 4);
    }

    #[test]
    fn amounts_have_few_round_ticks() {
        const UNITS: [Unit; 2] = [("operations/s", 1.0), ("thousand operations/s", 1e3)];
        for (largest, unit, last) in
            [(0.0, "operations/s", "1"), (7.0, "operations/s", "8"), (431_000.0, "thousand operations/s", "500")]
        {
            let (axis, _) = Axis::amounts("Throughput", &UNITS, largest);
            assert_eq!(axis.label, format!("Throughput ({unit})"));
            assert_eq!(axis.ticks.last().and_then(|tick| tick.label.as_deref()), Some(last), "{largest}");
            assert!((2..=7).contains(&axis.ticks.len()), "{largest}");
            assert!(axis.place(largest) <= 1.0);
        }
    }

    #[test]
    fn many_thread_counts_are_not_all_labelled() {
        let counts: Vec<u32> = (1..=64).collect();
        for axis in [Axis::threads(&counts), Axis::groups(&counts)] {
            let labelled: Vec<f64> =
                axis.ticks.iter().filter(|tick| tick.label.is_some()).map(|tick| axis.place(tick.value)).collect();
            assert!((5..=20).contains(&labelled.len()), "{labelled:?}");
            assert!(labelled.windows(2).all(|pair| pair[1] - pair[0] >= 0.049), "{labelled:?}");
        }
        let axis = Axis::threads(&[1, 2, 8]);
        assert!(axis.ticks.iter().all(|tick| tick.label.is_some()));
        // Long names need more room.
        let names = |count| Axis::named_groups("", (0..count).map(|index| format!("a long name {index}")));
        let labelled = |axis: Axis| axis.ticks.iter().filter(|tick| tick.label.is_some()).count();
        assert_eq!((labelled(names(4)), labelled(names(12))), (4, 6));
    }

    #[test]
    fn numbers_show_three_digits() {
        for (value, text) in [(0.0, "0"), (4.096, "4.1"), (12.345, "12.3"), (1234.5, "1234"), (0.00123, "0.00123")] {
            assert_eq!(trimmed(value), text);
        }
        for (latency_us, text) in
            [(0.0203, "20.3 ns"), (1.0, "1 µs"), (999.7, "1 ms"), (12_340.0, "12.3 ms"), (2e6, "2 s")]
        {
            assert_eq!(format_latency(latency_us), text);
        }
    }
}
