//! A test that cannot run says so.

use std::env;
use std::fmt::Display;

/// Says why a test, or a part of one, does not run. `scripts/test` lists the reasons of a run at its end.
///
/// ```
/// fn a_device_that_fails() {
///     if !std::path::Path::new("/dev/mapper/control").exists() {
///         return test_depth::skipped("there is no device mapper");
///     }
/// }
/// ```
pub fn skipped(reason: impl Display) {
    println!("skipped: {reason}");
}

/// Says the same where CI has what the test needs: programs that can be installed.
///
/// # Panics
///
/// If `CI` is set.
pub fn skipped_outside_ci(reason: impl Display) {
    assert!(env::var_os("CI").is_none(), "{reason}");
    skipped(reason);
}
