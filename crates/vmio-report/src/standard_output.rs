//! Standard output, which may be full, or whose reader may be gone: that is an error, and no panic.

use std::io::{self, Write};

use anyhow::Context;

/// Prints a line.
pub fn print_line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}
