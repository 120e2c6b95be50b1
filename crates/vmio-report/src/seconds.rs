//! Times on the command line, in seconds.

use std::ops::RangeInclusive;

/// Parses a number of seconds within bounds.
pub fn parse_seconds(text: &str, within: RangeInclusive<f64>) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if within.contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is not a number of seconds from {} to {}", within.start(), within.end())),
    }
}

/// Parses the duration of a measurement.
pub fn parse_measured(text: &str) -> Result<f64, String> {
    parse_seconds(text, 0.01..=86_400.0)
}

/// Parses the duration of a warm-up.
pub fn parse_warm_up(text: &str) -> Result<f64, String> {
    parse_seconds(text, 0.0..=86_400.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_within_reason() {
        assert_eq!((parse_measured("0.5"), parse_warm_up("0")), (Ok(0.5), Ok(0.0)));
        for text in ["", "-1", "1s", "nan", "inf", "1e9"] {
            assert!(parse_measured(text).is_err() && parse_warm_up(text).is_err(), "{text}");
        }
        assert!(parse_measured("0").unwrap_err().contains("from 0.01 to 86400"));
    }
}
