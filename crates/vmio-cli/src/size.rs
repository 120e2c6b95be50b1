//! Sizes as people write them: `2G`, `512M`, `64KiB`, `4096`.

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
