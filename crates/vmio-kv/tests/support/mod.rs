//! What vmio's own tests have, and these use as well.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../../../vmio/tests/support/random.rs"]
mod random;
#[path = "../../../vmio/tests/support/simulated_disk.rs"]
pub mod simulated_disk;

pub use random::Random;
