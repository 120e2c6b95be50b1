//! Measurements of one property each.

pub mod age;
pub mod commit;
pub mod fetch;
pub mod files;
pub mod fresh;
pub mod heap;
pub mod hit;
pub mod posix;
pub mod programs;
pub mod sync;
pub mod units;
