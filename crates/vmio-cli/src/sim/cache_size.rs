//! The size of a simulated cache.

use std::fmt;

use vmio_report::size::{format_size, parse_size};

use super::formats::PAGE_BYTES;

/// The size on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Memory for pages.
    Bytes(u64),
    /// A percentage of the pages that the trace touches.
    Percent(f64),
}

impl CacheSize {
    /// Parses `64M` or `10%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else { return parse_size(text).map(Self::Bytes) };
        match percent.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Self::Percent(percent)),
            _ => Err(format!(
                "{text:?} is not a share of the pages: give a percentage above 0% and up to 100%, as in 10%"
            )),
        }
    }

    /// Its bytes for a trace of this many pages.
    pub fn bytes(self, pages: usize) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (pages as f64 * percent / 100.0) as u64 * PAGE_BYTES,
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => out.write_str(&format_size(*bytes)),
            Self::Percent(percent) => write!(out, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_shares() {
        assert_eq!(CacheSize::parse("2M"), Ok(CacheSize::Bytes(2 << 20)));
        assert_eq!(CacheSize::parse("12.5%").map(|size| size.bytes(1000)), Ok(125 * PAGE_BYTES));
        for text in ["0%", "101%", "-5%", "nan%", "%", "many"] {
            assert!(CacheSize::parse(text).is_err(), "{text}");
        }
    }
}
