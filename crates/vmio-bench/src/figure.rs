//! Figures as pages show them.

/// What stands where there is no figure.
pub const DASH: &str = "–";

/// Three significant digits at least, whole from 100 up, with separators; a dash where there is no figure.
pub fn number(value: impl Into<Option<f64>>) -> String {
    match value.into() {
        None => DASH.to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => {
            let digits = match value.abs() {
                large if large >= 100.0 => 0,
                middle if middle >= 10.0 => 1,
                _ => 2,
            };
            grouped(&format!("{value:.digits$}"))
        }
    }
}

/// A whole number with separators.
pub fn whole(value: u64) -> String {
    grouped(&value.to_string())
}

/// With a comma before each three digits of the whole part.
pub fn grouped(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut with_commas = String::new();
    for (left, digit) in (0..whole.len()).rev().zip(whole.chars()) {
        with_commas.push(digit);
        if left > 0 && left % 3 == 0 && digit != '-' {
            with_commas.push(',');
        }
    }
    with_commas + rest
}

/// One divided by the other; nothing where one of them is missing.
pub fn ratio(value: impl Into<Option<f64>>, base: impl Into<Option<f64>>) -> Option<f64> {
    let (value, base) = (value.into()?, base.into()?);
    (base != 0.0).then(|| value / base)
}

/// How many times as much.
pub fn times(value: impl Into<Option<f64>>) -> String {
    match value.into() {
        None => DASH.to_owned(),
        Some(value) if value >= 0.1 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// As number does in MiB.
pub fn mib(bytes: impl Into<Option<f64>>) -> String {
    number(ratio(bytes, MIB))
}

/// Bytes of a MiB.
pub const MIB: f64 = 1_048_576.0;

/// The middle of them, or the mean of the two there; nothing of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { upper })
}

/// The least; nothing of none.
pub fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().min_by(f64::total_cmp)
}

/// The most; nothing of none.
pub fn most(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().max_by(f64::total_cmp)
}

/// `s` where there are several.
pub fn plural(count: u64) -> &'static str {
    if count > 1 { "s" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_matter() {
        let said = [0.0, 0.004, 0.126, 1.0, 9.999, 12.34, 99.96, 123.6, 1_234_567.8, -1234.0].map(number);
        assert_eq!(said, ["0", "0.00", "0.13", "1.00", "10.00", "12.3", "100.0", "124", "1,234,568", "-1,234"]);
        assert_eq!(
            (number(None), whole(1000), times(0.0499), times(2.0)),
            (DASH.into(), "1,000".into(), "0.050".into(), "2.00".into())
        );
        assert_eq!((ratio(1.0, 0.0), ratio(None, 1.0), ratio(1.0, 4.0)), (None, None, Some(0.25)));
        assert_eq!((median([3.0, 1.0]), median([5.0, 1.0, 2.0]), median([])), (Some(2.0), Some(2.0), None));
    }
}
