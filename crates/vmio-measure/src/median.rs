//! The median of several measurements.

/// The middle value: the higher one of two, NaN if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_does_not_matter() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0])), (2.0, 4.0));
        assert!(median([]).is_nan());
    }
}
