//! The distribution of the latencies of a run, in as many points as a curve needs.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The fractions that charts mark; curves end at the last.
pub const MARKED_FRACTIONS: [f64; 6] = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999];

/// Points between a fraction and the one that leaves a tenth of the operations above it.
const POINTS_PER_NINE: u32 = 50;
const NINES: u32 = 4;
/// Fractions nearer than this are the same: they pass through JSON on their way to the chart.
const SAME_FRACTION: f64 = 1e-9;

/// Latencies of rising fractions of the operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatencyCurve {
    /// The number of operations.
    pub operations: u64,
    points: Vec<LatencyPoint>,
}

/// A part of the operations, and the latency that it does not exceed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LatencyPoint {
    /// The part of all operations, 0 to 1.
    pub fraction: f64,
    /// The latency.
    pub latency_us: f64,
}

impl LatencyCurve {
    /// The curve of a histogram of nanoseconds. It ends where less than one operation is left above.
    pub fn from_histogram(latencies: &Histogram<u64>) -> Self {
        let operations = latencies.len();
        let highest = 1.0 - 1.0 / operations.max(1) as f64;
        let grid =
            (0..=NINES * POINTS_PER_NINE).map(|step| 1.0 - 10_f64.powf(-f64::from(step) / f64::from(POINTS_PER_NINE)));
        let mut fractions: Vec<f64> = MARKED_FRACTIONS.into_iter().chain(grid).collect();
        fractions.retain(|fraction| operations > 0 && *fraction <= highest + SAME_FRACTION);
        fractions.sort_by(f64::total_cmp);
        fractions.dedup_by(|a, b| (*a - *b).abs() < SAME_FRACTION);
        let point =
            |fraction| LatencyPoint { fraction, latency_us: latencies.value_at_quantile(fraction) as f64 / 1e3 };
        Self { operations, points: fractions.into_iter().map(point).collect() }
    }

    /// The points in rising order; none if there was no operation.
    pub fn points(&self) -> &[LatencyPoint] {
        &self.points
    }

    /// The points at the marked fractions that the operations suffice for.
    pub fn marked(&self) -> impl Iterator<Item = &LatencyPoint> {
        let is_marked = |point: &&LatencyPoint| {
            MARKED_FRACTIONS.iter().any(|marked| (marked - point.fraction).abs() < SAME_FRACTION)
        };
        self.points.iter().filter(is_marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_histogram() -> anyhow::Result<Histogram<u64>> {
        Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
    }

    #[test]
    fn a_curve_rises_through_the_quantiles() -> anyhow::Result<()> {
        let mut latencies = new_histogram()?;
        for microseconds in 1..=100_000_u64 {
            latencies.record(microseconds * 1000)?;
        }
        let curve = LatencyCurve::from_histogram(&latencies);
        assert_eq!(curve.operations, 100_000);
        assert!(curve.points().len() >= 200);
        assert!(curve.points().is_sorted_by(|a, b| a.fraction < b.fraction && a.latency_us <= b.latency_us));
        let marked: Vec<f64> = curve.marked().map(|point| point.fraction).collect();
        assert_eq!(marked, MARKED_FRACTIONS);
        for point in curve.points() {
            let expected_us = (point.fraction * 1e5).max(1.0);
            assert!((point.latency_us / expected_us - 1.0).abs() < 2e-3, "{point:?}");
        }
        Ok(())
    }

    #[test]
    fn few_operations_have_no_far_tail() -> anyhow::Result<()> {
        let mut latencies = new_histogram()?;
        assert!(LatencyCurve::from_histogram(&latencies).points().is_empty());
        latencies.record_n(2000, 100)?;
        let curve = LatencyCurve::from_histogram(&latencies);
        assert_eq!(curve.marked().last().map(|point| point.fraction), Some(0.99));
        assert!(curve.points().iter().all(|point| point.fraction <= 0.99 + 1e-6));
        Ok(())
    }

    #[test]
    fn marked_points_survive_the_way_from_the_child() -> anyhow::Result<()> {
        let mut latencies = new_histogram()?;
        latencies.record_n(2000, 100_000)?;
        let sent = LatencyCurve::from_histogram(&latencies);
        let received: LatencyCurve = serde_json::from_str(&serde_json::to_string(&sent)?)?;
        assert_eq!(received.marked().count(), MARKED_FRACTIONS.len());
        Ok(())
    }
}
