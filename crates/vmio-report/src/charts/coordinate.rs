//! Coordinates as a drawing has them.

/// A coordinate, to a tenth.
pub fn px(value: f64) -> String {
    format!("{value:.1}")
}
