//! Sizes on the command line: `2G`, `512M`, `64KiB`, `4096`.

use std::ops::RangeInclusive;

use vmio::{AvailableMemory, CacheBuilder};

/// The part of the available memory that `auto` takes, in percent: the program needs some, too.
const AUTO_PERCENT: u64 = 50;

/// Parses the capacity of a cache: a size, a share such as `50%` of the memory that the process could take now, or `auto`.
pub fn parse_cache(text: &str) -> Result<u64, String> {
    parse_cache_of(text, || AvailableMemory::now().bytes())
}

fn parse_cache_of(text: &str, available: impl FnOnce() -> Option<u64>) -> Result<u64, String> {
    let percent = match text.trim() {
        "auto" => AUTO_PERCENT,
        share => match share.strip_suffix('%') {
            Some(number) => {
                number.parse().ok().filter(|number| (1..=100).contains(number)).ok_or_else(|| advice(text))?
            }
            None => return parse_within(text, &CacheBuilder::CAPACITY_BYTES),
        },
    };
    let available = available().ok_or("the kernel does not say how much memory there is: give a size, as in 512M")?;
    let (least, most) = (*CacheBuilder::CAPACITY_BYTES.start(), *CacheBuilder::CAPACITY_BYTES.end());
    let bytes = (u128::from(available) * u128::from(percent) / 100) as u64;
    if bytes < least {
        let (available, least) = (format_size(available), format_size(least));
        return Err(format!("of the {available} that there are, {percent} % is less than a cache takes, {least}"));
    }
    Ok(bytes.min(most))
}

/// Parses a number of bytes within bounds.
pub fn parse_within(text: &str, bounds: &RangeInclusive<u64>) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bounds.contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("it may be {} to {}", format_size(*bounds.start()), format_size(*bounds.end())))
}

/// Parses a number of bytes with an optional binary suffix (K, M, G, T; also KB, KiB and so on).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(advice(text)),
    };
    let number: u64 = number.parse().map_err(|_| advice(text))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
}

fn advice(text: &str) -> String {
    format!("{text:?} is not a size: write bytes, or a whole number with K, M, G or T, as in 512M")
}

/// The shortest exact spelling for round sizes, one decimal otherwise.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let one = 1_u64 << shift;
        if bytes >= one {
            return if bytes.is_multiple_of(one) {
                format!("{} {unit}", bytes / one)
            } else {
                format!("{:.1} {unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_suffix() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(64 << 10));
        assert_eq!(parse_size("512m"), Ok(512 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        assert_eq!(parse_size("0"), Ok(0));
    }

    #[test]
    fn what_no_cache_can_have_is_refused_with_what_it_can() {
        assert_eq!(parse_cache("6M"), Ok(6 << 20));
        for text in ["0", "6291455", "17T"] {
            assert_eq!(parse_cache(text), Err("it may be 6 MiB to 16 TiB".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_share_is_of_the_memory_that_there_is() {
        let parse = |text| parse_cache_of(text, || Some(1000 << 20));
        assert_eq!((parse("auto"), parse("50%"), parse("1%")), (Ok(500 << 20), Ok(500 << 20), Ok(10 << 20)));
        assert_eq!(parse("64M"), Ok(64 << 20));
        for text in ["0%", "101%", "%", "-5%", "half"] {
            assert!(parse(text).is_err_and(|error| error.contains("512M")), "{text}");
        }
        assert!(parse_cache_of("5%", || Some(100 << 20)).is_err_and(|error| error.contains("less than a cache takes")));
        assert!(parse_cache_of("auto", || None).is_err());
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_advice() {
        for text in ["", "G", "-1", "1.5G", "12Q", "2 G", "0x10"] {
            let error = parse_size(text).expect_err(text);
            assert!(error.contains("512M"), "{error}");
        }
        assert!(parse_size("99999999T").is_err());
    }

    #[test]
    fn sizes_print_as_they_are_read() {
        assert_eq!(format_size(512 << 20), "512 MiB");
        assert_eq!(format_size(2 << 30), "2 GiB");
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(7), "7 B");
    }
}
